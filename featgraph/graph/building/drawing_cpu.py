"""Generation of edges on the CPU; import it inside functions only: it loads Numba."""

import numba
from numba import uint64

from featgraph.base.store import njit
from featgraph.graph.building import drawing

# No disk cache of their own: the loops that they are inlined into are cached.
(
    philox, _rmat_edge, _uniform_edge, _grid_edge, _rating_edge, _weight, _star,
) = drawing.make(numba.njit)  # type: ignore[no-untyped-call]  # fmt: skip


@njit(cache=True, nogil=True)
def draw_rmat(seed, scale, a, ab, abc, first, sources, targets):  # type: ignore[no-untyped-def]
    """Draw edges of an R-MAT graph, from number `first` on."""
    for i in range(sources.size):
        u, v = _rmat_edge(uint64(first + i), seed, scale, a, ab, abc)
        sources[i], targets[i] = u, v


@njit(cache=True, nogil=True)
def draw_uniform(seed, count, first, sources, targets):  # type: ignore[no-untyped-def]
    """Draw pairs of vertices."""
    for i in range(sources.size):
        sources[i], targets[i] = _uniform_edge(uint64(first + i), seed, count)


@njit(cache=True, nogil=True)
def draw_grid(height, width, first, sources, targets):  # type: ignore[no-untyped-def]
    """List the edges of a lattice."""
    for i in range(sources.size):
        sources[i], targets[i] = _grid_edge(first + i, height, width)


@njit(cache=True, nogil=True)
def draw_weights(seed, first, weights):  # type: ignore[no-untyped-def]
    """Draw a weight for each edge."""
    for i in range(weights.size):
        weights[i] = _weight(uint64(first + i), seed)


@njit(cache=True, nogil=True)
def draw_ratings(seed, users, items, first, sources, targets):  # type: ignore[no-untyped-def]
    """Draw pairs of a user and an item."""
    for i in range(sources.size):
        sources[i], targets[i] = _rating_edge(uint64(first + i), seed, users, items)


@njit(cache=True, nogil=True)
def draw_stars(seed, first, weights):  # type: ignore[no-untyped-def]
    """Draw a rating for each edge."""
    for i in range(weights.size):
        weights[i] = _star(uint64(first + i), seed)
