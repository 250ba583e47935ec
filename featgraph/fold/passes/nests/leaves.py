"""Lower statements on values to Python for one feature, and intersections of rows.

`Leaves` lowers loads, calls and atomics. `Intersections` lowers the triangles of a row
(0012), and `Sums` accumulates what their functions add in registers.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

import numpy as np

from featgraph.fold.analysis.gathers import ROLES, Sum
from featgraph.fold.passes.bodies.facts import Callee
from featgraph.fold.passes.bodies.stores import arrays_of_copy, is_piecewise
from featgraph.fold.passes.nests.accumulators import (
    Accumulator,
    change_name,
    final_test,
    was_packed,
)
from featgraph.fold.passes.nests.accumulators import Patch as PatchText
from featgraph.fold.passes.nests.facts import (
    NestFacts,
    call_for_all,
    call_for_one,
    element,
    rows_of,
    shape_of,
)
from featgraph.fold.passes.nests.homes import home_of
from featgraph.fold.schedules.intersect_rows import Intersection
from featgraph.fold.schedules.mapping import WARP
from featgraph.fold.tree.nodes import (
    AllFound,
    AnyFeature,
    BeginPatch,
    Called,
    Contribute,
    Copy,
    Features,
    FinishPatch,
    FromMemory,
    FromPlace,
    Intersect,
    Meet,
    Patch,
    Places,
    Push,
    RowLoad,
    Select,
    Share,
    Start,
    Stop,
    Target,
    ToMemory,
    Triangle,
    Verdict,
    Waits,
)
from featgraph.fold.tree.statements import (
    Body,
    Rewriting,
    assigned,
    code,
    expression,
    when,
)

__all__ = ["Intersections", "Leaves", "Sums", "place_of"]


class Intersections(Rewriting):
    """Lower `Intersect` by the schedule."""

    def __init__(self, facts: NestFacts) -> None:
        self.facts = facts

    def visit_Intersect(self, node: Intersect) -> Body:
        """Return the sweep that finds triangles."""
        schedule = self.facts.schedule
        if not isinstance(schedule, Intersection):
            raise TypeError(f"{schedule.name} does not intersect rows")
        return schedule.intersect(node, self.facts.binding, self.facts.oriented)


class Sums(Rewriting):
    """Accumulate sums of triangles in registers, or in arrays along a row."""

    def __init__(self, facts: NestFacts) -> None:
        self.facts, self.intrinsics = facts, facts.intrinsics
        #: Corner or edge -> index of its sums in arrays; "" if they are in registers.
        self.index_of: dict[str, str] = {}

    def visit_Waits(self, node: Waits) -> Body:
        """Initialize sums; add them to memory behind the body."""
        outer = self.index_of
        self.index_of = {**outer, **dict.fromkeys(node.at, node.index)}
        body = self.over(node.body)
        self.index_of = outer
        own = self._at(node.at)
        if node.index or not own:
            return body
        out: Body = []
        for each in own:
            out += code(f"{each.name} = {each.zero}")
        names = tuple(each.name for each in own)
        taken: Body = []
        for each in own:
            taken += self._settled(each, each.name)
        return [
            *out,
            *body,
            Meet("sum", node.scope, names),
            *self._by_one(node.scope, taken),
        ]

    def visit_Triangle(self, node: Triangle) -> Body:
        """Call the function, and add its results."""
        names = ", ".join(each.more for each in self.facts.sums)
        call = f"{node.function}({', '.join((*ROLES, 'd'))})"
        out = code(f"{names} = {call}" if names else call)
        for each in self.facts.sums:
            index = self.index_of.get(each.role)
            if index is None:
                out += self._settled(each, each.more)
            elif index == "":
                out += code(each.plus(each.more))
            else:
                out += self._put(each, index)
        return out

    def visit_Places(self, node: Places) -> Body:
        """Declare arrays of zeros."""
        own, out = self._at(node.at), code("")
        if self.facts.target is Target.CPU:
            for each in own:
                out += code(f"{each.name} = np.zeros({node.size}, np.{each.dtype})")
            return out
        # All arrays together fit the shared memory.
        count = node.size_bytes // sum(np.dtype(each.dtype).itemsize for each in own)
        start = code("")
        for each in own:
            out += code(f"{each.name} = cuda.shared.array({count}, {each.dtype})")
            start += code(f"{each.name}[found] = {each.zero}")
        out += code(f"place_count = {count}")
        turns = f"range(thread, {count}, {self.facts.threads})"
        return out + code(f"for found in {turns}:\n    START", START=start)

    def visit_FromPlace(self, node: FromPlace) -> Body:
        """Add an entry of the arrays to memory."""
        own, rows = self._at(node.at), self.facts.oriented
        roles = {each.role for each in own}
        out: Body = []
        if "w" in roles:
            out += code(f"w = {rows.vertex(rows.upper.end_at(node.place))}")
        if "e_vw" in roles:
            out += code(f"e_vw = {rows.upper.edge(node.place)}")
        for each in own:
            at = f"{each.name}[{node.index}]"
            taken = code(f"{each.more} = {at}") + self._settled(each, each.more)
            if self.facts.target is Target.CUDA:
                # Sums at places that do not fit the array are in memory: see `_put`.
                taken = when([f"{node.index} < {each.name}.shape[0]"], taken)
            else:
                # The next row adds to the same array.
                taken += code(f"{at} = 0")
            out += taken
        return out

    def _at(self, roles: Sequence[str]) -> list[Sum]:
        """Return the sums at some corners and edges."""
        return [each for each in self.facts.sums if each.role in roles]

    def _put(self, each: Sum, index: str) -> Body:
        """Add to an entry of an array along a row, or to memory if it does not fit."""
        if self.facts.target is Target.CPU:
            return code(f"{each.name}[{index}] += {each.more}")
        shared = code(f"warp.atomic_add({each.name}, {index}, {each.more})")
        orelse = self._settled(each, each.more)
        return when([f"{index} < place_count"], shared, orelse)

    def _settled(self, each: Sum, value: str) -> Body:
        """Add a sum to memory, if it is not zero."""
        add = code(f"{self.intrinsics}.atomic_add(d.{each.into}, {each.role}, {value})")
        # On several ranks sums go into outboxes, and the owners of edges mark them.
        notes = each.into in self.facts.phase.marks
        if notes and not self.facts.oriented.in_parts:
            for edge in (each.role, self.facts.oriented.twin(each.role)):
                add += code(f"{self.intrinsics}.join_bit(changed_edges, {edge})")
        return when([f"{value} != 0"], add)

    def _by_one(self, scope: str, body: Body) -> Body:
        """Return statements of one lane on behalf of a scope."""
        lanes = self.facts.binding.scopes[scope].lanes
        if lanes == 1:
            return body
        return when(["cuda.laneid == 0" if lanes == WARP else "lane == 0"], body)


def place_of(accumulator: Accumulator) -> str:
    """Return the index of an element in memory, at vertex v."""
    return {"one": "v", "wide": "v, f", "matrix": "v, i, f"}[shape_of(accumulator)]


#: Names of a contribution: the current one, and that at the last update.
_BOTH = ("contribution", "contribution_seen")


class Leaves(Rewriting):
    """Lower loads, calls, combines, copies and patches to one feature."""

    def __init__(self, facts: NestFacts) -> None:
        self.facts, self.axis = facts, facts.binding.features

    def visit_FromMemory(self, node: FromMemory) -> Body:
        """Load the gathered row of ``v``, or a single entry."""
        entry = self.facts.plan.analysis.entries.get(node.of)
        if entry is not None:
            form = self.facts.context.indexed[entry.of]
            return code(f"{node.of} = {form.format(f'v, {entry.feature}')}")
        accumulator = self.facts.accumulators[node.of]
        if accumulator.is_matrix:
            return code(f"{node.of} = d.{node.of}[v]")
        packed = was_packed(accumulator, self.facts.plan)
        index, intrinsics = place_of(accumulator), self.facts.intrinsics
        lines = accumulator.load(element(accumulator), index, packed, intrinsics)
        return self._each(accumulator, lines)

    def visit_ToMemory(self, node: ToMemory) -> Body:
        """Store gathered values, in lanes with an existing feature."""
        accumulator = self.facts.accumulators[node.of]
        lines = accumulator.store(element(accumulator), place_of(accumulator))
        return [Features(shape_of(accumulator), code("\n".join(lines)), guarded=True)]

    def visit_Start(self, node: Start) -> Body:
        """Set an accumulator to its identity."""
        accumulator = self.facts.accumulators[node.of]
        name = element(accumulator, f"{node.prefix}{node.of}")
        return self._each(accumulator, accumulator.start(name))

    def visit_Select(self, node: Select) -> Body:
        """Select the patched value, or the recomputed one."""
        accumulator = self.facts.accumulators[node.of]
        own, other = element(accumulator), element(accumulator, node.prefix + node.of)
        line = f"{own} = {own} if is_patched else {other}"
        return self._each(accumulator, [line])

    def visit_Share(self, node: Share) -> Body:
        """Broadcast single entries from the lane that gathered them."""
        facts, axis, out = self.facts, self.axis, code("")
        filled = {facts.filled(f).name for f in node.functions}
        for name in facts.read_entries:
            base, entry = str(facts.base(name)), facts.plan.analysis.entries[name]
            if axis.lanes == 1 or base not in filled:
                continue
            lane, copy = divmod(entry.feature, axis.per_lane)
            own = axis.name(entry.of, copy)
            if facts.accumulators[base].type == "bool":
                # Shuffles take numbers only.
                text = f"warp.broadcast(int32({own}), {lane}, {axis.lanes}) != 0"
            else:
                text = f"warp.broadcast({own}, {lane}, {axis.lanes})"
            out += code(f"{name} = {text}")
        return out

    # -- verdicts

    def visit_Verdict(self, node: Verdict) -> Body:
        """Call a vertex function: for each feature, or for all of them."""
        facts, callee = self.facts, self.facts.callees[node.function]
        # With forwarded entries, the call returns the verdict and the entries.
        sends = callee.function.kind.writes_edges and bool(facts.context.forwarded)
        left = "result" if sends else node.target
        first = code(f"{node.target} = result[0]") if sends else []
        if facts.shuffles(node.function):
            call = call_for_all(facts, callee, node.mask)
            out: Body = [assigned(left, call), *first]
            return out + code(f"{node.target} = {node.target} and {node.mask}")
        if not (callee.is_collective or callee.function.is_scalar):
            value = call_for_one(facts, callee)
            return [AnyFeature(node.target, value, node.mask, rows_of(callee))]
        one = call_for_all if callee.is_collective else call_for_one
        called: Body = [assigned(left, one(facts, callee)), *first]
        if not node.mask:
            return called
        tests = [node.mask, *facts.binding.one("edge")]
        return code(f"{node.target} = False") + when(tests, called)

    def visit_Stop(self, node: Stop) -> Body:
        """Leave the loop over edges when all accumulators are final."""
        filled = [self.facts.filled(f) for f in node.functions]
        tests = [expression(final_test(a, element(a))) for a in filled]
        leave = code("if all_found:\n    break") if node.leaves else []
        return [AllFound(tests), *leave]

    def visit_Copy(self, node: Copy) -> Body:
        """Copy entries between buffers, by the lanes that share them."""
        out: Body = []
        for name in node.names:
            out += _copied_entry(self.facts, name, node.entity, node.commits)
        return out

    # -- contributions

    def visit_Called(self, node: Called) -> Body:
        """Call a function in all lanes, and bind its contributions."""
        facts, wide = self.facts, self.facts.filled(node.function).is_wide
        callee = facts.callees[node.function]
        if node.was_seen:
            callee = _seen(facts, node.function)
        call = call_for_all(facts, callee, node.mask)
        return [assigned(f"*{node.into}," if wide else node.into, call)]

    def visit_Contribute(self, node: Contribute) -> Body:
        """Combine a contribution into the accumulator of a lane."""
        accumulator = self.facts.filled(node.function)
        own = f"{node.prefix}{accumulator.name}"

        def combine(value: str) -> list[str]:
            return accumulator.take(
                element(accumulator, own), value, self.facts.intrinsics
            )

        return self._taken(node.function, accumulator, combine, f"new_{own}")

    def visit_Push(self, node: Push) -> Body:
        """Combine a contribution into memory, in lanes with an existing feature."""
        accumulator = self.facts.filled(node.function)
        packed = "_packed" if accumulator.is_arg else ""
        index, real = place_of(accumulator), self.facts.context.real
        place = f"({index})" if ", " in index else index
        array = f"d.{accumulator.name}{packed}"

        def combine(value: str) -> list[str]:
            return accumulator.atomic(array, place, value, self.facts.intrinsics, real)

        new = f"new_{accumulator.name}"
        return self._taken(node.function, accumulator, combine, new, guarded=True)

    def _taken(
        self,
        function: str,
        accumulator: Accumulator,
        combine: Callable[[str], list[str]],
        new: str,
        guarded: bool = False,
    ) -> Body:
        """Return the statements that evaluate and combine a contribution."""
        facts, callee = self.facts, self.facts.callees[function]
        if facts.shuffles(function):
            value = element(accumulator, new)
            return self._each(accumulator, combine(value), guarded=guarded)
        if not callee.is_collective or accumulator.is_matrix:
            value = ast.unparse(call_for_one(facts, callee))
            rows = rows_of(callee)
            return self._each(accumulator, combine(value), rows, guarded)
        call, value = self._left(function, callee, _BOTH[0])
        if function in facts.rows_left and accumulator.is_arg:
            value += ", contribution_source[f]"
        return call + self._each(accumulator, combine(value), guarded=guarded)

    # -- incremental gathers

    def visit_BeginPatch(self, node: BeginPatch) -> Body:
        """Load the aggregate, or initialize the change to add."""
        facts, accumulator = self.facts, self.facts.filled(node.function)
        if facts.is_constant(node.function):
            return self.visit_FromMemory(FromMemory(accumulator.name))
        return self._patched(node.function, "start")

    def visit_FinishPatch(self, node: FinishPatch) -> Body:
        """Add the sum of patches to the aggregate."""
        return self._patched(node.function, "finish")

    def _patched(self, function: str, what: str) -> Body:
        accumulator = self.facts.filled(function)
        patch, name = self._patch_of(accumulator), element(accumulator)
        place = f"d.{accumulator.name}[{place_of(accumulator)}]"
        stored = f"{place} != 0" if accumulator.type == "bool" else place
        lines = patch.start if what == "start" else patch.finish
        return self._each(accumulator, lines(name, change_name(name), stored))

    def _patch_of(self, accumulator: Accumulator) -> PatchText:
        return PatchText(accumulator, self.facts.intrinsics, self.facts.context.real)

    def visit_Patch(self, node: Patch) -> Body:
        """Add the new contribution of an edge, and remove the old one."""
        facts, accumulator = self.facts, self.facts.filled(node.function)
        both = facts.callees[node.function], _seen(facts, node.function)
        name, out = element(accumulator), code("")
        rows: tuple[RowLoad, ...] = ()
        if facts.shuffles(node.function):
            stems = (f"new_{accumulator.name}", f"old_{accumulator.name}")
            values = [element(accumulator, stem) for stem in stems]
        elif not both[0].is_collective:
            values = [ast.unparse(call_for_one(facts, p)) for p in both]
            rows = (*rows_of(both[0]), *rows_of(both[1]))
        else:
            values = []
            for callee, stem in zip(both, _BOTH, strict=True):
                call, value = self._left(node.function, callee, stem)
                out += call
                values.append(value)
        take = self._patch_of(accumulator).take
        lines = take(name, change_name(name), *values)
        return out + self._each(accumulator, lines, rows)

    def _left(self, function: str, callee: Callee, stem: str) -> tuple[Body, str]:
        """Return the call of a function for all features, and its contributions."""
        facts, accumulator = self.facts, self.facts.filled(function)
        if function in facts.rows_left:
            row = facts.row_left(function, stem)
            arrays = [row, *["contribution_source"] * accumulator.is_arg]
            call = call_for_all(facts, callee, left=arrays)
            return [ast.Expr(call)], element(accumulator, row)
        call, wide = call_for_all(facts, callee), accumulator.is_wide
        left = f"*{stem}," if wide else f"{stem}_0"
        return [assigned(left, call)], f"{stem}[f]" if wide else f"{stem}_0"

    def _each(
        self,
        accumulator: Accumulator,
        lines: list[str],
        rows: tuple[RowLoad, ...] = (),
        guarded: bool = False,
    ) -> Body:
        """Return statements for each feature of an accumulator."""
        body = code("\n".join(lines))
        if not body:
            return []
        home = home_of(self.facts, accumulator.name)
        drops = bool(rows) and self.facts.drops_padding
        return [Features(home.shape, body, rows, guarded, drops)]


def _seen(facts: NestFacts, function: str) -> Callee:
    """Return the variant of an incremental gather that reads values of the last update.

    Its result is the contribution that the aggregate contains.
    """
    how = facts.incremental(function)
    if how is None or how.seen is None:
        raise KeyError(f"{function} is not patched")
    return facts.callees[how.seen.name]


def _copied_entry(facts: NestFacts, name: str, entity: str, commits: bool) -> Body:
    """Return the copy of an entry of any shape, by the lanes that share it."""
    item = facts.plan.analysis.signature[name].item_shape
    axis, (to, from_) = facts.binding.features, arrays_of_copy(name, commits)
    lanes, piece = axis.lanes, axis.vector_width
    if item and is_piecewise(facts.plan.analysis, name, item[0], piece):
        place = f"{entity}, {{}}, {axis.stride}, {piece}"
        move = f"warp.store_row({to}, {place}, warp.load_row({from_}, {place}))"
        if not facts.binding.meets:
            firsts = range(0, item[0], piece)
            return [s for n in firsts for s in code(move.format(n, n))]
        first = f"lane * {piece}" if lanes > 1 else "0"
        each = code(move.format("j", "j"))
        return _strided(first, item[0], lanes * piece, each)
    letters = ["i", "j"][2 - len(item) :]
    index = ", ".join([entity, *letters])
    out = code(f"{to}[{index}] = {from_}[{index}]")
    if not item:
        return when(facts.binding.one("edge"), out)
    if lanes > 1:
        out = _strided("lane", item[-1], lanes, out)
    else:
        size = axis.count if item == (facts.phase.width,) else item[-1]
        out = code(f"for j in range({size}):\n    BODY", BODY=out)
    if len(item) == 2:
        out = code(f"for i in range({item[0]}):\n    BODY", BODY=out)
    return out


def _strided(first: str, stop: int, step: int, body: Body) -> Body:
    """Return a loop over `j`, or its body if it has one iteration.

    The compiler would unroll a loop whose trip count is no constant.
    """
    if step < stop:
        loop = f"for j in range({first}, {stop}, {step}):\n    BODY"
        return code(loop, BODY=body)
    return code(f"j = {first}") + when([f"j < {stop}" if step > stop else ""], body)
