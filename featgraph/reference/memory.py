"""The values of a running superstep."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import UserFunctionError
from featgraph.program.signature import PropertyKind, PropertyType
from featgraph.reference.facts import Facts
from featgraph.reference.numbers import as_number, round_to
from featgraph.reference.team import Place
from featgraph.reference.topology import Topology

__all__ = ["DEGREE", "Memory"]

#: The type of ``in_degree`` and ``out_degree``.
DEGREE = PropertyType(PropertyKind.VERTEX, "int32")


class Memory:
    """All values by *buffer*: ``"x"``, ``"x_next"``, temporaries and degrees.

    Attributes
    ----------
    buffers : dict
        Name -> array, or a Python number for scalars.
    types : dict
        Buffer -> type.
    filled : dict
        Temporary -> mask of shape (V,) of the vertices that have gathered it.
    """

    def __init__(
        self,
        facts: Facts,
        topology: Topology,
        values: dict[str, Any],
        types: dict[str, PropertyType],
        superstep: int,
    ) -> None:
        self.facts = facts
        self.topology = topology
        self.buffers: dict[str, Any] = {}
        self.types: dict[str, PropertyType] = {}
        self.filled: dict[str, npt.NDArray[np.bool_]] = {}
        self.scalars: dict[str, Any] = {}
        self.numbers = {
            "superstep": superstep,
            "vertex_count": topology.vertex_count,
            "living_count": int(topology.living.sum()),
            "edge_count": len(topology.rows),
        }
        for name, type_ in types.items():
            self.put(name, type_, values[name])
        for name in facts.temporaries:
            type_ = facts.names[name]
            shape = (topology.vertex_count, *type_.item_shape)
            # Not rounded: a temporary need not exist in memory (S5).
            dtype = np.float64 if type_.is_real else type_.dtype
            self.put(name, type_, np.zeros(shape, dtype))
            self.filled[name] = np.zeros(topology.vertex_count, np.bool_)
        in_degree = [len(rows) for rows in topology.in_rows]
        self.put("in_degree", DEGREE, np.array(in_degree, np.int32))
        self.put("out_degree", DEGREE, np.array(topology.out_degree, np.int32))

    def put(self, name: str, type_: PropertyType, values: Any) -> None:
        """Add a property; an iterated one gets a ``_next`` that equals it (S1)."""
        self.types[name] = type_
        if type_.kind is PropertyKind.SCALAR:
            self.scalars[name] = values
            dtype = self.facts.real if type_.dtype == "real" else type_.dtype
            self.buffers[name] = as_number(round_to(dtype, values))
            return
        array = np.array(values)
        if type_.kind is PropertyKind.EDGE and not self.topology.directed:
            for row in range(self.topology.given):
                loop = self.topology.source[row] == self.topology.target[row]
                if loop and not type_.shared:  # a self-loop is its own twin: one entry
                    array[self.topology.given + row] = array[row]
        self.buffers[name] = array
        if type_.iterated:
            self.types[f"{name}_next"] = type_
            self.buffers[f"{name}_next"] = array.copy()

    def given(self, name: str) -> Any:
        """Return a property in its given form."""
        return self.scalars.get(name, self.buffers[name])

    def place(self, buffer: str, index: Any) -> Place:
        """Return the place of ``d.buffer[index]``, which may be a whole row."""
        given = index if isinstance(index, tuple) else (index,)
        type_, array = self.types[buffer], self.buffers[buffer]
        try:
            indices = [operator.index(i) for i in given]
        except TypeError as error:
            raise UserFunctionError(
                "an index must be an integer", got=given, fix="use int(...)"
            ) from error
        if type_.kind is PropertyKind.EDGE and type_.shared and indices:
            indices[0] %= self.topology.given
        bounds = array.shape
        if len(indices) > len(bounds) or any(
            not 0 <= i < n for i, n in zip(indices, bounds, strict=False)
        ):
            raise UserFunctionError(
                "index out of range",
                got=f"d.{buffer}[{', '.join(map(str, indices))}]",
                expected=f"an index into {type_.describe()} of shape {bounds}",
            )
        return buffer, tuple(indices)

    def load(self, place: Place) -> Any:
        """Return an entry as a number."""
        buffer, indices = place
        return as_number(self.buffers[buffer][indices])

    def round(self, place: Place, value: Any) -> Any:
        """Return `value` as it will be stored at `place`."""
        dtype = self.types[place[0]].dtype
        if not self.types[place[0]].is_real and isinstance(value, float | np.floating):
            raise UserFunctionError(
                f"a real number is stored in the {dtype} property {place[0]!r}",
                got=value,
                fix="convert it: int(...) or a comparison",
            )
        return round_to(dtype, value)

    def store(self, place: Place, value: Any) -> None:
        """Write an entry."""
        buffer, indices = place
        self.buffers[buffer][indices] = value
