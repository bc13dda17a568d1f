"""What the tests of each file cost: printed after a run on several processes, so that whoever adds tests sees it."""

import resource
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

SHOWN = 15


def seconds() -> float:
    """Seconds of processors that this process and its children have taken: how busy the machine is does not matter."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Costs:
    """A plugin of every process: workers count, and the process that started them adds up and prints."""

    def __init__(self) -> None:
        self.by_file: Counter[str] = Counter()
        self.last = seconds()

    def _spent_on(self, what: str) -> None:
        now = seconds()
        self.by_file[what] += now - self.last  # type: ignore[assignment]  # a float
        self.last = now

    def pytest_collection_finish(self) -> None:
        self._spent_on("finding the tests")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        result = yield
        self._spent_on(item.location[0])
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["costs"] = dict(self.by_file)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.by_file.update(getattr(node, "workeroutput", {}).get("costs", {}))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        dear = [(name, cost) for name, cost in self.by_file.most_common(SHOWN) if cost >= 1]
        if len(self.by_file) > SHOWN:
            total = sum(self.by_file.values())
            terminalreporter.section(f"{total:.0f} s of processors; the dearest")
            for name, cost in dear:
                terminalreporter.write_line(f"{cost:6.1f} s  {name}")
