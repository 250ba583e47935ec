"""Exchanges of a run with other ranks, as a single rank has them.

`Exchange` counts sets and combines results over all ranks; `Ghosts` sends and receives
rows of vertices that other ranks own; `Blocks` combines reduces in a fixed tree. The
classes of this module are those of a single rank, most methods of which do nothing;
`featgraph.ranks.exchange` has those of several. Begin with `Exchange`.
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
from featgraph.runtime.devices.protocol import Array, Device
from featgraph.runtime.memory.buffers import Buffers
from featgraph.runtime.memory.graph_arrays import GraphArrays

__all__ = ["Blocks", "Counters", "Exchange", "Ghosts", "exchange_of", "losses_on"]

Words = Any
HostArray = npt.NDArray[Any]


class Ghosts(Protocol):
    """Rows of vertices and edges that other ranks own and one kernel reads.

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
        the phase is swept in one launch; its rows are sent after the superstep then.
        """

    def note(
        self, buffers: Buffers, number: int, vertices: Words | None, sources: Words
    ) -> None:
        """Record which vertices and edges a phase has written, to send them later.

        A vertex phase writes at `vertices`. An edge phase writes at own edges out of
        `sources`. Atomic operations write at further vertices.
        """

    def triangle_batches(
        self, buffers: Buffers, own: Any, given: Mapping[str, Any], fields: Any
    ) -> Iterator[tuple[Callable[[str], list[Any]], Mapping[str, Any]]]:
        """Generate the entries of a triangle phase, with arguments, by batch of rows.

        After the last batch, the owner of each vertex has its combined value.
        """

    def have_wait(self, buffers: Buffers, names: Iterable[str]) -> None:
        """Mark all rows of the named properties as unsent, and no other rows."""

    def announce(
        self, buffers: Buffers, committed: Words | None, active: Words
    ) -> Words:
        """Send the active vertices and, unless None, the committed ones to other ranks.

        Ranks receive those that they have as ghosts. Returns the active vertices of
        this rank, with the ghosts that are active.
        """


class Counters(NamedTuple):
    """Counters of all exchanges of a rank so far.

    Attributes
    ----------
    waited_s : float
        Time in exchanges, in s.
    sent_behind : int
        Number of pieces of rows that were sent while others were swept.
    forms : mapping
        Form of a message of rows, see ``exchange=`` -> number of messages sent.
    """

    waited_s: float = 0.0
    sent_behind: int = 0
    forms: Mapping[str, int] = MappingProxyType({})


class Blocks:
    """Reduces in a fixed tree, the leaves of which are words (32 vertices each).

    On a single rank, which has all words; `featgraph.ranks` has those of several ranks,
    with the same methods.

    Parameters
    ----------
    device : Device
    """

    def __init__(self, device: Device) -> None:
        self._device = device

    def slices(
        self, entries: Callable[[str], list[Any]], given: dict[str, Any]
    ) -> Iterator[tuple[Callable[[str], list[Any]], Mapping[str, Any]]]:
        """Generate the entries of a reduce over words of vertices, with arguments.

        A single rank sweeps all words at once.
        """
        yield entries, {**given, **self._device.trees.given(int(given["due"].size))}

    def combine(self, given: Mapping[str, Any], combine: Combine) -> None:
        """Combine partial results of words of vertices to the result of all ranks.

        `given` are the arguments of the reduce: due vertices, partial results, the
        result, and a function that returns memory for a name and a shape. As in
        `Exchange.combine`, several ranks may delay the combine.
        """
        words, own = int(given["due"].size), (given["partials"], given["reduced"])
        self._device.trees.combine(own[0], words, own[1], combine.rules.tree)


class Exchange:
    """Exchanges with other ranks: sets, results, times and faults.

    On a single rank, which has all vertices, there is nothing to send or to wait for.
    `featgraph.ranks.exchange.exchange.RankExchange` has the same members for several.

    Parameters
    ----------
    device : Device

    Attributes
    ----------
    holder : Holder
        The owner of the memory of active sets that are returned to the user.
    count : callable
        ``count(words)`` returns the size of a set on all ranks.
    count_and_look : callable
        ``count_and_look(words, results, reach)`` returns the size of a set on all ranks
        and the extremes of some results: see `VertexSets`. The edges of `reach` are
        counted on this rank alone.
    blocks : Blocks
        The combines of reduces in a tree over words of vertices.
    stays_on_device : bool
        Whether devices exchange rows with other ranks without the host.
    counters : Counters
        Counters of this rank's exchanges.
    sent_bytes : mapping of str to ndarray of int64, shape (P,)
        Kind of data, see `Run.sent_bytes` -> bytes sent to each rank.
    """

    stays_on_device = True
    counters = Counters()
    sent_bytes: Mapping[str, npt.NDArray[np.int64]] = MappingProxyType({})

    def __init__(self, device: Device) -> None:
        self.device = device
        self.holder: Holder = device
        # Bound methods of the sets: a call in between would count in each superstep.
        self.count, self.count_and_look = device.sets.count, device.sets.count_and_look
        self.blocks = Blocks(device)

    def check_count(self, number: int) -> None:
        """Raise if a count of a superstep, which kernels store, is an error code.

        The codes stand for a lost rank, and for a value that was too large to be
        rounded to the type of messages.
        """

    def check_rounded(self, words: Words) -> None:
        """Raise if the last superstep sent a value too large to be rounded.

        `words` are the active vertices after it.
        """

    def own(self, everyone: Words) -> Words:
        """Return the vertices of `everyone` that this rank owns."""
        return everyone

    def own_edges(self, everything: Words) -> Words:
        """Return the edges of `everything` that this rank owns."""
        return everything

    def among_own(self, words: Words) -> Words:
        """Return the part of a set that this rank owns."""
        return words

    def with_ghosts(self, words: Words) -> Words:
        """Return a set of own vertices with the ghosts that are in their owners' sets.

        All ranks call it together.
        """
        return words

    def all_reduce(self, values: HostArray, operator: str) -> HostArray:
        """Return numbers of the host, combined over all ranks by "sum" or "min"."""
        return values

    def catch_up(self) -> None:
        """Send all results of a call to ranks that only follow another one."""

    def first_fault(self, fault: HostArray) -> tuple[HostArray, str]:
        """Return the violation of a checked kernel on the lowest rank that has one.

        Its vertex and edge become numbers of the whole graph. The text names the rank,
        if there are several.
        """
        return fault, ""

    def owned_rows(self, vertices: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the local numbers of those of some vertices that this rank owns."""
        return vertices

    def ghosts(self, plan: FoldPlan) -> Ghosts | None:
        """Return the ghosts that a plan's kernels read; None on a single rank."""
        return None

    def rows_for(self, phase: Phase, arrays: GraphArrays) -> Mapping[str, Array]:
        """Return the arrays of the graph for a phase.

        Edge functions run on the edges into vertices that this rank owns.
        """
        return arrays

    def combine(self, result: Array, combine: Combine) -> None:
        """Combine the result of a reduce over all ranks, in place.

        The combine may be delayed to the next exchange, or to `settle`.
        """

    def settle(self) -> None:
        """Complete delayed combines, before their results are read."""

    def forget(self) -> None:
        """Drop delayed combines after a failed superstep."""

    def begin_timed(self) -> None:
        """Begin a superstep the time of which is measured, without waits."""

    def count_and_time(
        self, words: Words, results: Sequence[tuple[Array, bool]], seconds: float
    ) -> tuple[int, list[float], list[float]]:
        """Return the result of `count_and_look`, and the `seconds` of each rank."""
        return *self.count_and_look(words, results), [seconds]


#: Device -> the exchange of runs on one rank, made once.
_alone: Any = cache(Exchange)

#: The context of `losses_on` on one rank.
_NO_LOSSES = nullcontext()


def losses_on(graph: Graph) -> AbstractContextManager[None]:
    """Return a context in which errors that a lost rank causes name that rank."""
    ranks = graph.ranks
    return _NO_LOSSES if ranks is None else ranks.losses()


def exchange_of(graph: Graph, device: Device) -> Exchange:
    """Return the exchange of runs on a graph."""
    ranks = graph.ranks
    return _alone(device) if ranks is None else ranks.exchange(device)  # type: ignore[no-any-return]
