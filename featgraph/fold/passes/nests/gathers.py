"""Passes over gathers: the edges they walk, early exits, accumulators, and parts.

The classes are passes: `ChangeDriven`, `ActiveSources`, `EarlyExit`, `LeaveEarly` and
`Accumulators`, in the order in which they run.

Rows of hubs may be cut into parts for several blocks (`_joined`). Each block stores the
result of its part, then increments a counter of the row (release). The block that finds
all others counted (acquire) combines the parts in order, so the result does not depend
on which block is last, and continues as if the whole row were its own.
"""

from __future__ import annotations

import ast
import math
from functools import partial

from featgraph.fold.analysis.gathers import in_blocks, memory_dtype, takes_active
from featgraph.fold.passes.bodies.memory import lowered
from featgraph.fold.passes.bodies.stores import leaving_test
from featgraph.fold.passes.nests.facts import NestFacts, element, shape_of
from featgraph.fold.passes.nests.homes import Home, home_of
from featgraph.fold.schedules.block import JOINED_ENTRIES
from featgraph.fold.tree.nodes import (
    Begin,
    Comment,
    Contribute,
    Features,
    Finish,
    ForEdges,
    Gathers,
    Incremental,
    Meet,
    Only,
    Patch,
    Reached,
    Restore,
    Settle,
    Share,
    Start,
    Stop,
    Sweep,
    Then,
)
from featgraph.fold.tree.statements import (
    Access,
    Body,
    Rewriting,
    agreed,
    code,
    every,
    expression,
    noted,
    when,
)

__all__ = [
    "Accumulators",
    "ActiveSources",
    "ChangeDriven",
    "EarlyExit",
    "LeaveEarly",
    "part_arrays",
]


class _OfGathers(Rewriting):
    def __init__(self, facts: NestFacts) -> None:
        self.facts = facts


class ChangeDriven(_OfGathers):
    """Keep aggregates in memory, and patch them with changes of sources (0003)."""

    def visit_Gathers(self, node: Gathers) -> Body:
        """Separate incremental gathers from the others."""
        facts = self.facts
        incremental = tuple(
            f for f in node.functions if facts.incremental(f) is not None
        )
        others = tuple(f for f in node.functions if f not in incremental)
        if not incremental:
            return [node]
        patched = tuple(f for f in incremental if not facts.is_constant(f))
        changed = expression(f"{facts.intrinsics}.test_bit(changed_sources, u)")
        only = Only(changed, [Patch(f) for f in patched], seldom=True)
        prefix = "all_" if facts.renews_aside(incremental) else ""
        out: Body = [
            Incremental(
                incremental,
                patched,
                ForEdges("v", [only]),
                [_gathered(incremental, prefix)],
            )
        ]
        return [*out, *([_gathered(others)] if others else [])]


class ActiveSources(_OfGathers):
    """Restrict gathers with ``sources="active"`` to edges from active vertices."""

    def visit_Gathers(self, node: Gathers) -> Body:
        """Test the source of an edge, and whether it makes the vertex due."""
        function, facts = self.facts.functions[node.functions[0]], self.facts
        if not (takes_active(function) and facts.plan.takes_active(facts.phase)):
            return [node]
        active = f"{facts.intrinsics}.test_bit(active_sources, {{}})"
        body, reached = node.edges.body, list[ast.stmt]()
        if facts.finds_due:
            reached.append(Reached())
        takes: Body = [part for part in body if isinstance(part, Contribute)]
        others = [part for part in body if part not in takes]
        only = Only(expression(active.format("u")), [*reached, *takes])
        node.edges.body = [*others, only]
        if not reached:
            return [node]
        out: Body = [*code("is_reached = False"), node]
        if facts.binding.walk.lanes > 1:
            out.append(Meet("any", "vertex", ("is_reached", "is_reached")))
        is_due = f"not some_due or is_reached or {active.format('v')}"
        return out + code(f"alive = alive and ({is_due})")


class EarlyExit(_OfGathers):
    """Leave the edges of gathers when no further edge changes the result."""

    def visit_Gathers(self, node: Gathers) -> Gathers:
        """Add an exit behind the contributions, if all gathers of the walk may stop."""
        filled = [self.facts.filled(f).name for f in node.functions]
        if all(name in self.facts.phase.stops for name in filled):
            body = node.edges.body
            for inner in body:  # contributions may stand under a test
                body = inner.body if isinstance(inner, Only) else body
            body.append(Stop(node.functions))
        return node


