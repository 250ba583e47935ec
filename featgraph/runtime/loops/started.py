"""A run whose first superstep is the first of a known cycle, and is run with it.

The host asks for that superstep as for any other, and the device for nothing, as long
as these are the operations of the cycle's first (`featgraph.runtime.recording.aside`).
Where the host would read how many vertices it has committed, a loop of the cycle runs,
whose first superstep it is: the log begins with that count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.runtime.loops.agenda import Agenda
from featgraph.runtime.loops.device_flight import DeviceFlight
from featgraph.runtime.loops.flight import Flown
from featgraph.runtime.loops.run import Run
from featgraph.runtime.memory.buffers import buffers_of, held_sets
from featgraph.runtime.recording.cycles import Traced
from featgraph.runtime.recording.device_loop import DeviceLoop

__all__ = ["StartedLoop"]


class StartedLoop:
    """A loop that begins with a superstep that the host is about to ask for.

    Parameters
    ----------
    agenda : Agenda
        Of one foldmap, for which every vertex is due.
    run : Run
    cycle : sequence of Traced
        Its first is what the superstep is expected to be.
    loop : DeviceLoop
    how : Flown
    came : list
        The interrupts that have come; they are deferred until the end.
    are_free : callable
        Whether sets that were taken from some pools are there, and nobody's.

    Attributes
    ----------
    away_s : float
        How long supersteps behind that one have taken.
    """

    def __init__(
        self,
        agenda: Agenda,
        run: Run,
        cycle: Sequence[Traced],
        loop: DeviceLoop,
        how: Flown,
        came: list[int],
        are_free: Any,
    ) -> None:
        self._agenda, self._cycle, self._how, self._came = agenda, cycle, how, came
        self._flight = DeviceFlight(agenda, run, cycle, loop)
        self._are_free = are_free
        self.away_s = 0.0

    def run(self) -> npt.NDArray[np.int64] | None:
        """Run the loop; return what its first superstep has handed over.

        The host has asked for all of that by now. None where what comes next is not
        sure to be the second of the cycle: see `Cycles.find`.
        """
        agenda, first, following = self._agenda, self._cycle[0], self._cycle[1]
        buffers = buffers_of(agenda.state, agenda.device)
        if first.committed() is None or held_sets(buffers) != first.stale:
            return None
        if not self._are_free(following.taken, buffers.pools[0]):
            return None
        report = self._flight.fly(self._how, self._came)
        self.away_s = sum(report.seconds[1:])
        seen = np.array(report.seen[0], np.float64).view(np.int64)
        return np.concatenate([np.array(report.counts[:1], np.int64), seen])

    def account(self) -> bool:
        """Account for what has run behind the first; return whether to go on so."""
        return self._flight.account(1)
