"""The passes from a phase of a plan to the statements of a kernel, in order.

Each goes from tree to tree. What may stand in a tree behind each of them is verified in
tests (`tree.verify`), where `verifying` is set.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator

from featgraph.fold.passes.nests.blocks import Blocks
from featgraph.fold.passes.nests.converge import Converge
from featgraph.fold.passes.nests.diverge import Diverge, PulledEdges, StoreForwarding
from featgraph.fold.passes.nests.facts import Facts
from featgraph.fold.passes.nests.features import Unrolled
from featgraph.fold.passes.nests.gathers import (
    Accumulators,
    ActiveSources,
    ChangeDriven,
    EarlyExit,
    LeaveEarly,
)
from featgraph.fold.passes.nests.homes import Homes
from featgraph.fold.passes.nests.leaves import Leaves
from featgraph.fold.passes.nests.meets import DeclareAreas, Meets
from featgraph.fold.passes.nests.triangles import Intersections, Sums
from featgraph.fold.tree import nodes
from featgraph.fold.tree.passes import Pass, run
from featgraph.fold.tree.statements import Body
from featgraph.fold.tree.verify import Stage

__all__ = ["PASSES", "lower", "stages_of"]


def stages(facts: Facts, tree: Body) -> Body:
    """Say what the phase does.

    Nothing of where it runs stands here, so that all schedules begin with one tree.
    """
    own = facts.phase.kind.nest(facts) if facts.nest is None else facts.nest()
    return tree + own


def pulled_edges(facts: Facts, tree: Body) -> Body:
    """Have edge functions run on the edges that gathers go over behind them.

    What they write is then contiguous, and at hand where it is read.
    """
    return PulledEdges(facts).over(tree)


def store_forwarding(facts: Facts, tree: Body) -> Body:
    """Have what edge functions write reach gathers in registers, and be stored once.

    Where they are not the only ones to touch it, nothing is forwarded.
    """
    return StoreForwarding(facts).over(tree) if facts.context.forwarded else tree


def change_driven(facts: Facts, tree: Body) -> Body:
    """Have aggregates stay in memory, and take the change of changed sources.

    Near the end of a run few sources change, and a change costs less than all edges.
    """
    return ChangeDriven(facts).over(tree)


def active_sources(facts: Facts, tree: Body) -> Body:
    """Have gathers that say so leave out edges from vertices that are not active.

    What they would contribute is nothing; the test costs a bit and saves their values.
    """
    return ActiveSources(facts).over(tree)


def early_exit(facts: Facts, tree: Body) -> Body:
    """Have gathers leave their edges when nothing that follows can change them.

    Many a row is read to its first edge or two only.
    """
    return EarlyExit(facts).over(tree)


def leave_early(facts: Facts, tree: Body) -> Body:
    """Have a lane that is alone leave vertices for which nothing need be gathered.

    What a vertex function refuses by its own values costs no edge then. Lanes that
    share a warp would wait for the others.
    """
    return LeaveEarly(facts).over(tree) if facts.binding.leaves_early else tree


def accumulators(facts: Facts, tree: Body) -> Body:
    """Start what gathers fill, and have lanes combine what each of them has.

    Lanes that share a vertex have a part of its edges each.
    """
    return Accumulators(facts).over(tree)


def intersections(facts: Facts, tree: Body) -> Body:
    """Have rows of neighbors intersected, so that what both have closes a triangle.

    A schedule says which corner comes first, how members of the other two are found,
    and how long what is added at each may wait.
    """
    return Intersections(facts).over(tree)


def sums(facts: Facts, tree: Body) -> Body:
    """Say what becomes of what triangle functions add.

    Many triangles of a vertex or edge come one after the other: they add in registers,
    and to memory once.
    """
    return Sums(facts).over(tree)


def share(facts: Facts, tree: Body) -> Body:
    """Make tests branches for a lane that is alone, masks for lanes that meet.

    All lanes of a warp take part in a shuffle, so that none of them may be elsewhere.
    """
    one = Converge if facts.binding.meets else Diverge
    return one(facts).over(tree)


def sweep(facts: Facts, tree: Body) -> Body:
    """Put the loop over vertices around what is done for one.

    A schedule says which lane comes to which vertex, and how passed ones are marked.
    What stands in front of the loop comes behind the names and areas it works with.
    """
    sweeps = [node for node in tree if isinstance(node, nodes.Sweep)]
    if not sweeps:
        return tree  # it goes through vertices its own way
    [node] = sweeps
    place = tree.index(node)
    swept = facts.schedule.sweep(node, facts.binding, facts.shape)
    [areas] = [n for n, part in enumerate(swept, 1) if isinstance(part, nodes.Areas)]
    body = [*swept[:areas], *tree[:place], *swept[areas:], *tree[place + 1 :]]
    return facts.schedule.around(body, facts.shape)


def meets(facts: Facts, tree: Body) -> Body:
    """Say how lanes meet.

    How many they are says whether that takes shuffles, a barrier, or nothing at all.
    """
    return Meets(facts).over(tree)


def blocks(facts: Facts, tree: Body) -> Body:
    """Say where the sums of blocks wait, and how they are added up.

    Sums of many terms, one after the other, lose a rounding with each: long rows are
    summed in blocks.
    """
    return Blocks(facts).over(tree)


def homes(facts: Facts, tree: Body) -> Body:
    """Say what is done with sums that are not with a lane's other values.

    Vectors, and rows that wait to be added to a matrix, take contributions their own
    way; behind the last one all functions find them alike.
    """
    return Homes(facts).over(tree)


def leaves(facts: Facts, tree: Body) -> Body:
    """Say what is done with values, for one feature.

    Loads, calls and atomics are the same however features go to lanes.
    """
    return Leaves(facts).over(tree)


def areas(facts: Facts, tree: Body) -> Body:
    """Declare the memory that lanes work in.

    Only now is known what needs any; on CUDA a block shares it.
    """
    return DeclareAreas(facts).over(tree)


def features(facts: Facts, tree: Body) -> Body:
    """Give each lane its features.

    Few of them are variables, which stay in registers; many are loops over arrays.
    """
    return Unrolled(facts.binding.features).over(tree)


PASSES = (
    Pass(stages),
    Pass(pulled_edges, (nodes.Pull,)),
    Pass(store_forwarding),
    Pass(change_driven),
    Pass(active_sources),
    Pass(early_exit),
    Pass(leave_early),
    Pass(accumulators, (nodes.Gathers,)),
    Pass(intersections, (nodes.Intersect,)),
    Pass(sums, (nodes.FromPlace, nodes.Places, nodes.Triangle, nodes.Waits)),
    Pass(
        share,
        (
            nodes.Ahead,
            nodes.Begin,
            nodes.FindDue,
            nodes.ForEdges,
            nodes.Incremental,
            nodes.Mark,
            nodes.Only,
            nodes.Ordered,
            nodes.Passed,
            nodes.Reached,
            nodes.Restore,
            nodes.Run,
            nodes.Then,
        ),
    ),
    Pass(sweep, (nodes.Sweep,)),
    Pass(meets, (nodes.Meet,)),
    Pass(blocks, (nodes.PutBy, nodes.AddUp)),
    Pass(homes, (nodes.AddStaged, nodes.Finish, nodes.Settle, nodes.Stage)),
    Pass(
        leaves,
        (
            nodes.BeginPatch,
            nodes.Called,
            nodes.Contribute,
            nodes.Copy,
            nodes.FinishPatch,
            nodes.FromMemory,
            nodes.Patch,
            nodes.Push,
            nodes.Select,
            nodes.Share,
            nodes.Start,
            nodes.Stop,
            nodes.ToMemory,
            nodes.Verdict,
        ),
    ),
    Pass(areas, (nodes.Areas,)),
    Pass(
        features,
        (
            nodes.AllFound,
            nodes.AnyFeature,
            nodes.Features,
            nodes.FromRow,
            nodes.Returned,
            nodes.ToRow,
        ),
    ),
)


def lower(facts: Facts) -> Body:
    """Return the statements of a kernel."""
    for one, tree in stages_of(facts):
        if facts.context.watch is not None:
            facts.context.watch(facts.title, one, tree)
    return tree


def stages_of(facts: Facts) -> Iterator[tuple[Pass[Facts], Body]]:
    """Yield each pass, and the tree behind it; the next pass goes on with that."""

    def stage_of(one: Pass[Facts]) -> Stage:
        given = _given(facts) if one is PASSES[-1] else None
        return Stage((), _companies(facts), given)

    return run(PASSES, facts, stage_of)


def _companies(facts: Facts) -> dict[str, str]:
    """Return which lanes have to come along where the lanes of a scope meet."""
    scopes = facts.binding.scopes.items()
    return {name: s.company if s.lanes > 1 else "" for name, s in scopes}


def _given(facts: Facts) -> set[str]:
    """Return the names that a kernel has from its arguments, and from its module."""
    functions = {p.name for p in facts.callees.values()}
    parts = ("row", "column", "scale")  # of outer products, functions of their own
    functions |= {f"{name}_{part}" for name in functions for part in parts}
    functions |= {helper.name for helper in facts.plan.analysis.helpers}
    return {*facts.arguments, *functions, *_MODULE, *dir(builtins)}


#: What modules import, for either target.
_MODULE = frozenset(
    {
        "block_tiles",
        "boolean",
        "cpu",
        "cuda",
        "float32",
        "float64",
        "int32",
        "int64",
        "math",
        "np",
        "queues",
        "segments",
        "tiles",
        "uint32",
        "uint64",
        "vectors",
        "warp",
    }
)
