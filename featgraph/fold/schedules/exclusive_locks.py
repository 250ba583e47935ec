"""Schedules of exclusive functions with locks or tickets, without barriers.

*Edge locking* locks both ends of an edge; *tickets* run the edges of each vertex in
order. In *node locking*, a worker owns a vertex of the second side and locks the other
ends. A vertex then runs its edges one after the other, so a hub is a chain: on CUDA, a
warp owns one vertex at a time and tries the locks of its next edges together. An edge
whose lock is taken is deferred to a later pass; in edge locking, only after it has been
tried many times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping as Dict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from featgraph.base.dataclass import replace
from featgraph.fold.schedules.base import AnyInteger, Binding, GraphArray, KernelShape
from featgraph.fold.schedules.exclusive import (
    MEET,
    OWN,
    Each,
    EdgesToGroup,
    ExclusiveSchedule,
)
from featgraph.fold.schedules.exclusive_costs import EdgeSweep
from featgraph.fold.schedules.exclusive_groups import BLOCK_VERTICES, at_once
from featgraph.fold.schedules.mapping import BLOCK_THREADS, WARP, Mapping
from featgraph.fold.tree.nodes import Sweep
from featgraph.fold.tree.statements import Body, agreed, code, copied, noted, when

__all__ = [
    "EdgeLockedSchedule",
    "HybridSchedule",
    "NodeLockedSchedule",
    "TicketedSchedule",
]

if TYPE_CHECKING:
    from featgraph.graph.views.edge_orders import EdgeGroups


#: Attempts to lock an edge in a pass: the end of a pass is a barrier, and an edge that
#: is tried again soon has its rows in the cache. Of edges as given, 99M with 227,715 of
#: them at a hub, a sweep took 3.1 s with 32 attempts and 0.76 with as many as it needs;
#: of shuffled ones 371 and 373 ms (H200, 2026-11-30).
TRIES = 1 << 16
#: `FREE_BLOCKS` run on a multiprocessor where no vertex has more than `FEW_EDGES`; one
#: where a vertex has more than 1 / `SHARE` of all edges, as too many groups of lanes
#: would want its lock. By hand, 1, 2, 4 and 8 blocks took 385, 550, 757 and 965 ms with
#: 1 / 435 of the edges at a vertex, and 3.7, 3.5, 3.4 and 3.3 with 1 / 2,328.
FREE_BLOCKS, FEW_EDGES, SHARE = 8, 1000, 1000
#: The locks of an edge: that of a hub is taken last, and held for the shortest time.
_LOCKS = (
    "one, other = u if conflicts & 1 else v, v if conflicts & 2 else u\n"
    "lower, upper = (other, one) if source_last[at] else (one, other)\n"
)


#: The pass, and how many edges it has.
_PASSES = "turn, last = int64(0), int64(0)"
#: The end of a pass: what is left for the next one. One behind the turns that leaves as
#: much as it had has run nothing, and so would all others. Of four counters, a pass
#: reads its own, adds to the next one, and clears the one behind that, which is used
#: only after the next barrier.
_NEXT_PASS = f"""\
{MEET}
turn += 1
before, last = last, int64(arrived[turn & 3])
if cuda.grid(1) == 0:
    arrived[(turn + 2) & 3] = arrived[4 + ((turn + 2) & 3)] = 0
