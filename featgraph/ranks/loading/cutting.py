"""Cuts of a graph by counts of its in-edges, before edges are sent to their owners.

`cut_evenly` makes the cuts. A graph without sides is counted by words of 32 vertices,
and cut at words; a graph with sides is counted by vertex, and cut at any vertex. With
``ranks=`` the last ranks get no vertices. `target_of` and `working_ranks` choose values
that callers leave open, alike on all ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.arguments import shown
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import GraphInputError
from featgraph.cuda.dialect import chosen_target
from featgraph.graph.building.edges import MANY_EDGES
from featgraph.graph.partition.cuts import WORD, Balance, cut_each_side, even_cuts
from featgraph.graph.partition.partition import Partition
from featgraph.graph.views.structure import structure_digest
from featgraph.ranks.engines.failures import on_all, require_same
from featgraph.ranks.engines.messages import reduce_number
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.graph import Whole
from featgraph.ranks.loading.chunks import EdgeChunks

__all__ = [
    "Counted",
    "Cut",
    "Kind",
    "cut_evenly",
    "cuts_of_words",
    "kind_of",
    "on_all_ranks",
    "target_of",
    "with_idle",
    "working_ranks",
]

Array = npt.NDArray[Any]
#: A name of exchanges about the target, for errors.
_ABOUT = "edges of a graph"


@dataclass(frozen=True)
class Kind:
    """Facts of a graph that ranks have before they read any edge.

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
        """Right shift from a vertex to the index of its counter."""
        return 0 if self.sides is not None else WORD.bit_length() - 1

    @property
    def counters(self) -> int:
        """Number of counters of in-edges."""
        return -(-self.vertex_count // (1 << self.shift))

    @property
    def both_ends(self) -> bool:
        """Whether an edge is stored at the owner of its source, too."""
        return self.along == "both" or not self.directed


@dataclass(frozen=True, eq=False)
class Counted:
    """Counts and digest of edges.

    Attributes
    ----------
    into : ndarray of int64
        In-edges of each word of 32 vertices; with sides, of each vertex.
    sums : ndarray of uint64, shape (4,)
        Sums over ends, and over weights, for digests.
    """

    into: npt.NDArray[np.int64]
    sums: npt.NDArray[np.uint64]

    @classmethod
    def of_all(cls, engine: Engine, own: Counted) -> Counted:
        """Return the sums of the counts of all ranks; all ranks call it."""
        into = engine.all_reduce(own.into, "sum", about="in-edges")
        sums = engine.all_reduce(own.sums, "sum", about="the digest of a graph")
        return cls(into, sums)

    def whole(self, kind: Kind) -> Whole:
        """Return the facts of the whole graph, with default traits."""
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
            kind.sides,
        )


@dataclass(frozen=True, eq=False)
class Cut:
    """A partition of vertices among ranks by counts of edges.

    Attributes
    ----------
    partition : Partition
    is_idle : bool
        Whether some ranks are to have no vertices.
    begins : ndarray of int64, shape (V,), or None
        The edge id of the first in-edge of each vertex; None if the partition keeps the
        order of vertices, from which it follows.
    """

    partition: Partition
    is_idle: bool
    begins: npt.NDArray[np.int64] | None

    def starts(self, rank: int) -> npt.NDArray[np.int64] | None:
        """Return `begins` of a rank's own vertices, or None."""
        if self.begins is None or self.partition.order is None:
            return None
        first, last = map(int, self.partition.cuts[rank : rank + 2])
        found: npt.NDArray[np.int64] = self.begins[self.partition.order[first:last]]
        return found


def kind_of(engine: Engine, given: EdgeChunks, along: str) -> Kind:
    """Return the facts of the edges given to all ranks; all ranks call it."""
    total = reduce_number(engine, given.size, "sum", "given edges")
    known = given.directed, along, given.weights_dtype, given.sides
    return Kind(given.vertex_count, total, *known)


