"""Sets of a run that the device records, and has supersteps run on (0097).

A `SetLog` is memory of a GPU to which supersteps append what they have committed: of
each set the words that are not zero. The operations are the same in each superstep, so
that they are recorded with it, and run in loops of the device. `RecordedSets` are the
logs of a run: where one is nearly full, the next superstep begins another.

`PlayedSets` are those on which a run with ``due=`` has its supersteps. Behind each the
next set comes in the place of what was committed: from a log by operations that are
recorded, too; other sets come from the host, one by one.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import PlanError
from featgraph.program.active import ActiveSet, word_count
from featgraph.program.state import State
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.loops.foldmap_run import Step
from featgraph.runtime.loops.pending import Pending, begin_pending
from featgraph.runtime.loops.run import Run
from featgraph.runtime.memory.buffers import buffers_of
from featgraph.runtime.superstep.foldmap import as_active

__all__ = ["PlayedSets", "RecordedSets", "check_played"]

Words = Any
#: A log has place for so many sets, and for so many of which no word is zero.
_MOST_SETS, _MOST_WHOLE = 1 << 14, 64
#: Another log is begun where there is place for fewer than this.
_FEWEST = 16
#: State -> logs of its runs that are in use.
_logs: weakref.WeakKeyDictionary[State, weakref.WeakSet[SetLog]] = (
    weakref.WeakKeyDictionary()
)


class SetLog:
    """Sets on a GPU, in the order in which they were appended; none is empty.

    It is the holder of its sets. Its memory is used again when nothing refers to it.

    Parameters
    ----------
    state : State
        Whose memory it takes.
    device : Device
    """

    is_scarce = False

    def __init__(self, state: State, device: Device) -> None:
        self.device, buffers = device, buffers_of(state, device)
        self._sets: Any = device.sets
        self.word_count = word_count(buffers.graph.vertex_count)
        logs = _logs.setdefault(state, weakref.WeakSet())
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
        """The object that counts its sets."""
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
        """Return how many pairs there are, and the ends of so many sets."""
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
        #: Logs, and how many vertices each set of theirs has.
        self._logs: list[tuple[SetLog, list[int]]] = []
        self._counts: list[int] = []
        #: Supersteps whose counts are among these.
        self._seen = self._used = 0
        self._begin()

    def _begin(self) -> None:
        self._log, self._counts, self._used = SetLog(self._state, self._device), [], 0
        self._logs.append((self._log, self._counts))

    def add(self, words: Words) -> None:
        """Append a set."""
        sets: Any = self._device.sets
        sets.log(words, self._log.pairs, self._log.ends)

    @property
    def room(self) -> int:
        """How many supersteps may run before `follow` is called again."""
        pairs = (self._log.most_pairs - self._used) // max(self._log.word_count, 1)
        return min(pairs, _MOST_SETS - len(self._counts))

    def follow(self, run: Run) -> bool:
        """Begin another log if the one at hand could be full soon; return whether."""
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
        """Have the record of a run refer to them."""
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
    """Sets on which supersteps of a run are, in turn; none of them is empty.

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
        #: How many sets have been brought to where supersteps take them, and of how
        #: many the record of the run has the sizes.
        self._brought = self._noted = 0
        #: The pairs of their log, and their order; None where one came from the host.
        self._order: tuple[Any, Any] | None = None

    def next(self, committed: Words) -> Words:
        """Return the next set, or an empty one where `follow` brings it.

        It has as many words as what a superstep has committed.
        """
        sets: Any = self._device.sets
        count = int(committed.size)
        if self._order is None:
            return sets.empty(count)
        return sets.play(*self._order, count)

    def follow(self, run: Run) -> Pending | None:
        """Return the next due set, behind the supersteps of a run; None if it is known.

        The record of the run has the sizes of the sets on which they were.
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
        # Of few sizes, and in the same memory: what is recorded has its address.
        order = np.zeros((1 << len(entries).bit_length(), 2), np.int64)
        order[0, 1], order[1 : len(entries) + 1] = len(entries), entries
        key = "order of played sets", "int64", order.shape
        memory = buffers_of(self._state, self._device).temporary(*key, is_whole=True)
        self._order = log.pairs, self._device.upload(order, memory)
        sets: Any = self._device.sets
        return Pending(sets.play(*self._order, log.word_count), count=self._sizes[done])


def check_played(steps: Sequence[Step], asked: Mapping[str, Any]) -> None:
    """See that nothing else says which vertices are due than ``due=`` does.

    Parameters
    ----------
    steps : sequence of Step
    asked : mapping
        Other options of the run, None or False where they are not asked for.

    Raises
    ------
    PlanError
        If something does.
    """
    [step, *others], given = steps, [name for name, value in asked.items() if value]
    facts = step.plan.facts
    whys = (
        (given, f"{(given or [''])[0]}= is another way to say what is due or recorded"),
        (others, f"{len(steps)} foldmaps take turns"),
        (facts.along_edges, "functions of edges or triangles run on edges"),
        (facts.from_active, "a gather from active vertices asks which are active"),
        (facts.reductions, "a reduce is over all vertices"),
        (step.on is not None, ".on says which vertices may run, too"),
    )
    why = next((why for holds, why in whys if holds), None)
    if why is not None:
        raise PlanError(
            "supersteps on given sets are of one foldmap of vertex functions and "
            "gathers",
            where="due=",
            got=why,
            fix="call foldmap.on(vertices) for each set instead",
        )
