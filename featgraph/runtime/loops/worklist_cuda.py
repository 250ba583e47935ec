"""The loop over few vertices as one kernel of a GPU (0042).

`CudaQueue` launches the kernel, and decides when it pays; `QueueMemory` allocates its
lists and reads its log. The blocks of the kernel meet in barriers between supersteps
(`featgraph.device.queue_cuda`). Compiling takes seconds. It is done in the background
(0045), and only after several supersteps would have used the kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from featgraph.base.config import config
from featgraph.base.interrupts import deferred_interrupts
from featgraph.cuda.driver import address_of
from featgraph.device import queue_cuda as words_of
from featgraph.fold.compiling.kernel import Kernel, StagedKernel
from featgraph.fold.plan.plan import WORKLIST
from featgraph.fold.printing.module import Queue
from featgraph.program.active import word_count
from featgraph.runtime.loops.background import COMPILER, Job
from featgraph.runtime.loops.near_far import Keys
from featgraph.runtime.loops.run_state import Pending, QueueRun, RunState
from featgraph.runtime.recording.control import WORDS
from featgraph.runtime.superstep.bound import explained
from featgraph.runtime.superstep.frontier import Frontier

__all__ = ["LOGGED", "CudaQueue", "QueueMemory", "is_compiled"]

Array = Any
Words = Any
#: Most supersteps in the log of a loop, which shares `control.WORDS` int64 words with
#: its parameters.
LOGGED = (WORDS - words_of.LOG) // words_of.OF_AN_ENTRY
#: Entries of the log in the first copy to the host; most runs have no more.
_READ_AT_FIRST = 40
#: Prefix of the names of the loop's memory.
_OWN = "queue"


class QueueMemory:
    """Arrays of the loop of one kernel, on the GPU, for graphs of one size.

    Parameters
    ----------
    device : CudaDevice
    queue : Queue
    identities : sequence
        The initial value of each array of gathered entries.
    vertex_count : int
    most : int
        Most sources and edges of a superstep, together.
    is_staged : bool
        Whether the loop runs a stage, after which there may be more sources.
    """

    def __init__(
        self,
        device: Any,
        queue: Queue,
        identities: Sequence[Any],
        vertex_count: int,
        most: int,
        is_staged: bool = False,
    ) -> None:
        self._device, self._most, self._count = device, most, vertex_count
        # Each vertex occurs once in a list. Lists that a superstep leaves to the next
        # one are double buffers: a superstep reads one half and fills the other.
        self._size = size = max(min(most, vertex_count), 1)
        if is_staged:
            self._size = size = max(vertex_count, 1)
        sources, begins = (
            self._area(name, (2 * size,), "int32") for name in ("sources", "begins")
        )
        due = self._area("due", (size,), "int32")
        chunks = self._area("chunks", (2 * (most // 32 + 2),), "int32")
        marks = self._filled("marks", "int32", (), 0)
        self._lists = sources, begins, chunks, due, marks
        self._marks_steps = queue.marks_steps
        self._far: Any = self._far_lists() if "far_lists" in queue.arguments else None
        pairs = zip(queue.memory, identities, strict=True)
        self.entries = [
            self._filled(f"entries of {identity!r}", dtype, shape, identity)
            for (_, dtype, shape), identity in pairs
        ]

    def _area(self, name: str, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array with undefined contents: loops write it before they read."""
        make = self._device.working_memory
        return self._device.own.area(f"{_OWN} {name}", shape, dtype, make)

    def _filled(
        self, name: str, dtype: str, shape: tuple[int, ...], value: Any
    ) -> Array:
        """Return an array over all vertices that is full of `value` between loops."""

        def make(shape: tuple[int, ...], dtype: str) -> Array:
            made = self._device.empty(shape, dtype)
            self._device.fill(made, value)
            return made

        whole = (max(self._count, 1), *shape)
        return self._device.own.area(f"{_OWN} {name}", whole, dtype, make)

    def _far_lists(self) -> Any:
        """Return the lists of waiting vertices, with room for late duplicates."""
        room = self._count + 4 * self._size
        return words_of.Far(
            self._area("vertices", (2, room), "int32"),
            self._filled("waits", "int32", (), 0),
            self._area("limits", (words_of.LIMITS + LOGGED + 1,), "float64"),
        )

    def begin(
        self, active: Words, limit: int, seconds: float, keys: Keys
    ) -> tuple[Any, ...]:
        """Write the parameters of a launch to the GPU; return its list arguments.

        Parameters
        ----------
        active : words
            The active set at the start.
        limit : int
            Most supersteps.
        seconds : float
            Time limit, in s.
        keys : Keys
            The split of near and far vertices.
        """
        loops, driver = self._device.own.loops, self._device.driver
        head = loops.landing[: words_of.LOG]
        head[:] = 0
        head[words_of.LIMIT] = min(limit, LOGGED)
        head[words_of.MOST] = self._most
        head[words_of.MOST_NS] = int(min(seconds * 1e9, 1 << 62))
        head[words_of.KEY] = keys.number
        size = 8 * words_of.LOG
        driver.write(loops.address, int(head.ctypes.data), size)
        # The kernel sets the bits of the pending vertices.
        left = self._device.sets.empty(word_count(self._count))
        lists = words_of.Lists(active, left, *self._lists, loops.words)
        if self._far is None:
            return (lists,)
        numbers = np.array([keys.limit, keys.sign, keys.delta, np.inf])
        driver.write(
            address_of(self._far.limits), int(numbers.ctypes.data), numbers.nbytes
        )
        return lists, self._far

    def read(self, keys: Keys, left: Words) -> QueueRun:
        """Wait for the end of the loop; return its results.

        `left` is the set into which the kernel has written the pending vertices.
        """
        if self._marks_steps:
            self._device.fill(self._lists[-1], 0)
        words = self._landed(_READ_AT_FIRST)
        number = int(words[words_of.DONE])
        if number > _READ_AT_FIRST:
            words = self._landed(number)
        log = words[words_of.LOG :][: words_of.OF_AN_ENTRY * number]
        log = log.reshape(number, words_of.OF_AN_ENTRY)
        turn = number % words_of.TURNS
        packed = int(words[words_of.ROWS + turn])
        active = packed >> words_of.EDGE_BITS
        active += int(words[words_of.LEAVES + turn])
        counts, seconds = log[:, 0].tolist(), (log[:, 1] * 1e-9).tolist()
        waiting, edges = int(words[words_of.WAITING]), packed & words_of.EDGES
        limits = () if keys.number < 0 else self._read_limits(number)
        stages, last = int(words[words_of.STAGES]), int(words[words_of.STAGED])
        has_ended = stages > 0 and active == 0 and last == number
        return QueueRun(
            counts, seconds, left, active, waiting, edges, limits, stages, has_ended
        )

    def _read_limits(self, number: int) -> tuple[float, ...]:
        """Return the limit of near keys of each superstep, and of the next one."""
        landing, count = self._device.own.loops.landing, words_of.LIMITS + number
        landed, array = int(landing.ctypes.data), self._far.limits
        self._device.driver.read(landed, address_of(array), 8 * count)
        values = landing[:count].view(np.float64)
        return *values[words_of.LIMITS :].tolist(), float(values[words_of.NEAR])

    def _landed(self, entries: int) -> Any:
        """Return a host copy of the loop's words, with `entries` entries of the log."""
        loops = self._device.own.loops
        size = words_of.LOG + words_of.OF_AN_ENTRY * entries
        landed = int(loops.landing.ctypes.data)
        self._device.driver.read(landed, loops.address, 8 * size)
        return np.array(loops.landing[:size])  # thresholds are read into the same

    def forget(self) -> None:
        """Drop the arrays after a failed loop, which has not reset their values."""
        scratch = self._device.own.scratch
        for key in [key for key in scratch if key.startswith(_OWN)]:
            del scratch[key]


