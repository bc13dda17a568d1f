"""What the functions of `cuda_functions` cost a GPU's schedulers: instructions of machine code an element, counted.

    python benchmarks/cuda_slots.py                        all, for compute capability 9.0
    python benchmarks/cuda_slots.py lgamma tan --json record.json

No GPU is needed, but ``ptxas`` and ``nvdisasm`` of NVIDIA's toolkit are, in the PATH. Counted is the path through the
kernel that takes the fewest instructions for each number it stores: ordinary numbers take it, rare ones leave it. A
multiprocessor has four schedulers, which issue an instruction for 32 lanes each cycle (CUDA C++ Programming Guide,
"Compute Capability 9.x"); its float64 units take half as many lanes, so such an instruction keeps a scheduler for two
cycles: two slots. ``least`` is what the slots of 1 GB take on an H200 (132 multiprocessors) at its highest clock, if
none were ever lost.
"""

import argparse
import heapq
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import volta
from benchmarks import cuda_functions, harness
from volta import offline

RECORD = Path(__file__).parent / "results" / "cuda_slots.json"
CAPABILITY, MULTIPROCESSORS, CLOCK = "9.0", 132, 1.98e9
LANES = 4 * 32
ELEMENTS = (1 << 30) // 4
FLOAT64 = ("DFMA", "DMUL", "DADD", "DSETP", "DMNMX")

Instruction = tuple[str, bool, str]
"""Its name, whether a predicate may skip it, and its operands."""


def machine_code(function: Callable[..., Any], operands: int) -> str:
    """The listing of the one kernel of a function of so many float32 arrays."""
    shape = volta.ShapeDtypeStruct((1 << 18, 1024), "float32")
    (done,) = offline.compile_functions([offline.Function(function, (shape,) * operands, "f")], [CAPABILITY])
    with tempfile.TemporaryDirectory() as folder:
        text, code = Path(folder) / "f.ptx", Path(folder) / "f.cubin"
        text.write_text(done.targets[0].ptx)
        run = {"check": True, "capture_output": True, "text": True}
        subprocess.run(["ptxas", f"-arch=sm_{CAPABILITY.replace('.', '')}", text, "-o", code], **run)
        return subprocess.run(["nvdisasm", "-c", code], **run).stdout


def blocks(listing: str) -> Iterator[tuple[list[str], list[Instruction]]]:
    """Runs of instructions that a jump may end and a label begin, with their labels."""
    labels, found = list[str](), list[Instruction]()
    for line in listing.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line.strip()):
            if found:
                yield labels, found
                labels, found = [], []
            labels.append(label.group(1))
        elif one := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\s*(.*?);", line):
            found.append((one.group(2), bool(one.group(1)), one.group(3)))
            if one.group(2).startswith(("BRA", "EXIT", "RET", "BRX")):
                yield labels, found
                labels, found = [], []
    if found:
        yield labels, found


def stored(part: Sequence[Instruction]) -> int:
    """How many float32 numbers a run of instructions stores."""
    widths = [name.split(".") for name, *_ in part if name.startswith("STG")]
    return sum(4 if "128" in width else 2 if "64" in width else 1 for width in widths)


def cheapest(listing: str) -> tuple[list[Instruction], int]:
    """The path to an end that takes the fewest instructions for each number it stores, and how many these are; no part
    of it twice."""
    parts = list(blocks(listing))
    at = {label: i for i, (labels, _) in enumerate(parts) for label in labels}
    elements = [stored(part) for _, part in parts]
    queue, seen, ends = [(len(parts[0][1]), (0,), elements[0])], set[tuple[int, int]](), []
    while queue:
        length, path, done = heapq.heappop(queue)
        here = path[-1]
        if (here, done) in seen:
            continue
        seen.add((here, done))
        name, may_skip, operands = parts[here][1][-1]
        if name.startswith("EXIT") and done:
            ends.append((length / done, path, done))
        after = [here + 1] if may_skip or not name.startswith(("BRA", "EXIT", "RET", "BRX")) else []
        if name.startswith("BRA") and (to := re.search(r"\.L_x_\d+", operands)):
            after.append(at[to.group(0)])
            after += [here + 1] if "P" in operands.split("`")[0] else []
        for i in after:
            if i < len(parts) and i not in path:
                heapq.heappush(queue, (length + len(parts[i][1]), (*path, i), done + elements[i]))
    _, path, done = min(ends)
    return [x for i in path for x in parts[i][1]], done


def counted(name: str, function: Callable[..., Any], operands: int) -> dict[str, Any]:
    """A row: instructions and slots an element, and the seconds of 1 GB."""
    path, elements = cheapest(machine_code(function, operands))
    double = sum(x.split(".")[0] in FLOAT64 for x, *_ in path) / elements
    instructions = len(path) / elements
    slots = instructions + double
    return {
        "name": name, "instructions": round(instructions, 1), "float64": round(double, 1), "slots": round(slots, 1),
        "least": slots * ELEMENTS / (MULTIPROCESSORS * LANES * CLOCK),
    }  # fmt: skip


def show(rows: Sequence[dict[str, Any]]) -> str:
    header = ["an element", "instructions", "of float64", "slots", "least of 1 GB"]
    return harness.table(
        header,
        [
            [row["name"], *(f"{row[key]:.1f}" for key in ("instructions", "float64", "slots")),
             harness.seconds_text(row["least"])]
            for row in rows
        ],
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="functions of cuda_functions; all where none is named")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if missing := [tool for tool in ("ptxas", "nvdisasm") if shutil.which(tool) is None]:
        sys.exit(f"cuda_slots.py: {' and '.join(missing)} of NVIDIA's toolkit must be in the PATH")
    rows = [
        counted(name, ours, len(kinds))
        for name, (ours, _, kinds) in cuda_functions.functions().items()
        if not options.names or name in options.names
    ]
    print(show(rows))
    if options.json:
        harness.save(options.json, {"machine": harness.machine(1), "capability": CAPABILITY, "rows": rows})


if __name__ == "__main__":
    main()
