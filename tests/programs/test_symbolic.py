"""Programs for all sizes: at any, they are the program that the function traced for that size is, bit by bit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from tests.programs.test_exported import in_another_process
from volta import io, lax, models, nn
from volta.core import pytrees
from volta.core.sizes import Size
from volta.programs.sizes import fitted, traced_sizes
from volta.programs.symbolic import Symbolic, from_stored
from volta.testing.bits import bits, digest
from volta.testing.transformer import Transformer
from volta.verify.laws import PROGRAMS

W = np.cos(np.arange(64 * 64, dtype=np.float32)).reshape(64, 64)
SIZES = (1, 5, 6, 9, 66, 77, 301, 2048, 3333)
"""Others than those that are traced, but for the first."""


def kind(text: str, dtype: str = "float32", *constraints: str) -> Any:
    return volta.ShapeDtypeStruct(volta.symbolic_shape(text, constraints=constraints), dtype)


def layers(x: Any) -> Any:
    h = nn.layer_norm(nn.gelu(x @ W))
    return nn.rms_norm(h + x) @ W.T


def recurrent(xs: Any, h: Any) -> Any:
    return lax.scan(lambda h, x: (vnp.tanh(h @ W + x), h.sum(-1)), h, xs)


def chosen(x: Any) -> Any:
    y = lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, vnp.sin(c[1])), (0, x))[1]
    return lax.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - x.shape[0], y)


def attended(q: Any, k: Any) -> Any:
    return nn.dot_product_attention(q, k, k, is_causal=True)


def pieces(x: Any) -> Any:
    padded = vnp.pad(x, ((2, 1), (0, 0)))
    return padded[1:-1], x[::-1], x[::2], x[1::3], vnp.roll(x, 1, 0), vnp.concatenate([x, x * 2]), vnp.stack([x, x], 1)


def counted(x: Any) -> Any:
    n = vnp.arange(x.shape[0])
    return x * n[:, None] / x.shape[0], vnp.var(x, 0), vnp.tril(x @ x.T), n.at[0].set(3), vnp.full(x.shape[0], 2.0)


def decoder(kind_of: str) -> Callable[..., Any]:
    """A model's logits and caches for prompts of any number and length; its parameters are constants."""
    config = models.Config(17, 16, 1, 2, 1, 8, 24, context=4096, kind=kind_of)
    model = models.random_decoder(config)

    def prefill(tokens: Any, start: Any) -> Any:
        logits, caches = model(tokens, model.caches(*tokens.shape), start)
        return logits, [pytrees.leaves(cache) for cache in caches]

    return prefill


def training(tokens: Any) -> Any:
    model = Transformer(layers=1, width=16, heads=2, length=8, vocabulary=31)
    params = model.init(volta.random.key(0))
    return volta.value_and_grad(lambda p: nn.log_softmax(model.logits(p, tokens)).mean())(params)


MORE = ("b > 1", "t > 1")
PROMPTS = (kind("b, t", "int32", *MORE), kind("b", "int32", *MORE))
ALL: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{
        name: (PROGRAMS[name], (kind("b, 64"), kind("64, 66")))
        for name in ("elementwise", "reductions", "norms", "sort and scan", "gather and scatter")
    },
    "products": (PROGRAMS["products"], (kind("b, 64"), kind("64, b"))),
    "gradient": (PROGRAMS["gradient"], (kind("b, 64"), kind("64, b"))),
    "layers": (layers, (kind("b, 64"),)),
    "gradient of layers": (volta.grad(lambda x: (layers(x) ** 2).mean()), (kind("b, 64"),)),
    "scan": (recurrent, (kind("t, b, 64"), kind("b, 64"))),
    "gradient of a scan": (volta.grad(lambda xs, h: recurrent(xs, h)[1].sum()), (kind("t, b, 64"), kind("b, 64"))),
    "while and cond": (chosen, (kind("b, 3"),)),
    "attention": (attended, (kind("b, q, 4, 16"), kind("b, k, 4, 16"))),
    "reshapes": (lambda x: (x.reshape(-1, 8), x.ravel(), x.transpose(1, 0, 2), x[:, None]), (kind("b, t, 8"),)),
    "multiples": (lambda x: x.reshape(-1, 2, 4).sum(1), (kind("2*b, 4"),)),
    "indices": (lambda x, i: (x[i], vnp.take(x, i, 0), x.at[i].add(1)), (kind("b, 8"), kind("n", "int32"))),
    "pieces": (pieces, (kind("b, 4", "float32", "b >= 2"),)),
    "counted": (counted, (kind("b, 4", "float32", "b >= 2"),)),
    "vmap": (volta.vmap(lambda x: nn.softmax(vnp.sort(x)) @ W), (kind("b, 64"),)),
    "llama": (decoder("llama"), PROMPTS),
    "gpt2": (decoder("gpt2"), PROMPTS),
    "training": (training, (kind("b, 8", "int32"),)),
    "random": (lambda k, x: volta.random.normal(k, x.shape) + x, (kind("2", "uint32"), kind("b, 4"))),
}