if turn > whole and last == before and last > 0:
    stalled[0] = 1
    return"""


#: Defer the edge at a place of the order: to the half of the list that the next pass
#: reads, while this one reads the other half.
_DEFER = """\
slot = cuda.atomic.add(arrived, (turn + 1) & 3, int64(1))
deferred[((turn + 1) & 1) * edge_order.shape[0] + slot] = {}"""


class _HeldSchedule(ExclusiveSchedule):
    """Base: an edge runs only if ``held`` is True."""

    is_repeatable = False
    holds = True

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        return replace(super().bind(mapping, shape), holds=True)

    def shared_flag(self, flag: str, binding: Binding) -> Body:
        """Return the broadcast of a flag from one lane to all lanes of an edge.

        It includes a fence, so that all lanes see memory as that lane does: a vote
        alone does not order memory.
        """
        scope = binding.scopes["edge"]
        return [*scope.any(flag, flag), *scope.sync()]

    def on_and_on(self, node: Sweep, look_up: Body, each: Body, groups: int) -> Body:
        """Return the loop over edges from ``first`` to ``last``.

        A group of lanes goes on as soon as ``is_next``, whether or not others of its
        warp have to try again. `look_up` binds the edge ``at`` a place, and `each`
        tries to run it.
        """
        take = code(
            f"{node.wanted} = place < last\nat = max(min(place, last - 1), 0)\nLOOK_UP",
            LOOK_UP=look_up,
        )
        front = code(f"place = first + warp_number * {groups} + own\nTAKE", TAKE=take)
        loop = code(
            f"while warp.group_any({node.wanted}, {WARP}):\n"
            "    BODY\n"
            "    if is_next:\n"
            f"        place += warps * {groups}\n"
            "        TAKE",
            BODY=each,
            TAKE=[copied(part) for part in take],
        )
        return front + agreed(noted(loop, "the whole warp"), "warp")


class EdgeLockedSchedule(_HeldSchedule):
    """Take edges in order, and lock both ends (EL).

    On CUDA an edge whose locks are not free after some tries is deferred. Passes go
    over the deferred edges until none is left. A thread of the CPU waits.
    """

    name = "edge_locked"
    resident, fitting = 2, FREE_BLOCKS
    options = MappingProxyType({"tries": AnyInteger(TRIES, 1)})
    passes = ", and one behind each pass"
    prepare_ns = 80
    locks = 3  # that of each end is tried, and both are released
    does = "edges in the order, both ends locked"

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return all edges as one group."""
        return at_once(edges)

    def blocks(self, sweep: EdgeSweep | None) -> int:
        """Return fewer blocks where a vertex has many of the edges."""
        if sweep is None:
            return self.resident
        if sweep.degree * SHARE > sweep.sizes.edges:
            return 1
        return FREE_BLOCKS if sweep.degree <= FEW_EDGES else self.resident

    def steps(self, sweep: EdgeSweep) -> tuple[float, float]:
        """Return a chain of updates and their locks."""
        return 0.0, sweep.degree * (sweep.free_us + sweep.card.lock_us)

    def arrays(
        self, mapping: Mapping, frontier_form: str = "plain"
    ) -> tuple[GraphArray, ...]:
        """Return the order, and which end of each edge is locked last."""
        lasts = GraphArray("source_last", dtype="bool")
        return (*super().arrays(mapping, frontier_form), lasts)

    def prepare(
        self, mapping: Mapping, view: Any, seed: int | None, conflicts: str,
        options: Dict[str, int],
    ) -> Dict[str, Any]:  # fmt: skip
        """Make the order, and compare the ends of each edge by (degree, id)."""
        made = super().prepare(mapping, view, seed, conflicts, options)
        degree = np.asarray(view.graph.in_degree) + np.asarray(view.graph.out_degree)
        u, v = made["order_sources"], made["order_targets"]
        by_id = (degree[u] == degree[v]) & (u > v)
        return {**made, "source_last": (degree[u] > degree[v]) | by_id}

    def run(self, body: Body, binding: Binding, shape: KernelShape) -> Body:
        """Return the statements that lock an edge around its update, or defer it."""
        if not shape.threads:
            wants = "all_sources or cpu.test_bit(sources, u)"
            held = code(f"inside_edge, held = True, {wants}\n{_LOCKS}")
            held += when(["held"], code("cpu.hold(locks, lower, upper)"))
            end = when(["held"], code("cpu.release(locks, lower, upper)"))
            return held + body + end
        only = ["lane == 0"] * (binding.features.lanes > 1)
        # No load polls the locks first: that took a third of the time (0092).
        out = code("held = False")
        out += when(["wants", *only], code("held = queues.hold(locks, lower, upper)"))
        out += self.shared_flag("held", binding)
        defer = code(_DEFER.format("at"))
        # All lanes have stored before one of them releases the locks.
        out += [*body, *code("warp.sync()")]
        free = code("queues.release(locks, lower, upper)")
        late = "is_late = wants and not held and tried >= tries"
        out += when(["held", *only], free) + code(f"tried += int32(1)\n{late}")
        out += when(["is_late", *only], defer)
        return out + code("is_next = held or is_late or not wants")

    def turn_loop(self, node: Sweep, each: Each, groups: int) -> Body:
        """Return the turns, and then passes over deferred edges."""
        front = code(f"{_PASSES}\nwhole = int64(turns.shape[0] - 1)")
        return front + self.passes_over(node, each(self.run), groups)

    def passes_over(self, node: Sweep, each: Body, groups: int) -> Body:
        """Return the turns from ``turn`` to ``whole``, and then the passes."""
        find = code("at = int64(deferred[(turn & 1) * edge_order.shape[0] + at])")
        head = 3 + len(node.values)
        look_up = when(["turn >= whole"], find) + each[:head]
        wants = f"{node.wanted} and (all_sources or warp.test_bit(sources, u))"
        look_up += code(f"wants = {wants}\n{_LOCKS}tried = int32(0)")
        loop = code(
            "while turn < whole or last > 0:\n"
            "    first = int64(0)\n"
            "    if turn < whole:\n"
            "        first, last = int64(turns[turn]), int64(turns[turn + 1])\n"
            "    BODY",
            BODY=self.on_and_on(node, look_up, each[head:], groups) + code(_NEXT_PASS),
        )
        return agreed(noted(loop, "the whole grid"), "block")


