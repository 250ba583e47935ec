"""The heuristics: how the features and edges of a vertex go to threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from featgraph.arrays.padding import row_stride
from featgraph.errors import PlanError
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.gathers import (
    combine_of,
    declared_along,
    is_matrix,
    takes_active,
    temporaries_of,
)
from featgraph.fold.kinds.base import PhaseKind
from featgraph.fold.operations.table import OPERATIONS
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.products import products_of
from featgraph.fold.plan.traits import SUM_BLOCK, GraphTraits
from featgraph.fold.schedules.block_tiles import MOST_ROWS
from featgraph.fold.schedules.intersect_rows import rows_intersected
from featgraph.fold.schedules.lanes import edges_at_a_time
from featgraph.fold.schedules.mapping import (
    WARP,
    Mapping,
    Products,
    Work,
    share_features,
)
from featgraph.fold.schedules.shares import ShareTileSchedule
from featgraph.fold.schedules.table import SCHEDULES

__all__ = ["choose_mapping", "map_over_words", "piece_of"]

#: Up to here one thread keeps a named copy of every feature; above, features are loops
#: over small arrays (on the CPU vectors, where it can be). Measured on the CPU target:
#: copies win over loops up to 16 and compile too slowly from 32 on.
MOST_COPIES = 16
#: Up to so many bytes of features, one thread takes two of the edges that its vertex
#: pulls at a time; with more, registers run out. Belief propagation on a Delaunay
#: graph, links of the web, a graph with hubs and a road-like one, K = 4: 0.153, 5.1,
#: 34.8 and 0.194 ms against 0.263, 6.1, 41.9 and 0.178; K = 8 on the first two: 0.30
#: and 6.7 against 0.37 and 9.9 (NVIDIA H200).
PAIRED_BYTES = 32
#: Edges that one thread gathers from at a time where each has a row of its own, up to
#: so many features, and there are hubs: 12.4 against 17.4 ms on kron-19, 1.9 against
#: 2.2 on links of the web, but 0.149 against 0.123 on a road-like graph (multi-manifold
#: ranking, K = 4). With a weight an edge, what the compiler makes of the plain loop was
#: faster everywhere (NVIDIA H200).
ROWS_TOGETHER = 4
MOST_ROWS_TOGETHER = 4
#: Rounds of a warp on the way together where functions of edges have shuffles; a round
#: waits for a row from the second cache, and for ten shuffles and sums that need each
#: other. Edges of a row from which on a block has it then; its threads, and how many of
#: these blocks fit a multiprocessor. ALS by conjugate gradients on
#: ml-1m, ms an iteration: 2.9, 2.3 and 2.2 with 2, 4 and 8 rounds together (K = 128);
#: 2.3 and 1.8 without the bound on blocks and with it; 1.2 and 0.8 where rows from 2048
#: and from 512 edges on were a block's (K = 32, NVIDIA H100, bench als-gpu).
ROUNDS_TOGETHER, ROUND_EDGES, ROUND_THREADS, ROUND_BLOCKS = 4, SUM_BLOCK, 256, 2
#: Features of all vertices that a lane of a reduce takes at a time: with four vertices,
#: PageRank on grid4096 took 0.95 of the time; with two, sums of rows of 8 to 128
#: features took 1.08 (NVIDIA H100, classics-gpu, reduce-gpu).
REDUCED_TOGETHER = 4
#: Shared memory that one block may use for matrices before they move to a scratch area
#: in global memory.
SHARED_BYTES = 40_000
#: Threads of a block; 128 was fastest of 64, 128 and 256 on kron21, K = 4, 8, 32
#: (NVIDIA H200).
BLOCK_THREADS = 128
#: Threads of the block that takes one vertex of high degree. Of 1024 threads only one
#: block fits a multiprocessor: the superstep took 1.2 times as long (kron21, H200).
HUB_THREADS = 512
#: Bytes that a lane loads at a time: the widest load there is. A weighted sum over
#: neighbors on kron21 took 1.09 against 1.95 ms (K = 4), 1.50 against 4.08 (8), 2.55
#: against 7.28 (16) with 16 bytes a lane instead of 4 (NVIDIA H200, prototypes).
PIECE_BYTES = 16
#: Bytes that a lane gathers into, of all blocks that the compiler must let fit a
#: multiprocessor together: at 16 bytes a lane 8 blocks, 64 registers. A superstep over
#: all vertices, K = 4, with and without: multi-manifold ranking 66 and 81 us (a thread
#: a vertex, Delaunay graph), 7.1 and 17.5 ms (kron-19), 105 and 171 us (lanes, links of
#: the web). A thread that multiplies holds more, and is bound to 4 blocks: belief
#: propagation 136 and 182 us (Delaunay); 148 with 8. Lanes that multiply took up to 1.1
#: times longer, as did all on a road-like graph, whose typical degree is 2 (NVIDIA
#: H200).
RESIDENT_BYTES = 128
#: Where so many lanes share the features of an edge, few edges of a hub go side by
#: side, and threads of its block are to have the registers that those of other blocks
#: have. Without a bound the linker leaves them 32, with which each load of a row waits
#: for the one before: hubs of rmat-21-16 took 3.7 ms for 1.5 at K = 128, and all other
#: vertices 3.2 ms (NVIDIA H100, docs/design/0040).
FEW_HUB_EDGES_LANES = 16
#: Blocks of warps that have windows of scalars: with as many as fit by 48 registers,
#: which one walk alone took, the second one of long rows takes no more (sm_90).
WINDOW_BLOCKS, SCALAR_BYTES = 10, 4
#: Blocks of 128 threads that have tiles, which leaves each thread 128 registers.
TILED_BLOCKS = 4
#: The least typical degree for that.
LEAST_LOOPED = 4
#: The same where lanes share the features of an edge, too, and there are no hubs: 55
#: against 75 us on a network of authors (typical degree 16, label propagation, K = 16),
#: but 152 against 117 on a Delaunay graph (4).
LEAST_SHARED = 16
#: Up to so many features, a lane that multiplies a matrix by what it reads of an edge
#: takes all of them: each feature needs all others, and shuffles bring one at a time.
MOST_MULTIPLIED = 8


def choose_mapping(
    kind: PhaseKind,
    members: Sequence[Analysed],
    analysis: Analysis,
    width: int,
    options: Options,
    traits: GraphTraits,
) -> Mapping:
    """Choose the mapping of a phase.

    Raises
    ------
    PlanError
        If the schedule asked for cannot run these functions.
    """
    if kind.intersects:
        given = options.target == "cuda", traits.typical_degree, traits.has_hubs
        return rows_intersected(options.schedule, *given)
    if options.target == "cpu":
        loops = width > MOST_COPIES
        mapping = Mapping(1, 1 if loops else width, 1, loops, "cpu")
        return _asked_of_threads(mapping, kind, members, width, options)
    size = analysis.real.itemsize
    whole = _whole_piece(width, PIECE_BYTES // size)
    products = None if kind.pushes else products_of(members, width, options, whole)
    if kind.reduces and any(map(is_matrix, members)):
        return _of_all_vertices(products, width, size)
    work = _work_of(kind, members, width, size, products, options, traits)
    asked = SCHEDULES.get(options.schedule)
    if asked is None:
        free = (schedule for schedule in SCHEDULES.values() if schedule.is_asked_for)
        asked = min(free, key=lambda schedule: schedule.cost(work))
    matrices = work.matrices
    if not options.feature_parallel or asked.shares_features is False:
        if width > MOST_COPIES:
            return Mapping(1, 1, 1, True, "thread")
        piece, stride = piece_of(width, size), row_stride(width)
        mapping = Mapping(1, width, 1, False, "thread", vector_width=piece)
        mapping = replace(mapping, stride=stride)
        together = _edges_together(kind, members, analysis, width, traits)
        several = _vertices_together(kind, members, width)
        mapping = replace(mapping, unroll=together, vertices=several)
        resident = _resident(kind, members, mapping, width, size, traits)
        mapping = replace(mapping, resident=resident)
        mapping = _asked_of_threads(mapping, kind, members, width, options)
        return _forced(mapping, width, options)
    narrow = matrices or _reads_matrices(members, analysis)
    piece = 1 if narrow else piece_of(width, size)
    if _multiplies(members) and width > MOST_MULTIPLIED:
        piece = _whole_piece(width, piece)
    lanes, copies = share_features(width, piece)
    if width <= MOST_MULTIPLIED and not narrow and _multiplies(members):
        lanes, copies = 1, width
    shared = _fits_shared(matrices, width, lanes, size)
    columns = kind.pulls and shared and width <= MOST_ROWS
    in_memory = matrices and not columns
    alone = in_memory or kind.reduces or _combined_by_function(members) != ""
    at_a_time = 1 if alone else edges_at_a_time(lanes, work)
    hubs = traits.has_hubs and not in_memory and _sweeps_edges(kind, members)
    mapping = Mapping(
        lanes, copies, lanes * at_a_time, False, "lanes", hubs, shared, piece,
        row_stride(width),
    )  # fmt: skip
    if columns and any(f.kind.gathers and is_matrix(f) for f in members):
        piece = piece_of(width, size)
        mapping = replace(mapping, column_width=piece, hub_resident=2)
    mapping = replace(mapping, vertices=_vertices_together(kind, members, width))
    joins = kind.pulls and _joins(members, analysis, options)
    mapping = replace(mapping, in_parts=hubs and joins and traits.has_giant)
    work = replace(work, leaves_matrices=bool(in_memory), joins=joins)
    mapping = asked.choose(mapping, work, dict(options.of_schedule))
    if not in_memory and _meets_in_a_warp(kind, members, mapping):
        mapping = _of_a_warp(mapping, traits)
    resident = _resident(kind, members, mapping, width, size, traits)
    of_hubs = _hub_resident(mapping, resident)
    mapping = replace(mapping, resident=resident, hub_resident=of_hubs)
    return _forced(mapping, width, options)


def _work_of(
    kind: PhaseKind,
    members: Sequence[Analysed],
    width: int,
    size: int,
    products: Products | None,
    options: Options,
    traits: GraphTraits,
) -> Work:
    """Return what schedules ask of a phase before one takes it."""
    has_keys = any(f.kind.gathers and combine_of(f).is_arg for f in members)
    return Work(
        kind.from_sources, width, _sweeps_edges(kind, members), traits.has_hubs,
        custom=_combined_by_function(members) if kind.pulls else "", size=size,
        products=products, matrices=_needs_matrices(members), pulls=kind.pulls,
        is_plain=_gathers_plainly(members, keys=has_keys), has_keys=has_keys,
        ends_early=any(map(_ends_early, members)),
        meets_at_edges=_meet_at_edges(members), multiplies=_multiplies(members),
        keeps_state=options.asynchronous or options.incremental is not None,
        forced=frozenset(name for name, _ in options.mapping),
        typical_degree=traits.typical_degree, rows_of_longest=traits.rows_of_longest,
    )  # fmt: skip


def _asked_of_threads(
    mapping: Mapping,
    kind: PhaseKind,
    members: Sequence[Analysed],
    width: int,
    options: Options,
) -> Mapping:
    """Return how the schedule that is asked for maps what threads have alone."""
    asked = SCHEDULES.get(options.schedule)
    if asked is None or options.target not in asked.targets:
        return mapping
    if asked.shares_features and options.target == "cuda":
        return mapping  # lanes share nothing here
    work = Work(kind.from_sources, width, _sweeps_edges(kind, members))
    return asked.choose(mapping, work, dict(options.of_schedule))


def _of_all_vertices(products: Products | None, width: int, size: int) -> Mapping:
    """Choose how blocks share a sum of matrices over all vertices."""
    mapping = None
    if products is not None:
        mapping = ShareTileSchedule.mapping(width, size, products)
    if mapping is None:
        return Mapping(1, 1, 1, False, "elements")
    return replace(mapping, stride=row_stride(width))


def map_over_words(
    mapping: Mapping, members: Sequence[Analysed], width: int, options: Options
) -> Mapping:
    """Return how lanes share a word of vertices, whose sum is a leaf of a tree."""
    if options.target == "cpu":
        return replace(mapping, block=0)
    if any(map(is_matrix, members)):
        return Mapping(1, 1, 1, False, "word_elements")
    lanes, copies = mapping.lanes_per_edge, mapping.features_per_lane
    if mapping.is_looped:
        lanes, copies = share_features(width, 1)
    return replace(
        mapping, lanes_per_edge=lanes, features_per_lane=copies, is_looped=False,
        lanes_per_vertex=lanes, schedule="words", block=0, unroll=1, vertices=1,
        resident=0,
    )  # fmt: skip


def _gathers_plainly(members: Sequence[Analysed], *, keys: bool = False) -> bool:
    """Whether all edges are gone through for one number, by its own operation.

    With `keys`, a key and its source count as one.
    """
    gathers = [f for f in members if f.kind.gathers]
    if len(gathers) != 1 or any(f.kind.writes_edges for f in members):
        return False
    [gather] = gathers
    combine = combine_of(gather)
    special = not combine.rules.shuffle or combine.rules.final is not None
    special = special or (combine.is_arg and not keys)
    return not (special or _ends_early(gather) or _needs_matrices(members))


def _joins(members: Sequence[Analysed], analysis: Analysis, options: Options) -> bool:
    """Whether what parts of a row come to can be put together behind all of them.

    All gathers come first, and go through the row once; whatever else runs is behind
    them. Nothing is to be known of an edge but what it contributes.
    """
    gathers = [f for f in members if f.kind.gathers]
    if options.asynchronous or options.incremental is not None or not gathers:
        return False
    if not all(f.kind.gathers for f in members[: len(gathers)]):
        return False
    if any(f.kind.writes_edges for f in members):
        return False
    filled = {f.into for f in gathers}
    for function in gathers:
        rules = combine_of(function).rules
        special = not rules.shuffle or rules.is_arg
        if special or rules.final is not None or rules.gives == "bool":
            return False
        if _ends_early(function) or takes_active(function):
            return False
        if filled & set(temporaries_of(function, analysis)):
            return False
    return True


def _fits_shared(matrices: int, width: int, lanes: int, size: int) -> bool:
    """Whether matrices of all groups of lanes of a block fit shared memory."""
    groups = BLOCK_THREADS // lanes
    needed = groups * matrices * width * (2 * width + 1) * size
    return 0 < needed <= SHARED_BYTES


def piece_of(width: int, size: int) -> int:
    """Return how many features a lane loads at once: what a row is padded to."""
    return _whole_piece(row_stride(width), PIECE_BYTES // size)


def _whole_piece(width: int, most: int) -> int:
    """Return how many features, `most` or a half of it or less, divide the width."""
    piece = most
    while width % piece:
        piece //= 2
    return piece


def _forced(mapping: Mapping, width: int, options: Options) -> Mapping:
    """Return the mapping with what a bench has asked for instead."""
    forced: dict[str, Any] = dict(options.mapping)
    if not forced:
        return mapping
    mapping = replace(mapping, **forced)
    fits = (
        mapping.lanes_per_edge * mapping.features_per_lane >= width
        and mapping.stride % mapping.vector_width == 0
        and (
            mapping.lanes_per_edge == 1
            or mapping.features_per_lane % mapping.vector_width == 0
        )
        and mapping.lanes_per_vertex % mapping.lanes_per_edge == 0
        and WARP % mapping.lanes_per_vertex == 0
        and (mapping.schedule != "thread" or mapping.lanes_per_vertex == 1)
    )
    if not fits:
        raise PlanError(
            "a mapping that does not fit", where="_mapping=", got=str(forced)
        )
    return mapping


def _reads_matrices(members: Sequence[Analysed], analysis: Analysis) -> bool:
    """Whether a k x k matrix of a vertex or edge is read, element by element.

    Lanes that take neighboring features read neighboring elements; those that take
    several would read apart.
    """
    types = [analysis.signature.get(a.name) for f in members for a in f.accesses]
    return any(
        type_ is not None
        and type_.kind.value in {"vertex", "edge"}
        and len(type_.item_shape) == 2
        for type_ in types
    )


def _multiplies(members: Sequence[Analysed]) -> bool:
    """Whether a matrix is multiplied by something along the edges."""
    along = [f for f in members if f.kind.along_edges]
    return any(OPERATIONS[name].multiplies for f in along for name in f.operations)


def _sweeps_edges(kind: PhaseKind, members: Sequence[Analysed]) -> bool:
    return kind.from_sources or any(f.kind.gathers for f in members)


def _combined_by_function(members: Sequence[Analysed]) -> str:
    """Return a gather whose combine has no reduction by shuffles."""
    gathers = (f for f in members if f.kind.gathers)
    found = (f for f in gathers if not combine_of(f).rules.shuffle)
    return next((f.name for f in found), "")


def _meet_at_edges(members: Sequence[Analysed]) -> bool:
    """Whether functions along edges have shuffles, where lanes share features."""
    return any(f.collective and f.kind.along_edges for f in members)


def _meets_in_a_warp(
    kind: PhaseKind, members: Sequence[Analysed], mapping: Mapping
) -> bool:
    """Whether a warp has a vertex, and lanes meet at each edge that it gathers from."""
    edges = any(f.kind.writes_edges for f in members)
    whole = mapping.lanes_per_vertex == WARP and mapping.lanes_per_edge > 1
    alone = mapping.schedule in {"lanes", "virtual_warp"}
    return kind.pulls and whole and alone and not edges and _meet_at_edges(members)


def _of_a_warp(mapping: Mapping, traits: GraphTraits) -> Mapping:
    """Return the mapping of a warp that goes through a row in rounds.

    It takes few edges in each, so that a row is long for it before it is a hub's.
    Warps need nothing of each other, and have rows of different lengths: one that is
    done makes room for the next one.
    """
    mapping = replace(
        mapping, unroll=ROUNDS_TOGETHER, threads=WARP,
        hub_threads=ROUND_THREADS, hub_resident=ROUND_BLOCKS,
    )  # fmt: skip
    if not traits.long_rows:
        return mapping
    return replace(mapping, hubs=True, hub_degree=ROUND_EDGES)


def _ends_early(function: Analysed) -> bool:
    """Whether a gather is likely to be done long before its last edge."""
    declared: Any = function.declared
    return function.kind.gathers and bool(declared.first)


def _edges_together(
    kind: PhaseKind,
    members: Sequence[Analysed],
    analysis: Analysis,
    width: int,
    traits: GraphTraits,
) -> int:
    """Return how many edges one thread takes at a time."""
    if not kind.pulls:
        return 1
    if any(f.kind.writes_edges for f in members):
        size = analysis.real.itemsize
        return 2 if width * size <= PAIRED_BYTES else 1
    types = [
        analysis.signature.get(a.name)
        for f in members
        if f.kind.gathers
        for a in f.accesses
    ]
    has_rows = any(
        t is not None and t.kind.value == "edge" and t.item_shape == (width,)
        for t in types
    )
    few = 1 < width <= MOST_ROWS_TOGETHER
    return ROWS_TOGETHER if has_rows and few and traits.has_hubs else 1


def _vertices_together(kind: PhaseKind, members: Sequence[Analysed], width: int) -> int:
    """Return how many vertices a lane takes at a time where all are reduced over."""
    if not kind.reduces or any(f.operations for f in members):
        return 1  # lanes that meet take each vertex together
    return max(REDUCED_TOGETHER // width, 1)


def _resident(
    kind: PhaseKind,
    members: Sequence[Analysed],
    mapping: Mapping,
    width: int,
    size: int,
    traits: GraphTraits,
) -> int:
    """Return how many blocks must fit a multiprocessor; 0 to leave that open.

    Without a number the linker aims at as many threads as can be, 32 registers each;
    with one, a loop has more loads on the way. That pays where vertices go through many
    edges.
    """
    plain = kind.pulls and _gathers_plainly(members)
    if plain and mapping.window and width * size <= SCALAR_BYTES:
        return WINDOW_BLOCKS
    if mapping.tile:
        return TILED_BLOCKS if size == 4 and mapping.lanes_per_vertex <= 256 else 0
    if not kind.pulls or traits.typical_degree < LEAST_LOOPED:
        return 0
    multiplies, alone = _multiplies(members), mapping.lanes_per_vertex == 1
    if alone:
        is_wide = mapping.features_per_lane * size >= PIECE_BYTES or multiplies
        pays = is_wide and (traits.has_hubs or not _needs_matrices(members))
    else:
        several = traits.typical_degree >= LEAST_SHARED and mapping.lanes_per_edge > 1
        is_wide = width * size >= PIECE_BYTES
        pays = is_wide and (traits.has_hubs or several) and not multiplies
    rows = [f for f in members if f.kind.gathers and not f.is_scalar]
    if not (rows and pays):
        return 0
    # Where edges are found through a list of them, registers go into that, too; and a
    # double takes two.
    summed = sum(1 + (declared_along(f) == "both") for f in rows)
    if alone and multiplies:  # what is multiplied stands in registers, too
        summed *= 2
    taken = max(summed * mapping.features_per_lane * size, PIECE_BYTES)
    blocks = RESIDENT_BYTES * 4 // (taken * size)
    return max(blocks // 2 if mapping.column_width else blocks, 1)


def _hub_resident(mapping: Mapping, resident: int) -> int:
    """Return how many blocks of hubs must fit a multiprocessor; 0 to leave that open.

    `resident` is how many other blocks must. Where many edges of a hub are on the way,
    more of its blocks are worth as much as registers (docs/design/0021); and where a
    lane has so many features that one block alone would fit, the linker leaves it 64 by
    itself.
    """
    if mapping.hub_resident or not mapping.hubs:
        return mapping.hub_resident
    blocks = resident * BLOCK_THREADS // HUB_THREADS
    few = mapping.lanes_per_edge >= FEW_HUB_EDGES_LANES
    return blocks if few and blocks > 1 else 0


def _needs_matrices(members: Sequence[Analysed]) -> int:
    """Return how many k x k areas the functions of a phase need."""
    count = sum(is_matrix(f) for f in members)
    for function in members:
        count += sum(OPERATIONS[name].takes_area for name in function.operations)
    return count
