"""Kernels that find edges with the same ends, and combine their weights.

Weights are combined as `featgraph.graph.building.merge` does on the host: one after the
other, in the order in which they were given.
"""

from featgraph._cuda import cuda, device_function, float64, int32, int64, kernel

__all__ = [
    "LAST",
    "LEAST",
    "MOST",
    "add_repeats",
    "choose_of_repeats",
    "mark_first",
    "order_ends",
]

#: Which of the weights is chosen.
LAST, LEAST, MOST = range(3)
#: A wrapped sum is off by a multiple of 2**64: half of it cannot be rounding.
_WRAPPED = 2.0**62


@kernel(cache=True)
def order_ends(sources, targets, low, high):  # type: ignore[no-untyped-def]
    """Turn each edge upward."""
    for edge in range(cuda.grid(1), sources.size, cuda.gridsize(1)):
        u, v = sources[edge], targets[edge]
        low[edge] = min(u, v)
        high[edge] = max(u, v)


@kernel(cache=True)
def mark_first(low, high, order, is_first):  # type: ignore[no-untyped-def]
    """Mark the given edges that are the first of their kind; the order groups them."""
    for place in range(cuda.grid(1), order.size, cuda.gridsize(1)):
        edge = order[place]
        found = int32(1)
        if place > 0:
            other = order[place - 1]
            if low[edge] == low[other] and high[edge] == high[other]:
                found = int32(0)
        is_first[edge] = found


@device_function
def _number(edge, first):  # type: ignore[no-untyped-def]
    """Return which of the first edges one is; they ascend."""
    low, high = int64(0), int64(first.size)
    while low < high:
        middle = (low + high) >> 1
        if first[middle] < edge:
            low = middle + 1
        else:
            high = middle
    return low


@kernel(cache=True)
def add_repeats(weights, order, is_first, first, zero, out, found):  # type: ignore[no-untyped-def]
    """Add up the weights of equal edges; set ``found[0]`` where they have no sum."""
    for place in range(cuda.grid(1), order.size, cuda.gridsize(1)):
        edge = order[place]
        if is_first[edge] == 0:
            continue
        total, rough = zero + weights[edge], float64(weights[edge])
        other = place + 1
        while other < order.size and is_first[order[other]] == 0:
            total += weights[order[other]]
            rough += float64(weights[order[other]])
            other += 1
        if total != total or abs(float64(total) - rough) > _WRAPPED:
            found[0] = 1
        out[_number(edge, first)] = total


@kernel(cache=True)
def choose_of_repeats(weights, order, is_first, first, which, out):  # type: ignore[no-untyped-def]
    """Keep the last, the least or the most of the weights of equal edges."""
    for place in range(cuda.grid(1), order.size, cuda.gridsize(1)):
        edge = order[place]
        if is_first[edge] == 0:
            continue
        chosen = weights[edge]
        other = place + 1
        while other < order.size and is_first[order[other]] == 0:
            weight = weights[order[other]]
            if (
                which == LAST
                or (which == LEAST and weight < chosen)
                or (which == MOST and weight > chosen)
            ):
                chosen = weight
            other += 1
        out[_number(edge, first)] = chosen