class TicketedSchedule(_HeldSchedule):
    """An edge waits until all earlier edges at its ends have run (ticket lock).

    Edges are taken level by level, so that every edge that another waits for was taken
    before it, and no deadlock arises. The result is that of `serial`, bit by bit.
    """

    name = "ticketed"
    is_repeatable = True
    resident = 4
    does = "edges in the order, each in its turn at both ends"
    prepare_ns = 100
    locks = 1

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return all edges as one group, ordered by level."""
        from featgraph.graph.views.edge_orders import levels

        ends = edges.sources, edges.targets, edges.order
        found = levels(*ends, edges.vertex_count, edges.conflicts or "uv")
        return at_once(replace(edges, order=found.order))

    def steps(self, sweep: EdgeSweep) -> tuple[float, float]:
        """Return a chain of updates; a ticket costs as much as a lock."""
        return 0.0, sweep.degree * (sweep.free_us + sweep.card.lock_us)

    def arrays(
        self, mapping: Mapping, frontier_form: str = "plain"
    ) -> tuple[GraphArray, ...]:
        """Return the order, and the ticket of each edge at its ends."""
        turns = (GraphArray(n, dtype="int32") for n in ("source_turns", "target_turns"))
        return (*super().arrays(mapping, frontier_form), *turns)

    def prepare(
        self, mapping: Mapping, view: Any, seed: int | None, conflicts: str,
        options: Dict[str, int],
    ) -> Dict[str, Any]:  # fmt: skip
        """Make the order and the tickets; -1 at an end without conflicts."""
        from featgraph.graph.views.edge_orders import tickets

        made = super().prepare(mapping, view, seed, conflicts, options)
        ends = made["order_sources"], made["order_targets"]
        sides: Any = conflicts or "uv"
        places = np.arange(made["edge_order"].size)
        turns = tickets(*ends, places, view.graph.vertex_count, sides)
        names = ("source_turns", "target_turns")
        return {**made, **dict(zip(names, turns.T, strict=True))}

    def run(self, body: Body, binding: Binding, shape: KernelShape) -> Body:
        """Return the statements that await the tickets of an edge, and release them."""
        at_target = "conflicts & 2 and (u != v or conflicts == 2)"
        if not shape.threads:
            out = code("held = all_sources or cpu.test_bit(sources, u)")
            for test, end, turns in (
                ("conflicts & 1", "u", "source"), (at_target, "v", "target"),
            ):  # fmt: skip
                wait = code(f"cpu.wait_for(locks, {end}, {turns}_turns[at])")
                out += when([test], wait)
            passed = when(["conflicts & 1"], code("cpu.pass_on(locks, u)"))
            return (
                out + body + passed + when([at_target], code("cpu.pass_on(locks, v)"))
            )
        only = ["lane == 0"] * (binding.features.lanes > 1)
        ask = code(
            "if conflicts & 1 and not is_first:\n"
            "    is_first = queues.has_turn(locks, u, turn_u)\n"
            "has_turns = is_first or not conflicts & 1\n"
            f"if has_turns and {at_target}:\n"
            "    has_turns = queues.has_turn(locks, v, turn_v)"
        )
        out = code("has_turns = False") + when(["inside_edge", *only], ask)
        out += self.shared_flag("has_turns", binding)
        out += code("held = has_turns and (all_sources or warp.test_bit(sources, u))")
        # The fence is the release: the update precedes the next tickets.
        passed = code(
            "queues.fence()\n"
            "if conflicts & 1:\n"
            "    cuda.atomic.add(locks, u, int32(1))\n"
            f"if {at_target}:\n"
            "    cuda.atomic.add(locks, v, int32(1))"
        )
        out += [*body, *code("warp.sync()"), *when(["has_turns", *only], passed)]
        return out + code(
            "is_next = has_turns or not inside_edge\n"
            "polls += int32(1)\n"
            "begun = queues.wait_begun(polls, begun)\n"
            "if begun < 0:\n"
            "    inside_edge, is_next, stalled[0] = False, False, 2"
        )

    def turn_loop(self, node: Sweep, each: Each, groups: int) -> Body:
        """Return a loop over all edges; one waits for earlier edges of the order alone.

        Groups of lanes take edges in the order, so that the first that has not run can.
        """
        body, head = each(self.run), 3 + len(node.values)
        look_up = body[:head] + code(
            "turn_u, turn_v = source_turns[at], target_turns[at]\n"
            "is_first, polls, begun = False, int32(0), int64(0)"
        )
        front = code("first, last = int64(0), int64(edge_order.shape[0])")
        return front + self.on_and_on(node, look_up, body[head:], groups)


#: Time of a vertex of few edges in a warp (us); time of an update in the chain of a
#: hub, over that in a task of edges.
VERTEX_US, CHAIN = 8, 1.4
#: Passes for each edge of the vertex of the first side that has most, for it has one
#: edge locked at a time; and such edges that the first pass of `hybrid` leaves. Fitted
#: to the shapes of `bench.sgd.shapes` (H200, 2026-11-30).
PASSES_A_DEGREE, LEFT_A_DEGREE = 0.18, 0.7
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

    Edges of a vertex are in memory order, since a chain waits for all of its loads, but
    rotated to begin with its first edge of the order: else all vertices would begin
    with the same other ends.
    """
    from featgraph.graph.views.edge_orders import rows, turn_rows

    found = rows(edges.sources, edges.targets, edges.order, "v")
    turn_rows(edges.targets, found.groups, found.order)
    return found