class LeaveEarly(_OfGathers):
    """Skip gathers of a vertex whose function returns False at once."""

    def visit_Sweep(self, node: Sweep) -> Sweep:
        """Put the test of the early return first, if it reads no gathered value."""
        test = self._test()
        if test is not None:
            begins = [s for s in node.body if isinstance(s, Begin)]
            begins[0].leaves = test
            behind = node.body.index(begins[0]) + 1
            last = [s for s in node.body[behind:] if isinstance(s, Restore)]
            rest = [s for s in node.body[behind:] if s not in last]
            node.body[behind:] = [Then(rest), *last]
        return node

    def _test(self) -> ast.expr | None:
        """Return the test of the early return of the function behind the gathers.

        There is none if incremental aggregates or later phases need the gathers.
        """
        facts, phase = self.facts, self.facts.phase
        if phase.incremental or phase.stores or phase.commits or phase.kind.pulls_edges:
            return None
        if facts.context.checked is not None:
            return None
        functions = list(facts.functions.values())
        rest = [f for f in functions if not f.kind.gathers]
        if not functions[0].kind.gathers or not rest:
            return None
        test = leaving_test(rest[0])
        own = set(facts.plan.analysis.signature)
        if test is None:
            return None
        read = {n.name for n in every([test]) if isinstance(n, Access)}
        if not read <= own:
            return None
        return lowered(test, facts.context.memory(rest[0]))


class Accumulators(_OfGathers):
    """Put initial values of accumulators in front of a walk, combines behind it."""

    def visit_Gathers(self, node: Gathers) -> Body:
        """Initialize accumulators; combine over lanes of a vertex behind the walk."""
        facts, prefix = self.facts, node.prefix
        filled = [facts.filled(f).name for f in node.functions]
        matrices = [
            home_of(facts, n) for n in filled if facts.accumulators[n].is_matrix
        ]
        apart = any(home.shape != "matrix" for home in matrices)
        in_memory = any(home.shape == "matrix" for home in matrices)
        # Lanes may still read the matrix of their last vertex.
        out: Body = [Meet("sync", "edge")] if in_memory else []
        for function, name in zip(node.functions, filled, strict=True):
            if not prefix and not facts.incremental(function):
                out.append(announced(facts, function))
            out.append(Start(name, prefix))
        node.edges.summed, node.edges.prefix = summed(facts, node.functions), prefix
        node.edges.behind = [Settle(name, prefix) for name in filled]
        out.append(node.edges)
        if facts.binding.walk.lanes > 1:
            out += [
                Meet("combine", "vertex", (name, prefix))
                for name in filled
                if not home_of(facts, name).is_staged
            ]
        rest = filled
        if facts.binding.joins:
            # A staged matrix must be in memory first: parts are stored from there.
            rest = [name for name in filled if not home_of(facts, name).is_staged]
            out += [Finish(name) for name in filled if name not in rest]
            out += _joined(facts, filled)
        # Likewise, where only the finished sum goes to memory.
        out += [Meet("sync", "edge")] if apart else []
        out += [Finish(name) for name in rest]
        out += [Meet("sync", "edge")] if matrices else []
        return [*out, Share(node.functions)]

    def visit_Incremental(self, node: Incremental) -> Body:
        """Sum patches in blocks, like the aggregates that they change.

        Single entries are broadcast behind both branches, patching and recomputing.
        """
        node.patch.summed = summed(self.facts, node.patched)
        anew = self.over(node.anew)
        shared: Body = [part for part in anew if isinstance(part, Share)]
        node.anew = [part for part in anew if part not in shared]
        return [node, *shared]


def announced(facts: NestFacts, function: str) -> Comment:
    """Return the comment in front of a gather, which names its combine."""
    accumulator, how = facts.filled(function), facts.incremental(function)
    note = "" if how is None else ", change-driven"
    if how is not None and how.is_constant:
        note = ", change-driven: nothing that it reads changes"
    name = facts.functions[function].declared.name
    return Comment(
        f"gather {name}: {accumulator.combine.name} into {accumulator.name}{note}"
    )


def summed(facts: NestFacts, functions: tuple[str, ...]) -> tuple[str, ...]:
    """Return the accumulators summed in blocks, since rows may be long."""
    if not facts.binding.block:
        return ()
    return tuple(
        facts.filled(f).name for f in functions if in_blocks(facts.functions[f])
    )


def _gathered(functions: tuple[str, ...], prefix: str = "") -> Gathers:
    edges = ForEdges("v", [Contribute(name, prefix) for name in functions])
    return Gathers(functions, edges, prefix)


#: Array of the counters of stored parts, one for each row, at its first part.
MET = "joined_met"
#: Shape of an accumulator -> indices of its elements behind the number of a part.
_INDEX = {"one": "", "wide": ", f"}


