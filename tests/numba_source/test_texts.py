"""Texts of kernels: what they call is there, they say where work comes from, what they are compiled to is strict."""

import ast
import builtins
import inspect
import re

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.block_weights import random_blocks
from tests.user_kernels import smooth
from tests.xla_like.xla_support import struct
from volta import lax, nn
from volta.core.errors import UnsupportedOperationError
from volta.numba_cpu import schedule, small_loops
from volta.numba_source import numba_words, python_words
from volta.numba_source.compiling import dispatcher_of
from volta.numba_source.numba_words import KERNEL
from volta.numba_source.text import Module
from volta.numba_source.texts import KERNELS, has_text, text_of_kernel
from volta.numba_source.words import WORDS
from volta.testing import digest, fill
from volta.xla_like import user
from volta.xla_like.kernels import KernelCall, LibraryKernel
from volta.xla_like.panels import PANEL


def model(x, i):
    h = nn.gelu(x)
    moved = (h[i], x.at[i].add(h[:2]), vnp.sort(x, 1), vnp.cumsum(x, 0))
    return nn.softmax(h, -1), vnp.argmax(x, 0), vnp.sum(x.astype("bfloat16")), x @ x.T, lax.lgamma(x), moved


def compiled():
    return volta.jit(model).lower(fill("normal", (4, 70)), np.array([1, 3], np.int32)).compile()


