"""The memory suite of `volta verify` passes on a GPU, and on the stand-in for the driver."""

from volta.verify import checks, memory


def test_memory_is_as_planned(gpu):
    if hasattr(gpu.api, "fake"):
        gpu.api.fake.run_kernels = False  # memory is what counts here
    found = list(memory.memory(checks.Setting("cuda")))
    assert len(found) == 5 and not [check for check in found if check.problem]
    assert found[0].figures["measured"] > 1_000_000
