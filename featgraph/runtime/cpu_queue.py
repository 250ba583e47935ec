"""Runs supersteps of few vertices in the loop that a CPU module has for them (0018).

One call runs many. What Python finds afterwards is what it would have found had it run
them one by one: both buffers of what is iterated, what is due, and how many vertices
each superstep has committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from featgraph.program.active import word_count
from featgraph.runtime.buffers import Buffers, buffers_of
from featgraph.runtime.near_far import Waiting
from featgraph.runtime.superstep import Superstep

__all__ = ["QueueRun", "has_queue", "run_queue"]

Words = Any
#: Graphs of fewer vertices and edges together are not worth compiling a loop for: a
#: superstep takes some 50 microseconds, the compiler a second.
SMALLEST_GRAPH = 1 << 15
#: More edges out of active vertices than this are left to all threads.
MOST_EDGES = 60_000
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
    """

    counts: list[int]
    thresholds: list[float]
    words: Words
    size: int


def has_queue(superstep: Superstep) -> bool:
    """Whether supersteps of a kernel can run in a compiled loop on its graph."""
    graph = superstep.graph
    return (
        superstep.kernel.kernel_source.queue is not None
        and superstep.on is None
        and graph.vertex_count + graph.edge_count >= SMALLEST_GRAPH
    )


def run_queue(
    superstep: Superstep, active: Words, waiting: Waiting | None, most: int
) -> QueueRun | None:
    """Run up to `most` supersteps, as long as few edges lead out of active vertices.

    Parameters
    ----------
    superstep : Superstep
        What to run; `has_queue` says that it can be.
    active : words
        A; with `waiting`, what has been announced, near or far.

    Returns
    -------
    QueueRun or None
        None where too many edges lead out of the active vertices; nothing has run then.
    """
    from featgraph.runtime import cpu_loops

    source = superstep.kernel.kernel_source
    queue, graph = source.queue, superstep.graph
    if queue is None:
        return None
    buffers = superstep.buffers = buffers_of(superstep.state, superstep.device)
    key = -1
    if waiting is not None:
        if waiting.key not in queue.keys:
            return None
        key = queue.keys.index(waiting.key)
    elif superstep.device.edges_of(active, buffers.graph[queue.offsets]) > MOST_EDGES:
        return None
    most = min(most, _MOST_SUPERSTEPS)
    count = graph.vertex_count
    lists = buffers.temporary("queue lists", "uint32", (3, count))
    far = buffers.temporary("queue far", "uint32", (2 * count if key >= 0 else 0,))
    marks = _zeros(buffers, "queue marks", "int32", count)
    waits = _zeros(buffers, "queue waits", "uint8", count if key >= 0 else 0)
    sizes, counts = np.zeros(3, np.int64), np.empty(most, np.int64)
    limits = np.empty(most + 1, np.float64)
    sizes[1] = cpu_loops.list_set(active, lists[1])
    _refresh(superstep)
    builtins = {"vertex_count": count, "edge_count": graph.edge_count}
    known: dict[str, Any] = {
        "chunk": 0,
        "d": buffers.data(source, superstep.kernel.module.Data, builtins),
        "sources": lists[0], "passed": lists[1], "due": lists[2], "marks": marks,
        "most": most, "most_edges": MOST_EDGES, "most_work": _MOST_WORK, "key": key,
        "sign": 1.0 if waiting is None else waiting.sign,
        "delta": 0.0 if waiting is None else waiting.delta,
        "limit": 0.0 if waiting is None else waiting.limit,
        "far": far, "waits": waits, "sizes": sizes, "limits": limits, "counts": counts,
    }  # fmt: skip
    for name, dtype, shape in queue.memory:
        known[name] = buffers.temporary(f"queue {name}", dtype, (count, *shape))
    values = [
        known[name] if name in known else buffers.graph[name]
        for name in queue.arguments
    ]
    try:
        left = superstep.call(queue.name, superstep.kernel.queue, *values)
    except BaseException:
        waits.fill(0)
        raise
    finally:  # also behind an interrupt: the loop leaves both buffers equal
        buffers.end_in_place(queue.commits, int(sizes[0]))
    words = np.zeros(word_count(count), np.uint32)
    cpu_loops.fill_set(left, int(sizes[1]), words)
    size = int(sizes[1]) + cpu_loops.fill_waiting(far, int(sizes[2]), waits, words)
    number = int(sizes[0])
    if waiting is not None:
        waiting.limit = float(limits[number])
    thresholds = [] if waiting is None else (waiting.sign * limits[:number]).tolist()
    return QueueRun(counts[:number].tolist(), thresholds, words, size)


def _zeros(buffers: Buffers, name: str, dtype: str, count: int) -> Any:
    """Return what is zero between runs, a number a vertex, kept with the state."""
    key = (name, dtype, (count,))
    if key not in buffers.temporaries:
        buffers.temporaries[key] = np.zeros(count, dtype)
    return buffers.temporaries[key]


def _refresh(superstep: Superstep) -> None:
    """Make both buffers of what is written equal."""
    nobody = superstep.device.empty_words(superstep.full.size)
    superstep.forget_touched()
    for phase in superstep.plan.phases:
        superstep.freshen(phase, nobody)
