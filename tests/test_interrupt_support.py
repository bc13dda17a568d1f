"""The harness of interrupts raises only where the interpreter hears a signal."""

import threading

from tests.interrupt_support import at_every_step

lock = threading.RLock()


def taken_around_a_return():
    with lock:
        return abs(-3)


def taken_around_a_statement():
    with lock:
        abs(-3)
    return 3


def test_a_lock_that_a_with_statement_takes_is_given_back():
    for act in (taken_around_a_return, taken_around_a_statement):
        free = []

        def check(_, free=free):
            thread = threading.Thread(target=lambda: free.append(lock.acquire(blocking=False) and not lock.release()))
            thread.start()
            thread.join()

        assert at_every_step(lambda: None, lambda _, act=act: act(), check, __file__) == len(free) > 5
        assert all(free)
