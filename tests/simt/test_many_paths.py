"""Betweenness with exponents on an emulated GPU, where numbers are small."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.algorithms.betweenness_centrality import betweenness_centrality
from tests.simt.gpu import emulated_gpu

MODULE: Any = sys.modules[betweenness_centrality.__module__]
#: Of these, a sum that leaves out a term loses less than a rounding.
BASE = 2.0**30


def with_base(function: Any) -> Any:
    """Return a plain function with a smaller base."""
    names = function.__globals__ | {"BASE": BASE, "UNIT": 1 / BASE}
    return FunctionType(function.__code__, names, function.__name__)


@fg.reduce(into="overflows", combine="any")
def some(f, v, d):  # type: ignore[no-untyped-def]
    return d.sigma[v, f] > 1000


def test_exponents_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are 2 ** 90 paths: up to the third power of the base."""
    forwards = [
        MODULE.unseen, MODULE.exponents_of_neighbors,
        fg.gather(into="paths", combine="sum")(
            with_base(MODULE.scaled_paths_of_neighbors.function)
        ),
        fg.vertex(with_base(MODULE.settle_scaled.function)),
    ]  # fmt: skip
    shares = fg.gather(into="beyond", combine="sum", along="out")(
        with_base(MODULE.scaled_shares_of_neighbors.function)
    )
    monkeypatch.setattr(MODULE, "look", fg.foldmap(some))
    ends = np.append(np.repeat(np.arange(15), 64), [0, 16])
    targets = np.append(ends[:-2] + 1, [16, 2])
    found = {}
    for where in ("plain", "cpu", "cuda"):
        if where == "cpu":
            monkeypatch.setattr(MODULE, "forwards_scaled", fg.foldmap(*forwards))
            back = fg.foldmap(shares, MODULE.depend)
            monkeypatch.setattr(MODULE, "backwards_scaled", back)
        graph = fg.Graph.from_edges(ends, targets)
        options = {"sources": [0, 3], "batch": 2, "normalized": False}
        if where != "cuda":
            result = betweenness_centrality(graph, target="cpu", **options)
            found[where] = result.dependencies
            continue
        with emulated_gpu() as gpu:
            result = betweenness_centrality(graph, target="cuda", **options)
            found[where] = result.dependencies
        assert "play_set" in gpu.by_driver + gpu.by_dialect
    np.testing.assert_array_equal(found["cpu"], found["plain"])
    assert found["cuda"] == pytest.approx(found["plain"], rel=1e-14)
    assert found["plain"].max() > 10
