"""Edges of which something has changed since a foldmap last ran on them (0069)."""

from __future__ import annotations

from typing import Any

from featgraph.program.state import State
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.memory.buffers import Buffers

__all__ = ["ChangedEdges"]

Words = Any
#: Working memory: the set, and a list of edges that passed, with their number (CUDA).
SET, LIST, NUMBER = "changed_edges", "passed_edges", "passed_count"


class ChangedEdges:
    """The set of a kernel's edges of which something has changed.

    Kernels of a superstep keep it up to date. All edges have changed where anything
    else may have written to the State since then, in any superstep but its own.

    Parameters
    ----------
    device : Device
    full : words
        The set of all edges.
    lists : bool
        Whether kernels list the edges that passed, too.

    Attributes
    ----------
    given : dict of str to array
        What the phases of a superstep are given, once it has begun.
    """

    def __init__(self, device: Device, full: Words, lists: bool) -> None:
        self._device, self._full, self._lists = device, full, lists
        self.given: dict[str, Any] = {}
        #: The State's moment and superstep when the set was right.
        self._right_at: tuple[Any, int] | None = None

    def begin(self, buffers: Buffers, edge_count: int) -> None:
        """Have the set as a superstep needs it."""
        words = buffers.temporary(SET, "uint32", tuple(self._full.shape))
        is_right = self._right_at == _moment(buffers.state)
        if words is not self.given.get(SET) or not is_right:
            self._device.copy(words, self._full)
        moment, superstep = _moment(buffers.state)
        self._right_at = moment, superstep + 1
        self.given = {SET: words}
        if self._lists:
            room = (max(edge_count, 1),)
            count = buffers.temporary(NUMBER, "int32", (1,))
            self._device.fill(count, 0)
            self.given |= {LIST: buffers.temporary(LIST, "int32", room), NUMBER: count}

    def forget(self) -> None:
        """Refer to nothing of a State that is gone; another one comes."""
        self._right_at, self.given = None, {}

    def go_on(self, state: State) -> None:
        """Take the set for right: supersteps have run that the host has not."""
        if self._right_at is not None:
            self._right_at = _moment(state)


def _moment(state: State) -> tuple[Any, int]:
    return state.moment, state.superstep
