"""Workers that are killed at random moments: does a run, gone on with others, end in the bytes of one left alone?

Each try trains the model of `examples/elastic_training.py` in a new folder, on one to four workers at a time. At a
random moment (while they start, compute or save) one of them is killed; the next run goes on with another number, until
it is done. Needs mpi4py and an MPI library.
"""

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import time

from campaign import Campaign, folder

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "examples", "elastic_training.py")
STEPS = 4


def start(workers, place):
    """A run in the background."""
    words = ["launch", "-n", str(workers), SCRIPT, "--folder", str(place), "--steps", str(STEPS)]
    paths = os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", "volta", *words],
        env={**os.environ, "PYTHONPATH": paths, "VOLTA_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def workers_of(place):
    """The processes that work in a folder: those that a runner of mpi4py became."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            words = open(f"/proc/{entry}/cmdline", "rb").read().split(b"\0") if entry.isdigit() else []
            if b"mpi4py" in words and str(place).encode() in words and b"-n" not in words:
                found.append(int(entry))
    return found


def digest(place):
    with open(place / f"step-{STEPS:09d}.safetensors", "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def one(campaign, place, seconds):
    """One schedule: kills, each within so many seconds, until a run is over before."""
    for _ in range(20):
        run, begun = start(random.randint(1, 4), place), time.monotonic()
        moment = random.random() * seconds
        while run.poll() is None and time.monotonic() - begun < moment:
            time.sleep(0.01)
        victims = workers_of(place)
        if run.poll() is None and victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(random.choice(victims), signal.SIGKILL)
            campaign.counts["killed"] += 1
        said = run.communicate()[1]
        if not run.returncode:
            return
        if not victims and b"signal" not in said:
            campaign.found[f"ended by itself: {said[-200:]!r}"] += 1
            return
        campaign.counts["steps done when killed"] += len(list(place.glob("step-*"))) if place.exists() else 0
    campaign.found["never ended"] += 1


def main():
    campaign = Campaign(20)
    random.seed(campaign.seed)
    with folder() as place:
        start(1, place / "first").communicate()  # which compiles the kernels
        begun = time.monotonic()
        (alone := start(1, place / "alone")).communicate()
        seconds = 2 * (time.monotonic() - begun)
        if alone.returncode:
            sys.exit("a run of one worker failed: are mpi4py and MPI installed?")
        want = digest(place / "alone")
        for k in range(campaign.tries):
            where = place / str(k)
            one(campaign, where, seconds)
            if not where.exists() or digest(where) != want:
                campaign.found["other bytes than one worker's"] += 1
            left = [name for name in os.listdir(where) if not name.startswith("step-")] if where.exists() else []
            campaign.counts["temporaries left by the last"] += len(left)
    campaign.finish()


if __name__ == "__main__":
    main()
