"""Named graphs: the generator, its parameters and seed, and the digest of the result.

================= ====================================================================
``rmat-S-F``      ``fg`` R-MAT, 2**S vertices, F * 2**S directed edges, repeats kept
``rmat-1m``       ``rmat-20-16``: 1M vertices, 16M edges
``kron21``        2.1M vertices, 85M directed edges: symmetric, simple, hubs of low id
``kron21-mixed``  the same with its vertices shuffled
``kron-S``        as ``kron21``, with 2**S vertices
``gridN``         an N x N lattice, such as ``grid4096``
================= ====================================================================
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit, prange, uint64

import featgraph as fg
from featgraph.graph import generators

__all__ = ["NamedGraph", "make_graph"]

SEED = 20261121
#: Graph500's quadrants.
A, B, C = 0.57, 0.19, 0.19
#: Draws a vertex: 85.0M directed edges of 21 levels are left by expectation.
KRON_DRAWS_A_VERTEX = 21.65


@dataclass(frozen=True)
class NamedGraph:
    """A graph and where it comes from."""

    name: str
    graph: fg.Graph
    generator: str
    seconds: float

    def describe(self) -> dict[str, Any]:
        """Return what a result says of its graph."""
        graph = self.graph
        return {
            "name": self.name,
            "generator": self.generator,
            "digest": graph.digest,
            "vertices": graph.vertex_count,
            "edges": graph.edge_count,
            "max_in_degree": int(graph.in_degree.max(initial=0)),
            "build_s": round(self.seconds, 2),
        }


def make_graph(name: str) -> NamedGraph:
    """Generate a named graph and build its CSC.

    Raises
    ------
    SystemExit
        If there is no such name.
    """
    begun = time.perf_counter()
    if name == "rmat-1m":
        graph, generator = _rmat(20, 16)
    elif found := re.fullmatch(r"rmat-(\d+)-(\d+)", name):
        graph, generator = _rmat(int(found[1]), int(found[2]))
    elif found := re.fullmatch(r"kron-?(\d+)(-mixed)?", name):
        graph, generator = _kron(int(found[1]), bool(found[2]))
    elif found := re.fullmatch(r"grid(\d+)", name):
        side = int(found[1])
        graph, generator = generators.grid(side, side), f"grid({side}, {side})"
    else:
        raise SystemExit(f"no graph is named {name!r}; see bench/graphs.py")
    assert graph.in_edges.column_indices.size == graph.edge_count
    return NamedGraph(name, graph, generator, time.perf_counter() - begun)


def _rmat(scale: int, factor: int) -> tuple[fg.Graph, str]:
    graph = generators.rmat(scale, factor, seed=SEED)
    return graph, f"rmat({scale}, {factor}, seed={SEED})"


def _kron(scale: int, mixed: bool) -> tuple[fg.Graph, str]:
    """Draw R-MAT edges, drop loops and repeats, and take each both ways.

    A hash of (seed, draw, level) is the random number: any machine and any number of
    threads gives the same graph, in seconds.
    """
    count = 1 << scale
    ids = np.arange(count, dtype=np.int64)
    if mixed:
        ids = np.random.default_rng(SEED).permutation(ids)
    keys = np.empty(int(KRON_DRAWS_A_VERTEX * count), np.int64)
    limits = (np.array([A, A + B, A + B + C]) * 2.0**32).astype(np.uint64)
    _draw_keys(scale, SEED, limits, ids, keys)
    keys.sort()
    keys = keys[np.searchsorted(keys, 0) :]
    keys = keys[np.concatenate(([True], keys[1:] != keys[:-1]))]
    low, high = (keys >> scale).astype(np.int32), (keys & (count - 1)).astype(np.int32)
    graph = fg.Graph.from_edges(low, high, vertex_count=count, directed=False)
    text = (
        f"simple symmetric R-MAT, scale {scale}, {KRON_DRAWS_A_VERTEX} draws a vertex, "
    )
    text += f"a={A} b={B} c={C}, seed {SEED}{', shuffled' if mixed else ''}"
    return graph, text


@njit(parallel=True)
def _draw_keys(scale, seed, limits, ids, keys):  # type: ignore[no-untyped-def]
    """Fill `keys` with ``low << scale | high`` of drawn edges, -1 for self-loops."""
    for draw in prange(keys.size):
        u = v = 0
        bits = uint64(0)
        for level in range(scale):
            if level % 2 == 0:  # 64 bits serve two levels
                # SplitMix64 (Steele, Lea, Flood 2014) of a counter.
                bits = uint64(seed) + uint64(draw * 32 + level) * uint64(
                    0x9E3779B97F4A7C15
                )
                bits = (bits ^ (bits >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
                bits = (bits ^ (bits >> uint64(27))) * uint64(0x94D049BB133111EB)
                bits = bits ^ (bits >> uint64(31))
            here = bits & uint64(0xFFFFFFFF)
            bits = bits >> uint64(32)
            lower = here >= limits[1]
            right = (limits[0] <= here and not lower) or here >= limits[2]
            u = 2 * u + int(lower)
            v = 2 * v + int(right)
        low, high = min(ids[u], ids[v]), max(ids[u], ids[v])
        keys[draw] = -1 if u == v else (low << scale) | high
