"""Graphs whose edges stand in extents: the runtime folds and runs as for any other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.fold.lowering.layouts import LAYOUTS
from featgraph.fold.plan import traits
from featgraph.fold.plan.layout import REVERSED, rows_along
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.memory import buffers
from featgraph.runtime.memory.buffers import GraphArrays
from tests.layouts.extents import Extents, extents_of

__all__ = ["LAYOUT", "extents_known", "laid_out"]

LAYOUT = "extents"


@contextmanager
def extents_known(make: Callable[..., Any] = Extents.of) -> Iterator[None]:
    """Have the folder know the layout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LAYOUTS, LAYOUT, make)
        yield


class LaidOut(GraphArrays):
    """Arrays of a graph of which nothing may ask for rows one behind the other."""

    def __getitem__(self, name: str) -> Any:
        """Return an array, but not one of CSR."""
        assert name not in _OF_CSR, f"{name} is asked for, whatever the layout"
        return super().__getitem__(name)


_OF_CSR = {name for along in REVERSED for name in rows_along(along).arguments}


def laid_out(graph: fg.Graph, seed: int, target: str = "cpu") -> fg.Graph:
    """Return an equal graph, in extents."""
    made = copy.deepcopy(graph)
    device = choose_device(target)
    arrays = LaidOut(made, device)
    extents = extents_of(made, np.random.default_rng(seed)).items()
    arrays._arrays |= {name: device.upload(array) for name, array in extents}
    buffers._graphs.setdefault(made, {})[device.name] = arrays
    traits._traits[made] = replace(traits.graph_traits(made), layout=LAYOUT)
    return made
