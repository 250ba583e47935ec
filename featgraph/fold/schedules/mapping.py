"""How one vertex (or edge) is shared out, as numbers."""

from __future__ import annotations

from featgraph.base.dataclass import dataclass, replace
from featgraph.base.padding import row_stride
from featgraph.fold.schedules.exclusive_costs import EdgeSweep

__all__ = [
    "BLOCK_THREADS",
    "HUB_THREADS",
    "INTERSECTIONS",
    "MOST_COPIES",
    "PIECE_BYTES",
    "WARP",
    "Mapping",
    "Products",
    "Work",
    "last_feature",
    "piece_of",
    "power_of_two",
    "share_features",
    "stands_for",
    "vertices_together",
    "whole_piece",
]

WARP = 32
#: Ways to intersect the neighbors of two vertices, as they are asked for.
INTERSECTIONS = ("mark", "merge", "search")
#: Up to here one thread keeps a named copy of every feature; above, features are loops
#: over small arrays (on the CPU vectors, where it can be). Measured on the CPU target:
#: copies win over loops up to 16 and compile too slowly from 32 on.
MOST_COPIES = 16
#: Bytes that a lane loads at a time: the widest load there is. A weighted sum over
#: neighbors on kron21 took 1.09 against 1.95 ms (K = 4), 1.50 against 4.08 (8), 2.55
#: against 7.28 (16) with 16 bytes a lane instead of 4 (NVIDIA H200, prototypes).
PIECE_BYTES = 16
#: Threads of a block; 128 was fastest of 64, 128 and 256 on kron21, K = 4, 8, 32
#: (NVIDIA H200).
BLOCK_THREADS = 128
#: Threads of the block that takes one vertex of high degree. Of 1024 threads only one
#: block fits a multiprocessor: the superstep took 1.2 times as long (kron21, H200).
HUB_THREADS = 512
#: Features of all vertices that a lane of a reduce takes at a time: with four vertices,
#: PageRank on grid4096 took 0.95 of the time; with two, sums of rows of 8 to 128
#: features took 1.08 (NVIDIA H100, classics-gpu, reduce-gpu).
REDUCED_TOGETHER = 4