def first_pass(sweep: EdgeSweep, blocks: int) -> float:
    """Return the us of a pass over all vertices: tasks, and the chain of a hub."""
    sizes, update_us = sweep.sizes, CHAIN * sweep.held_us
    warps = blocks * sweep.card.multiprocessors * BLOCK_THREADS // WARP
    return sizes.vertices[1] * VERTEX_US / warps + sizes.degrees[1] * update_us


def run_in_turn(body: Body, binding: Binding, shape: KernelShape) -> Body:
    """Return the run of a locked edge by the first group of lanes of a warp.

    A warp barrier orders its writes before the next edges.
    """
    return [*code("held = own == 0"), *body, *code("warp.sync()")]


def over_vertices(node: Sweep, each: Each, find: Body, defer: Body, end: Body) -> Body:
    """Return a pass over vertices, from a shared counter; hubs come first.

    `find` computes ``at`` from a position, `defer` defers an edge if its lane has
    ``failed``, and `end` completes a vertex.
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
        "    got = queues.hold(locks, other, other)\n"
        # The lane of a lock has fenced: the barrier orders reads of the others, too.
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
        ASK=code("u, v, at = other, vertex, place") + node.prefetches,
        NEAR=code("\n".join(f"near_{n} = ordered_{n}[place]" for n in node.values)),
    )  # fmt: skip
    # A `range` takes two more registers, which makes 66 at 16 and 32 features.
    edges = code(f"while base < stop:\n    BODY\n    base += {AHEAD}", BODY=several)
    body = code(
        "first, stop, left = int64(tasks[task]), int64(tasks[task + 1]), int32(0)\n"
        "base, vertex = first, order_targets[first]"
    )
    if find:  # remaining edges are at the begin of the range of the vertex
        body += when(["turn > 0"], code("stop = first + locks[vertex]"))
    body += agreed(noted(edges, "the whole warp"), "warp") + end
    body += [copied(part) for part in take]
    loop = code("while task < tasks.shape[0] - 1:\n    BODY", BODY=body)
    return take + agreed(noted(loop, "the whole warp"), "warp")


class NodeLockedSchedule(_HeldSchedule):
    """A worker owns a vertex of the second side, and locks the other ends (NL).

    On CUDA, ``deferred`` holds the remaining edges of each vertex, in the range of the
    vertex, and ``locks`` their number, at the vertex. On the CPU, a thread waits.
    """

    name = "node_locked"
    needs_sides = True
    in_tasks = True
    passes = ", and one behind each pass"
    does = "vertex by vertex of the second side, the other ends locked"
    prepare_ns = 90

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return one task for each vertex of the second side with edges."""
        return by_target(edges)

    def steps(self, sweep: EdgeSweep) -> tuple[float, float]:
        """Return the passes, whose number grows with the first degree, and a pass."""
        first, degree = first_pass(sweep, self.resident), sweep.sizes.degrees[0]
        # So many of its edges wait for each other, if each is locked while a warp runs
        # a vertex, and they are spread over the first pass.
        passes = -PASSES_A_DEGREE * degree * math.expm1(-degree * VERTEX_US / first)
        return passes, first + passes * sweep.sizes.vertices[1] / sweep.warps

    def run(self, body: Body, binding: Binding, shape: KernelShape) -> Body:
        """Return the run of an edge with its source locked (CPU)."""
        out = code("held = all_sources or cpu.test_bit(sources, u)")
        locks = ["held", "conflicts & 1"]
        out += when(locks, code("cpu.hold(locks, u, u)"))
        return out + body + when(locks, code("cpu.release(locks, u, u)"))

    def turn_loop(self, node: Sweep, each: Each, groups: int) -> Body:
        """Return passes over the vertices, until no edge remains."""
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
        front = code(f"{_PASSES}\nwhole = int64(1)")
        loop = code(
            "while turn < whole or last > 0:\n    BODY", BODY=body + code(_NEXT_PASS)
        )
        return front + agreed(noted(loop, "the whole grid"), "block")