#: Most sources and their edges, together, of a superstep of the loop. One of 200,000
#: edges took 30 us, and a superstep on the whole GPU no less (NVIDIA H200).
MOST_ACTIVE = 1 << 22
#: Most blocks of the kernel; no more than multiprocessors, since the barriers need all
#: blocks resident at once. A search of grid4096 took 134 ms with 8 blocks, 103 with 32
#: and with 64.
BLOCKS = 132
#: Time limit of a launch, in s, after which interrupts are handled.
_MOST_AWAY = 0.05
#: The loop of a kernel is compiled after this many supersteps, in all runs, that could
#: have used it; a search of an R-MAT graph has two or three. The count starts again if
#: anything else is compiled in between, since runs that compile would wait 5 s for the
#: loop.
WANTED = 8

#: Kernel -> number of supersteps that could have used its loop; and numbers of first
#: launches and of background jobs at that time.
_wanted: WeakKeyDictionary[Kernel, tuple[int, tuple[int, int]]] = WeakKeyDictionary()
#: Kernel, or kernel with a stage -> job that compiles its loop.
_jobs: WeakKeyDictionary[Kernel | StagedKernel, Job] = WeakKeyDictionary()


def is_compiled(kernel: Kernel) -> bool:
    """Whether the loop of a kernel is compiled."""
    return kernel in _jobs and _jobs[kernel].is_done


