"""The sets of one superstep: what it is given, and what it has found so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from featgraph.base.dataclass import dataclass, field
from featgraph.graph.views.view import VertexSet
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.superstep.incremental import Incremental

__all__ = ["Frontier", "LeftOut", "Restriction", "are_many"]

Words = Any


@dataclass(frozen=True, eq=False)
class Restriction:
    """The vertices that ``.on`` restricts a foldmap to.

    Attributes
    ----------
    words : words
        As a set.
    find_listed : callable
        Returns a list of them, made when it is first asked for; None where they are too
        many for one.
    """

    words: Words
    find_listed: Callable[[], Any]


class LeftOut:
    """The vertices that were due in any superstep of a run and are excluded by ``.on``.

    They stay due for a later call.

    Parameters
    ----------
    device : Device
    on : words
        The vertices that the foldmap is restricted to.

    Attributes
    ----------
    words : words or None
        None where nothing has been left out yet.
    """

    def __init__(self, device: Device, on: Words) -> None:
        self._device, self._on = device, on
        self.forget()

    def forget(self) -> None:
        """Have nothing due that was left out."""
        self.words: Words | None = None
        self._is_all = False

    def cut(self, due: Words) -> Words:
        """Return the due vertices that may run; do not write it. Note the others."""
        device, on = self._device, self._on
        if isinstance(due, VertexSet):
            if not self._is_all:
                self.words, self._is_all = device.sets.without(due.words, on), True
            return on
        if self.words is None:
            self.words = device.sets.empty(due.size)
        return device.sets.leave_out(due, on, self.words)


def are_many(active_count: int | None, vertex_count: int) -> bool:
    """Whether so many vertices are active that it may pay to send while sweeping."""
    return active_count is not None and 2 * active_count >= vertex_count


@dataclass(eq=False, slots=True)
class Frontier:
    """What one superstep starts from, and how far it has come.

    Attributes
    ----------
    active : words or None
        A; None for all vertices.
    all_due : bool
        Every vertex is due, as after a changed scalar.
    base : words or None
        Vertices due because of A, where the caller has found them already.
    some_due : bool
        Whether `base` has all vertices, of which the kernel finds those that are due.
    also_due : words or None
        Vertices that are due besides.
    active_count : int or None
        About how many vertices A has, if that is known.
    only : Restriction or None
        What the foldmap is restricted to.
    left_out : LeftOut or None
        Notes the due vertices that `only` leaves out.
    incremental : Incremental or None
        The aggregates that the kernel patches, if it does; `begin` was called.
    tracks : bool
        Whether a reduce with another result than the State has makes everything due.
    spreads : bool
        Whether kernels that can may add to the due vertices.
    in_place : bool
        Whether the current buffers stand for the next ones: no vertex reads what
        another one writes in the superstep.
    options : mapping
        Options of the call, of which schedules take some at launches.
    passed, stopped : words or None
        The vertices on which the last function that ran returned True, and those on
        which one has returned False, as far as a later phase or the commit asks.
    targets : words or None
        Targets of edges whose last function returned True.
    """

    active: Words = None
    all_due: bool = False
    base: Words = None
    some_due: bool = False
    also_due: Words = None
    active_count: int | None = None
    only: Restriction | None = None
    left_out: LeftOut | None = None
    incremental: Incremental | None = None
    tracks: bool = False
    spreads: bool = True
    in_place: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    passed: Words = None
    stopped: Words = None
    targets: Words = None

    def make_all_due(self) -> None:
        """Have every vertex due in what comes yet."""
        self.all_due, self.base = True, None
