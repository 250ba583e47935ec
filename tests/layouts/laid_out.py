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
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.memory.buffers import graph_arrays
from tests.layouts.extents import Extents, extents_of

__all__ = ["LAYOUT", "extents_known", "laid_out"]

LAYOUT = "extents"


@contextmanager
def extents_known(make: Callable[..., Any] = Extents.of) -> Iterator[None]:
    """Have the folder know the layout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LAYOUTS, LAYOUT, make)
        yield


def laid_out(graph: fg.Graph, seed: int, target: str = "cpu") -> fg.Graph:
    """Return an equal graph, in extents."""
    made = copy.deepcopy(graph)
    arrays = graph_arrays(made, choose_device(target))
    arrays._arrays |= extents_of(made, np.random.default_rng(seed))
    traits._traits[made] = replace(traits.graph_traits(made), layout=LAYOUT)
    return made
