"""Rows that several blocks have: what each comes to, and how the last one goes on.

Each block leaves what its part of the row has come to in memory, and counts that it
has. The one that finds all others counted combines the parts in their order, so that
the result does not depend on which block that is, and goes on as if the row were its
own.
"""

from __future__ import annotations

import ast
import math
from functools import partial

from featgraph.fold.analysis.gathers import memory_dtype
from featgraph.fold.passes.nests.facts import Facts, element, shape_of
from featgraph.fold.passes.nests.homes import Home, home_of
from featgraph.fold.schedules.block import JOINED_ENTRIES
from featgraph.fold.tree.nodes import Features, Meet, Start
from featgraph.fold.tree.statements import Body, agreed, code, noted, when

__all__ = ["joined", "parts_of"]

#: Where blocks count that they have left a part: at the place of the row's first one.
MET = "joined_met"
_INDEX = {"one": "", "wide": ", f"}


def parts_of(facts: Facts) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the arrays of what parts come to: argument -> dtype and shape of one."""
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


def joined(facts: Facts, filled: list[str]) -> Body:
    """Return what joins the parts of a row; blocks but the last one end there."""
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
    # All that the block has stored is there before it counts as left.
    out += code("cuda.threadfence()\ncuda.syncthreads()\njoined_last = False")
    counted = f"cuda.atomic.add({MET}, joined_first, int32(1))"
    out += when(["thread == 0"], code(f"joined_last = {counted} == joined_count - 1"))
    out += code("joined_last = cuda.syncthreads_or(int32(joined_last)) != 0")
    leave = noted([ast.Continue()], "the whole block")
    out += agreed(when(["not joined_last"], leave), "block")
    # Nothing that was loaded before stands for what other blocks have stored.
    out += code("cuda.threadfence()\njoined_end = joined_first + joined_count")
    out += when(["thread == 0"], code(f"{MET}[joined_first] = 0"))
    out += [part for home in others for part in _taken(facts, home)]
    out += [part for home in staged for part in _summed(facts, home)]
    out += code("cuda.syncthreads()") if staged else []
    front = code("joined_count = joined_parts[uint32(place + uint32(4))]")
    return front + agreed(when(["joined_count > 1"], out), "block")


def _filled(facts: Facts) -> list[str]:
    """Return what the gathers of a phase fill, in order."""
    gathers = (f for f in facts.functions.values() if f.kind.gathers)
    return [str(f.into) for f in gathers]


def _array(facts: Facts, home: Home) -> str:
    """Return the array of what parts come to; no user can have named it."""
    return f"joined_{_filled(facts).index(home.name)}"


def _entry(facts: Facts, home: Home, place: str) -> str:
    """Return what a part has come to, of an element."""
    index = _INDEX.get(shape_of(home.accumulator), ", i, f")
    return f"{_array(facts, home)}[{place}{index}]"


def _left(facts: Facts, home: Home) -> Body:
    """Leave what all lanes have come to together, by those of one edge."""
    line = f"{_entry(facts, home, 'joined_part')} = {element(home.accumulator)}"
    alone = ["edge"] * (home.shape == "one")
    tests = facts.binding.one("vertex", *alone)
    return when(tests, [Features(home.shape, code(line), guarded=True)])


def _taken(facts: Facts, home: Home) -> Body:
    """Combine all parts: lanes take some of them each, as they do of edges."""
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


def _summed(facts: Facts, home: Home) -> Body:
    """Add up a matrix that is in memory: threads take some entries each."""
    accumulator = home.accumulator
    each = code(f"joined_sum = {accumulator.identity}")
    line = f"{_array(facts, home)}[joined_place, joined_entry]"
    each += code(
        "for joined_place in range(joined_first, joined_end):\n    BODY",
        BODY=code(accumulator.update("joined_sum", line)),
    )
    each += code(f"{home.name}[joined_row, joined_column] = joined_sum")
    return _each_entry(facts, home, each)


def _each_entry(facts: Facts, home: Home, each: Body) -> Body:
    """Do something for each entry of a matrix of the block that was stored."""
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
