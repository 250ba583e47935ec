"""Schedules in which a block shares a vertex, part of a row, or a sum of matrices.

- A block takes a vertex of high degree (`BlockSchedule`), or part of its row:
  `PartSchedule` without a combined result, `JoinSchedule` with one.
- Threads of a block hold tiles of the matrices of one vertex (`BlockTileSchedule`), or
  of part of a long row (`TileJoinSchedule`).
- Sums of matrices over all vertices give each block a share of the vertices
  (`map_matrices`): a thread sums elements (`ElementSchedule`), or tiles
  (`ShareTileSchedule`).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping as Dict
from typing import ClassVar

from featgraph.base.dataclass import replace
from featgraph.base.errors import PlanError
from featgraph.base.padding import row_stride
from featgraph.fold.schedules.base import (
    Binding,
    BlockScope,
    FeatureAxis,
    GraphArray,
    KernelShape,
    Schedule,
    Scope,
    in_strides,
)
from featgraph.fold.schedules.lanes import (
    MOST_ROWS,
    lanes_of,
    leaves_matrices,
    marked,
    shared,
)
from featgraph.fold.schedules.mapping import (
    WARP,
    LaunchSizes,
    Mapping,
    Products,
    Work,
    power_of_two,
    share_features,
)
from featgraph.fold.tree.layout import Walk
from featgraph.fold.tree.nodes import Areas, Stage, Sweep
from featgraph.fold.tree.statements import Body, agreed, code, noted, when

__all__ = [
    "BUFFERS", "JOINED_ENTRIES", "PART", "PART_ENTRIES", "SHARED_BYTES", "SIDE",
    "BlockSchedule", "BlockTileSchedule", "ElementSchedule", "JoinSchedule",
    "PartSchedule", "ShareTileSchedule", "TileJoinSchedule", "map_matrices",
    "padded_to_tiles",
]  # fmt: skip

#: Names of the bounds of a part of a row in kernels.
PART = ("part_first", "part_last")
#: Entries of each part in a list of parts: its vertex, and its bounds; in the list of
#: `JoinSchedule` also the number of the row's first part, and the row's count of parts.
PART_ENTRIES, JOINED_ENTRIES = 3, 5


class BlockSchedule(Schedule):
    """A block takes one vertex; early exits are uniform over the block.

    Attributes
    ----------
    lists_of : str
        Name of the list of its vertices, or parts of rows; "" for all vertices.
    entries : int
        Entries of the list for each of them.
    """

    name = "block"
    lists_of: ClassVar[str] = "hubs"
    entries: ClassVar[int] = 1

    def choose(self, mapping: Mapping, work: Work, options: Dict[str, int]) -> Mapping:
        """Return the mapping of "lanes", with hubs left to blocks."""
        if leaves_matrices(mapping, work):
            raise PlanError(
                "the block schedule cannot hold matrices in memory",
                where="schedule='block'",
            )
        return replace(mapping, hubs=True) if work.sweeps_edges else mapping

    def arrays(
        self, mapping: Mapping, frontier_form: str = "plain"
    ) -> tuple[GraphArray, ...]:
        """Return the list of vertices or parts that a mapping leaves to blocks.

        Its name in the graph includes the degree, if that is not the degree of hubs.
        """
        if not self.lists_of:
            return ()
        degree = f" {mapping.hub_degree}" if mapping.hub_degree else ""
        return (
            GraphArray(self.lists_of, f"{{{self.lists_of}}}{degree}", self.entries),
        )

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        scope = BlockScope(shape.threads, "block")
        binding = shared(mapping, shape, scope)
        # One warp runs the vertex functions: the results of others would be equal.
        return replace(binding, block=mapping.block, runs=f"thread < {WARP}")

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, around its body."""
        vertex = node.vertex
        every, each = self._found(vertex, shape)
        if node.words:
            leave = noted([ast.Continue()], "the whole block")
            test = f"not warp.test_bit({node.words}, {vertex})"
            each += agreed(when([test], leave), "block")
        if shape.pulls:
            each += code(f"{node.wanted} = True")
        loop = code(
            f"for index in {every}:\n    BODY",
            BODY=each + node.body + marked(node, binding, shape),
        )
        front = code("thread = uint32(cuda.threadIdx.x)")
        return front + lanes_of(binding, "cuda.threadIdx.x") + agreed(loop, "block")

    def _found(self, vertex: str, shape: KernelShape) -> tuple[str, Body]:
        """Return the range of a block, and the loads of its vertex, or part of a row.

        Further entries of a part are loaded where they are used.
        """
        array, size = self.lists_of, self.entries
        if size == 1:
            return _grid_range(f"{array}.size"), code(f"{vertex} = {array}[index]")
        every = (
            f"range({size} * cuda.blockIdx.x, {array}.size, {size} * cuda.gridDim.x)"
        )
        # Unsigned: an index that may be negative costs a test.
        found = code(f"place = uint32(index)\n{vertex} = {array}[place]")
        for n, name in enumerate(PART, 1):
            found += code(f"{name} = {array}[uint32(place + uint32({n}))]")
        return every, found


