"""CUDA kernels run on the host have the CPU's bits, and what is wrong with a kernel is seen."""

from fractions import Fraction

import attrs
import numpy as np
import pytest
from llvmlite import ir

import volta
import volta.numpy as vnp
from tests.numba_cuda.test_ptx import program_of
from tests.sampling import sampled
from volta import nn, optim
from volta.core.errors import DeviceError
from volta.emit.loops import I32, I64, load_arg, offset
from volta.numba_cuda import kernels
from volta.numba_cuda.codegen import ptx_mma, ptx_ops, threads
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.host import host
from volta.numba_cuda.host.host import Range
from volta.numba_cuda.host.host_runtime import READ, SHADOW_BYTES, WRITE
from volta.offline import plan_on_cuda
from volta.runtime import gateway
from volta.testing import assert_bits_equal, fill
from volta.testing.cases import cases, dtypes_of, vocabulary
from volta.testing.host_grid import ORDERS, HostKernels, check_on_host, run_on_host
from volta.testing.transformer import Transformer

pytestmark = [pytest.mark.skipif(bool(host.why_not()), reason=host.why_not()), pytest.mark.turns(6)]

KERNELS = HostKernels()


def normal(*shape, seed=0):
    return fill("normal", shape, "float32", seed)


QUICK = ("exp", "select_n", "reduce_sum", "argmax", "pad", "sort", "cumsum")


@sampled("primitive", vocabulary(), quick=lambda p: p.name in QUICK, ids=lambda p: p.name)
def test_kernels_of_every_primitive_have_the_cpus_bits(primitive):
    for case in cases(primitive, dtypes_of(primitive)[0]):
        program = program_of(case)
        plan, consts = plan_on_cuda(program)
        report = host.run_plan(plan, case.args, consts, kernels=KERNELS)
        assert report.violations == []
        want = gateway.compile(program)([volta.numpy.asarray(x) for x in case.args])
        for got, expected in zip(report.outputs, want, strict=True):
            assert_bits_equal(got, np.asarray(expected))


