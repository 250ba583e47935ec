"""Runs supersteps of few vertices in the loop that a CPU module has for them (0018).

One call runs many. What Python finds afterwards is what it would have found had it run
them one by one: both buffers of what is iterated, what is due, and how many vertices
each superstep has committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from featgraph._interrupts import import_whole
from featgraph.program.active import word_count
from featgraph.runtime.driver.near_far import NearFar, Waiting
from featgraph.runtime.memory.buffers import Buffers
from featgraph.runtime.superstep.bound import explained
from featgraph.runtime.superstep.frontier import Frontier
from featgraph.runtime.superstep.superstep import Superstep

__all__ = ["QueueRun", "QueueRunner", "has_queue", "knows_key"]

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


def has_queue(superstep: Superstep) -> bool:
    """Whether supersteps of a kernel can run in a compiled loop on its graph."""
    graph = superstep.bound.graph
    return (
        superstep.kernel.kernel_source.queue is not None
        and graph.vertex_count + graph.edge_count >= SMALLEST_GRAPH
    )


def knows_key(superstep: Superstep, given: NearFar | None) -> bool:
    """Whether the compiled loop of a kernel can tell near vertices from far ones."""
    queue = superstep.kernel.kernel_source.queue
    return queue is not None and given is not None and given.key in queue.keys


class QueueRunner:
    """Runs supersteps of one kernel on one state in its compiled loop.

    Parameters
    ----------
    superstep : Superstep
        What runs; `has_queue` says that it can.
    waiting : Waiting or None
        Tells near vertices from far ones.
    """

    def __init__(self, superstep: Superstep, waiting: Waiting | None) -> None:
        self.superstep = superstep
        self.waiting = waiting
        self._loops: Any = import_whole("featgraph.runtime.devices.cpu_loops")
        queue = superstep.kernel.kernel_source.queue
        if queue is None:
            raise TypeError("a kernel without a loop")
        self.queue = queue
        self._key = -1
        #: Whether vertices wait by a key that the loop does not know.
        self.is_off = waiting is not None and waiting.key not in queue.keys
        if waiting is not None and not self.is_off:
            self._key = queue.keys.index(waiting.key)
        self._most_edges = _most_edges(superstep, waiting is not None)
        self._has_run = False
        self._count = superstep.bound.graph.vertex_count
        self._none = superstep.bound.empty_words()
        self._arrays: dict[str, Any] = {}
        self._buffers: Buffers | None = None

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
        for argument in self.superstep.kernel.kernel_source.queue_arrays:
            known[argument.name] = buffers.graph[argument.array]
        self._arrays = known
        return known

    def run(self, active: Words, most: int) -> QueueRun | None:
        """Run up to `most` supersteps, while few edges lead out of active vertices.

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
        if self.is_off or (waiting is None and not self._pays(active, buffers)):
            return None
        most = min(most, _MOST_SUPERSTEPS)
        arrays = self._find_arrays(buffers)
        sizes, counts = np.zeros(4, np.int64), np.empty(most, np.int64)
        limits = np.empty(most + 1, np.float64)
        sizes[1] = self._loops.list_set(active, arrays["passed"])
        step.bound.stale.begin()
        # Both buffers are equal behind this.
        step.bound.stale.freshen(buffers, step.plan.phases[0], self._none)
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
        offsets = buffers.graph[self.queue.offsets]
        return self.superstep.device.edges_of(active, offsets) <= self._most_edges


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
