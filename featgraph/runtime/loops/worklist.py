"""The loop over few vertices: many supersteps in one compiled call (0018, 0042).

Where few vertices are active, as in road networks, the host's time between supersteps
exceeds that of the kernels. The loop keeps the active vertices in lists instead of
bitvectors. After a call, the State is as if the supersteps had run one by one: both
buffers of iterated properties, the due vertices, and the number of vertices committed
by each superstep.

`WorklistLoop` decides whether the loop runs. `CpuQueue` calls the loop of the generated
module on one CPU thread; `worklist_cuda.CudaQueue` launches it as a kernel. `LoopStage`
is a foldmap that the loop runs itself when nothing is due.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from featgraph.base.cached import cached_property
from featgraph.base.errors import FeatGraphError
from featgraph.base.interrupts import import_whole
from featgraph.fold.compiling.kernel import Kernel, StagedKernel
from featgraph.fold.plan.plan import FoldPlan
from featgraph.program.active import word_count
from featgraph.runtime.loops.background import is_ready
from featgraph.runtime.loops.foldmap_run import FoldmapRun
from featgraph.runtime.loops.near_far import Keys
from featgraph.runtime.loops.run import Run
from featgraph.runtime.loops.run_state import (
    SHARED,
    Pending,
    QueueRun,
    RunState,
    Watched,
)
from featgraph.runtime.memory.buffers import ALL, Buffers
from featgraph.runtime.superstep.bound import explained
from featgraph.runtime.superstep.foldmap import FoldMap
from featgraph.runtime.superstep.frontier import Frontier
from featgraph.runtime.superstep.superstep import Superstep

__all__ = ["WorklistLoop", "pays_to_wait"]

#: Fewest vertices and edges together of a graph for which a loop is compiled on the
#: CPU: compiling takes a second, and a superstep of the host only about 50 us.
SMALLEST_GRAPH = 1 << 15


#: Largest mean degree of a graph on which a GPU splits near and far vertices if that is
#: optional: with more, most supersteps have too many edges for the loop.
SPARSE = 8


class WorklistLoop:
    """Runs supersteps of a run of one foldmap in the compiled loop of its kernel.

    Parameters
    ----------
    run_state : RunState
    """

    name: ClassVar[str] = "worklist"

    def __init__(self, run_state: RunState) -> None:
        self._run_state = run_state
        self._queue = _queue_of(run_state)

    @staticmethod
    def refuses(plans: Sequence[FoldPlan], watched: Watched) -> str:
        """Return why the loop cannot run any superstep of a run; "" if it can."""
        facts, size, on_cpu = plans[0].facts, watched.size, watched.device.name == "cpu"
        whys = (
            (watched.by, f"{watched.by} inspects each superstep"),
            (watched.sets, f"{watched.sets} takes sets of each superstep"),
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
        """Run up to `most` supersteps, while active vertices have few out-edges.

        None if the loop does not pay, or if no or all vertices are due: another loop
        runs the next superstep.
        """
        run_state = self._run_state
        run_state.refresh_version()
        [pending] = run_state.pending
        if pending.words is None or pending.left is not None or most < 2:
            return None
        if run_state.reads_others(0) or not self._queue.wants(pending.count):
            return None
        if not run_state.is_due(0):  # may wait for a count
            return None
        scalars = run_state.scalars[0].read()
        # After an interrupt, supersteps count as those of the caller, which make
        # everything due: `RunState.store_pending`.
        ran = self._queue.run_several(pending, most)
        if ran is not None and ran.limits and run_state.waiting is not None:
            run.thresholds += run_state.waiting.follow(ran.limits)
        if ran is None or not ran.counts:
            return None
        number = len(ran.counts)
        run.add_all(ran.counts, ran.seconds, ["push"] * number, ["recomputed"] * number)
        if run.evaluated is not None:
            run.evaluated += ran.edges
        if ran.stages:  # as after `RunState.begin`
            scalars = run_state.scalars[0].read()
            run_state.runs[0].forget()
            run.converged = ran.has_ended
        size = ran.active + ran.waiting
        is_all = 0 < size == run_state.state.graph.living_count
        pending.words = None if is_all else ran.words
        pending.count, pending.scalars = size, scalars
        run_state.superstep = run_state.state.superstep
        run_state.stage += 1
        return True


def pays_to_wait(step: FoldmapRun) -> bool:
    """Whether splitting near and far vertices pays on a GPU.

    The graph must be sparse and the loop compiled.
    """
    graph = step.state.graph
    loops = import_whole("featgraph.runtime.loops.worklist_cuda")
    is_sparse = graph.edge_count <= SPARSE * graph.vertex_count
    return is_sparse and bool(loops.is_compiled(step.plain.kernel))


def _queue_of(run_state: RunState) -> Any:
    """Return the `CpuQueue` or `CudaQueue` of a run."""
    stage, then = None, run_state.then
    if then is not None and then.vertices is None and run_state.waiting is None:
        stage = LoopStage(then, run_state.runs[0].plain)
    if run_state.device.name == "cpu":
        return CpuQueue(run_state, stage)
    # This imports the CUDA dialect, which may be missing without a GPU.
    loops = import_whole("featgraph.runtime.loops.worklist_cuda")
    return loops.CudaQueue(run_state, stage)


Words = Any
#: Functions to call when a run begins whose loop may run a stage, with the foldmap of
#: the stage and the superstep of the loop; `runtime.warming` sets one.
STAGED: list[Callable[[FoldMap, Superstep], None]] = []
#: Active vertices with up to this many out-edges always stay in the loop; with more,
#: supersteps may be left to kernels on all threads.
MOST_EDGES = 60_000
#: The same, times the number of threads, if gathers stop at the first source that they
#: find: a search of kron-15 took 1.85 ms with 200,000 and 2.7 with 60,000 (two cores of
#: an AMD EPYC, 2026-11-21).
_MOST_STOPPING = 400_000
#: The same, times the square of the number of threads, per vertex of the graph, since a
#: superstep outside of the loop tests all vertices. On one thread a search of
#: coAuthorsDBLP,
#: which has 6 edges a vertex, took 28.8 ms where it left the loop and 15.6 to 24.4
#: where it did not; one of an R-MAT graph of 2^17 vertices, which has 29, took 17.2
#: where it never left, and 6.4 to 7.7 with 4 to 16 edges a vertex (one core of an Intel
#: Xeon). On two threads coAuthorsDBLP took 23.1, 20.6 and 26.3 ms with .7, 2 and 4
#: edges a vertex, web-NotreDame 12.7, 9.6 and 9.2 (two cores of an AMD EPYC,
#: 2026-11-28).
_MOST_PER_VERTEX = 8
#: On graphs with up to this many edges, the loop runs any superstep while kernels of
#: single supersteps are not compiled: in the second or more that compiling takes, one
#: thread follows as many edges.
_MOST_ALONE = 1 << 24
#: No limit of edges: the loop runs every superstep.
_ANY_EDGES = 1 << 62
#: Most edges, and most supersteps, of one call: Python handles interrupts in between.
_MOST_WORK = 1 << 25
_MOST_SUPERSTEPS = 1 << 14


class CpuQueue:
    """The compiled loop of the only foldmap of a run, on one thread of the CPU.

    Parameters
    ----------
    run_state : RunState
    stage : LoopStage or None
        The foldmap that the loop runs when nothing is due.
    """

    def __init__(self, run_state: RunState, stage: LoopStage | None) -> None:
        [step] = run_state.runs
        queue = step.plain.kernel.kernel_source.queue
        if queue is None:
            raise TypeError("a kernel without a loop")
        self.superstep, self.waiting, self.queue = step.plain, run_state.waiting, queue
        self._stage = stage
        self._has_run = self._was_left = False
        self._graph = run_state.state.graph
        self._count = step.plain.bound.graph.vertex_count
        self._arrays: dict[str, Any] = {}
        self._buffers: Buffers | None = None

    @cached_property
    def _loops(self) -> Any:
        """Module `cpu_loops`, which imports Numba, and so only when a loop runs."""
        return import_whole("featgraph.runtime.devices.cpu_loops")

    @cached_property
    def _most_edges(self) -> int:
        """Most out-edges of active vertices with which the loop goes on."""
        return _most_edges(self.superstep, self.waiting is not None)

    def _find_arrays(self, buffers: Buffers) -> dict[str, Any]:
        """Return the arrays that the loop takes: lists and marks, and the graph's."""
        if self._arrays and self._buffers is buffers:
            return self._arrays
        self._buffers, count = buffers, self._count
        memory = partial(buffers.temporary, is_whole=True)
        lists = memory("queue lists", "uint32", (3, count))
        far = 0 if self.waiting is None else 2 * count
        known = {
            "sources": lists[0], "passed": lists[1], "due": lists[2],
            "marks": buffers.temporary("queue marks", "int32", (count,)),
            "waits": buffers.temporary("queue waits", "uint8", (far // 2,)),
            "far": memory("queue far", "uint32", (far,)),
        }  # fmt: skip
        for name, dtype, shape in self.queue.memory:
            known[name] = memory(f"queue {name}", dtype, (count, *shape))
        for name in self.queue.graph:
            known[name] = buffers.graph[name]
        self._arrays = known
        return known

    def wants(self, count: int | None) -> bool:
        """Return True: edges are counted in `run_several`."""
        return True

    def run_several(self, pending: Pending, most: int) -> QueueRun | None:
        """Run up to `most` supersteps in one call.

        Parameters
        ----------
        pending : Pending
            The active set A; with near and far, all announced vertices.

        Returns
        -------
        QueueRun or None
            None if the active vertices have too many out-edges.
        """
        active, waiting = pending.words, self.waiting
        buffers = self.superstep.bound.arrive()
        if waiting is None and not self._pays(active, buffers):
            return None
        ran = self._run(pending, most, self._most_edges)
        if ran.counts or self._can_leave():
            return ran
        return self._run(pending, most, _ANY_EDGES)

    def _can_leave(self, *, queues: bool = True) -> bool:
        """Whether supersteps with many edges may run outside of the loop.

        The loop runs them, too, until the kernels of single supersteps are compiled;
        both commit the same. With `queues`, a missing kernel is compiled in the
        background.
        """
        if self._graph.edge_count > _MOST_ALONE:
            return True
        step = self.superstep
        return is_ready(
            step, step.frontier_forms(None, None), with_sets=True, queues=queues
        )

    def _run(self, pending: Pending, most: int, most_edges: int) -> QueueRun:
        """Run up to `most` supersteps, while A has at most `most_edges` out-edges."""
        step, waiting, count = self.superstep, self.waiting, self._count
        active, begun = pending.words, time.perf_counter()
        buffers = step.bound.buffers
        keys = Keys() if waiting is None else waiting.keys(step.plan)
        most = min(most, _MOST_SUPERSTEPS)
        arrays = self._find_arrays(buffers)
        # Results of the loop, in the order in which they are unpacked below. The second
        # is the length of the list of A when the loop begins.
        sizes, counts = np.zeros(6, np.int64), np.empty(most, np.int64)
        limits = np.empty(most + 1, np.float64)
        sizes[1] = self._loops.list_set(active, arrays["passed"])
        in_place = self.queue.overwrites
        step.bound.stale.begin(in_place)
        # Makes both buffers, if there are two, equal.
        none = step.device.sets.empty(step.bound.word_count)
        step.bound.stale.freshen(buffers, step.plan.phases[0], none)
        known = {
            **arrays,
            "chunk": 0,
            "d": step.bound.data(Frontier(in_place=in_place), None),
            "most": most, "most_edges": most_edges, "most_work": _MOST_WORK,
            "key": keys.number, "sign": keys.sign, "delta": keys.delta,
            "limit": keys.limit, "sizes": sizes, "limits": limits, "counts": counts,
        }  # fmt: skip
        stage = self._stage
        staged = None if stage is None else stage.bring(step.kernel, known)
        self._function = step.kernel.queue if staged is None else staged.function
        names = (self.queue if staged is None else staged.source).arguments
        values = [known[name] for name in names]
        try:
            try:
                self._call(values)
            finally:  # after an interrupt, too
                # The loop writes both buffers, if there are two.
                stale = dict.fromkeys(self.queue.commits, ALL if in_place else None)
                if stage is not None and sizes[4] > 0:
                    stale = stage.end() | stale
                buffers.end_in_place(stale, int(sizes[0] + sizes[4]))
            number, size, far_count, edges, stages, has_ended = sizes.tolist()
            words = np.zeros(word_count(count), np.uint32)
            # If no vertex waits, the lists swap at the start of each superstep.
            left = "passed" if waiting is None and number % 2 == 0 else "sources"
            self._loops.fill_set(arrays[left], size, words)
            if waiting is not None:
                fill = self._loops.fill_waiting
                far_count = fill(arrays["far"], far_count, arrays["waits"], words)
        except BaseException:
            arrays["waits"].fill(0)  # flags are clear between calls
            raise
        self._has_run = True
        # The loop has left too many edges to others, unless a limit of the call, or the
        # end of the run, stopped it.
        may_work = edges + most_edges <= _MOST_WORK
        self._was_left = size + far_count > 0 and number < most and may_work
        limits = limits[: 0 if waiting is None else number + 1]
        seconds = [(time.perf_counter() - begun) / max(number, 1)] * number
        return QueueRun(
            counts[:number].tolist(), seconds, words, size, far_count, edges,
            limits.tolist(), stages, bool(has_ended),
        )  # fmt: skip

    def _call(self, values: list[Any]) -> None:
        """Call the loop, which writes its results to the arrays in `values`."""
        kernel = self.superstep.kernel
        try:
            self._function(*values)
        except Exception as error:
            raised = explained(kernel, self.queue.name, error)
            if raised is error:
                raise
            raise raised from error

    def _pays(self, active: Words, buffers: Buffers) -> bool:
        """Whether the loop is worth compiling, or entering again, for an active set.

        If the loop writes the current buffer only, the next superstep outside of it has
        to copy all entries. The loop is then entered again only with half as many edges
        as it may have.
        """
        is_back = self._was_left and self.queue.overwrites
        graph, along = buffers.graph, self.queue.along
        most = self._most_edges // (2 if is_back else 1)
        if (self._has_run and not is_back) or graph.edges_along(along) <= most:
            return True
        if not self._can_leave(queues=False):
            return True
        edges = self.superstep.device.sets.edges_of(active, graph, along)
        return bool(edges <= most)


class LoopStage:
    """A foldmap that a compiled loop runs when nothing is due (0098).

    Parameters
    ----------
    foldmap : FoldMap
        The option ``then=`` of `iterate`.
    step : Superstep
        The superstep with the kernel of the loop.

    Attributes
    ----------
    kernel : Kernel
        The kernel of the stage; set by `bring`.
    """

    kernel: Kernel

    def __init__(self, foldmap: FoldMap, step: Superstep) -> None:
        self._foldmap, self._step = foldmap, step
        for note in STAGED:
            note(foldmap, step)

    def bring(self, loop: Kernel, known: dict[str, Any]) -> StagedKernel | None:
        """Add the arguments of the stage to `known`, those of the loop, by name.

        Returns the loop with the stage in it. None if the host has to run the stage:
        its results have no memory yet, or preparing it raises an error.
        """
        step = self._step
        try:
            stage = self._foldmap.prepare(step.bound.state, step.device, {})
        except FeatGraphError:
            return None
        bound = self._bound = stage.bound
        buffers, keys = bound.arrive(), bound.results.items()
        memory = buffers.temporaries
        are_there = all(
            name in bound.state and buffers.current.get(name) is memory[whole]
            for name, (whole, _) in keys
        )
        if stage.kernel.not_staged or not are_there:
            return None
        self.kernel, staged = stage.kernel, loop.with_stage(stage.kernel)
        words = bound.full.words
        known |= {"s": bound.data(Frontier(in_place=True), None), "everyone": words}
        if step.device.name == "cpu":
            loops = import_whole("featgraph.runtime.devices.cpu_loops")
            shape = known["due"].shape
            left = buffers.temporary("queue left", "uint32", shape, is_whole=True)
            known["left"] = left[: loops.list_set(words, left)]
            known["chunks"] = bound.graph["vertex_chunks"]
        for own in (own for own in stage.phases if own.phase.kind.reduces):
            rows = memory[bound.partials[own.number]]
            reduced = memory[bound.results[own.phase.into][0]]
            if own.number in staged.source.once:
                rows = np.empty_like(rows, shape=(2, rows.shape[1]))
            known |= {f"rows_{own.number}": rows, f"reduced_{own.number}": reduced}
        return staged

    def end(self) -> dict[str, Any]:
        """Register the results of the stage; return its stale entries by property."""
        self._bound.renew_reductions()
        return dict.fromkeys(self._bound.plan.facts.writes_next, ALL)


def _most_edges(superstep: Superstep, waits: bool) -> int:
    """Return the largest number of out-edges of active vertices for the loop.

    With more, pulling on all threads is faster. A pull reads all edges or, if gathers
    stop at the first source that they find, few of them. With near and far (`waits`),
    it would also have to search all vertices for near ones.
    """
    threads = int(import_whole("numba").get_num_threads())
    share = superstep.bound.graph.edge_count // (threads if waits else 2 * threads)
    if any(phase.stops for phase in superstep.plan.phases):
        vertices = superstep.bound.graph.vertex_count
        per_thread = _MOST_PER_VERTEX * vertices // threads
        share = max(_MOST_STOPPING, per_thread) // threads
    return max(MOST_EDGES, share)
