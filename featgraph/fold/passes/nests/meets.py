"""Synchronization of lanes, and the memory areas of kernels.

`Meets` lowers `Meet` nodes: to shuffles and votes in a warp, to barriers and shared
arrays ("boxes", an element for each thread) in a block. `DeclareAreas` declares the
shared, local and global arrays that a kernel uses; `scratch_of` returns those that are
arguments, since the runtime allocates them.
"""

from __future__ import annotations

from collections.abc import Callable

from featgraph.base.dataclass import replace
from featgraph.fold.analysis.gathers import memory_dtype
from featgraph.fold.passes.bodies.memory import stage_matrices
from featgraph.fold.passes.bodies.vectorized import VECTOR_BYTES
from featgraph.fold.passes.nests.accumulators import Accumulator, source_name
from featgraph.fold.passes.nests.blocks import levels, partial_sums
from featgraph.fold.passes.nests.facts import NestFacts, element, partials_of
from featgraph.fold.passes.nests.homes import Area, home_of, padded, row_of
from featgraph.fold.schedules.base import Scope
from featgraph.fold.schedules.mapping import WARP
from featgraph.fold.tree.nodes import Areas, Features, Meet, Target
from featgraph.fold.tree.statements import Body, Rewriting, code, when
from featgraph.program.signature import Real

__all__ = ["DeclareAreas", "Meets", "group_areas", "scratch_of"]