def sizes_of(program: Any, number: int) -> dict[str, int]:
    """Sizes for each symbol, others for each."""
    sizes = SIZES[number:] + SIZES[:number]
    ranges = program.symbolic.ranges
    return {name: max(sizes[3 * i % len(sizes)], least) for i, (name, (least, _)) in enumerate(ranges.items())}


def arguments(program: Any) -> list[Any]:
    rng = np.random.default_rng(0)
    found = []
    for a in program.in_avals:
        data = rng.normal(size=a.shape) if a.dtype.kind == "f" else rng.integers(0, 2, a.shape)
        found.append(data.astype(a.dtype))
    return found


@pytest.mark.turns(len(ALL))
@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * (x == "training")) for x in ALL])
def test_at_any_size_it_is_the_function_traced_for_it(name: str, tmp_path: Path) -> None:
    f, kinds = ALL[name]
    program = volta.export(f, *kinds)
    program.save(tmp_path / "f")
    loaded = volta.load_program(tmp_path / "f")
    assert repr(loaded) == repr(program) and "[" in repr(program)
    for number in range(len(SIZES)):
        sizes = sizes_of(program, number)
        found = loaded.at(**sizes)
        anew = volta.export(f, *(volta.ShapeDtypeStruct(a.shape, a.dtype) for a in found.in_avals))
        assert found.as_text() == anew.as_text()
        shapes = [tuple(x.at(sizes) if isinstance(x, Size) else x for x in a.shape) for a in program.out_avals]
        assert shapes == [a.shape for a in anew.out_avals]
    args = arguments(loaded.at(**sizes_of(program, 1)))
    assert digest(loaded(*args)) == digest(volta.jit(f)(*args))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_another_process_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    f, kinds = ALL[name]
    program = volta.export(f, *kinds)
    args = arguments(program.at(**sizes_of(program, 2)))
    assert in_another_process(program, args, tmp_path) == digest(volta.jit(f)(*args))


def test_the_file_is_a_function_of_the_program(tmp_path: Path) -> None:
    program = volta.export(lambda p, *, x: {"y": nn.softmax(x @ p["w"])}, {"w": W}, x=kind("b, 64"))
    program.save(tmp_path / "a")
    loaded = volta.load_program(tmp_path / "a")
    loaded.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() and io.load(tmp_path / "a")["format"] == 2
    x = vnp.ones((3, 64))
    assert bits(loaded({"w": W}, x=x)["y"]) == bits(nn.softmax(x @ W))
    assert loaded.at(b=3) is loaded.at(b=3) is not loaded.at(b=4)


def test_it_is_transformed_like_the_function() -> None:
    program = volta.export(layers, kind("b, 64"))
    x = vnp.asarray(W[:5])
    assert bits(volta.grad(lambda x: program(x).sum())(x)) == bits(volta.grad(lambda x: layers(x).sum())(x))
    assert bits(volta.vmap(program)(x[:, None])) == bits(volta.vmap(layers)(x[:, None]))
    assert bits(volta.jit(lambda x: program(x) * 2)(x)) == bits(layers(x) * 2)


def test_static_arguments_donations_and_targets() -> None:
    f = volta.jit(lambda n, x: x * n, static_argnums=0, donate_argnums=1)
    program = volta.export(f, 3, kind("b"))
    x = vnp.ones(4)
    assert (program(x) == 3).all() and x.is_deleted()
    with pytest.raises(
        volta.errors.ArgumentError, match=r"sizes of `.*` are symbols; say which, as in program.at\(b=1\)"
    ):
        program.compiled_for("cpu")
    assert [code.target for code in program.at(b=4).compiled_for("cpu").machine_code] == ["cpu"]
    assert "tensor<5xf32>" in program.at(b=5).mlir_module()


# -- what is refused ---------------------------------------------------------------------------------------------------


