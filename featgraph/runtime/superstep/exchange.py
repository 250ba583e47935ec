"""Exchanges of a run with other ranks, and their stand-ins on one rank.

`Exchange` and `Ghosts` are implemented by `featgraph.ranks.exchange`; a run on one rank
uses `_Alone`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.graph import Graph
from featgraph.program.active import Holder
from featgraph.program.combines import Combine
from featgraph.runtime.devices.protocol import Array, Device, Reach
from featgraph.runtime.memory.buffers import Buffers
from featgraph.runtime.memory.graph_arrays import GraphArrays

__all__ = ["Blocks", "Counters", "Exchange", "Ghosts", "exchange_of", "losses_on"]

Words = Any
HostArray = npt.NDArray[Any]


class Ghosts(Protocol):
    """Rows of vertices and edges that other ranks own, as one kernel reads them.

    All ranks call the same methods in the same order.
    """

    def refresh_all(self, buffers: Buffers) -> None:
        """Receive the current rows of neighbors that phases read."""

    def refresh(self, buffers: Buffers, number: int) -> None:
        """Receive the current rows that a phase reads, by its index."""

    def refresh_next(self, buffers: Buffers, number: int) -> None:
        """Receive the ``_next`` rows that a phase reads."""

    def in_pieces(
        self, buffers: Buffers, own: Any, frontier: Any, given: dict[str, Any]
    ) -> Iterator[tuple[Callable[[str], list[Any]], Mapping[str, Any]]] | None:
        """Generate the entries of a phase, with arguments, for pieces of its vertices.

        Rows of a piece are sent to other ranks while the next piece is swept. None if
        the phase is swept at once, and rows are sent after the superstep.
        """

    def note(
        self, buffers: Buffers, number: int, vertices: Words | None, sources: Words
    ) -> None:
        """Store the vertices and edges that a phase has written.

        It writes at the vertices that it ran on, unless it ran on edges; at own edges
        out of `sources`; and at others.
        """

    def triangle_batches(
        self, buffers: Buffers, own: Any, given: Mapping[str, Any], fields: Any
    ) -> Iterator[tuple[Callable[[str], list[Any]], Mapping[str, Any]]]:
        """Generate the entries of a triangle phase, with arguments, by batch of rows.

        Combined values are with their owners after the last batch.
        """

    def have_wait(self, buffers: Buffers, names: Iterable[str]) -> None:
        """Mark all rows of some properties, and none of any other, as unsent."""

    def announce(
        self, buffers: Buffers, committed: Words | None, active: Words
    ) -> Words:
        """Send the committed vertices, if any function could commit, and active ones.

        Returns the active ones, with the ghosts that are active.
        """


class Counters(NamedTuple):
    """Counters of a rank's exchanges since the start.

    Attributes
    ----------
    waited_s : float
        Time in exchanges.
    sent_behind : int
        Number of pieces of rows that were sent while others were swept.
    forms : mapping
        Number of messages of rows that were sent, by form.
    """

    waited_s: float = 0.0
    sent_behind: int = 0
    forms: Mapping[str, int] = MappingProxyType({})


class Blocks(Protocol):
    """Combines of a reduce in a tree over words of vertices."""

    def slices(
        self, entries: Callable[[str], list[Any]], given: dict[str, Any]
    ) -> Iterator[tuple[Callable[[str], list[Any]], Mapping[str, Any]]]:
        """Generate the entries of a reduce over words of vertices, with arguments."""

    def combine(self, given: Mapping[str, Any], combine: Combine) -> None:
        """Combine partial results of words of vertices to the result of all ranks.

        `given` are the arguments of the reduce: due vertices, partial results, the
        result, and a function that returns memory by a name and a shape. The combine
        may be delayed as by `Exchange.combine`.
        """


class Exchange(Protocol):
    """Exchanges with other ranks: sets, results, times and faults."""

    device: Device

    @property
    def stays_on_device(self) -> bool:
        """Whether supersteps are exchanged with other ranks without the host."""
        ...

    def check_count(self, number: int) -> None:
        """Raise if a count that kernels have stored stands for a failure.

        A rank is lost, or a value was too large to be rounded.
        """

    def check_rounded(self, words: Words) -> None:
        """Raise if a value was too large to be rounded in the last superstep.

        `words` are the active vertices after it.
        """

    @property
    def counters(self) -> Counters:
        """Counters of this rank's exchanges."""
        ...

    @property
    def sent_bytes(self) -> Mapping[str, npt.NDArray[np.int64]]:
        """Number of bytes that this rank has sent to each rank, by kind."""
        ...

    @property
    def holder(self) -> Holder:
        """The owner of the memory of active sets that are returned to the user."""
        ...

    def own(self, everyone: Words) -> Words:
        """Return the vertices that this rank owns, of those that it has."""

    def own_edges(self, everything: Words) -> Words:
        """Return the edges that this rank owns, of those that it has."""

    def among_own(self, words: Words) -> Words:
        """Return the part of a set that this rank owns."""

    def with_ghosts(self, words: Words) -> Words:
        """Return own vertices, with the ghosts that their owners pass."""

    def all_reduce(self, values: HostArray, operator: str) -> HostArray:
        """Return host numbers, combined over all ranks: "sum" or "min"."""
        ...

    def catch_up(self) -> None:
        """Send all results, after a call, to ranks that follow another one."""
        ...

    def first_fault(self, fault: HostArray) -> tuple[HostArray, str]:
        """Return the first violation of a checked kernel, of the first rank with any.

        Its vertex and edge are those of the whole graph. The text names the rank.
        """
        ...

    def owned_rows(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return the rows of this rank that a mask of all vertices contains."""
        ...

    def ghosts(self, plan: FoldPlan) -> Ghosts | None:
        """Return the ghosts of a plan's kernels; None if no rank has any."""

    def rows_for(self, phase: Phase, arrays: GraphArrays) -> Mapping[str, Array]:
        """Return the arrays of the graph for a phase.

        Edge functions run on the edges into vertices that this rank owns.
        """

    def combine(self, result: Array, combine: Combine) -> None:
        """Combine the result of a reduce over all ranks, in place.

        The combine may be delayed to the next exchange, or to `settle`.
        """

    def settle(self) -> None:
        """Complete delayed combines: the results are read next."""

    def forget(self) -> None:
        """Drop delayed combines after a failed superstep."""

    @property
    def blocks(self) -> Blocks:
        """The combines of reduces in a tree over words of vertices."""
        ...

    def count(self, words: Words) -> int:
        """Return the size of a set on all ranks."""

    def count_and_look(
        self,
        words: Words,
        results: Sequence[tuple[Array, bool]],
        reach: Reach | None = None,
    ) -> tuple[int, list[float]]:
        """Return the size of a set on all ranks, and extremes: see `VertexSets`.

        The edges of `reach` are counted for this rank alone.
        """

    def begin_timed(self) -> None:
        """Begin a superstep whose work is timed without its waits."""

    def count_and_time(
        self, words: Words, results: Sequence[tuple[Array, bool]], seconds: float
    ) -> tuple[int, list[float], list[float]]:
        """Return the same, and the seconds that each rank passes."""


class _Alone:
    """The exchange of a single rank, which has all vertices."""

    stays_on_device = True
    counters = Counters()
    sent_bytes: Mapping[str, npt.NDArray[np.int64]] = MappingProxyType({})

    def __init__(self, device: Device) -> None:
        self.holder = device
        self.device: Any = device
        self.count = device.sets.count
        self.count_and_look = device.sets.count_and_look
        self.blocks = _AllBlocks(device)

    def check_count(self, number: int) -> None:
        """Do nothing: there is no other rank."""

    def check_rounded(self, words: Words) -> None:
        """Do nothing: nothing is sent."""

    def begin_timed(self) -> None:
        """Do nothing: the host measures times."""

    def count_and_time(
        self, words: Words, results: Sequence[tuple[Array, bool]], seconds: float
    ) -> tuple[int, list[float], list[float]]:
        """Return the count and extremes, and the time of this rank."""
        return *self.count_and_look(words, results), [seconds]

    def own(self, everyone: Words) -> Words:
        """Return all vertices."""
        return everyone

    def own_edges(self, everything: Words) -> Words:
        """Return all edges."""
        return everything

    def among_own(self, words: Words) -> Words:
        """Return the whole set."""
        return words

    def with_ghosts(self, words: Words) -> Words:
        """Return the set: there are no ghosts."""
        return words

    def all_reduce(self, values: HostArray, operator: str) -> HostArray:
        """Return the numbers as they are."""
        return values

    def catch_up(self) -> None:
        """Do nothing: there is no other rank."""

    def first_fault(self, fault: HostArray) -> tuple[HostArray, str]:
        """Return the violation, without a rank."""
        return fault, ""

    def owned_rows(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return the mask as it is."""
        return mask

    def ghosts(self, plan: FoldPlan) -> None:
        """Return None: no other rank owns vertices."""

    def rows_for(self, phase: Phase, arrays: GraphArrays) -> Mapping[str, Array]:
        """Return all arrays: this rank owns all edges."""
        return arrays

    def combine(self, result: Array, combine: Combine) -> None:
        """Leave the result as it is."""

    def settle(self) -> None:
        """Do nothing: no combine is delayed."""

    def forget(self) -> None:
        """Do nothing: no combine is delayed."""


class _AllBlocks:
    """The combines of a single rank, which has all words."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def slices(
        self, entries: Callable[[str], list[Any]], given: dict[str, Any]
    ) -> Iterator[tuple[Callable[[str], list[Any]], Mapping[str, Any]]]:
        """Generate the entries, where each word is a block of the tree."""
        yield entries, {**given, **self._device.trees.given(int(given["due"].size))}

    def combine(self, given: Mapping[str, Any], combine: Combine) -> None:
        """Combine the partial results of all words."""
        words, own = int(given["due"].size), (given["partials"], given["reduced"])
        self._device.trees.combine(own[0], words, own[1], combine.rules.tree)


_alone: Any = cache(_Alone)


_NO_LOSSES = nullcontext()


def losses_on(graph: Graph) -> AbstractContextManager[None]:
    """Return a context in which errors caused by a lost rank name that rank."""
    ranks = graph.ranks
    return _NO_LOSSES if ranks is None else ranks.losses()


def exchange_of(graph: Graph, device: Device) -> Exchange:
    """Return the exchange of runs on a graph."""
    ranks = graph.ranks
    return _alone(device) if ranks is None else ranks.exchange(device)  # type: ignore[no-any-return]
