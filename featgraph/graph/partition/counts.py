"""Sizes and traffic of the ranks of a partition, counted without making shards."""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import GraphInputError
from featgraph.cuda.values import offset_dtype
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import check_fits

if TYPE_CHECKING:
    from featgraph.graph.views.structure import Structure

__all__ = ["Counts", "block_columns", "count_traffic"]

#: Bytes of a local number, of a column index, of an entry of a list.
ID_BYTES = 4


@dataclass(frozen=True, eq=False)
class Counts:
    """Sizes and traffic of ranks; arrays have one entry per rank, shape (P,).

    Ranks form a grid of r rows and c columns, with rank ``i * c + j`` in row i and
    column j. This rank has the edges whose targets are owned in row i and whose sources
    are owned in column j. Sources owned by other ranks are its *ghosts*. Targets owned
    by other ranks get *partial* aggregates, which are sent to their owners. With one
    column, the parts are those of `Shard`, and no target is partial.

    Attributes
    ----------
    vertex_count : int
        V of the whole graph.
    columns : int
        c.
    edges, own, ghosts, partials : ndarray of int64
        Numbers of edges, own vertices, ghosts and partial targets of each rank.
    ghosts_elsewhere, partials_elsewhere : ndarray of int64
        Numbers of ghosts and partial targets on other ranks that the rank owns.
    """

    vertex_count: int
    columns: int
    edges: NDArray[np.int64]
    own: NDArray[np.int64]
    ghosts: NDArray[np.int64]
    partials: NDArray[np.int64]
    ghosts_elsewhere: NDArray[np.int64]
    partials_elsewhere: NDArray[np.int64]

    @property
    def parts(self) -> int:
        """P, the number of ranks."""
        return self.edges.size

    @property
    def rows(self) -> int:
        """The number of rows of the grid, r."""
        return self.parts // self.columns

    @property
    def received(self) -> NDArray[np.int64]:
        """Rows that a rank receives in a superstep with all vertices active."""
        return self.ghosts + self.partials_elsewhere

    @property
    def sent(self) -> NDArray[np.int64]:
        """Rows that a rank sends in a superstep with all vertices active."""
        return self.ghosts_elsewhere + self.partials

    @property
    def rows_ms(self) -> int:
        """Rows that all ranks send: rows of send lists, and partial aggregates."""
        return int(self.sent.sum())

    @property
    def rows_all(self) -> int:
        """Rows sent if each rank receives its whole column and sends its whole row."""
        return (self.rows - 1 + self.columns - 1) * self.vertex_count

    @property
    def structure_bytes(self) -> NDArray[np.int64]:
        """Bytes of offsets, column indices, numbers and send lists of a rank."""
        local = self.own + self.ghosts + self.partials
        wide = np.array([np.dtype(offset_dtype(int(n))).itemsize for n in self.edges])
        ids = self.edges + local + self.ghosts_elsewhere + self.partials_elsewhere
        size: NDArray[np.int64] = (local + 1) * wide + ids * ID_BYTES
        return size

    def memory_bytes(self, row_bytes: int) -> NDArray[np.int64]:
        """Return the bytes of a rank with two buffers of one property.

        Parameters
        ----------
        row_bytes : int
            Bytes of the row of a vertex.
        """
        local = self.own + self.ghosts + self.partials
        return self.structure_bytes + 2 * row_bytes * local


def block_columns(parts: int) -> int:
    """Return the columns of the grid nearest to a square; 1 for a prime."""
    return next(c for c in range(isqrt(parts), 0, -1) if parts % c == 0)


def count_traffic(graph: Structure, partition: Partition, columns: int = 1) -> Counts:
    """Count sizes and traffic of each rank, for one row of the grid after another.

    Parameters
    ----------
    graph : Graph
    partition : Partition
        The owners.
    columns : int
        c, a divisor of P.

    Returns
    -------
    Counts

    Raises
    ------
    GraphInputError
        If the partition does not fit the graph, or `columns` does not divide P.

    Notes
    -----
    O(V + E) time, and four arrays of V int32 for any number of ranks.
    """
    check_fits(graph, partition)
    parts = partition.parts
    if columns < 1 or parts % columns:
        raise GraphInputError(
            "ranks do not form a grid",
            where="columns",
            got=f"{columns} columns of {parts} ranks",
            expected=f"a divisor of {parts}",
            fix=f"columns={block_columns(parts)}",
        )
    from featgraph.graph.partition import kernels  # loads Numba

    own = np.diff(partition.cuts)
    vertices = partition.order
    if vertices is None:
        vertices = np.arange(graph.vertex_count, dtype=np.int32)
    owner = np.empty(graph.vertex_count, np.int32)
    owner[vertices] = np.repeat(np.arange(parts, dtype=np.int32), own)
    # Counts of edges, ghosts and partial targets; the latter two also by owner.
    has = np.zeros((3, parts), np.int64)
    elsewhere = np.zeros((2, parts), np.int64)
    rows = graph.in_edges
    _count(kernels, rows, partition, columns, (vertices, owner), has, elsewhere)
    return Counts(graph.vertex_count, columns, has[0], own, *has[1:], *elsewhere)


def _count(
    kernels: Any,
    rows: Any,
    partition: Partition,
    columns: int,
    of_vertices: tuple[NDArray[np.int32], NDArray[np.int32]],
    has: NDArray[np.int64],
    elsewhere: NDArray[np.int64],
) -> None:
    """Count the sizes of ranks, for one row of the grid after another."""
    vertices, owner = of_vertices
    column = owner % np.int32(columns)
    seen = np.full(owner.size, -1, np.int32)
    for first in range(0, partition.parts, columns):
        begin, end = partition.cuts[first], partition.cuts[first + columns]
        kernels.count_row(
            rows.row_offsets,
            rows.column_indices,
            vertices[begin:end],
            owner,
            column,
            seen,
            first,
            has[:, first : first + columns],
            elsewhere,
        )
