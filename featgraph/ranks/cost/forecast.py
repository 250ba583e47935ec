"""Forecasts of a graph's cost on several numbers of ranks.

`forecast` makes a table for several numbers of ranks. `count_traffic` counts sizes and
traffic of ranks exactly, from a partition. Times are those of the cost model of Lux: a
superstep takes the sum of load, compute, update, transfer, and waits. Lux adds these up
over nodes; here each rank has its own times, since all wait for the slowest one, and
exchanges have a latency.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.arguments import require_integer, shown
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import ArgumentError, GraphInputError
from featgraph.cuda.values import offset_dtype
from featgraph.graph.partition.choose import checked_parts, choose_partition
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import check_fits
from featgraph.graph.views.structure import Structure
from featgraph.ranks.cost.machine import Machine
from featgraph.ranks.engines.links import Link, named_link

__all__ = [
    "COLUMNS",
    "TIMES",
    "Counts",
    "Forecast",
    "Times",
    "Work",
    "block_columns",
    "count_traffic",
    "forecast",
    "superstep_times",
]

Numbers = NDArray[np.int64]
#: Time of a skipped edge relative to others: its source is read, and one bit of the
#: active set in place of a row. Assumed.
SKIPPED = 0.5
#: Bytes of an edge and of an offset, and number of rows of a vertex: current, next, and
#: one more. Assumed, for a gather without weights.
EDGE_BYTES, OFFSET_BYTES, ROWS = 4, 4, 3
#: Bytes of a local number, of a column index, of an entry of a list.
ID_BYTES = 4


@dataclass(frozen=True, eq=False)
class Work:
    """The work of each rank in one superstep; arrays have shape (P,).

    Attributes
    ----------
    edges : ndarray of int64
        Edges along which values are gathered.
    vertices : ndarray of int64
        Swept vertices.
    sent, received : ndarray of int64
        Ghost rows and partial aggregates.
    combined : ndarray of int64
        Received partial aggregates that are combined at their owner.
    reads : ndarray of int64
        Own vertices and ghosts, whose rows are read at random.
    skipped : ndarray of int64, optional
        Further edges that are only tested, since their sources are not active and the
        gather takes active sources only. Default: none.
    """

    edges: Numbers
    vertices: Numbers
    sent: Numbers
    received: Numbers
    combined: Numbers
    reads: Numbers
    skipped: Numbers | None = None

    @property
    def ranks(self) -> int:
        """Number of ranks, P."""
        return self.edges.size

    @property
    def has_partials(self) -> bool:
        """Whether any aggregate is combined from several ranks."""
        return bool(self.combined.any())

    @classmethod
    def whole(cls, counts: Counts) -> Work:
        """Return the work of a superstep in which every vertex is active and due."""
        return cls(
            edges=counts.edges,
            vertices=counts.own + counts.partials,
            sent=counts.sent,
            received=counts.received,
            combined=counts.partials_elsewhere,
            reads=counts.own + counts.ghosts,
        )


@dataclass(frozen=True, eq=False)
class Times:
    """Seconds of each rank in a superstep; arrays have shape (P,).

    Attributes
    ----------
    load : ndarray
        To store received ghost rows.
    compute : ndarray
        To sweep edges and vertices.
    update : ndarray
        To pack own rows, and combine partial aggregates.
    transfer : ndarray
        To transfer bytes, without latency.
    latency : float
        Latency of all exchanges of the superstep.
    fixed : float
        Of a superstep without due vertices.
    overlap : float
        The fraction of the shorter of work and transfer that the longer one hides.
    """

    load: NDArray[np.float64]
    compute: NDArray[np.float64]
    update: NDArray[np.float64]
    transfer: NDArray[np.float64]
    latency: float
    fixed: float
    overlap: float

    @property
    def work(self) -> NDArray[np.float64]:
        """Seconds of each rank without waits."""
        return self.load + self.compute + self.update + self.fixed

    @property
    def seconds(self) -> float:
        """Seconds of the superstep: all ranks wait for the slowest one."""
        work = float(self.work.max())
        wire = float(self.transfer.max()) + self.latency
        return work + wire - self.overlap * min(work, wire)


def superstep_times(
    work: Work,
    machine: Machine,
    link: Link,
    *,
    direction: str = "pull",
    k: int = 1,
    itemsize: int = 4,
) -> Times:
    """Return the times of a superstep on each rank.

    Parameters
    ----------
    work : Work
    machine : Machine
        The machine of each rank.
    link : Link
        The link between any two ranks.
    direction : {"pull", "push"}
        The direction of gathers.
    k : int
        Features of a row.
    itemsize : int
        Bytes of a feature.

    Returns
    -------
    Times

    Raises
    ------
    ArgumentError
        If the direction is unknown.
    """
    if direction not in ("pull", "push"):
        raise ArgumentError(
            "aggregates are gathered in one of two directions",
            where="direction",
            got=repr(direction),
            expected="'pull' or 'push'",
        )
    row_bytes = k * itemsize
    nbytes = np.maximum(work.sent, work.received) * row_bytes
    seconds = [link.seconds(n, work.ranks) for n in nbytes.tolist()]
    each = link.seconds(0, work.ranks)
    exchanges, end = machine.exchanges + work.has_partials, machine.row.at(k) / 2
    swept = [
        _swept_s(machine, rank, work, direction, k, row_bytes)
        for rank in range(work.ranks)
    ]
    return Times(
        load=np.asarray(work.received * end, np.float64),
        compute=np.array(swept, np.float64),
        update=np.asarray((work.sent + work.combined) * end, np.float64),
        transfer=np.array(seconds) - each,
        latency=exchanges * each,
        fixed=machine.fixed_s,
        overlap=machine.overlap,
    )


def _swept_s(
    machine: Machine, rank: int, work: Work, direction: str, k: int, row_bytes: int
) -> float:
    """Return the seconds of a rank's edges and vertices.

    Streaming of edges that do not fit in memory overlaps with the sweep.
    """
    edges, reads = float(work.edges[rank]), float(work.reads[rank])
    curve = machine.pull if direction == "pull" else machine.push
    skipped = 0.0 if work.skipped is None else float(work.skipped[rank])
    swept = (edges + SKIPPED * skipped) * curve.at(k, row_bytes * reads)
    stays = reads * (OFFSET_BYTES + ROWS * row_bytes)
    swept = max(swept, machine.streamed_s(EDGE_BYTES * edges, stays))
    return swept + float(work.vertices[rank]) * machine.vertex.at(k)


#: Columns of a table of counts, with their meaning.
COLUMNS = {
    "ranks": "number of ranks, P",
    "grid": "rows x columns of ranks; P x 1 are ranges",
    "edges": "most edges of a rank",
    "uneven": "most edges of a rank over the mean",
    "own": "most own vertices of a rank",
    "ghosts": "most ghosts of a rank, with targets of partial aggregates",
    "ghosts/V": "ghosts of all ranks over V",
    "MB max": "most memory of a rank, with two buffers of the property",
    "MB mean": "mean memory of a rank",
    "all/V": "rows sent in a superstep if each rank gets all rows, over V",
    "ms/V": "rows sent in a superstep if each rank gets its ghosts, over V",
    "all MB": "bytes of all rows sent, if each rank gets all rows",
    "ms MB": "bytes of all rows sent, if each rank gets its ghosts",
    "out MB": "most bytes that a rank sends, if each rank gets its ghosts",
    "in MB": "most bytes that a rank receives, if each rank gets its ghosts",
}
#: Further columns of times, if a machine is given.
TIMES = {
    "load ms": "to store rows of ghosts, on the slowest rank",
    "work ms": "to sweep edges (pulled) and vertices, on the slowest rank",
    "update ms": "to pack rows and combine partial aggregates, on the slowest rank",
    "LINK ms": "a superstep over this link, with transfer, latency and waits",
    "LINK push": "the same superstep, if all vertices push",
}
ITEMSIZE = 4


@dataclass(frozen=True, eq=False)
class Forecast:
    """Counts and times for several numbers of ranks.

    Attributes
    ----------
    counts : tuple of Counts
    partitions : tuple of Partition
    row_bytes : int
        Bytes of a vertex's row.
    machine : Machine or None
        The machine of each rank; None: counts only.
    links : tuple of Link
        The links to compare.
    """

    counts: tuple[Counts, ...]
    partitions: tuple[Partition, ...]
    row_bytes: int
    machine: Machine | None = None
    links: tuple[Link, ...] = ()

    def times(self, number: int, link: Link, direction: str = "pull") -> Times:
        """Return the times of a superstep in which every vertex is active.

        Parameters
        ----------
        number : int
            Index into `counts`.
        link : Link
        direction : {"pull", "push"}

        Raises
        ------
        ArgumentError
            If the forecast has no machine.
        """
        if self.machine is None:
            raise ArgumentError(
                "a forecast without a machine has no times",
                fix='forecast(graph, on=(fg.distributed.calibrate(), "100g"))',
            )
        work = Work.whole(self.counts[number])
        k = max(self.row_bytes // ITEMSIZE, 1)
        size = self.row_bytes // k
        return superstep_times(
            work, self.machine, link, direction=direction, k=k, itemsize=size
        )

    def rows(self) -> list[dict[str, str]]:
        """Return a row for each number of ranks: column name -> text.

        Columns are `COLUMNS`; with a machine, those of `TIMES`, too.
        """
        return [
            self._row(counts) | self._times(number)
            for number, counts in enumerate(self.counts)
        ]

    def table(self) -> str:
        """Return the rows as text, a line each, below the column names."""
        rows = self.rows()
        lines = [list(rows[0]) if rows else list(COLUMNS)]
        lines += [list(row.values()) for row in rows]
        width = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(text.rjust(w) for text, w in zip(line, width, strict=True))
            for line in lines
        )

    def _times(self, number: int) -> dict[str, str]:
        if self.machine is None or not self.links:
            return {}
        one = self.times(number, self.links[0])
        row = {
            "load ms": _short(1e3 * one.load.max()),
            "work ms": _short(1e3 * one.compute.max()),
            "update ms": _short(1e3 * one.update.max()),
        }
        for link in self.links:
            for direction, name in (("pull", "ms"), ("push", "push")):
                seconds = self.times(number, link, direction).seconds
                row[f"{link.name} {name}"] = _short(1e3 * seconds)
        return row

    def _row(self, counts: Counts) -> dict[str, str]:
        count = counts.vertex_count
        copies = counts.ghosts + counts.partials
        memory = counts.memory_bytes(self.row_bytes)
        values = (
            f"{counts.parts}",
            f"{counts.rows}x{counts.columns}",
            f"{counts.edges.max()}",
            f"{counts.edges.max() / max(counts.edges.mean(), 1e-300):.2f}",
            f"{counts.own.max()}",
            f"{copies.max()}",
            _short(copies.sum() / count),
            _megabytes(memory.max()),
            _megabytes(memory.mean()),
            _short(counts.rows_all / count),
            _short(counts.rows_ms / count),
            _megabytes(counts.rows_all * self.row_bytes),
            _megabytes(counts.rows_ms * self.row_bytes),
            _megabytes(counts.sent.max() * self.row_bytes),
            _megabytes(counts.received.max() * self.row_bytes),
        )
        return dict(zip(COLUMNS, values, strict=True))


def forecast(
    graph: Structure,
    ranks: Iterable[int] = (1, 2, 4, 8, 16),
    *,
    layout: str = "range",
    order: object = "given",
    balance: object = None,
    row_bytes: int = 4,
    on: tuple[Machine, str | Link | Sequence[str | Link]] | None = None,
) -> Forecast:
    """Forecast the cost of a graph on several numbers of ranks, all vertices active.

    Parameters
    ----------
    graph : Graph
        The whole graph.
    ranks : iterable of int
    layout : {"range", "grid"}
        "range": the shards of `Graph.partition`. "grid": blocks of targets and sources.
    order, balance
        See `Graph.partition`.
    row_bytes : int
        Bytes of a vertex's row: element size times features.
    on : (Machine, links), optional
        The machine of each rank, such as `calibrate` returns, and the link between
        them, or several to compare, by name ("nvlink", "400g", "100g", "shared",
        "gloo") or as a `Link`. Default: counts only.

    Returns
    -------
    Forecast

    Raises
    ------
    GraphInputError
        If the layout is unknown, or `Graph.partition` raises it.
    ArgumentError
        If a link is unknown, or `ranks`, `on` or `row_bytes` is invalid.
    """
    if not isinstance(graph, Structure):
        raise GraphInputError(
            "not a graph", where="graph=", got=shown(graph), expected="a Graph"
        )
    if not isinstance(ranks, Iterable) or np.ndim(ranks) == 0:  # type: ignore[arg-type]
        raise ArgumentError(
            "not numbers of ranks",
            where="ranks=",
            got=shown(ranks),
            expected="several, such as (1, 2, 4)",
        )
    counts = [checked_parts(parts, "ranks") for parts in ranks]
    if not isinstance(layout, str) or layout not in ("range", "grid"):
        raise GraphInputError(
            "there is no such layout",
            where="layout",
            got=shown(layout),
            expected="'range' or 'grid'",
        )
    require_integer(
        "row_bytes", row_bytes, 1, what="a row has bytes", error=ArgumentError
    )
    machine, links = _machine_and_links(on)
    found, partitions = [], []
    for parts in counts:
        partition = choose_partition(graph, order, parts, balance=balance)
        columns = block_columns(parts) if layout == "grid" else 1
        found.append(count_traffic(graph, partition, columns))
        partitions.append(partition)
    return Forecast(tuple(found), tuple(partitions), row_bytes, machine, links)


def _machine_and_links(on: Any) -> tuple[Machine | None, tuple[Link, ...]]:
    if on is None:
        return None, ()
    is_pair = isinstance(on, tuple | list) and len(on) == 2
    if not is_pair or not isinstance(on[0], Machine):
        raise ArgumentError(
            "not a machine and links",
            where="on",
            got=shown(on),
            expected='a pair, such as (fg.distributed.calibrate(), "100g")',
        )
    machine, named = on
    several = (named,) if isinstance(named, str | Link) else named
    links = tuple(
        one if isinstance(one, Link) else named_link(one, machine.links)
        for one in several
    )
    return machine, links


def _megabytes(count: float | np.integer) -> str:
    return _short(float(count) / 1e6)


def _short(value: float) -> str:
    """Return a number with three digits, or all digits before the point."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


# -- sizes and traffic of the ranks of a partition, counted without making shards


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
    rows, column = graph.in_edges, owner % np.int32(columns)
    seen = np.full(owner.size, -1, np.int32)
    for first in range(0, parts, columns):  # a row of the grid after the other
        last = first + columns
        of_row = vertices[partition.cuts[first] : partition.cuts[last]]
        given = rows.row_offsets, rows.column_indices, of_row, owner, column, seen
        kernels.count_row(*given, first, has[:, first:last], elsewhere)
    return Counts(graph.vertex_count, columns, has[0], own, *has[1:], *elsewhere)
