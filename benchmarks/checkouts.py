"""Checkouts beside each other: each runs in a process of its own and they take turns, sample by sample, so that a busy
spell of the machine meets all of them.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness


def checkout_of(beside: str, folder: Path) -> Path:
    """A folder that is a checkout, or a commit's files put into a folder."""
    if (Path(beside) / "volta").is_dir():
        return Path(beside).resolve()
    archive = subprocess.run(["git", "archive", beside, "volta"], cwd=harness.ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


class Contender:
    """``script --child framework checkout``, a process that `serve` answers from."""

    def __init__(self, script: str, name: str, framework: str, checkout: Path, device: str, threads: int) -> None:
        self.name = name
        environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        command = [sys.executable, script, "--child", framework, str(checkout), "--device", device]
        command += ["--threads", str(threads)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def ask(self, question: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def use(framework: str, checkout: str) -> None:
    """In a contender's process: let ``import volta`` mean that checkout's."""
    sys.path.insert(0, checkout)
    if framework == "volta":
        import volta

        if not Path(volta.__file__).is_relative_to(checkout):
            raise SystemExit(f"volta comes from {volta.__file__}, not from {checkout}")


def clock_of(device: str, threads: int) -> Callable[[], float]:
    """On the CPU, with one thread, what the processor gave to the process: others on the machine matter less."""
    return time.process_time if device == "cpu" and threads == 1 else time.perf_counter


def serve(
    make: Callable[[list[Any]], tuple[Callable[[], Any], Callable[[Any], Any]]], clock: Callable[[], float]
) -> None:
    """Answer each line of the input, a case or how long a sample takes, with a line: ready, or seconds of a call.

    ``make(case)`` gives a call that computes it once, and one that waits for what that gave.
    """
    run: Any = None
    wait: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if isinstance(asked, list):
                run = None  # before the next operands are made
                run, wait = make(asked)
                wait(run())
                answer: Any = "ready"
            else:
                wait(run())
                start, calls = clock(), 0
                while not calls or clock() - start < asked:
                    repeat = max(1, calls)
                    for _ in range(repeat):
                        out = run()
                    wait(out)
                    calls += repeat
                answer = (clock() - start) / calls
        except Exception as error:  # a contender that cannot must not stop the others
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


def measure(contenders: Sequence[Any], case: Sequence[Any], rounds: int, sample: float) -> dict[str, Any]:
    """Seconds of each contender, and the ratio of the first to the second of every round."""
    said = {c.name: c.ask(list(case)) for c in contenders}
    able = [c for c in contenders if said[c.name] == "ready"]
    taken: dict[str, list[float]] = {c.name: [] for c in able}
    for i in range(rounds):
        for c in able if i % 2 == 0 else reversed(able):
            taken[c.name].append(c.ask(sample))
    errors = {name: text for name, text in said.items() if text != "ready"}
    return {"name": case[0], **compared(taken), "errors": errors}


def compared(taken: dict[str, list[float]]) -> dict[str, Any]:
    """What samples of each contender come to; of ``this`` and ``beside`` their ratios too."""
    row: dict[str, Any] = {"seconds": {name: statistics.median(x) for name, x in taken.items()}}
    row["least"] = {name: min(x) for name, x in taken.items()}
    if "this" in taken and "beside" in taken:
        ratios = [a / b for a, b in zip(taken["this"], taken["beside"], strict=True)]
        row["ratio"] = statistics.median(ratios)
        row["ratio of the least"] = row["least"]["this"] / row["least"]["beside"]
    return row


def ratio_texts(row: dict[str, Any]) -> list[str]:
    """The cells of a table's columns "this/beside" and "of the least"."""
    return [f"{row[key]:.3f}" if key in row else "-" for key in ("ratio", "ratio of the least")]
