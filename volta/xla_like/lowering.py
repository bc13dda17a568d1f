"""From a flat program to nodes over values: movement operations become views, the rest becomes work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from volta.core.avals import ShapedArray
from volta.core.ir import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from volta.core.source import Source
from volta.ops.primitive import Family
from volta.xla_like import moving
from volta.xla_like.control import lower_cond, lower_scan, lower_while
from volta.xla_like.kernels import fill_value
from volta.xla_like.nodes import Const, Iota, Lowered, Node, Operand, Ref, Val, is_positions
from volta.xla_like.offload import HOST
from volta.xla_like.passes import inline_calls
from volta.xla_like.scattering import Bare, lower_scatter
from volta.xla_like.views import Ints, View, prod

Prepare = Callable[[ClosedJaxpr], ClosedJaxpr]
"""Makes a program flat, and as the passes leave it."""


def _view_of(operand: Operand, view: View) -> Operand:
    if isinstance(operand, Ref):  # most are
        return Ref(operand.val, view, operand.after)
    return attrs.evolve(operand, view=view)


class Lowering:
    """Builds the nodes of one flat (call-free) program."""

    def __init__(self, prepare: Prepare = inline_calls, bare: Bare = lambda op: False) -> None:
        self.nodes: list[Node] = []
        self._prepare = prepare
        self.bare = bare
        self.env: dict[Var, Operand] = {}
        self._source: Source | None = None
        self._written: dict[object, Ref] = {}
        self._looped: set[Var] = set()

    # -- values --------------------------------------------------------------------------------------------------------

    def read(self, atom: Atom) -> Operand:
        if isinstance(atom, Literal):
            return Const(atom.value, atom.aval.dtype, View((), ()))
        return self.env[atom]

    def bind_input(self, var: Var, label: str) -> Val:
        val = Val(var.aval.shape, var.aval.dtype, None, label)
        self.env[var] = Ref(val, View.of(val.shape))
        return val

    def add(
        self, kind: str, name: str, params: dict[str, Any], operands: Sequence[Operand], shape: Ints,
        outs: Sequence[ShapedArray],
    ) -> tuple[Val, ...]:  # fmt: skip
        node = Node(len(self.nodes), kind, name, params, tuple(operands), shape, (), self._source)
        node.outputs = tuple(Val(a.shape, a.dtype, node) for a in outs)
        self.nodes.append(node)
        return node.outputs

    def whole(self, val: Val) -> Ref:
        return Ref(val, View.of(val.shape))

    def copied(self, operand: Operand) -> Ref:
        """The operand's elements in a Val of their own, contiguous in the operand's order."""
        shape = operand.view.shape
        (val,) = self.add("elem", "copy", {}, [operand], shape, [ShapedArray(shape, operand.dtype)])
        return self.whole(val)

    def stored(self, operand: Operand) -> Ref:
        """The operand as a view of memory (constants and iotas are written out)."""
        return operand if isinstance(operand, Ref) else self.copied(operand)

    def contiguous(self, operand: Operand) -> Ref:
        """The operand as exactly the memory of one Val."""
        if isinstance(operand, Ref) and operand.is_whole:
            return operand
        return self.copied(operand)

    def moved(self, operand: Operand, after: tuple[Val, ...], memory: str) -> Ref:
        """The operand's elements in the memory of the host, or back in the device's, once others are computed."""
        source = self.contiguous(operand)
        shape = operand.view.shape
        (val,) = self.add(
            "move", "move", {"to": memory}, [attrs.evolve(source, after=after)], shape,
            [ShapedArray(shape, source.dtype)],
        )  # fmt: skip
        val.on_host = memory == HOST
        return self.whole(val)

    # -- equations -----------------------------------------------------------------------------------------------------

    def lower(self, eqn: Eqn) -> None:
        self._source = eqn.source
        operands = [self.read(a) for a in eqn.inputs]
        avals = [v.aval for v in eqn.outputs]
        handler = getattr(self, f"_lower_{eqn.primitive.name}", None)
        if handler is not None:
            results = handler(eqn, operands, avals)
        elif eqn.primitive.family is Family.ELEMENTWISE:
            results = self._elementwise(eqn, operands, avals)
        elif eqn.primitive.family is Family.REDUCTION:
            results = self._reduction(eqn, operands, avals)
        else:  # an opaque kernel over whole arrays
            refs = [self.contiguous(x) for x in operands]
            results = self.add(eqn.primitive.name, eqn.primitive.name, eqn.params, refs, avals[0].shape, avals)
        results = results if isinstance(results, (list, tuple)) else (results,)
        for var, result in zip(eqn.outputs, results, strict=True):
            self.env[var] = self.whole(result) if isinstance(result, Val) else result

    def inline(self, program: ClosedJaxpr, operands: Sequence[Operand]) -> list[Operand]:
        """A program without constants, in the place of an equation that carries it."""
        jaxpr, source = self._prepare(program).jaxpr, self._source
        self.look(jaxpr)
        self.env.update(zip(jaxpr.invars, operands, strict=True))
        for eqn in jaxpr.eqns:
            self.lower(eqn)
        self._source = source
        return [self.read(a) for a in jaxpr.outvars]

    def look(self, jaxpr: Jaxpr) -> None:
        """Note what loops will read of a program that is lowered next."""
        self._looped |= moving.read_by_loops(jaxpr)

    _lower_while = lower_while
    _lower_scan = lower_scan
    _lower_cond = lower_cond
    _lower_scatter = lower_scatter

    def _elementwise(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> Any:
        shape = avals[0].shape
        views = [
            x if x.view.shape == shape else _view_of(x, x.view.broadcast(shape, ())) for x in operands
        ]  # only scalars differ in shape
        return self.add("elem", eqn.primitive.name, eqn.params, views, shape, avals)

    def _reduction(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> Any:
        (x,) = operands
        axes = eqn.params["axes"] if "axes" in eqn.params else (eqn.params["axis"],)
        kept = tuple(d for d in range(len(x.view.shape)) if d not in axes)
        meaning = eqn.primitive.reduction
        is_arg = meaning.combine.startswith("arg")
        if all(x.view.shape[a] == 1 for a in axes) and not is_arg:
            return self.reshaped(x, avals[0].shape)  # a sum of one element is that element
        if prod(x.view.shape) == 0 or all(x.view.shape[a] == 1 for a in axes):
            return Const(meaning.of_nothing(x.dtype), avals[0].dtype, View((), ()).broadcast(avals[0].shape, ()))
        if axes != tuple(range(axes[0], axes[0] + len(axes))):  # scattered axes: bring them to the end
            moved = _view_of(x, x.view.transpose(kept + tuple(axes)))
            x, axes = self.copied(moved), tuple(range(len(kept), len(moved.view.shape)))
        if _merged(x.view, axes[0], axes[-1] + 1) is None:  # no single stride walks the reduced elements in order
            x = self.copied(x)
        params = {**eqn.params, "axes": tuple(axes)}
        return self.add("reduce", eqn.primitive.name, params, [x], x.view.shape, avals)

    def reshaped(self, x: Operand, shape: Ints) -> Operand:
        view = x.view.reshape(shape)
        if view is None:
            x = self.copied(x)
            view = x.view.reshape(shape)
            assert view is not None
        return _view_of(x, view)

    def _lower_reshape(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> Operand:
        return self.reshaped(operands[0], avals[0].shape)

    def _lower_transpose(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> Operand:
        return _view_of(operands[0], operands[0].view.transpose(eqn.params["permutation"]))

    def _lower_broadcast_in_dim(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> Operand:
        view = operands[0].view.broadcast(eqn.params["shape"], eqn.params["broadcast_dimensions"])
        return _view_of(operands[0], view)

    def _copies(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> Any:
        """Loops that copy operands into parts of the result: they read any view, so no memory is copied before."""
        operands = [self.copied(x) if isinstance(x, Iota) else x for x in operands]
        return self.add(eqn.primitive.name, eqn.primitive.name, eqn.params, operands, avals[0].shape, avals)

    def _lower_concatenate(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> Any:
        found = moving.concatenated(self, eqn, operands, avals[0].shape) if eqn.outputs[0] in self._looped else None
        return self._copies(eqn, operands, avals) if found is None else found

    def _lower_pad(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> Any:
        x, value = operands
        found = moving.padded(self, eqn, x, value, avals[0].shape) if eqn.outputs[0] in self._looped else None
        return self._copies(eqn, operands, avals) if found is None else found

    def _lower_slice(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> Operand:
        p = eqn.params
        return _view_of(operands[0], operands[0].view.slice(p["start_indices"], p["limit_indices"], p["strides"]))

    def _lower_split(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> list[Operand]:
        (x,), axis, out, start = operands, eqn.params["axis"], [], 0
        for size in eqn.params["sizes"]:
            low = tuple(start if d == axis else 0 for d in range(len(x.view.shape)))
            high = tuple(start + size if d == axis else n for d, n in enumerate(x.view.shape))
            out.append(_view_of(x, x.view.slice(low, high, None)))
            start += size
        return out

    def _lower_rev(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> Operand:
        return _view_of(operands[0], operands[0].view.rev(eqn.params["dimensions"]))

    def _lower_iota(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> Operand:
        shape, axis = avals[0].shape, eqn.params["dimension"]
        return Iota(avals[0].dtype, View(shape, tuple(int(d == axis) for d in range(len(shape)))))

    def _lower_optimization_barrier(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> list[Operand]:
        after = tuple(x.val for x in operands if isinstance(x, Ref) and x.val.producer is not None)
        if "memory" in eqn.params:
            return [self.moved(operands[0], after[1:], eqn.params["memory"]), *operands[1:]]
        return [attrs.evolve(x, after=after) if isinstance(x, Ref) else x for x in operands]

    # -- indexing ------------------------------------------------------------------------------------------------------

    def _lower_gather(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> Any:
        table, indices = self.stored(operands[0]), operands[1:]
        batch, axes = eqn.params["batch_dims"], eqn.params["axes"]
        shape, index_rank = avals[0].shape, len(indices[0].view.shape)
        if prod(table.view.shape) == 0:  # every index is out of range
            return Const(fill_value(table.dtype, eqn.params["mode"]), table.dtype, View((), ()).broadcast(shape, ()))
        strides = [table.view.strides[d] for d in range(batch)] + [0] * (index_rank - batch)
        strides += [table.view.strides[d] for d in range(batch, len(table.view.shape)) if d not in axes]
        terms = tuple((table.view.strides[a], table.view.shape[a] - 1) for a in axes)
        fill = "" if eqn.params["mode"] == "clip" else eqn.params["mode"]
        return self.gathered(table, tuple(strides), indices, terms, fill, shape)

    def _lower_dynamic_slice(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> Any:
        table, sizes = self.stored(operands[0]), eqn.params["slice_sizes"]
        picked = [d for d, (n, k) in enumerate(zip(table.view.shape, sizes, strict=True)) if n != k]
        terms = tuple((table.view.strides[d], table.view.shape[d] - sizes[d]) for d in picked)
        starts = [operands[1 + d] for d in picked]
        return self.gathered(table, table.view.strides, starts, terms, "", avals[0].shape)

    def _lower_dynamic_update_slice(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> Any:
        """Where the update fills an axis, its start says nothing; a known start is a distance."""
        x, update, *starts = operands
        if eqn.outputs[0] in self._looped and (found := moving.updated(self, x, update, starts)) is not None:
            return found
        known = moving.known_starts(x.view.shape, update.view.shape, starts)
        moves = (d for d, (n, k) in enumerate(zip(x.view.shape, update.view.shape, strict=True)) if n != k)
        places = tuple(d for d in moves if d not in known)
        read = [
            x if isinstance(x, Const) else self.contiguous(x),
            update if isinstance(update, Const) else self.stored(update),
        ]
        read += [self.contiguous(starts[d]) for d in places]
        params = {"moving": places, "known": tuple(known.items())}
        return self.add(eqn.primitive.name, eqn.primitive.name, params, read, avals[0].shape, avals)

    def gathered(
        self, table: Ref, strides: Ints, indices: Sequence[Operand], terms: tuple[tuple[int, int], ...], fill: str,
        shape: Ints, other: Operand | None = None,
    ) -> Ref:  # fmt: skip
        """What a node of kind 'gather' reads; ``strides`` are those over the result's ``shape``."""
        index_rank = len(indices[0].view.shape) if indices else 0
        read = [_view_of(i, i.view.broadcast(shape, tuple(range(index_rank)))) for i in indices]
        base = attrs.evolve(table, view=View(shape, strides, table.view.offset))
        params, read = {"terms": terms, "fill": fill}, [*read, *([] if other is None else [other])]
        (val,) = self.add("gather", "gather", params, [base, *read], shape, [ShapedArray(shape, table.dtype)])
        return self.whole(val)

    def _along_last(
        self, eqn: Eqn, operands: list[Operand], axis: int, avals: list[ShapedArray], **more: Any
    ) -> list[Operand]:
        """An opaque kernel that works along rows: the axis is brought to the end and back."""
        rank = len(operands[0].view.shape)
        order = tuple(d for d in range(rank) if d != axis) + (axis,)
        refs = [self.contiguous(_view_of(x, x.view.transpose(order))) for x in operands]
        shape = refs[0].view.shape
        outs = self.add(
            eqn.primitive.name, eqn.primitive.name, {**eqn.params, **more}, refs, shape,
            [ShapedArray(shape, a.dtype) for a in avals],
        )  # fmt: skip
        back = tuple(order.index(d) for d in range(rank))
        return [Ref(v, View.of(shape).transpose(back)) for v in outs]

    def _lower_sort(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> list[Operand]:
        axis, keys = eqn.params["dimension"], eqn.params["num_keys"]
        known = (k for k, x in enumerate(operands) if k >= keys and is_positions(x, axis))
        positions = next(known, None)  # that the sort knows without reading them
        read = [x for k, x in enumerate(operands) if k != positions]
        return self._along_last(eqn, read, axis, avals, positions=positions)

    def _scan(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> list[Operand]:
        return self._along_last(eqn, operands, eqn.params["axis"], avals)

    _lower_cumsum = _lower_cumprod = _lower_cummax = _lower_cummin = _scan

    # -- contraction ---------------------------------------------------------------------------------------------------

    def _lower_dot_general(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> Any:
        refs = [self.stored(x) for x in operands]
        (lc, rc), (lb, rb) = eqn.params["dimension_numbers"]
        if any(refs[0].view.shape[d] == 0 for d in lc):  # sums of nothing
            return Const(0, avals[0].dtype, View((), ()).broadcast(avals[0].shape, ()))
        sides = []
        for ref, contract, batch in ((refs[0], lc, lb), (refs[1], rc, rb)):
            rank = len(ref.view.shape)
            free = tuple(d for d in range(rank) if d not in contract and d not in batch)
            order = tuple(batch) + free + tuple(contract)
            view = ref.view.transpose(order)
            nb, nf = len(batch), len(free)
            merged = [_merged(view, lo, hi) for lo, hi in ((nb, nb + nf), (nb + nf, rank))]
            if any(m is None for m in merged):
                ref = self.copied(attrs.evolve(ref, view=view))
                view = ref.view
            flat = view.reshape(view.shape[:nb] + (prod(view.shape[nb : nb + nf]), prod(view.shape[nb + nf :])))
            assert flat is not None
            sides.append(Ref(ref.val, flat, ref.after))
        return self.add("dot_general", "dot_general", eqn.params, sides, avals[0].shape, avals)

    # -- attention -----------------------------------------------------------------------------------------------------

    def _rows(self, x: Operand) -> Ref:
        """The operand with neighbouring elements along its last dimension; the others may have any strides. Statistics
        of rows, which have three dimensions: as exactly the memory of one Val.

        What must be written out for this is written once, however many equations read it.
        """
        if isinstance(x, Ref) and (
            x.is_whole or len(x.view.shape) == 4 and 1 in (x.view.shape[-1], x.view.strides[-1])
        ):
            return x
        key = (x.val if isinstance(x, Ref) else str(x), x.view)
        if key not in self._written:
            self._written[key] = self.copied(x)
        return self._written[key]

    def _attention(self, eqn: Eqn, operands: list[Operand], avals: list[ShapedArray]) -> list[Operand]:
        """Results (B, N, T, H) are stored as (B, T, N, H): the next product takes all heads of a position at once."""
        heads = operands[:-1] if eqn.params["masked"] else operands
        given = [self._rows(x) if len(x.view.shape) > 1 else self.contiguous(x) for x in heads]
        given += [self.stored(x) for x in operands[len(heads) :]]
        stored = [
            ShapedArray((a.shape[0], a.shape[2], a.shape[1], a.shape[3]), a.dtype) if a.ndim == 4 else a for a in avals
        ]
        outs = self.add(eqn.primitive.name, eqn.primitive.name, eqn.params, given, avals[0].shape, stored)
        return [Ref(v, View.of(v.shape).transpose((0, 2, 1, 3))) if len(v.shape) == 4 else self.whole(v) for v in outs]

    _lower_attention = _lower_attention_dq = _lower_attention_dkv = _attention


def _merged(view: View, low: int, high: int) -> int | None:
    """The one stride of dimensions low..high taken together, or None."""
    part = View(view.shape[low:high], view.strides[low:high])
    flat = part.reshape((prod(part.shape),))
    return None if flat is None else flat.strides[0]


def lower_to_nodes(
    jaxpr: Jaxpr, prepare: Prepare = inline_calls, own_results: bool = False, bare: Bare = lambda op: False
) -> Lowered:
    """Lower a flat program; every result is a whole Val (a result that is an input stays that input).

    ``prepare`` is for programs that equations carry. With ``own_results`` each result has a Val of its own, which is no
    input and no other result. ``bare`` says which scatters read their targets as they come.
    """
    low = Lowering(prepare, bare)
    low.look(jaxpr)
    consts = tuple(low.bind_input(v, f"const{i}") for i, v in enumerate(jaxpr.constvars))
    inputs = tuple(low.bind_input(v, f"in{i}") for i, v in enumerate(jaxpr.invars))
    ends = []
    for eqn in jaxpr.eqns:
        low.lower(eqn)
        ends.append(len(low.nodes))
    low._source = None
    outputs: list[Val] = []
    for atom in jaxpr.outvars:
        val = low.contiguous(low.read(atom)).val  # its shape may differ: the same bytes in the same order
        if own_results and (val.producer is None or val in outputs):
            val = low.copied(low.whole(val)).val
        outputs.append(val)
    return Lowered(tuple(low.nodes), inputs, consts, tuple(outputs), low.env, tuple(ends))
