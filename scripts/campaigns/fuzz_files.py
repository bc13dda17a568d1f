"""Damaged, foreign and hostile model files: each is loaded as what it is, or refused by name, and runs nothing.

Bytes are flipped, cut, spliced and appended; headers and pytrees are rewritten as JSON, half of them with a checksum
that is right, so that what lies behind the checksum is reached. Every file is read by ``load`` and ``load_metadata``,
in three gigabytes of memory and ten seconds at most.
"""

import hashlib
import io as bytes_io
import json
import os
import pickle
import random
import resource
import signal
import struct
import sys
import traceback
from collections import OrderedDict, namedtuple

import numpy as np
from campaign import Campaign, folder

from volta import io
from volta.errors import VoltaError

Point = namedtuple("Point", "x y")


class Loud(Point):
    """A class that notices when one is made."""

    made = 0

    def __new__(cls, x, y):
        cls.made += 1
        return super().__new__(cls, x, y)


class Evil:
    """Unpickled, it makes a file."""

    def __reduce__(self):
        return os.mkdir, (CANARY,)


CANARY = "volta-campaign-canary"
TREES = [
    {
        "w": np.arange(6, dtype="f4").reshape(2, 3),
        "l": [np.arange(3, dtype="u1"), 2.5, None, "s", True, 7],
        "t": (np.float64(3), Point(1, np.ones(2, "i2")), tuple.__new__(Loud, (1, 2))),
        "o": OrderedDict(a=np.zeros((0, 3)), b=np.array([True, False])),
    },
    np.arange(4, dtype="i8"),
    {},
    [np.ones(1, "f2")] * 3,
    {"a": {"b": {"c": [[[np.ones(2, "f8")]]]}}},
]
NUMBERS = [0, 1, -1, 2, 3, 7, 8, 9, 255, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 2**70, -(2**63), 10**30,
           10**400]  # fmt: skip
TEXTS = ["", "x", "../../etc/passwd", "__metadata__", "volta.sha256", "F32", "F64", "BOOL", "BF16", "I8", "U64",
         "F8_E4M3", "array", "scalar", "float", "list", "node x", "namedtuple os:stat_result",
         "namedtuple __main__:Point", "namedtuple __main__:Loud", "namedtuple builtins:eval", "namedtuple os:system",
         "namedtuple numpy:f2py.x",
         "\ud800", "\0", "é", "a" * 5000]  # fmt: skip
OTHERS = [None, True, False, 1.0, 0.5, -0.0, 1e308, [], {}, [[]], [0], [1], [0, 8], [2**62, 4], [1] * 65, [0] * 100]
JUNK = [*NUMBERS, *TEXTS, *OTHERS]
VERSIONS = ["1", "01", "\u0661", "1" * 4300, "1" * 5000, "-1", "1.0", " 1", "1e3", "0", "2"]


def built(header, data=b"", length=None):
    """A file of a header (bytes, or JSON values) and data."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", (len(raw) if length is None else length) & (2**64 - 1)) + raw + data


def parts(file):
    length = int.from_bytes(file[:8], "little")
    return file[8 : 8 + length], file[8 + length :]


def sealed(table, data):
    """A file whose checksum is right, whatever its header says."""
    metadata = table.get("__metadata__")
    if not isinstance(metadata, dict) or "volta.sha256" not in metadata:
        return built(table, data)
    metadata["volta.sha256"] = "0" * 64
    raw = json.dumps(table, separators=(",", ":"), sort_keys=random.random() < 0.5).encode()
    raw += b" " * (-len(raw) % 8)
    digest = hashlib.sha256(raw + data).hexdigest().encode()
    return built(raw.replace(b'"volta.sha256":"' + b"0" * 64, b'"volta.sha256":"' + digest), data)


def places(value, path=()):
    """The paths of all values in JSON values."""
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


def copied(value):
    return json.loads(json.dumps(value))


def mutated(value):
    """JSON values with one to three things changed."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        paths = [path for path in places(value) if path]
        if not paths:
            return value
        *above, key = random.choice(paths)
        parent = at(value, above)
        how = random.random()
        if how < 0.6:
            parent[key] = copied(random.choice(JUNK))
        elif how < 0.7 and isinstance(parent, list):
            parent.insert(key, copied(random.choice(JUNK)))
        elif how < 0.7:
            parent[str(random.choice(JUNK))] = copied(random.choice(JUNK))
        elif how < 0.8:
            del parent[key]
        elif how < 0.9:
            other = at(value, random.choice(paths))
            parent[key] = copied(other if random.random() < 0.5 else [other] * random.choice((1, 2, 65, 300)))
        elif isinstance(parent, dict):
            parent[random.choice(["../x", "__metadata__", "", ".", "a.b", "\0", "volta.format", f"{key}2"])] = (
                parent.pop(key)
            )
    return copied(value)


