"""Runs of a triangle function, one triangle after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.program.functions import EdgeFunction, TriangleFunction, VertexFunction
from featgraph.program.program import Program
from featgraph.program.signature import PropertyKind
from featgraph.reference.memory import Memory
from featgraph.reference.numbers import Integer
from featgraph.reference.sweep import Sweep
from featgraph.reference.topology import Topology

__all__ = ["run_triangle"]

Mask = npt.NDArray[np.bool_]


class Running(Protocol):
    """The interface of the running superstep."""

    program: Program
    topology: Topology
    memory: Memory
    active: Mask
    passed: Mask
    edges_passed: set[int]


def run_triangle(
    superstep: Running,
    number: int,
    function: TriangleFunction,
    plain: Callable[..., Any],
) -> None:
    """Run a function on the triangles of S4; it has no result."""
    # No property has kind SCALAR: a triangle function writes nothing of its own.
    sweep = Sweep(superstep.memory, function, 1, PropertyKind.SCALAR)

    def call(vertices: tuple[int, ...], rows: tuple[int, ...]) -> bool:
        if plain(*map(Integer, (*vertices, *rows)), sweep.data) is not None:
            raise function.source.error(
                "this function decides nothing and returns nothing",
                fix="write `return` alone, or leave it out",
            )
        return True

    for vertices, rows in superstep.topology.triangles():
        if _is_within(superstep, function, rows) and _is_met(
            superstep, number, vertices, rows
        ):
            sweep.run(-1, -1, lambda _, v=vertices, r=rows: call(v, r))


def _is_within(
    superstep: Running, function: TriangleFunction, rows: tuple[int, ...]
) -> bool:
    """Whether all edges have the property that `within` names, in both directions."""
    if function.within is None:
        return True
    memory, twin = superstep.memory, superstep.topology.twin
    places = [
        memory.place(function.within, r) for row in rows for r in (row, twin(row))
    ]
    return all(memory.load(place) != 0 for place in places)


def _is_met(
    superstep: Running, number: int, vertices: tuple[int, ...], rows: tuple[int, ...]
) -> bool:
    """Whether an edge passed, a vertex passed, or a vertex is active (S4)."""
    before = superstep.program.functions[:number]
    if any(isinstance(f, EdgeFunction) for f in before):
        twins = [superstep.topology.twin(row) for row in rows]
        return not superstep.edges_passed.isdisjoint({*rows, *twins})
    behind_vertex = any(isinstance(f, VertexFunction) for f in before)
    mask = superstep.passed if behind_vertex else superstep.active
    return bool(mask[list(vertices)].any())
