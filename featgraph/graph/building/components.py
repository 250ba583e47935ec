"""Components along rows of edges, found by one thread.

Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.graph.building.jit import jit

__all__ = ["label_components", "label_strong_components"]

_Array: TypeAlias = NDArray[Any]

#: Edges of each vertex that are joined first, and samples to find the largest tree.
_FIRST, _VOTES = 2, 1024


@jit
def label_components(offsets: _Array, columns: _Array, labels: _Array) -> None:
    """Label each vertex with the smallest vertex of its component.

    Rows have each edge at both ends. ``labels[v] <= v`` is the parent of v in a tree.
    First, two edges of each vertex are joined, which mostly yields one large tree. Its
    vertices then need no further joins, since the others join their own edges.
    O(V + E), mostly O(V).

    M. Sutton, T. Ben-Nun, A. Barak, "Optimizing Parallel Graph Connectivity
    Computation via Subgraph Sampling", IPDPS 2018 (Afforest).
    """
    count, largest = labels.size, -1
    labels[:] = np.arange(count)
    for turn in range(2):
        for v in range(count):
            start, stop = np.int64(offsets[v]), np.int64(offsets[v + 1])
            middle = min(start + _FIRST, stop)
            if turn == 0:
                stop = middle
            elif labels[v] == largest:
                continue
            else:
                start = middle
            for place in range(start, stop):
                a, b = labels[v], labels[np.uint32(columns[place])]
                while a != b:
                    if a < b:
                        a, b = b, a
                    above = labels[a]
                    labels[a] = min(above, b)
                    if above == a:
                        break
                    a = above
        for v in range(count):  # ascending: the label of v's parent is a root already
            labels[v] = labels[labels[v]]
        votes = 0
        for v in range(0, count, count // _VOTES + 1):
            if votes == 0:
                largest = labels[v]
            votes += 1 if labels[v] == largest else -1


@jit
def label_strong_components(offsets: _Array, columns: _Array, labels: _Array) -> None:
    """Label vertices of label -1 with the smallest vertex of their strong component.

    A depth-first search numbers vertices from 1 on. ``low`` of a vertex is the smallest
    number that it reaches among vertices without a known component, and larger than all
    numbers if its component is known. A vertex whose ``low`` is still its own number
    after all its edges is the root of its component; the other members are at the end
    of ``waiting``. O(V + E) time, 21 bytes per vertex.

    D. J. Pearce, "A Space-Efficient Algorithm for Finding Strongly Connected
    Components", Information Processing Letters 116, 2016 (PEA_FIND_SCC3).
    """
    count = labels.size
    low = np.where(labels < 0, 0, count + 1).astype(np.int32)
    path, waiting = np.empty(count, np.int32), np.empty(count, np.int32)
    places, is_lowered = np.empty(count, np.int64), np.empty(count, np.bool_)
    found = waits = 0
    for root in range(count):
        if low[root] != 0:
            continue
        depth, u = 0, root
        while depth >= 0:
            if low[u] == 0:
                found += 1
                low[u], path[depth] = found, u
                places[depth], is_lowered[depth] = offsets[u], False
            place, stop, least = places[depth], offsets[u + 1], low[u]
            v = u
            while place < stop and v == u:
                end = columns[place]
                if low[end] == 0:
                    v = end
                elif low[end] < least:
                    least, is_lowered[depth] = low[end], True
                place += 1
            low[u], places[depth] = least, place
            if v != u:
                depth, u = depth + 1, v
                continue
            waiting[waits] = u
            waits += 1
            if not is_lowered[depth]:
                first, begin = u, waits
                while begin > 0 and low[waiting[begin - 1]] >= least:
                    begin -= 1
                    first = min(first, waiting[begin])
                for place in range(begin, waits):
                    low[waiting[place]] = count + 1
                    labels[waiting[place]] = first
                waits, least = begin, count + 1
            depth -= 1
            if depth >= 0:
                u = path[depth]
                if least < low[u]:
                    low[u], is_lowered[depth] = least, True
