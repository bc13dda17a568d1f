"""What is linear in an operand is its own derivative there, for complex numbers as for floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax

RNG = np.random.default_rng(2)


def draw(*shape: int, dtype: Any = np.complex64) -> np.ndarray:
    x = RNG.standard_normal(shape)
    return (
        (x + 1j * RNG.standard_normal(shape)).astype(dtype)
        if np.issubdtype(dtype, np.complexfloating)
        else x.astype(dtype)
    )


def _of_images(**settings: Any) -> Callable[..., Any]:
    return lambda x: lax.conv_general_dilated(
        x, weights(x.dtype, settings), (1, 1), ((1, 0), (0, 1)), **{k: v for k, v in settings.items() if k != "many"}
    )


def weights(dtype: Any, settings: dict[str, Any]) -> np.ndarray:
    parts = settings.get("feature_group_count", 1)
    rng = np.random.default_rng(3)
    w = rng.standard_normal((4, 2 // parts, 2, 2))
    return (w + 1j * w[::-1]).astype(dtype) if np.issubdtype(dtype, np.complexfloating) else w.astype(dtype)


LINEAR: dict[str, Callable[..., Any]] = {
    "convolution": _of_images(),
    "of groups": _of_images(feature_group_count=2),
    "of groups of the batch": _of_images(batch_group_count=2),
    "dilated": _of_images(lhs_dilation=(2, 1), rhs_dilation=(1, 2)),
    "windows' sums": lambda x: lax.reduce_window(x, x.dtype.type(0), lax.add, (1, 1, 2, 2), (1, 1, 1, 2), "SAME"),
    "sums": lambda x: vnp.sum(x, (0, 2)),
    "running sums": lambda x: vnp.cumsum(x, 2),
    "choice by number": lambda x: lax.switch(1, [lambda v: v, lambda v: v * 2], x),
    "loop": lambda x: lax.fori_loop(0, 3, lambda i, v: v * 1.5 + x, x),
}


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.complex128])
@pytest.mark.parametrize("name", LINEAR)
def test_linear_functions_are_their_derivatives(name: str, dtype: Any) -> None:
    f, x, t = LINEAR[name], draw(2, 2, 5, 4, dtype=dtype), draw(2, 2, 5, 4, dtype=dtype)
    want = np.asarray(f(vnp.asarray(t)))
    assert np.abs(want).max() > 0.1
    for tangent in (volta.jvp(f, (x,), (t,))[1], volta.linearize(f, x)[1](t)):
        np.testing.assert_allclose(np.asarray(tangent), want, rtol=1e-4, atol=1e-4)
    _, pull = volta.vjp(f, x)
    ct = draw(*want.shape, dtype=dtype)
    (back,) = pull(ct)  # <ct, f(t)> = <back, t>, without conjugates
    np.testing.assert_allclose(np.sum(np.asarray(back) * t), np.sum(ct * want), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("slope", [lambda x: vnp.sqrt(x), lambda x: 1 / x, lambda x: vnp.log(x)])
def test_a_branch_that_an_example_does_not_take_has_no_part_in_its_slope(slope: Callable[..., Any]) -> None:
    def f(x: Any) -> Any:
        return lax.cond(x < 1e-3, lambda v: v * 3.0, slope, x)

    x = np.float32([0, 0, 4])
    taken = volta.grad(lambda v: slope(v))(np.float32(4))
    np.testing.assert_array_equal(np.asarray(volta.grad(lambda v: vnp.sum(volta.vmap(f)(v)))(x)), [3, 3, taken])
