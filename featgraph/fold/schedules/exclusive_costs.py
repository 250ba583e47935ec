"""Predicted times of sweeps by an exclusive function on a GPU.

After Kaleem et al., "Synchronization Trade-offs in GPU Implementations of Graph
Algorithms": the longest chain of edges that wait for each other bounds a sweep. Of a
vertex of degree d, that is d (p + b) where a barrier b follows each update p, and
d (p + l) + b / f where locks take l and a pass runs a share f of the edges. ::

    sweep = barriers b + chain + edges p / workers + bytes / bandwidth
    cost  = sweep + preparation / 20

Where workers take tasks, the chain is at least a worker's share of all edges, and bytes
move meanwhile.

Each schedule returns its number of barriers, and its chain (`steps`). The constants of
a card stand in `CARDS`; ``python -m bench.run sgd-locks`` measures them.
"""

from __future__ import annotations

import math

import numpy as np

from featgraph.base.dataclass import dataclass

__all__ = ["CARDS", "SWEEPS", "Card", "EdgeSizes", "EdgeSweep"]

#: Sweeps over which the cost of a preparation is spread.
SWEEPS = 20
#: Threads of a block of such a kernel; warps of its two blocks a multiprocessor.
THREADS, WARPS = 128, 8
#: To launch a kernel that goes over the order of all edges, and to wait for its end:
#: `racy` takes 0.17 ms for 0.24M edges (`sgd-sweeps`, luxembourg_osm).
LAUNCH_MS = 0.12
#: Of an edge of the order: two ids.
_ORDER_BYTES = 8


@dataclass(frozen=True)
class Card:
    """The constants of a GPU.

    Attributes
    ----------
    multiprocessors : int
    barrier_us, block_us : float
        A barrier of n blocks takes ``barrier_us + n * block_us``.
    lock_us : float
        To take and release the locks of an edge that are free.
    widths : tuple of int
        The K of the following; between them they are interpolated.
    free_us, held_us : tuple of float
        An update of an edge whose rows come from memory, and one of a chain of edges at
        a vertex whose row is held.
    gb_per_s : tuple of float
        Rows in random order, read and written.
    """

    multiprocessors: int
    barrier_us: float
    block_us: float
    lock_us: float
    widths: tuple[int, ...]
    free_us: tuple[float, ...]
    held_us: tuple[float, ...]
    gb_per_s: tuple[float, ...]

    def at(self, width: int, values: tuple[float, ...]) -> float:
        """Return one of the values by K, for any K."""
        return float(np.interp(width, self.widths, values))


#: Card -> constants. Barriers and locks are those of `sgd-locks`. Updates are what
#: `levels` and `blocks` take beside their barriers, and bandwidth is that of `racy`, on
#: shapes of which rows come from the L2 cache and from memory (`sgd-sweeps`, K = 16;
#: `sgd-locks` measures how they grow with K; 2026-11-30).
CARDS = {
    "NVIDIA H200": Card(
        multiprocessors=132, barrier_us=0.72, block_us=0.0018, lock_us=0.75,
        widths=(16, 32, 128), free_us=(0.64, 0.6, 0.6), held_us=(0.25, 0.24, 0.24),
        gb_per_s=(2350.0, 2450.0, 2550.0),
    )
}  # fmt: skip


@dataclass(frozen=True)
class EdgeSizes:
    """Rounded sizes of a graph, so that graphs of similar sizes share plans.

    Attributes
    ----------
    edges : int
    vertices : pair of int
        Of the first and the second side; all of them twice without two sides.
    degrees : pair of int
        The highest out-degree and in-degree.
    diagonals : int
        Number of diagonals with edges; 0 if unknown, as in plans.
    """

    edges: int
    vertices: tuple[int, int]
    degrees: tuple[int, int]
    diagonals: int = 0

    def diagonals_of(self, block: int) -> int:
        """Return the most diagonals of blocks of `block` vertices that have edges."""
        first, second = (-(-count // block) for count in self.vertices)
        every = max(first + second - 1, 1)
        return min(self.diagonals or every, every)

    def rounded(self) -> EdgeSizes:
        """Return the nearest sizes that are powers of the fourth root of two."""
        first, second = map(_near, self.vertices)
        out, into = map(_near, self.degrees)
        return EdgeSizes(_near(self.edges), (first, second), (out, into))


def _near(size: int) -> int:
    """Return the power of the fourth root of two that is nearest to a size."""
    return round(2 ** (round(4 * math.log2(size)) / 4)) if size > 0 else 0


@dataclass(frozen=True)
class EdgeSweep:
    """A sweep over the edges of a graph.

    Attributes
    ----------
    sizes : EdgeSizes
    conflicts : str
        The ends at which edges conflict.
    two_sides : bool
        Whether each edge leads from the first of two sides to the second.
    width, lanes : int
        K, and the lanes that share the features of an edge.
    bytes : int
        Of properties that an edge reads and writes.
    card : Card
    """

    sizes: EdgeSizes
    conflicts: str
    two_sides: bool
    width: int
    lanes: int
    bytes: int
    card: Card = CARDS["NVIDIA H200"]

    @property
    def degree(self) -> int:
        """Largest number of conflicting edges of a vertex: d."""
        ends = [self.sizes.degrees["uv".index(end)] for end in self.conflicts]
        return max(ends, default=0) if self.two_sides else sum(ends)

    @property
    def warps(self) -> int:
        """Warps that take tasks."""
        return WARPS * self.card.multiprocessors

    @property
    def free_us(self) -> float:
        """Time of an update with both rows in memory."""
        return self.card.at(self.width, self.card.free_us)

    @property
    def held_us(self) -> float:
        """Time of an update in a chain at one vertex, whose row stays cached."""
        return self.card.at(self.width, self.card.held_us)

    @property
    def bytes_ms(self) -> float:
        """Time of moving the bytes of all edges, at the bandwidth of rows."""
        moved = self.sizes.edges * (self.bytes + _ORDER_BYTES)
        return moved / self.card.at(self.width, self.card.gb_per_s) * 1e-6

    def time_ms(
        self, barriers: float, chain_us: float, blocks: int, locks: float | None
    ) -> float:
        """Return the time of a sweep with some barriers and a chain.

        Parameters
        ----------
        barriers : float
        chain_us : float
            Updates and locks of edges that wait for each other.
        blocks : int
            Of each multiprocessor.
        locks : float or None
            Of an edge off the chain; None if warps take tasks.
        """
        card, edges = self.card, self.sizes.edges
        grid = blocks * card.multiprocessors
        chain_us += barriers * (card.barrier_us + grid * card.block_us)
        if locks is None:
            chain_us = max(chain_us, edges * self.held_us / self.warps)
            return LAUNCH_MS + max(chain_us / 1e3, self.bytes_ms)
        edge_us = self.free_us + locks * card.lock_us
        chain_us += edges * edge_us / (grid * THREADS // self.lanes)
        return LAUNCH_MS + chain_us / 1e3 + self.bytes_ms
