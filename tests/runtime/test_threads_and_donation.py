"""A donor in one thread takes nothing from a reader in another."""

import threading

import volta
import volta.numpy as vnp
from tests.thread_support import running
from volta.runtime.memory import default_pool


def test_a_reader_in_another_thread_keeps_its_memory() -> None:
    total = volta.jit(lambda x: vnp.sort(x.reshape(100, -1), 1).sum())
    overwrite = volta.jit(lambda x: x * 0 - 7.0, donate_argnums=0)
    want = float(total(vnp.ones(100000)))
    overwrite(vnp.ones(100000))
    for _ in range(10):
        a = vnp.ones(100000)
        started, seen = threading.Event(), []

        def read(a=a, started=started, seen=seen) -> None:
            started.set()
            try:
                seen.append(float(total(a)))
            except volta.errors.DonatedBufferError:  # the donor was first
                pass

        with running(read):
            started.wait()
            for _ in range(1000):  # let the reader begin its call
                pass
            assert (overwrite(a) == -7.0).all()
            vnp.zeros(100000)  # would take the memory if it were free
        assert all(value == want for value in seen)


def test_deleting_what_a_call_holds_frees_nothing_it_reads() -> None:
    a = vnp.ones(100000)
    held, live = a.buffer(), default_pool().stats().live  # as a call holds it that is under way in some thread
    a.delete()
    assert a.is_deleted() and default_pool().stats().live == live
    del held
    assert default_pool().stats().live < live
