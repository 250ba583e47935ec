"""Hypothesis strategies: graphs, active sets and options that tests draw from."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

import featgraph as fg
from tests.dynamic.reached import with_dead

__all__ = [
    "OPTION_SETS",
    "active_sets",
    "examples",
    "graphs",
    "option_sets",
    "seeds",
]

#: Both sides of one, two and three words of an active bitvector.
VERTEX_COUNTS = (1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 95, 97)

#: Every value of every option, without the product of all of them.
OPTION_SETS: tuple[dict[str, Any], ...] = (
    {},
    {"direction": "push"},
    {"folding": False},
    {"direction": "pull", "feature_parallel": False},
    {"direction": "push", "feature_parallel": False, "folding": False},
    {"deterministic": True, "feature_parallel": True, "folding": True},
)

seeds = st.integers(0, 2**32 - 1)


def examples(few: int, many: int) -> settings:
    """Have a test try few examples, and many under the deep profile."""
    is_deep = settings.get_current_profile_name() == "deep"
    return settings(max_examples=many if is_deep else few, deadline=None)


def _random(rng: np.random.Generator, v: int, e: int) -> tuple[Any, Any]:
    return rng.integers(0, v, e), rng.integers(0, v, e)


def _hubs(rng: np.random.Generator, v: int, e: int) -> tuple[Any, Any]:
    """A few vertices with most of the edges, the others with few or none."""
    hubs = rng.integers(0, v, max(1, v // 16))
    return rng.integers(0, v, e), rng.choice(hubs, e)


def _loops(rng: np.random.Generator, v: int, e: int) -> tuple[Any, Any]:
    source = rng.integers(0, v, e)
    return source, np.where(rng.random(e) < 0.5, source, rng.integers(0, v, e))


def _parallel(rng: np.random.Generator, v: int, e: int) -> tuple[Any, Any]:
    """Few different edges, each many times."""
    few = max(1, e // 8)
    chosen = rng.integers(0, few, e)
    return rng.integers(0, v, few)[chosen], rng.integers(0, v, few)[chosen]


def _star_in(rng: np.random.Generator, v: int, e: int) -> tuple[Any, Any]:
    leaves = np.arange(1, v)
    return leaves, np.zeros_like(leaves)


def _star_out(rng: np.random.Generator, v: int, e: int) -> tuple[Any, Any]:
    leaves = np.arange(1, v)
    return np.zeros_like(leaves), leaves


def _path(rng: np.random.Generator, v: int, e: int) -> tuple[Any, Any]:
    return np.arange(v - 1), np.arange(1, v)


def _no_edges(rng: np.random.Generator, v: int, e: int) -> tuple[Any, Any]:
    return np.zeros(0, np.int64), np.zeros(0, np.int64)


_SHAPES = (_random, _no_edges, _path, _star_in, _star_out, _loops, _parallel, _hubs)


@st.composite
def graphs(
    draw: st.DrawFn,
    *,
    directed: bool | None = None,
    max_edges: int = 200,
    dead: bool = False,
) -> fg.Graph:
    """Draw a graph: one vertex, no edges, loops, multi-edges, stars, hubs, ...

    With `dead`, vertices without edges may be dead.
    """
    count = draw(st.sampled_from([v for v in VERTEX_COUNTS if v <= max_edges]))
    shape = draw(st.sampled_from(_SHAPES))
    edges = draw(st.integers(0, max_edges))
    both = st.booleans() if directed is None else st.just(directed)
    rng = np.random.default_rng(draw(seeds))
    source, target = shape(rng, count, edges)
    made = fg.Graph.from_edges(source, target, vertex_count=count, directed=draw(both))
    if not dead or draw(st.booleans()):
        return made
    has_edges = np.isin(np.arange(count), [source, target])
    return with_dead(made, has_edges | (rng.random(count) < 0.3))


@st.composite
def active_sets(draw: st.DrawFn, graph: fg.Graph) -> fg.ActiveSet | None:
    """Draw an active set: None for all, empty, one vertex, the last one, some, most."""
    count = graph.vertex_count
    kind = draw(
        st.sampled_from(["none", "all", "empty", "one", "last", "some", "most"])
    )
    if kind == "none":
        return None
    if kind in {"all", "empty"}:
        return fg.ActiveSet(graph, "all" if kind == "all" else None)
    if kind in {"one", "last"}:
        vertex = count - 1 if kind == "last" else draw(st.integers(0, count - 1))
        return fg.ActiveSet(graph, [vertex])
    rng = np.random.default_rng(draw(seeds))
    return fg.ActiveSet(graph, rng.random(count) < (0.2 if kind == "some" else 0.8))


option_sets = st.sampled_from(OPTION_SETS)