def _grid_range(count: str) -> str:
    """Return the range of a block among `count` vertices that blocks share."""
    return f"range(cuda.blockIdx.x, {count}, cuda.gridDim.x)"


class PartSchedule(BlockSchedule):
    """Several blocks take one vertex, without a combined result."""

    name = "block_parts"
    is_selectable = False
    lists_of, entries = "hub_parts", PART_ENTRIES

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        return replace(super().bind(mapping, shape), part=PART)


class JoinSchedule(BlockSchedule):
    """Several blocks take one long row; the last one combines and continues."""

    name = "block_joins"
    is_selectable = False
    lists_of, entries = "joined_parts", JOINED_ENTRIES

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        return replace(super().bind(mapping, shape), part=PART, joins=True)


#: Side of a tile, as in `featgraph.device.block_tiles`, which needs the dialect.
SIDE = 8
#: Approximate number of edges in a batch of staged rows: each batch takes two barriers
#: of the block.
WAITING = 16
#: Most edges of a batch that one lane stages.
MOST_EDGES_ON_THE_WAY = 8
#: Least tiles in a row of the matrix -> least threads of a block, on graphs with hubs.
#: Threads beyond one for each tile would idle, so they have further copies of the
#: tiles, each of which sums a share of the edges. Without hubs, solving systems takes
#: most of the time, and such threads would idle there: a block has each tile once, and
#: more blocks are resident.
LEAST_THREADS = {1: 32, 5: 128}
#: Resident blocks of hubs on a multiprocessor, in blocks of 512 threads: that is as
#: many threads as `TILED_BLOCKS` of 128.
HUB_BLOCKS = 1
#: Most threads of a block, with up to 128 registers each.
MOST_THREADS = 512
#: Blocks of 128 threads that must fit a multiprocessor, which leaves each thread 128
#: registers. Blocks of more than `MOST_BOUND_THREADS`, and float64, have no bound.
TILED_BLOCKS, MOST_BOUND_THREADS = 4, 256
#: Least K for which tiles are chosen: below, columns fit the registers of a lane.
LEAST_TILED = MOST_ROWS + 1
#: Approximate time of tiles over that of lanes with matrices in memory.
TILED_COST = 1 / 2
#: Shared memory of a block in bytes; matrices that do not fit are in scratch memory.
SHARED_BYTES = 48_000


