"""The two sides of a graph of ratings, what is restricted to them, and its entries."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

import featgraph as fg

__all__ = ["Sides", "entries_as", "rows_of", "sides_of"]

Array = npt.NDArray[Any]


class Sides:
    """What is made of a graph of ratings once, and holds nothing of the graph.

    Parameters
    ----------
    graph : Graph
        Of two sides.

    Attributes
    ----------
    users, items : ActiveSet
        The vertices of each side.
    totals : dict
        What was asked of the ratings -> what they come to.
    """

    def __init__(self, graph: fg.Graph) -> None:
        count, sides = graph.vertex_count, cast("tuple[int, int]", graph.sides)
        is_user = np.arange(count) < sides[0]
        self.users = fg.ActiveSet(count, is_user)
        self.items = fg.ActiveSet(count, ~is_user)
        self.totals: dict[Hashable, Any] = {}
        self._halves: dict[fg.FoldMap, tuple[fg.FoldMap, fg.FoldMap]] = {}

    def halves(self, foldmap: fg.FoldMap) -> tuple[fg.FoldMap, fg.FoldMap]:
        """Return a foldmap restricted to the users, and to the items."""
        found = self._halves.get(foldmap)
        if found is None:
            found = foldmap.on(self.users), foldmap.on(self.items)
            self._halves[foldmap] = found
        return found


#: Version of a graph -> its sides: a target has their sets and lists once.
_sides: weakref.WeakKeyDictionary[Any, Sides] = weakref.WeakKeyDictionary()


def sides_of(graph: fg.Graph) -> Sides:
    """Return what is made of a graph of ratings once."""
    found = _sides.get(version := graph.stamps.version)
    if found is None:
        found = _sides[version] = Sides(graph)
    return found


def entries_as(matrix: Any, dtype: np.dtype[Any]) -> Any:
    """Return a sparse matrix of a type; its own ``astype`` would sum repeats."""
    made = matrix.copy()
    made.data = made.data.astype(dtype)
    return made


def rows_of(entries: Any, chosen: Array) -> Any:
    """Return some entries of a COO matrix as CSR; SciPy's own way would sum repeats."""
    from scipy.sparse import csr_matrix

    order = chosen[np.lexsort((entries.col[chosen], entries.row[chosen]))]
    counts = np.bincount(entries.row[order], minlength=entries.shape[0])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    arrays = entries.data[order], entries.col[order], offsets
    return csr_matrix(arrays, shape=entries.shape)
