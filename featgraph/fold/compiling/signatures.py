"""Numba types of the arguments of kernels, to compile these without data.

`entry_signature` looks up each argument of an entry by its name. Arrays of vertices are
int32, sets of vertices or edges are uint32 words, and arrays of edge ids and offsets
are int32, or int64 in graphs with wide offsets.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numba import types
from numba.np.numpy_support import from_dtype

from featgraph.fold.analysis.gathers import partial_dtype
from featgraph.fold.printing.module import Entry, Field, KernelSource

__all__ = ["entry_signature", "own_types"]


def entry_signature(
    source: KernelSource, entry: Entry, module: ModuleType
) -> tuple[Any, ...]:
    """Return the types of the arguments of an entry, in order."""
    offset = "int64" if source.plan.traits.wide_offsets else "int32"
    data = _namedtuple([_field_type(f, offset) for f in source.fields], module.Data)
    type_of: dict[str, Any] = {
        "d": data,
        "vertex_count": types.int64,
        "hub_degree": types.int64,
        "together": types.int64,
        "part_count": types.int64,
        "edge_state": _array("uint8", 1),
        "all_sources": types.boolean,
        "all_active": types.boolean,
        "some_due": types.boolean,
    }
    words = ("allowed", "due", "passed", "sources", "swept", "targets")
    for name in (*words, "active", "active_sources", "changed_sources", "stale"):
        type_of[name] = _array("uint32", 1)
    for name in ("in_sources", "out_targets", "incident_neighbors", "hubs", "listed"):
        type_of[name] = _array("int32", 1)
    for name in ("share_rows", "share_count", "windows", "hub_parts", "joined_parts"):
        type_of[name] = _array("int32", 1)
    for name in ("in_offsets", "out_offsets", "out_edges", "share_begins"):
        type_of[name] = _array(offset, 1)
    for name in ("incident_offsets", "incident_edges"):
        type_of[name] = _array(offset, 1)
    for name in ("order_vertex", "degree_order"):
        type_of[name] = _array("int32", 1)
    for rows in ("upper", "lower", "both"):
        type_of[f"{rows}_orders"] = _array("int32", 1)
        for name in ("offsets", "edges", "positions"):
            type_of[f"{rows}_{name}"] = _array(offset, 1)
    type_of["edge_twin"] = _array(offset, 1)
    for name in ("changed_edges", "triangle_begins", "triangle_middles"):
        type_of[name] = _array("uint32", 1)
    type_of["passed_edges"] = type_of["passed_count"] = _array("int32", 1)
    type_of["chunks"] = type_of["arrived"] = _array("int64", 1)
    for name in ("turn_counts", "locks", "stalled"):
        type_of[name] = _array("int32", 1)
    type_of["deferred"], type_of["conflicts"] = _array(offset, 1), types.int64
    type_of |= own_types(entry, offset)
    reducing = source.plan.functions_of(source.plan.phases[entry.phase])[0]
    if reducing.kind.reduces:
        partial = partial_dtype(reducing, source.plan.real)
        reduced = "bool" if reducing.returns == "bool" else partial
        type_of["partials"], type_of["reduced"] = _array(partial, 2), _array(reduced, 1)
    if source.queue is not None:
        type_of["lists"], type_of["far_lists"] = _lists()
        for name, dtype, shape in source.queue.memory:
            type_of[name] = _array(dtype, len(shape) + 1)
    for name, (dtype, shape) in (entry.scratch | entry.parts).items():
        type_of[name] = _array(dtype, len(shape) + 1)
    return tuple(type_of[name] for name in entry.arguments)


def own_types(entry: Entry, offset: str = "int32") -> dict[str, Any]:
    """Return the types of the arguments that the schedule adds to an entry, by name.

    `offset` is the type of edge ids.
    """
    options = () if entry.schedule is None else entry.schedule.launched
    dtypes = {a.name: a.dtype.replace("offset", offset) for a in entry.arrays}
    arrays = {name: _array(dtype, 1) for name, dtype in dtypes.items() if dtype}
    return dict.fromkeys(options, types.int64) | arrays


def _lists() -> tuple[Any, Any]:
    """Return the types of the lists of active vertices, and of vertices that wait."""
    from featgraph.device.queue_cuda import Far, Lists

    kinds = {"active": "uint32", "left": "uint32", "words": "int64"}
    arrays = [_array(kinds.get(name, "int32"), 1) for name in Lists._fields]
    far = [_array("int32", 2), _array("int32", 1), _array("float64", 1)]
    return _namedtuple(arrays, Lists), _namedtuple(far, Far)


def _namedtuple(fields: list[Any], made: type[Any]) -> Any:
    """Return the Numba type of a namedtuple; equal field types give a uniform one."""
    return types.BaseTuple.from_types(fields, made)


def _array(dtype: str, rank: int) -> Any:
    return types.Array(from_dtype(np.dtype(dtype)), rank, "C")


def _field_type(field: Field, offset: str) -> Any:
    dtype = offset if field.dtype == "offset" else field.dtype
    if field.rank == 0:
        return from_dtype(np.dtype(dtype))
    return _array(dtype, field.rank)
