"""Sums of products, against NumPy."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from tests.numpy.vnp_compare import assert_same, floats, same_as_numpy
from volta.api.tracing import make_jaxpr
from volta.errors import ShapeError

CLOSE = {"rtol": 2e-5, "atol": 2e-5}

MATMUL = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((5, 2, 3), (1, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((1, 2, 3), (1, 3, 4)),
    ((6, 1, 2, 3), (5, 3, 4)),
    ((6, 5, 2, 3), (5, 3, 4)),
    ((6, 1, 2, 3), (1, 5, 3, 4)),
    ((7, 1, 5, 2, 3), (6, 1, 3, 4)),
    ((5, 2, 3), (3,)),
    ((3,), (5, 3, 4)),
    ((2, 0), (0, 3)),
    ((0, 2, 3), (3, 4)),
]


@pytest.mark.parametrize("shapes", MATMUL, ids=str)
def test_matmul(shapes):
    a, b = floats(*shapes[0]), floats(*shapes[1])
    same_as_numpy(lambda np, a, b: a @ b, a, b, **CLOSE)
    if len(shapes[0]) < 4:
        same_as_numpy(lambda np, a, b: np.dot(a, b), a, b, **CLOSE)


def test_common_products_are_one_equation():
    a, b, c = floats(5, 2, 3), floats(3, 4), floats(5, 3, 4)
    assert len(make_jaxpr(vnp.matmul)(a, b).eqns) == 1
    assert len(make_jaxpr(vnp.matmul)(a, c).eqns) == 1
    assert len(make_jaxpr(vnp.dot)(a, b).eqns) == 1
    assert len(make_jaxpr(lambda x, y: vnp.einsum("bij,bjk->bik", x, y))(a, c).eqns) == 1
    assert len(make_jaxpr(lambda x, y: vnp.einsum("bij,jk->bik", x, y))(a, b).eqns) == 1


def test_products():
    a, b, v, w = floats(2, 3), floats(4, 3), floats(3), floats(5)
    for expression, args in (
        (lambda np, a, b: np.inner(a, b), (a, b)),
        (lambda np, v, w: np.outer(v, w), (v, w)),
        (lambda np, v, w: np.kron(v, w), (v, w)),
        (lambda np, a, b: np.kron(a, b), (a, b)),
        (lambda np, a, b: np.vdot(a, b[:2]), (a, b)),
        (lambda np, a, b: np.vecdot(a[:, None], b), (a, b)),
        (lambda np, a, b: np.tensordot(a, b, ((1,), (1,))), (a, b)),
        (lambda np, a, b: np.tensordot(a, b.T, 1), (a, b)),
        (lambda np, v, w: np.tensordot(v, w, 0), (v, w)),
        (lambda np, a: np.tensordot(np.ones((2, 3, 4)), a, ((1, 0), (1, 0))), (a,)),
        (lambda np, a, v: np.cross(a, v), (a, v)),
        (lambda np, v, w: np.convolve(w, v), (v, w)),
        (lambda np, v, w: np.convolve(w, v, "same"), (v, w)),
        (lambda np, v, w: np.convolve(v, w, "valid"), (v, w)),
        (lambda np, v, w: np.correlate(w, v), (v, w)),
        (lambda np, v, w: np.correlate(v, w, "full"), (v, w)),
        (lambda np, v, w: np.correlate(w, v[:2], "same"), (v, w)),
        (lambda np, v: np.dot(v, 3.0), (v,)),
        (lambda np, a: np.linalg.matrix_power(a @ a.T, 5), (a,)),
        (lambda np, a: np.linalg.matrix_power(a @ a.T, 0), (a,)),
        (lambda np, a, b: np.linalg.multi_dot([a, b.T, b]), (a, b)),
    ):
        same_as_numpy(expression, *args, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", [(3, 4, 2), (2, 9, 3, 8), (7, 2, 9, 3, 8, 4), (1, 6, 2, 5, 1), (5, 5, 5, 5)])
def test_a_chain_of_products_takes_the_least_work(sizes):
    """Of all ways to put brackets, counted one by one; and the product is NumPy's."""

    def least(first, end):
        if end - first == 1:
            return 0
        ends = sizes[first] * sizes[end]
        return min(least(first, c) + least(c, end) + ends * sizes[c] for c in range(first + 1, end))

    chain = [floats(a, b) for a, b in itertools.pairwise(sizes)]
    found = volta.jit(vnp.linalg.multi_dot).lower(chain).cost_analysis()["flops"]
    assert found == 2 * least(0, len(chain))
    for arrays in (chain, [chain[0][0], *chain[1:]], [*chain[:-1], chain[-1][:, 0]]):
        same_as_numpy(lambda np, *arrays: np.linalg.multi_dot(arrays), *arrays, rtol=1e-4, atol=1e-4)


def test_chains_of_products_that_do_not_fit():
    a, b = floats(2, 3), floats(4, 2)
    for arrays, said in (([a], "two or more matrices"), ([a, a[0], b], "two or more matrices"), ([a, b], "must fit")):
        with pytest.raises(ShapeError, match=f"multi_dot: .*{said}.*got shapes"):
            vnp.linalg.multi_dot(arrays)


