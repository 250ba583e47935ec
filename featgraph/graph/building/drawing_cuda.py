"""Kernels that generate edges."""

from featgraph.cuda.dialect import cuda, device_function, kernel, uint64
from featgraph.graph.building import drawing

(
    _, _rmat_edge, _uniform_edge, _grid_edge, _rating_edge, _weight, _star,
) = drawing.make(device_function)  # type: ignore[no-untyped-call]  # fmt: skip


@kernel(cache=True)
def draw_rmat(seed, scale, a, ab, abc, first, sources, targets):  # type: ignore[no-untyped-def]
    """Draw edges of an R-MAT graph, from number `first` on."""
    for i in range(cuda.grid(1), sources.size, cuda.gridsize(1)):
        u, v = _rmat_edge(uint64(first + i), seed, scale, a, ab, abc)
        sources[i], targets[i] = u, v


@kernel(cache=True)
def draw_uniform(seed, count, first, sources, targets):  # type: ignore[no-untyped-def]
    """Draw pairs of vertices."""
    for i in range(cuda.grid(1), sources.size, cuda.gridsize(1)):
        sources[i], targets[i] = _uniform_edge(uint64(first + i), seed, count)


@kernel(cache=True)
def draw_grid(height, width, first, sources, targets):  # type: ignore[no-untyped-def]
    """List the edges of a lattice."""
    for i in range(cuda.grid(1), sources.size, cuda.gridsize(1)):
        sources[i], targets[i] = _grid_edge(first + i, height, width)


@kernel(cache=True)
def draw_weights(seed, first, weights):  # type: ignore[no-untyped-def]
    """Draw a weight for each edge."""
    for i in range(cuda.grid(1), weights.size, cuda.gridsize(1)):
        weights[i] = _weight(uint64(first + i), seed)


@kernel(cache=True)
def draw_ratings(seed, users, items, first, sources, targets):  # type: ignore[no-untyped-def]
    """Draw pairs of a user and an item."""
    for i in range(cuda.grid(1), sources.size, cuda.gridsize(1)):
        sources[i], targets[i] = _rating_edge(uint64(first + i), seed, users, items)


@kernel(cache=True)
def draw_stars(seed, first, weights):  # type: ignore[no-untyped-def]
    """Draw a rating for each edge."""
    for i in range(cuda.grid(1), weights.size, cuda.gridsize(1)):
        weights[i] = _star(uint64(first + i), seed)
