"""Errors name the operation, the operands, the user's line and a way out."""

import re

import numpy as np
import pytest

import volta  # noqa: F401  (installs the runtime)
from volta import lax
from volta.core.avals import ShapedArray
from volta.core.errors import DTypeError, ShapeError
from volta.ops import REGISTRY

F32 = np.dtype(np.float32)
X, Y = np.zeros((2, 3), np.float32), np.zeros(3, np.float32)
I32 = np.zeros(2, np.int32)
NUMBERS = (((1,), (0,)), ((), ()))
HEADS = np.zeros((2, 4, 3, 8), np.float32)

WRONG = [
    (lambda: lax.add(X, Y), ShapeError, r"add\(f32\[2,3\], f32\[3\]\).*volta\.numpy broadcasts"),
    (lambda: lax.add(X, X.astype(np.float64)), DTypeError, r"add\(f32\[2,3\], f64\[2,3\]\).*convert_element_type"),
    (lambda: lax.exp(I32), DTypeError, r"exp\(i32\[2\]\).*takes float"),
    (lambda: lax.add(I32, 1.5), DTypeError, r"add: the Python number 1\.5 does not fit.*int32.*volta\.numpy promotes"),
    (lambda: lax.add(np.zeros(2, np.uint8), 300), DTypeError, "300 does not fit.*uint8"),
    (lambda: lax.add(X, "text"), DTypeError, "str is not a valid operand"),
    (lambda: lax.add([1.0], X), DTypeError, "list is not a valid operand"),
    (lambda: lax.select(X, X, X), DTypeError, "predicate must be bool"),
    (lambda: lax.bitcast_convert_type(X, np.bool_), DTypeError, "another item size"),
    (lambda: lax.bitcast_convert_type(np.ones(3, np.int8), X.dtype), ShapeError, "parts of int8 along the last axis"),
    (lambda: lax.convert_element_type(X, np.longdouble), DTypeError, "not supported"),
    (lambda: lax.reshape(X, (4, 2)), ShapeError, r"6 elements do not fit the shape \(4, 2\)"),
    (lambda: lax.reshape(X, (-1, 3)), ShapeError, "negative"),
    (lambda: lax.transpose(X, (0, 0)), ShapeError, "no permutation"),
    (lambda: lax.broadcast_in_dim(Y, (2, 4), (1,)), ShapeError, "each must match or be 1"),
    (lambda: lax.slice(X, (0, 0), (2, 9)), ShapeError, "inside the shape"),
    (lambda: lax.squeeze(X, (0,)), ShapeError, "size 1"),
    (lambda: lax.rev(X, (5,)), ShapeError, "axis 5 is out of range"),
    (lambda: lax.pad(X, np.float64(0), [(0, 1, 0)] * 2), ShapeError, "padding value"),
    (lambda: lax.pad(X, 0.0, [(0, 1, 0)]), ShapeError, "one .low, high, interior"),
    (lambda: lax.concatenate([X, Y], 0), ShapeError, r"f32\[2,3\], f32\[3\].*agree"),
    (lambda: lax.concatenate([], 0), ShapeError, "at least one"),
    (lambda: lax.reduce_sum(X, (0, 0)), ShapeError, "repeat"),
    (lambda: lax.reduce_max(np.zeros((0, 2), np.float32), (0,)), ShapeError, "no elements"),
    (lambda: lax.argmax(X, 7), ShapeError, "axis 7"),
    (lambda: lax.dot_general(X, X, NUMBERS), ShapeError, r"sizes \[3\] and \[2\]"),
    (lambda: lax.dot_general(X, X.T.astype(np.float64), NUMBERS), DTypeError, "one dtype"),
    (lambda: lax.dot_general(X, X.T, NUMBERS, precision="low"), DTypeError, "'highest'"),
    (lambda: lax.dot(X, np.zeros((3, 2, 2), np.float32)), ShapeError, "matmul"),
    (lambda: lax.gather(X, [Y], (0,)), DTypeError, "indices must be integers"),
    (lambda: lax.gather(X, [I32, np.zeros(3, np.int32)], (0, 1)), ShapeError, "one shape"),
    (lambda: lax.gather(X, [I32], (0,), mode="wrap"), ShapeError, "mode must be one of"),
    (lambda: lax.scatter(X, Y, [I32], (0,)), ShapeError, r"updates must have shape \(2, 3\)"),
    (lambda: lax.dynamic_slice(X, (0,), (1, 1)), ShapeError, "one start index an axis"),
    (lambda: lax.dynamic_slice(X, (0, 0), (3, 1)), ShapeError, "do not fit"),
    (lambda: lax.dynamic_update_slice(X, Y, (0, 0)), ShapeError, "does not fit"),
    (lambda: lax.sort((X, Y)), ShapeError, "one shape"),
    (lambda: lax.sort(X, num_keys=3), ShapeError, "num_keys"),
    (lambda: lax.top_k(X, 9), ShapeError, "k must be"),
    (lambda: lax.cumsum(np.zeros(2, bool)), DTypeError, "convert_element_type"),
    (lambda: lax.attention(HEADS, HEADS[:, :3], HEADS[:, :3]), ShapeError, r"\(B, N, T, H\).*with K dividing N"),
    (lambda: lax.attention(HEADS, HEADS, HEADS.astype(np.float64)), DTypeError, "one float dtype"),
    (lambda: lax.attention(*[np.zeros((1, 1, 2, 300), np.float32)] * 3), ShapeError, "1 to 256 elements, got 300"),
    (lambda: lax.attention(HEADS, HEADS, HEADS, start=I32), ShapeError, "only for causal"),
    (
        lambda: lax.attention(HEADS, HEADS, HEADS, causal=True, start=I32[:1]),
        ShapeError,
        r"must be i32\[2\], got i32\[1",
    ),
    (lambda: lax.attention(HEADS, HEADS, HEADS, mask=HEADS), DTypeError, "must be boolean"),
    (lambda: lax.attention(HEADS, HEADS, HEADS, mask=HEADS > 0), ShapeError, r"does not broadcast to \(2, 4, 3, 3\)"),
    (lambda: lax.attention_dq(*[HEADS] * 4, X, X, X), ShapeError, r"m must be f32\[2,4,3\], got f32\[2,3\]"),
    (lambda: lax.reshape(X, (2.5,)), ShapeError, "Python ints known while tracing"),
]


@pytest.mark.parametrize("call,error,message", WRONG, ids=[m for _, _, m in WRONG])
def test_message(call, error, message):
    with pytest.raises(error) as caught:
        call()
    text = str(caught.value)
    assert re.search(message, text, re.DOTALL), text
    assert __file__ in text, "the message shows the user's own line"


def test_number_of_operands():
    with pytest.raises(ShapeError, match="takes 2 operands, got 1"):
        REGISTRY["add"].abstract(ShapedArray((), F32))