class HybridSchedule(EdgeLockedSchedule):
    """Take vertices in the first pass, and single edges in the others (Fig. 8).

    With `hubs`, the edges of so many vertices of the highest degree have both ends
    locked, behind the matchings of all other edges. A thread of the CPU waits, so no
    edge is left for a second pass.
    """

    name = "hybrid"
    resident = 4
    needs_sides = True
    in_tasks = True
    options = MappingProxyType({"tries": AnyInteger(TRIES, 1), "hubs": OWN})
    does = "vertex by vertex of the second side, and then edges that are left"
    prepare_ns = 100

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return tasks of vertices; with hubs, matchings and then edges of hubs."""
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
        """Return a pass over vertices, and the chain of remaining edges."""
        left = LEFT_A_DEGREE * sweep.sizes.degrees[0]
        locked = sweep.free_us + sweep.card.lock_us
        return 1.0, first_pass(sweep, self.blocks(sweep)) + left * locked

    def turn_loop(self, node: Sweep, each: Each, groups: int) -> Body:
        """Return a pass over vertices, if they are tasks; the turns; and the passes."""
        body = over_vertices(node, each, [], code(_DEFER.format("place")), [])
        body += code(f"{MEET}\nturn, last = whole, int64(arrived[1])")
        whole = when(["tasks.shape[0] > 1"], body)
        front = code(f"{_PASSES}\nwhole = int64(turns.shape[0] - 1)")
        front += agreed(noted(whole, "the whole grid"), "block")
        return front + self.passes_over(node, each(self.run), groups)