class Meets(Rewriting):
    """Lower `Meet`: shuffles and votes in warps, barriers and boxes in blocks."""

    def __init__(self, facts: NestFacts) -> None:
        self.facts, self.axis = facts, facts.binding.features

    def visit_Meet(self, node: Meet) -> Body:
        """Return the statements that synchronize the lanes of a scope."""
        scope = self.facts.binding.scopes[node.scope]
        of_scope: dict[str, Callable[..., Body]] = {
            "sync": scope.sync, "any": scope.any, "all": scope.all, "sum": scope.sum,
        }  # fmt: skip
        if node.what in of_scope:
            return of_scope[node.what](*node.names)
        of_values: dict[str, Callable[..., Body]] = {
            "combine": self._combined, "rows": self._by_row, "row": self._of_row,
            "collect": self._collected,
        }  # fmt: skip
        return of_values[node.what](scope, *node.names)

    def _combined(self, scope: Scope, name: str, prefix: str = "") -> Body:
        """Combine values over the lanes with the same features."""
        accumulator = self.facts.accumulators[name]
        lanes, edges = self.axis.lanes, scope.lanes // self.axis.lanes
        if edges == 1:
            return []
        own, home = f"{prefix}{name}", home_of(self.facts, name)
        if scope.company == "block":
            one = element(accumulator, own)
            boxed, combined = self._in_block(scope, accumulator, one)
            # The next combine writes to the same boxes.
            barrier = code("cuda.syncthreads()")
            return [Features(home.shape, [*boxed, *combined, *barrier])]
        names = home.names(prefix)
        fours = accumulator.rules.by_fours
        # With eight edges of a vertex at a time, combining four values together takes
        # as many shuffles as combining two.
        step = 4 if fours and len(names) % 4 == 0 and edges >= 8 else 1
        out: Body = []
        for first in range(0, len(names), step):
            some = names[first : first + step]
            out += _shuffled(accumulator, some, lanes, scope.lanes)
        return out

    def _by_row(self, scope: Scope, name: str, prefix: str, step: str, n: str) -> Body:
        """Combine the values of a round, row by row (segmented scan).

        Each lane combines values of preceding lanes of its row; after at most 5 steps
        the last lane of a row has the result, which the lanes that own the row read by
        a shuffle.
        """
        accumulator = self.facts.accumulators[name]
        lanes, rows = self.axis.lanes, scope.lanes // self.axis.lanes
        own, new = (element(accumulator, f"{p}{name}") for p in (prefix, step))
        hops = rows.bit_length() - 1
        first = f"round_begin{f' + {int(n) * rows}' if int(n) else ''}"
        # Lanes whose row has no edge in this round read from some valid lane.
        out = code(
            f"row_last = min(int32(row_end - ({first})), {rows}) - 1\n"
            f"in_round = row_last >= max(int32(row_begin - ({first})), 0)\n"
            "row_last = max(row_last, 0)"
        )
        hop = self._moved(
            accumulator, new, f"segments.from_left({{}}, {lanes} << row_hop)"
        )
        # As many as 2**row_hop lanes of the same row must precede.
        hop += when([f"run_{n} >> row_hop != 0"], self._take(accumulator, new))
        each = (
            code(f"for row_hop in range({hops}):\n    BODY", BODY=hop) if hops else []
        )
        each += self._moved(
            accumulator, new, f"segments.of_row({{}}, row_last, {lanes})"
        )
        each += when(["in_round"], self._take(accumulator, own))
        return [*out, Features(home_of(self.facts, name).shape, each)]

    def _of_row(self, scope: Scope, name: str, prefix: str, *taken: str) -> Body:
        """Combine the values of all lanes for one row into the lanes of that row."""
        accumulator, home = self.facts.accumulators[name], home_of(self.facts, name)
        lanes, rows = self.axis.lanes, scope.lanes // self.axis.lanes
        own, first, *others = (
            element(accumulator, f"{p}{name}") for p in (prefix, *taken)
        )
        each = code("")
        for other in others:
            value = f"{other}, {source_name(other)}" if accumulator.is_arg else other
            each += code("\n".join(accumulator.take(first, value, "warp")))
        out: Body = [Features(home.shape, each)] if others else []
        if accumulator.rules.shuffle:
            out.append(Meet("combine", "row", (name, taken[0])))
            value = f"{first}, {source_name(first)}" if accumulator.is_arg else first
            into = code("\n".join(accumulator.take(own, value, "warp")))
            into = when(["edge_lane == row"], into)
            return [*self.over(out), Features(home.shape, into)]
        hop = self._moved(
            accumulator, first, f"segments.from_left({{}}, {lanes} << row_hop)"
        )
        hop += when(["edge_lane >> row_hop != 0"], self._take(accumulator, first))
        hops = rows.bit_length() - 1
        each = code(f"for row_hop in range({hops}):\n    BODY", BODY=hop)
        each += self._moved(
            accumulator, first, f"segments.of_row({{}}, {rows - 1}, {lanes})"
        )
        each += when(["edge_lane == row"], self._take(accumulator, own))
        return [*out, Features(home.shape, each)]

    def _moved(self, accumulator: Accumulator, name: str, text: str) -> Body:
        """Return the shuffle that reads a value of another lane."""
        if accumulator.is_arg:
            both = text.format(name), text.format(source_name(name))
            return code(f"taken, taken_source = {', '.join(both)}")
        if accumulator.type == "bool":
            return code(f"taken = {text.format(f'int32({name})')} != 0")
        return code(f"taken = {text.format(name)}")

    def _take(self, accumulator: Accumulator, name: str) -> Body:
        value = "taken, taken_source" if accumulator.is_arg else "taken"
        return code("\n".join(accumulator.take(name, value, "warp")))

    def _collected(self, scope: Scope, name: str) -> Body:
        """Store accumulated values, by the first lane of each feature.

        Each feature is stored before the next one is combined. With all stores behind
        the last barrier, the compiler kept all values until then: 138 registers in
        place of 76 for a thread with 33 features, 38 in place of 30 for a lane with 2
        (sm_90).
        """
        facts, axis = self.facts, self.axis
        accumulator, home = facts.accumulators[name], home_of(facts, name)
        if home.is_staged:
            return []  # its `finish` has stored the tiles
        one, k = element(accumulator), facts.phase.width
        places = {"one": "0", "wide": "f", "element": "element"}
        place = places.get(home.shape, f"i * {k} + f")
        row = f"{partials_of(facts, name)}[{facts.binding.partial}, {place}]"
        store = code(f"{row} = {one}")
        if scope.lanes == 1:
            leaves = [facts.binding.leaves] if facts.binding.leaves else []
            guarded = Features(home.shape, store, guarded=bool(leaves))
            return when(leaves, [guarded])
        several = accumulator.is_wide and axis.lanes > 1
        first = f"thread < {axis.lanes}" if several else "thread == 0"
        boxed, combined = self._in_block(scope, accumulator, one)
        inside = "inside[f]" if accumulator.is_wide and axis.is_padded else ""
        stored = when([first, inside], [*combined, *store])
        return [Features(home.shape, [*boxed, *stored, *code("cuda.syncthreads()")])]

    def _in_block(
        self, scope: Scope, accumulator: Accumulator, name: str
    ) -> tuple[Body, Body]:
        """Combine over a block: by shuffles, then in shared memory, in order.

        The fixed order makes the result repeatable. Combines without shuffles use
        shared memory only. The second part is for lanes that read the result; a barrier
        must follow it.
        """
        lanes, boxed = self.axis.lanes, code("")
        shuffled = bool(accumulator.rules.shuffle)
        if shuffled and lanes < WARP:
            boxed += _shuffled(accumulator, [name], lanes, WARP)
        row = WARP if shuffled else lanes
        box = f"box_{_box_dtypes(accumulator, self.facts.context.real)[0]}"
        is_bool = accumulator.type == "bool"
        boxed += code(f"{box}[thread] = {f'int32({name})' if is_bool else name}")
        if accumulator.is_arg:
            boxed += code(f"box_source[thread] = {source_name(name)}")
        boxed += code("cuda.syncthreads()")
        combined = code("\n".join(accumulator.start(name)))
        value = f"{box}[member]{' != 0' if is_bool else ''}"
        if accumulator.is_arg:
            value += ", box_source[member]"
        each = code(f"member = uint32(row * {row}{' + lane' if lanes > 1 else ''})")
        each += code("\n".join(accumulator.take(name, value, "warp")))
        rows = f"range({scope.lanes // row})"
        combined += code(f"for row in {rows}:\n    BODY", BODY=each)
        return boxed, combined