def test_integers_and_booleans():
    i = np.arange(6, dtype=np.int32).reshape(2, 3)
    same_as_numpy(lambda np, x: x @ x.T, i)
    same_as_numpy(lambda np, x: (x > 2) @ (x > 3).T, i)
    assert (vnp.asarray(i) @ vnp.asarray(floats(3))).dtype == np.float32
    half = floats(2, 3).astype(np.float16)
    assert vnp.matmul(half, half[0], preferred_element_type="float32").dtype == np.float32


EINSUM = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ij,kj->ki", (2, 3), (4, 3)),
    ("bij,bjk->bki", (5, 2, 3), (5, 3, 4)),
    ("i,i->", (4,), (4,)),
    ("i,j->ji", (4,), (3,)),
    ("ij->ji", (2, 3)),
    ("ij->", (2, 3)),
    ("ij->j", (2, 3)),
    ("ii->i", (3, 3)),
    ("ii", (3, 3)),
    ("iji->j", (3, 2, 3)),
    ("...ij,...jk->...ik", (5, 2, 3), (5, 3, 4)),
    ("...ij,jk", (5, 6, 2, 3), (3, 4)),
    ("i...,...j->...ij", (2, 5, 6), (6, 3)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    ("i,i,i->", (4,), (4,), (4,)),
    ("i,i,i->i", (4,), (4,), (4,)),
    ("ab,bc,cd,de->ae", (2, 3), (3, 4), (4, 5), (5, 2)),
    ("ij,ij->ij", (2, 3), (2, 3)),
    ("ij,ik->jk", (5, 2), (5, 3)),
    ("bthd,bshd->bhts", (2, 3, 4, 5), (2, 6, 4, 5)),
    ("ij,j->ij", (2, 3), (3,)),
    ("ijk,kl->ji", (2, 3, 4), (4, 5)),
    ("aab,bc->ac", (3, 3, 2), (2, 4)),
]


@pytest.mark.parametrize("case", EINSUM, ids=[c[0] for c in EINSUM])
def test_einsum(case):
    subscripts, *shapes = case
    args = [floats(*s) for s in shapes]
    same_as_numpy(lambda np, *xs: np.einsum(subscripts, *xs), *args, rtol=1e-4, atol=1e-4)


@given(st.data())
def test_einsum_of_any_two(data):
    letters = "abcd"
    sizes = {c: i + 1 for i, c in enumerate(letters)}
    terms = [data.draw(st.lists(st.sampled_from(letters), max_size=3, unique=True)) for _ in range(2)]
    out = data.draw(st.permutations(sorted(set(terms[0] + terms[1]))))
    out = out[: data.draw(st.integers(0, len(out)))]
    subscripts = "".join(terms[0]) + "," + "".join(terms[1]) + "->" + "".join(out)
    args = [floats(*(sizes[c] for c in t)) for t in terms]
    assert_same(vnp.einsum(subscripts, *map(vnp.asarray, args)), np.einsum(subscripts, *args), 1e-4, 1e-4)


def test_norms():
    x = floats(2, 3, 4)
    for ord in (None, 2, 1, 3, np.inf, -np.inf, 0):
        same_as_numpy(lambda np, x, ord=ord: np.linalg.norm(x, ord, axis=1, keepdims=True), x, **CLOSE)
    for ord in (None, "fro", 1, -1, np.inf, -np.inf):
        same_as_numpy(lambda np, x, ord=ord: np.linalg.norm(x, ord, axis=(0, 2)), x, **CLOSE)
        same_as_numpy(lambda np, x, ord=ord: np.linalg.norm(x, ord, axis=(2, 0)), x, **CLOSE)
    same_as_numpy(lambda np, x: np.linalg.norm(x), x, **CLOSE)
    with pytest.raises(ValueError, match="ord=3 of a matrix; it is 'fro', 'nuc'"):
        vnp.linalg.norm(x[0], 3)


def test_errors_name_shapes_and_axes():
    a, b = vnp.ones((2, 3)), vnp.ones((4, 5))
    with pytest.raises(ShapeError, match=r"\(2, 3\) and \(4, 5\).*axis -1 of the first, of size 3, and axis -2"):
        a @ b
    with pytest.raises(ShapeError, match="batch axis -3 has 2 and 3; they must broadcast"):
        vnp.ones((2, 4, 4)) @ vnp.ones((3, 4, 4))
    with pytest.raises(ShapeError, match="scalars are multiplied with"):
        a @ vnp.asarray(2.0)
    with pytest.raises(ShapeError, match="dot: shapes"):
        vnp.dot(a, b)
    with pytest.raises(ShapeError, match="tensordot: .* cannot be summed over"):
        vnp.tensordot(a, b, 3)
    with pytest.raises(ShapeError, match="index 'j' has sizes 3 and 4"):
        vnp.einsum("ij,jk", a, b)
    with pytest.raises(ShapeError, match="names 3 axes, its operand has shape"):
        vnp.einsum("ijk->i", a)
    with pytest.raises(ShapeError, match="2 terms but 1 operands"):
        vnp.einsum("ij,jk", a)
    with pytest.raises(ShapeError, match="only indices of operands"):
        vnp.einsum("ij->iz", a)
