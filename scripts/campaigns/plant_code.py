"""Machine code that another user could have planted in the cache of kernels: it must never run.

A cache is filled, code that leaves a trace takes the place of each kernel in it, and one thing is as it would be if
somebody else had done that: who owns a folder, a file or a link, who may write there, whose key signs, where the
environment points. A new process then runs a program that needs these kernels: its result must be right, and a warning
must have said why nothing was taken from disk. Now and then nothing is wrong, and the trace must be there: the attack
works. Only root can give files away; for others these ways are left out.
"""

import os
import random
import shutil
import warnings

import numpy as np
from campaign import Campaign, folder

import volta
from volta.core.errors import CacheWarning
from volta.emit import cache
from volta.numba_cpu import target

OTHER = 54321
OUTCOMES = {0: "a wrong result", 1: "nothing said", 2: "a wrong result", 3: "said so", 4: "an error"}


def program(x):
    return (x * 3 + 1).sum()


def planted(whole, key, canary):
    """The files of a cache, with code in each unit that makes a file; signed with a key."""
    command = f"touch {canary}\0".encode()
    literal = "".join(f"\\{byte:02X}" for byte in command)
    out = dict(whole)
    for name, contents in whole.items():
        if name.endswith(".unit"):
            environment, unit = cache.decode(contents, whole["key"])
            bodies = "".join(
                f"define void @{kernel}(ptr %a, i64 %b, i64 %c, ptr %d) {{ %r = call i32 @system(ptr @s) ret void }}\n"
                for kernel in unit.kernels
            )
            code = f'@s = internal constant [{len(command)} x i8] c"{literal}"\ndeclare i32 @system(ptr)\n{bodies}'
            stored = cache.StoredUnit(unit.kernels, (target.compile_object(code),))
            out[name] = cache.encode(environment, stored, key)
    return {**out, "key": key}


def given(path, below=False):
    os.lchown(path, OTHER, OTHER)
    for entry in path.iterdir() if below else ():
        os.lchown(entry, OTHER, OTHER)


def units(place):
    return [path for path in place.iterdir() if path.suffix == ".unit"]


def linked(place):
    """The folder lies elsewhere, and somebody else made the link to it."""
    place.rename(place.parent / "elsewhere")
    place.symlink_to("elsewhere")
    os.lchown(place, OTHER, OTHER)


def signed_elsewhere(place):
    """The folder has a key of its own, and the units are signed with another one."""
    (place / "key").write_bytes(os.urandom(32))


def rights(*choices):
    return random.choice(choices)


FLAWS = {
    "folder of somebody else": given,
    "folder and files of somebody else": lambda p: given(p, below=True),
    "folder above of somebody else": lambda p: given(p.parent),
    "folder two above of somebody else": lambda p: given(p.parent.parent),
    "files of somebody else": lambda p: [os.chown(path, OTHER, OTHER) for path in p.iterdir()],
    "units of somebody else": lambda p: [os.chown(path, OTHER, OTHER) for path in units(p)],
    "key of somebody else": lambda p: os.chown(p / "key", OTHER, OTHER),
    "folder that others may write": lambda p: p.chmod(rights(0o777, 0o1777, 0o770, 0o722, 0o2775)),
    "folder above that others may write": lambda p: p.parent.chmod(rights(0o777, 0o770, 0o722)),
    "folder two above that others may write": lambda p: p.parent.parent.chmod(rights(0o777, 0o770, 0o722)),
    "units that others may write": lambda p: [path.chmod(rights(0o666, 0o660, 0o622)) for path in units(p)],
    "key that others may write": lambda p: (p / "key").chmod(rights(0o666, 0o660, 0o602)),
    "key that others may read": lambda p: (p / "key").chmod(rights(0o644, 0o640, 0o604)),
    "link of somebody else": linked,
    "signed with another key": signed_elsewhere,
    "a key of no length": lambda p: (p / "key").write_bytes(b""),
}
QUIET = ("signed with another key", "a key of no length")  # damage, as far as anybody can tell
SAFE = {
    "nothing wrong": lambda p: None,
    "folders that others may read": lambda p: [path.chmod(0o755) for path in (p, p.parent)],
    "below a folder like /tmp": lambda p: p.parent.chmod(0o1777),
}
PLACES = {
    "VOLTA_CACHE_DIR": lambda p: {"VOLTA_CACHE_DIR": str(p)},
    "XDG_CACHE_HOME": lambda p: {"XDG_CACHE_HOME": str(p.parent)},
    "HOME": lambda p: {"HOME": str(p.parent.parent)},
}
NOWHERE = {
    "relative HOME": {"HOME": "home"},
    "HOME of dots": {"HOME": "./home"},
    "empty HOME": {"HOME": ""},
    "HOME of a tilde": {"HOME": "~"},
    "no HOME": {},
    "relative XDG_CACHE_HOME": {"HOME": "/nonexistent", "XDG_CACHE_HOME": "home/.cache"},
}


def outcome(variables, canary):
    """What a process of these variables does; forked, so that it need not import Volta anew."""
    child = os.fork()
    if not child:
        status = 4
        try:
            for name in ("VOLTA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
                os.environ.pop(name, None)
            os.environ.update(variables)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always", CacheWarning)
                right = volta.jit(program)(np.arange(5, dtype="f4")) == 35
            status = bool(right) + 2 * bool(said)
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "ran" if canary.exists() else OUTCOMES.get(status, f"died of {-status}")


def main():
    campaign = Campaign(600)
    flaws = {what: make for what, make in FLAWS.items() if not (os.geteuid() and "somebody else" in what)}
    random.seed(campaign.seed)
    with folder() as place:
        filled, canary = place / "filled", place / "canary"
        outcome({"VOLTA_CACHE_DIR": str(filled)}, canary)
        whole = {path.name: path.read_bytes() for path in filled.iterdir()}
        keys = [whole["key"], os.urandom(32), b""]
        versions = {key: planted(whole, key, canary) for key in keys}
        for _ in range(campaign.tries):
            base = place / "base"
            home = base / "home" / ".cache"
            target_folder = home / "volta"
            target_folder.mkdir(parents=True, mode=0o700)
            for path in (target_folder, home, home.parent):
                path.chmod(0o700)
            kind = random.choices(("flaw", "nowhere", "safe"), (8, 2, 1))[0]
            what = random.choice(list({"flaw": flaws, "nowhere": NOWHERE, "safe": SAFE}[kind]))
            key = keys[2] if what == "a key of no length" else random.choice(keys[:2])
            for name, contents in versions[key].items():
                (target_folder / name).write_bytes(contents)
                (target_folder / name).chmod(0o600)
            where = random.choice(list(PLACES))
            if kind == "nowhere":
                os.chdir(base)
                variables = NOWHERE[what]
            else:
                variables = PLACES[where](target_folder)
                {**FLAWS, **SAFE}[what](target_folder)
            happened = outcome(variables, canary)
            os.chdir("/")
            expected = "ran" if kind == "safe" else "nothing said" if what in QUIET else "said so"
            campaign.counts[f"{'safe place' if kind == 'safe' else 'planted'}, {happened}"] += 1
            if happened != expected:
                campaign.found[f"{what} ({where}): {happened}, expected: {expected}"] += 1
            canary.unlink(missing_ok=True)
            shutil.rmtree(base)
    campaign.finish()


if __name__ == "__main__":
    main()
