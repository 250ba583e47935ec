"""Vertex sets of a run in GPU memory: ``record_active=`` and ``due=`` (0097).

A `SetLog` is GPU memory to which each superstep appends the nonzero words of the
committed set, as pairs (index, word). The kernel calls for it are the same in each
superstep, so that recordings and loops on the device contain them. `RecordedSets` are
the logs of a run: when one is nearly full, the next superstep begins another.

`PlayedSets` are the sets of a run with ``due=``. After each superstep the next set
takes the place of the committed one. Sets of a log are read by kernels, which are
recorded, too; other sets are uploaded one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import PlanError
from featgraph.program.active import ActiveSet, word_count
from featgraph.program.state import State
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.loops.foldmap_run import FoldmapRun
from featgraph.runtime.loops.run import Run
from featgraph.runtime.loops.run_state import Pending, begin_pending
from featgraph.runtime.memory.buffers import buffers_of
from featgraph.runtime.superstep.foldmap import as_active

__all__ = ["PlayedSets", "RecordedSets", "check_played"]

Words = Any
#: Most sets of a log; and number of sets without a zero word for which it has room.
_MOST_SETS, _MOST_WHOLE = 1 << 14, 64
#: A new log begins when fewer sets than this may fit.
_FEWEST = 16
#: State -> logs of its runs that are in use.
_logs: WeakKeyDictionary[State, WeakSet[SetLog]] = WeakKeyDictionary()


class SetLog:
    """A log of nonempty vertex sets in GPU memory, in the order of supersteps.

    An `ActiveSet` of a log is its entry (first pair, end of pairs, number of vertices);
    the log is the `Holder` of these sets. Its memory is used for another log of the
    State when nothing refers to it.

    Parameters
    ----------
    state : State
        The State whose working memory it uses.
    device : Device
    """

    is_scarce = False

    def __init__(self, state: State, device: Device) -> None:
        self.device, buffers = device, buffers_of(state, device)
        self._sets: Any = device.sets
        self.word_count = word_count(buffers.graph.vertex_count)
        logs = _logs.setdefault(state, WeakSet())
        taken = {log.number for log in logs}
        self.number: int = next(n for n in itertools.count() if n not in taken)
        logs.add(self)
        self.most_pairs = max(_MOST_WHOLE * self.word_count, _FEWEST)
        shape = self.most_pairs, 2
        name = f"set log {self.number}"
        self.pairs = buffers.temporary(name, "uint32", shape, is_whole=True)
        ends = f"ends of {name}", "int64", (_MOST_SETS + 3,)
        self.ends = buffers.temporary(*ends, is_whole=True)
        device.fill(self.ends, 0)

    @property
    def sets(self) -> Any:
        """The object with `count`, as `Holder` requires: the log itself."""
        return self

    def count(self, entry: tuple[int, int, int]) -> int:
        """Return the number of vertices of a set."""
        return entry[2]

    def download(self, entry: tuple[int, int, int]) -> npt.NDArray[np.uint32]:
        """Return the words of a set on the host."""
        begin, end, _ = entry
        pairs = self._sets.read_rows(self.pairs, begin, end)
        words = np.zeros(self.word_count, np.uint32)
        words[pairs[:, 0]] = pairs[:, 1]
        return words

    def read_ends(self, count: int) -> list[int]:
        """Return the number of pairs, and the ``count + 1`` borders of `count` sets."""
        return self._sets.read_rows(self.ends, 1, count + 3).tolist()  # type: ignore[no-any-return]


class RecordedSets:
    """The sets that the supersteps of a run have committed, in logs.

    Parameters
    ----------
    state : State
    device : Device
        A GPU.
    """

    def __init__(self, state: State, device: Device) -> None:
        self._state, self._device = state, device
        #: The logs, each with the numbers of vertices of its sets.
        self._logs: list[tuple[SetLog, list[int]]] = []
        self._counts: list[int] = []
        #: Number of supersteps whose counts are in `_counts`; upper bound of the pairs
        #: in the current log.
        self._seen = self._used = 0
        self._begin()

    def _begin(self) -> None:
        """Begin another log."""
        self._log, self._counts, self._used = SetLog(self._state, self._device), [], 0
        self._logs.append((self._log, self._counts))

    def add(self, words: Words) -> None:
        """Append a set."""
        sets: Any = self._device.sets
        sets.log(words, self._log.pairs, self._log.ends)

    @property
    def room(self) -> int:
        """Number of supersteps that may run before the next call of `follow`."""
        pairs = (self._log.most_pairs - self._used) // max(self._log.word_count, 1)
        return min(pairs, _MOST_SETS - len(self._counts))

    def follow(self, run: Run) -> bool:
        """Begin another log if the current one could be full soon; True if one began.

        The number of used pairs is read from the GPU only if its upper bound is near
        the end.
        """
        new = list(filter(None, run.active_counts[self._seen :]))
        self._seen = run.supersteps
        self._counts += new
        self._used += sum(min(count, self._log.word_count) for count in new)
        if self.room < _FEWEST:
            self._used = self._log.read_ends(0)[0]
        if self.room >= _FEWEST:
            return False
        self._begin()
        return True

    def end(self, run: Run) -> None:
        """Set `Run.active_sets`, without copying any set to the host."""
        self.follow(run)
        count, found = self._state.graph.vertex_count, []
        for log, counts in self._logs:
            _, *ends = log.read_ends(len(counts))
            for *pair, vertices in zip(ends, ends[1:], counts, strict=False):
                found.append(ActiveSet.held(count, log, (*pair, vertices)))
        sets = iter(found)
        run.active_sets = [
            next(sets) if number else ActiveSet(count) for number in run.active_counts
        ]


class PlayedSets:
    """The nonempty sets of ``due=``, which the supersteps of a run process in order.

    Parameters
    ----------
    sets : sequence of ActiveSet
        Empty ones are left out.
    state : State
    device : Device
    """

    def __init__(self, sets: Sequence[ActiveSet], state: State, device: Device) -> None:
        self._state, self._device = state, device
        found = [(one, n) for one in sets if (n := len(as_active(one, state)))]
        self._sets, self._sizes = [one for one, _ in found], [n for _, n in found]
        #: Number of sets that supersteps can read on the device, and number of sets
        #: whose sizes are in the record of the run.
        self._brought = self._noted = 0
        #: The pairs of the log and the order of sets; None for a set from the host.
        self._order: tuple[Any, Any] | None = None

    def next(self, committed: Words) -> Words:
        """Return the set that takes the place of the committed one.

        It is empty if the next set is not in a log: then `follow` uploads it.
        """
        sets: Any = self._device.sets
        count = int(committed.size)
        if self._order is None:
            return sets.empty(count)
        return sets.play(*self._order, count)

    def follow(self, run: Run) -> Pending | None:
        """Return the next due set if it has to be uploaded, after supersteps of a run.

        The sizes of the processed sets are written to the record of the run.
        """
        done = run.supersteps
        ran = slice(self._noted, done)
        run.active_counts[ran], self._noted = self._sizes[ran], done
        if done < self._brought or done == len(self._sets):
            return None
        held = self._sets[done]._held
        log = None if held is None else held[0]
        if not isinstance(log, SetLog) or log.device is not self._device:
            self._order, self._brought = None, done + 1
            return begin_pending(self._sets[done], self._state, self._device, 1)[0]
        entries = []
        for one in self._sets[done:]:
            if one._held is None or one._held[0] is not log:
                break
            entries.append(one._held[1][:2])
        self._brought = done + len(entries)
        # Rounded up to a power of two, so that runs share few sizes of memory: recorded
        # supersteps refer to its address.
        order = np.zeros((1 << len(entries).bit_length(), 2), np.int64)
        order[0, 1], order[1 : len(entries) + 1] = len(entries), entries
        key = "order of played sets", "int64", order.shape
        memory = buffers_of(self._state, self._device).temporary(*key, is_whole=True)
        self._order = log.pairs, self._device.upload(order, memory)
        sets: Any = self._device.sets
        return Pending(sets.play(*self._order, log.word_count), count=self._sizes[done])


def check_played(steps: Sequence[FoldmapRun], options: Mapping[str, Any]) -> None:
    """Check that only ``due=`` determines which vertices are due.

    Parameters
    ----------
    steps : sequence of FoldmapRun
    options : mapping
        Other options of the run, None or False if they are not set.

    Raises
    ------
    PlanError
        If another option or a function of the foldmap does, too.
    """
    [step, *others], given = steps, [name for name, value in options.items() if value]
    facts = step.plan.facts
    whys = (
        (given, f"{(given or [''])[0]}= also determines what is due or recorded"),
        (others, f"{len(steps)} foldmaps take turns"),
        (facts.along_edges, "functions of edges or triangles run on edges"),
        (facts.from_active, "a gather from active vertices depends on active ones"),
        (facts.reductions, "a reduce is over all vertices"),
        (step.on is not None, ".on restricts the vertices, too"),
    )
    why = next((why for holds, why in whys if holds), None)
    if why is not None:
        raise PlanError(
            "supersteps on given sets need one foldmap of vertex functions and gathers",
            where="due=",
            got=why,
            fix="call foldmap.on(vertices) for each set instead",
        )