def cut_evenly(
    engine: Engine, kind: Kind, counted: Counted, ranks: object = None
) -> Cut:
    """Cut a graph into parts of about equal work; all ranks call it.

    Parameters
    ----------
    engine : Engine
    kind : Kind
    counted : Counted
        The counts of all ranks.
    ranks : optional
        The number of ranks that get vertices: see `working_ranks`.
    """
    count, into = kind.vertex_count, counted.into
    working = working_ranks(engine, ranks)
    is_idle = working < engine.size
    if kind.sides is None:
        cuts = cuts_of_words(into, count, working, engine.size)
        return Cut(Partition.of_known(cuts, None), is_idle, None)
    cuts, order = cut_each_side(into, kind.sides, None, working)
    partition = Partition.of_known(with_idle(cuts, engine.size), order)
    return Cut(partition, is_idle, np.cumsum(into) - into)


def working_ranks(engine: Engine, requested: Any) -> int:
    """Return how many ranks get vertices; all ranks call it.

    Parameters
    ----------
    engine : Engine
    requested : None or int
        None: all ranks. A single rank takes any number.

    Raises
    ------
    GraphInputError
        On all ranks, if `requested` is invalid, or differs between ranks.
    """
    if requested is None:
        return engine.size
    about = "the number of ranks with vertices"
    what, fix = "ranks= differs between ranks", "one ranks= on all of them"
    require_same(engine, f"ranks={requested!r}", what, fix, about)
    is_number = isinstance(requested, int | np.integer) and not isinstance(
        requested, bool
    )
    if not is_number or requested < 1 or requested > engine.size > 1:
        raise GraphInputError(
            "invalid number of ranks",
            where="ranks=",
            got=shown(requested),
            expected=f"a number from 1 to {engine.size}",
            fix="ranks=1 for a small graph; leave ranks out for all of them",
        )
    return min(int(requested), engine.size)


def with_idle(cuts: npt.ArrayLike, size: int) -> npt.NDArray[np.int64]:
    """Return cuts for `size` ranks, of which the last ones have no vertices."""
    given = np.asarray(cuts, np.int64)
    return np.pad(given, (0, size + 1 - given.size), mode="edge")


def cuts_of_words(
    words: npt.NDArray[np.int64], vertex_count: int, working: int, size: int
) -> npt.NDArray[np.int64]:
    """Return cuts at words that balance the in-edges of the first `working` ranks.

    `words` has the number of in-edges of each word. Further ranks, up to `size`, have
    no vertices.
    """
    before = np.zeros(words.size + 1, np.float64)
    np.cumsum(words, out=before[1:])
    cuts = even_cuts(before, vertex_count, working, Balance())
    return with_idle(cuts, size)


def target_of(engine: Engine, target: object, total: int, on_gpu: bool = False) -> str:
    """Return the target on which all ranks check `total` edges; all ranks call it.

    Parameters
    ----------
    target : object
        The caller's target, the same on all ranks.
    total : int
        Number of edges of all ranks.
    on_gpu : bool
        Whether the edges of this rank are on a GPU.
    """
    require_same(
        engine,
        f"target={target!r}",
        "target= differs between ranks",
        "one target= on all of them",
        _ABOUT,
    )
    if target is None:
        return "cuda" if on_all_ranks(engine, on_gpu) else "cpu"
    default = "cuda" if total >= MANY_EDGES else "cpu"
    chosen = on_all(engine, lambda: chosen_target(target, default), _ABOUT)
    # On GPUs only if all ranks choose them: parts exchange edges from GPU to GPU.
    return "cuda" if on_all_ranks(engine, chosen == "cuda") else "cpu"


def on_all_ranks(engine: Engine, own: bool) -> bool:
    """Return whether `own` is true on all ranks; all ranks call it."""
    return bool(reduce_number(engine, own, "min", _ABOUT))
