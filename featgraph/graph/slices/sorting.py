"""Edges in given order, of any number, grouped by target: a counting sort on the disk.

Edges go into files of their own, a range of targets each, that are so small that each
can be sorted in memory; appended to each other, these are the whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph._files import create_file, open_file

__all__ = ["Sorter"]

Array = NDArray[Any]
#: Files that are open at once.
_MOST_FILES = 200


class Sorter:
    """Sorts edges by target; those into one vertex stay in their order.

    Parameters
    ----------
    folder : Path
        For files meanwhile.
    in_counts : ndarray of int64, shape (V,)
        How many edges lead into each vertex.
    weights_dtype : dtype or None
    most : int
        Edges that are sorted at a time; those into one vertex are not parted.
    """

    def __init__(
        self, folder: Path, in_counts: Array, weights_dtype: Any, most: int
    ) -> None:
        fields = [("u", "<i4"), ("v", "<i4"), ("row", "<i8")]
        if weights_dtype is not None:
            fields.append(("w", np.dtype(weights_dtype).str))
        self._dtype = np.dtype(fields)
        ends = np.cumsum(in_counts)
        total = int(ends[-1])
        most = max(most, -(-total // _MOST_FILES), 1)
        # The first target of each range.
        goals = np.arange(most, total, most)
        self._begins = np.unique(np.searchsorted(ends, goals, "right"))
        self._paths = [folder / f"part{i}" for i in range(self._begins.size + 1)]
        self._streams = [os.fdopen(create_file(path), "wb") for path in self._paths]

    def add(self, u: Array, v: Array, rows: Array, weights: Array | None) -> None:
        """Add edges, and of each the row in given order."""
        records = np.empty(u.size, self._dtype)
        records["u"], records["v"] = u, v
        records["row"] = rows
        if weights is not None:
            records["w"] = weights
        to = np.searchsorted(self._begins, v, "right")
        order = np.argsort(to, kind="stable")
        bounds = np.searchsorted(to[order], np.arange(len(self._streams) + 1))
        for i, stream in enumerate(self._streams):
            some = order[bounds[i] : bounds[i + 1]]
            if some.size:
                stream.write(records[some].data)

    def sorted(self) -> Iterator[Array]:
        """Yield all edges by target, as records; their files go."""
        from featgraph.graph.building.sorting import order_of  # loads Numba

        self.close()
        for path in self._paths:
            with os.fdopen(open_file(path)[0], "rb") as stream:
                records = np.fromfile(stream, self._dtype)
            path.unlink()
            targets = records["v"]
            least = targets.min() if targets.size else 0
            yield records[order_of(targets - least)]  # of fewer digits

    def close(self) -> None:
        """Close all files, also where the disk is full for what is left of one."""
        with ExitStack() as stack:
            for stream in self._streams:
                stack.callback(stream.close)
