"""Entries without a feature index: what all features may and may not do with one."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest

import featgraph as fg
from featgraph import algorithms

K = 4


@fg.vertex
def adds(f, v, d):
    d.n[v] = d.n[v] + 1
    d.y[v, f] = d.x[v, f]
    return True


@fg.vertex
def adds_a_sum(f, v, d):
    total = fg.feature_sum(d.x[v, f])
    d.n[v] = d.n[v] + total
    return True


@fg.vertex
def keeps_and_writes_in_a_branch(f, v, d):
    old = d.n[v]
    if f == 0:
        d.n[v] = old + d.x[v, f]
    return True


@fg.vertex
def in_a_loop(f, v, d):
    for i in range(3):
        if d.n[v] > i:
            d.y[v, f] = d.x[v, f]
        else:
            d.n[v] = i
    return True


@fg.vertex
def at_one_place(f, v, d):
    d.y[v, 0] = d.y[v, 0] + fg.feature_sum(d.x[v, f])
    return True


@fg.vertex
def next_of_next(f, v, d):
    d.z_next[v] = d.z_next[v] + fg.feature_sum(d.x[v, f])
    return True


@fg.edge
def along_edges(f, u, v, e, d):
    d.w[e] = d.w[e] + fg.feature_max(d.x[u, f])
    return True


@fg.vertex
def differs(f, v, d):
    d.n[v] = d.x[v, f]
    return True


@fg.vertex
def of_one_feature(f, v, d):
    if f == 0:
        d.n[v] = d.n[v] + d.x[v, f]
    return True


@fg.vertex
def of_the_largest(f, v, d):
    if f == fg.argmax(d.x[v, f]):
        d.n[v] = d.x[v, f]
    return True


@fg.vertex
def written_first(f, v, d):
    d.n[v] = fg.feature_sum(d.x[v, f])
    d.y[v, f] = d.x[v, f] * d.n[v]
    return True


@fg.vertex
def in_other_branches(f, v, d):
    if v > 2:
        d.n[v] = 0
    else:
        d.y[v, f] = d.n[v]
    return True


@fg.vertex
def behind_a_return(f, v, d):
    if d.x[v, f] < 1:
        return False
    d.n[v] = d.n[v] + 1
    return True


@fg.vertex
def iterated(f, v, d):
    d.z_next[v] = d.z[v] + fg.feature_sum(d.x[v, f])
    return True


@fg.vertex
def without_features(f, v, d):
    d.n[v] = d.n[v] + 1
    return True


def fold(function: Any, target: str, k: int = K) -> Any:
    """Fold it over properties of `k` features, and of none."""
    graph = fg.Graph.from_edges([0, 1], [1, 2])
    given: dict[str, Any] = {
        "x": fg.vertex_property(1, shape=(k,)),
        "y": fg.vertex_property(0, shape=(k,)),
        "n": fg.vertex_property(0),
        "z": fg.vertex_property(0, iterated=True),
        "w": fg.edge_property(0),
    }
    return fg.foldmap(function).fold(fg.State(graph, **given), target=target)


@pytest.mark.parametrize("place", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "function",
    [
        adds,
        adds_a_sum,
        keeps_and_writes_in_a_branch,
        in_a_loop,
        at_one_place,
        next_of_next,
        along_edges,
    ],
)
def test_no_feature_reads_what_another_one_writes(function: Any, place: str) -> None:
    with pytest.raises(fg.UserFunctionError, match="what another one writes") as caught:
        fold(function, place)
    assert function.name in str(caught.value)
    assert fold(function, place, k=1)


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_all_features_write_one_value(place: str) -> None:
    with pytest.raises(fg.UserFunctionError, match="different values to one entry"):
        fold(differs, place)
    assert fold(differs, place, k=1)


@pytest.mark.parametrize(
    "function",
    [
        of_one_feature,
        of_the_largest,
        written_first,
        in_other_branches,
        behind_a_return,
        iterated,
        without_features,
    ],
)
def test_what_one_feature_does_alone_is_folded(function: Any) -> None:
    assert fold(function, "cpu")


@fg.vertex
def at_computed_features(f, v, d):
    d.y[v, d.first[v]] = d.y[v, d.second[v]] + d.x[v, f]
    return True


def test_features_that_other_properties_hold_differ() -> None:
    with pytest.raises(fg.UserFunctionError, match="at another feature than"):
        fg.foldmap(at_computed_features).fold(k=K, target="cpu")


def refusal(foldmap: fg.FoldMap) -> str:
    """Return the error for `K` features, or an empty text."""
    try:
        foldmap.fold(k=K, target="cpu")
    except fg.FeatGraphError as error:
        return error.what
    return ""


def test_no_algorithm_has_features_that_part() -> None:
    for found in pkgutil.iter_modules(algorithms.__path__):
        module = importlib.import_module(f"featgraph.algorithms.{found.name}")
        for foldmap in vars(module).values():
            if isinstance(foldmap, fg.FoldMap):
                message = refusal(foldmap)
                assert "one writes" not in message
                assert "one entry" not in message
