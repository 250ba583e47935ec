"""The choice of a phase's mapping by its schedules.

The mappings of lanes, threads, chunks and matrices are in the files of schedules, with
the constants that tune them: `map_lanes`, `map_threads`, `map_chunks` and
`map_matrices`. Their input is a `Work`, which is found here, with the matrices that a
phase sums along edges (`Products`).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from featgraph.base.dataclass import replace
from featgraph.base.errors import PlanError
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.gathers import (
    combine_of,
    declared_along,
    is_matrix,
    takes_active,
    temporaries_of,
)
from featgraph.fold.kinds.base import PhaseKind
from featgraph.fold.operations.table import OPERATIONS, primitive_of
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.traits import SUM_BLOCK, GraphTraits
from featgraph.fold.schedules.block_reduce import map_matrices
from featgraph.fold.schedules.cpu import map_chunks
from featgraph.fold.schedules.intersect_rows import rows_intersected
from featgraph.fold.schedules.lanes import map_lanes
from featgraph.fold.schedules.mapping import (
    PIECE_BYTES,
    WARP,
    Mapping,
    Products,
    Work,
    whole_piece,
)
from featgraph.fold.schedules.table import SCHEDULES
from featgraph.fold.schedules.thread import map_threads
from featgraph.fold.tree.expressions import Operate
from featgraph.program.signature import PropertyKind

__all__ = ["choose_mapping", "products_of"]


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
        If the schedule of the option cannot run these functions.
    """
    if kind.intersects:
        on_gpu = options.target == "cuda"
        of_graph = traits.typical_degree, traits.has_hubs
        return rows_intersected(options.schedule, on_gpu, *of_graph)
    asked, given = SCHEDULES.get(options.schedule), dict(options.of_schedule)
    if options.target == "cpu":
        mapping = map_chunks(width, in_loops=all(map(_chooses, members)))
        if asked is None or options.target not in asked.targets:
            return mapping
        work = Work(kind.from_sources, width, _sweeps_edges(kind, members))
        return asked.choose(mapping, work, given)
    work = _work_of(kind, members, analysis, width, options, traits)
    if work.reduces and work.sums_matrices:
        return map_matrices(work)
    if asked is None:
        free = (schedule for schedule in SCHEDULES.values() if schedule.is_selectable)
        asked = min(free, key=lambda schedule: schedule.cost(work))
    if options.feature_parallel and asked.shares_features is not False:
        mapping = asked.choose(map_lanes(work), work, given)
    else:
        mapping = map_threads(work)
        if not asked.shares_features:  # else lanes share nothing here
            mapping = asked.choose(mapping, work, given)
    if mapping.is_looped:
        return mapping
    mapping = SCHEDULES[mapping.schedule].tune(mapping, work)
    return _forced(mapping, width, options)