def _shuffled(
    accumulator: Accumulator, names: list[str], group: int, lanes: int
) -> Body:
    """Combine over groups that share a vertex, lane by lane, by shuffles.

    Raises
    ------
    TypeError
        If the combine has no shuffle, though the schedule lets lanes share edges.
    """
    if not accumulator.rules.shuffle:
        raise TypeError(f"no shuffle combines {names[0]} over {lanes} lanes")
    four = "_4" if len(names) == 4 else ""
    if accumulator.is_arg:
        names = [*names, *map(source_name, names)]
    left = ", ".join(names)
    function = f"warp.edge_lane_{accumulator.rules.shuffle}{four}"
    return code(f"{left} = {function}({left}, {group}, {lanes})")


def _box_dtypes(accumulator: Accumulator, real: Real) -> list[str]:
    """Return the types of the shared arrays that a combine over a block needs.

    For argmin and argmax, a second one holds the sources.
    """
    first = memory_dtype(accumulator.type, real)
    return [first, "source"] if accumulator.is_arg else [first]


def group_areas(facts: NestFacts) -> list[Area]:
    """Return the matrices shared by the lanes of an edge.

    On the CPU, a thread does not share a vertex: they are its work areas.
    """
    if facts.target is Target.CPU:
        return _works(facts)
    matrices = [a.name for a in _accumulators_of_vertex(facts) if a.is_matrix]
    gathered = [area for name in matrices for area in home_of(facts, name).areas()]
    waits = [area for area, in_group in _waiting(facts) if in_group]
    return [*gathered, *waits, *_works(facts)]


def _waiting(facts: NestFacts) -> list[tuple[Area, bool]]:
    """Return the arrays of partial sums, and whether each is one per group.

    They include matrices of single GPU threads in global memory.
    """
    if not facts.binding.block or facts.phase.kind.pushes:
        return []
    axis, found = facts.binding.features, list[tuple[Area, bool]]()
    k, own = axis.width, axis.count if axis.is_looped else axis.per_lane
    alone = facts.target is Target.CUDA and not facts.binding.meets
    for name in facts.summed:
        if home_of(facts, name).is_staged:
            continue
        home = home_of(facts, name).shape
        shape: tuple[int | str, ...]
        shape = {"one": (1,), "element": (1,), "wide": (own,)}.get(home, (k, own))
        several = levels(facts)
        shape = shape if several == 1 else (several, *shape)
        area = Area(partial_sums(facts, name), shape, facts.context.real)
        found.append((area, alone and home == "matrix"))
    return found


def _accumulators_of_vertex(facts: NestFacts) -> list[Accumulator]:
    """Return the accumulators of a vertex that lanes load or fill."""
    names = set(facts.phase.loads)
    if not facts.phase.kind.pushes:
        names |= {f.accumulator for f in facts.functions.values()} - {""}
    return [facts.accumulators[n] for n in sorted(names)]


def _works(facts: NestFacts) -> list[Area]:
    """Return the work areas of functions."""
    k, real = facts.phase.width, facts.context.real
    return [
        Area(f"{callee.name}_work_{n}", (k, columns), real)
        for callee in facts.callees.values()
        for n, columns in enumerate(callee.areas)
    ]


