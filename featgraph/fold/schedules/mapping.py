"""Numbers of schedules, and facts from which they are chosen.

A `Mapping` has the numbers that code generation needs, such as lanes for each vertex. A
`Work` has the facts about a phase that schedules choose by, and `LaunchSizes` the
counts that the grid of a launch depends on. `resident_blocks` and `bounded` bound the
registers of a thread, so that enough blocks are resident.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

from featgraph.base.dataclass import dataclass, replace
from featgraph.base.padding import row_stride
from featgraph.fold.schedules.exclusive_costs import EdgeSweep

__all__ = [
    "BLOCK_THREADS", "HUB_THREADS", "INTERSECTIONS", "MOST_COPIES", "PIECE_BYTES",
    "REDUCE_THREADS", "SHARING_BLOCKS", "WARP", "LaunchSizes", "Mapping", "Products",
    "Work", "bounded", "last_feature", "piece_of", "power_of_two", "resident_blocks",
    "share_features", "stands_for", "vertices_together", "whole_piece",
]  # fmt: skip

#: Lanes of a warp.
WARP = 32
#: Names of ways to intersect the neighbors of two vertices, in options.
INTERSECTIONS = ("mark", "merge", "search")
#: Largest K for which one thread has a variable for each feature; above, features are
#: loops over small arrays (on the CPU vectors, where the function allows it). Measured
#: on the CPU target: variables are faster than loops up to 16, and compile too slowly
#: from 32 on.
MOST_COPIES = 16
#: Bytes in one load of a lane, the widest load instruction. A weighted sum over
#: neighbors on kron21 took 1.09 against 1.95 ms (K = 4), 1.50 against 4.08 (8), 2.55
#: against 7.28 (16) with 16 bytes a lane instead of 4 (NVIDIA H200, prototypes).
PIECE_BYTES = 16
#: Threads of a block; 128 was fastest of 64, 128 and 256 on kron21, K = 4, 8, 32
#: (NVIDIA H200).
BLOCK_THREADS = 128
#: Threads of the block that takes one vertex of high degree. Of 1024 threads only one
#: block fits a multiprocessor: the superstep took 1.2 times as long (kron21, H200).
HUB_THREADS = 512
#: Features that a lane of a reduce has in flight, over several vertices: with four
#: vertices, PageRank on grid4096 took 0.95 of the time; with two, sums of rows of 8 to
#: 128 features took 1.08 (NVIDIA H100, design note 0087).
REDUCED_TOGETHER = 4


@dataclass(frozen=True)
class Mapping:
    """How vertices, edges and features are distributed over lanes and blocks.

    Attributes
    ----------
    lanes_per_edge : int
        Lanes that share the features of an edge or vertex; 1 if one thread has all.
    features_per_lane : int
        Features of a lane, unrolled; lane l has ``l * features_per_lane`` and
        following.
    lanes_per_vertex : int
        Lanes that share one vertex.
    is_looped : bool
        One thread has all features, in loops over small arrays (on the CPU also in
        vectors).
    schedule : str
        Name of its schedule (`fold.schedules.table`).
    hubs : bool
        Whether a second kernel takes vertices of high degree, one block each.
    hub_degree : int
        Least degree for that kernel; 0 for the degree of hubs of the graph.
    in_parts : bool
        Whether several blocks share the row of a vertex of very high degree; the last
        of them combines their results.
    threads : int
        Threads of a block if warps are independent; 0 for the default.
    hub_threads : int
        Threads of the block of a hub; 0 for the default.
    shared_matrices : bool
        Whether matrices are in shared memory.
    vector_width : int
        Features of a row in one load; divides `stride`, and `features_per_lane` if
        lanes share features.
    stride : int
        Elements from one such row to the next in memory: K, or more (0040).
    unroll : int
        Edges of a lane in flight.
    vertices : int
        Vertices of a reduce that a lane has in flight.
    resident : int
        Resident blocks a multiprocessor, which bound registers; 0 for no bound.
    hub_resident : int
        Resident blocks a multiprocessor of the kernel of hubs; 0 for no bound.
    column_width : int
        Features of a row in one load, if lanes sum matrix columns in registers; 0 for
        sums in memory.
    lists_rows : bool
        Whether its kernels take a list of vertices with prefix sums of their degrees.
    window : int
        Approximate edges of the vertices that a warp takes together, by a list of
        windows; a single vertex may have more. 0 if a warp takes one vertex for each
        group of lanes.
    tile : int
        Side of matrix tiles in registers of the threads of a block; 0 for none.
    batch : int
        Vertices whose rows a block stages together in a reduce; 0 elsewhere.
    row_shares : int
        Threads with the same tile, each for a share of the staged rows.
    part_size : int
        Entries of all tiles in the partial result of such a block; 0 elsewhere.
    block : int
        Terms of a real sum that a lane adds sequentially before pairwise summation; 0
        for all.
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
        """Edges of a vertex processed at a time."""
        return self.lanes_per_vertex // self.lanes_per_edge

    @property
    def shares(self) -> str:
        """Distribution of features over lanes, in words."""
        width = self.vector_width
        loads = f" in loads of {width}" if width > 1 else ""
        return f"{self.lanes_per_edge} lanes x {self.features_per_lane} features{loads}"

    @property
    def of_hubs(self) -> str:
        """Treatment of vertices of high degree, in words; "" for none."""
        if not self.hubs:
            return ""
        row = f"row of {self.hub_degree} edges or more" if self.hub_degree else "hub"
        part = "part of a " if self.in_parts else ""
        return f", a block for each {part}{row}"

    def is_padded(self, width: int) -> bool:
        """Whether some lanes have fewer features."""
        lanes = self.lanes_per_edge
        return lanes > 1 and lanes * self.features_per_lane != width

    def of_column(self, width: int) -> Mapping:
        """Return the features of a lane along a column of a matrix."""
        return replace(
            self, features_per_lane=width, vector_width=self.column_width or 1
        )


