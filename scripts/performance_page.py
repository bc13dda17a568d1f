"""docs/performance.md, from the records in benchmarks/results: what each printed, and where a peer is faster."""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import beside_llama
import bits
import cpu
import distributed
import gpu
import harness
import numerics
import planning
import ratios
from attrs import frozen

Record = dict[str, Any]
RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
LIMITS = RESULTS.parent / "limits.json"
OURS = ("serial", "apart", "copy", "one GPU, half the batch")
"""Contenders that are no peers: Volta's own programs another way, and a copy, which is the ideal."""


@frozen
class Table:
    """A benchmark's record as a section of the page."""

    record: str
    title: str
    command: str
    show: Callable[[Record], str]
    note: str = ""


def _rows(show: Callable[[Any], str]) -> Callable[[Record], str]:
    return lambda record: show(record["rows"])


TABLES = (
    Table("cpu", "CPU", "python benchmarks/cpu.py", _rows(cpu.show)),
    Table("cpu_threads", "CPU: many threads", "python benchmarks/cpu.py --only threads", _rows(cpu.show)),
    Table("numerics", "CPU: numerics", "python benchmarks/numerics.py",
          _rows(numerics.show), "Linear algebra, Fourier transforms, segments and convolutions."),
    Table("beside_llama", "CPU: a quantised decoder", "python benchmarks/beside_llama.py", beside_llama.show,
          "Tokens a second, beside llama.cpp on the same file."),
    Table("planning", "Planning to a budget", "python benchmarks/planning.py", _rows(planning.show)),
    Table("gpu", "GPU", "python benchmarks/gpu.py", _rows(gpu.show),
          "JAX computes float32 products at precision `highest`; `cublas` is PyTorch without tf32."),
    Table("numerics_gpu", "GPU: numerics",
          "python benchmarks/numerics.py --device cuda", _rows(numerics.show),
          "Linear algebra, Fourier transforms, segments and convolutions."),
    Table("distributed", "Several GPUs", "python benchmarks/distributed.py", _rows(distributed.show)),
)  # fmt: skip


def machine(record: Record) -> str:
    m = record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    gpus = f"{m.get('gpu') or record['gpu']}; " if "gpu" in m or "gpu" in record else ""
    where = f"{m['cpu']} ({' '.join(m['vectors'])}), {m['threads'] or m['cores']} threads, {m['system']}"
    return f"{gpus}{where}, Python {m['python']}; {versions}; commit {m['commit']}."


def block(text: str) -> str:
    return f"```text\n{text}\n```\n"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows)) + "\n"


def _read(name: str) -> Record | None:
    path = RESULTS / f"{name}.json"
    found: Record | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return found


def _measured(table: Table, record: Record) -> Iterator[str]:
    """The printed table, by groups; those of other commits than the record's under the commit's name."""
    rows, its_own = record.get("rows", []), record["machine"]["commit"]
    for (_, commit), those in itertools.groupby(
        rows, lambda row: (row.get("group"), str(row.get("commit", its_own)).removesuffix("-dirty"))
    ):
        if commit != its_own.removesuffix("-dirty"):
            yield f"Commit {commit}:\n"
        yield block(table.show({**record, "rows": list(those)}))
    if not rows:
        yield block(table.show(record))


def best_peers(record: Record) -> dict[str, tuple[str, float]]:
    """The fastest peer of each row that has one, and Volta's time by its."""
    best: dict[str, tuple[str, float]] = {}
    for name, (ratio, _) in ratios.ratios({"rows": [], **record}).items():
        row, _, peer = name.rpartition(", by ")
        if peer not in OURS and ratio >= best.get(row, ("", 0.0))[1]:
            best[row] = (peer, ratio)
    return best


def slower(best: dict[str, tuple[str, float]]) -> list[tuple[str, str, float]]:
    """Rows whose best peer took less time than Volta, to two digits; most first."""
    rows = [(row, peer, ratio) for row, (peer, ratio) in best.items() if round(ratio, 2) > 1.0]
    return sorted(rows, key=lambda row: -row[2])


def reasons() -> dict[str, str]:
    """What bounds a row, by how its name begins: as written down, and what machine code costs a GPU's schedulers."""
    slots = _read("cuda_slots") or {"rows": []}
    counted = {
        f"functions: 1 GB: {row['name']}": f"{row['slots']} issue slots an element: at least"
        f" {harness.seconds_text(row['least'])} (`benchmarks/cuda_slots.py`)"
        for row in slots["rows"]
    }
    return json.loads(LIMITS.read_text(encoding="utf-8")) | counted


def _summary() -> Iterator[str]:
    """Where a peer is faster, with the counted reason where one is on record."""
    limits = reasons()
    lines, measured = [], 0
    for table in TABLES:
        if record := _read(table.record):
            best = best_peers(record)
            measured += len(best)
            for row, peer, ratio in slower(best):
                why = next((text for start, text in limits.items() if row == start or row.startswith(f"{start} ")), "")
                lines.append([table.title, row, f"{ratio:.2f}", peer, why])
    yield "## Where a peer is faster\n"
    yield f"Of {measured} rows with a peer, in {len(lines)} the best peer takes less time than Volta, by medians.\n"
    yield markdown(["table", "row", "volta / peer", "peer", "what bounds it"], lines)


def page(generated: str) -> str:
    parts = [
        generated,
        "# Performance\n",
        "Measured; the aims stand in [performance objectives](governance/performance_objectives.md). Contenders take\n"
        "turns in one run on the same threads. Read the ratios: below 1.00 Volta took less. Where a table names\n"
        "another commit than its section, it was measured then, on such a machine.\n",
        *_summary(),
    ]
    for table in TABLES:
        if record := _read(table.record):
            parts += [
                f"## {table.title}: `{table.command}`\n",
                *(f"{note}\n" for note in (table.note, record.get("note")) if note),
            ]
            parts += [f"{machine(record)}\n", *_measured(table, record)]
    if record := _read("verify_gpu"):
        parts += [
            "## Bits of CPU and GPU: `volta verify`\n",
            f"{record['device']}; contract {record['contract']}; effort: {record['effort']};"
            f" commit {record['commit']}.\n",
            markdown(
                ["suite", "checks", "elements", "bits that differ", "failed", "seconds"],
                [
                    [name, *(f"{s[key]:,}" for key in ("checks", "elements", "differ")), str(len(s["failed"])),
                     f"{s['seconds']:.1f}"]
                    for name, s in record["suites"].items()
                ],
            ),
        ]  # fmt: skip
    if record := _read("bits"):
        parts += [
            "## Bits that change: `python benchmarks/bits.py`\n",
            "The share of output elements whose bits differ between two ways of running one program on one data set.\n",
            f"{machine(record)}\n",
            block(bits.show(record["results"])),
        ]
    return "\n".join(parts)
