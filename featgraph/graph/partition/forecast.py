"""What a graph would cost on any number of ranks: exact counts, from its partitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from featgraph.errors import GraphInputError
from featgraph.graph.building.arguments import shown
from featgraph.graph.partition.choose import choose_partition
from featgraph.graph.partition.counts import Counts, block_columns, count_traffic
from featgraph.graph.partition.cuts import Balance

if TYPE_CHECKING:
    from featgraph.graph._structure import Structure

__all__ = ["COLUMNS", "Forecast", "forecast"]

#: What a row of a table says, by the name of its column.
COLUMNS = {
    "ranks": "P",
    "grid": "rows x columns of ranks; P x 1 are ranges",
    "edges": "most edges of a rank",
    "uneven": "most edges over the mean",
    "own": "most own vertices of a rank",
    "ghosts": "most ghosts of a rank, with targets of partial aggregates",
    "ghosts/V": "those of all ranks over V",
    "MB max": "memory of a rank with two buffers of the property",
    "MB mean": "the mean over ranks",
    "all/V": "rows sent a superstep if all are, over V",
    "ms/V": "rows sent if only those are that a peer reads, over V",
    "all MB": "bytes of the rows under all",
    "ms MB": "the same under ms",
    "out MB": "most bytes that a rank sends under ms",
    "in MB": "most bytes that a rank gets under ms",
}


@dataclass(frozen=True, eq=False)
class Forecast:
    """Counts for several numbers of ranks.

    Attributes
    ----------
    counts : tuple of Counts
    row_bytes : int
        Of the row of a vertex.
    """

    counts: tuple[Counts, ...]
    row_bytes: int

    def rows(self) -> list[dict[str, str]]:
        """Return a row for each number of ranks: text, by the names in `COLUMNS`."""
        return [self._row(counts) for counts in self.counts]

    def table(self) -> str:
        """Return the rows as text, a line each, under the names of their columns."""
        lines = [list(COLUMNS), *(list(row.values()) for row in self.rows())]
        width = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(text.rjust(w) for text, w in zip(line, width, strict=True))
            for line in lines
        )

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
    ranks: Iterable[int],
    *,
    layout: str = "range",
    order: object = "given",
    balance: object = Balance(),
    row_bytes: int = 4,
) -> Forecast:
    """Count what a graph takes on several numbers of ranks, every vertex active.

    Parameters
    ----------
    graph : Graph
    ranks : iterable of int
    layout : {"range", "grid"}
        "range": the shards of `Graph.partition`. "grid": blocks of targets and sources.
    order, balance
        As for `Graph.partition`.
    row_bytes : int
        Of the row of a vertex: the size of an element times the features.

    Returns
    -------
    Forecast

    Raises
    ------
    GraphInputError
        No such layout, or what `Graph.partition` refuses.
    """
    if layout not in ("range", "grid"):
        raise GraphInputError(
            "there is no such layout",
            where="layout",
            got=shown(layout),
            expected="'range' or 'grid'",
        )
    found = []
    for parts in ranks:
        partition = choose_partition(graph, order, parts, balance=balance)
        columns = block_columns(parts) if layout == "grid" else 1
        found.append(count_traffic(graph, partition, columns))
    return Forecast(tuple(found), row_bytes)


def _megabytes(count: float | np.integer) -> str:
    return _short(float(count) / 1e6)


def _short(value: float) -> str:
    """Return three digits, or all of those before the point."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
