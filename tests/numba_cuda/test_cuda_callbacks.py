"""Programs that call Python or are looked at for NaN, with arrays on a GPU: over a stand-in where none is."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.testing import assert_bits_equal


def test_parts_run_where_their_arguments_are(gpu, capsys) -> None:
    def f(call, x):
        def body(c, row):
            c = vnp.tanh(c * row)
            call(vnp.sum(c))
            return c, vnp.max(c)

        c, ys = lax.scan(body, vnp.exp(x[0]), x)
        return vnp.sum(c) + vnp.sum(ys)

    seen = []
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    watched = lambda x: f(lambda v: volta.debug.callback(lambda v: seen.append(v.device), v), x)  # noqa: E731
    expected = volta.jit(lambda x: f(lambda v: None, x))(x)
    found = volta.jit(watched)(volta.device_put(x, "cuda"))
    assert found.device.startswith("cuda") and seen == ["cpu:0"] * 3
    assert_bits_equal(found, expected)


def test_what_made_a_nan_is_named(gpu) -> None:
    def f(x):
        y = vnp.sqrt(x * 2)  # makes it
        return vnp.sum(y * 3) + 1

    x = volta.device_put(np.float32([4, -1, 9]), "cuda")
    with volta.debug_nans(), pytest.raises(FloatingPointError, match="`sqrt` made the first NaN") as caught:
        volta.jit(f)(x)
    assert "# makes it" in str(caught.value)
