"""Schedules in which threads of a block hold tiles of the matrices of one vertex."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping as Dict
from typing import ClassVar

from featgraph.base.dataclass import replace
from featgraph.base.errors import PlanError
from featgraph.fold.schedules.base import (
    Binding,
    BlockScope,
    GraphArray,
    KernelShape,
    Schedule,
)
from featgraph.fold.schedules.block import JOINED_ENTRIES, PART, found_parts, listed
from featgraph.fold.schedules.lanes import MOST_ROWS, lanes_of, marked, shared
from featgraph.fold.schedules.mapping import (
    WARP,
    Mapping,
    Products,
    Work,
    power_of_two,
    share_features,
)
from featgraph.fold.tree.layout import Walk
from featgraph.fold.tree.nodes import Sweep
from featgraph.fold.tree.statements import Body, agreed, code, noted, when

__all__ = [
    "SHARED_BYTES",
    "SIDE",
    "BlockTileSchedule",
    "TileJoinSchedule",
    "padded_to_tiles",
]

#: Side of a tile, as in `featgraph.device.block_tiles`, which needs the dialect.
SIDE = 8
#: Edges whose rows wait to be added, about: each time a block meets twice.
WAITING = 16
#: Edges that a lane has on the way together, at most.
MOST_ON_THE_WAY = 8
#: Threads of a block at least, by tiles in a row of the matrix, where there are hubs:
#: threads beyond those that have a tile would wait, so they have further tiles of one
#: place, which take a share of the edges each. Elsewhere solutions take most of the
#: time, in which shares wait: a block has its tiles once, and more blocks are at work.
LEAST_THREADS = {1: 32, 5: 128}
#: As many blocks of hubs fit a multiprocessor as of others: counted in those of 512
#: threads that take hubs elsewhere, one.
HUB_BLOCKS = 1
#: Threads of a block: they have up to 128 registers each.
MOST_THREADS = 512
#: Blocks of 128 threads that must fit a multiprocessor, which leaves each thread 128
#: registers; of larger blocks, and with float64, none must.
TILED_BLOCKS, MOST_BOUND_THREADS = 4, 256
#: Features of the matrices that tiles sum: up to here, columns fit a lane's registers.
LEAST_TILED = MOST_ROWS + 1
#: Time of tiles over that of lanes with matrices in memory, about.
COST = 1 / 2
#: Shared memory that a block may use; matrices that do not fit are in scratch memory.
SHARED_BYTES = 48_000


class BlockTileSchedule(Schedule):
    """Stage rows of sources in shared memory; threads add products to tiles.

    Lanes share the features of an edge, and the block shares the edges of its vertex,
    as for a hub. Functions run in all warps; only the first group of lanes has side
    effects. All threads solve positive definite systems in the tiles.
    """

    name = "block_tiles"
    modules: ClassVar[tuple[str, ...]] = ("block_tiles",)
    forms: ClassVar[tuple[str, ...]] = ("listed",)  # a warp packs what its lanes take
    joins: ClassVar[str] = "tile_joins"

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
                f"block_tiles adds up outer products: {why}",
                where="schedule='block_tiles'",
                fix="use schedule='auto'",
            )
        threads = _threads(work.width, products, work.has_hubs)
        piece = products.piece
        while piece > 1 and work.width <= piece:
            piece //= 2  # lanes that share features meet, one alone does not
        lanes, features = share_features(work.width, piece)
        edges = threads // lanes
        unroll = min(max(-(-WAITING // edges), 1), MOST_ON_THE_WAY)
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
        return math.inf if is_refused else COST

    @staticmethod
    def refusal(width: int, size: int, products: Products) -> str:
        """Return why it cannot sum some matrices; "" if it can."""
        most = MOST_THREADS // power_of_two(products.count * size // 4)
        threads = _threads(width, products, has_hubs=True)
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

    def sweep(self, node: Sweep, binding: Binding, shape: KernelShape) -> Body:
        """Return the loop over the vertices of `node`, its body in it."""
        vertex = node.vertex
        every, each = self._found(vertex, shape)
        leave = noted([ast.Continue()], "the whole block")
        test = f"not warp.test_bit({node.words}, {vertex})"
        each += agreed(when([test], leave), "block")
        each += code(f"{node.wanted} = True")
        loop = code(
            f"for index in {every}:\n    BODY",
            BODY=each + node.body + marked(node, binding, shape),
        )
        front = code("thread = uint32(cuda.threadIdx.x)")
        return front + lanes_of(binding, "cuda.threadIdx.x") + agreed(loop, "block")

    def _found(self, vertex: str, shape: KernelShape) -> tuple[str, Body]:
        """Return the range of a block, and the load of its vertex."""
        count, each = f"int32({shape.vertex_count})", code(f"{vertex} = int32(index)")
        if shape.form == "listed":
            count, each = "listed.size", code(f"{vertex} = listed[index]")
        return f"range(cuda.blockIdx.x, {count}, cuda.gridDim.x)", each


class TileJoinSchedule(BlockTileSchedule):
    """The same for vertices of high degree: blocks take parts of long rows."""

    name = "tile_joins"
    is_selectable = False

    def arrays(self, mapping: Mapping, form: str = "plain") -> tuple[GraphArray, ...]:
        """Return the list of parts of rows, with the index of each in its row."""
        return (listed("joined_parts", JOINED_ENTRIES, mapping),)

    def bind(self, mapping: Mapping, shape: KernelShape) -> Binding:
        """Return the binding of a kernel to this schedule, for passes."""
        binding = super().bind(mapping, shape)
        return replace(binding, own="", part=PART, joins=True)

    def _found(self, vertex: str, shape: KernelShape) -> tuple[str, Body]:
        """Return the range of parts, and the loads of a vertex and its part."""
        return found_parts("joined_parts", vertex, JOINED_ENTRIES)


def _threads(width: int, products: Products, has_hubs: bool) -> int:
    """Return the threads of a block: one for each tile, and some more for hubs."""
    count = -(-width // SIDE)
    tiles = count * (count + 1) // 2 if products.symmetric else count * count
    least = max(n for side, n in LEAST_THREADS.items() if count >= side)
    return max(least if has_hubs else WARP, -(-tiles // WARP) * WARP)


def padded_to_tiles(width: int) -> int:
    """Round a number of features up to whole tiles."""
    return -(-width // SIDE) * SIDE


def _waiting_bytes(work: Work, edges: int) -> int:
    """Return the bytes of staged rows, panels and boxes of warps."""
    products = work.products
    if products is None:
        return 0
    rows = edges * 2 * products.count + (2 * SIDE + 2) * products.solutions
    boxes = 2 * _threads(work.width, products, work.has_hubs)
    return (rows * padded_to_tiles(work.width) + boxes) * work.size


def _matrix_bytes(work: Work) -> int:
    """Return the bytes of matrices and work areas of functions."""
    products = work.products
    if products is None:
        return 0
    sums = products.count * padded_to_tiles(work.width) ** 2
    return (sums + products.area_columns * work.width) * work.size
