"""The kernels that tests keep are kept: their code lives while what calls it does."""

import gc
import weakref

from tests.numba_cpu import dot_oracle
from volta.core.recent import Recent
from volta.numba_cpu import unit


def test_the_code_of_a_kernel_that_is_kept_is_not_freed(monkeypatch):
    monkeypatch.setattr(unit, "_recent", Recent(1))
    build = lambda m, n: dot_oracle._build_chain(m, n, "float32")  # noqa: E731
    kernel = dot_oracle.compile_one("oracle_kept", "oracle kept", build)
    code = weakref.ref(unit._units["oracle_kept"])
    for n in range(4):  # which take its place among the recent ones
        dot_oracle.compile_one(f"oracle_next{n}", f"oracle next {n}", build)
    gc.collect()
    assert code() is not None
    del kernel
    gc.collect()
    assert code() is None
