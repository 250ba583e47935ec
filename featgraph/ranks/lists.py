"""Entries that several ranks have: where they are the owner's, and where copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph._cached import cached_property
from featgraph.distributed.rows.forms import SendList

__all__ = ["Lists"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Lists:
    """Which entries ranks hand to each other: of edges, or of vertices.

    Attributes
    ----------
    own : int
        How many this rank owns: they have the first numbers.
    count : int
        How many it has.
    sent : list of array of int32 or int64
        The own ones that each rank has, in the order in which it lists them.
    taken : list of array
        Where it has those that each rank owns.
    find_sources : callable, optional
        Of edges: returns the source of each one that is sent.
    """

    own: int
    count: int
    sent: list[Array]
    taken: list[Array]
    find_sources: Callable[[], Array] | None = None

    @cached_property
    def every(self) -> Array:
        """All that are sent, by rank."""
        return np.concatenate(self.sent)

    @cached_property
    def sources(self) -> Array:
        """The source of each of these edges."""
        if self.find_sources is None:
            raise TypeError("these are not the edges of a part")
        return self.find_sources()

    @cached_property
    def bounds(self) -> list[tuple[int, int]]:
        """Where those for each rank stand among all that are sent."""
        counts = np.concatenate(([0], np.cumsum([part.size for part in self.sent])))
        return list(pairwise(counts.tolist()))

    @cached_property
    def links(self) -> list[SendList]:
        """What is sent to each rank, as messages say it."""
        return [SendList(part, self.own) for part in self.sent]

    def alone(self) -> Lists:
        """Return them where ranks have no entries of each other's, as one rank does."""
        none = [self.every[:0]]
        return Lists(self.own, self.count, none, none, self.find_sources)
