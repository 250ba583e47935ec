"""Lists of the entries that ranks send each other, at the owner and at the copies."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass
from featgraph.ranks.exchange.row_forms import SendList

__all__ = ["Lists"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Lists:
    """The entries that ranks send each other, of edges or of vertices.

    Attributes
    ----------
    own : int
        Number of entries that this rank owns, the first ones.
    count : int
        Number of entries that it has.
    sent : list of array of int32 or int64
        By rank, the own entries that it has a copy of, in the order of its list.
    taken : list of array
        By rank, the copies of entries that it owns.
    find_sources : callable, optional
        For edges: returns the source of each entry that is sent.
    """

    own: int
    count: int
    sent: list[Array]
    taken: list[Array]
    find_sources: Callable[[], Array] | None = None

    @cached_property
    def every(self) -> Array:
        """All entries that are sent, by rank."""
        return np.concatenate(self.sent)

    @cached_property
    def sources(self) -> Array:
        """The source of each edge of `every`."""
        if self.find_sources is None:
            raise TypeError("these are not the edges of a part")
        return self.find_sources()

    @cached_property
    def bounds(self) -> list[tuple[int, int]]:
        """The range of each rank's entries in `every`."""
        counts = np.concatenate(([0], np.cumsum([part.size for part in self.sent])))
        return list(pairwise(counts.tolist()))

    @cached_property
    def links(self) -> list[SendList]:
        """The send list for each rank."""
        return [SendList(part, self.own) for part in self.sent]

    def alone(self) -> Lists:
        """Return the lists of a single rank, which sends nothing."""
        none = [self.every[:0]]
        return Lists(self.own, self.count, none, none, self.find_sources)