def part_arrays(facts: NestFacts) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the arrays of results of parts: argument -> dtype and item shape."""
    if not facts.binding.joins:
        return {}
    found: dict[str, tuple[str, tuple[int, ...]]] = {MET: ("int32", ())}
    for home in map(partial(home_of, facts), _filled(facts)):
        accumulator = home.accumulator
        shape = accumulator.shape
        if home.is_staged:
            shape = (math.prod(home.areas()[0].shape),)
        dtype = memory_dtype(accumulator.type, facts.context.real)
        found[_array(facts, home)] = dtype, shape
    return found


def _joined(facts: NestFacts, filled: list[str]) -> Body:
    """Return the statements that combine the parts of a row, in the last block.

    All other blocks continue with their next part.
    """
    homes = [home_of(facts, name) for name in filled]
    staged = [home for home in homes if home.is_staged]
    others = [home for home in homes if not home.is_staged]
    out = code(
        f"joined_first = joined_parts[uint32(place + uint32(3))]\n"
        f"joined_part = place // uint32({JOINED_ENTRIES})"
    )
    out += [part for home in others for part in _left(facts, home)]
    for home in staged:
        entry = f"{_array(facts, home)}[joined_part, joined_entry]"
        own = f"{home.name}[joined_row, joined_column]"
        out += _each_entry(facts, home, code(f"{entry} = {own}"))
    # Release: all stores of the block precede the increment of the counter.
    out += code("cuda.threadfence()\ncuda.syncthreads()\njoined_last = False")
    counted = f"cuda.atomic.add({MET}, joined_first, int32(1))"
    out += when(["thread == 0"], code(f"joined_last = {counted} == joined_count - 1"))
    out += code("joined_last = cuda.syncthreads_or(int32(joined_last)) != 0")
    leave = noted([ast.Continue()], "the whole block")
    out += agreed(when(["not joined_last"], leave), "block")
    # Acquire: loads of other parts follow the read of the counter.
    out += code("cuda.threadfence()\njoined_end = joined_first + joined_count")
    # All parts are counted: the next superstep counts from 0 again.
    out += when(["thread == 0"], code(f"{MET}[joined_first] = 0"))
    out += [part for home in others for part in _taken(facts, home)]
    out += [part for home in staged for part in _summed(facts, home)]
    out += code("cuda.syncthreads()") if staged else []
    front = code("joined_count = joined_parts[uint32(place + uint32(4))]")
    return front + agreed(when(["joined_count > 1"], out), "block")


def _filled(facts: NestFacts) -> list[str]:
    """Return the accumulators of the gathers of a phase, in order."""
    gathers = (f for f in facts.functions.values() if f.kind.gathers)
    return [str(f.into) for f in gathers]


def _array(facts: NestFacts, home: Home) -> str:
    """Return the array of results of parts; no user name can equal it."""
    return f"joined_{_filled(facts).index(home.name)}"


def _entry(facts: NestFacts, home: Home, place: str) -> str:
    """Return an element of the result of a part."""
    index = _INDEX.get(shape_of(home.accumulator), ", i, f")
    return f"{_array(facts, home)}[{place}{index}]"


def _left(facts: NestFacts, home: Home) -> Body:
    """Store the combined result of all lanes, by the lanes of one edge."""
    line = f"{_entry(facts, home, 'joined_part')} = {element(home.accumulator)}"
    alone = ["edge"] * (home.shape == "one")
    tests = facts.binding.one("vertex", *alone)
    return when(tests, [Features(home.shape, code(line), guarded=True)])


def _taken(facts: NestFacts, home: Home) -> Body:
    """Combine the results of all parts, which lanes share like edges."""
    accumulator, walk = home.accumulator, facts.binding.walk
    value = _entry(facts, home, "joined_place")
    line = accumulator.update(element(accumulator), value)
    own = f" + {walk.own}" if walk.own else ""
    places = f"range(joined_first{own}, joined_end, {walk.lanes})"
    # A loop for each element: loads of all at a time would take registers.
    loop = code(f"for joined_place in {places}:\n    {line}")
    meet: Body = [Meet("combine", "vertex", (home.name, ""))]
    taken: Body = [Start(home.name), Features(home.shape, loop)]
    return taken + (meet if walk.lanes > 1 else [])


def _summed(facts: NestFacts, home: Home) -> Body:
    """Add the parts of a matrix in memory, its entries distributed over threads."""
    accumulator = home.accumulator
    each = code(f"joined_sum = {accumulator.identity}")
    line = f"{_array(facts, home)}[joined_place, joined_entry]"
    each += code(
        "for joined_place in range(joined_first, joined_end):\n    BODY",
        BODY=code(accumulator.update("joined_sum", line)),
    )
    each += code(f"{home.name}[joined_row, joined_column] = joined_sum")
    return _each_entry(facts, home, each)


def _each_entry(facts: NestFacts, home: Home, each: Body) -> Body:
    """Loop over the stored entries of a matrix of the block."""
    [area] = home.areas()
    side, tile = area.shape[0], facts.phase.mapping.tile
    tests = []
    if home.is_one_triangle:  # of tiles
        tests = [f"joined_column // {tile} <= joined_row // {tile}"]
    body = code(
        f"joined_row = joined_entry // {side}\njoined_column = joined_entry % {side}"
    )
    entries = f"range(int32(thread), {side * side}, {facts.threads})"
    loop = f"for joined_entry in {entries}:\n    BODY"
    return code(loop, BODY=body + when(tests, each))
