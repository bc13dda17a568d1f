"""Programs that several workers run together: cut for the ranks, compiled for those here, and run round by round.

Each segment of a rank goes through the gateway like any other program, on the device of its worker. Between two
segments bytes move: a round of exchanges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta.core.avals import ShapedArray
from volta.core.errors import ShardingError, UnsupportedOperationError
from volta.core.extended import is_key
from volta.core.ir import ClosedJaxpr, Eqn, Jaxpr, Var, subjaxprs
from volta.core.recent import Recent
from volta.core.sharding import Layout, Mesh, NamedSharding, box_of, sharding_of
from volta.core.source import at_user_line
from volta.ops.callbacks import calls_python
from volta.runtime import devices, gateway, workers
from volta.runtime.array import ConcreteArray, as_array
from volta.runtime.context import current_context, use_backend
from volta.runtime.device_round import DeviceRound
from volta.runtime.executable import Executable
from volta.runtime.rounds import Held, HostRound, Wait, pieces_of, read
from volta.runtime.sharded import ShardedArray, common_mesh, local_ranks, part_of
from volta.runtime.spread_plan import SpreadPlan
from volta.xla_like.keys import without_keys
from volta.xla_like.partition.local import LocalProgram
from volta.xla_like.partition.partition import CONSTRAINT, partition
from volta.xla_like.passes import optimize

Shardings = Sequence[NamedSharding | None]


def constraints(program: ClosedJaxpr) -> list[NamedSharding]:
    """The shardings that a program, or one nested in it, asks for."""
    found = []
    for eqn in program.eqns:
        if eqn.primitive.name == CONSTRAINT:
            found.append(eqn.params["sharding"])
        for sub in subjaxprs(eqn.params):
            found += constraints(sub)
    return found


def mesh_of(program: ClosedJaxpr, values: Sequence[Any], shardings: Sequence[NamedSharding | None], what: str) -> Mesh:
    """The one mesh of a call: that of arguments, constants, constraints and wishes.

    Raises:
        ShardingError: there are two.
    """
    found = common_mesh([*values, *program.consts], what)
    for s in (*shardings, *constraints(program)):
        if s is not None and found is not None and s.mesh != found:
            text = f"{what}: one program runs on one mesh, and here are {found} and {s.mesh}"
            raise ShardingError(at_user_line(f"{text}; pipelines are several jitted functions"))
        found = s.mesh if s is not None else found
    assert found is not None, "a program of several workers has a mesh"
    return found


def is_spread(program: ClosedJaxpr, values: Sequence[Any]) -> bool:
    """Whether a program is one of several workers: by its arguments, its constants or what it asks for."""
    return any(isinstance(x, ShardedArray) for x in (*values, *program.consts)) or bool(constraints(program))


def compile(  # noqa: A001 - as the gateway's
    program: ClosedJaxpr, values: Sequence[Any], *, wishes: Shardings = (), outputs: Shardings | None = None,
    donated: Sequence[int] = (), name: str = "main",
) -> SpreadExecutable:  # fmt: skip
    """Compile a program for arguments that lie as these do, to be cut as ``wishes`` and ``outputs`` say where they do.

    Raises:
        ShardingError: for two meshes, and for what cannot be cut so.
    """
    outputs = [None] * len(program.out_avals) if outputs is None else outputs
    wishes = [None] * len(values) if not wishes else wishes
    mesh = mesh_of(program, values, [*wishes, *outputs], f"`{name}`")
    inputs = [x.sharding if isinstance(x, ShardedArray) else w for x, w in zip(values, wishes, strict=True)]
    others = [w if isinstance(x, ShardedArray) else None for x, w in zip(values, wishes, strict=True)]
    return SpreadExecutable(program, mesh, inputs, outputs, wishes=others, donated=donated, name=name)


def put(x: ShardedArray, sharding: NamedSharding) -> ShardedArray:
    """An array as it lies on its mesh, lying in another way on the same mesh."""
    if x.sharding == sharding:
        return x
    var = Var(x.aval)
    program = ClosedJaxpr(Jaxpr((), (var,), (), (var,)), ())
    return run(program, [x], "device_put", ("device_put", x.aval, sharding), (sharding,))[0]


_executables: Recent[Any, SpreadExecutable] = Recent(512)


def run(
    program: ClosedJaxpr, values: Sequence[Any], name: str, key: Any, outputs: Shardings | None = None
) -> list[ShardedArray]:
    """Run a program: it is compiled once for each ``key``, which tells programs apart, and way that values lie."""
    placed = tuple([x.sharding if isinstance(x, ShardedArray) else None for x in values])
    key = (key, placed, current_context(), workers.engine())
    found = _executables.find(key)
    if found is None:
        found = _executables.keep(key, compile(program, values, outputs=outputs, name=name))
    return found(values)


def _is_constraint(eqn: Eqn) -> bool:
    return eqn.primitive.name == CONSTRAINT


class SpreadExecutable:
    """A program compiled for the ranks of a mesh that are in this process."""

    def __init__(
        self, program: ClosedJaxpr, mesh: Mesh, inputs: Shardings, outputs: Shardings, *, wishes: Shardings = (),
        donated: Sequence[int] = (), name: str = "main",
    ):  # fmt: skip
        """``inputs``: how arguments lie (None: every process has them). ``wishes`` and ``outputs``: as they should."""
        self.mesh, self.name = mesh, name
        self.donated = tuple(donated)
        _refuse_calls(program, name)
        self._out_avals, self._of_keys = program.out_avals, any(is_key(a.dtype) for a in program.in_avals)
        program = without_keys(program)
        program = optimize(program, only_inline=not current_context().options.passes, kept=_is_constraint)
        self.consts = program.consts
        placed = [*inputs, *(x.sharding if isinstance(x, ShardedArray) else None for x in program.consts)]
        avals = [*program.in_avals, *(v.aval for v in program.jaxpr.constvars)]
        layouts = _layouts("argument", name, avals, placed)
        wanted = _layouts("result", name, program.out_avals, outputs)
        wished = _layouts("argument", name, program.in_avals[: len(wishes)], wishes)
        self.partition = partition(program, mesh, layouts, wanted, name, wished)
        self._ranks = local_ranks(mesh)
        numbers = [workers.names().index(device) for device in mesh.ranks]
        workers.agree(self.partition.as_text(), f"the program `{name}`", numbers)
        self._devices = {r: workers.engine().device(numbers[r]) for r in self._ranks}
        self._rounds = self._planned(numbers)
        # Ranks of one process may hold one array in common, so they keep their arguments.
        given = self.donated if len(self._ranks) == 1 else ()
        self._segments = {r: self._compiled(self.partition.locals[r], given) for r in self._ranks}
        plans = {r: [None if e is None else e.plan for e in made] for r, made in self._segments.items()}
        self.plan = SpreadPlan(self.partition, plans, current_context().level, given)
        self._out_shardings = [
            sharding_of(mesh, layout, a.shape) if s is None else s
            for layout, a, s in zip(self.partition.out_layouts, self.partition.out_avals, outputs, strict=True)
        ]

    def _planned(self, numbers: Sequence[int]) -> list[HostRound | DeviceRound]:
        """The rounds, between the memories of the workers with these numbers, by rank."""
        kind = DeviceRound if workers.engine().kind == "cuda" else HostRound
        found: list[HostRound | DeviceRound] = []
        for i, exchanges in enumerate(self.partition.exchanges):
            met = {r: self.partition.locals[r].rounds[i] for r in self._ranks}
            found.append(kind(met, pieces_of(exchanges, frozenset(met)), numbers))
        return found

    def _compiled(self, local: LocalProgram, given: Sequence[int]) -> list[Any]:
        kind, number = self._devices[local.rank].split(":")
        with use_backend(kind, int(number)):
            return [
                gateway.compile(segment, donated=over, name=f"{self.name}.{i}") if segment.eqns else None
                for i, (segment, over) in enumerate(zip(local.segments, local.donated(given), strict=True))
            ]

    def __getattr__(self, name: str) -> Any:
        """What an executable of one plan knows (``source``, ``kernel``, …) is not there.

        Raises:
            UnsupportedOperationError: it is asked for.
        """
        if name.startswith("_") or not hasattr(Executable, name):
            raise AttributeError(name)
        raise self._of_one_plan(name)

    def _of_one_plan(self, name: str) -> UnsupportedOperationError:
        return UnsupportedOperationError(
            at_user_line(
                f"{name}: `{self.name}` is compiled for several workers, with plans for each of them: their text is "
                f"that of its plan, and {name} is there of what is compiled for arguments on one device"
            )
        )

    def as_text(self, dialect: str | None = None) -> str:
        """The text of its plan; there is no other."""
        if dialect is not None:
            raise self._of_one_plan(f"as_text({dialect!r})")
        return self.plan.as_text()

    @property
    def peak_live_bytes(self) -> int:
        """Bytes that are live at once on one of this process's workers, as planned."""
        return self.plan.peak_live_bytes

    # -- running -------------------------------------------------------------------------------------------------------

    def __call__(self, values: Sequence[Any]) -> list[ShardedArray]:
        """Run, with arguments that lie as those that the program was compiled for.

        Raises:
            TypeError: one lies in another way. Nothing has happened.
        """
        given = values
        if self._of_keys:
            values = [x.stored() if isinstance(x, (ConcreteArray, ShardedArray)) else x for x in values]
        for x, layout in zip(values, self.partition.in_layouts, strict=False):
            if isinstance(x, ShardedArray) and (x.layout != layout or x.sharding.mesh != self.mesh):
                raise TypeError(f"`{self.name}` was compiled for arguments that lie in another way")
        held = {r: self._arguments(values, r) for r in self._ranks}
        try:
            self._run(held)
        except BaseException:  # what was overwritten by then is gone
            self._delete([x for x in self._donations(given) if any(part.is_deleted() for part in _parts(x))])
            raise
        results = []
        for k, sharding in enumerate(self._out_shardings):
            aval = self.partition.out_avals[k]
            parts = {r: self._placed(r, read(held[r], self.partition.locals[r].outputs[k])) for r in self._ranks}
            out = ShardedArray(aval, sharding, parts, self.partition.out_layouts[k])
            dtype = self._out_avals[k].dtype
            results.append(out.keyed(dtype) if is_key(dtype) else out)
        self._delete(self._donations(given))
        return results

    def _run(self, held: dict[int, Held]) -> None:
        wait: Wait | None = None
        for i in range(len(self._rounds) + 1):
            for r in self._ranks:
                self._segment(r, i, held[r])
            if wait is not None:  # on GPUs the next segment is launched by then
                wait()
            wait = self._rounds[i].run(held, f"round {i} of `{self.name}`") if i < len(self._rounds) else None
            for r in self._ranks:
                for var in self.partition.locals[r].drops[i]:
                    del held[r][var]

    def _donations(self, values: Sequence[Any]) -> list[ShardedArray | ConcreteArray]:
        return [x for d in self.donated if isinstance(x := values[d], (ShardedArray, ConcreteArray))]

    @staticmethod
    def _delete(arrays: Sequence[ShardedArray | ConcreteArray]) -> None:
        for x in arrays:
            x.delete()

    def _arguments(self, values: Sequence[Any], rank: int) -> Held:
        held: Held = {}
        layouts = zip(
            self.partition.locals[rank].inputs, (*values, *self.consts), self.partition.in_layouts, strict=True
        )
        for var, x, layout in layouts:
            assert isinstance(var, Var)
            if isinstance(x, ShardedArray):
                held[var] = x.parts()[rank]
            else:
                x = as_array(x)
                held[var] = self._placed(rank, part_of(x, box_of(self.mesh, layout, x.aval.shape, rank)))
        return held

    def _placed(self, rank: int, x: ConcreteArray) -> ConcreteArray:
        """A rank's value on its device."""
        return devices.put(x, self._devices[rank])

    def _segment(self, rank: int, i: int, held: Held) -> None:
        run, jaxpr = self._segments[rank][i], self.partition.locals[rank].segments[i].jaxpr
        if run is not None:
            outs = run([held[v] for v in jaxpr.invars])
            held.update(zip(jaxpr.outvars, outs, strict=True))  # type: ignore[arg-type]


def _parts(x: ShardedArray | ConcreteArray) -> Sequence[ConcreteArray]:
    return [x] if isinstance(x, ConcreteArray) else [*x.parts().values()]


def _refuse_calls(program: ClosedJaxpr, name: str) -> None:
    for eqn in program.eqns:
        if calls_python(eqn):
            text = f"`{name}` runs on several workers, and calls a Python function"
            where = "" if eqn.source is None else f" (at {eqn.source})"
            way = "each of them would call it. Return what it needs, and call it outside of the jitted function"
            raise UnsupportedOperationError(at_user_line(f"{text}{where}: {way}"))


def _layouts(
    what: str, name: str, avals: Sequence[ShapedArray], shardings: Sequence[NamedSharding | None]
) -> list[Layout | None]:
    return [
        None if s is None else s.layout(a.shape, f"{what} {i} of `{name}`")
        for i, (a, s) in enumerate(zip(avals, shardings, strict=True))
    ]