PROGRAMS = {
    "map": (lambda x: vnp.tanh(x) * 2 + 1, (normal(1000, 7),)),
    "softmax": (nn.softmax, (normal(20, 300),)),
    "long rows": (lambda x: vnp.sum(x, 1), (normal(3, 20000),)),
    "columns": (lambda x: vnp.sum(x, 0), (normal(5000, 40),)),
    "argmax by blocks": (lambda x: vnp.argmax(x, 1), (normal(2, 20000),)),
    "products": (lambda x, y: x @ y, (normal(70, 300), normal(300, 65))),
    "turned products": (lambda x, y: x.T @ y.T, (normal(64, 64), normal(64, 64))),
    "batches": (lambda x, y: x @ y, (normal(3, 33, 20), normal(3, 20, 5))),
    "scatter": (lambda x: x.at[vnp.arange(100) % 7].add(x[:100]), (normal(120, 5),)),
    "scans and sorts": (lambda x: vnp.sort(vnp.cumsum(x, 1), 0), (normal(9, 600),)),
    "gradient": (volta.grad(lambda x: vnp.sum(nn.log_softmax(x @ x.T) ** 2)), (normal(20, 40),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.few(4)
def test_programs_have_the_cpus_bits_in_opposite_orders_of_threads(name):
    f, args = PROGRAMS[name]
    check_on_host(f, *args, kernels=KERNELS)


@pytest.mark.slow
def test_a_training_step_of_a_transformer_has_the_cpus_bits():
    model, optimizer = Transformer(layers=1, width=16, heads=2, length=24, vocabulary=32, batch=2), optim.adam(1e-3)
    params = volta.jit(model.init)(volta.random.key(0))
    check_on_host(model.make_step(optimizer).__wrapped__, params, optimizer.init(params), volta.random.key(1))


def test_an_argument_that_is_donated_may_be_written():
    x = normal(1000)
    report = run_on_host(lambda x: x + 1, x, donated=(0,), kernels=KERNELS)
    assert report.violations == []
    assert_bits_equal(report.outputs[0], x + np.float32(1))


# -- what is wrong is seen ---------------------------------------------------------------------------------------------


def launches_of(f, *args):
    plan, consts = plan_on_cuda(volta.make_jaxpr(f)(*args))
    return plan, consts, kernels.launches_of(plan)


def test_an_access_beyond_an_array_is_seen():
    x = normal(1000)
    plan, consts, (launch,) = launches_of(vnp.tanh, x)
    (word, buffer, distance), *others = launch.addresses
    moved = attrs.evolve(launch, addresses=((word, buffer, distance + 16), *others))
    (found,) = host.run_plan(plan, [x], consts, launches=[moved]).violations
    assert "reads 16 bytes" in found.text and f"byte 4000 of b{buffer}, which has 4000" in found.text


def test_a_write_to_an_input_is_seen():
    x = normal(10)
    plan, consts, (launch,) = launches_of(vnp.tanh, x)
    swapped = [b for _, b, _ in launch.addresses][::-1]
    addresses = tuple((w, b, d) for (w, _, d), b in zip(launch.addresses, swapped, strict=True))
    found = host.run_plan(plan, [x], consts, launches=[attrs.evolve(launch, addresses=addresses)]).violations
    assert len(found) == 4 and all("which is only read" in v.text for v in found)


def test_a_grid_that_is_one_block_short_leaves_what_nobody_wrote():
    x = normal(5000)
    plan, consts, (launch,) = launches_of(vnp.tanh, x)
    (got,) = host.run_plan(plan, [x], consts, launches=[attrs.evolve(launch, grid=launch.grid - 1)]).outputs
    assert np.isnan(got).any() and not np.isnan(got[:1024]).any()


def test_a_product_without_its_barriers_races(monkeypatch):
    monkeypatch.setattr("volta.numba_cuda.products.dot_nest.barrier", lambda b: None)
    f = lambda x, y: x @ y  # noqa: E731
    with pytest.raises(AssertionError, match="a race with"):
        check_on_host(f, normal(70, 300), normal(300, 65))


def run_kernel(build, *arrays, block=32, order="ascending"):
    """Run one kernel on arrays that it may write; returns what it did wrong."""
    words = np.array([x.ctypes.data for x in arrays], np.int64)
    ranges = [Range("args", words.ctypes.data, words.nbytes, READ)]
    ranges += [Range(f"array {i}", x.ctypes.data, x.nbytes, READ | WRITE) for i, x in enumerate(arrays)]

    def whole(module, name):
        function, b = threads.new_entry(module, name, block)
        build(b, [threads.device_pointer(b, load_arg(b, function.args[0], i)) for i in range(len(arrays))])
        b.ret_void()

    module = host.HostModule([KernelSource("kernel", "", whole)])
    return module.run("kernel", words.ctypes.data, 1, block, ranges, order)


def at(b, base, index, size=4):
    return offset(b, base, b.mul(index, I64(size)))


def test_a_barrier_that_some_never_reach_is_seen():
    def build(b, arrays):
        with b.if_then(b.icmp_signed("<", threads.thread_index(b), I64(40))):
            threads.barrier(b)
            threads.barrier(b)

    assert run_kernel(build, block=64) == []  # those that are gone are not waited for

    def crossed(b, arrays):
        with b.if_else(b.icmp_signed("==", threads.thread_index(b), I64(5))) as (one, others):
            with one:
                threads.warp_barrier(b)
            with others:
                threads.barrier(b)

    ((block, thread, text),) = run_kernel(crossed)
    assert (block, thread) == (0, 0) and "32 threads at a barrier that others never reach" in text


def test_a_misaligned_access_is_seen():
    def build(b, arrays):
        here = offset(b, arrays[0], 4)
        b.store(b.load(here, typ=ir.VectorType(ir.FloatType(), 4), align=16), arrays[0], align=16)

    found = run_kernel(build, np.zeros(16, np.float32), block=1)
    assert len(found) == 1 and "not aligned" in found[0][2]


def test_shared_memory_has_an_end_and_holds_nothing_at_first():
    def build(b, arrays):
        space = threads.shared_memory(b.module, b, "space", 128)
        t = threads.thread_index(b)
        b.store(b.load(at(b, space, t), typ=I32), at(b, arrays[0], t))
        threads.barrier(b)
        b.store(I32(1), at(b, space, b.add(t, I64(1))))

    out = np.zeros(32, np.int32)
    ((_, thread, text),) = run_kernel(build, out)
    assert thread == 31 and "writes 4 bytes" in text and "byte 128 of shared memory, which has 128" in text
    assert out[0] == -1


def handed_on(meet, distance):
    """Every thread writes a word, and reads that of another after a meeting."""

    def build(b, arrays):
        space = threads.shared_memory(b.module, b, "space", 256)
        t = threads.thread_index(b)
        b.store(b.trunc(t, I32), at(b, space, t))
        meet(b)
        b.store(b.load(at(b, space, b.xor(t, I64(distance))), typ=I32), at(b, arrays[0], t))

    return build


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("meet", "distance", "raced"),
    [
        (threads.barrier, 32, False),
        (threads.warp_barrier, 1, False),
        (threads.warp_barrier, 32, True),
        (lambda b: None, 1, True),
    ],
)
def test_a_race_between_threads_is_seen_whatever_their_order(meet, distance, raced, order):
    found = run_kernel(handed_on(meet, distance), np.zeros(64, np.int32), block=64, order=order)
    assert bool(found) == raced
    assert all("a race with thread" in text and "shared memory" in text for _, _, text in found)


def test_a_stack_that_is_not_deep_enough_is_an_error():
    def run(words):
        run_kernel(lambda b, arrays: b.store(I32(0), b.alloca(I32, words)))

    with pytest.raises(DeviceError, match="a thread of kernel needs more than 131,072 bytes of stack"):
        run((1 << 15) - 50)
    run(1 << 14)


def test_a_word_that_all_read_may_not_be_written_before_a_barrier():
    def build(b, arrays):
        space = threads.shared_memory(b.module, b, "space", 4)
        t = threads.thread_index(b)
        b.store(b.load(space, typ=I32), at(b, arrays[0], t))
        with b.if_then(b.icmp_signed("==", t, I64(50))):
            b.store(I32(1), space)

    found = run_kernel(build, np.zeros(64, np.int32), block=64)
    assert "a race with other threads" in found[0][2]


def blocks_that(act):
    """Whether two blocks race that do something with one word of device memory."""
    out = np.zeros(1, np.int32)
    shadow = np.zeros(4 * SHADOW_BYTES, np.uint8)
    words = np.array([out.ctypes.data], np.int64)
    ranges = [Range("args", words.ctypes.data, words.nbytes, READ),
              Range("out", out.ctypes.data, 4, READ | WRITE, shadow.ctypes.data)]  # fmt: skip

    def build(module, name):
        function, b = threads.new_entry(module, name, 1)
        act(b, threads.device_pointer(b, load_arg(b, function.args[0], 0)))
        b.ret_void()

    module = host.HostModule([KernelSource("kernel", "", build)])
    found = [module.run("kernel", words.ctypes.data, 2, 1, ranges) for _ in range(2)]
    assert bool(found[0]) == bool(found[1])
    return bool(found[0]), int(out[0])


def test_blocks_may_only_share_what_they_update_atomically():
    assert blocks_that(lambda b, p: b.store(I32(1), p)) == (True, 1)
    assert blocks_that(lambda b, p: b.load(p, typ=I32)) == (False, 0)
    assert blocks_that(lambda b, p: b.store(b.load(p, typ=I32), p)) == (True, -1)
    assert blocks_that(lambda b, p: b.atomic_rmw("add", p, I32(1), "monotonic")) == (False, 4)


# -- operations that only PTX has --------------------------------------------------------------------------------------


def test_shuffles_and_votes():
    def build(b, arrays):
        t = threads.thread_index(b)
        lane = b.trunc(t, I32)
        words = [ptx_ops.shuffle(b, mode, b.add(lane, I32(100)), I32(3)) for mode in ("idx", "up", "down", "bfly")]
        words.append(ptx_ops.ballot(b, b.icmp_signed("==", b.and_(lane, I32(3)), I32(0))))
        words.append(ptx_ops.match(b, b.and_(t, I64(7))))
        for i, word in enumerate(words):
            b.store(word, at(b, arrays[0], b.add(t, I64(32 * i))))

    out = np.zeros((6, 32), np.uint32)
    assert run_kernel(build, out, order="shuffled") == []
    lane = np.arange(32)
    want = [np.full(32, 103), np.where(lane < 3, lane, lane - 3) + 100, np.where(lane > 28, lane, lane + 3) + 100,
            (lane ^ 3) + 100, np.full(32, 0x11111111), 0x01010101 << (lane & 7)]  # fmt: skip
    np.testing.assert_array_equal(out, np.array(want))


def copies(wait):
    def build(b, arrays):
        t = threads.thread_index(b)
        space = threads.shared_memory(b.module, b, "space", 32 * 32)
        for half in range(2):
            to = offset(b, space, b.add(b.mul(t, I64(32)), I64(16 * half)))
            source = offset(b, arrays[0], b.add(b.mul(t, I64(32)), I64(16 * half)))
            ptx_ops.copy_async(b, to, source, 16, I32(16 - 8 * half))
            ptx_ops.commit_copies(b)
        ptx_ops.wait_copies(b, wait)
        threads.barrier(b)
        other = b.xor(t, I64(31))
        for i in range(8):
            word = b.load(offset(b, space, b.add(b.mul(other, I64(32)), I64(4 * i))), typ=I32)
            b.store(word, offset(b, arrays[1], b.add(b.mul(t, I64(32)), I64(4 * i))))

    return build


def test_asynchronous_copies_arrive_when_they_are_waited_for():
    data, out = np.arange(256, dtype=np.int32).reshape(32, 8), np.zeros((32, 8), np.int32)
    assert run_kernel(copies(0), data, out) == []
    want = data[::-1].copy()
    want[:, 6:] = 0  # the bytes that were not valid
    np.testing.assert_array_equal(out, want)
    assert run_kernel(copies(1), data, out) == []
    want[:, 4:] = -1
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("shape", ptx_mma.MMA_F64)
def test_products_on_float64_tensor_cores_are_ascending_chains(shape):
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, other, c = rng.standard_normal((m, k)), rng.standard_normal((k, n)), rng.standard_normal((m, n))
    d = np.zeros((m, n))
    rows = m // 8

    def build(b, arrays):
        lane = threads.thread_index(b)
        g, t = b.lshr(lane, I64(2)), b.and_(lane, I64(3))

        def place(base, row, column, width):
            return at(b, base, b.add(b.mul(row, I64(width)), column), 8)

        def plus(x, number):
            return b.add(x, I64(number))

        xs = [place(arrays[0], plus(g, 8 * (i % rows)), plus(t, 4 * (i // rows)), k) for i in range(rows * k // 4)]
        ys = [place(arrays[1], plus(t, 4 * i), g, n) for i in range(k // 4)]
        zs = [(plus(g, 8 * (i // 2)), plus(b.shl(t, I64(1)), i % 2)) for i in range(2 * rows)]
        read = lambda p: b.load(p, typ=ptx_mma.F64)  # noqa: E731
        out = ptx_mma.mma(b, ptx_mma.MMA_F64[shape], [read(p) for p in xs], [read(p) for p in ys],
                          [read(place(arrays[2], *z, n)) for z in zs])  # fmt: skip
        for z, value in zip(zs, out, strict=True):
            b.store(value, place(arrays[3], *z, n))

    assert run_kernel(build, a, other, c, d, order="shuffled") == []
    np.testing.assert_array_equal(d, chain(a, other, c))


def chain(a, other, c):
    """C plus products, one fused multiply-add after the other (exact by rational arithmetic)."""
    out = c.copy()
    for i, j in np.ndindex(out.shape):
        for x, y in zip(a[i], other[:, j], strict=True):
            out[i, j] = float(Fraction(x) * Fraction(y) + Fraction(out[i, j]))
    return out


def test_an_operation_without_a_host_body_is_refused():
    def build(b, arrays):
        b.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), "membar.gl;", "", side_effect=True), [])

    with pytest.raises(volta.errors.UnsupportedOperationError, match="operation of ptx_ops"):
        run_kernel(build)
