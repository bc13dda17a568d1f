"""Damaged caches of kernels: each load gives the unit that was stored, or none, and no error.

Units, references and the key are flipped, cut, emptied, exchanged, lengthened, and replaced by links, folders, pipes
and files of a terabyte that take no room; between loads units are stored again.
"""

import os
import random
import shutil
import signal
import stat
import traceback
import warnings

from campaign import Campaign, folder

from volta.core.errors import CacheWarning
from volta.emit import cache

LOADS = 6  # of a damaged cache
ENVIRONMENT = "the same for all"
WAYS = ("flip", "cut", "zero", "exchange", "longer", "empty", "folder", "link", "pipe", "huge", "noise",
        "another reference", "rights", "gone")  # fmt: skip


def alarm(*_):
    raise TimeoutError("more than twenty seconds")


def unit(number):
    kernels = {f"kernel{number}_{k}": f"text {k}" * random.randrange(1, 200) for k in range(random.randrange(1, 5))}
    return cache.StoredUnit(kernels, tuple(os.urandom(random.randrange(3000)) for _ in range(random.randrange(1, 4))))


def clear(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def damage(place, names, whole):
    """One thing goes wrong with a file; returns what, and the files that it touched."""
    name = random.choice(names)
    path, contents = place / name, whole[name]
    how = random.choice(WAYS)
    touched = {name}
    if how in ("folder", "link", "pipe", "gone") or not stat.S_ISREG(os.lstat(path).st_mode):
        clear(path)  # also what was damaged before: no bytes go through a link or into a pipe
    if how == "folder":
        path.mkdir()
    elif how == "link":
        path.symlink_to(random.choice(["/dev/null", "/dev/zero", "missing", name, random.choice(names)]))
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "rights":
        path.chmod(random.choice((0o666, 0o000, 0o444, 0o640)))
    elif how == "huge":
        with open(path, "r+b") as file:
            file.truncate(1 << 40)
    elif how == "exchange":
        other = random.choice([n for n in names if n[-4:] == name[-4:]])
        path.write_bytes(whole[other])
        clear(place / other)
        (place / other).write_bytes(contents)
        touched.add(other)
    elif how != "gone":
        flipped = bytearray(contents)
        flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
        path.write_bytes(
            {
                "flip": bytes(flipped),
                "cut": contents[: random.randrange(len(contents))],
                "zero": bytes(len(contents)),
                "longer": contents + b"xx",
                "empty": b"",
                "noise": cache._MAGIC + os.urandom(100),
                "another reference": random.choice(names).encode(),
            }[how]
        )
    return how, touched


def main():
    campaign = Campaign(5_500)
    random.seed(campaign.seed)
    signal.signal(signal.SIGALRM, alarm)
    warnings.simplefilter("error")
    with folder() as place:
        disk = cache.DiskCache(place)
        units = [unit(number) for number in range(25)]
        for one in units:
            disk.store(ENVIRONMENT, one)
        whole = {path.name: path.read_bytes() for path in place.iterdir()}
        stored = [(name, text, one) for one in units for name, text in one.kernels.items()]
        references = {name: cache._reference(ENVIRONMENT, name, text) for name, text, _ in stored}
        for _ in range(campaign.tries):
            touched, what = set(), []
            for _ in range(random.choice((1, 1, 2, 4))):
                try:
                    how, files = damage(place, sorted(whole), whole)
                except OSError:  # what was damaged before cannot be damaged so
                    continue
                what.append(how)
                touched |= files
            disk._said = False
            hit = [x for x in stored if {references[x[0]], whole[references[x[0]]].decode()} & touched]
            for name, text, one in [*random.sample(hit, min(len(hit), LOADS - 2)), *random.sample(stored, LOADS)][
                :LOADS
            ]:
                signal.alarm(20)
                try:
                    found = disk.load(ENVIRONMENT, name, text)
                    campaign.counts["the right unit" if found == one else "none"] += 1
                    if found not in (None, one):
                        campaign.found[f"another unit after {what}"] += 1
                    if random.random() < 0.1:
                        disk.store(ENVIRONMENT, one)
                        touched |= set(whole)
                except CacheWarning:
                    campaign.counts["refused, and said so"] += 1
                except Exception as error:
                    where = traceback.extract_tb(error.__traceback__)[-1].name
                    campaign.found[f"{type(error).__name__}: {error!s:.80} ({where}) after {what}"] += 1
                finally:
                    signal.alarm(0)
            # The folder as it was: loads remove what is damaged.
            for name in whole:
                path = place / name
                if name in touched or not path.is_file() or path.is_symlink():
                    clear(path)
                    path.write_bytes(whole[name])
                    path.chmod(0o600)
    campaign.finish()


if __name__ == "__main__":
    main()
