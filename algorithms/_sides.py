"""The two sides of a graph of ratings, and what is restricted to them."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any, cast

import numpy as np

import featgraph as fg

__all__ = ["Sides", "sides_of"]


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


#: Graph -> its sides: a target then has sets and lists of them once, for all calls.
_sides: weakref.WeakKeyDictionary[fg.Graph, Sides] = weakref.WeakKeyDictionary()


def sides_of(graph: fg.Graph) -> Sides:
    """Return what is made of a graph of ratings once."""
    found = _sides.get(graph)
    if found is None:
        found = _sides[graph] = Sides(graph)
    return found
