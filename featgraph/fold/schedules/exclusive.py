"""The loop over edges that all schedules of exclusive functions share.

A sweep has *turns*, with a barrier between them. In a turn, a worker takes edges of the
order one by one; they conflict with no edge of another worker in the same turn. A
worker is a thread on the CPU, and the lanes that share the features of an edge on CUDA,
where one kernel runs all turns. Schedules differ in the groups that they prepare on the
host (`featgraph.graph.views.edge_orders`), and in how workers share a turn: edge by
edge, or by *tasks*, whose edges run one after the other.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Mapping as Dict
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from featgraph.base.dataclass import dataclass, replace
from featgraph.base.errors import DeviceMemoryError
from featgraph.fold.schedules.base import (
    AnyInteger,
    Binding,
    GraphArray,
    KernelShape,
    Schedule,
    Scope,
)
from featgraph.fold.schedules.cpu import CpuSchedule
from featgraph.fold.schedules.exclusive_costs import SWEEPS, EdgeSweep
from featgraph.fold.schedules.lanes import lanes_of, shared
from featgraph.fold.schedules.mapping import WARP, LaunchSizes, Mapping, Work
from featgraph.fold.tree.nodes import Sweep
from featgraph.fold.tree.statements import Body, agreed, code, copied, noted, when

if TYPE_CHECKING:
    from featgraph.graph.views.edge_orders import EdgeGroups

__all__ = [
    "MEET",
    "ORDER",
    "OWN",
    "Each",
    "EdgesToGroup",
    "ExclusiveSchedule",
    "is_exclusive",
]

#: The seed by which the order is shuffled.
ORDER = AnyInteger(is_launched=False, is_prepared=True)
#: A number that groups depend on; 0 where none is given.
OWN = AnyInteger(least=1, is_launched=False, is_prepared=True)
#: Edges below which a part of a turn is not worth a thread (CPU).
SMALLEST_SHARE = 2048
#: Shares of a turn that a thread gets: uneven ones even out.
SHARES_A_THREAD = 8

#: Returns what is done in front of the function and behind it.
Run: TypeAlias = Callable[[Body, Binding, KernelShape], Body]
#: Returns what is done with an edge, from a `Run` and the texts of edge and ends.
Each: TypeAlias = Callable[..., Body]

#: The end of a meeting of the grid, where the kernel ends if some do not come in time.
WAIT = """\
meets = queues.wait_for_all(arrived, meets, True)
if meets < 0:
    stalled[0] = 2
    return"""
#: A meeting of the grid.
MEET = f"meets = queues.arrive(arrived, meets)\n{WAIT}"

#: An edge and its ends at a place of the order, and a value of the edge.
_AT = (
    "edge_order[at]", "order_sources[at]", "order_targets[at]", "ordered_{}[at]",
)  # fmt: skip


@dataclass(frozen=True)
class EdgesToGroup:
    """The edges of a graph, their order, and the options.

    Attributes
    ----------
    sources, targets : ndarray of int32, shape (E,)
        The ends of edge e.
    order : ndarray, shape (E,)
        All edges, in the order.
    vertex_count : int
    first : int
        Vertices of the first side; 0 for a graph without two sides.
    conflicts : str
        The ends at which edges conflict: "uv", "u", "v" or "".
    seed : int or None
        Seed of the shuffled order.
    on_cpu : bool
    options : dict
        Options of the schedule.
    """

    sources: Any
    targets: Any
    order: Any
    vertex_count: int
    first: int
    conflicts: Any
    seed: int | None
    on_cpu: bool
    options: Dict[str, int]


class ExclusiveSchedule(Schedule):
    """Run edges so that no two conflicting ones run at the same time.

    Attributes
    ----------
    is_repeatable : bool
        Whether graph and options determine the order of updates.
    in_tasks : bool
        Whether workers take tasks.
    passes : str
        Text behind the number of barriers in the summary (CUDA).
    resident : int
        Resident blocks a multiprocessor; barriers of more blocks are slower.
    prepare_ns : float
        Time an edge to shuffle and group the order, on one core of the host.
    locks : float
        Locks an edge off the longest chain, or tickets (CUDA).
    """

    targets = ("cpu", "cuda")
    runs = "exclusive"
    shares_features = None
    copies_columns = True
    modules = ("queue_cuda as queues",)
    seed = "shuffle"
    frontier_forms = ()
    is_repeatable: ClassVar[bool] = True
    passes: ClassVar[str] = ""
    resident: ClassVar[int] = 2
    in_tasks: ClassVar[bool] = False
    prepare_ns: ClassVar[float] = 60
    locks: ClassVar[float] = 0
    does: ClassVar[str]

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        lanes = mapping.lanes_per_edge
        whom = "one thread" if lanes == 1 else f"{lanes} lanes"
        what = "a task" if self.in_tasks else "an edge"
        return f"{self.name}: {self.does}; {whom} {what}"

    def threads(self, mapping: Mapping) -> int:
        """Return the threads of a block."""
        return mapping.threads

    def blocks(self, sweep: EdgeSweep | None) -> int:
        """Return the resident blocks a multiprocessor, for a graph (CUDA)."""
        return self.resident

    def steps(self, sweep: EdgeSweep) -> tuple[float, float]:
        """Return the barriers of a sweep, and us of its longest chain of edges.

        Both are infinite for a sweep that it cannot run, or whose sizes are unknown.
        """
        return math.inf, math.inf

    def sweep_ms(self, sweep: EdgeSweep) -> float:
        """Return the predicted time of a sweep (CUDA)."""
        if self.needs_sides and not sweep.two_sides:
            return math.inf
        own = self.blocks(sweep), None if self.in_tasks else self.locks
        return sweep.time_ms(*self.steps(sweep), *own)

    def cost(self, work: Work) -> float:
        """Return the predicted ms of a sweep, plus its share of preparation."""
        if work.sweep is None:
            return math.inf
        prepared = work.sweep.sizes.edges * self.prepare_ns * 1e-6
        return self.sweep_ms(work.sweep) + prepared / SWEEPS

    @property
    def integers(self) -> dict[str, AnyInteger]:
        """Own options that take any integer, with the seed."""
        return super().integers | {"shuffle": ORDER}

    def arrays(
        self, mapping: Mapping, frontier_form: str = "plain"
    ) -> tuple[GraphArray, ...]:
        """Return the order, and the bounds of its turns."""
        cut = ["tasks"] * self.in_tasks if mapping.resident else ["chunks"]
        ends = (
            GraphArray(n, dtype="int32") for n in ("order_sources", "order_targets")
        )
        bounds = (GraphArray(name, dtype="int64") for name in (*cut, "turns"))
        return (*bounds, GraphArray("edge_order", dtype="offset"), *ends)

    def no_room(self, mapping: Mapping, edges: int, error: MemoryError) -> MemoryError:
        """Return an error that recommends a schedule with no array but the order."""
        every = self.arrays(mapping), ExclusiveSchedule.arrays(self, mapping)
        # In GB, of 4 bytes an edge in each array.
        own, least = (
            sum(array.dtype in ("int32", "offset") for array in arrays) * edges * 4e-9
            for arrays in every
        )
        if own == least:
            return error
        return DeviceMemoryError(
            "no memory for the order of edges",
            where=f"schedule={self.name!r}",
            got=getattr(error, "got", None) or f"{own:.2f} GB",
            expected=getattr(error, "expected", None),
            fix=f"use schedule='levels', which takes {least:.2f} GB, or target='cpu'",
        )

    def grid(self, mapping: Mapping, sizes: LaunchSizes) -> int:
        """Return the number of blocks, all resident: each waits for all others."""
        if not sizes.argument("order_sources").size:
            return 0
        return sizes.multiprocessors * mapping.resident

    def prepare(
        self, mapping: Mapping, view: Any, seed: int | None, conflicts: str,
        options: Dict[str, int],
    ) -> Dict[str, Any]:  # fmt: skip
        """Make the order, shuffled by `seed`, and cut its groups into turns."""
        from featgraph.graph.views.edge_orders import ends_of, given_order

        graph, on_cpu = view.graph, not mapping.resident
        rows, count = graph.in_edges, graph.vertex_count
        sources = np.asarray(rows.column_indices, np.int32)
        targets = np.arange(count, dtype=np.int32).repeat(np.diff(rows.row_offsets))
        order = given_order(graph.given_index, seed)
        first = graph.sides[0] if graph.sides else 0
        own = {name: value for name, value in options.items() if value}
        found = self.groups(
            EdgesToGroup(
                sources, targets, order, count, first, conflicts, seed, on_cpu, own
            )
        )
        rounds, order = found.rounds if self.in_tasks else None, found.order
        ids = order if graph.changing is None else graph.changing.stored_ids[order]
        made = {"edge_order": ids.astype(rows.row_offsets.dtype)}
        ends = ends_of(sources, targets, order)
        made |= zip(("order_sources", "order_targets"), ends, strict=True)
        if on_cpu:
            chunks, turns = in_chunks(found.groups, rounds)
            made |= {"chunks": chunks, "turns": turns}
        elif rounds is None:
            made |= {"tasks": np.zeros(1, np.int64)} if self.in_tasks else {}
            made |= {"turns": found.groups}
        else:
            made |= {"tasks": found.groups, "turns": rounds}
        passes = self.passes * bool(mapping.resident)
        return made | {"summary": summary_of(found.groups, made["turns"]) + passes}

    def copied(
        self, columns: Dict[str, Any], prepared: Callable[[str], Any]
    ) -> Dict[str, Any]:
        """Copy edge properties into the order."""
        order = prepared("edge_order") if columns else None
        taken = {name: column.on_host()[order] for name, column in columns.items()}
        return {f"ordered_{name}": values for name, values in taken.items()}

    @abstractmethod
    def groups(self, edges: EdgesToGroup) -> EdgeGroups:
        """Return the groups of edges that run at the same time, in order."""

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        if not shape.threads:
            return replace(_CPU.bind(mapping, shape), turns="chunks")
        binding = shared(mapping, shape, Scope(mapping.lanes_per_edge))
        turns = "tasks" if self.in_tasks else "edges"
        return replace(binding, has_idle_lanes=False, turns=turns)

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over edges, around the body of `node`."""
        number = shape.number_type or "int64"
        if not shape.threads:
            body = _edge(node, "int64", "int64", _AT)
            body += self.run(node.body, binding, shape)
            loop = code("for at in range(first, last):\n    BODY", BODY=body)
            return [*_CPU.front(binding), *loop]
        lanes = binding.features.lanes
        shift = lanes.bit_length() - 1
        group = f"cuda.laneid >> {shift}" if shift else "cuda.laneid"
        # Where an earlier kernel has stalled, the host raises behind the run.
        front = code(
            "meets = int64(0)\n"
            f"own = int64({group})\n"
            "warp_number = int64(cuda.grid(1) >> 5)\n"
            "warps = int64(cuda.gridsize(1) >> 5)\n"
            "if cuda.syncthreads_or(stalled[0]) != 0:\n"
            "    return"
        )

        def each(run: Run, edge: tuple[str, ...] = _AT) -> Body:
            body = [copied(part) for part in node.body]
            return _edge(node, number, "int32", edge) + run(body, binding, shape)

        loop = self.turn_loop(node, each, WARP // lanes)
        return [*front, *lanes_of(binding, "cuda.laneid"), *loop]

    def run(self, body: Body, binding: Binding, shape: KernelShape) -> Body:
        """Return the statements of an edge; `body` runs the function."""
        return body

    def turn_loop(self, node: Sweep, each: Each, groups: int) -> Body:
        """Return the loop over turns, with barriers; warps have `groups` of lanes.

        `each` returns the statements of an edge from the statements around the function
        (see `run`), and the texts of the edge, its ends and its values.
        """
        share = self._tasks if self.in_tasks else self._edges
        front, turn, ahead = share(node, each(self.run), groups)
        # Behind the last turn, of one that takes long, none waits for the others.
        meet = code(
            "meets = queues.arrive(arrived, meets)\nAHEAD\nWAIT",
            AHEAD=ahead, WAIT=code(WAIT),
        )  # fmt: skip
        loop = code(
            "for turn in range(1, turns.shape[0]):\n"
            "    last = int64(turns[turn])\n"
            "    BODY",
            BODY=turn + agreed(when(["turn + 1 < turns.shape[0]"], meet), "block"),
        )
        return front + agreed(noted(loop, "the whole grid"), "block")

    def _edges(self, node: Sweep, each: Body, groups: int) -> tuple[Body, Body, Body]:
        """Return turns in which each group of lanes takes one edge at a time.

        In parts: prologue, turn, and prologue of further turns. The next edge is
        loaded, and its values prefetched, before the barrier.
        """
        # The first statements of `each` bind e, u, v and the values: see `_edge`.
        stride, head = f"warps * {groups}", 3 + len(node.values)
        take = code(
            "at = min(base + own, int64(edge_order.shape[0] - 1))\nNUMBER",
            NUMBER=each[:head] + node.prefetches,
        )
        edges = code(
            "while base < last:\n"
            f"    {node.wanted} = base + own < last\n"
            "    BODY\n"
            f"    base += {stride}\n"
            "    TAKE",
            BODY=each[head:],
            TAKE=list(map(copied, take)),
        )
        begin = code(f"base = last + warp_number * {groups}\nTAKE", TAKE=take)
        front = code("last = int64(turns[0])") + list(map(copied, begin))
        return front, agreed(noted(edges, "the whole warp"), "warp"), begin

    def _tasks(self, node: Sweep, each: Body, groups: int) -> tuple[Body, Body, Body]:
        """Return turns in which each warp takes one task at a time, in the same parts.

        Each lane loads one of 32 edges and prefetches its values; then the edges run
        one by one. A warp barrier orders writes of an edge before reads of later ones.
        """
        # Values are prefetched 32 edges ahead, so that ends are loaded 64 ahead.
        ends = "queues.ends_at(order_sources, order_targets, place + cuda.laneid{})"
        begin = code(
            "place, stop = queues.task_at(tasks, task)\n"
            f"near_u, near_v = {ends.format('')}\n"
            f"next_u, next_v = {ends.format(f' + {WARP}')}"
        )
        last = "min(place + cuda.laneid{}, int64(edge_order.shape[0] - 1))"
        ask = "u, v, at = {0}_u, {0}_v, " + last.format("{1}") + "\nASK"
        given = code("".join(f"near_{n} = ordered_{n}[at]\n" for n in node.values))
        prefetched = ["near_u", "near_v", *(f"near_{n}" for n in node.values)]
        names = ["u", "v", *(f"{n}_e" for n in node.values)]
        steps = code(
            "while step < count:\n"
            "    NUMBER\n"
            "    TELL\n"
            f"    {node.wanted} = own == 0\n"
            "    BODY\n"
            "    warp.sync()\n"
            "    step = int32(step + 1)",
            NUMBER=code("at = place + step") + each[:1],
            TELL=[
                part
                for name, near in zip(names, prefetched, strict=True)
                for part in code(f"{name} = warp.broadcast({near}, step, {WARP})")
            ],
            BODY=each[3 + len(node.values) :],
        )
        edges = code(
            "while place < stop:\n"
            "    GIVEN\n"
            "    ASK\n"
            "    LOOK_UP\n"
            f"    count, step = int32(min(stop - place, {WARP})), int32(0)\n"
            "    STEPS\n"
            "    near_u, near_v, next_u, next_v = next_u, next_v, far_u, far_v\n"
            f"    place += {WARP}",
            GIVEN=code(f"at = {last.format('')}") + given,
            ASK=code(ask.format("next", f" + {WARP}"), ASK=node.prefetches),
            LOOK_UP=code(f"far_u, far_v = {ends.format(f' + {2 * WARP}')}"),
            STEPS=agreed(noted(steps, "the whole warp"), "warp"),
        )
        tasks = code(
            "while task < last:\n"
            "    ASK\n"
            "    EDGES\n"
            "    task += warps\n"
            "    if task < last:\n"
            "        BEGIN",
            ASK=code(ask.format("near", ""), ASK=list(map(copied, node.prefetches))),
            EDGES=agreed(noted(edges, "the whole warp"), "warp"),
            BEGIN=list(map(copied, begin)),
        )
        front = code("task = warp_number\nBEGIN", BEGIN=list(map(copied, begin)))
        behind = code("task = last + warp_number\nBEGIN", BEGIN=begin)
        return front, agreed(noted(tasks, "the whole warp"), "warp"), behind


def is_exclusive(schedule: Schedule | None) -> bool:
    """Whether a schedule is for exclusive functions."""
    return isinstance(schedule, ExclusiveSchedule)


_CPU = CpuSchedule()


def _edge(node: Sweep, number: str, vertex: str, edge: tuple[str, ...]) -> Body:
    """Return the statements that bind an edge, its ends and its values."""
    e, u, v, value = edge
    lines = [f"e = {number}({e})", f"u = {vertex}({u})", f"v = {vertex}({v})"]
    lines += [f"{name}_e = {value.format(name)}" for name in node.values]
    return code("\n".join(lines))


def summary_of(groups: Any, turns: Any) -> str:
    """Return the numbers of groups, edges a group, and barriers, in words."""
    sizes = np.diff(groups) if len(groups) > 1 else np.zeros(1, np.int64)
    barriers = max(len(turns) - 2, 0)
    return (
        f"groups: {sizes.size:,}, of {sizes.min():,} to {sizes.max():,} edges; "
        f"barriers: {barriers:,}"
    )


def in_chunks(groups: Any, rounds: Any) -> tuple[Any, Any]:
    """Cut an order into chunks, and these into turns (CPU).

    Parameters
    ----------
    groups : ndarray of int64
        Where groups begin.
    rounds : ndarray of int64 or None
        Where turns begin among the groups, each of which one thread runs. None: a group
        is a turn, shared by threads.

    Returns
    -------
    chunks, turns : ndarray of int64
        Where chunks begin in the order, and turns among the chunks. Neighboring turns
        with work for one thread only are merged.
    """
    import numba

    most = numba.get_num_threads() * SHARES_A_THREAD
    chunks, turns, is_alone = [0], [0], False
    begins = groups if rounds is None else groups[rounds]
    for number, (first, last) in enumerate(itertools.pairwise(begins)):
        count = min(most, int(last - first) // SMALLEST_SHARE)
        if count > 1:
            cuts = np.linspace(first, last, count + 1).astype(np.int64)[1:]
            if rounds is not None:
                own = groups[rounds[number] : rounds[number + 1] + 1]
                cuts = np.unique(own[np.searchsorted(own, cuts)])
                cuts = cuts[cuts > first]
            chunks += cuts.tolist()
            turns.append(len(chunks) - 1)
            is_alone = False
        elif last > first and is_alone:
            chunks[-1] = int(last)
        elif last > first:
            chunks.append(int(last))
            turns.append(len(chunks) - 1)
            is_alone = True
    if len(chunks) == 1:
        chunks, turns = [0, 0], [0, 1]
    return np.array(chunks, np.int64), np.array(turns, np.int64)
