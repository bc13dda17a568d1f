"""Fusion: which nodes run in one kernel.

A group is a set of nodes over one *linear space* of N elements. Its values are 'elem' values (one per element of the
space) or 'row' values (one per element of the space with its reduced dimensions taken out). Nodes join greedily, in
program order, the groups of their operands wherever the operand is read in the space's own order and no cycle arises.
Nothing here can move a bit: every value is computed by the same operations from the same operands, only elsewhere.
"""

from __future__ import annotations

from volta.xla_like.groups import Group, reads, squeezed, walks, with_kept
from volta.xla_like.nodes import Lowered, Node, Ref, Val
from volta.xla_like.views import Ints, prod, refine, strides_over

MAX_NODES = 160
"""Nodes a kernel may hold: beyond this, compile time and register pressure cost more than memory traffic."""

MAX_PARTS = 2 * MAX_NODES
"""Nodes of a kernel that computes several parts of one array: what they have in common is read once."""


class Fuser:
    """Greedy grouping with an exact cycle check (ancestor sets as bit masks)."""

    def __init__(self) -> None:
        self.groups: dict[int, Group] = {}
        self.group_of: dict[Val, Group] = {}
        self.ancestors: dict[int, int] = {}
        self._read: dict[int, int] = {}  # of each group, those whose values it reads itself
        self._followed: set[int] = set()  # groups that are ancestors of others
        self._count = 0
        self._merges = 0

    def new_group(self, dims: Ints, fusible: bool) -> Group:
        group = Group(self._count, [], dims, fusible=fusible)
        self._count += 1
        self.groups[group.index] = group
        self.ancestors[group.index] = self._read[group.index] = 0
        return group

    def add(self, node: Node) -> None:
        producers, merges = self._producers(node), self._merges
        group = None
        if node.kind in ("elem", "gather", "reduce") and prod(node.shape):
            group = self._join(node, producers)
            if group is None:
                group = self.new_group(squeezed(node.shape), True)
                if node.kind == "reduce":
                    self._reduce(group, node)
        if group is None:
            group = self.new_group(node.shape, False)
            if node.kind == "concatenate":
                self._join_parts(node)
        if self._merges > merges:  # some of them were replaced
            producers = self._producers(node)
        self._place(group, node, producers)

    def _producers(self, node: Node) -> list[Group]:
        found: dict[int, Group] = {}
        for x in node.operands:
            if isinstance(x, Ref):
                for val in (x.val, *x.after):
                    if val in self.group_of:
                        found[self.group_of[val].index] = self.group_of[val]
        return list(found.values())

    def _place(self, group: Group, node: Node, producers: list[Group]) -> None:
        group.nodes.append(node)
        level = "row" if node.kind == "reduce" or (group.reduced > 1 and self._is_row(group, node)) else "elem"
        for val in node.outputs:
            self.group_of[val] = group
            group.levels[val] = level
        self._depend(group.index, [p.index for p in producers if p is not group])

    def _depend(self, index: int, on: list[int]) -> None:
        new = 0
        for p in on:
            new |= self.ancestors[p] | (1 << p)
            self._read[index] |= 1 << p
        self._followed.update(on)  # and what they follow is there already
        if new & ~self.ancestors[index]:
            self.ancestors[index] |= new
            if index in self._followed:
                for g, mask in self.ancestors.items():
                    if mask >> index & 1:
                        self.ancestors[g] = mask | new

    def _is_row(self, group: Group, node: Node) -> bool:
        return prod(node.shape) == group.rows and all(
            group.levels.get(x.val) == "row" for x in node.operands if isinstance(x, Ref) and x.val in group.levels
        )

    # -- joining -------------------------------------------------------------------------------------------------------

    def _join(self, node: Node, producers: list[Group]) -> Group | None:
        chosen: Group | None = None
        for group in reversed(producers):
            if not group.fusible or len(group.nodes) >= MAX_NODES or not self._fits(group, node):
                continue
            if chosen is None:
                if all(p is group or not self._reaches(group, p) for p in producers):
                    chosen = group
            elif self._mergeable(chosen, group) and all(
                p.index not in self.groups
                or p in (group, chosen)
                or not (self._reaches(group, p) or self._reaches(chosen, p))
                for p in producers
            ):
                chosen = self._merge(group, chosen)
        if chosen is None:
            return None
        if node.kind == "reduce" and chosen.reduced == 1:
            self._reduce(chosen, node)
        dims = self._dims_with(chosen, node)
        assert dims is not None
        chosen.dims = dims
        return chosen

    def _join_parts(self, node: Node) -> None:
        """Let the groups that compute parts of a concatenation, and read the same, be one; also parts of its parts."""
        joined: list[Group] = []
        for group in self._computing(node):
            if not group.fusible or group.reduced > 1:
                continue
            for i, other in enumerate(joined):
                if not reads(group).isdisjoint(reads(other)) and self._mergeable(other, group, MAX_PARTS):
                    joined[i] = self._merge(other, group)
                    break
            else:
                joined.append(group)

    def _computing(self, node: Node) -> list[Group]:
        """The groups of a concatenation's operands; in place of one that is made of parts, the groups of these."""
        found: dict[int, Group] = {}
        for group in self._producers(node):
            made = group.nodes[0].kind == "concatenate"
            found.update((g.index, g) for g in (self._computing(group.nodes[0]) if made else [group]))
        return list(found.values())

    def _reaches(self, source: Group, target: Group) -> bool:
        return bool(self.ancestors[target.index] >> source.index & 1)

    def _reduction_of(self, node: Node) -> tuple[int, int]:
        axes = node.params["axes"]
        return prod([node.shape[a] for a in axes]), prod(node.shape[axes[-1] + 1 :])

    def _reduce(self, group: Group, node: Node) -> None:
        group.reduced, group.inner = self._reduction_of(node)

    def _dims_with(self, group: Group, node: Node) -> Ints | None:
        """The group's dims refined so that the node's operands can be indexed by them."""
        if prod(node.shape) == group.size:
            dims = refine(group.dims, node.shape)
            if dims is not None and group.reduced > 1:  # the reduced block must stay a union of dims
                dims = refine(dims, (group.size // group.reduced // group.inner, group.reduced, group.inner))
            return dims
        if prod(node.shape) == group.rows:
            kept = refine(group.kept_dims(), node.shape)
            return None if kept is None else with_kept(group, kept)
        return None

    def _fits(self, group: Group, node: Node) -> bool:
        """Whether the node can be computed inside the group's loop."""
        size = prod(node.shape)
        row_level = group.reduced > 1 and size == group.rows
        if size != group.size and not row_level:
            return False
        dims = self._dims_with(group, node)
        if dims is None:
            return False
        structure = group.reduced, group.inner
        if node.kind == "reduce":
            if row_level:
                return False
            structure = self._reduction_of(node)
            if group.reduced > 1 and structure != (group.reduced, group.inner):
                return False
            trial = refine(dims, (size // structure[0] // structure[1], *structure))
            if trial is None:
                return False
            dims = trial
        trial_group = group.trial(dims, *structure)
        if trial_group.reduced > 1 and not row_level:
            mask = trial_group.mask()
            others = group.nodes if node.kind == "reduce" and group.reduced == 1 else []
            if not all(walks(n, group, dims, mask) for n in (node, *others) if prod(n.shape) == size):
                return False
        return self._reads_fit(node, trial_group, dims, row_level, group.levels)

    def _reads_fit(self, node: Node, group: Group, dims: Ints, row_level: bool, levels: dict[Val, str]) -> bool:
        """Whether the node reads values of its own loop (``levels``) where the loop has them: at the same place."""
        uses_rows = False
        for position, x in enumerate(node.operands):
            if not isinstance(x, Ref):
                continue
            if x.after and any(levels.get(v) for v in x.after):
                return False  # a barrier: its input must be finished first
            level = levels.get(x.val)
            if level is None:
                continue
            if node.kind == "gather" and position == 0:
                return False  # a table is read at other places than the one being computed
            if level == "elem":
                if row_level or not x.is_whole:
                    return False
            else:
                uses_rows = True
                if row_level:
                    if not x.is_whole:
                        return False
                elif strides_over(x.view, dims) != group.row_strides() or x.view.offset:
                    return False
        # Work after a reduction stays in the kernel only where rows are whole tasks.
        return not (uses_rows and (group.by_blocks or (group.inner > 1 and not row_level)))

    def _mergeable(self, a: Group, b: Group, most: int = MAX_NODES) -> bool:
        if a is b or a.size != b.size or len(a.nodes) + len(b.nodes) > most:
            return False
        if a.reduced > 1 and b.reduced > 1 and (a.reduced, a.inner) != (b.reduced, b.inner):
            return False
        joint = refine(a.dims, b.dims)
        if joint is None:
            return False
        reduced, inner = max((a.reduced, a.inner), (b.reduced, b.inner))
        if reduced > 1:
            joint = refine(joint, (a.size // reduced // inner, reduced, inner))
            if joint is None:
                return False
        trial = a.trial(joint, reduced, inner, {**a.levels, **b.levels})
        nodes = (*a.nodes, *b.nodes)
        if reduced > 1:
            # One of the two may read in an order that suited it as long as nothing was reduced there.
            mask = trial.mask()
            if not all(walks(n, trial, joint, mask) for n in nodes if prod(n.shape) == a.size):
                return False
        # What one read of the other's results in memory, it must be able to read in the common loop.
        if not all(self._reads_fit(n, trial, joint, prod(n.shape) != a.size, trial.levels) for n in nodes):
            return False
        return not (self._has_between(a, b) or self._has_between(b, a))

    def _has_between(self, first: Group, last: Group) -> bool:
        """Whether another group lies on a way from ``first`` to ``last``: as one, the two would wait for themselves."""
        if not self._reaches(first, last):
            return False
        read = self._read[last.index]
        while read:
            g = read.bit_length() - 1
            if g != first.index and self.ancestors[g] >> first.index & 1:
                return True
            read ^= 1 << g
        return False

    def _merge(self, a: Group, b: Group) -> Group:
        self._merges += 1
        if a.index > b.index:
            a, b = b, a
        joint = refine(a.dims, b.dims)
        assert joint is not None
        if b.reduced > 1:
            a.reduced, a.inner = b.reduced, b.inner
        if a.reduced > 1:
            joint = refine(joint, (a.size // a.reduced // a.inner, a.reduced, a.inner))
            assert joint is not None
        a.dims = joint
        a.nodes = sorted(a.nodes + b.nodes, key=lambda n: n.index)
        for val, level in b.levels.items():
            a.levels[val] = level
            self.group_of[val] = a
        del self.groups[b.index]
        if b.index in self._followed:
            self._followed.add(a.index)
        bit_a, bit_b = 1 << a.index, 1 << b.index
        both, others = bit_a | bit_b, ~(bit_a | bit_b)
        joined = (self.ancestors.pop(b.index) | self.ancestors[a.index]) & others
        self.ancestors[a.index] = joined
        self._read[a.index] = (self._read.pop(b.index) | self._read[a.index]) & others
        for g, mask in self.ancestors.items():
            if mask & both:
                self.ancestors[g] = (mask | bit_a | joined) & ~bit_b
                if self._read[g] & bit_b:
                    self._read[g] = (self._read[g] | bit_a) & ~bit_b
        return a

    # -- clones (see recompute.py) -------------------------------------------------------------------------------------

    def fits_clone(self, group: Group, node: Node, renamed: dict[Val, Val]) -> bool:
        """Whether a copy of a node from elsewhere can be computed per element in the group's loop."""
        if prod(node.shape) != group.size or len(group.nodes) >= MAX_NODES:
            return False
        dims = self._dims_with(group, node)
        if dims is None:
            return False
        levels = {**group.levels, **dict.fromkeys(renamed, "elem")}
        outside = group.trial(dims, group.reduced, group.inner, levels)
        if any(isinstance(x, Ref) and group.levels.get(x.val) == "row" for x in node.operands):
            return False
        return group.reduced == 1 or walks(node, outside, dims, outside.mask())

    def insert_clones(self, group: Group, copies: list[Node]) -> None:
        """Put copies in front of a group's nodes."""
        for copy in copies:
            dims = self._dims_with(group, copy)
            assert dims is not None
            group.dims = dims
            for val in copy.outputs:
                self.group_of[val] = group
                group.levels[val] = "elem"
        group.nodes = copies + group.nodes
        on = [self.group_of[x.val].index for c in copies for x in c.operands if isinstance(x, Ref)
              and x.val in self.group_of and self.group_of[x.val] is not group]  # fmt: skip
        self._depend(group.index, on)


def fuse(lowered: Lowered, enabled: bool) -> tuple[Fuser, list[Group]]:
    """Group the nodes of a program into kernels, in an order that respects every dependency.

    With ``enabled`` False each node is a kernel of its own (the bits are the same: a test compares them).
    """
    fuser = Fuser()
    for node in lowered.nodes:
        if prod(node.shape) == 0 and node.kind in ("elem", "gather"):
            continue  # nothing to compute
        if enabled:
            fuser.add(node)
        else:
            fusible = node.kind in ("elem", "gather", "reduce")
            group = fuser.new_group(squeezed(node.shape) if fusible else node.shape, fusible)
            if node.kind == "reduce":
                fuser._reduce(group, node)
            fuser._place(group, node, fuser._producers(node))
    return fuser, _ordered(fuser)


def _ordered(fuser: Fuser) -> list[Group]:
    """Groups by the position of their last node where dependencies allow, else as they allow."""
    pending = sorted(fuser.groups.values(), key=lambda g: g.nodes[-1].index)
    done, order = 0, []
    while pending:
        group = next((g for g in pending if not fuser.ancestors[g.index] & ~done), None)
        assert group is not None, "fusion built a cycle"  # the cycle check excludes it
        pending.remove(group)
        order.append(group)
        done |= 1 << group.index
    return order
