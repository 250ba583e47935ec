"""Runs supersteps of few vertices in a loop that is compiled for them (0018, 0042).

One call runs many. What Python finds afterwards is what it would have found had it run
them one by one: both buffers of what is iterated, what is due, and how many vertices
each superstep has committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from featgraph._interrupts import import_whole
from featgraph.fold.plan.plan import FoldPlan
from featgraph.runtime.loops.agenda import Agenda
from featgraph.runtime.loops.protocol import SHARED, Watched
from featgraph.runtime.loops.run import Run
from featgraph.runtime.loops.step import Step
from featgraph.runtime.loops.worklist_cpu import CpuQueue

__all__ = ["WorklistLoop", "pays_to_wait"]

#: Graphs of fewer vertices and edges together are not worth compiling a loop for: a
#: superstep takes some 50 microseconds, the compiler a second (CPU).
SMALLEST_GRAPH = 1 << 15


#: Out of a vertex lead at most so many edges, in the mean, where near vertices alone
#: are worth a loop of a GPU: with more, most supersteps have too many for it.
SPARSE = 8


class WorklistLoop:
    """Runs supersteps of the only foldmap of a run in its compiled loop.

    Parameters
    ----------
    agenda : Agenda
    """

    name: ClassVar[str] = "worklist"

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._count = agenda.state.graph.vertex_count
        self._queue = _queue_of(agenda)

    @staticmethod
    def refuses(plans: Sequence[FoldPlan], watched: Watched) -> str:
        """Return why it cannot run any superstep of a run; "" if it can."""
        facts, size, on_cpu = plans[0].facts, watched.size, watched.device.name == "cpu"
        whys = (
            (watched.by, f"{watched.by} looks at each superstep"),
            (watched.is_shared, SHARED),
            (watched.is_dense, "every vertex is active in every superstep"),
            (len(plans) > 1, f"{len(plans)} foldmaps take turns"),
            (facts.not_queued, facts.not_queued),
            (
                on_cpu and size < SMALLEST_GRAPH,
                f"{size} vertices and edges are too few",
            ),
            (
                watched.key not in {"", *facts.queue_keys},
                f"it does not write {watched.key}, by which vertices wait",
            ),
        )
        return next((why for holds, why in whys if holds), "")

    def run(self, run: Run, most: int) -> bool | None:
        """Run supersteps, up to `most`, while few edges lead out of active vertices.

        None where that does not pay, or nothing or everything is due.
        """
        agenda = self._agenda
        agenda.refresh_version()
        [pending] = agenda.pending
        if pending.words is None or pending.left is not None or most < 2:
            return None
        if agenda.reads_others(0) or not self._queue.wants(pending.count):
            return None
        if not agenda.is_due(0):  # which may have to wait for a count
            return None
        scalars = agenda.scalars[0].read()
        # Supersteps behind which an interrupt comes are from outside:
        # `Agenda.store_pending`.
        ran = self._queue.run_several(pending, most)
        if ran is None or not ran.counts:
            return None
        number = len(ran.counts)
        run.add_all(ran.counts, ran.seconds, ["push"] * number, ["recomputed"] * number)
        run.thresholds += ran.thresholds
        pending.words = None if ran.size == self._count else ran.words
        pending.count, pending.scalars = ran.size, scalars
        agenda.superstep = agenda.state.superstep
        agenda.stage += 1
        return True


def pays_to_wait(step: Step) -> bool:
    """Whether a GPU better has far vertices wait, and can at once."""
    graph = step.state.graph
    loops = import_whole("featgraph.runtime.loops.worklist_cuda")
    is_sparse = graph.edge_count <= SPARSE * graph.vertex_count
    return is_sparse and bool(loops.is_compiled(step.plain.kernel))


def _queue_of(agenda: Agenda) -> Any:
    """Return the loop of a run on its target."""
    if agenda.device.name == "cpu":
        return CpuQueue(agenda)
    # It takes the dialect, which is not there without a GPU.
    return import_whole("featgraph.runtime.loops.worklist_cuda").CudaQueue(agenda)
