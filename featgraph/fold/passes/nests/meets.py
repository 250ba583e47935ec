"""How lanes meet: what a `Meet` is for lanes of a warp, and for warps of a block."""

from __future__ import annotations

from featgraph.fold.passes.nests.accumulators import Accumulator, source_name
from featgraph.fold.passes.nests.facts import Facts, element
from featgraph.fold.passes.nests.homes import home_of
from featgraph.fold.schedules.base import Scope
from featgraph.fold.schedules.mapping import WARP
from featgraph.fold.tree.nodes import Features, Meet
from featgraph.fold.tree.statements import Body, Rewriting, code, when
from featgraph.program.signature import Real

__all__ = ["Meets", "box_dtypes"]


class Meets(Rewriting):
    """Shuffles and votes of some lanes of a warp; barriers and boxes of a block."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.axis = facts, facts.binding.features

    def visit_Meet(self, node: Meet) -> Body:
        """Return the statements by which the lanes of a scope meet."""
        scope = self.facts.binding.scopes[node.scope]
        if node.what == "sync":
            return scope.sync()
        if node.what == "any":
            return scope.any(*node.names)
        if node.what == "all":
            return scope.all(*node.names)
        if node.what == "sum":
            return scope.sum(node.names)
        if node.what == "rows":
            return self._by_row(scope, *node.names)
        if node.what == "row":
            return self._of_row(scope, *node.names)
        if node.what == "collect":
            return self._collected(scope, *node.names)
        return self._combined(scope, *node.names)

    def _combined(self, scope: Scope, name: str, prefix: str = "") -> Body:
        """Combine what lanes have that have the same features."""
        accumulator = self.facts.accumulators[name]
        lanes, edges = self.axis.lanes, scope.lanes // self.axis.lanes
        if edges == 1:
            return []
        own, home = f"{prefix}{name}", home_of(self.facts, name)
        if scope.company == "block":
            one = element(accumulator, own)
            boxed, combined = self._in_block(scope, accumulator, one)
            barrier = code("cuda.syncthreads()")
            return [Features(home.shape, [*boxed, *combined, *barrier])]
        names = home.names(prefix)
        fours = accumulator.rules.by_fours
        # Four take as many shuffles as two where a vertex has eight edges at a time.
        step = 4 if fours and len(names) % 4 == 0 and edges >= 8 else 1
        out: Body = []
        for first in range(0, len(names), step):
            some = names[first : first + step]
            out += _shuffled(accumulator, some, lanes, scope.lanes)
        return out

    def _by_row(self, scope: Scope, name: str, prefix: str, step: str, n: str) -> Body:
        """Combine what a round has come to, row by row, into what the row's lanes have.

        Each lane takes what the lanes before it have, as far as they are of its row: in
        log2 steps the last lane of a row has all. The lanes of the row ask that one.
        """
        accumulator = self.facts.accumulators[name]
        lanes, rows = self.axis.lanes, scope.lanes // self.axis.lanes
        own, new = (element(accumulator, f"{p}{name}") for p in (prefix, step))
        hops = rows.bit_length() - 1
        first = f"round_begin{f' + {int(n) * rows}' if int(n) else ''}"
        out = code(
            f"row_last = min(int32(row_end - ({first})), {rows}) - 1\n"
            f"in_round = row_last >= max(int32(row_begin - ({first})), 0)\n"
            "row_last = max(row_last, 0)"
        )
        hop = self._moved(
            accumulator, new, f"segments.from_left({{}}, {lanes} << row_hop)"
        )
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
        """Combine what all lanes have of one row into what the row's lanes have."""
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
        """Return what brings a value from another lane."""
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
        """Store what lanes have accumulated, by those that have each feature first.

        One feature after the other: with all of them stored behind the last barrier,
        compilers kept the words of every box until then, 138 registers for 76 where a
        thread has 33 features, and 38 for 30 where a lane has 2 (sm_90).
        """
        facts, axis = self.facts, self.axis
        accumulator, home = facts.accumulators[name], home_of(facts, name)
        if home.is_staged:
            return []  # its tiles are there
        one, k = element(accumulator), facts.phase.width
        places = {"one": "0", "wide": "f", "element": "element"}
        place = places.get(home.shape, f"i * {k} + f")
        store = code(f"partials[{facts.binding.partial}, {place}] = {one}")
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
        """Combine over a block: by shuffles, then through shared memory, in order.

        So the result is repeatable. Some combines have no shuffles. The second part is
        for the lanes that take the result; a barrier has to follow.
        """
        lanes, boxed = self.axis.lanes, code("")
        shuffled = bool(accumulator.rules.shuffle)
        if shuffled and lanes < WARP:
            boxed += _shuffled(accumulator, [name], lanes, WARP)
        row = WARP if shuffled else lanes
        box = f"box_{box_dtypes(accumulator, self.facts.context.real)[0]}"
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
    """Combine the same lane of all groups that share a vertex, by shuffles."""
    four = "_4" if len(names) == 4 else ""
    if accumulator.is_arg:
        names = [*names, *map(source_name, names)]
    left = ", ".join(names)
    function = f"warp.edge_lane_{accumulator.rules.shuffle}{four}"
    return code(f"{left} = {function}({left}, {group}, {lanes})")


def box_dtypes(accumulator: Accumulator, real: Real) -> list[str]:
    """Return the types of the shared arrays that a combine over a block takes.

    A second one, "source", is that of the sources of argmin and argmax.
    """
    first = {"real": real, "bool": "int32"}.get(accumulator.type, accumulator.type)
    return [first, "source"] if accumulator.is_arg else [first]