def scratch_of(facts: NestFacts) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the areas in global memory: argument -> dtype and item shape."""
    if facts.target is Target.CPU or facts.phase.mapping.shared_matrices:
        return {}
    areas = group_areas(facts)
    return {f"scratch_{n}": (a.dtype, a.shape) for n, a in enumerate(areas)}


class DeclareAreas(Rewriting):
    """Replace `Areas` by declarations."""

    def __init__(self, facts: NestFacts) -> None:
        self.facts = facts

    def visit_Areas(self, node: Areas) -> Body:
        """Return the declarations; a kernel without areas has none."""
        facts, out = self.facts, code("")
        if facts.target is Target.CUDA:
            out += stage_matrices(
                facts.context.staged, facts.context.real, facts.threads
            )
        for n, area in enumerate(group_areas(facts)):
            out += self._of_group(area, n)
        waits = [area for area, in_group in _waiting(facts) if not in_group]
        for area in (*waits, *self._of_lane()):
            out += self._declared(area)
        boxes = [
            n
            for a in _accumulators_of_vertex(facts)
            for n in _box_dtypes(a, facts.context.real)
        ]
        for accumulator in _accumulators_of_vertex(facts):
            out += home_of(facts, accumulator.name).front()
        for name in dict.fromkeys(boxes) if self._has_boxes() else ():
            dtype = "int32" if name == "source" else name
            box = f"cuda.shared.array({facts.threads}, {dtype})"
            out += code(f"box_{name} = {box}")
        return out

    def _has_boxes(self) -> bool:
        """Whether the warps of a block combine values in shared arrays."""
        kind, scopes = self.facts.phase.kind, self.facts.binding.scopes
        shared = "partial" if kind.reduces else "vertex"
        combines = kind.reduces or kind.pulls
        return combines and scopes[shared].company == "block"

    def _of_group(self, area: Area, number: int) -> Body:
        """Return the area of a group of lanes; on the CPU, of a thread."""
        facts, mapping = self.facts, self.facts.phase.mapping
        if facts.target is Target.CPU:
            k, columns = area.shape
            solves = columns == k + 1  # the last column is the right side
            room = _work_shape(k, columns, facts.context.real)
            aligned = solves and mapping.is_looped
            return self._declared(replace(area, shape=room, aligned=aligned))
        if mapping.tile:
            return self._of_block(area, number)
        shift = mapping.lanes_per_edge.bit_length() - 1
        own = f" >> {shift}" if shift else ""
        if not mapping.shared_matrices:
            return code(f"{area.name} = scratch_{number}[cuda.grid(1){own}]")
        shape = (facts.threads >> shift, *area.shape)
        shared = f"cuda.shared.array({shape}, {self._type(area.dtype)})"
        return code(f"{area.name} = {shared}[cuda.threadIdx.x{own}]")

    def _of_block(self, area: Area, number: int) -> Body:
        """Return the area of a block that has one vertex."""
        if not self.facts.phase.mapping.shared_matrices:
            return code(f"{area.name} = scratch_{number}[uint32(cuda.blockIdx.x)]")
        kind = self._type(area.dtype)
        shared = f"cuda.shared.array({area.shape}, {kind}, alignment=16)"
        return code(f"{area.name} = {shared}")

    def _of_lane(self) -> list[Area]:
        """Return the arrays of a lane: accumulators, and rows of its loops."""
        facts, found = self.facts, list[Area]()
        k, real = facts.binding.features.count, facts.context.real
        for array, kind, dtype in (("rows", "real", real), ("flags", "int64", "int64")):
            counts = [p.arrays.get(kind, 0) for p in facts.callees.values()]
            if max(counts, default=0):
                found.append(Area(array, (max(counts), k), dtype))
        for accumulator in _accumulators_of_vertex(facts):
            if accumulator.is_matrix and facts.target is Target.CUDA:
                continue  # one for a group: see `group_areas`
            own = home_of(facts, accumulator.name).areas()
            found += own
            if own and accumulator.name in facts.phase.incremental:
                found += row_of(facts, f"change_{accumulator.name}", accumulator)[:1]
        for name, accumulator in facts.rows_left.items():
            found += row_of(facts, facts.row_left(name), accumulator)[:1]
            if accumulator.is_arg:
                found.append(Area("contribution_source", (k,), "int32"))
            if accumulator.name in facts.phase.incremental:
                seen = facts.row_left(name, "contribution_seen")
                found += row_of(facts, seen, accumulator)[:1]
        return list({a.name: a for a in found}.values())

    def _declared(self, area: Area) -> Body:
        sizes = ", ".join(map(str, area.shape))
        shape = sizes if len(area.shape) == 1 else f"({sizes})"
        kind = self._type(area.dtype)
        if self.facts.target is Target.CUDA:
            return code(f"{area.name} = cuda.local.array({shape}, {kind})")
        if area.aligned:
            return code(f"{area.name} = tiles.zeros({sizes}, np.empty(0, {kind}))")
        return code(f"{area.name} = np.empty({shape}, {kind})")

    def _type(self, dtype: str) -> str:
        if self.facts.target is Target.CUDA:
            return "boolean" if dtype == "bool" else dtype
        return "np.bool_" if dtype == "bool" else f"np.{dtype}"


def _work_shape(k: int, columns: int, real: Real) -> tuple[int, int]:
    """Return the shape of the work area of solve or inverse (CPU).

    The area of solve includes the rows used by `featgraph.device.cholesky_cpu`.
    """
    if columns != k + 1:
        return k, columns
    size = VECTOR_BYTES // real.itemsize
    return padded(k, real) + 1 + size, padded(columns, real)