def _work_of(
    kind: PhaseKind,
    members: Sequence[Analysed],
    analysis: Analysis,
    width: int,
    options: Options,
    traits: GraphTraits,
) -> Work:
    """Return the facts of a phase by which schedules take it, or not (CUDA)."""
    gathers = [f for f in members if f.kind.gathers]
    size, items = analysis.real.itemsize, _items_of(members, analysis)
    whole = whole_piece(width, PIECE_BYTES // size)
    rows = [f for f in gathers if not f.is_scalar]
    return Work(
        kind.from_sources, width, _sweeps_edges(kind, members), traits.has_hubs,
        joins=kind.pulls and _joins(members, analysis, options),
        custom=next((f.name for f in gathers if not combine_of(f).rules.shuffle), ""),
        size=size,
        products=None if kind.pushes else products_of(members, width, options, whole),
        matrices=_needs_matrices(members), sums_matrices=any(map(is_matrix, members)),
        reads_matrices=any(len(shape) == 2 for _, shape in items),
        pulls=kind.pulls, reduces=kind.reduces,
        rows=sum(1 + (declared_along(f) == "both") for f in rows),
        reads_edge_rows=(PropertyKind.EDGE, (width,)) in _items_of(gathers, analysis),
        writes_edges=any(f.kind.writes_edges for f in members),
        is_plain=_is_plain(members),
        has_keys=any(combine_of(f).is_arg for f in gathers),
        ends_early=any(map(_ends_early, gathers)),
        operates=any(f.operations for f in members),
        meets_at_edges=any(f.collective and f.kind.along_edges for f in members),
        multiplies=_multiplies(members),
        keeps_state=options.asynchronous or options.incremental is not None,
        forced=frozenset(name for name, _ in options.mapping),
        long_row=SUM_BLOCK if traits.long_rows else 0, has_giant=traits.has_giant,
        typical_degree=traits.typical_degree, rows_of_longest=traits.rows_of_longest,
    )  # fmt: skip


def _is_plain(members: Sequence[Analysed]) -> bool:
    """Whether gathers yield one number each, or a key and its source."""
    gathers = [f for f in members if f.kind.gathers]
    if len(gathers) != 1 or any(f.kind.writes_edges for f in members):
        return False
    [gather] = gathers
    rules = combine_of(gather).rules
    special = not rules.shuffle or rules.final is not None
    return not (special or _ends_early(gather) or _needs_matrices(members))


def _joins(members: Sequence[Analysed], analysis: Analysis, options: Options) -> bool:
    """Whether the results of parts of a row can be combined behind all parts.

    All gathers come first and share one pass over the row; other functions run behind
    them. An edge has no other effect than its contribution.
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


def _forced(mapping: Mapping, width: int, options: Options) -> Mapping:
    """Return the mapping with the fields that a benchmark sets."""
    forced: dict[str, Any] = dict(options.mapping)
    if not forced:
        return mapping
    mapping = replace(mapping, **forced)
    shares = SCHEDULES[mapping.schedule].shares_features
    fits = (
        mapping.lanes_per_edge * mapping.features_per_lane >= width
        and mapping.stride % mapping.vector_width == 0
        and (
            mapping.lanes_per_edge == 1
            or mapping.features_per_lane % mapping.vector_width == 0
        )
        and mapping.lanes_per_vertex % mapping.lanes_per_edge == 0
        and WARP % mapping.lanes_per_vertex == 0
        and (mapping.lanes_per_vertex == 1 or shares is not False)
    )
    if not fits:
        raise PlanError(
            "a mapping that does not fit", where="_mapping=", got=str(forced)
        )
    return mapping


def _items_of(
    members: Sequence[Analysed], analysis: Analysis
) -> set[tuple[PropertyKind, tuple[int, ...]]]:
    """Return the kinds and item shapes of the properties that functions access."""
    names = {a.name for f in members for a in f.accesses}
    types = [t for name, t in analysis.signature.items() if name in names]
    of = (PropertyKind.VERTEX, PropertyKind.EDGE)
    return {(t.kind, t.item_shape) for t in types if t.kind in of}


def _chooses(function: Analysed) -> bool:
    """Whether a function of vertices compares features, and its bits are exact."""
    operations = [OPERATIONS[name] for name in function.operations]
    is_exact = all(operation.is_exact for operation in operations)
    compares = any(operation.compares for operation in operations)
    return function.kind.writes_vertices and compares and is_exact


def _multiplies(members: Sequence[Analysed]) -> bool:
    """Whether a matrix is multiplied by something along the edges."""
    return any(f.kind.along_edges and f.multiplies for f in members)


def _sweeps_edges(kind: PhaseKind, members: Sequence[Analysed]) -> bool:
    return kind.from_sources or any(f.kind.gathers for f in members)


def _ends_early(function: Analysed) -> bool:
    """Whether a gather is likely to be done long before its last edge."""
    declared: Any = function.declared
    return bool(declared.first)


def _needs_matrices(members: Sequence[Analysed]) -> int:
    """Return how many k x k areas the functions of a phase need."""
    count = sum(is_matrix(f) for f in members)
    for function in members:
        count += sum(OPERATIONS[name].takes_area for name in function.operations)
    return count


def products_of(
    members: Sequence[Analysed], width: int, options: Options, piece: int
) -> Products | None:
    """Return the matrices that a phase sums, along edges or over all vertices.

    None where there are none. A matrix of one element is a number.
    """
    gathers = [f for f in members if f.kind.combines and is_matrix(f)]
    if not gathers or width == 1:
        return None
    parts = [f.outer_product for f in gathers]
    calls = [n for f in members for s in f.body for n in _systems(s)]
    solves = [n for n in calls if not primitive_of(n).is_matrix]
    definite = [n for n in solves if n.constant("spd")]
    inverses = len(calls) - len(solves)
    columns = (len(solves) - len(definite)) * (width + 1) + inverses * 2 * width
    return Products(
        count=len(gathers),
        symmetric=all(p is not None and p.symmetric for p in parts),
        arrays=sum(2 - (p is not None and p.is_square) for p in parts),
        refused=_refused(members, gathers, options),
        solutions=len(definite),
        area_columns=columns,
        piece=piece,
    )


def _refused(
    members: Sequence[Analysed], gathers: Sequence[Analysed], options: Options
) -> str:
    """Return the reason against summing matrices in tiles; "" if there is none."""
    for function in gathers:
        if function.outer_product is None:
            return f"{function.name} contributes others"
        if function.collective:
            return f"{function.name} makes collaborative calls"
    if any(f.kind.writes_edges for f in members):
        return "edge functions run along the same edges"
    if options.incremental is not None:
        return "change_driven=True keeps what gathers have come to"
    looping = [f for f in members if any(map(_solves_in_loop, f.body))]
    if looping:
        return f"{looping[0].name} solves systems in a loop"
    return ""


def _solves_in_loop(statement: ast.stmt) -> bool:
    """Whether threads that do not write might leave a loop earlier than others."""
    loops = [n for n in ast.walk(statement) if isinstance(n, ast.For | ast.While)]
    return any(any(_systems(loop)) for loop in loops)


def _systems(node: ast.AST) -> list[Operate]:
    """Return the operations in `node` that need an area of memory."""
    calls = [n for n in ast.walk(node) if isinstance(n, Operate)]
    return [n for n in calls if primitive_of(n).takes_area]
