"""What a run does together with other ranks, and what stands for it on one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.graph import Graph
from featgraph.program.active import Holder
from featgraph.program.combines import Combine
from featgraph.runtime.devices.protocol import Array, Device, Reach
from featgraph.runtime.memory.buffers import Buffers
from featgraph.runtime.memory.graph_arrays import GraphArrays

__all__ = ["Exchange", "Ghosts", "exchange_of", "losses_on"]

Words = Any
HostArray = npt.NDArray[Any]


class Ghosts(Protocol):
    """Rows of vertices and edges that other ranks own, as one kernel reads them.

    All ranks call the same methods in the same order.
    """

    def refresh_all(self, buffers: Buffers) -> None:
        """Bring rows up to date that phases read as they are now, of neighbors."""

    def refresh(self, buffers: Buffers, number: int) -> None:
        """Bring rows up to date that a phase reads, by its number."""

    def refresh_next(self, buffers: Buffers, number: int) -> None:
        """Bring ``_next`` rows up to date that a phase reads."""

    def in_pieces(
        self, buffers: Buffers, own: Any, frontier: Any, given: dict[str, Any]
    ) -> Iterator[tuple[Callable[[str], list[Any]], Mapping[str, Any]]] | None:
        """Give the entries of a phase for one piece of its vertices after another.

        Beside each, what they are given. Rows of a piece go to other ranks while the
        next one is swept. None where the phase is swept whole, and rows go behind the
        superstep.
        """

    def note(
        self, buffers: Buffers, number: int, vertices: Words | None, sources: Words
    ) -> None:
        """Remember what a phase has written.

        That is on the vertices that it ran on, if not on edges; on own edges out of
        `sources`; and at others.
        """

    def turns(
        self, buffers: Buffers, own: Any, given: Mapping[str, Any], fields: Any
    ) -> Iterator[tuple[Callable[[str], list[Any]], Mapping[str, Any]]]:
        """Give the entries of a triangle phase for one batch of rows after another.

        Beside each, what they are given. What has been combined by all is with its
        owners behind the last one.
        """

    def have_wait(self, buffers: Buffers, names: Iterable[str]) -> None:
        """Have all rows of some properties wait, and none of any other."""

    def announce(self, buffers: Buffers, committed: Words | None, told: Words) -> Words:
        """Tell which vertices were committed, if any function could, and are active.

        Returns the latter with the ghosts that are, too.
        """


class Exchange(Protocol):
    """What is done together with other ranks."""

    device: Device

    @property
    def is_mixed(self) -> bool:
        """Whether some ranks run on another target than others."""
        ...

    @property
    def stays_on_device(self) -> bool:
        """Whether a superstep is told to other ranks without the host, if to any."""
        ...

    def check_count(self, number: int) -> None:
        """Raise if a count that kernels have left says that something has failed.

        A rank is lost, or a value was too large to be rounded.
        """

    def check_rounded(self, words: Words) -> None:
        """Raise if a value was too large to be rounded in the superstep before.

        `words` are what is active behind it.
        """

    @property
    def waited_s(self) -> float:
        """Seconds that this rank has spent in exchanges, from the beginning."""
        ...

    @property
    def forms(self) -> Mapping[str, int]:
        """Messages of rows that this rank has sent, from the beginning, by form."""
        ...

    @property
    def sent_bytes(self) -> Mapping[str, npt.NDArray[np.int64]]:
        """Bytes that this rank has sent to each, from the beginning, by their kind."""
        ...

    @property
    def sent_behind(self) -> int:
        """Pieces of rows that have gone while others were swept."""
        ...

    @property
    def holder(self) -> Holder:
        """What the user's active sets are kept by."""
        ...

    def own(self, everyone: Words) -> Words:
        """Return the vertices that this rank owns, of all that it has."""

    def own_edges(self, everything: Words) -> Words:
        """Return the edges that this rank owns, of all that it has."""

    def among_own(self, words: Words) -> Words:
        """Return what of a set this rank owns."""

    def with_ghosts(self, words: Words) -> Words:
        """Return own vertices, with the ghosts that their owners call this with."""

    def all_reduce(self, values: HostArray, operator: str) -> HostArray:
        """Return numbers of the host, combined over all ranks: "sum" or "min"."""
        ...

    def catch_up(self) -> None:
        """Have ranks that follow another one know all results, behind a call."""
        ...

    def first_fault(self, fault: HostArray) -> tuple[HostArray, str]:
        """Return what a checked kernel has recorded on the first rank that has any.

        Vertex and edge are the whole graph's. And text that says where it was.
        """
        ...

    def owned_rows(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which rows of this rank a mask of all vertices means."""

    def check(self, plan: FoldPlan) -> None:
        """Raise PlanError where ranks do not run a plan together; all call it."""

    def ghosts(self, plan: FoldPlan) -> Ghosts | None:
        """Return the ghosts of a plan's kernels; None where nobody has any."""

    def rows_for(self, phase: Phase, arrays: GraphArrays) -> Mapping[str, Array]:
        """Return the arrays of the graph for a phase, of those of a part.

        Edge functions run on the edges into vertices that this rank owns.
        """

    def combine(self, result: Array, combine: Combine) -> None:
        """Make the result of a reduce that of all ranks, in place.

        That may wait for the next exchange, or for `settle`.
        """

    def settle(self) -> None:
        """See that results of reduces are those of all ranks: they are read next."""

    def forget(self) -> None:
        """Have no result wait, behind a superstep that has failed."""

    def turns_in_a_tree(
        self, entries: Callable[[str], list[Any]], given: dict[str, Any]
    ) -> Iterator[tuple[Callable[[str], list[Any]], Mapping[str, Any]]]:
        """Give what runs a reduce over words of vertices, and what it is given."""

    def combine_in_a_tree(self, given: Mapping[str, Any], combine: Combine) -> None:
        """Make a result of partial ones, of words of vertices, on all ranks.

        `given` is what the reduce was given: what is due, partial results, the result,
        and what gives memory by a name and a shape. As `combine`, that may wait.
        """

    def count(self, words: Words) -> int:
        """Return how many vertices a set has on all ranks."""

    def count_and_look(
        self,
        words: Words,
        results: Sequence[tuple[Array, bool]],
        reach: Reach | None = None,
    ) -> tuple[int, list[float]]:
        """Return the size of a set on all ranks, and extremes: see `VertexSets`.

        What this rank has of `reach` is counted for itself.
        """

    def begin_timed(self) -> None:
        """Begin a superstep whose work is timed without its waits."""

    def count_and_time(
        self, words: Words, results: Sequence[tuple[Array, bool]], seconds: float
    ) -> tuple[int, list[float], list[float]]:
        """Return that, and the seconds that each rank calls it with."""


class _Alone:
    """One rank, which has all vertices."""

    is_mixed = False
    stays_on_device = True
    waited_s = 0.0
    sent_behind = 0
    forms: Mapping[str, int] = MappingProxyType({})
    sent_bytes: Mapping[str, npt.NDArray[np.int64]] = MappingProxyType({})

    def __init__(self, device: Device) -> None:
        self.holder = device
        self.device: Any = device
        self.count = device.sets.count
        self.count_and_look = device.sets.count_and_look

    def check_count(self, number: int) -> None:
        """Do nothing: there is no other."""

    def check_rounded(self, words: Words) -> None:
        """Do nothing: nothing is sent."""

    def begin_timed(self) -> None:
        """Do nothing: the host tells times."""

    def count_and_time(
        self, words: Words, results: Sequence[tuple[Array, bool]], seconds: float
    ) -> tuple[int, list[float], list[float]]:
        """Return its own."""
        return *self.count_and_look(words, results), [seconds]

    def own(self, everyone: Words) -> Words:
        """Return all of them."""
        return everyone

    def own_edges(self, everything: Words) -> Words:
        """Return all of them."""
        return everything

    def among_own(self, words: Words) -> Words:
        """Return the set: it has no others."""
        return words

    def with_ghosts(self, words: Words) -> Words:
        """Return the set: there are none."""
        return words

    def all_reduce(self, values: HostArray, operator: str) -> HostArray:
        """Return the numbers."""
        return values

    def catch_up(self) -> None:
        """Do nothing: there is no one else."""

    def first_fault(self, fault: HostArray) -> tuple[HostArray, str]:
        """Return it."""
        return fault, ""

    def owned_rows(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return the mask itself."""
        return mask

    def check(self, plan: FoldPlan) -> None:
        """Do nothing: one rank runs all that there is."""

    def ghosts(self, plan: FoldPlan) -> None:
        """Return None: nobody else owns any."""

    def rows_for(self, phase: Phase, arrays: GraphArrays) -> Mapping[str, Array]:
        """Return all of them: edges are this rank's."""
        return arrays

    def combine(self, result: Array, combine: Combine) -> None:
        """Leave it as it is."""

    def settle(self) -> None:
        """Do nothing: no result waits."""

    def forget(self) -> None:
        """Do nothing."""

    def turns_in_a_tree(
        self, entries: Callable[[str], list[Any]], given: dict[str, Any]
    ) -> Iterator[tuple[Callable[[str], list[Any]], Mapping[str, Any]]]:
        """Give it, with what says that a word is a block."""
        yield entries, {**given, **self.device.trees.given(int(given["due"].size))}

    def combine_in_a_tree(self, given: Mapping[str, Any], combine: Combine) -> None:
        """Combine those of all words: their vertices are the user's."""
        words, own = int(given["due"].size), (given["partials"], given["reduced"])
        self.device.trees.combine(own[0], words, own[1], combine.rules.tree)


_alone: Any = cache(_Alone)


_NO_LOSSES = nullcontext()


def losses_on(graph: Graph) -> AbstractContextManager[None]:
    """Have errors that a lost rank has brought about name it, in a block."""
    ranks = graph.ranks
    return _NO_LOSSES if ranks is None else ranks.losses()


def exchange_of(graph: Graph, device: Device) -> Exchange:
    """Return what runs on a graph do together with other ranks."""
    ranks = graph.ranks
    return _alone(device) if ranks is None else ranks.exchange(device)  # type: ignore[no-any-return]
