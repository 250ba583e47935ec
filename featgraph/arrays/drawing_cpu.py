"""Edges drawn on the CPU; import this module inside functions only: it loads Numba."""

from numba import njit, uint64

from featgraph.arrays import drawing

__all__ = ["draw_grid", "draw_rmat", "draw_uniform", "philox"]

# No disk cache of their own: the loops that they are inlined into are cached.
_functions = drawing.make(njit)  # type: ignore[no-untyped-call]

philox = _functions.philox
_rmat_edge = _functions.rmat_edge
_uniform_edge = _functions.uniform_edge
_grid_edge = _functions.grid_edge


@njit(cache=True)
def draw_rmat(seed, scale, a, ab, abc, sources, targets):  # type: ignore[no-untyped-def]
    """Draw the edges of an R-MAT graph."""
    for i in range(sources.size):
        sources[i], targets[i] = _rmat_edge(uint64(i), seed, scale, a, ab, abc)


@njit(cache=True)
def draw_uniform(seed, count, sources, targets):  # type: ignore[no-untyped-def]
    """Draw pairs of vertices."""
    for i in range(sources.size):
        sources[i], targets[i] = _uniform_edge(uint64(i), seed, count)


@njit(cache=True)
def draw_grid(height, width, sources, targets):  # type: ignore[no-untyped-def]
    """List the edges of a lattice."""
    for i in range(sources.size):
        sources[i], targets[i] = _grid_edge(i, height, width)
