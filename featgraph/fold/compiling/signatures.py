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


#: Arguments that are flags; that are numbers.
_FLAGS = ("all_sources", "all_active", "some_due")
_NUMBERS = ("vertex_count", "hub_degree", "together", "part_count", "conflicts")
#: Dtype -> arrays of one axis; "offset" is the type of edge ids and offsets.
_ARRAYS = {
    "uint8": "edge_state",
    "uint32": "allowed due passed sources swept targets active active_sources "
    "changed_sources stale changed_edges triangle_begins triangle_middles",
    "int32": "in_sources out_targets incident_neighbors hubs listed share_rows "
    "share_count windows hub_parts joined_parts order_vertex degree_order upper_orders "
    "lower_orders both_orders passed_edges passed_count turn_counts locks stalled",
    "int64": "chunks arrived",
    "offset": "in_offsets out_offsets out_edges share_begins incident_offsets "
    "incident_edges edge_twin deferred upper_offsets upper_edges upper_positions "
    "lower_offsets lower_edges lower_positions both_offsets both_edges both_positions",
}
#: Arrays of the rows of graphs that change, behind "in_run_", "out_run_" and so on.
_OF_RUNS = {"int32": ("ends",), "uint32": ("ids",), "offset": ("starts", "stops")}
for _dtype, _names in _OF_RUNS.items():
    for _along in ("in", "out", "incident"):
        _ARRAYS[_dtype] += "".join(f" {_along}_run_{name}" for name in _names)


def entry_signature(
    source: KernelSource, entry: Entry, module: ModuleType
) -> tuple[Any, ...]:
    """Return the types of the arguments of an entry, in order."""
    offset = "int64" if source.plan.traits.wide_offsets else "int32"
    fields = [_field_type(field, offset) for field in source.fields]
    type_of: dict[str, Any] = {
        "d": _namedtuple(fields, module.Data),
        **dict.fromkeys(_FLAGS, types.boolean),
    }
    type_of |= dict.fromkeys(_NUMBERS, types.int64)
    for dtype, names in _ARRAYS.items():
        array = _array(dtype.replace("offset", offset), 1)
        type_of |= dict.fromkeys(names.split(), array)
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