class BlockTileSchedule(BlockSchedule):
    """Stage rows of sources in shared memory; threads add products to tiles.

    Lanes share the features of an edge, and the block shares the edges of its vertex,
    as for a hub. Functions run in all warps; only the first group of lanes has side
    effects. All threads solve positive definite systems in the tiles.
    """

    name = "block_tiles"
    lists_of = ""
    modules: ClassVar[tuple[str, ...]] = ("block_tiles",)
    #: Not "packed": a warp packs vertices for its own lanes, and a block has several.
    frontier_forms: ClassVar[tuple[str, ...]] = ("listed",)
    joined_parts_schedule: ClassVar[str] = "tile_joins"

    def choose(self, mapping: Mapping, work: Work, options: Dict[str, int]) -> Mapping:
        """Return the mapping of a block to a vertex; unchanged without matrices.

        Raises
        ------
        PlanError
            If matrices are no sums of outer products, or too large for one block.
        """
        products = work.products
        if products is None:
            return mapping
        why = self.refusal(work.width, work.size, products)
        if why:
            raise PlanError(
                "the block_tiles schedule cannot sum these matrices as outer products: "
                f"{why}",
                where="schedule='block_tiles'",
                fix="use schedule='auto'",
            )
        threads = _tile_threads(work.width, products, work.has_hubs)
        piece = products.piece
        while piece > 1 and work.width <= piece:
            piece //= 2  # at least two lanes must share the features of an edge
        lanes, features = share_features(work.width, piece)
        edges = threads // lanes
        unroll = min(max(-(-WAITING // edges), 1), MOST_EDGES_ON_THE_WAY)
        while unroll > 1 and _waiting_bytes(work, edges * unroll) > SHARED_BYTES:
            unroll -= 1
        mapping = replace(
            mapping, schedule=self.name, lanes_per_edge=lanes, unroll=unroll,
            features_per_lane=features, vector_width=piece, lanes_per_vertex=threads,
            column_width=0, hubs=work.has_hubs and work.joins,
            in_parts=work.has_hubs and work.joins, hub_resident=HUB_BLOCKS, tile=SIDE,
        )  # fmt: skip
        needed = _waiting_bytes(work, edges * unroll) + _matrix_bytes(work)
        fits = needed <= SHARED_BYTES
        return replace(mapping, shared_matrices=fits)

    def tune(self, mapping: Mapping, work: Work) -> Mapping:
        """Return its mapping, with as many resident blocks as registers allow."""
        bound = work.size == 4 and mapping.lanes_per_vertex <= MOST_BOUND_THREADS
        return replace(mapping, resident=TILED_BLOCKS if bound else 0)

    def cost(self, work: Work) -> float:
        """Return its cost, finite for matrices too large for lanes."""
        if work.products is None or work.width < LEAST_TILED or work.forced:
            return math.inf
        is_refused = self.refusal(work.width, work.size, work.products)
        return math.inf if is_refused else TILED_COST

    @staticmethod
    def refusal(width: int, size: int, products: Products) -> str:
        """Return why it cannot sum some matrices; "" if it can."""
        # A thread holds a tile of each sum; in float64, of twice as many registers.
        most = MOST_THREADS // power_of_two(products.count * size // 4)
        threads = _tile_threads(width, products, has_hubs=True)
        if threads > most and not products.refused:
            count = -(-width // SIDE)
            tiles = f"{count} x {count} tiles of {SIDE} x {SIDE}"
            return f"K = {width} are {tiles}, more than the {most} threads of a block"
        return products.refused

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        count = -(-width // mapping.tile)
        return (
            f"a block of {mapping.lanes_per_vertex} threads a vertex: "
            f"{mapping.edges_at_a_time} x {mapping.unroll} edges at a time, "
            f"{mapping.shares}; {count} x {count} tiles of {mapping.tile} x "
            f"{mapping.tile} in registers{mapping.of_hubs} (FA)"
        )

    def threads(self, mapping: Mapping) -> int:
        """Return the threads of a block, all for one vertex."""
        return mapping.lanes_per_vertex

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        scope = BlockScope(mapping.lanes_per_vertex, "block")
        binding = shared(mapping, shape, scope)
        edges = mapping.edges_at_a_time
        own = "edge_lane" if edges > 1 else ""
        walk = Walk("while", edges, own, "block", mapping.unroll)
        own = "{} < hub_degree" if mapping.hubs else ""
        return replace(binding, walk=walk, block=mapping.block, own=own)

    def _found(self, vertex: str, shape: KernelShape) -> tuple[str, Body]:
        """Return the range of a block, and the load of its vertex."""
        if self.lists_of:
            return super()._found(vertex, shape)
        if shape.frontier_form == "listed":
            return _grid_range("listed.size"), code(f"{vertex} = listed[index]")
        every = _grid_range(f"int32({shape.vertex_count})")
        return every, code(f"{vertex} = int32(index)")


class TileJoinSchedule(BlockTileSchedule):
    """`BlockTileSchedule` for vertices of high degree: a block takes part of a row."""

    name = "tile_joins"
    is_selectable = False
    lists_of, entries = "joined_parts", JOINED_ENTRIES

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        binding = super().bind(mapping, shape)
        return replace(binding, own="", part=PART, joins=True)


def _tile_threads(width: int, products: Products, has_hubs: bool) -> int:
    """Return the threads of a block: one for each tile, and some more for hubs."""
    count = -(-width // SIDE)
    tiles = count * (count + 1) // 2 if products.symmetric else count * count
    least = max(n for side, n in LEAST_THREADS.items() if count >= side)
    return max(least if has_hubs else WARP, -(-tiles // WARP) * WARP)


def padded_to_tiles(width: int) -> int:
    """Round a number of features up to whole tiles."""
    return -(-width // SIDE) * SIDE


def _waiting_bytes(work: Work, edges: int) -> int:
    """Return the bytes of staged rows, panels of solutions and boxes of warps."""
    products = work.products
    if products is None:
        return 0
    rows = edges * 2 * products.count + (2 * SIDE + 2) * products.solutions
    boxes = 2 * _tile_threads(work.width, products, work.has_hubs)
    return (rows * padded_to_tiles(work.width) + boxes) * work.size


def _matrix_bytes(work: Work) -> int:
    """Return the bytes of matrices and work areas of functions."""
    products = work.products
    if products is None:
        return 0
    sums = products.count * padded_to_tiles(work.width) ** 2
    return (sums + products.area_columns * work.width) * work.size


#: Index of a block in the grid, and the number of blocks.
BLOCKS = ("cuda.blockIdx.x", "cuda.gridDim.x")
#: Bytes of a real number -> threads of a block to choose from, if all tiles fit: those
#: that leave the fewest idle. With float64, a thread takes twice the registers.
SHARE_THREADS = {4: (128, 160), 8: (64, 96)}
#: Bytes of a real number -> blocks of 128 threads that must fit a multiprocessor.
SHARE_BLOCKS = {4: 4, 8: 2}
#: Most vertices of a batch that a lane stages, by bytes of a real number; most vertices
#: of a batch.
MOST_ON_THE_WAY, MOST_WAITING = {4: 4, 8: 2}, 256
#: Multiprocessors that grids assume on all devices, so that sums have the same bits.
MULTIPROCESSORS = 132
#: Batches in shared memory: one is added while the next one is stored.
BUFFERS = 2


class ElementSchedule(Schedule):
    """A thread sums one element at a time over all vertices of the block."""

    name = "elements"
    is_selectable = False
    shares_features = False

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        return (
            f"one thread an element of {width} x {width}, over a block's part of the "
            "vertices"
        )

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        axis = FeatureAxis(shape.width, is_element=True, are_values=True)
        alone = dict.fromkeys(("edge", "vertex", "partial"), Scope())
        block = mapping.block
        return Binding(False, axis, Walk("range"), alone, block=block, partial="row")

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, around its body."""
        return [Areas(), *in_strides(node, binding.block, node.body, BLOCKS)]

    def around(self, body: Body, shape: KernelShape) -> Body:
        """Return the loop of a thread over its elements."""
        k = shape.width
        each = code(f"i = int32(element // {k})\nf = int32(element - i * {k})")
        elements = f"range(cuda.threadIdx.x, {k * k}, {shape.threads})"
        loop = code(f"for element in {elements}:\n    BODY", BODY=each + body)
        return code("row = uint32(cuda.blockIdx.x)") + loop


class ShareTileSchedule(Schedule):
    """Stage rows of due vertices in shared memory; threads add products to tiles.

    Lanes share the features of a vertex, and the block the vertices of a batch. The
    rows of due vertices are contiguous in shared memory, so that others cost no
    products.
    """

    name = "share_tiles"
    is_selectable = False
    modules = ("block_tiles",)

    def describe(self, mapping: Mapping, width: int) -> str:
        """Return a mapping in words."""
        count = -(-width // mapping.tile)
        return (
            f"a block of {mapping.lanes_per_vertex} threads a share of the vertices, "
            f"{mapping.batch} at a time, {mapping.shares}; {count} x {count} tiles of "
            f"{mapping.tile} x {mapping.tile} in registers"
        )

    def threads(self, mapping: Mapping) -> int:
        """Return the threads of a block."""
        return mapping.lanes_per_vertex

    def grid(self, mapping: Mapping, sizes: LaunchSizes) -> int:
        """Return the number of blocks: one a batch, at most all resident ones."""
        resident = mapping.resident * sizes.block // mapping.lanes_per_vertex
        most = max(resident, 1) * MULTIPROCESSORS
        return max(min(-(-sizes.vertices // mapping.batch), most), 1)

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        binding = shared(mapping, shape, Scope(mapping.lanes_per_vertex, "block"))
        walk = replace(binding.walk, at_a_time=mapping.unroll)
        scopes = {**binding.scopes, "partial": Scope()}
        return replace(
            binding, walk=walk, scopes=scopes, block=mapping.block,
            batch=mapping.batch, row_shares=mapping.row_shares,
        )  # fmt: skip

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over batches of vertices, around the body of `node`."""
        lanes, batch = binding.features.lanes, binding.batch
        each = code(
            "batch_start = int32(batch_first)\n"
            f"batch_end = int32(min(batch_first + {batch}, vertex_end))\n"
            f"batch_count = block_tiles.members({node.words}, batch_start, batch_end)"
        )
        leave = noted([ast.Continue()], "the whole block")
        each += agreed(when(["batch_count == 0"], leave), "block")
        if node.between:
            each += _in_blocks(node, binding)
        for part in node.body:
            if not isinstance(part, Stage):
                each.append(part)
                continue
            for n in range(binding.walk.at_a_time):
                each += _slot(node, n, n * binding.walk.lanes)
                each.append(Stage(part.function, n, f"waits_{n}"))
        # The next batch goes to the other half of the buffer.
        each += code(f"batch_row = int32({batch} - batch_row)")
        # In 64 bits, since the last step may exceed the range of int32.
        loop = code(
            f"for batch_first in range(int64(cuda.blockIdx.x) * {batch}, vertex_end, "
            f"int64(cuda.gridDim.x) * {batch}):\n    BODY",
            BODY=each,
        )
        front = code(
            "thread = uint32(cuda.threadIdx.x)\n"
            f"lane = cuda.laneid & {lanes - 1}\n"
            f"vertex_lane = int32(thread >> {lanes.bit_length() - 1})"
        )
        begin = code("vertex_end, batch_row = int64(vertex_count), int32(0)")
        if node.between:
            begin += code("block_count, block_rows = 0, int32(0)")
        front += [*binding.features.front(), Areas()]
        return [*front, *begin, *agreed(loop, "block"), *node.behind]


def map_matrices(work: Work) -> Mapping:
    """Return the mapping of a sum of matrices, as far as shared memory allows."""
    width, size, products = work.width, work.size, work.products
    elements = Mapping(1, 1, 1, False, ElementSchedule.name)
    if products is None:
        return elements
    stride, count = row_stride(width), -(-width // SIDE)
    tiles = count * (count + 1) // 2 if products.symmetric else count * count
    threads = _threads(tiles, size)
    # 512 threads of 128 registers fill a multiprocessor; half as many in float64.
    if products.refused or threads > 2 * WARP * 32 // size:
        return elements
    piece = products.piece
    while piece > 1 and width <= piece:
        piece //= 2  # at least two lanes must share the features of a vertex
    lanes, features = share_features(width, piece)
    at_a_time, batch = threads // lanes, MOST_WAITING
    while batch > at_a_time * MOST_ON_THE_WAY[size]:
        batch //= 2
    # Shares are added pairwise: half of them leave their tiles at a time.
    box = threads // tiles // 2 * tiles * SIDE * SIDE
    arrays = BUFFERS * products.arrays * padded_to_tiles(width)
    while batch > 1 and (box + batch * arrays) * size > SHARED_BYTES:
        batch //= 2
    return Mapping(
        lanes, features, threads, False, ShareTileSchedule.name, tile=SIDE,
        vector_width=piece, stride=stride, unroll=-(-batch // at_a_time), batch=batch,
        row_shares=threads // tiles, part_size=tiles * SIDE * SIDE,
        resident=SHARE_BLOCKS[size],
    )  # fmt: skip


def _in_blocks(node: Sweep, binding: Binding) -> Body:
    """Return statements that store a block of terms before a batch exceeds it.

    A batch counts as the rows of its largest share.
    """
    rows, shares = "batch_count", binding.row_shares
    if shares > 1:
        rows = f"(batch_count + {shares - 1}) // {shares}"
    full = [*node.between, *code("block_rows = int32(0)")]
    out = code(f"share_rows = int32({rows})")
    test = f"block_rows + share_rows > {binding.block}"
    return out + agreed(when([test], full), "block") + code("block_rows += share_rows")


def _slot(node: Sweep, n: int, more: int) -> Body:
    """Return the n-th vertex of a lane in a batch, and the place of its staged row.

    Lanes past the last vertex repeat it, without a contribution.
    """
    own = f"vertex_lane + {more}" if more else "vertex_lane"
    vertex = node.vertex
    return code(
        f"{vertex} = int32(batch_start + {own})\n"
        f"waits_{n} = {vertex} < batch_end\n"
        f"{vertex} = min({vertex}, int32(batch_end - 1))\n"
        f"waits_{n} = waits_{n} and warp.test_bit({node.words}, {vertex})\n"
        f"place_{n} = block_tiles.members({node.words}, batch_start, {vertex})"
    )


def _threads(tiles: int, size: int) -> int:
    """Return the threads of a block: at least one for each tile, few idle."""
    fitting = [count for count in SHARE_THREADS[size] if count >= tiles]
    if not fitting:
        return -(-tiles // WARP) * WARP
    return max(fitting, key=lambda count: (count // tiles * tiles / count, -count))
