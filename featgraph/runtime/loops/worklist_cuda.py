"""Runs supersteps of few vertices in one kernel of a GPU (0042).

The kernel is compiled behind a run, so that none waits for it (0045). That takes
seconds, so it has to be wanted several times before.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

from featgraph.base.config import config
from featgraph.base.interrupts import deferred_interrupts
from featgraph.fold.compiling.kernel import Kernel, StagedKernel
from featgraph.fold.plan.plan import WORKLIST
from featgraph.runtime.background.queue import COMPILER, Job
from featgraph.runtime.devices.cuda_queue import Keys, QueueMemory
from featgraph.runtime.loops.pending import Pending
from featgraph.runtime.loops.protocol import QueueRun
from featgraph.runtime.loops.run_state import Agenda
from featgraph.runtime.superstep.bound import explained
from featgraph.runtime.superstep.frontier import Frontier

__all__ = ["CudaQueue", "is_compiled"]

#: Sources and edges of theirs, together, that a superstep of the loop may have. One of
#: 200,000 edges took 30 us, and a superstep of all of the GPU no less (NVIDIA H200).
MOST_ACTIVE = 1 << 22
#: Blocks that run it, if a GPU has as many multiprocessors: all of them must run at a
#: time. A search of grid4096 took 134 ms with 8, 103 with 32 and with 64.
BLOCKS = 132
#: So long, in s, the device may be away: an interrupt is heard behind it.
_MOST_AWAY = 0.05
#: Supersteps of all runs of a kernel that would have been run in its loop, before that
#: is compiled: a search of an R-MAT graph has two or three. Nothing is compiled between
#: them, for what a run compiles itself waits for the compiler: 5 s, for this loop.
WANTED = 8

#: Kernel -> how many supersteps would have been run in its loop, and what had been
#: compiled by then: kernels launched for the first time, and jobs behind runs.
_wanted: weakref.WeakKeyDictionary[Kernel, tuple[int, tuple[int, int]]] = (
    weakref.WeakKeyDictionary()
)
#: Kernel, or one with a stage -> what compiles its loop.
_jobs: weakref.WeakKeyDictionary[Kernel | StagedKernel, Job] = (
    weakref.WeakKeyDictionary()
)


def is_compiled(kernel: Kernel) -> bool:
    """Whether the loop of a kernel can be taken at once."""
    return kernel in _jobs and _jobs[kernel].is_done


class CudaQueue:
    """The loop of the only foldmap of a run.

    Parameters
    ----------
    agenda : Agenda
    stage : LoopStage or None
        What it runs where nothing is due.
    """

    def __init__(self, agenda: Agenda, stage: Any) -> None:
        [step] = agenda.steps
        self._agenda, self._step, self._stage = agenda, step.plain, stage
        self._device: Any = agenda.device
        self._waiting = agenda.waiting
        #: How often others are let go first, now and where it ends at once again.
        self._waits, self._patience = 0, 1

    def wants(self, count: int | None) -> bool:
        """Whether it may pay with so many active vertices, and is compiled."""
        return self._pays(count) and self._find_kernel() is not None

    def run_several(self, pending: Pending, most: int) -> QueueRun | None:
        """Run up to `most` supersteps in one launch.

        Parameters
        ----------
        pending : Pending
            A.

        Returns
        -------
        QueueRun or None
            None where too many edges lead out of the active vertices.
        """
        kernel = self._find_kernel()
        if kernel is None:
            return None
        begun = time.perf_counter()
        with deferred_interrupts():
            ran = self._run(kernel, pending, most)
        if not ran.counts:
            self._patience *= 2
            return None
        self._patience = 1
        took = time.perf_counter() - begun
        ran.seconds[0] += max(took - sum(ran.seconds), 0.0)
        return ran

    def _pays(self, count: int | None) -> bool:
        """Whether so few edges are likely to lead out of so many vertices.

        They may be more: behind a loop that has ended at once, others run for longer.
        """
        if self._waits > 0:
            self._waits -= 1
            return False
        if self._waiting is not None:
            return True
        if count is None:
            return False
        [step], [pending] = self._agenda.steps, self._agenda.pending
        edges = step.edges_out_of(pending.words)
        if edges is not None:
            return count + edges <= MOST_ACTIVE
        graph = self._agenda.state.graph
        size = graph.vertex_count + graph.edge_count
        return count * size <= MOST_ACTIVE * graph.vertex_count

    def _find_kernel(self) -> Kernel | None:
        """Return the kernel of the loop; have it compiled behind the run if need be."""
        kernel = self._step.kernel
        if kernel not in _jobs and config.compile_behind and COMPILER.is_idle:
            now = self._device.launches.firsts, COMPILER.ended
            count, before = _wanted.get(kernel, (0, now))
            count = (count if before == now else 0) + 1
            _wanted[kernel] = count, now
            if count >= WANTED:
                _jobs[kernel] = _job(kernel, self._device)
                COMPILER.ask(_jobs[kernel])
        return kernel.in_form(WORKLIST) if is_compiled(kernel) else None

    def _run(self, kernel: Kernel, pending: Pending, most: int) -> QueueRun:
        """Launch the loop, and wait for its end."""
        agenda, device, queue = self._agenda, self._device, kernel.kernel_source.queue
        if queue is None or queue.entry is None:
            raise TypeError("a kernel without a loop")
        bound = self._step.bound_for(kernel)
        buffers = bound.buffers
        count, identities = bound.graph.vertex_count, kernel.module.IDENTITIES
        staged, more = self._find_stage(kernel)
        is_staged = staged is not None
        memory = QueueMemory(device, queue, identities, count, MOST_ACTIVE, is_staged)
        bound.stale.begin()
        # Both buffers are equal behind this, and behind the loop.
        bound.stale.freshen(buffers, kernel.plan.phases[0], bound.empty_words())
        data = bound.data(Frontier(), None)
        keys = self._keys()
        lists = memory.begin(pending.words, most, _MOST_AWAY, keys)
        rows = [buffers.graph[name] for name in queue.graph]
        function = kernel.queue if staged is None else staged.function
        try:
            given = data, *lists, *rows, *memory.entries, *more
            blocks = min(BLOCKS, device.multiprocessors)
            device.launches(function, blocks, queue.entry.block, given)
            report = memory.read(keys)
        except BaseException as error:
            memory.forget()
            bound.stale.fail(buffers)
            pending.words = None
            told = explained(kernel, queue.name, error)
            if told is error:
                raise
            raise told from error
        number = len(report.counts)
        is_over = report.active + report.edges > MOST_ACTIVE
        self._waits = self._patience if is_over else 0
        if report.stages:
            self._stage.end()
        if number:
            ran = number + report.stages
            buffers.end_in_place(dict.fromkeys(queue.commits), ran)
        thresholds: list[float] = []
        if self._waiting is not None:
            *limits, self._waiting.limit = report.limits
            thresholds = [self._waiting.sign * limit for limit in limits]
        if self._waiting is None:
            agenda.steps[0].note_edges(lists[0].left, report.edges)
        return QueueRun(
            report.counts, report.seconds, thresholds, lists[0].left,
            report.active + report.waiting, report.edges, report.stages,
            report.has_ended,
        )  # fmt: skip

    def _find_stage(self, loop: Kernel) -> tuple[StagedKernel | None, list[Any]]:
        """Return the loop with the stage in it, if it is compiled, and more to give."""
        queue, known = loop.kernel_source.queue, dict[str, Any]()
        if self._stage is None or queue is None or queue.marks_steps:
            return None, []
        staged = self._stage.bring(loop, known)
        if staged is None or not self._is_there(loop, staged):
            return None, []
        return staged, [known[n] for n in staged.source.arguments if n in known]

    def _is_there(self, loop: Kernel, staged: StagedKernel) -> bool:
        """Whether a loop with a stage is compiled; have that done behind the run."""
        if staged not in _jobs:
            types = loop.signature_with_stage(self._stage.kernel)
            launches = self._device.launches
            _jobs[staged] = Job(
                f"the loop over few vertices of {self._step.kernel}, with a stage",
                lambda: [lambda: launches.prepare(staged.function, types)],
                lambda: int(launches.firsts),
            )
            COMPILER.ask(_jobs[staged])
        return _jobs[staged].is_done

    def _keys(self) -> Keys:
        """Return what tells near vertices from far ones."""
        waiting = self._waiting
        if waiting is None:
            return Keys()
        number = self._step.plan.facts.queue_keys.index(waiting.key)
        return Keys(number, waiting.sign, waiting.delta, waiting.limit)


def _job(kernel: Kernel, device: Any) -> Job:
    """Return what prints the loop of a kernel, and compiles it."""

    def prepare() -> list[Callable[[], None]]:
        loop = kernel.in_form(WORKLIST)
        queue, told = loop.queue, loop.kernel_source.queue
        if told is None or told.entry is None:
            raise TypeError("a kernel without a loop")
        types = loop.signature(told.entry)
        return [lambda: device.launches.prepare(queue, types)]

    what = f"the loop over few vertices of {kernel}"
    return Job(what, prepare, lambda: int(device.launches.firsts))
