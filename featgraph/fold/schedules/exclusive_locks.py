"""Schedules in which an edge waits for others, and no barrier stands between edges."""

from __future__ import annotations

from collections.abc import Mapping as Dict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from featgraph.base.dataclass import replace
from featgraph.fold.schedules.base import AnyInteger, Binding, GraphArray, KernelShape
from featgraph.fold.schedules.exclusive import (
    MEET,
    Each,
    EdgesToGroup,
    ExclusiveSchedule,
)
from featgraph.fold.schedules.exclusive_costs import EdgeSweep
from featgraph.fold.schedules.exclusive_groups import at_once
from featgraph.fold.schedules.mapping import WARP, Mapping
from featgraph.fold.tree.nodes import Sweep
from featgraph.fold.tree.statements import Body, agreed, code, copied, noted, when

if TYPE_CHECKING:
    from featgraph.graph.views.edge_orders import EdgeGroups

__all__ = [
    "NEXT_PASS", "PASSES", "EdgeLockedSchedule", "HeldSchedule", "TicketedSchedule",
]  # fmt: skip

#: Attempts to lock an edge in a pass. A sweep of 25M edges, 57,000 of them at a hub,
#: took 162, 186, 267 ms with 1, 2 and 4 (H200, 2026-11-28): attempts hold up the
#: release. Each runs so many edges of a hub, about.
TRIES, EDGES_A_TRY = 1, 4
#: Locks of a hub take so many times as long as free ones.
CONTENDED = 2
#: The locks of an edge: that of a hub is taken last, and held for the shortest time.
_LOCKS = (
    "one = order_ranks[u] if conflicts & 1 else order_ranks[v]\n"
    "other = order_ranks[v] if conflicts & 2 else order_ranks[u]\n"
    "lower, upper = min(one, other), max(one, other)\n"
)


#: The pass, and how many edges it has.
PASSES = "turn, last = int64(0), int64(0)"
#: The end of a pass: what is left for the next one. One behind the turns that leaves as
#: much as it had has run nothing, and so would all others.
NEXT_PASS = f"""\
{MEET}
turn += 1
before, last = last, int64(arrived[turn & 3])
if cuda.grid(1) == 0:
    arrived[(turn + 2) & 3] = arrived[4 + ((turn + 2) & 3)] = 0
if turn > whole and last == before and last > 0:
    stalled[0] = 1
    return"""


class HeldSchedule(ExclusiveSchedule):
    """Edges run where a hold in front of them says so."""

    is_repeatable = False
    holds = True

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return what passes have to know of it."""
        return replace(super().bind(mapping, shape), holds=True)

    def told(self, flag: str, binding: Binding) -> Body:
        """Return what gives all lanes of an edge the flag of one of them.

        What that one has seen, all see then: a vote alone does not order memory.
        """
        scope = binding.scopes["edge"]
        return [*scope.any(flag, flag), *scope.sync()]


class EdgeLockedSchedule(HeldSchedule):
    """Edges are taken in the order, and both ends are locked (EL).

    On CUDA an edge whose locks are not free after some tries is deferred. Passes go
    over the deferred edges until none is left. A thread of the CPU waits.
    """

    name = "edge_locked"
    resident = 1
    options = MappingProxyType({"tries": AnyInteger(TRIES, 1)})
    passes = ", and one behind each pass"
    prepare_ns = 80
    does = "edges in the order, both ends locked"

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return all edges as one group."""
        return at_once(edges)

    def steps(self, sweep: EdgeSweep) -> tuple[float, float]:
        """Return a barrier for each pass, and a chain of updates and their locks."""
        degree = sweep.degree
        passes = degree / (EDGES_A_TRY * TRIES)
        return passes, degree * (sweep.free_us + CONTENDED * sweep.card.lock_us)

    def edge_us(self, sweep: EdgeSweep) -> float:
        """Return an update, and looking for locks, taking and releasing them."""
        return sweep.free_us + 3 * sweep.card.lock_us

    def arrays(self, mapping: Mapping, form: str = "plain") -> tuple[GraphArray, ...]:
        """Return the order, and the ranks of vertices by degree."""
        ranks = GraphArray("order_ranks", dtype="int32")
        return (*super().arrays(mapping, form), ranks)

    def prepare(
        self, mapping: Mapping, view: Any, seed: int | None, conflicts: str,
        options: Dict[str, int],
    ) -> Dict[str, Any]:  # fmt: skip
        """Make the order, and rank vertices by (degree, id)."""
        made = super().prepare(mapping, view, seed, conflicts, options)
        degree = np.asarray(view.graph.in_degree) + np.asarray(view.graph.out_degree)
        ranks = np.empty(degree.size, np.int32)
        ranks[np.argsort(degree, kind="stable")] = np.arange(degree.size)
        return {**made, "order_ranks": ranks}

    def run(self, body: Body, binding: Binding, shape: KernelShape) -> Body:
        """Return what holds the ends of an edge while it runs, or defers it."""
        where = "warp" if shape.threads else "cpu"
        wants = f"inside_edge and (all_sources or {where}.test_bit(sources, u))"
        if not shape.threads:
            held = code("inside_edge = True\n" + f"held = {wants}\n" + _LOCKS)
            held += when(["held"], code("cpu.hold(locks, lower, upper)"))
            return (
                held + body + when(["held"], code("cpu.release(locks, lower, upper)"))
            )
        only = ["lane == 0"] * (binding.features.lanes > 1)
        take = code("held = queues.hold(locks, lower, upper, tries)")
        out = code(f"wants = {wants}\n{_LOCKS}held = False")
        out += when(["wants", *only], take)
        out += self.told("held", binding)
        defer = code(
            "place = cuda.atomic.add(arrived, (turn + 1) & 3, int64(1))\n"
            "deferred[((turn + 1) & 1) * edge_order.shape[0] + place] = at"
        )
        out += [*body, *code("warp.sync()")]
        free = code("queues.release(locks, lower, upper)")
        return (
            out
            + when(["held", *only], free)
            + when(["wants and not held", *only], defer)
        )

    def turn_loop(self, node: Sweep, each: Each, groups: int) -> Body:
        """Return the turns, and then passes over the edges that are left."""
        front = code(f"{PASSES}\nwhole = int64(turns.shape[0] - 1)")
        return front + self.passes_over(node, each(self.run), groups)

    def passes_over(self, node: Sweep, each: Body, groups: int) -> Body:
        """Return the turns from ``turn`` to ``whole``, and then the passes."""
        find = code("at = int64(deferred[(turn & 1) * edge_order.shape[0] + at])")
        edges = self.edges(node, when(["turn >= whole"], find) + each, groups)
        loop = code(
            "while turn < whole or last > 0:\n"
            "    first = int64(0)\n"
            "    if turn < whole:\n"
            "        first, last = int64(turns[turn]), int64(turns[turn + 1])\n"
            "    BODY",
            BODY=edges + code(NEXT_PASS),
        )
        return agreed(noted(loop, "the whole grid"), "block")


