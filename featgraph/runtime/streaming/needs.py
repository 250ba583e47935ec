"""Bytes that a kernel needs on a GPU, and division of the rest into buffers.

`needs_of` counts the bytes of a kernel's arrays, by use: those that stay on the GPU,
and arrays of edges, which may be streamed. `buffers_in` divides the memory that remains
into buffers for slices of edges. `explain_limit` describes both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from featgraph.base.dataclass import dataclass
from featgraph.base.padding import stored_shape
from featgraph.cuda.values import Reordered, offset_dtype
from featgraph.fold.plan.traits import REVERSED, rows_along
from featgraph.fold.printing.module import KernelSource
from featgraph.program.signature import PropertyKind, PropertyType

__all__ = [
    "ALIGNED",
    "MOVING",
    "Needs",
    "buffers_in",
    "explain_limit",
    "is_of_edges",
    "least_room",
    "needs_of",
    "rounded",
    "shared_use",
    "shown",
    "use_of",
]

#: Alignment of the parts of a buffer, in bytes, as for arrays of the driver.
ALIGNED = 256
#: Least and most bytes of a buffer. A copy of the largest takes 5 ms at 55 GB/s, some
#: hundred times as long as the launch of its sweep; a slice smaller than the least is
#: not worth a launch. Both are assumed, not measured.
LEAST_BUFFER, MOST_BUFFER = 1 << 20, 1 << 28
#: Most buffers.
MOST_BUFFERS = 256
#: Number of buffers that are filled again and again, in turns; each other buffer keeps
#: the first slice that it receives.
MOVING = 2
#: One part in this many of the remaining memory is left for later States.
_LEFT = 16


def least_room() -> int:
    """Return the least number of bytes that all buffers take together."""
    return (MOVING + 1) * LEAST_BUFFER


def buffers_in(room: int) -> tuple[int, int]:
    """Return the bytes of a buffer, and the number of buffers, in `room` bytes.

    The memory of one more buffer is left for the list of the vertices of a slice.
    """
    left = max(room - room // _LEFT, min(room, least_room()))
    size = rounded(max(min(MOST_BUFFER, left // (MOVING + 1)), LEAST_BUFFER))
    return size, min(max(left // size - 1, MOVING), MOST_BUFFERS)


def rounded(size: int) -> int:
    """Round a number of bytes down to the alignment."""
    return size // ALIGNED * ALIGNED


def shown(size: int) -> str:
    """Return a number of bytes with its unit."""
    for unit, each in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size >= each:
            return f"{size / each:.3g} {unit}"
    return f"{size} bytes"


#: Number of vertex sets that are assumed to exist at a time.
_SETS = 16
#: Names, in generated code, of arrays of edges that are not arrays of rows.
_OF_EDGES = frozenset({"edge_twin", "edge_is_twin"})
#: Ends of the names of edge arrays of the oriented graph.
_ORIENTED = ("_orders", "_edges", "_positions")


@dataclass(frozen=True)
class Needs:
    """Bytes that a kernel needs on a GPU, by use.

    Attributes
    ----------
    stays : dict of str to int
        Use -> bytes of arrays that are always on the GPU: values of vertices, offsets
        of rows, sets.
    edges : dict of str to int
        Use -> bytes of arrays of edges: those of the graph, and properties.
    """

    stays: dict[str, int]
    edges: dict[str, int]


def is_of_edges(name: str) -> bool:
    """Whether an array of a graph has an entry for each edge."""
    if name in _OF_EDGES:
        return True
    for along in REVERSED:
        rows = rows_along(along)
        if name in {rows.ends, rows.edges}:
            return True
    oriented = name.startswith(("upper_", "lower_", "both_"))
    return oriented and name.endswith(_ORIENTED)


def needs_of(
    source: KernelSource, types: Mapping[str, PropertyType], graph: Any
) -> Needs:
    """Return the bytes that a kernel needs for a State on a graph.

    Parameters
    ----------
    source : KernelSource
    types : mapping of str to PropertyType
        Types of the State's properties.
    graph : Graph
        The part of the graph that this process has.
    """
    vertices, edges = graph.vertex_count, graph.edge_count
    offset = np.dtype(offset_dtype(edges)).itemsize
    stays = {"sets": _SETS * (-(-vertices // 32)) * 4}
    streams: dict[str, int] = {}
    for field in source.fields:
        if field.source in {"property", "next"}:
            type_ = types[field.of]
            of_edges = type_.kind is PropertyKind.EDGE
            count = edges if of_edges else vertices
            size = _bytes(count, type_.item_shape, type_.dtype)
            (streams if of_edges else stays)[use_of(field.name)] = size
        elif field.source in {"temporary", "incremental"}:
            shape = source.plan.item_shape(field.of)
            stays[use_of(field.name)] = _bytes(vertices, shape, field.dtype)
        elif is_of_edges(field.name):
            streams[field.name] = edges * (offset if field.name == "edge_twin" else 1)
        elif field.source == "builtin" and field.rank:
            stays[field.name] = 4 * vertices
    for entry in source.entries:
        for argument in source.arguments_of(entry):
            if argument.kind == "graph":
                _add_graph_array(argument.array, stays, streams, graph)
    if source.plan.has_edge_state:
        streams[use_of("edge_state")] = edges
    if any(phase.changed_only for phase in source.plan.phases):
        stays["changed edges"] = -(-edges // 32) * 4 + 4 * edges
    return Needs(stays, streams)


def use_of(name: str) -> str:
    """Return the use of the memory of a field of `d`."""
    return f"d.{name}"


def _bytes(count: int, item_shape: tuple[int, ...], dtype: str) -> int:
    """Return the bytes of `count` entries of a property, with padding."""
    shape = stored_shape((count, *item_shape), dtype)
    return math.prod(shape) * np.dtype(dtype).itemsize


def _add_graph_array(
    name: str, stays: dict[str, int], streams: dict[str, int], graph: Any
) -> None:
    """Add an array of edges or of offsets to the needs; others are not counted."""
    edges = graph.edge_count
    offset = np.dtype(offset_dtype(edges)).itemsize
    if is_of_edges(name):
        several = 2 if name.startswith("incident") else 1
        wide = name.endswith(("_edges", "_twin"))
        streams[name] = several * edges * (offset if wide else 4)
    elif name.endswith("_offsets"):
        stays[name] = offset * (graph.vertex_count + 1)


def shared_use(values: Reordered) -> str:
    """Return the use of an array of edge values that all States share."""
    return f"shared {id(values.array)}"


def explain_limit(
    source: KernelSource, types: Mapping[str, PropertyType], graph: Any, limit: int
) -> str:
    """Describe in text which arrays of a kernel a memory limit leaves on the GPU."""
    needs = needs_of(source, types, graph)
    stays, edges = sum(needs.stays.values()), sum(needs.edges.values())
    lines = [
        f"memory limit: {shown(limit)}",
        f"  stays on the GPU: {shown(stays)}: values of vertices, offsets, sets",
    ]
    if stays + edges <= limit:
        return "\n".join([*lines, f"  edges: {shown(edges)} more, which fit"])
    offsets = sum(name.endswith("_offsets") for name in needs.stays)
    room = limit - stays - 4 * (graph.vertex_count + 1) * offsets
    names = ", ".join(sorted(needs.edges))
    lines.append(f"  edges: {shown(edges)} in the host's memory: {names}")
    if room < least_room():
        lines.append(f"  does not run: {shown(least_room() - room)} are missing")
        return "\n".join(lines)
    size, count = buffers_in(room)
    keeping = f", {count - MOVING} of which keep a slice" if count > MOVING else ""
    copied = max(edges - (count - MOVING) * size, 0)
    lines.append(
        f"  streamed: at most {shown(copied)} a superstep, through {count} buffers of "
        f"{shown(size)}{keeping}; read in place where few rows are due"
    )
    return "\n".join(lines)