class CudaQueue:
    """The loop of the only foldmap of a run, as one kernel of a GPU.

    Parameters
    ----------
    run_state : RunState
    stage : LoopStage or None
        The foldmap that the loop runs when nothing is due.
    """

    def __init__(self, run_state: RunState, stage: Any) -> None:
        [step] = run_state.runs
        self._run_state, self._step, self._stage = run_state, step.plain, stage
        self._device: Any = run_state.device
        self._waiting = run_state.waiting
        #: Number of supersteps to leave to other loops: now, and after the next loop
        #: that ends because of too many edges.
        self._waits, self._patience = 0, 1

    def wants(self, count: int | None) -> bool:
        """Whether the loop may pay for an active count, and is compiled."""
        return self._pays(count) and self._find_kernel() is not None

    def run_several(self, pending: Pending, most: int) -> QueueRun | None:
        """Run up to `most` supersteps in one launch.

        Parameters
        ----------
        pending : Pending
            The active set A.

        Returns
        -------
        QueueRun or None
            None if the loop is not compiled.
        """
        kernel = self._find_kernel()
        if kernel is None:
            return None
        begun = time.perf_counter()
        # An interrupt between the launch and its bookkeeping would lose commits.
        with deferred_interrupts():
            ran = self._run(kernel, pending, most)
        if not ran.counts:
            self._patience *= 2
            return ran
        self._patience = 1
        took = time.perf_counter() - begun
        ran.seconds[0] += max(took - sum(ran.seconds), 0.0)
        return ran

    def _pays(self, count: int | None) -> bool:
        """Whether the active vertices are likely to have few enough out-edges.

        After each loop that has ended without a superstep, twice as many supersteps are
        left to other loops.
        """
        if self._waits > 0:
            self._waits -= 1
            return False
        if self._waiting is not None:
            return True
        if count is None:
            return False
        [step], [pending] = self._run_state.runs, self._run_state.pending
        edges = step.edges_out_of(pending.words)
        if edges is not None:
            return count + edges <= MOST_ACTIVE
        graph = self._run_state.state.graph
        size = graph.vertex_count + graph.edge_count
        return count * size <= MOST_ACTIVE * graph.vertex_count

    def _find_kernel(self) -> Kernel | None:
        """Return the kernel of the loop; None until it is compiled.

        Counts the call as a superstep that could have used the loop: see `WANTED`.
        """
        kernel = self._step.kernel
        if kernel not in _jobs and config.compile_behind and COMPILER.is_idle:
            now = self._device.launches.firsts, COMPILER.ended
            count, before = _wanted.get(kernel, (0, now))
            count = (count if before == now else 0) + 1
            _wanted[kernel] = count, now
            if count >= WANTED:
                _jobs[kernel] = _job(f"{kernel}", self._device, lambda: _found(kernel))
                COMPILER.add(_jobs[kernel])
        return kernel.in_form(WORKLIST) if is_compiled(kernel) else None

    def _run(self, kernel: Kernel, pending: Pending, most: int) -> QueueRun:
        """Launch the loop, and wait for its end."""
        run_state, device = self._run_state, self._device
        queue = kernel.kernel_source.queue
        if queue is None or queue.entry is None:
            raise TypeError("a kernel without a loop")
        bound = self._step.bound_for(kernel)
        buffers = bound.buffers
        count, identities = bound.graph.vertex_count, kernel.module.IDENTITIES
        staged, more = self._find_stage(kernel)
        is_staged = staged is not None
        memory = QueueMemory(device, queue, identities, count, MOST_ACTIVE, is_staged)
        bound.stale.begin()
        # Makes both buffers equal; they are equal after the loop, too.
        none = device.sets.empty(bound.word_count)
        bound.stale.freshen(buffers, kernel.plan.phases[0], none)
        data = bound.data(Frontier(), None)
        waiting = self._waiting
        keys = Keys() if waiting is None else waiting.keys(self._step.plan)
        lists = memory.begin(pending.words, most, _MOST_AWAY, keys)
        rows = [buffers.graph[name] for name in queue.graph]
        function = kernel.queue if staged is None else staged.function
        try:
            given = data, *lists, *rows, *memory.entries, *more
            blocks = min(BLOCKS, device.multiprocessors)
            device.launches(function, blocks, queue.entry.block, given)
            ran = memory.read(keys, lists[0].left)
        except BaseException as error:
            memory.forget()
            bound.stale.fail(buffers)
            pending.words = None
            raised = explained(kernel, queue.name, error)
            if raised is error:
                raise
            raise raised from error
        number, stages = len(ran.counts), ran.stages
        self._waits = self._patience if ran.active + ran.edges > MOST_ACTIVE else 0
        if stages:
            self._stage.end()
        if number:
            buffers.end_in_place(dict.fromkeys(queue.commits), number + stages)
        if self._waiting is None:
            run_state.runs[0].note_edges(ran.words, ran.edges)
        return ran

    def _find_stage(self, loop: Kernel) -> tuple[StagedKernel | None, list[Any]]:
        """Return the loop with the stage in it and the stage's arguments.

        (None, []) if that loop is not compiled, or the host has to run the stage.
        """
        queue, known = loop.kernel_source.queue, dict[str, Any]()
        if self._stage is None or queue is None or queue.marks_steps:
            return None, []
        staged = self._stage.bring(loop, known)
        if staged is None or not self._is_there(loop, staged):
            return None, []
        return staged, [known[n] for n in staged.source.arguments if n in known]

    def _is_there(self, loop: Kernel, staged: StagedKernel) -> bool:
        """Whether a loop with a stage is compiled; if not, queue its compilation."""
        if staged not in _jobs:
            types = loop.signature_with_stage(self._stage.kernel)
            what = f"{self._step.kernel}, with a stage"
            _jobs[staged] = _job(what, self._device, lambda: (staged.function, types))
            COMPILER.add(_jobs[staged])
        return _jobs[staged].is_done


def _found(kernel: Kernel) -> tuple[Any, Any]:
    """Print the loop of a kernel; return its function and the argument types."""
    loop = kernel.in_form(WORKLIST)
    source = loop.kernel_source.queue
    if source is None or source.entry is None:
        raise TypeError("a kernel without a loop")
    return loop.queue, loop.signature(source.entry)


def _job(what: str, device: Any, find: Callable[[], tuple[Any, Any]]) -> Job:
    """Return a job that compiles a loop.

    `find` returns the function and its types; it is called when the job is prepared.
    """

    def prepare() -> list[Callable[[], None]]:
        loop = find()
        return [lambda: device.launches.prepare(*loop)]

    name = f"the loop over few vertices of {what}"
    return Job(name, prepare, lambda: int(device.launches.firsts))