def test_a_text_is_a_module_whose_names_are_all_there() -> None:
    text = compiled().as_text("numba")
    tree = ast.parse(text)
    made = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    made |= {name.id for node in tree.body if isinstance(node, ast.Assign) for name in node.targets}
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        own = {a.arg for a in function.args.args}
        own |= {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
        unknown = read - own - made - WORDS - set(dir(builtins))
        assert not unknown, (function.name, unknown)
        assert ast.get_docstring(function)


def test_the_words_are_the_same_for_numba_and_for_python() -> None:
    for words in (numba_words, python_words):
        assert set(words.NAMES) == WORDS == set(words.__all__)
        assert all(getattr(words, name) is value for name, value in words.NAMES.items() if name not in ("nan", "inf"))


def test_an_operation_is_a_line_with_the_users_line_beside_it() -> None:
    lines = [line.strip() for line in compiled().as_text("numba").splitlines()]
    source, first = inspect.getsourcelines(model)
    line = source[1].strip()
    assert any(x.startswith("v0 = load_f32(") and x.endswith(f":{first + 1} (model): {line}") for x in lines)
    assert any(x.startswith("v") and " = tanh(v" in x for x in lines)
    assert "# call 0, " in "\n".join(lines)


def test_the_order_of_a_sum_stands_in_the_text() -> None:
    text = volta.jit(lambda x: vnp.sum(x, 1)).lower(fill("normal", (2, 5000))).compile().source("row")
    for line in (
        "for start in range(0, length, 4096):",
        "for lane in range(min(64, stop - base)):",
        "lanes[lane] = lanes[lane] + lanes[lane + half]",
        "tree[top - 2] = tree[top - 2] + tree[top - 1]",
    ):
        assert line in text


def test_functions_of_one_name_and_several_texts_get_numbers() -> None:
    module = Module()
    assert module.function("f", ["x"], ["return x"], "One.") == "f"
    assert module.function("f", ["x"], ["return -x"], "Another.") == "f_2"
    assert module.function("f", ["x"], ["return x"], "One.") == "f"
    assert module.function("max", ["x"], ["return x"], "A word of Python's.") == "max_of"
    assert module.function("fma", ["x"], ["return x"], "A word of ours.") == "fma_of"


def test_nothing_is_contracted_or_reordered() -> None:
    """A product and a sum beside it: two roundings, as written."""
    x = fill("normal", (100,))
    found = volta.jit(lambda x, y: x * y + x).lower(x, x).compile().kernel("map")
    (assembly,) = found.inspect_asm().values()
    assert "fmadd" not in assembly and "fmla" not in assembly
    (code,) = found.inspect_llvm().values()
    assert " fmul float" in code or " fmul <" in code
    assert "reassoc" not in code and "contract" not in code and " fast " not in code


def test_functions_that_kernels_share_are_compiled_once() -> None:
    def function_of(f):
        (call,) = volta.jit(f).lower(fill("normal", (3, 5))).compile().plan.calls
        return dispatcher_of(text_of_kernel(call)).py_func.__globals__["tanh"]

    assert function_of(lambda x: vnp.tanh(x) * 3) is function_of(lambda x: vnp.tanh(x + 2))


def test_a_kernel_without_a_text_is_named() -> None:
    call = KernelCall(LibraryKernel("weave", "cloth"), (), (), (), (), label="mine.py:3 (f)")
    with pytest.raises(UnsupportedOperationError, match=r"'weave' of mine.py:3 \(f\) has no text for Numba"):
        text_of_kernel(call)


def test_a_dispatcher_is_called_inspected_and_compiled_for_the_launch_table() -> None:
    found = volta.jit(lambda x: x * 2 + 1).lower(vnp.ones(3)).compile().kernel("map")
    assert found.signatures == [tuple(KERNEL.args)]
    x, out = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    lines = inspect.getsource(found.py_func).splitlines()
    names = ("n0", "chunk", "in0", "out0")
    words = {name: x for x in lines if " = args[" in x for name in names if x.strip().startswith(name)}
    at = {name: int(line.split("args[")[1].split("]")[0]) for name, line in words.items()}
    args = np.zeros(16, np.int64)
    args[at["n0"]], args[at["chunk"]], args[at["in0"]], args[at["out0"]] = 5, 5, x.ctypes.data, out.ctypes.data
    found(args, 0, 1, 0)
    np.testing.assert_array_equal(out, x * 2 + 1)


def test_listing_names_the_buffers_of_calls() -> None:
    text = compiled().as_text("numba")
    assert text.startswith("# plan model ")
    assert "in0 = b0 in0 f32[4,70]" in text


def test_listing_says_which_call_of_a_loop_or_choice_runs_a_kernel() -> None:
    def f(x):
        x = lax.fori_loop(0, 3, lambda i, x: vnp.sort(x * 2), x)
        return lax.cond(x[0] > 0, lambda x: vnp.cumsum(x), lambda x: x[1:] @ x[:-1] + x, x)

    text = volta.jit(f).lower(fill("normal", (70,))).compile().as_text("numba")
    functions = ast.parse(text).body
    lines = text.splitlines()
    kernels = [x for x in functions if isinstance(x, ast.FunctionDef) and x.name.startswith("volta_")]
    assert all(lines[x.decorator_list[0].lineno - 2].startswith("# ") for x in kernels)
    number = re.search(r"#   (\d+): .* = while\(", text)[1]
    choice = re.search(r"#   (\d+): .* = switch\(", text)[1]
    assert f"# call {number}.2, test_texts.py" in text
    assert f"# call {choice}[0].0, " in text and f"# call {choice}[1].0, " in text


def test_listing_says_where_in_a_buffer_a_view_begins() -> None:
    text = volta.jit(lambda x: x[1:] * x[:-1]).lower(vnp.ones(9)).compile().as_text("numba")
    assert "in0 = b0 in0 f32[9] + 4 bytes, in1 = b0 in0 f32[9], out0 = b1 f32[8]" in text


def test_what_llvm_alone_has_kernels_for_is_shown_as_the_program_that_it_means() -> None:
    w = random_blocks("Q4_0", 5, 2)
    compiled = volta.jit(lambda x, w: nn.linear(x, nn.QuantizedArray(w, "Q4_0"))).lower(vnp.ones((2, 64)), w).compile()
    assert "rhs='Q4_0'" in compiled.as_text() and "rhs='float32'" in compiled.as_text("numba")


@pytest.mark.parametrize("f", [vnp.fft.fft, lambda x: vnp.linalg.cholesky(x.real[:96, :96])], ids=["tiles", "panels"])
def test_kernels_that_llvm_alone_has_are_shown_as_the_loops_that_they_stand_for(f) -> None:
    compiled = volta.jit(f).lower(struct(200, 1024, dtype=np.complex64)).compile()
    assert any(not has_text(x.kernel) for launch in compiled.plan.all_launches() for x in launch.each())
    ast.parse(compiled.as_text("numba"))


def test_a_kernel_of_ones_own_is_listed_with_its_source_and_found_by_its_name() -> None:
    compiled = volta.jit(lambda x: smooth(smooth(vnp.sin(x)))).lower(vnp.ones(9)).compile()
    text = compiled.as_text("numba")
    assert "# def smooth(x, out):" in text and "a function of your own" in text
    ast.parse(text)
    assert "def smooth(x, out):" in compiled.source("smooth")
    assert compiled.kernel("smooth").py_func.__name__ == "smooth"


def test_notebooks_show_a_text_in_colour() -> None:
    text = compiled().source("scan")
    shown = text._repr_html_()
    assert '<span style="color:#b31d7c">for</span> row <span' in shown
    assert "&lt;" in compiled().as_text("numba")._repr_html_()


def test_every_kernel_of_the_cpu_has_a_text() -> None:
    """One that is added has none at first; a user's own is a Numba function, a small loop its body's kernels, a panel
    or a row times weights in blocks those of the program that it means, tiles of loops are these loops, rows that
    are sorted by digits or in vectors are merged, and numbers that fill rows of slots are sorted by target."""
    otherwise = set(schedule.HANDLERS["sort"].kernels) - {"sort"}
    others = {
        user.NAME,
        small_loops.NAME,
        *schedule.HANDLERS[PANEL].kernels,
        "dot_block_row",
        "dot_block_words",
        "tiled",
    }
    in_rows = {"scatter_split", "scatter_numbers"}
    assert set(schedule.KERNELS) == {*KERNELS, *otherwise, *in_rows, *others}


@pytest.mark.parametrize(
    ("kernels", "shape"), [("python", (3, 60)), pytest.param("njit", (100_000,), marks=pytest.mark.slow)], ids=str
)
def test_sorts_by_digits_are_merges_there(kernels: str, shape: tuple[int, ...]) -> None:
    """Those of rows, and those of a long row in chunks, which has memory of its own."""
    x = fill("normal", shape)
    f = volta.jit(lambda x: vnp.sort(x, -1))
    want = f(x)
    with volta.execution_context(kernels=kernels):
        assert digest(f(x)) == digest(want)


def test_an_expression_is_one_line() -> None:
    """Operators of values write where the expression is, not in front of it."""
    x, w = fill("normal", (3, 5)), fill("normal", (5, 4), seed=1)
    text = volta.jit(lambda x, w: x @ w).lower(x, w).compile().source("dot_")
    assert "total[i, j] = chain[j] if chunk == block else total[i, j] + chain[j]" in text
