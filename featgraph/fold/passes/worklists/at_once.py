"""Supersteps over few vertices of a GPU in which one edge settles a vertex (0082).

Any one contribution is enough for it, and it runs the rest at once: so blocks meet once
a superstep, nothing that gathers fill is in memory, and no list has what was met.
"""

from __future__ import annotations

from featgraph.fold.passes.nests.accumulators import found
from featgraph.fold.passes.nests.facts import Facts, element
from featgraph.fold.passes.worklists.common import Worklist
from featgraph.fold.passes.worklists.warps import (
    contributes,
    degree,
    each_edge,
    in_warps,
)
from featgraph.fold.tree.nodes import AllFound, Start
from featgraph.fold.tree.statements import Body, code, expression, when

__all__ = ["ends_if_again", "gather", "loop", "settled"]

_LOOP = """
step_number, meets = int64(0), int64(0)
BEGIN
meets = queues.meet(lists, meets)
while queues.goes_on(lists, step_number):
    rows, leaf_count, edge_count = queues.sizes_of(lists, step_number)
    queues.clear(lists, step_number)
    queues.watch(lists, step_number)
    GATHER
    meets = queues.meet(lists, meets)
    step_number += 1
queues.leave(lists, step_number)
"""


def loop(begin: Body, gather: Body) -> Body:
    """Return the loop over supersteps, each of which is `gather`."""
    return code(_LOOP, BEGIN=begin, GATHER=gather)


def settled(worklist: Worklist, facts: Facts) -> Body:
    """Return what `v` does by an edge from ``u``, if that finds everything.

    It returns whether `v` commits: once, whatever edges find it. All that is to be
    loaded before that is known is on its way at the same time. It is lowered with
    `facts`, by which what an edge finds is in registers.
    """
    filled = [facts.filled(f.name) for f in worklist.gathers]
    out = worklist.front() + [Start(a.name) for a in filled] + contributes(worklist)
    out += [AllFound([expression(found(a, element(a))) for a in filled])]
    out += code(
        "alive = goes_on_0(v, d)\n"
        "is_met = queues.is_unsettled(lists, v, step_number)\n"
        "is_met = is_met & alive & all_found & inside_edge\n"
        "alive = False"
    )
    written = frozenset(facts.phase.writes_next)
    commits = worklist.copied(written, commits=True) + ends_if_again("step_number")
    ends = when(["alive"], commits, worklist.dropped())
    out += when(["is_met"], code("is_met = queues.settles(lists, v, step_number)"))
    out += when(["is_met"], worklist.settled() + ends)
    return out + code("return alive")


def gather(worklist: Worklist) -> Body:
    """Return what settles vertices along the edges out of the sources."""
    body = degree(worklist) + code(
        "alive = settled_0(u, v, e, d, lists, step_number, inside_edge)\n"
        "queues.append_row(alive, v, out_degree, lists, step_number + 1)"
    )
    return in_warps(worklist) + each_edge(worklist, body)


def ends_if_again(number: str) -> Body:
    """Return what ends the loop where a source goes on: it waits for all edges."""
    return when(["goes_on_0(v, d)"], code(f"queues.end_behind(lists, {number})"))
