"""Kernels that draw edges."""

from numba import uint64

from featgraph._cuda import cuda, device_function, kernel
from featgraph.arrays import drawing

__all__ = ["draw_grid", "draw_rmat", "draw_uniform"]

_functions = drawing.make(device_function)  # type: ignore[no-untyped-call]

_rmat_edge = _functions.rmat_edge
_uniform_edge = _functions.uniform_edge
_grid_edge = _functions.grid_edge


@kernel(cache=True)
def draw_rmat(seed, scale, a, ab, abc, sources, targets):  # type: ignore[no-untyped-def]
    """Draw the edges of an R-MAT graph."""
    for i in range(cuda.grid(1), sources.size, cuda.gridsize(1)):
        sources[i], targets[i] = _rmat_edge(uint64(i), seed, scale, a, ab, abc)


@kernel(cache=True)
def draw_uniform(seed, count, sources, targets):  # type: ignore[no-untyped-def]
    """Draw pairs of vertices."""
    for i in range(cuda.grid(1), sources.size, cuda.gridsize(1)):
        sources[i], targets[i] = _uniform_edge(uint64(i), seed, count)


@kernel(cache=True)
def draw_grid(height, width, sources, targets):  # type: ignore[no-untyped-def]
    """List the edges of a lattice."""
    for i in range(cuda.grid(1), sources.size, cuda.gridsize(1)):
        sources[i], targets[i] = _grid_edge(i, height, width)
