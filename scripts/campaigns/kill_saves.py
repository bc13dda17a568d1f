"""Processes that are killed while they save, and system calls that fail: is the file always the old one or the new one?

Half of the tries kill a process at a random moment (in every fourth of them two processes save the same file); the
others let one step of a save fail, be interrupted, or be the last that the process does.
"""

import errno
import fcntl
import os
import random
import resource
import signal
import sys
import time

import numpy as np
from campaign import Campaign, folder

from volta import io

MANY, FEW = 300_000, 2_000  # numbers in the array that is saved
STEPS = [(os, name) for name in ("open", "stat", "fstat", "fchmod", "fsync", "replace", "unlink", "close", "scandir")]
STEPS.append((fcntl, "flock"))
ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


def tree(generation, count):
    return {
        "generation": generation,
        "w": np.full(count, generation, "f4"),
        "b": [np.full(17, generation, "i8"), {"x": float(generation)}],
    }


def generation_of(path):
    """Which save a file is of; fails where it is of none, or of two."""
    loaded = io.load(path)
    generation = loaded["generation"]
    assert (np.asarray(loaded["w"]) == generation).all() and (np.asarray(loaded["b"][0]) == generation).all()
    assert loaded["b"][1]["x"] == generation
    return generation


def in_child(work):
    """The process id of a child that does its work and ends."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    return child


def save_for_ever(path, generation, report):
    """Generation by generation, telling before and after each save which one it is."""
    while True:
        generation += 1
        os.write(report, b"%d\n" % generation)
        io.save(path, tree(generation, MANY))
        os.write(report, b"%d\n" % generation)


def kill_at_random(campaign, path, before, seconds):
    """Kill one or two savers; returns the generation that is there afterwards."""
    savers = []
    for k in range(random.choice((1, 1, 1, 2))):
        reader, writer = os.pipe()
        start = before + 1000 * k  # the second saver's are other generations
        savers.append((in_child(lambda s=start, w=writer: save_for_ever(path, s, w)), reader, start))
        os.close(writer)
    time.sleep(random.random() * 4 * seconds + 0.0005)
    for child, _, _ in savers:
        os.kill(child, signal.SIGKILL)
    for child, reader, start in savers:
        os.waitpid(child, 0)
        with open(reader) as lines:
            told = [int(line) for line in lines]
        began = told[-1] if told else start + 1
        # told twice: it is there (for one saver alone). Told once: it may be.
        finished = told.count(began) == 2
        campaign.counts["killed in the middle of a save"] += bool(told) and not finished
        possible = (began,) if finished else (began - 1, began)
    campaign.counts["killed"] += len(savers)
    after = generation_of(path)
    if len(savers) == 1 and after not in possible:
        campaign.found[f"generation {after} where one of {possible} was possible"] += 1
    return after


def with_a_fault(campaign, path, before):
    """One step of a save goes wrong; returns the generation that is there afterwards."""
    module, name = random.choice(STEPS)
    at, how = random.randrange(4), random.choice(("error", "interrupt before", "interrupt after", "kill", "full disk"))
    number = random.choice(ERRORS)
    real, calls = getattr(module, name), []

    def step(*args, **kwargs):
        calls.append(None)
        if len(calls) - 1 != at or how == "full disk":
            return real(*args, **kwargs)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "error":
            raise OSError(number, os.strerror(number))
        if how == "interrupt after":
            real(*args, **kwargs)
        raise KeyboardInterrupt

    def save():
        setattr(module, name, step)
        if how == "full disk":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (random.randrange(9_000), resource.RLIM_INFINITY))
        try:
            io.save(path, tree(before + 1, FEW))
            said = "saved"
        except OSError as error:
            said = "saved" if "the new file is in place" in str(error) else "not saved"
        except KeyboardInterrupt:
            said = "interrupted"
        finally:
            setattr(module, name, real)
        os.write(writer, said.encode())

    reader, writer = os.pipe()
    os.waitpid(in_child(save), 0)
    os.close(writer)
    with open(reader) as answer:
        said = answer.read() or "killed"
    after = generation_of(path)
    campaign.counts[f"fault, {said}"] += 1
    allowed = {"saved": (before + 1,), "not saved": (before,)}.get(said, (before, before + 1))
    if after not in allowed:
        campaign.found[f"{said}, {how} at call {at} of {name}: generation {after - before:+d}"] += 1
    return after


def main():
    campaign = Campaign(4_000)
    random.seed(campaign.seed)
    with folder() as place:
        path = place / "model"
        began = time.monotonic()
        for _ in range(5):
            io.save(path, tree(0, MANY))
        seconds = (time.monotonic() - began) / 5
        generation = 0
        for k in range(campaign.tries):
            try:
                if k % 2:
                    generation = kill_at_random(campaign, path, generation, seconds)
                else:
                    generation = with_a_fault(campaign, path, generation)
            except Exception as error:
                campaign.found[f"lost: {type(error).__name__}: {error!s:.100}"] += 1
                io.save(path, tree(generation, FEW))
        campaign.counts["temporaries left by the last"] = len(os.listdir(place)) - 1
        io.save(path, tree(0, FEW))
        if os.listdir(place) != ["model"]:
            campaign.found[f"left for good: {os.listdir(place)}"] += 1
    campaign.finish()


if __name__ == "__main__":
    sys.exit(main())
