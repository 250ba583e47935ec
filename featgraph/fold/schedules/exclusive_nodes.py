"""Schedules in which a worker owns a vertex of the second side, and locks the others.

A vertex has its edges run one after the other, so a hub is a chain: on CUDA a warp has
one vertex at a time, and tries the locks of its next edges at once. An edge whose lock
is not free is left for a later pass.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from featgraph.fold.schedules.base import AnyInteger, Binding, KernelShape
from featgraph.fold.schedules.exclusive import MEET, OWN, Each, EdgesToGroup
from featgraph.fold.schedules.exclusive_costs import THREADS, EdgeSweep
from featgraph.fold.schedules.exclusive_groups import BLOCK_VERTICES
from featgraph.fold.schedules.exclusive_locks import (
    CONTENDED,
    EDGES_A_TRY,
    NEXT_PASS,
    PASSES,
    TRIES,
    EdgeLockedSchedule,
    HeldSchedule,
)
from featgraph.fold.schedules.mapping import WARP
from featgraph.fold.tree.nodes import Sweep
from featgraph.fold.tree.statements import Body, agreed, code, copied, noted, when

if TYPE_CHECKING:
    from featgraph.graph.views.edge_orders import EdgeGroups

__all__ = ["HybridSchedule", "NodeLockedSchedule"]

#: What a vertex of few edges takes a warp (us); and the update of an edge in the chain
#: of a hub, in that of a task of edges.
VERTEX_US, CHAIN = 8, 1.4
#: Passes for each edge of the vertex of the first side that has most, for it has one
#: edge locked at a time; and such edges that the first pass of `hybrid` leaves. Fitted
#: to five shapes of `bench.sgd.shapes` (H200, 2026-11-28).
PASSES_A_DEGREE, LEFT_A_DEGREE = 0.18, 1.35
#: Edges of a vertex whose locks a warp tries at once. With more, a try (0.4 us, and as
#: much for the fences) is shared by more edges; but locks are held until all have run.
AHEAD = 16
#: The edge of which the lock is held by a lane, and its ends.
_AHEAD = (
    f"warp.broadcast(edge, leading, {WARP})",
    f"warp.broadcast(other, leading, {WARP})",
    "vertex",
    f"warp.broadcast(near_{{}}, leading, {WARP})",
)


def by_target(edges: EdgesToGroup) -> EdgeGroups:
    """Return a task for each vertex of the second side, by falling degree.

    A vertex has its edges as they lie in memory, since all loads of a chain are waited
    for, but from its first one in the order on: else all vertices would begin with the
    same other ends.
    """
    from featgraph.graph.views.edge_orders import rows, turn_rows

    found = rows(edges.sources, edges.targets, edges.order, "v")
    turn_rows(edges.targets, found.groups, found.order)
    return found


def first_pass(sweep: EdgeSweep) -> float:
    """Return us of a pass over all vertices: their tasks, and the chain of a hub."""
    workers = 2 * sweep.card.multiprocessors * THREADS // WARP
    tasks = sweep.sizes.vertices[1] * VERTEX_US / workers
    return tasks + sweep.sizes.degrees[1] * CHAIN * sweep.held_us


def run_in_turn(body: Body, binding: Binding, shape: KernelShape) -> Body:
    """Return what runs an edge whose lock the warp holds: its first group of lanes.

    Those that run the next edges see what it has written.
    """
    return [*code("held = own == 0"), *body, *code("warp.sync()")]


def over_vertices(node: Sweep, each: Each, find: Body, defer: Body, end: Body) -> Body:
    """Return a pass over vertices: a warp takes the next one, hubs first.

    `find` makes ``at`` of a place, `defer` puts it aside where its lane has ``failed``,
    and `end` ends a vertex.
    """
    take = code(
        "task = int64(0)\n"
        "if cuda.laneid == 0:\n"
        "    task = cuda.atomic.add(arrived, 4 + (turn & 3), int64(1))\n"
        f"task = warp.broadcast(task, 0, {WARP})"
    )
    one = code(
        "leading = warp.trailing_zeros(ahead)\n"
        "ahead = uint32(ahead & (ahead - uint32(1)))\n"
        "BODY",
        BODY=each(run_in_turn, _AHEAD),
    )
    run = agreed(noted(code("while ahead != 0:\n    BODY", BODY=one), "the whole warp"),
                 "warp")  # fmt: skip
    several = code(
        f"wants = cuda.laneid < {AHEAD} and base + cuda.laneid < stop\n"
        "place = min(base + cuda.laneid, stop - 1)\n"
        "FIND\n"
        "edge, other = edge_order[place], int32(order_sources[place])\n"
        "NEAR\n"
        "wants = wants and (all_sources or warp.test_bit(sources, other))\n"
        "got = wants\n"
        "if wants and conflicts & 1:\n"
        "    got = queues.hold(locks, other, other, 1)\n"
        f"ahead = warp.group_bits(got, {WARP})\n"
        "warp.sync()\n"
        "ASK\n"
        f"{node.wanted} = True\n"
        "RUN\n"
        "if got and conflicts & 1:\n"
        "    queues.release(locks, other, other)\n"
        f"failed = warp.group_bits(wants and not got, {WARP})\n"
        "if wants and not got:\n"
        "    DEFER\n"
        "left += warp.count_bits(failed)",
        FIND=find, RUN=run, DEFER=defer,
        ASK=code("u, v, at = other, vertex, place") + node.asks,
        NEAR=code("\n".join(f"near_{n} = ordered_{n}[place]" for n in node.values)),
    )  # fmt: skip
    # A `range` takes two more registers, which makes 66 at 16 and 32 features.
    edges = code(f"while base < stop:\n    BODY\n    base += {AHEAD}", BODY=several)
    body = code(
        "first, stop, left = int64(tasks[task]), int64(tasks[task + 1]), int32(0)\n"
        "base, vertex = first, order_targets[first]"
    )
    if find:  # where the vertex begins stand those that are left
        body += when(["turn > 0"], code("stop = first + locks[vertex]"))
    body += agreed(noted(edges, "the whole warp"), "warp") + end
    body += [copied(part) for part in take]
    loop = code("while task < tasks.shape[0] - 1:\n    BODY", BODY=body)
    return take + agreed(noted(loop, "the whole warp"), "warp")


class NodeLockedSchedule(HeldSchedule):
    """A worker takes a vertex of the second side, and locks the other ends (NL).

    On CUDA, ``deferred`` has the edges that are left of each vertex, where those of the
    vertex begin, and ``locks`` their number, at the vertex. A thread of the CPU waits.
    """

    name = "node_locked"
    needs_sides = True
    in_tasks = True
    passes = ", and one behind each pass"
    does = "vertex by vertex of the second side, the other ends locked"
    prepare_ns = 90

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return a task for each vertex of the second side that has edges."""
        return by_target(edges)

    def steps(self, sweep: EdgeSweep) -> tuple[float, float]:
        """Return the passes, which users of many items cause, and a pass over hubs."""
        passes = PASSES_A_DEGREE * sweep.sizes.degrees[0]
        workers = 2 * sweep.card.multiprocessors * THREADS // WARP
        return passes, first_pass(sweep) + passes * sweep.sizes.vertices[1] / workers

    def run(self, body: Body, binding: Binding, shape: KernelShape) -> Body:
        """Return what runs an edge with its source locked (CPU)."""
        out = code("held = all_sources or cpu.test_bit(sources, u)")
        locks = ["held", "conflicts & 1"]
        out += when(locks, code("cpu.hold(locks, u, u)"))
        return out + body + when(locks, code("cpu.release(locks, u, u)"))

    def turn_loop(self, node: Sweep, each: Each, groups: int) -> Body:
        """Return passes over the vertices, until no edge is left."""
        find = when(["turn > 0"], code("place = int64(deferred[place])"))
        defer = code(
            "below = uint32((uint32(1) << uint32(cuda.laneid)) - uint32(1))\n"
            "slot = first + left + warp.count_bits(failed & below)\n"
            "deferred[slot] = place"
        )
        end = code(
            "if cuda.laneid == 0:\n"
            "    locks[vertex] = left\n"
            "    if left > 0:\n"
            "        cuda.atomic.add(arrived, (turn + 1) & 3, int64(left))"
        )
        body = over_vertices(node, each, find, defer, end)
        front = code(f"{PASSES}\nwhole = int64(1)")
        loop = code(
            "while turn < whole or last > 0:\n    BODY", BODY=body + code(NEXT_PASS)
        )
        return front + agreed(noted(loop, "the whole grid"), "block")


