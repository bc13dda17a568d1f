"""How long planning takes, by the equations of a program: a training step of a transformer, without a budget and with
ones that take half and a third of its temporaries.

    python benchmarks/planning.py --layers 6 24 75

Seconds are processor time, as planning is one thread. ``choosing`` is the part of a budget that is not planning anew.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import harness

import volta
from volta.numba_cpu.schedule import Schedule
from volta.testing.transformer import Transformer
from volta.xla_like import compile as compiling

RECORD = Path(__file__).parent / "results" / "planning.json"
SHARES = (1.0, 0.5, 0.3)


def traced(layers: int) -> Any:
    """The program of a loss and its gradients; nothing runs."""
    model = Transformer(layers=layers)
    params = volta.eval_shape(model.init, volta.random.key(0))
    batch = volta.eval_shape(model.draw, volta.random.key(1))
    return volta.jit(volta.value_and_grad(model.loss)).trace(params, *batch).jaxpr


def timed(f: Callable[..., Any], times: list[float]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        begin = time.process_time()
        out = f(*args, **kwargs)
        times.append(time.process_time() - begin)
        return out

    return run


def measured(layers: Sequence[int]) -> Iterator[dict[str, Any]]:
    schedule = Schedule(vector_bits=512)
    choose = compiling.rematerialize
    for n in layers:
        program, all_of_it = traced(n), 0
        for share in SHARES:
            limit = int(all_of_it * share)
            choosing: list[float] = []
            whole: list[float] = []
            compiling.rematerialize = timed(choose, choosing)
            plan, _ = timed(compiling.build_plan, whole)(
                program,
                scheduler=schedule,
                excess=None if share == 1 else lambda plan, limit=limit: plan.arena_bytes - limit,
            )
            compiling.rematerialize = choose
            all_of_it = all_of_it or plan.arena_bytes
            again, work = plan.computed_again
            yield {
                "equations": len(program.eqns), "share": share, "seconds": round(whole[0], 2), "rounds": len(choosing),
                "choosing": round(sum(choosing), 2), "reached": round(plan.arena_bytes / all_of_it, 3), "again": again,
                "more work": round(work, 3),
            }  # fmt: skip


def show(rows: Sequence[dict[str, Any]]) -> str:
    return harness.table(list(rows[0]), [[str(x) for x in row.values()] for row in rows])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[6, 24, 75])
    parser.add_argument("--save", action="store_true", help="keep the record in benchmarks/results")
    args = parser.parse_args()
    found = list(measured(args.layers))
    print(show(found))
    if args.save:
        harness.save(RECORD, {"machine": harness.machine(1), "rows": found})