@dataclass(frozen=True)
class Mapping:
    """How one vertex (or edge) is shared out.

    Attributes
    ----------
    lanes_per_edge : int
        Lanes that share the features of an edge, or of a vertex; 1 where one thread has
        them all.
    features_per_lane : int
        Features a lane takes, unrolled; lane l takes features ``l * features_per_lane``
        and following.
    lanes_per_vertex : int
        Lanes that share one vertex.
    is_looped : bool
        One thread has all features, in loops over small arrays (on the CPU also in
        vectors).
    schedule : str
        Name of the schedule that has made it (`fold.schedules.table`).
    hubs : bool
        Whether vertices of high degree are left to a second kernel, a block each.
    hub_degree : int
        Edges from which on a vertex is left to it; 0 for as many as a hub has.
    in_parts : bool
        Whether several blocks take the row of a vertex whose degree is much higher; the
        last of them goes on with what all have come to.
    threads : int
        Threads of a block where warps share nothing; 0 for as many as others have.
    hub_threads : int
        Threads of the block of a hub, likewise.
    shared_matrices : bool
        Whether matrices stand in shared memory.
    vector_width : int
        Features of a row that a lane loads at once; divides `stride`, and what a lane
        takes where lanes share the features.
    stride : int
        Elements from one such row to the next in memory: K, or more (0040).
    unroll : int
        Edges that a lane has on the way at a time.
    vertices : int
        Vertices of a reduce that a lane has on the way at a time.
    resident : int
        Blocks that must fit a multiprocessor, which bounds the registers; 0 for any.
    hub_resident : int
        The same of blocks that have a hub each.
    column_width : int
        Where lanes sum the columns of matrices in registers: the features of a row that
        a lane loads at once for them. 0 where sums stand in memory.
    lists_rows : bool
        Whether its kernels go by a list of the vertices that they sweep, and by how
        many edges those before each of them have.
    window : int
        Edges of the vertices that a warp takes together, about, unless one of them has
        more: a list cuts the vertices into such windows. 0 where a warp takes as many
        vertices as it has groups of lanes, whatever edges these have.
    tile : int
        Side of the tiles of matrices that the threads of a block have in registers; 0
        where they have none.
    batch : int
        Vertices of which a block that sums over all of them brings the rows together; 0
        elsewhere.
    row_shares : int
        How many of its threads have the same tile then, for a share of the rows each.
    part_size : int
        Entries of all tiles, which such a block leaves; 0 elsewhere.
    block : int
        Contributions to a sum of real numbers that a thread or lane adds up one after
        the other, before they are added up pairwise; 0 for all.
    """

    lanes_per_edge: int
    features_per_lane: int
    lanes_per_vertex: int
    is_looped: bool
    schedule: str
    hubs: bool = False
    shared_matrices: bool = False
    vector_width: int = 1
    stride: int = 1
    unroll: int = 1
    vertices: int = 1
    resident: int = 0
    hub_resident: int = 0
    column_width: int = 0
    block: int = 0
    lists_rows: bool = False
    window: int = 0
    tile: int = 0
    batch: int = 0
    row_shares: int = 1
    part_size: int = 0
    hub_degree: int = 0
    in_parts: bool = False
    threads: int = 0
    hub_threads: int = 0

    @property
    def edges_at_a_time(self) -> int:
        """Edges of a vertex that are worked on at a time."""
        return self.lanes_per_vertex // self.lanes_per_edge

    @property
    def shares(self) -> str:
        """Which features lanes take and load at once, in words."""
        width = self.vector_width
        loads = f" in loads of {width}" if width > 1 else ""
        return f"{self.lanes_per_edge} lanes x {self.features_per_lane} features{loads}"

    @property
    def of_hubs(self) -> str:
        """What becomes of vertices of high degree, in words; "" where nothing does."""
        if not self.hubs:
            return ""
        row = f"row of {self.hub_degree} edges or more" if self.hub_degree else "hub"
        part = "part of a " if self.in_parts else ""
        return f", a block for each {part}{row}"

    def is_padded(self, width: int) -> bool:
        """Whether some lanes have no feature."""
        lanes = self.lanes_per_edge
        return lanes > 1 and lanes * self.features_per_lane != width

    def of_column(self, width: int) -> Mapping:
        """Return how a lane goes through the rows of a column of a matrix."""
        return replace(
            self, features_per_lane=width, vector_width=self.column_width or 1
        )


def last_feature(width: int, at_once: int, j: int) -> int:
    """Return the last of `width` features that may be number `j` of a lane.

    That is in the last of the loads of `at_once` features, of which not all are there
    where `at_once` does not divide the width.
    """
    first = (width - 1) // at_once * at_once
    return min(first + j % at_once, width - 1)


def stands_for(width: int, at_once: int, j: int) -> int | None:
    """Return which number of a lane stands for `j` where the row has ended.

    The last load of a row may find what is not of the row; the last feature that it
    finds is used instead. None for a number for which it finds one.
    """
    last = (width - 1) % at_once
    return j - j % at_once + last if j % at_once > last else None


@dataclass(frozen=True)
class Products:
    """The matrices that a phase sums, and what is done with them.

    Attributes
    ----------
    count : int
        How many they are.
    symmetric : bool
        Whether all of them are.
    arrays : int
        Arrays in which factors wait: one for a square, two for other products.
    refused : str
        What keeps them from being summed in tiles, in words; "" where nothing does.
    solutions : int
        Positive definite systems that its functions solve.
    area_columns : int
        Columns, K entries each, of the areas that other systems and inverses take.
    piece : int
        Features of a row that a lane can load at once.
    """

    count: int
    symmetric: bool
    arrays: int
    refused: str = ""
    solutions: int = 0
    area_columns: int = 0
    piece: int = 1