class TicketedSchedule(HeldSchedule):
    """An edge waits until as many edges have passed its ends as are before it there.

    Edges are taken level by level, in an order in which whatever one waits for has been
    taken before. The result is that of `serial`, bit by bit.
    """

    name = "ticketed"
    is_repeatable = True
    does = "edges in the order, each in its turn at both ends"
    prepare_ns = 100

    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return all edges as one group, those of a level together."""
        from featgraph.graph.views.edge_orders import levels

        ends = edges.sources, edges.targets, edges.order
        found = levels(*ends, edges.vertex_count, edges.conflicts or "uv")
        return at_once(replace(edges, order=found.order))

    def steps(self, sweep: EdgeSweep) -> tuple[float, float]:
        """Return a chain of updates, whose turns take what locks take."""
        return 0.0, sweep.degree * (sweep.free_us + sweep.card.lock_us)

    def edge_us(self, sweep: EdgeSweep) -> float:
        """Return an update, and what its turns take."""
        return sweep.free_us + sweep.card.lock_us

    def arrays(self, mapping: Mapping, form: str = "plain") -> tuple[GraphArray, ...]:
        """Return the order, and the turn of each edge at its ends."""
        turns = (GraphArray(n, dtype="int32") for n in ("source_turns", "target_turns"))
        return (*super().arrays(mapping, form), *turns)

    def prepare(
        self, mapping: Mapping, view: Any, seed: int | None, conflicts: str,
        options: Dict[str, int],
    ) -> Dict[str, Any]:  # fmt: skip
        """Make the order, and the turns; -1 at an end without conflicts."""
        from featgraph.graph.views.edge_orders import tickets

        made = super().prepare(mapping, view, seed, conflicts, options)
        ends = made["order_sources"], made["order_targets"]
        sides: Any = conflicts or "uv"
        places = np.arange(made["edge_order"].size)
        turns = tickets(*ends, places, view.graph.vertex_count, sides)
        names = ("source_turns", "target_turns")
        return {**made, **{n: turns[:, i].copy() for i, n in enumerate(names)}}

    def run(self, body: Body, binding: Binding, shape: KernelShape) -> Body:
        """Return what waits for the turns of an edge, and passes them on."""
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
            "    is_first = queues.has_turn(locks, u, source_turns[at])\n"
            "has_turns = is_first or not conflicts & 1\n"
            f"if has_turns and {at_target}:\n"
            "    has_turns = queues.has_turn(locks, v, target_turns[at])"
        )
        out = code("has_turns = False") + when(["waits", *only], ask)
        out += self.told("has_turns", binding)
        out += code("held = has_turns and (all_sources or warp.test_bit(sources, u))")
        passed = code(
            "queues.fence()\n"
            "if conflicts & 1:\n"
            "    cuda.atomic.add(locks, u, int32(1))\n"
            f"if {at_target}:\n"
            "    cuda.atomic.add(locks, v, int32(1))"
        )
        out += [*body, *code("warp.sync()"), *when(["has_turns", *only], passed)]
        late = code(
            "waits = waits and not has_turns\n"
            "polls += int32(1)\n"
            "begun = queues.wait_begun(polls, begun)\n"
            "if begun < 0:\n"
            "    waits, stalled[0] = False, 2"
        )
        inner = out + late
        loop = code(f"while warp.group_any(waits, {WARP}):\n    BODY", BODY=inner)
        front = code(
            "waits, is_first = inside_edge, False\npolls, begun = int32(0), int64(0)"
        )
        return front + agreed(noted(loop, "the whole warp"), "warp")

    def turn_loop(self, node: Sweep, each: Each, groups: int) -> Body:
        """Return a loop in which warps take the next edges of the order."""
        take = code(
            "base = int64(0)\n"
            "if cuda.laneid == 0:\n"
            f"    base = cuda.atomic.add(arrived, 0, int64({groups}))\n"
            f"base = warp.broadcast(base, 0, {WARP})"
        )
        body = code(
            f"{node.wanted} = base + own < count\nat = min(base + own, count - 1)"
        )
        front = code("count = int64(edge_order.shape[0])")
        end = code(f"if warp.group_any(begun < 0, {WARP}):\n    return")
        loop = code(
            "while base < count:\n    BODY",
            BODY=body + each(self.run) + end + [copied(part) for part in take],
        )
        return front + take + agreed(noted(loop, "the whole warp"), "warp")
