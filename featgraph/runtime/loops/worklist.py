"""Runs supersteps of few vertices in the loop that a CPU module has for them (0018).

One call runs many. What Python finds afterwards is what it would have found had it run
them one by one: both buffers of what is iterated, what is due, and how many vertices
each superstep has committed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from featgraph._interrupts import import_whole
from featgraph.fold.plan.plan import FoldPlan
from featgraph.program.active import word_count
from featgraph.runtime.loops.agenda import Agenda
from featgraph.runtime.loops.protocol import Watched
from featgraph.runtime.loops.run import Run
from featgraph.runtime.memory.buffers import Buffers
from featgraph.runtime.superstep.bound import explained
from featgraph.runtime.superstep.frontier import Frontier
from featgraph.runtime.superstep.superstep import Superstep

__all__ = ["QueueRun", "WorklistLoop"]

Words = Any
#: Graphs of fewer vertices and edges together are not worth compiling a loop for: a
#: superstep takes some 50 microseconds, the compiler a second.
SMALLEST_GRAPH = 1 << 15
#: More edges out of active vertices than this may be left to all threads.
MOST_EDGES = 60_000
#: The same, times threads, where these would stop at the first source that they find: a
#: search of kron-15 took 1.85 ms with 200,000 and 2.7 with 60,000 (two cores of an AMD
#: EPYC, 2026-11-21).
_MOST_STOPPING = 400_000
#: A call goes along about so many edges at most, so that an interrupt is heard.
_MOST_WORK = 1 << 25
#: And runs at most so many supersteps.
_MOST_SUPERSTEPS = 1 << 14


@dataclass
class QueueRun:
    """What a run of supersteps has left.

    Attributes
    ----------
    counts : list of int
        Vertices committed by each superstep.
    thresholds : list of float
        The threshold of each, if some vertices wait.
    words : words
        What is due next.
    size : int
        How many vertices that has.
    edges : int
        Edges that were gone along.
    """

    counts: list[int]
    thresholds: list[float]
    words: Words
    size: int
    edges: int


class WorklistLoop:
    """Runs supersteps of the only foldmap of a run in its compiled loop.

    Parameters
    ----------
    agenda : Agenda
    """

    name: ClassVar[str] = "worklist"

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        [step] = agenda.steps
        queue = step.plain.kernel.kernel_source.queue
        if queue is None:
            raise TypeError("a kernel without a loop")
        self.superstep, self.waiting, self.queue = step.plain, agenda.waiting, queue
        self._key = -1
        if self.waiting is not None:
            self._key = step.plan.facts.queue_keys.index(self.waiting.key)
        self._has_run = False
        self._count = agenda.state.graph.vertex_count
        self._arrays: dict[str, Any] = {}
        self._buffers: Buffers | None = None

    @staticmethod
    def refuses(plans: Sequence[FoldPlan], watched: Watched) -> str:
        """Return why it cannot run any superstep of a run; "" if it can."""
        facts, size = plans[0].facts, watched.size
        whys = (
            (watched.device.name != "cpu", "it is a loop of the CPU"),
            (watched.by, f"{watched.by} looks at each superstep"),
            (watched.is_dense, "every vertex is active in every superstep"),
            (len(plans) > 1, f"{len(plans)} foldmaps take turns"),
            (facts.not_queued, facts.not_queued),
            (size < SMALLEST_GRAPH, f"{size} vertices and edges are too few"),
            (
                watched.key not in {"", *facts.queue_keys},
                f"it does not write {watched.key}, by which vertices wait",
            ),
        )
        return next((why for holds, why in whys if holds), "")

    @cached_property
    def _loops(self) -> Any:
        """Compiled loops of the runtime; they are imported when a loop first runs."""
        return import_whole("featgraph.runtime.devices.cpu_loops")

    @cached_property
    def _most_edges(self) -> int:
        """How many edges may lead out of active vertices."""
        return _most_edges(self.superstep, self.waiting is not None)

    def run(self, run: Run, most: int) -> bool | None:
        """Run supersteps, up to `most`, while few edges lead out of active vertices.

        None where that does not pay, or nothing or everything is due.
        """
        agenda = self._agenda
        agenda.refresh_version()
        [pending] = agenda.pending
        if pending.words is None or pending.left is not None or most < 2:
            return None
        if agenda.reads_others(0) or not agenda.is_due(0):
            return None
        scalars, begun = agenda.scalars[0].read(), time.perf_counter()
        # Supersteps behind which an interrupt comes are from outside:
        # `Agenda.store_pending`.
        ran = self.run_several(pending.words, most)
        if ran is None or not ran.counts:
            return None
        number, took = len(ran.counts), time.perf_counter() - begun
        run.add_all(
            ran.counts, [took / number] * number, ["push"] * number,
            ["recomputed"] * number,
        )  # fmt: skip
        run.thresholds += ran.thresholds
        pending.words = None if ran.size == self._count else ran.words
        pending.count, pending.scalars = ran.size, scalars
        agenda.superstep = agenda.state.superstep
        return True

    def _find_arrays(self, buffers: Buffers) -> dict[str, Any]:
        """Return the arrays that the loop works in, and the graph's."""
        if self._arrays and self._buffers is buffers:
            return self._arrays
        self._buffers, count = buffers, self._count
        lists = buffers.temporary("queue lists", "uint32", (3, count))
        far = 2 * count if self._key >= 0 else 0
        known = {
            "sources": lists[0], "passed": lists[1], "due": lists[2],
            "marks": _zeros(buffers, "queue marks", "int32", count),
            "waits": _zeros(buffers, "queue waits", "uint8", far // 2),
            "far": buffers.temporary("queue far", "uint32", (far,)),
        }  # fmt: skip
        for name, dtype, shape in self.queue.memory:
            known[name] = buffers.temporary(f"queue {name}", dtype, (count, *shape))
        for name in self.queue.graph:
            known[name] = buffers.graph[name]
        self._arrays = known
        return known

    def run_several(self, active: Words, most: int) -> QueueRun | None:
        """Run up to `most` supersteps in one call.

        Parameters
        ----------
        active : words
            A; where vertices wait, what has been announced, near or far.

        Returns
        -------
        QueueRun or None
            None where too many edges lead out of the active vertices.
        """
        step, waiting, count = self.superstep, self.waiting, self._count
        buffers = step.bound.arrive()
        if waiting is None and not self._pays(active, buffers):
            return None
        most = min(most, _MOST_SUPERSTEPS)
        arrays = self._find_arrays(buffers)
        sizes, counts = np.zeros(4, np.int64), np.empty(most, np.int64)
        limits = np.empty(most + 1, np.float64)
        sizes[1] = self._loops.list_set(active, arrays["passed"])
        step.bound.stale.begin()
        # Both buffers are equal behind this.
        step.bound.stale.freshen(buffers, step.plan.phases[0], step.bound.empty_words())
        known = {
            **arrays,
            "chunk": 0,
            "d": step.bound.data(Frontier(), None),
            "most": most, "most_edges": self._most_edges, "most_work": _MOST_WORK,
            "key": self._key, "sizes": sizes, "limits": limits, "counts": counts,
            "sign": 1.0 if waiting is None else waiting.sign,
            "delta": 0.0 if waiting is None else waiting.delta,
            "limit": 0.0 if waiting is None else waiting.limit,
        }  # fmt: skip
        values = [known[name] for name in self.queue.arguments]
        try:
            try:
                left = self._call(values)
            finally:  # also behind an interrupt: the loop leaves both buffers equal
                buffers.end_in_place(dict.fromkeys(self.queue.commits), int(sizes[0]))
            number, size, far_count, edges = sizes.tolist()
            words = np.zeros(word_count(count), np.uint32)
            self._loops.fill_set(left, size, words)
            if waiting is not None:
                fill = self._loops.fill_waiting
                size += fill(arrays["far"], far_count, arrays["waits"], words)
        except BaseException:
            arrays["waits"].fill(0)
            raise
        self._has_run = True
        thresholds: list[float] = []
        if waiting is not None:
            waiting.limit = float(limits[number])
            thresholds = (waiting.sign * limits[:number]).tolist()
        return QueueRun(counts[:number].tolist(), thresholds, words, size, edges)

    def _call(self, values: list[Any]) -> Any:
        """Run the loop; return the list of the vertices that are due behind it."""
        kernel = self.superstep.kernel
        try:
            return kernel.queue(*values)
        except Exception as error:
            told = explained(kernel, self.queue.name, error)
            if told is error:
                raise
            raise told from error

    def _pays(self, active: Words, buffers: Buffers) -> bool:
        """Whether it is worth compiling the loop for these vertices."""
        if self._has_run:
            return True
        sets = self.superstep.device.sets
        edges = sets.edges_of(active, buffers.graph, self.queue.along)
        return edges <= self._most_edges


def _most_edges(superstep: Superstep, waits: bool) -> int:
    """Return how many edges may lead out of active vertices.

    All threads together would pull along all edges, or, where gathers stop at the first
    source they find, along few of them. Where vertices wait, they would also have to be
    found among all.
    """
    threads = int(import_whole("numba").get_num_threads())
    share = superstep.bound.graph.edge_count // (threads if waits else 2 * threads)
    if any(phase.stops for phase in superstep.plan.phases):
        share = _MOST_STOPPING // threads
    return max(MOST_EDGES, share)


def _zeros(buffers: Buffers, name: str, dtype: str, count: int) -> Any:
    """Return what is zero between runs, a number a vertex, kept with the state."""
    key = (name, dtype, (count,))
    if key not in buffers.temporaries:
        buffers.temporaries[key] = np.zeros(count, dtype)
    return buffers.temporaries[key]