def unrolled(x: Any) -> Any:
    return sum(x[i] for i in range(x.shape[0]))


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "as many operations as sizes": (
        lambda x: unrolled(x[: min(9, x.shape[0])]),
        "an operation is reshape at b = 1, and slice at b = 4096",
    ),
    "an array known when it is traced": (lambda x: x * np.arange(x.shape[0])[:, None], "the shape of|an array that"),
    "a branch": (lambda x: vnp.sin(x) if x.shape[0] > 100 else vnp.cos(x), "an operation is cos at b = 1, and sin"),
    "a reciprocal": (
        lambda x: x * (1 / x.shape[0]),
        "an operand of mul is 1.0 at b = 1, and .* no whole number of the sizes",
    ),
    "a bound": (lambda x: x[:7], "it has 0 operations at b = 1, and 1 at b = 4096"),
    "another result": (lambda x: [x] * min(x.shape[0], 2), "its results have another structure"),
    "another type": (lambda x: x.astype("float16" if x.shape[0] % 2 else "float32"), "operation"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_the_number_is_refused_by_name(name: str) -> None:
    f, why = REFUSED[name]
    with pytest.raises(
        volta.errors.UnsupportedOperationError, match=f"is no one program for all sizes of b: .*({why})"
    ):
        volta.export(f, kind("b, 4"))


def test_where_only_the_least_size_is_another_program_the_error_says_so() -> None:
    f = lambda x: abs(x[:, None] - x).sum()  # noqa: E731
    with pytest.raises(volta.errors.UnsupportedOperationError, match=r"It is one with .*constraints=\['b > 1'\]\)"):
        volta.export(f, kind("b"))
    assert bits(volta.export(f, kind("b", "float32", "b > 1"))(vnp.ones(3))) == bits(vnp.float32(0))
    with pytest.raises(volta.errors.UnsupportedOperationError, match="Export it for numbers, or for sizes"):
        volta.export(lambda x: x * (1 / x.shape[0]), kind("b"))


def test_a_constraint_leaves_out_sizes_that_are_another_program() -> None:
    f = lambda x: vnp.sin(x) if x.shape[0] > 100 else vnp.cos(x)  # noqa: E731
    program = volta.export(f, kind("b, 4", "float32", "b > 100", "b <= 5000"))
    assert bits(program(vnp.ones((5000, 4)))) == bits(vnp.sin(vnp.ones((5000, 4))))
    with pytest.raises(
        volta.errors.ShapeError, match="exported for b from 101 to 5,000, got 100: export it with other"
    ):
        program(vnp.ones((100, 4)))


def test_of_few_sizes_each_is_traced() -> None:
    """So that none can be a program of its own, unseen."""
    f = lambda x: vnp.sin(x) if x.shape[0] == 10 else vnp.cos(x)  # noqa: E731
    with pytest.raises(volta.errors.UnsupportedOperationError, match="an operation is cos at b = 1, and sin at b = 10"):
        volta.export(f, kind("b", "float32", "b <= 16"))
    program = volta.export(f, kind("b", "float32", "b > 10", "b <= 12"))
    assert [len(program(vnp.ones(b))) for b in (11, 12)] == [11, 12]


def test_shapes_that_are_none_of_the_programs() -> None:
    program = volta.export(lambda x, y: x @ y, kind("2*b, t"), kind("t, 3"))
    with pytest.raises(volta.errors.ShapeError, match=r"shape \(2\*b, t\) as args\[0\], got \(5, 4\) \(no 2\*b is 5\)"):
        program(vnp.ones((5, 4)), vnp.ones((4, 3)))
    with pytest.raises(
        volta.errors.ShapeError, match=r"shape \(t, 3\) as args\[1\], got \(5, 3\) \(t = 4, b = 2\)|t = 4"
    ):
        program(vnp.ones((4, 4)), vnp.ones((5, 3)))
    with pytest.raises(volta.errors.ShapeError, match="got"):
        program(vnp.ones(4), vnp.ones((4, 3)))
    with pytest.raises(volta.errors.TreeError):
        program(vnp.ones((4, 4)))
    with pytest.raises(volta.errors.DTypeError, match="astype"):
        program(vnp.ones((4, 4), "int32"), vnp.ones((4, 3)))
    with pytest.raises(volta.errors.ArgumentError, match="has the symbols b, t, got b = 3"):
        program.at(b=3)
    with pytest.raises(volta.errors.ArgumentError, match="exported for numbers"):
        volta.export(vnp.sin, vnp.ones(3)).at(b=3)


def test_an_error_at_some_size_says_at_which() -> None:
    with pytest.raises(volta.errors.ShapeError) as found:
        volta.export(lambda x: x.reshape(2, -1), kind("b"))
    assert any("at b = 1" in note for note in found.value.__notes__)
    with pytest.raises(IndexError) as found_too:
        volta.export(lambda x: [0, 1, 2][x.shape[0]] * x, kind("b"))
    assert any("at b = 4" in note for note in found_too.value.__notes__)


def test_symbols_are_written_so() -> None:
    shape = volta.symbolic_shape("b, 2*b + t*t - 1, 8", constraints=["b >= 2", "t < 9"])
    assert str(shape) == "(b, t*t + 2*b - 1, 8)" and shape[0].ranges == {"b": (2, 4096), "t": (1, 8)}
    assert str((shape[0] * 3 + 1, 5 - shape[0])) == "(3*b + 1, -b + 5)" and volta.symbolic_shape("") == ()
    for text in ("b,, 8", "b/2", "f(b)", "b; c", "(" * 300, "1.5", "b\0"):
        with pytest.raises(volta.errors.ArgumentError, match="is no shape"):
            volta.symbolic_shape(text)
    for constraint in ("b", "b == 3", "b >= x", 3):
        with pytest.raises(volta.errors.ArgumentError, match="is no constraint"):
            volta.symbolic_shape("b", constraints=[constraint])  # type: ignore[list-item]
    with pytest.raises(volta.errors.ArgumentError, match="there is no b"):
        volta.symbolic_shape("b", constraints=["b <= 3", "b >= 2", "b <= 1"])
    with pytest.raises(volta.errors.ArgumentError, match="other constraints in another shape"):
        volta.export(lambda x, y: x, kind("b", "float32", "b >= 2"), kind("b"))
    with pytest.raises(volta.errors.ArgumentError, match="no size is b itself"):
        volta.export(lambda x: x, kind("b*b"))
    with pytest.raises(volta.errors.ArgumentError, match="sizes that are symbols are for volta.export"):
        volta.jit(vnp.sin).trace(kind("b"))


@given(st.integers(1, 3), st.tuples(*[st.integers(-9, 9)] * 3), st.integers(1, 4))
def test_polynomials_are_found(count: int, coefficients: tuple[int, int, int], least: int) -> None:
    points = traced_sizes(dict.fromkeys("abc"[:count], (least, 500)))
    p, q, r = coefficients
    numbers = [p * x["a"] + q * x[[*x][-1]] * x["a"] + r for x in points]
    size = fitted(points, numbers)
    assert size is not None and [size.at(x) for x in points] == numbers
    more = [{name: n + 3 * i for i, name in enumerate("abc"[:count])} for n in range(40)]
    assert [size.at(x) for x in more] == [p * x["a"] + q * x[[*x][-1]] * x["a"] + r for x in more]


@given(st.integers(2, 5), st.integers(0, 9), st.integers(1, 4), st.integers(1, 5))
def test_divisions_are_found_or_refused(divisor: int, offset: int, times: int, least: int) -> None:
    points = traced_sizes({"b": (least, 4000)})
    wanted = lambda b: times * ((b + offset) // divisor) + offset  # noqa: E731
    size = fitted(points, [wanted(x["b"]) for x in points])
    assert size is not None and all(size.at({"b": b}) == wanted(b) for b in range(1, 300))


# -- damaged files -----------------------------------------------------------------------------------------------------

EXPORTED: Any = volta.export(lambda x, y: (recurrent(x, y), x[::2].mean(0)), kind("t, b, 64"), kind("b, 64")).symbolic
SCRAPS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.text(max_size=5), st.just([]), st.just({}),
    st.sampled_from([{"$size": [1, 1, 0, [[1, ["b"]]]]}, {"$size": [0, 1, 0, []]}, {"$size": [1, 1, 0, [[1, ["z"]]]]},
                     {"$number": [1, 1, 0, [[1, ["b"]]]]}, ["float32", [{"$size": [2, 1, 0, [[3, ["b", "t"]]]]}]],
                     {"$size": [1, 1, 0, [[1, ["b"]], [-1, ["b"]]]]}, {"$size": [1, 2**80, 0, [[1, ["t", "t"]]]]}]),
)  # fmt: skip


def _places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path] + [p for key, child in items for p in _places(child, (*path, key))]


