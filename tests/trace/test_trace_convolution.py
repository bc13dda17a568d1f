"""Convolutions beside JAX's, in DOT's order of terms, in any layout, batched and differentiated."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.reference import REFERENCE
from volta import lax
from volta.core.errors import DTypeError, ShapeError
from volta.testing import assert_bits_equal

pytestmark = pytest.mark.turns(6)

jax = pytest.importorskip("jax")

RNG = np.random.default_rng(0)

LAYOUTS = [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("HWCN", "OHWI", "CNHW")]

# strides, padding, left dilation, right dilation, groups of features, of the batch
WAYS: list[tuple[Any, ...]] = [
    ((1, 1), "SAME", None, None, 1, 1),
    ((2, 1), "VALID", None, None, 1, 1),
    ((2, 3), [(1, 2), (0, -1)], (2, 1), (1, 2), 1, 1),
    ((1, 2), "SAME", None, None, 3, 1),
    ((1, 2), "SAME_LOWER", None, None, 6, 1),  # one feature a group: a chain
    ((1, 1), [(3, 2), (-1, 0)], (1, 3), (2, 1), 1, 2),
]


def operands(layout: tuple[str, str, str], groups: int, window: tuple[int, int] = (3, 2)) -> tuple[Any, Any]:
    x, w = RNG.standard_normal((4, 6, 7, 8)), RNG.standard_normal((12, 6 // groups, *window))
    return (
        np.ascontiguousarray(np.transpose(x, ["NCHW".index(c) for c in layout[0]])),
        np.ascontiguousarray(np.transpose(w, ["OIHW".index(c) for c in layout[1]])),
    )


def both(x: Any, w: Any, way: tuple[Any, ...], layout: Any) -> tuple[Any, Any]:
    strides, padding, left, right, groups, split = way
    args = (strides, padding, left, right, layout, groups, split)
    return (
        lambda x, w: lax.conv_general_dilated(x, w, *args),
        lambda x, w: jax.lax.conv_general_dilated(x, w, *args),
    )


@pytest.mark.parametrize(
    ("way", "layout"),
    [
        pytest.param(way, layout, marks=() if (i, j) in ((2, 0), (4, 1)) else pytest.mark.slow)
        for i, way in enumerate(WAYS)
        for j, layout in enumerate(LAYOUTS)
    ],
)
def test_convolutions_and_their_derivatives_are_those_of_jax(way: Any, layout: Any) -> None:
    x, w = operands(layout, way[4])
    f, g = both(x, w, way, layout)
    with jax.enable_x64(True):
        want = np.asarray(jax.jit(g)(x, w))
        ct = RNG.standard_normal(want.shape)
        once = jax.jit(jax.grad(lambda x, w: (g(x, w) * ct).sum(), (0, 1)))(x, w)
        twice = jax.grad(lambda x, w: (jax.grad(lambda x, w: (g(x, w) ** 3 * ct).sum(), 1)(x, w) ** 2).sum(), (0, 1))
        second = jax.jit(twice)(x, w)
    got = f(x, w)
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)
    for a, b in zip(volta.grad(lambda x, w: (f(x, w) * ct).sum(), (0, 1))(x, w), once, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)
    ours = volta.grad(lambda x, w: (volta.grad(lambda x, w: (f(x, w) ** 3 * ct).sum(), 1)(x, w) ** 2).sum(), (0, 1))
    for a, b in zip(ours(x, w), second, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max())
    assert_bits_equal(volta.jit(f)(x, w), got)
    _, tangent = volta.jvp(f, (x, w), (x, w))
    np.testing.assert_allclose(tangent, 2 * want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "way", [pytest.param(w, marks=() if i in (2, 5) else pytest.mark.slow) for i, w in enumerate(WAYS)]
)
@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_batched_convolutions_have_the_bits_of_single_ones(way: Any, axes: Any) -> None:
    x, w = operands(LAYOUTS[0], way[4])
    x, w = x.astype("f4"), w.astype("f4")
    f, _ = both(x, w, way, LAYOUTS[0])
    xs, ws = (np.stack([v, 2 * v + 1]) if d == 0 else v for v, d in zip((x, w), axes, strict=True))
    many = volta.vmap(f, axes)(xs, ws)
    for i in range(2):
        assert_bits_equal(many[i], f(xs[i] if axes[0] == 0 else xs, ws[i] if axes[1] == 0 else ws))


@pytest.mark.parametrize("groups", [1, 6])
def test_bits_do_not_depend_on_the_layout(groups: int) -> None:
    x, w = RNG.standard_normal((2, 6, 9, 5)).astype("f4"), RNG.standard_normal((6, 6 // groups, 3, 3)).astype("f4")
    found = []
    for layout in LAYOUTS:
        left = np.transpose(x, ["NCHW".index(c) for c in layout[0]])
        right = np.transpose(w, ["OIHW".index(c) for c in layout[1]])

        def f(left: Any, right: Any, layout: Any = layout) -> Any:
            out = lax.conv_general_dilated(left, right, (1, 2), "SAME", None, (2, 1), layout, groups)
            return vnp.transpose(out, [layout[2].index(c) for c in "NCHW"])

        grads = volta.grad(lambda a, b, f=f: vnp.sum(vnp.sin(f(a, b))), (0, 1))(left, right)
        back = [
            np.transpose(g, [s.index(c) for c in want])
            for g, s, want in zip(grads, layout, ("NCHW", "OIHW"), strict=False)
        ]
        found.append([f(left, right), *back])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert_bits_equal(a, b)


def dot(a: Any, b: Any) -> Any:
    return REFERENCE["dot_general"](
        a, b, dimension_numbers=(((0,), (0,)), ((), ())), precision=None, preferred_element_type=None
    )


@pytest.mark.parametrize("features", [1, 3, 40])
def test_a_sum_is_dot_over_places_and_then_features(features: int) -> None:
    x, w = RNG.standard_normal((1, 5, 5, features)).astype("f4"), RNG.standard_normal((3, 3, features, 2)).astype("f4")
    out = np.asarray(lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=LAYOUTS[0]))
    for i, j, o in itertools.product(range(3), range(3), range(2)):
        terms = x[0, i : i + 3, j : j + 3].reshape(-1), w[..., o].reshape(-1)
        assert_bits_equal(out[0, i, j, o], vnp.dot(*terms))


def test_the_gradient_of_weights_sums_over_the_batch_and_then_over_windows() -> None:
    x, w = RNG.standard_normal((3, 6, 6, 2)).astype("f4"), RNG.standard_normal((3, 3, 2, 4)).astype("f4")
    ct = RNG.standard_normal((3, 4, 4, 4)).astype("f4")

    def f(w):
        return vnp.sum(lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=LAYOUTS[0]) * ct)

    found = np.asarray(volta.grad(f)(w))
    for i, j, c, o in itertools.product(range(3), range(3), range(2), range(4)):
        terms = x[:, i : i + 4, j : j + 4, c].reshape(-1), ct[..., o].reshape(-1)
        assert_bits_equal(found[i, j, c, o], vnp.dot(*terms))


def test_a_chain_of_slices_has_the_bits_of_a_product() -> None:
    x, w = RNG.standard_normal((2, 9, 9, 4)).astype("f4"), RNG.standard_normal((3, 3, 1, 8)).astype("f4")
    chain = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=LAYOUTS[0], feature_group_count=4)
    for g in range(4):
        alone = lax.conv_general_dilated(
            x[..., g : g + 1], w[..., 2 * g : 2 * g + 2], (1, 1), "SAME", dimension_numbers=LAYOUTS[0]
        )
        assert_bits_equal(chain[..., 2 * g : 2 * g + 2], alone)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "uint8"])
def test_other_dtypes(dtype: str) -> None:
    kind = vnp.dtype(dtype)
    x, w = (RNG.integers(0, 4, s).astype(kind) for s in ((2, 5, 7), (4, 5, 3)))
    out = lax.conv(x, w, (1,), "VALID")
    assert out.dtype == kind
    want = np.asarray(jax.lax.conv(x.astype("f4"), w.astype("f4"), (1,), "VALID"))
    np.testing.assert_array_equal(np.asarray(out).astype("f4"), want.astype(kind).astype("f4"))


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_any_rank(rank: int) -> None:
    x, w = RNG.standard_normal((2, 3, *[5] * rank)).astype("f4"), RNG.standard_normal((4, 3, *[2] * rank)).astype("f4")
    out = lax.conv_general_dilated(x, w, (2,) * rank, "SAME")
    np.testing.assert_allclose(out, jax.lax.conv_general_dilated(x, w, (2,) * rank, "SAME"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("left", "right"), [((0, 3, 5), (4, 3, 2)), ((2, 3, 1), (4, 3, 2)), ((2, 0, 5), (4, 0, 2))])
def test_nothing_to_convolve(left: Any, right: Any) -> None:
    x, w = np.ones(left, "f4"), np.ones(right, "f4")
    out = lax.conv(x, w, (1,), "VALID")
    assert out.shape == jax.lax.conv(x, w, (1,), "VALID").shape and not np.asarray(out).any()
    grads = volta.grad(lambda x, w: vnp.sum(lax.conv(x, w, (1,), "VALID")), (0, 1))(x, w)
    assert [g.shape for g in grads] == [left, right]


@pytest.mark.parametrize("padding", ["SAME", "VALID", [(1, 2), (0, 1)]])
@pytest.mark.parametrize("turned", [False, True])
def test_transposed_convolutions_are_those_of_jax(padding: Any, turned: bool) -> None:
    x = RNG.standard_normal((2, 5, 6, 3)).astype("f4")
    w = RNG.standard_normal((3, 2, 4, 3) if turned else (3, 2, 3, 4)).astype("f4")
    args = ((2, 3), padding, (1, 2), None, turned)
    np.testing.assert_allclose(
        lax.conv_transpose(x, w, *args), jax.lax.conv_transpose(x, w, *args), rtol=1e-5, atol=1e-5
    )


def test_patches_are_those_of_jax() -> None:
    x = RNG.standard_normal((2, 3, 6, 5)).astype("f4")
    args = ((2, 3), (1, 2), "SAME")
    found = lax.conv_general_dilated_patches(x, *args)
    np.testing.assert_array_equal(found, jax.lax.conv_general_dilated_patches(x, *args))


def test_many_windows_of_many_places_are_gathered_with_the_same_bits() -> None:
    x, w = RNG.standard_normal((1, 1, 90)).astype("f4"), RNG.standard_normal((2, 1, 70)).astype("f4")
    out = lax.conv(x, w, (1,), [(10, 80)])
    padded = np.pad(x[0, 0], (10, 80))
    for i in (0, 17, 110):
        assert_bits_equal(out[0, 1, i], vnp.dot(padded[i : i + 70], w[1, 0]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rhs": np.ones((4, 2, 3), "f4")}, "3 features, the right one takes 2"),
        ({"rhs": np.ones((4, 3, 3), "f8")}, "one dtype"),
        ({"rhs": np.ones((4, 3), "f4")}, "no common rank"),
        ({"window_strides": (1, 1)}, "window_strides has to be 1 integers"),
        ({"window_strides": (0,)}, "at least 1"),
        ({"padding": "HALF"}, "'SAME'"),
        ({"padding": [(1, 1), (1, 1)]}, "a pair"),
        ({"padding": [(-9, 0)]}, "takes away more"),
        ({"padding": "SAME", "lhs_dilation": (2,)}, "conv_transpose"),
        ({"feature_group_count": 2}, "of 2 groups"),
        ({"batch_group_count": 3}, "cannot be divided"),
        ({"dimension_numbers": ("NCW", "OIW")}, "three strings"),
        ({"dimension_numbers": ("NCW", "OIW", "NCH")}, "has to name"),
    ],
)
def test_what_does_not_fit_is_said(change: dict[str, Any], says: str) -> None:
    given = {
        "lhs": np.ones((2, 3, 5), "f4"),
        "rhs": np.ones((4, 3, 3), "f4"),
        "window_strides": (1,),
        "padding": "VALID",
    }
    with pytest.raises((ShapeError, DTypeError), match=says):
        lax.conv_general_dilated(**{**given, **change})


def test_windows_are_copied_once_and_padding_is_written_once() -> None:
    f = volta.jit(lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=LAYOUTS[0]))
    plan = f.lower(np.ones((2, 9, 9, 8), "f4"), np.ones((3, 3, 8, 16), "f4")).compile().plan
    assert len(plan.calls) == 2 + 9 + 1  # zeros and what they surround, a copy a place, the product