@dataclass(frozen=True)
class Work:
    """What a phase does, as far as a schedule asks before it takes it.

    Attributes
    ----------
    from_sources : bool
        Whether sources write along their out-edges.
    width : int
        K of its functions.
    sweeps_edges : bool
        Whether it goes through the edges of vertices.
    has_hubs : bool
        Whether some vertices have so many that a warp would hold up the others.
    joins : bool
        Whether what blocks come to of parts of a row can be put together.
    custom : str
        A gather whose combine has no reduction by shuffles; "" where there is none.
    size : int
        Bytes of a real number.
    products : Products or None
        The matrices that it sums; None where there are none.
    matrices : int
        Areas of K x K numbers that its functions need.
    sums_matrices, reads_matrices : bool
        Whether gathers or reduces fill matrices, and whether functions read those of
        vertices or edges element by element.
    pulls, reduces : bool
        Whether vertices go along their own rows, and whether it combines over all.
    rows : int
        Rows of features that gathers fill. One along edges in both directions counts
        twice: registers go into the list of these edges, too.
    reads_edge_rows, writes_edges : bool
        Whether gathers read rows of K features of edges, and functions write edges.
    is_plain : bool
        Whether all edges are gone through for one number, or a key and its source, by
        an operation of shuffles.
    has_keys : bool
        Whether gathers keep sources of keys.
    ends_early : bool
        Whether a gather is likely to be done long before its last edge.
    operates, meets_at_edges : bool
        Whether functions, and those along edges, have shuffles.
    multiplies : bool
        Whether a matrix is multiplied along the edges.
    keeps_state : bool
        Whether others see what a vertex commits in the superstep, or aggregates stay.
    forced : frozenset of str
        Fields of the mapping that a bench has set.
    long_row : int
        Edges from which on a row is cut into blocks of sums; 0 where none has as many.
    typical_degree, rows_of_longest, has_giant : int, int, bool
        Of the graph: see `GraphTraits`.
    sweep : EdgeSweep or None
        That of an exclusive function; None for other functions.
    """

    from_sources: bool
    width: int
    sweeps_edges: bool = False
    has_hubs: bool = False
    joins: bool = False
    custom: str = ""
    size: int = 4
    products: Products | None = None
    matrices: int = 0
    sums_matrices: bool = False
    reads_matrices: bool = False
    pulls: bool = False
    reduces: bool = False
    rows: int = 0
    reads_edge_rows: bool = False
    writes_edges: bool = False
    is_plain: bool = False
    has_keys: bool = False
    ends_early: bool = False
    operates: bool = False
    meets_at_edges: bool = False
    multiplies: bool = False
    keeps_state: bool = False
    forced: frozenset[str] = frozenset()
    typical_degree: int = 32
    rows_of_longest: int = 0
    long_row: int = 0
    has_giant: bool = False
    sweep: EdgeSweep | None = None


def power_of_two(count: int) -> int:
    """Return the smallest power of two that is at least `count`."""
    return 1 << max(count - 1, 0).bit_length()


def share_features(width: int, piece: int) -> tuple[int, int]:
    """Return (lanes, features a lane) for loads of `piece` features."""
    pieces = -(-width // piece)
    lanes = min(WARP, power_of_two(pieces))
    return lanes, width if lanes == 1 else piece * -(-pieces // lanes)


def whole_piece(width: int, most: int) -> int:
    """Return how many features, `most` or a half of it or less, divide the width."""
    piece = most
    while width % piece:
        piece //= 2
    return piece


def piece_of(width: int, size: int) -> int:
    """Return how many features a lane loads at once: what a row is padded to."""
    return whole_piece(row_stride(width), PIECE_BYTES // size)


def vertices_together(work: Work) -> int:
    """Return how many vertices a lane takes at a time where all are reduced over."""
    if not work.reduces or work.operates:
        return 1  # lanes that meet take each vertex together
    return max(REDUCED_TOGETHER // work.width, 1)
