"""Lower statements on values to Python for one feature: loads, calls, atomics."""

from __future__ import annotations

import ast
from collections.abc import Callable

from featgraph.fold.passes.bodies.facts import Callee
from featgraph.fold.passes.bodies.vector_access import copied, is_piecewise
from featgraph.fold.passes.nests.accumulators import (
    Accumulator,
    change_name,
    found,
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
    Patch,
    Push,
    RowLoad,
    Select,
    Share,
    Start,
    Stop,
    ToMemory,
    Verdict,
)
from featgraph.fold.tree.statements import (
    Body,
    Rewriting,
    assigned,
    code,
    expression,
    when,
)

__all__ = ["Leaves", "place_of"]


def place_of(accumulator: Accumulator) -> str:
    """Return the index of an element in memory, at vertex v."""
    return {"one": "v", "wide": "v, f", "matrix": "v, i, f"}[shape_of(accumulator)]


#: Stems of what a gather contributes, as it is and as it was.
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
                text = f"warp.broadcast(int32({own}), {lane}, {axis.lanes}) != 0"
            else:
                text = f"warp.broadcast({own}, {lane}, {axis.lanes})"
            out += code(f"{name} = {text}")
        return out

    # -- verdicts

    def visit_Verdict(self, node: Verdict) -> Body:
        """Call a vertex function: for each feature, or for all of them."""
        facts, callee = self.facts, self.facts.callees[node.function]
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
        tests = [expression(found(a, element(a))) for a in filled]
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
            callee = facts.seen(node.function)
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
        both = facts.callees[node.function], facts.seen(node.function)
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


def _copied_entry(facts: NestFacts, name: str, entity: str, commits: bool) -> Body:
    """Return the copy of an entry of any width, by the lanes that share it."""
    item = facts.plan.analysis.signature[name].item_shape
    axis, (to, from_) = facts.binding.features, copied(name, commits)
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

    The compiler would unroll a loop whose trip count it does not know.
    """
    if step < stop:
        loop = f"for j in range({first}, {stop}, {step}):\n    BODY"
        return code(loop, BODY=body)
    return code(f"j = {first}") + when([f"j < {stop}" if step > stop else ""], body)
