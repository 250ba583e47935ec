"""How triangles are found: rows of neighbors are intersected (0012)."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from featgraph.fold.schedules.base import (
    Binding,
    FeatureAxis,
    KernelShape,
    Schedule,
    Scope,
)
from featgraph.fold.schedules.mapping import Mapping
from featgraph.fold.tree.layout import Walk
from featgraph.fold.tree.nodes import Intersect
from featgraph.fold.tree.oriented import Oriented
from featgraph.fold.tree.statements import Body

__all__ = ["Intersection", "placed"]


class Intersection(Schedule):
    """A way to come to all triangles; it has nothing to do with features.

    Attributes
    ----------
    does : str
        What its kernels do, in a sentence.
    """

    is_asked_for = False
    runs = "intersects"
    shares_features = None
    does: ClassVar[str]

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return what passes have to know of it: a lane is alone."""
        alone = dict.fromkeys(("edge", "vertex"), Scope())
        walk = Walk("range", lanes=mapping.lanes_per_vertex, own="lane")
        own = "{} < hub_degree" if mapping.hubs else ""
        return Binding(False, FeatureAxis(1), walk, alone, own=own)

    @abstractmethod
    def arguments(self, rows: Oriented) -> tuple[str, ...]:
        """Return what a kernel is given beside the data, and how it is cut."""

    @abstractmethod
    def intersect(self, node: Intersect, binding: Binding, rows: Oriented) -> Body:
        """Return a sweep of rows or edges, with the body of `node` at each triangle."""


def placed(node: Intersect) -> tuple[str, ...]:
    """Return where what is added may wait at the members of the row of ``v``."""
    return tuple(each for each in ("w", "e_vw") if each in node.may_wait)
