"""Updates of the small graphs of these tests go on where those of larger ones do."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

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
