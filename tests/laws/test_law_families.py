"""Law: the families of functions beyond arithmetic keep their bits compiled, checkpointed, batched and differentiated,
with Python numbers among their arguments, at the edges of what they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax, nn, random
from volta.scipy import linalg
from volta.testing import assert_bits_equal

pytestmark = pytest.mark.turns(6)

RNG = np.random.default_rng(0)
KEY = np.asarray(random.PRNGKey(3))


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def definite(n: int) -> np.ndarray:
    x = normal(n, n)
    return x @ x.T + 3 * np.eye(n, dtype=np.float32)


@volta.custom_jvp
def _jvp_rule(x: Any, s: Any) -> Any:
    return vnp.sin(x) * s


_jvp_rule.defjvp(lambda p, t: (_jvp_rule(*p), vnp.cos(p[0]) * p[1] * t[0] + vnp.sin(p[0]) * t[1]))


@volta.custom_vjp
def _vjp_rule(x: Any, s: Any) -> Any:
    return x * x * s


_vjp_rule.defvjp(
    lambda x, s: (x * x * s, (x, s)), lambda kept, g: (2 * kept[0] * kept[1] * g, vnp.sum(kept[0] ** 2 * g))
)


def _told(x: Any, s: Any) -> Any:
    like = volta.ShapeDtypeStruct(x.shape, x.dtype)
    return volta.pure_callback(lambda x, s: (np.asarray(x) * s).astype(x.dtype), like, x, s, vmap_method="sequential")


@attrs.frozen
class Case:
    f: Callable[..., Any]
    args: tuple[Any, ...]
    by: tuple[int, ...] = ()  # what it is differentiated by


TIES = np.float32([[1, 1, 2, 2], [2, 0, -0.0, 0], [np.inf, np.inf, 1, -np.inf], [-np.inf, 3, 3, np.nan]])[
    None, ..., None
]
WIDE = np.array([0.1, 1 / 3, -2.0])

CASES: dict[str, Case] = {
    "convolution": Case(
        lambda x, k, s: lax.conv_general_dilated(x * s, k, (2, 1), ((1, 0), (2, 3)), (2, 1), (1, 2), None, 2),
        (normal(2, 4, 7, 6), normal(6, 2, 3, 2), 0.1), (0, 1, 2),
    ),
    "convolution that cuts its operand": Case(
        lambda x, k: lax.conv_general_dilated(x, k, (1, 1), ((-1, 0), (0, -1))),
        (normal(1, 2, 5, 5).swapaxes(2, 3), normal(3, 2, 3, 3)[..., ::-1]), (0, 1),
    ),
    "convolution of nothing": Case(
        lambda x, k: lax.conv_general_dilated(x, k, (1,), "VALID"), (normal(1, 2, 3), normal(4, 2, 5)), (0, 1)
    ),
    "transposed convolution": Case(
        lambda x, k: lax.conv_transpose(x, k, (2,), "SAME"), (normal(1, 5, 2), normal(3, 2, 4)), (0, 1)
    ),
    "maxima of windows": Case(lambda x: nn.max_pool(x, (2, 2), (1, 1), "SAME"), (TIES,), (0,)),
    "means of windows": Case(lambda x, s: nn.avg_pool(x * s, (3, 2), (2, 2), "SAME"), (normal(2, 5, 6, 3), 3), (0,)),
    "sums of windows": Case(
        lambda x, s: lax.reduce_window(x, s, lax.add, (2, 3), (1, 2), ((0, 1), (1, 1))), (normal(5, 6), 0.1), (0,)
    ),
    "cholesky": Case(lambda a, s: vnp.linalg.cholesky(a * s), (definite(4), 3), (0,)),
    "cholesky of what is not definite": Case(vnp.linalg.cholesky, (-definite(3),), (0,)),
    "solve": Case(lambda a, b, s: vnp.linalg.solve(a + s, b), (normal(3, 3), normal(3, 2), 0.1), (0, 1, 2)),
    "det of a singular matrix": Case(vnp.linalg.det, (np.ones((3, 3), np.float32),), (0,)),
    "inv of nothing": Case(vnp.linalg.inv, (np.zeros((0, 0), np.float32),)),
    "qr": Case(lambda a: tuple(vnp.linalg.qr(a)), (normal(4, 3).T[::-1].T,), (0,)),
    "eigh": Case(lambda a, s: tuple(vnp.linalg.eigh(a * s)), (definite(4), 0.1), (0,)),
    "svd": Case(lambda a: vnp.linalg.svd(a, compute_uv=False), (normal(3, 4),), (0,)),
    "norms": Case(
        lambda x: [vnp.linalg.norm(x, p) for p in (None, 1, 2, 3, np.inf, -np.inf)], (np.float32([0, 1, -1, 3]),), (0,)
    ),
    "expm": Case(lambda a, s: linalg.expm(a * s), (normal(3, 3), 3), (0,)),
    "triangular": Case(
        lambda a, b: linalg.solve_triangular(a, b, trans=1, lower=True), (definite(3), normal(3)), (0, 1)
    ),
    "gamma": Case(lambda k, a: random.gamma(k, a, (3,)), (KEY, 2.5)),
    "gamma of edges": Case(lambda k, a: random.gamma(k, a), (KEY, np.float32([0, -1, np.nan, 1e-30, 1e30, np.inf]))),
    "poisson": Case(lambda k, a: random.poisson(k, a, (4,)), (KEY, 20)),
    "binomial": Case(lambda k, n, p: random.binomial(k, n, p, (4,)), (KEY, 40, 0.3)),
    "beta": Case(lambda k, a, b: random.beta(k, a, b, (4,)), (KEY, 2, 0.5)),
    "truncated normal": Case(lambda k, a, b: random.truncated_normal(k, a, b, (5,)), (KEY, -1, 0.5)),
    "uniform": Case(lambda k, a, b: random.uniform(k, (5,), minval=a, maxval=b), (KEY, 0.1, 7)),
    "randint": Case(lambda k, a, b: random.randint(k, (50,), a, b, dtype=np.int8), (KEY, -128, 128)),
    "choice": Case(lambda k, x: random.choice(k, x, (3,), replace=False), (KEY, normal(5))),
    "normal vectors": Case(lambda k, m, c: random.multivariate_normal(k, m, c), (KEY, normal(3), definite(3)), (1, 2)),
    "fold_in": Case(random.fold_in, (KEY, 7)),
    "a forward rule": Case(_jvp_rule, (normal(4), 0.1), (0, 1)),
    "a forward rule in float64": Case(_jvp_rule, (WIDE, 0.1), (0, 1)),
    "a forward rule of nothing": Case(_jvp_rule, (np.zeros(0, np.float32), 0.5), (0, 1)),
    "a reverse rule": Case(_vjp_rule, (np.asfortranarray(normal(2, 3)), 0.1), (0, 1)),
    "a reverse rule in float64": Case(_vjp_rule, (WIDE, 0.1), (0, 1)),
    "a call": Case(_told, (normal(2, 3), 0.1)),
    "a call in float64": Case(_told, (WIDE, 0.1)),
    "a call of nothing": Case(_told, (np.zeros((0, 3), np.float32), 3)),
    "sums over a name": Case(
        lambda x, s: volta.vmap(lambda v: v * s + lax.psum(v, "i") * lax.axis_index("i"), axis_name="i")(x),
        (normal(3, 4), 0.1), (0, 1),
    ),
    "exchanges over a name": Case(
        volta.vmap(lambda v: lax.all_to_all(v, "i", 0, 0) + lax.ppermute(v, "i", [(0, 1), (2, 0)]), axis_name="i"),
        (normal(3, 3),), (0,),
    ),
    "a root": Case(
        lambda x, s: lax.custom_root(
            lambda y: y**3 - x * s, x, lambda f, y: lax.fori_loop(0, 30, lambda _, y: y - f(y) / (3 * y * y), y),
            lambda g, y: y / g(vnp.ones_like(y)),
        ),
        (np.float32(2), 0.7), (0,),
    ),
}  # fmt: skip
QUICK = ("convolution", "maxima of windows", "solve", "gamma of edges", "a forward rule in float64", "a reverse rule")
QUICK += ("a call in float64", "sums over a name")
law = sampled("name", CASES, QUICK)


def leaves(x: Any) -> list[Any]:
    return volta.tree.leaves(x)


def equal(found: Any, want: Any) -> None:
    for x, y in zip(leaves(found), leaves(want), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert_bits_equal(x, y)


def loss(f: Callable[..., Any]) -> Callable[..., Any]:
    """A number of all floats that come out, each with a weight of its own."""

    def of(*args: Any) -> Any:
        return sum(vnp.sum(x * vnp.cos(vnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)) for x in leaves(f(*args)))

    return of


@law
def test_compiled_and_checkpointed_they_have_the_bits(name: str) -> None:
    case = CASES[name]
    want = case.f(*case.args)
    for wrapped in (volta.jit(case.f), volta.checkpoint(case.f), volta.jit(volta.checkpoint(case.f))):
        found = wrapped(*case.args)
        equal(found, want)
        assert [x.weak_type for x in leaves(found)] == [x.weak_type for x in leaves(want)]


@law
def test_each_of_a_batch_has_its_bits(name: str) -> None:
    """By each array among the arguments, and by all of them; Python numbers are everybody's."""
    case = CASES[name]
    arrays = [i for i, x in enumerate(case.args) if isinstance(x, (np.ndarray, np.generic))]
    for mapped in {(i,) for i in arrays} | {tuple(arrays)}:
        rows = {
            i: [np.roll(case.args[i], k) if np.ndim(case.args[i]) else case.args[i] + k for k in range(3)]
            for i in mapped
        }
        given = [np.stack(rows[i]) if i in mapped else x for i, x in enumerate(case.args)]
        found = volta.vmap(case.f, tuple(0 if i in mapped else None for i in range(len(given))))(*given)
        for k in range(3):
            want = case.f(*(rows[i][k] if i in mapped else x for i, x in enumerate(case.args)))
            equal([x[k] for x in leaves(found)], want)


@sampled("name", [name for name, case in CASES.items() if case.by], QUICK)
def test_derivatives_have_the_bits_compiled_and_checkpointed(name: str) -> None:
    case = CASES[name]
    first = volta.grad(loss(case.f), case.by)
    want = first(*case.args)
    equal(volta.jit(first)(*case.args), want)
    equal(volta.grad(loss(volta.checkpoint(case.f)), case.by)(*case.args), want)
    second = volta.grad(lambda *args: sum(map(vnp.sum, leaves(first(*args)))), case.by)
    equal(volta.jit(second)(*case.args), second(*case.args))


def test_a_family_says_what_it_is_differentiated_by() -> None:
    assert all(
        isinstance(case.args[i], float) or np.asarray(case.args[i]).dtype.kind == "f"
        for case in CASES.values()
        for i in case.by
    )
    with pytest.raises(AssertionError):
        equal([vnp.asarray(np.float32(0.0))], [vnp.asarray(np.float32(-0.0))])