class HybridSchedule(EdgeLockedSchedule):
    """The first pass takes vertices, and the others single edges (Fig. 8).

    With `hubs`, the edges of so many vertices of the highest degree have both ends
    locked, behind the matchings of all other edges. A thread of the CPU waits, so no
    edge is left for a second pass.
    """

    name = "hybrid"
    needs_sides = True
    in_tasks = True
    options = MappingProxyType({"tries": AnyInteger(TRIES, 1), "hubs": OWN})
    does = "vertex by vertex of the second side, and then edges that are left"
    prepare_ns = 100

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return tasks of vertices, or matchings and behind them the edges of hubs."""
        from featgraph.graph.views.edge_orders import EdgeGroups, subgraph_matching

        count = edges.options.get("hubs")
        if not count:
            return by_target(edges)
        degree = sum(
            np.bincount(ends, minlength=edges.vertex_count)
            for ends in (edges.sources, edges.targets)
        )
        is_hub = np.zeros(edges.vertex_count, np.bool_)
        is_hub[np.argsort(-degree, kind="stable")[:count]] = True
        ends, order = (edges.sources, edges.targets), edges.order
        apart = is_hub[ends[0][order]] | is_hub[ends[1][order]]
        sizes = edges.vertex_count, edges.first, BLOCK_VERTICES
        rest = subgraph_matching(*ends, order[~apart], *sizes)
        groups = np.append(rest.groups, len(order))
        return EdgeGroups(np.concatenate([rest.order, order[apart]]), groups)

    def steps(self, sweep: EdgeSweep) -> tuple[float, float]:
        """Return a pass over vertices, and the chain of edges that are left."""
        left = LEFT_A_DEGREE * sweep.sizes.degrees[0]
        locked = sweep.free_us + CONTENDED * sweep.card.lock_us
        return left / EDGES_A_TRY, first_pass(sweep) + left * locked

    def edge_us(self, sweep: EdgeSweep) -> float:
        """Return nothing: the first pass has all edges in its tasks."""
        return 0.0

    def turn_loop(self, node: Sweep, each: Each, groups: int) -> Body:
        """Return a pass over vertices, if they are tasks; the turns; and the passes."""
        defer = code(
            "slot = cuda.atomic.add(arrived, (turn + 1) & 3, int64(1))\n"
            "deferred[((turn + 1) & 1) * edge_order.shape[0] + slot] = place"
        )
        body = over_vertices(node, each, [], defer, [])
        body += code(f"{MEET}\nturn, last = whole, int64(arrived[1])")
        whole = when(["tasks.shape[0] > 1"], body)
        front = code(f"{PASSES}\nwhole = int64(turns.shape[0] - 1)")
        front += agreed(noted(whole, "the whole grid"), "block")
        return front + self.passes_over(node, each(self.run), groups)
