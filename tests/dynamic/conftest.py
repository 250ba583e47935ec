"""Updates of small graphs go on where those of larger ones do; an emulated GPU."""

from __future__ import annotations

import importlib
import linecache
from collections.abc import Iterator
from typing import Any

import pytest

#: Module -> its least sizes of graphs whose updates do not begin anew.
LEAST = {
    "connected_components": ("LEAST_FOLLOWED", "LEAST_ON_GPU"),
    "label_propagation": ("LEAST_EVALUATED",),
    "pagerank": ("LEAST_ON_GPU",),
}


@pytest.fixture(autouse=True, scope="package")
def follow_small_graphs() -> Iterator[None]:
    """Set the least sizes to 0."""
    with pytest.MonkeyPatch.context() as patch:
        for module, names in LEAST.items():
            patched = importlib.import_module(f"featgraph.algorithms.{module}")
            for name in names:
                patch.setattr(patched, name, 0)
        yield


@pytest.fixture
def gpu() -> Iterator[Any]:
    """Run kernels of a GPU in the emulator."""
    from tests.simt.gpu import emulated_gpu  # imports the dialect

    with emulated_gpu() as made:
        yield made
    linecache.clearcache()  # the emulator leaves the text that it ran there