def odd_header():
    """Headers that no program writes: deep, long, huge, in other encodings."""
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    rank = random.choice((32, 33, 64, 65, 100, 100_000))
    huge = b"9" * random.choice((19, 20, 4200, 4301))
    raw = random.choice(
        [
            b"[" * random.choice((10, 500, 990, 5000, 200_000)),
            b'{"a":' * random.choice((100, 990, 5000, 50_000)),
            b"\xff\xfe" + bytes(50),
            b"\xef\xbb\xbf{}",
            b'{"a":{"dtype":"F32","shape":[' + huge + b'],"data_offsets":[0,' + huge + b"]}}",
            b'{"a":NaN}',
            b'{"a":1,"a":2}',
            b'{"__metadata__":{"a":"b"},"__metadata__":{}}',
            json.dumps({"a": {**entry, "shape": [1] * rank}}).encode(),
            json.dumps({"a": {**entry, "shape": [random.choice(NUMBERS), 0], "data_offsets": [0, 0]}}).encode(),
            json.dumps({"a": {"dtype": "U8", "shape": [0, 2**40, 2**40], "data_offsets": [0, 0]}}).encode(),
        ]
    )
    return built(raw + b" " * (-len(raw) % 8), random.choice((b"", bytes(4), bytes(8))))


def odd_structure():
    deep = random.choice((100, 255, 256, 257, 330, 2000))
    return random.choice(
        [
            "",
            "[",
            "[" * 2000,
            "NaN",
            "1e999",
            "9" * 5000,
            '{"a":1,"a":1}',
            '["list",[[0,' * deep + "null" + "]]]" * deep,
        ]
    )


def payloads():
    """Files of other programs that run code when these read them."""
    archive, npy = bytes_io.BytesIO(), bytes_io.BytesIO()
    np.savez(archive, np.array([Evil()], object))
    np.save(npy, np.array([Evil()], object), allow_pickle=True)
    pickled = pickle.dumps(Evil())
    return [pickled, built(pickled), archive.getvalue(), npy.getvalue(), b"\x80\x04", built({}, pickled)]


def one(good, evil):
    """What was done to a file, and its bytes."""
    file = random.choice(good)
    how = random.random()
    if how < 0.15:
        damaged = bytearray(file)
        for _ in range(random.choice((1, 1, 2, 5, 50))):
            damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
        return "bits flipped", bytes(damaged)
    if how < 0.22:
        return "cut", file[: random.randrange(len(file) + 1)]
    if how < 0.27:
        return "longer", file + os.urandom(random.choice((1, 7, 8, 100)))
    raw, data = parts(file)
    if how < 0.33:
        near = [len(raw) + random.randint(-9, 9), len(file), len(file) - 8]
        return "another length", built(raw, data, random.choice([*NUMBERS, *near]))
    if how < 0.38:
        i, j = sorted(random.randrange(len(file) + 1) for _ in range(2))
        other = random.choice(good)
        return "spliced", file[:i] + other[random.randrange(len(other) + 1) :][: random.randrange(60)] + file[j:]
    if how < 0.42:
        return "odd header", odd_header()
    if how < 0.45:
        return "other programs'", random.choice(evil)
    table = json.loads(raw)
    if how < 0.6:
        return "other JSON", built(mutated(table), data)
    if how < 0.78:
        return "other JSON, sealed", sealed(mutated(table), data)
    metadata = table.setdefault("__metadata__", {})
    if how < 0.95 and "volta.structure" in metadata:
        structure = mutated({"root": json.loads(metadata["volta.structure"])}).get("root")
        compact = json.dumps(structure, separators=(",", ":"))
        metadata["volta.structure"] = compact if random.random() < 0.9 else odd_structure()
        return "another pytree, sealed", sealed(table, data)
    metadata["volta.format"] = random.choice(VERSIONS)
    return "another version", sealed(table, data)


def alarm(*_):
    raise TimeoutError("more than ten seconds")


def main():
    campaign = Campaign(60_000)
    random.seed(campaign.seed)
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    signal.signal(signal.SIGALRM, alarm)
    with folder() as place:
        os.chdir(place)
        path = place / "model"
        good = []
        for tree in TREES:
            io.save(path, tree, {"k": "v", "ü": "x"})
            good.append(path.read_bytes())
        entries = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
        good.append(built({**entries, "b": {"dtype": "I64", "shape": [1], "data_offsets": [8, 16]}}, bytes(16)))
        evil, modules = payloads(), set(sys.modules)
        for _ in range(campaign.tries):
            what, contents = one(good, evil)
            path.write_bytes(contents)
            for read in (io.load, io.load_metadata):
                signal.alarm(10)
                try:
                    read(path)
                    campaign.counts["loaded"] += 1
                    damaged = what in ("bits flipped", "cut", "longer", "spliced") and contents not in good
                    if read is io.load and damaged and b'"volta.' in contents:
                        campaign.found[f"{what}, and loaded"] += 1
                except VoltaError:
                    campaign.counts["refused by name"] += 1
                except Exception as error:
                    where = traceback.extract_tb(error.__traceback__)[-1]
                    campaign.found[f"{what}: {type(error).__name__}: {error!s:.80} ({where.name})"] += 1
                finally:
                    signal.alarm(0)
        if os.path.exists(CANARY) or Loud.made:
            campaign.found["code of a file has run"] += 1
        if set(sys.modules) != modules:
            campaign.found[f"imported: {sorted(set(sys.modules) - modules)}"] += 1
        os.chdir("/")
    campaign.counts["megabytes at most"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    campaign.finish()


if __name__ == "__main__":
    main()
