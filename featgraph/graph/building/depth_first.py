"""A depth-first search along rows of edges, on one thread.

Import this module inside functions only: it loads Numba.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.graph.building.jit import jit

__all__ = ["label_strong_components"]

_Array: TypeAlias = NDArray[Any]


@jit
def label_strong_components(offsets: _Array, columns: _Array, labels: _Array) -> None:
    """Label vertices of label -1 with the smallest one of their strong component.

    Vertices are numbered from 1 in the order in which they are found. ``low`` of a
    vertex is the smallest number that it reaches among vertices whose component is not
    known, and above all numbers where it is known. A vertex whose own number nothing
    has lowered behind all its edges is the first one found of its component; the
    others stand at the end of ``waiting``. O(V + E), 21 bytes a vertex.

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
