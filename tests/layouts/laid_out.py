"""Graphs whose edges stand in extents: the runtime folds and runs as for any other."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

import featgraph as fg
from featgraph.fold.passes.nests.facts import LAYOUTS
from featgraph.fold.plan.traits import REVERSED, rows_along
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.memory.graph_arrays import graph_arrays
from tests.layouts.extents import Extents, extents_of

__all__ = ["LAYOUT", "laid_out", "layout_named"]


def layout_named(name: str, make: Callable[..., Any]) -> str:
    """Register a layout with the folder under a unique name; return the name."""
    assert LAYOUTS.setdefault(name, make) == make
    return name


LAYOUT = layout_named("extents", Extents.of)
_OF_CSR = {name for along in REVERSED for name in rows_along(along).arguments}


class InExtents:
    """Rows in extents; an access to consecutive rows raises."""

    def __init__(self, graph: fg.Graph, seed: int, name: str) -> None:
        self.name = name
        self._arrays = extents_of(graph, np.random.default_rng(seed))

    def stays(self, name: str) -> bool:
        return False

    def renewed(self, name: str) -> None:
        """Return None: the graph does not change."""

    def array(self, graph: fg.Graph, name: str) -> Any:
        """Return an array of extents, but not one of CSR."""
        assert name not in _OF_CSR, f"{name} is asked for, whatever the layout"
        return self._arrays.get(name)


def laid_out(
    graph: fg.Graph, seed: int, target: str = "cpu", layout: str = LAYOUT
) -> fg.Graph:
    """Return an equal graph, in extents."""
    made = copy.deepcopy(graph)
    view = graph_arrays(made, choose_device(target))
    view.layout = InExtents(made, seed, layout)
    return made
