"""What ranks know of a graph before its edges are with their owners, and how it is cut.

Of a graph without sides in-edges are counted by words of vertices, at which it is cut;
one with sides is cut at any vertex, and counted by vertices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.distributed.engines.protocol import Engine
from featgraph.fold.plan.traits import GraphTraits
from featgraph.graph._structure import structure_digest
from featgraph.graph.partition.cuts import WORD
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.sides import cut_each_side
from featgraph.ranks.graph import Whole
from featgraph.ranks.loading.parts import cuts_of_words
from featgraph.ranks.working import with_idle, working_ranks

__all__ = ["Counted", "Cut", "Kind", "cut_evenly"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Kind:
    """What ranks know of a graph before they look at edges.

    Attributes
    ----------
    vertex_count, given_count : int
    directed : bool
    along : str
    weights_dtype : dtype or None
    sides : tuple of int, or None
    """

    vertex_count: int
    given_count: int
    directed: bool
    along: str
    weights_dtype: np.dtype[Any] | None
    sides: tuple[int, ...] | None = None

    @property
    def shift(self) -> int:
        """By how many bits a vertex is shifted to where its in-edges are counted."""
        return 0 if self.sides is not None else WORD.bit_length() - 1

    @property
    def counters(self) -> int:
        """How many counts of in-edges there are."""
        return -(-self.vertex_count // (1 << self.shift))

    @property
    def both_ends(self) -> bool:
        """Whether the owners of sources have an edge, too."""
        return self.along == "both" or not self.directed


@dataclass(frozen=True, eq=False)
class Counted:
    """What is counted of edges.

    Attributes
    ----------
    into : ndarray of int64
        In-edges of each word of 32 vertices; of each vertex, of a graph with sides.
    sums : ndarray of uint64, shape (4,)
        Of ends, and of weights, for digests.
    """

    into: npt.NDArray[np.int64]
    sums: npt.NDArray[np.uint64]

    @classmethod
    def of_all(cls, engine: Engine, own: Counted, kind: Kind) -> Counted:
        """Add up what ranks have counted of their edges; all of them call it."""
        into = engine.all_reduce(own.into, "sum", about="in-edges")
        sums = engine.all_reduce(own.sums, "sum", about="the digest of a graph")
        return cls(into, sums)

    def whole(self, kind: Kind) -> Whole:
        """Return what is known of the graph, but for its traits."""
        from featgraph.graph.building import digests  # loads Numba

        ends, weights = (digests.text_of(self.sums[i : i + 2]) for i in (0, 2))
        count, dtype = kind.vertex_count, kind.weights_dtype
        return Whole(
            count,
            kind.given_count,
            int(self.into.sum()),
            kind.directed,
            dtype,
            None,
            structure_digest(count, kind.directed, ends),
            "" if dtype is None else f"{dtype} {weights}",
            GraphTraits(),
            kind.sides,
        )


@dataclass(frozen=True, eq=False)
class Cut:
    """A division of vertices among ranks, by what was counted.

    Attributes
    ----------
    partition : Partition
    is_idle : bool
        Whether some ranks are to have no vertices.
    begins : ndarray of int64, shape (V,), or None
        The edge id of the first in-edge of each vertex; None where ranks have vertices
        in the order of their numbers, from which it follows.
    """

    partition: Partition
    is_idle: bool
    begins: npt.NDArray[np.int64] | None

    def starts(self, rank: int) -> npt.NDArray[np.int64] | None:
        """Return those of a rank's own vertices."""
        if self.begins is None or self.partition.order is None:
            return None
        first, last = map(int, self.partition.cuts[rank : rank + 2])
        found: npt.NDArray[np.int64] = self.begins[self.partition.order[first:last]]
        return found


def cut_evenly(
    engine: Engine, kind: Kind, counted: Counted, ranks: object = None
) -> Cut:
    """Cut a graph into parts of about equal work; all ranks call it.

    Parameters
    ----------
    engine : Engine
    kind : Kind
    counted : Counted
        Of all edges.
    ranks : optional
        How many ranks get vertices: see `working_ranks`.
    """
    count, into = kind.vertex_count, counted.into
    working = working_ranks(engine, ranks, (count, int(into.sum())))
    is_idle = working < engine.size
    if kind.sides is None:
        cuts = with_idle(cuts_of_words(into, count, working), engine.size)
        return Cut(Partition.of_known(cuts, None), is_idle, None)
    cuts, order = cut_each_side(into, kind.sides, None, working)
    partition = Partition.of_known(with_idle(cuts, engine.size), order)
    return Cut(partition, is_idle, np.cumsum(into) - into)
