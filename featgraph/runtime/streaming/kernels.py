"""Kernels that a GPU runs between the sweeps of slices."""

from featgraph._cuda import cuda, int32, int64, kernel, uint32
from featgraph.device import warp

__all__ = ["count_due", "number_rows", "rebase"]


@kernel(cache=True)
def rebase(offsets, rebased, first, count, begin, edges):  # type: ignore[no-untyped-def]
    """Have rows begin where they do in a slice; those of other vertices are empty.

    That is done for `count` offsets from `first` on. The slice has so many `edges`, of
    which the first is number `begin`.
    """
    for entry in range(cuda.grid(1), count, cuda.gridsize(1)):
        v = first + entry
        rebased[v] = int32(min(max(int64(offsets[v]) - begin, int64(0)), edges))


@kernel(cache=True)
def number_rows(rows, first, count):  # type: ignore[no-untyped-def]
    """List `count` vertices from `first` on."""
    for entry in range(cuda.grid(1), count, cuda.gridsize(1)):
        rows[entry] = int32(first + entry)


@kernel(cache=True)
def count_due(words, offsets, bounds, found):  # type: ignore[no-untyped-def]
    """Add up the rows of a set, and their edges, in each slice.

    Slice s has the words from ``bounds[s]`` on. Its numbers are ``found[2 * s]`` and
    the one behind.
    """
    for word in range(cuda.grid(1), words.size, cuda.gridsize(1)):
        bits = words[word]
        if bits != 0:
            low, high = int32(0), int32(bounds.size - 1)
            while high - low > 1:
                middle = (low + high) >> 1
                if bounds[middle] <= word:
                    low = middle
                else:
                    high = middle
            rows, edges = int64(0), int64(0)
            while bits != 0:
                v = word * 32 + warp.trailing_zeros(bits)
                edges += int64(offsets[v + 1]) - int64(offsets[v])
                rows += 1
                bits = uint32(bits & (bits - uint32(1)))
            cuda.atomic.add(found, 2 * low, rows)
            cuda.atomic.add(found, 2 * low + 1, edges)
