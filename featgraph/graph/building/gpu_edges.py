"""Edge lists on the GPU, and the rows (CSR) built from them there.

All arrays are bitwise equal to those that the host builds with a counting sort: rows
are sorted stably, so slots keep the given order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import StateError
from featgraph.cuda import arrays, download, sorting
from featgraph.cuda.foreign import as_numbers, finish, foreign_array, three_axes
from featgraph.cuda.values import LostValue, offset_dtype
from featgraph.graph.building import gpu_edge_kernels as kernels

__all__ = [
    "GpuEdges",
    "GpuRows",
    "Repeats",
    "checked_ends",
    "checked_values",
    "copied_ends",
    "copied_values",
    "ends_of_sides",
    "first_of_each",
    "marked",
    "surveyed",
]

Array = Any

#: Bytes of values that are permuted at a time.
_PIECE_BYTES = 1 << 26
#: Initial values of the kernel `survey`: least id, highest id and number of loops.
_NOTHING_FOUND = np.array([2**31 - 1, -1, 0], np.int64)


@dataclass(frozen=True, eq=False)
class GpuRows:
    """Rows on the GPU, along in-edges, out-edges or both.

    Attributes
    ----------
    offsets : array of int32 or int64, shape (V + 1,)
    ends : array of int32, one a slot
        The vertex at the other end.
    order : array of int32 or int64, at least one a slot
        The index i of the given edge of each slot. Rows with each edge at both ends
        have 2 i at the target and 2 i + 1 at the source; the second entries of loops
        come after all slots.
    """

    offsets: Array
    ends: Array
    order: Array


class GpuEdges:
    """Checked edges on the GPU; rows, ids and degrees are built at the first use.

    Parameters
    ----------
    sources, targets : array of int32, shape (E_given,)
    vertex_count : int
    directed : bool
    """

    def __init__(
        self, sources: Array, targets: Array, vertex_count: int, directed: bool
    ) -> None:
        self.sources, self.targets = sources, targets
        self.vertex_count, self.directed = vertex_count, directed
        self._rows: dict[str, GpuRows] = {}
        self._ids: dict[str, Array] = {}
        self._degrees: dict[tuple[str, str], Array] = {}

    @property
    def given_count(self) -> int:
        """Number of given edges."""
        return int(self.sources.size)

    @cached_property
    def loop_count(self) -> int:
        """Number of self-loops."""
        return surveyed(self.sources, self.targets)[2]

    @property
    def edge_count(self) -> int:
        """Number of edges, twins included."""
        count = self.given_count
        return count if self.directed else 2 * count - self.loop_count

    def rows(self, along: str) -> GpuRows:
        """Return the rows along "in", "out" or "both" edges."""
        along = along if self.directed else "in"
        if along not in self._rows:
            is_both = along == "both" or not self.directed
            self._rows[along] = self._both() if is_both else self._one(along)
        return self._rows[along]

    def _one(self, along: str) -> GpuRows:
        own, others = self.targets, self.sources
        if along == "out":
            own, others = others, own
        rows, order = sorting.sort_stably(own, self.vertex_count)
        ends = taken(others, order)
        return GpuRows(self._offsets(rows, ends.size), ends, order)

    def _both(self) -> GpuRows:
        ends, count = (self.sources, self.targets), self.given_count
        rows = arrays.empty((2 * count,), np.int32)
        arrays.launch_over(kernels.both_ends, count, *ends, self.vertex_count, rows)
        rows, order = sorting.sort_stably(rows, self.vertex_count + 1)
        # The second entry of a self-loop is in row V, behind all others: it is cut off.
        made = arrays.empty((2 * count - self.loop_count,), np.int32)
        arrays.launch_over(kernels.other_ends, made.size, *ends, order, made)
        return GpuRows(self._offsets(rows, made.size), made, order)

    def _offsets(self, rows: Array, slot_count: int) -> Array:
        made = arrays.empty((self.vertex_count + 1,), offset_dtype(slot_count))
        arrays.launch_over(kernels.begin_rows, made.size, rows, made)
        return made

    @cached_property
    def given_index(self) -> Array:
        """Row in given order of each edge id; twin of edge i: E_given + i."""
        order = self.rows("in").order
        if self.directed:
            return order
        given = arrays.empty(self.rows("in").ends.shape, order.dtype)
        arrays.launch_over(
            kernels.number_given, given.size, order, self.given_count, given
        )
        return given

    def is_in_given_order(self) -> bool:
        """Whether each edge id is the row in given order."""
        given = self.given_index
        if given.size != self.given_count:
            return False
        found = arrays.filled((1,), 0, np.int32)
        arrays.launch_over(kernels.find_moved, given.size, given, found)
        return not arrays.read(found)[0]

    def edge_ids(self, along: str) -> Array:
        """Return the edge id of each slot along "out" or "both" edges.

        For an undirected graph, the ids of the twins.
        """
        along = along if self.directed else "out"
        if along not in self._ids:
            dtype = self.rows("in").offsets.dtype
            ids = arrays.empty(self.rows(along).ends.shape, dtype)
            given, places = self.given_index, self._places(dtype)
            if not self.directed:
                count = self.given_count
                arrays.launch_over(
                    kernels.find_twins, ids.size, given, places, count, ids
                )
            else:
                take = kernels.take if along == "out" else kernels.take_halved
                order = self.rows(along).order
                arrays.launch_over(take, ids.size, places, order, ids)
            self._ids[along] = ids
        return self._ids[along]

    def _places(self, dtype: Any) -> Array:
        """Return the edge id of each row in given order; -1 for no edge."""
        count = self.given_count * (1 if self.directed else 2)
        places = arrays.filled((count,), kernels.NO_PLACE, dtype)
        given = self.given_index
        arrays.launch_over(kernels.invert, given.size, given, places)
        return places

    def in_given_order(self, values: Array, per_direction: bool) -> npt.NDArray[Any]:
        """Copy values by edge id to the host, in given order.

        They are permuted on the GPU, piece by piece.
        """
        rows = self.given_count * (1 + per_direction)
        made = np.empty((rows, *values.shape[1:]), values.dtype)
        seen, flat = three_axes(as_numbers(values)), made.reshape(-1)
        flat = flat.view(seen.dtype)
        width = math.prod(values.shape[1:])
        together = max(1, _PIECE_BYTES // (width * seen.dtype.itemsize))
        twins_from = self.given_count if per_direction else 0
        for first in range(0, rows, together):
            part = flat[first * width : (first + together) * width]
            piece = arrays.empty((part.size,), seen.dtype.name)
            arrays.launch_over(
                kernels.put_rows, seen.size, seen, self.given_index, self.sources,
                self.targets, first, twins_from, piece,
            )  # fmt: skip
            download.read(piece, into=part)
        return made

    def chosen(self, numbers: Array) -> GpuEdges:
        """Return the given edges of these indices, as a new list."""
        ends = taken(self.sources, numbers), taken(self.targets, numbers)
        return GpuEdges(*ends, self.vertex_count, self.directed)

    def degrees(self, side: str, dtype: Any = None) -> Array:
        """Return the "in" or "out" degree of each vertex.

        Default dtype: int32 if the number of edges allows, else int64.
        """
        side = side if self.directed else "in"
        wanted = np.dtype(offset_dtype(self.edge_count) if dtype is None else dtype)
        key = side, wanted.name
        if key not in self._degrees:
            ends = self.sources, self.targets
            ends = ends if side == "in" else ends[::-1]
            counts = arrays.filled((self.vertex_count,), 0, wanted)
            arrays.launch_over(
                kernels.count_ends, self.given_count, *ends, not self.directed, counts
            )
            self._degrees[key] = counts
        return self._degrees[key]

    def most_edges(self, side: str, below: int = 2**63 - 1) -> int:
        """Return the largest "in" or "out" degree that is less than `below`."""
        degrees = self.degrees(side)
        found = arrays.filled((1,), 0, np.int64)
        arrays.launch_over(kernels.find_most, degrees.size, degrees, below, found)
        return int(arrays.read(found)[0])

    def short_counts(self, side: str) -> npt.NDArray[np.int32]:
        """Return the numbers of vertices of degree 0, 1, ... `kernels.SHORT` - 1."""
        degrees = self.degrees(side)
        counts = arrays.filled((kernels.SHORT,), 0, np.int32)
        arrays.launch_over(kernels.count_short, degrees.size, degrees, counts)
        return arrays.read(counts)


def surveyed(sources: Array, targets: Array) -> tuple[int, int, int]:
    """Return the least and the highest id, and the number of loops."""
    found = arrays.upload(_NOTHING_FOUND)
    arrays.launch_over(kernels.survey, sources.size, sources, targets, found)
    least, most, loops = arrays.read(found).tolist()
    return least, most, loops


def copied_ends(
    sources: object, targets: object, *, is_shared: bool = False
) -> tuple[Array, Array] | None:
    """Return an int32 copy of ends on the GPU; None for arrays that cannot be one.

    If `is_shared`, arrays that are alike already are returned without a copy.
    """
    given_u, given_v = _flat(sources), _flat(targets)
    if given_u is None or given_v is None:
        return None
    u, v = given_u.array, given_v.array
    if u.size != v.size or u.dtype.kind not in "iu" or v.dtype.kind not in "iu":
        return None
    is_alike = is_shared and u.dtype == v.dtype == np.int32
    if is_alike and u.is_c_contiguous() and v.is_c_contiguous():
        return u, v
    both, size = arrays.empty((2 * u.size,), np.int32), 4 * u.size
    ends = [arrays.piece_of(both, k * size, size, 4).view(np.int32) for k in (0, 1)]
    try:
        for given, end in zip((given_u, given_v), ends, strict=True):
            given.copy_to(end)
    except LostValue:
        return None
    return ends[0], ends[1]


def checked_ends(
    sources: object, targets: object, vertex_count: int | None, directed: bool
) -> GpuEdges | None:
    """Return a checked copy of edges whose ends are on the GPU.

    None if they are not on the GPU or invalid: the host then raises the error.
    """
    own = copied_ends(sources, targets)
    if own is None:
        return None
    least, most, loops = surveyed(*own)
    bound = 2**31 - 1 if vertex_count is None else vertex_count
    if least < 0 or most >= bound:
        return None
    count = most + 1 if vertex_count is None else vertex_count
    made = GpuEdges(*own, count, directed)
    made.loop_count = loops
    return made


def ends_of_sides(
    offsets: npt.NDArray[np.int64],
    indices: npt.NDArray[Any],
    sides: tuple[int, int],
    is_by_column: bool,
) -> GpuEdges | None:
    """Return the undirected edges of the entries of a compressed matrix.

    Entry [i, j] of the (M, N) matrix is the edge of i and M + j. None if an index is
    out of range: the host then raises the error.

    Parameters
    ----------
    offsets : ndarray, shape (M + 1,) or (N + 1,)
        Checked: nondecreasing, and the last one equals the number of entries.
    indices : ndarray of integers, shape (E_given,)
    sides : tuple of int
        M and N.
    is_by_column : bool
        Whether `offsets` belong to columns, and `indices` are rows.
    """
    other = sides[not is_by_column]
    first = (sides[0], 0) if is_by_column else (0, sides[0])
    rows, ends = (arrays.empty(indices.shape, np.int32) for _ in range(2))
    arrays.launch_over(
        kernels.side_ends, indices.size, arrays.upload(offsets),
        arrays.upload(indices), *first, other, rows, ends,
    )  # fmt: skip
    sources, targets = (ends, rows) if is_by_column else (rows, ends)
    if surveyed(sources, targets)[0] < 0:  # the kernel stores -1 for a bad index
        return None
    made = GpuEdges(sources, targets, sum(sides), False)
    made.loop_count = 0
    return made


def copied_values(values: object, count: int) -> Array | None:
    """Return a copy of one number per edge on the GPU; None if there is no such one.

    Asynchronous: the values must not be written before the GPU has done its work.
    """
    given = _flat(values)
    if given is None or given.shape != (count,) or given.dtype.kind not in "fiu":
        return None
    return given.copied(given.dtype.newbyteorder("=")).array


def checked_values(values: object, count: int) -> Array | None:
    """Return a copy of one number per edge on the GPU; None if they are invalid."""
    own = copied_values(values, count)
    if own is None:
        return None
    finish()
    if own.dtype.kind == "f":
        found = arrays.filled((1,), 0, np.int32)
        arrays.launch_over(kernels.find_nan, count, own, found)
        if arrays.read(found)[0]:
            return None
    return own


def _flat(values: object) -> Any:
    """Return a one-dimensional array on this GPU for kernels, or None."""
    try:
        found = foreign_array(values, "values")
    except StateError:  # the host may still be able to read the array
        return None
    return found if found is not None and found.array.ndim == 1 else None


def taken(values: Array, order: Array) -> Array:
    """Return ``values[order]``."""
    made = arrays.empty(order.shape, values.dtype)
    arrays.launch_over(kernels.take, made.size, values, order, made)
    return made


def marked(is_marked: Array) -> Array:
    """Return the indices whose mark is not zero, ascending."""
    places, total = sorting.scanned(is_marked)
    dtype = np.int32 if is_marked.size < 2**31 else np.int64
    found = arrays.empty((int(arrays.read(total)[0]),), dtype)
    arrays.launch_over(kernels.list_marked, is_marked.size, is_marked, places, found)
    return found


# -- repeated edges


#: Policy -> its constant in the kernel `choose_of_repeats`.
_CHOSEN = {"last": kernels.LAST, "min": kernels.LEAST, "max": kernels.MOST}


@dataclass(frozen=True, eq=False)
class Repeats:
    """Groups of equal edges.

    Attributes
    ----------
    first : array of int32 or int64
        The first edge of each group, ascending.
    order : array of int32 or int64, shape (E_given,)
        The edges by group, in given order within a group.
    is_first : array of int32, shape (E_given,)
        Whether each edge is the first with its ends.
    """

    first: Array
    order: Array
    is_first: Array

    def combined(self, weights: Array, policy: str) -> Array | None:
        """Return the combined weights of groups; None if a sum overflows or is nan.

        Parameters
        ----------
        weights : array, shape (E_given,)
        policy : {"sum", "min", "max", "first", "last"}
        """
        if policy == "first":
            return taken(weights, self.first)
        given = weights, self.order, self.is_first, self.first
        count, kind = self.order.size, weights.dtype.kind
        if policy != "sum":
            made = arrays.empty(self.first.shape, weights.dtype)
            which = _CHOSEN[policy]
            arrays.launch_over(kernels.choose_of_repeats, count, *given, which, made)
            return made
        wide = np.dtype({"i": np.int64, "u": np.uint64, "f": np.float64}[kind])
        made = arrays.empty(self.first.shape, weights.dtype if kind == "f" else wide)
        found = arrays.filled((1,), 0, np.int32)
        zero = wide.type(0)
        arrays.launch_over(kernels.add_repeats, count, *given, zero, made, found)
        return None if arrays.read(found)[0] else made


def first_of_each(edges: GpuEdges) -> Repeats | None:
    """Group edges with the same ends; None if all edges differ.

    In an undirected graph, both directions of an edge are equal.
    """
    low, high, count = edges.sources, edges.targets, edges.given_count
    if not edges.directed:
        low, high = (arrays.empty((count,), np.int32) for _ in range(2))
        arrays.launch_over(
            kernels.order_ends, count, edges.sources, edges.targets, low, high
        )
    # Stable sorts by one end and then by the other leave equal edges side by side, in
    # given order.
    _, order = sorting.sort_stably(high, edges.vertex_count)
    _, order = sorting.sort_stably(taken(low, order), edges.vertex_count, order)
    is_first = arrays.empty((count,), np.int32)
    arrays.launch_over(kernels.mark_first, count, low, high, order, is_first)
    first = marked(is_first)
    return None if first.size == count else Repeats(first, order, is_first)