@given(st.sampled_from(_places(EXPORTED.document)[1:]), SCRAPS)
def test_damaged_programs_are_refused_by_name(place: tuple[Any, ...], scrap: Any) -> None:
    damaged = json.loads(json.dumps(EXPORTED.document))
    node = damaged
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = scrap
    try:
        found = from_stored(EXPORTED.to_stored(), damaged, EXPORTED.constants)
        str(found.program({"b": 3, "t": 5}))
    except volta.errors.FormatError:
        return
    assert isinstance(found, Symbolic)  # another program, which is one


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"b": 3}', '{"b": [0, 3]}', '{"b": [3, 1]}', '{"z": [1, 2]}', "[" * 5000, 3]
)
def test_damaged_symbols_are_refused_by_name(text: Any) -> None:
    with pytest.raises(volta.errors.FormatError, match="corrupt"):
        from_stored(text, EXPORTED.document, EXPORTED.constants)


def test_a_file_of_symbols_that_are_none_is_refused(tmp_path: Path) -> None:
    program = volta.export(nn.softmax, kind("b, 64"))
    other = attrs.evolve(program.symbolic, ranges={"b": (1, 4096), "c": (1, 2)})
    attrs.evolve(program, symbolic=other).save(tmp_path / "f")
    with pytest.raises(volta.errors.FormatError, match="f: corrupt: a symbol of a program is no argument's size"):
        volta.load_program(tmp_path / "f")