def last_feature(width: int, at_once: int, j: int) -> int:
    """Return the largest feature below `width` that is number `j` of some lane.

    Lanes past the end of a row use it in their indices, and so repeat the last load.
    """
    first = (width - 1) // at_once * at_once
    return min(first + j % at_once, width - 1)


def stands_for(width: int, at_once: int, j: int) -> int | None:
    """Return the number of a lane that replaces `j` past the end of a row.

    The last load of a row may extend past it; the last existing feature is used
    instead. None for a number that always exists.
    """
    last = (width - 1) % at_once
    return j - j % at_once + last if j % at_once > last else None


@dataclass(frozen=True)
class Products:
    """Sums of matrices in a phase, and their uses.

    Attributes
    ----------
    count : int
        Number of matrices.
    symmetric : bool
        Whether all are symmetric.
    arrays : int
        Arrays of staged factors: one for squares, two for other products.
    refused : str
        Reason why they cannot be summed in tiles; "" if they can.
    solutions : int
        Positive definite systems that its functions solve.
    area_columns : int
        Columns, K entries each, of areas for other systems and inverses.
    piece : int
        Features of a row in one load of a lane.
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
    """Facts about a phase from which schedules are chosen.

    Attributes
    ----------
    from_sources : bool
        Whether sources push along their out-edges.
    width : int
        K of its functions.
    sweeps_edges : bool
        Whether it walks the edges of vertices.
    has_hubs : bool
        Whether some degrees are so high that one warp would delay all others.
    joins : bool
        Whether results of parts of a row can be combined.
    gather_without_shuffle : str
        Name of a gather whose combine has no shuffle; "" if all have one.
    size : int
        Bytes of a real number.
    products : Products or None
        Sums of matrices; None for none.
    matrices : int
        K x K work areas of its functions.
    sums_matrices, reads_matrices : bool
        Whether gathers or reduces sum matrices, and whether functions read elements of
        matrices of vertices or edges.
    pulls, reduces : bool
        Whether vertices walk their own rows, and whether it reduces over all.
    rows : int
        Rows of features accumulated by gathers. Edges in both directions count twice,
        because their list takes registers, too.
    reads_edge_rows, writes_edges : bool
        Whether gathers read rows of K features of edges, and functions write edges.
    is_plain : bool
        Whether it reduces all edges to one number, or a key and its source, by an
        operation with shuffles.
    has_keys : bool
        Whether gathers keep sources of keys.
    ends_early : bool
        Whether a gather is likely to exit long before its last edge.
    operates, meets_at_edges : bool
        Whether functions, and functions along edges, have shuffles.
    multiplies : bool
        Whether edges multiply by a matrix.
    keeps_state : bool
        Whether commits are visible within the superstep, or aggregates persist.
    forced : frozenset of str
        Fields of the mapping fixed by a bench.
    long_row : int
        Least length of rows summed in blocks; 0 if no row is as long.
    typical_degree, rows_of_longest, has_giant : int, int, bool
        Of the graph: see `GraphTraits`.
    sweep : EdgeSweep or None
        Sweep of an exclusive function; None for other functions.
    """

    from_sources: bool
    width: int
    sweeps_edges: bool = False
    has_hubs: bool = False
    joins: bool = False
    gather_without_shuffle: str = ""
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
    """Return the largest of `most`, `most` / 2, ... that divides the width."""
    piece = most
    while width % piece:
        piece //= 2
    return piece


def piece_of(width: int, size: int) -> int:
    """Return the features of one load of a lane, to which rows are padded."""
    return whole_piece(row_stride(width), PIECE_BYTES // size)


def vertices_together(work: Work) -> int:
    """Return the vertices in flight of a lane in a reduce."""
    if not work.reduces or work.operates:
        return 1  # lanes with shuffles process each vertex together
    return max(REDUCED_TOGETHER // work.width, 1)


#: Most bytes of scratch areas in global memory; a grid has fewer blocks if need be.
SCRATCH_BYTES = 1 << 29
#: Most blocks of a reduce, on all devices, so that results do not depend on the device.
#: Of 256, 512, 1024 and 2048, 1024 were fastest or within 0.03 ms: sums of 4.2M
#: rows of 1, 8, 32 and 128 floats took 0.022, 0.057, 0.18 and 0.67 ms, with 256 blocks
#: 0.045, 0.16, 0.60 and 2.2, cuBLAS 0.034, 0.048, 0.13 and 0.50 (NVIDIA H200,
#: bench/results/reduce-gpu.jsonl). Benches set others, before anything is prepared.
REDUCE_BLOCKS = 1024
#: Threads of a block of a reduce.
REDUCE_THREADS = 256
#: Blocks to launch, if they have work, before threads loop over further vertices.
LEAST_BLOCKS = 4096
#: Most blocks of a kernel that packs due vertices, for each lane that shares a vertex:
#: with more blocks, each warp would find fewer vertices to pack.
PACKING_BLOCKS = 2112
#: Most blocks that share the edges of a list or a set evenly: a few more than are
#: resident at a time.
SHARING_BLOCKS = 2112


@dataclass(frozen=True)
class LaunchSizes:
    """The sizes that the grid of a launch depends on.

    Attributes
    ----------
    vertices, edges : int
        Sizes of the graph.
    block : int
        Threads of a block.
    argument : callable
        Maps an argument to its value in the launch.
    frontier_form : str
        Frontier form: see `KernelShape`.
    role : str
        "main", or "hubs" for a kernel with one block for each entry of a list.
    reduces : bool
        Whether the kernel combines over all vertices.
    strides : int
        Least number of vertices for each group of lanes.
    scratch : collection of (str, tuple of int)
        Dtypes and shapes of the scratch of each group of lanes in global memory.
    multiprocessors : int
        Multiprocessors of the GPU.
    """

    vertices: int
    edges: int
    block: int
    argument: Callable[[str], Any]
    frontier_form: str = "plain"
    role: str = "main"
    reduces: bool = False
    strides: int = 1
    scratch: Collection[tuple[str, tuple[int, ...]]] = ()
    multiprocessors: int = 0

    def blocks(self, threads: int) -> int:
        """Return the number of blocks for `threads`, at least one."""
        return max(1, -(-threads // self.block))

    def shared_out(self, threads: int) -> int:
        """Return the number of blocks that share the work of `threads` evenly."""
        return min(self.blocks(threads), SHARING_BLOCKS)

    def within(self, blocks: int, lanes: int) -> int:
        """Limit `blocks` so that the scratch of their groups fits memory.

        `lanes` is the size of a group.
        """
        if not (self.scratch and blocks):
            return blocks
        # Entries have 8 bytes at most.
        each = sum(math.prod(shape) for _, shape in self.scratch) * 8
        groups = max(self.block // lanes, 1)
        return max(1, min(blocks, SCRATCH_BYTES // max(each * groups, 1)))

    def bounded(self, blocks: int, lanes: int) -> int:
        """Limit `blocks` by scratch, and by the work that repays their prologue."""
        if self.strides > 1:
            blocks = min(blocks, max(-(-blocks // self.strides), LEAST_BLOCKS))
        # CUDA has no larger grids.
        return min(self.within(blocks, lanes), (1 << 31) - 1)


#: Bytes of the accumulators of a lane, times the blocks of 128 threads that must be
#: resident on a multiprocessor: at 16 bytes a lane 8 blocks, so 64 registers a thread.
#: A superstep over all vertices, K = 4, with and without this bound: multi-manifold
#: ranking 66 and 81 us (a thread a vertex, Delaunay graph), 7.1 and 17.5 ms (kron-19),
#: 105 and 171 us (lanes, links of the web). A thread that multiplies holds more, and is
#: bound to 4 blocks: belief propagation 136 and 182 us (Delaunay); 148 with 8. Lanes
#: that multiply took up to 1.1 times longer with the bound, as did all schedules on a
#: road-like graph, whose typical degree is 2 (NVIDIA H200).
RESIDENT_BYTES = 128
#: Least typical degree for which registers are bounded.
LEAST_LOOPED = 4
#: The same where lanes share the features of an edge and there are no hubs: 55 against
#: 75 us on a network of authors (typical degree 16, label propagation, K = 16), but 152
#: against 117 on a Delaunay graph (4).
LEAST_SHARED = 16
#: From so many lanes that share the features of an edge on, blocks of hubs have the
#: register bound of other blocks, since they process few edges of a hub side by side.
#: Without a bound the linker leaves a thread 32 registers, with which each load of a
#: row waits for the one before: hubs of rmat-21-16 took 3.7 ms in place of 1.5 at K =
#: 128, and all other vertices 3.2 ms (NVIDIA H100, docs/design/0040).
FEW_HUB_EDGES_LANES = 16


def resident_blocks(mapping: Mapping, work: Work) -> int:
    """Return the number of blocks that must fit a multiprocessor; 0 for no bound.

    Without a bound, the linker aims at full occupancy with 32 registers a thread; with
    one, loops have more loads in flight. That pays for vertices with many edges.
    """
    if not (work.pulls and work.rows) or work.typical_degree < LEAST_LOOPED:
        return 0
    rows, is_alone = work.rows, mapping.lanes_per_vertex == 1
    if is_alone:
        loaded = mapping.features_per_lane * work.size
        is_wide = loaded >= PIECE_BYTES or work.multiplies
        pays = is_wide and (work.has_hubs or not work.matrices)
    else:
        several = work.typical_degree >= LEAST_SHARED and mapping.lanes_per_edge > 1
        is_wide = work.width * work.size >= PIECE_BYTES
        pays = is_wide and (work.has_hubs or several) and not work.multiplies
    if not pays:
        return 0
    if is_alone and work.multiplies:  # factors are in registers, too
        rows *= 2
    # A float64 takes two registers.
    taken = max(rows * mapping.features_per_lane * work.size, PIECE_BYTES)
    blocks = RESIDENT_BYTES * 4 // (taken * work.size)
    return max(blocks // 2 if mapping.column_width else blocks, 1)


def bounded(mapping: Mapping, resident: int) -> Mapping:
    """Return a mapping with `resident` blocks a multiprocessor, also for hubs.

    Hubs have no bound where a block has many edges in flight: more resident blocks are
    worth as much as registers there (docs/design/0021). Nor have they one where lanes
    have so many features that only one block would fit: the linker then allows 64
    registers by itself.
    """
    blocks, of_hubs = resident * BLOCK_THREADS // HUB_THREADS, mapping.hub_resident
    few = mapping.lanes_per_edge >= FEW_HUB_EDGES_LANES
    if mapping.hubs and not of_hubs:
        of_hubs = blocks if few and blocks > 1 else 0
    return replace(mapping, resident=resident, hub_resident=of_hubs)
