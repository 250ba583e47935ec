"""How many blocks must fit a multiprocessor, which bounds the registers of a thread."""

from __future__ import annotations

from featgraph.base.dataclass import replace
from featgraph.fold.schedules.mapping import (
    BLOCK_THREADS,
    HUB_THREADS,
    PIECE_BYTES,
    Mapping,
    Work,
)

__all__ = ["bounded", "resident_blocks"]

#: Bytes that a lane gathers into, of all blocks that the compiler must let fit a
#: multiprocessor together: at 16 bytes a lane 8 blocks, 64 registers. A superstep over
#: all vertices, K = 4, with and without: multi-manifold ranking 66 and 81 us (a thread
#: a vertex, Delaunay graph), 7.1 and 17.5 ms (kron-19), 105 and 171 us (lanes, links of
#: the web). A thread that multiplies holds more, and is bound to 4 blocks: belief
#: propagation 136 and 182 us (Delaunay); 148 with 8. Lanes that multiply took up to 1.1
#: times longer, as did all on a road-like graph, whose typical degree is 2 (NVIDIA
#: H200).
RESIDENT_BYTES = 128
#: The least typical degree for that.
LEAST_LOOPED = 4
#: The same where lanes share the features of an edge, too, and there are no hubs: 55
#: against 75 us on a network of authors (typical degree 16, label propagation, K = 16),
#: but 152 against 117 on a Delaunay graph (4).
LEAST_SHARED = 16
#: Where so many lanes share the features of an edge, few edges of a hub go side by
#: side, and threads of its block are to have the registers that those of other blocks
#: have. Without a bound the linker leaves them 32, with which each load of a row waits
#: for the one before: hubs of rmat-21-16 took 3.7 ms for 1.5 at K = 128, and all other
#: vertices 3.2 ms (NVIDIA H100, docs/design/0040).
FEW_HUB_EDGES_LANES = 16


def resident_blocks(mapping: Mapping, work: Work) -> int:
    """Return how many blocks must fit a multiprocessor; 0 for any number.

    Without a bound the linker aims at as many threads as can be, 32 registers each;
    with one, a loop has more loads on the way. That pays where vertices go through many
    edges.
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
    if is_alone and work.multiplies:  # what is multiplied stands in registers, too
        rows *= 2
    # A double takes two registers.
    taken = max(rows * mapping.features_per_lane * work.size, PIECE_BYTES)
    blocks = RESIDENT_BYTES * 4 // (taken * work.size)
    return max(blocks // 2 if mapping.column_width else blocks, 1)


def bounded(mapping: Mapping, resident: int) -> Mapping:
    """Return a mapping of which `resident` blocks must fit, and of hubs likewise.

    Where many edges of a hub are on the way, more of its blocks are worth as much as
    registers (docs/design/0021); and where a lane has so many features that one block
    alone would fit, the linker leaves it 64 by itself.
    """
    blocks, of_hubs = resident * BLOCK_THREADS // HUB_THREADS, mapping.hub_resident
    few = mapping.lanes_per_edge >= FEW_HUB_EDGES_LANES
    if mapping.hubs and not of_hubs:
        of_hubs = blocks if few and blocks > 1 else 0
    return replace(mapping, resident=resident, hub_resident=of_hubs)
