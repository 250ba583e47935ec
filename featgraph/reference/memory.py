"""The graph and the values of a running superstep.

`Topology` is the graph as a plain list of directed edges, in the given order. `Memory`
has the values of properties.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import UserFunctionError
from featgraph.graph import Graph
from featgraph.program.active import ActiveSet
from featgraph.program.signature import PropertyKind, PropertyType
from featgraph.reference.facts import Facts
from featgraph.reference.numbers import as_number, round_to
from featgraph.reference.team import Place

__all__ = ["DEGREE", "Memory", "Topology", "living_mask", "mask_of"]


def mask_of(given: Any, count: int, default: bool = True) -> npt.NDArray[np.bool_]:
    """Return a mask of shape (V,) of a set or vertices; `default` for None."""
    if given is None:
        return np.full(count, default)
    return given.mask if isinstance(given, ActiveSet) else ActiveSet(count, given).mask


def living_mask(graph: Graph) -> npt.NDArray[np.bool_]:
    """Return a mask of the vertices that are not dead, of shape (V,)."""
    living = graph.living
    return np.ones(graph.vertex_count, np.bool_) if living is None else living


@dataclass(frozen=True)
class Topology:
    """Directed edges by *row*: given edge i is row i, its twin row ``given + i`` (S10).

    A row is the argument `e` of user functions. A self-loop of an undirected graph is
    its own twin, so row ``given + i`` does not exist for it.

    Attributes
    ----------
    vertex_count, given : int
        V, and the number of given edges.
    directed : bool
        False if every edge has a twin.
    source, target : list of int
        Ends of each row.
    rows : list of int
        The rows that exist, ascending.
    in_rows, out_rows : list of list of int
        For each vertex, the rows of its in-edges and of its out-edges.
    out_degree : list of int
        Out-edges of each vertex.
    living : ndarray of bool
        Mask of vertices that are not dead.
    has_sides : bool
        Whether each edge leads from the first of two sides to the second.
    """

    vertex_count: int
    given: int
    directed: bool
    source: list[int]
    target: list[int]
    rows: list[int]
    in_rows: list[list[int]]
    out_rows: list[list[int]]
    out_degree: list[int]
    living: npt.NDArray[np.bool_]
    has_sides: bool

    @classmethod
    def of(cls, graph: Graph) -> Topology:
        """Read the given edges of `graph`."""
        source, target = graph.sources.tolist(), graph.targets.tolist()
        given = len(source)
        rows = list(range(given))
        if not graph.directed:
            rows += [given + i for i in range(given) if source[i] != target[i]]
            source, target = source + target, target + source
        in_rows: list[list[int]] = [[] for _ in range(graph.vertex_count)]
        out_rows: list[list[int]] = [[] for _ in range(graph.vertex_count)]
        for row in rows:
            in_rows[target[row]].append(row)
            out_rows[source[row]].append(row)
        return cls(
            graph.vertex_count,
            given,
            graph.directed,
            source,
            target,
            rows,
            in_rows,
            out_rows,
            [len(found) for found in out_rows],
            living_mask(graph),
            graph.sides is not None
            and len(graph.sides) == 2
            and graph.directed
            and all(u < graph.sides[0] for u in source)
            and all(v >= graph.sides[0] for v in target),
        )

    def gathered(self, v: int, along: str) -> list[tuple[int, int]]:
        """Return (row, u) of each edge that `v` gathers along, u at its other end.

        Each edge occurs once, although a self-loop is in both lists, and an undirected
        edge has two directions.
        """
        found = []
        if along in {"in", "both"}:
            found += [(row, self.source[row]) for row in self.in_rows[v]]
        if along == "out" or (along == "both" and self.directed):
            found += [
                (row, self.target[row])
                for row in self.out_rows[v]
                if along == "out" or self.target[row] != v
            ]
        return found

    def twin(self, row: int) -> int:
        """Return the row of the reverse edge."""
        self._check_twins("fg.reverse")
        if self.source[row] == self.target[row]:
            return row
        return (row + self.given) % (2 * self.given)

    def is_twin(self, row: int) -> bool:
        """Return whether a row is the twin of a given edge."""
        self._check_twins("fg.is_twin")
        return row >= self.given

    def _check_twins(self, where: str) -> None:
        if self.directed:
            raise UserFunctionError(
                "the edges of a directed graph have no twins",
                where=where,
                fix="make the graph with directed=False",
            )

    def triangles(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return the triangles: (u, v, w) and the rows of (u, v), (u, w), (v, w).

        u, v and w ascend by (degree, id).

        Raises
        ------
        UserFunctionError
            If the graph is directed, or two edges have the same ends.
        """
        if self.directed:
            raise UserFunctionError("a directed graph has no triangles")
        row_of: dict[tuple[int, int], int] = {}
        for row in self.rows:
            ends = self.source[row], self.target[row]
            if ends[0] == ends[1]:
                continue
            if row_of.setdefault(ends, row) != row:
                raise UserFunctionError("triangles of a graph with parallel edges")
        order = sorted(
            range(self.vertex_count), key=lambda v: (len(self.in_rows[v]), v)
        )
        found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        for u, v, w in itertools.combinations(order, 3):
            pairs = ((u, v), (u, w), (v, w))
            if all(pair in row_of for pair in pairs):
                found.append(((u, v, w), tuple(row_of[pair] for pair in pairs)))
        return found

    def gatherers(self, active: npt.NDArray[Any], along: str) -> npt.NDArray[Any]:
        """Return a mask of the vertices that gather from an active one."""
        return np.array(
            [
                any(active[u] for _, u in self.gathered(v, along))
                for v in range(self.vertex_count)
            ],
            np.bool_,
        )


#: The type of ``in_degree`` and ``out_degree``.
DEGREE = PropertyType(PropertyKind.VERTEX, "int32")


class Memory:
    """All values by *buffer*: ``"x"``, ``"x_next"``, temporaries and degrees.

    Buffers of edges have an entry for each row of `Topology`.

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
        """Return a property; a scalar as it was passed, without rounding."""
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
