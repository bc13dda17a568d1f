"""What the campaigns share: their arguments, their report, and folders of their own.

    python scripts/campaigns/NAME.py [tries] [seed]

A campaign prints one line of figures and each thing that it found, and ends with status 1 if it found any.
"""

import collections
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


class Campaign:
    """Counts what happened, and keeps what should not have."""

    def __init__(self, tries: int) -> None:
        arguments = [int(text) for text in sys.argv[1:]]
        self.tries, self.seed = [*arguments, *(tries, 1)[len(arguments) :]][:2]
        self.counts: collections.Counter[str] = collections.Counter()
        self.found: collections.Counter[str] = collections.Counter()
        self.began = time.monotonic()

    def finish(self) -> None:
        name = os.path.basename(sys.argv[0])
        counts = ", ".join(f"{what} {count:,}" for what, count in sorted(self.counts.items()))
        seconds = time.monotonic() - self.began
        print(f"{name}: {self.tries:,} tries (seed {self.seed}, {seconds:.0f} s); {counts}; found: {len(self.found)}")
        for what, count in self.found.most_common(20):
            print(f"  {count} x {what}")
        sys.exit(bool(self.found))


@contextmanager
def folder() -> Iterator[Path]:
    """An empty folder, removed at the end."""
    made = Path(tempfile.mkdtemp(prefix="volta-campaign-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
