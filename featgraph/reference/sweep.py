"""The sweep of one function over vertices, edges or triangles, and its argument `d`.

`Sweep` checks and records the reads and writes that a function makes through `Data`.
`run_triangle` runs a triangle function.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import UserFunctionError
from featgraph.program.functions import (
    EdgeFunction,
    TriangleFunction,
    UserFunction,
    VertexFunction,
)
from featgraph.program.operations import Operation
from featgraph.program.program import Program
from featgraph.program.signature import PropertyKind
from featgraph.program.state import unknown_name
from featgraph.reference.memory import DEGREE, Memory, Topology
from featgraph.reference.numbers import Integer, as_number
from featgraph.reference.team import Lane, Place, Team

__all__ = ["Sweep", "run_triangle"]

_UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "atomic.add": operator.add,
    "atomic.min": min,
    "atomic.max": max,
}


class Sweep:
    """The sweep of one function, with checks of its reads and writes.

    Parameters
    ----------
    memory : Memory
        The values.
    function : UserFunction
    width : int
        K of the function.
    writes : PropertyKind or None
        The kind of properties that it writes: VERTEX (at v), EDGE (at e); None for
        gathers.
    """

    def __init__(
        self,
        memory: Memory,
        function: UserFunction,
        width: int,
        writes: PropertyKind | None,
    ) -> None:
        self._memory = memory
        self._function = function
        self._writes = writes
        #: Kind of property -> the vertices or edges whose entries may be written now.
        self._owners: dict[PropertyKind | None, set[int]] = {}
        #: The vertex whose temporaries may be read.
        self._vertex = -1
        #: Buffers read at vertices or edges that are not owned, and buffers written.
        self._elsewhere: set[str] = set()
        self._written: set[str] = set()
        self._team = Team(function, width, self._do)
        self._views: dict[str, _View] = {}
        self.data = Data(self)

    def attribute(self, name: str) -> Any:
        """Return ``d.name``: a number, or a view to be indexed."""
        memory = self._memory
        if name == "feature_count":
            return Integer(self._team.width)
        if name in memory.numbers:
            return Integer(memory.numbers[name])
        if name not in memory.types:
            known = [*memory.types, *memory.numbers, "feature_count"]
            raise unknown_name(name, known, self._function.source.where())
        if memory.types[name].kind is PropertyKind.SCALAR:
            return memory.buffers[name]
        loose = memory.types[name].kind is PropertyKind.VECTOR
        view = _Loose(self, name) if loose else _View(self, name)
        return self._views.setdefault(name, view)

    def run(
        self, owner: int, vertex: int, call: Any, ends: tuple[int, ...] = ()
    ) -> list[Any]:
        """Return ``call(f)`` for all features of a vertex or edge; store their writes.

        `owner` is the vertex or edge whose entries may be written; an exclusive
        function (S11) writes at both `ends` of the edge, too. `vertex` has the
        temporaries that may be read, -1 for none.
        """
        self._owners = {PropertyKind.VERTEX: set(ends), self._writes: {owner}}
        self._vertex = vertex
        try:
            results = self._team.run(call)
        except UserFunctionError as error:
            if error.where is not None:
                raise
            raise error.at(self._function.source.where()) from error
        self._write_all(self._team.lanes)
        return results

    def _write_all(self, lanes: list[Lane]) -> None:
        """Store the writes of all lanes; raise an error if they conflict."""
        wrote: dict[Place, Lane] = {}
        several: set[Place] = set()
        for lane in lanes:
            for place, value in lane.writes.items():
                other = wrote.setdefault(place, lane)
                if other is not lane:
                    several.add(place)
                if not np.array_equal(other.writes[place], value, equal_nan=True):
                    raise self._function.source.error(
                        "features write different values to one entry",
                        got=f"{other.writes[place]} and {value}",
                        expected=f"one value for d.{place[0]}{list(place[1])}",
                        fix="write a value that does not vary with f",
                    )
        if not wrote:
            return
        for lane in lanes:
            for place in lane.reads:
                if self._function.kind.exclusive and len(place[1]) == 1:
                    continue  # all lanes read it before any of them writes
                if place in wrote and (wrote[place] is not lane or place in several):
                    raise self._function.source.error(
                        "a feature reads an entry that another one writes",
                        got=f"d.{place[0]}{list(place[1])}",
                        fix="use fg.broadcast, or declare the property iterated",
                    )
        for place, lane in wrote.items():
            self._memory.store(place, lane.writes[place])
            self._written.add(place[0])

    def check_elsewhere(self) -> None:
        """Raise an error if values written in place are read at other vertices (S6)."""
        both = sorted(self._elsewhere & self._written)
        if both:
            raise self._function.source.error(
                f"{both[0]!r} is written in place and read at another vertex or edge",
                expected="d.x of an iterated property where it is read",
                fix="declare it iterated=True and write d.x_next",
            )

    def read(self, buffer: str, index: Any) -> Any:
        """Return ``d.buffer[index]`` for the running feature."""
        memory, lane = self._memory, self._team.lane
        place = memory.place(buffer, index)
        type_ = memory.types[buffer]
        rank = memory.buffers[buffer].ndim
        missing = rank - len(place[1])
        if missing == 2:  # a whole matrix
            return memory.buffers[buffer][place[1]].astype(np.float64)
        if missing == 1:  # a whole row: in this lane it stands for entry f
            place = memory.place(buffer, (*place[1], lane.feature))
        if buffer in memory.filled:
            self._check_temporary(place)
        if self._function.kind.exclusive and any(w == buffer for w, _ in lane.writes):
            raise UserFunctionError(
                f"{buffer!r} is read after a write to it",
                expected="all reads of a property before the first write to it",
                fix="keep the value that you read or write in a local",
            )
        if place in lane.writes:
            return as_number(lane.writes[place])
        lane.reads.add(place)
        if place[1][0] not in self._owners.get(type_.kind, ()):
            self._elsewhere.add(buffer)
        return memory.load(place)

    def _check_temporary(self, place: Place) -> None:
        buffer, indices = place
        if indices[0] == self._vertex and self._memory.filled[buffer][self._vertex]:
            return
        raise UserFunctionError(
            "a gathered value is read where it was not gathered",
            got=f"d.{buffer}{list(indices)}",
            expected="d.into[v, f] at the function's own v, after the gather",
        )

    def write(self, buffer: str, index: Any, value: Any) -> None:
        """Record ``d.buffer[index] = value`` for the running feature."""
        memory = self._memory
        type_ = memory.types[buffer]
        place = memory.place(buffer, index)
        now = buffer.removesuffix("_next") == buffer
        if len(place[1]) != memory.buffers[buffer].ndim:
            raise UserFunctionError("wrong number of indices", got=f"d.{buffer}{index}")
        why = None
        owners = self._owners.get(type_.kind, set())
        if buffer in memory.filled or type_ is DEGREE or not owners:
            why = f"a {self._function.kind} function does not write d.{buffer}"
        elif self._function.kind.exclusive and type_.iterated:
            why = f"an exclusive function writes in place, and {buffer!r} is iterated"
        elif place[1][0] not in owners:
            why = f"d.{buffer} is written at another {type_.kind.value}"
        elif type_.iterated and now:
            why = f"{buffer!r} is iterated, so d.{buffer}_next is written"
        elif type_.shared:
            why = f"d.{buffer} is shared by both directions of an edge"
        if why:
            raise UserFunctionError(
                why,
                expected="vertex functions write at v, edge functions at e, exclusive "
                "ones at u, v and e",
                fix="use fg.atomic, or a function of the other kind",
            )
        self._team.lane.writes[place] = memory.round(place, value)

    def _do(self, operation: Operation, args: tuple[Any, ...]) -> Any:
        """Perform `fg.reverse`, `fg.is_twin` or an atomic operation."""
        if operation.name == "reverse":
            return Integer(self._memory.topology.twin(int(args[0])))
        if operation.name == "is_twin":
            return self._memory.topology.is_twin(int(args[0]))
        view, index, value = args
        if self._writes is None:
            raise UserFunctionError(
                f"a {self._function.kind} is pure", got=f"fg.{operation.name}"
            )
        if not isinstance(view, _View) or self._memory.types[view.buffer].iterated:
            raise UserFunctionError(
                "an atomic operation updates a property that is not iterated",
                got=getattr(view, "buffer", view),
            )
        place = self._memory.place(view.buffer, index)
        old = self._memory.load(place)
        new = _UPDATES[operation.name](old, value)
        self._memory.store(place, self._memory.round(place, new))
        return old


class Data:
    """The argument `d` of user functions, whose attributes are properties."""

    def __init__(self, sweep: Sweep) -> None:
        object.__setattr__(self, "_sweep", sweep)

    def __getattr__(self, name: str) -> Any:
        return self._sweep.attribute(name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise UserFunctionError(
            f"d.{name} is assigned as a whole", fix=f"assign to d.{name}[...]"
        )


class _View:
    """``d.name``: reads and writes of one buffer."""

    def __init__(self, sweep: Sweep, buffer: str) -> None:
        self.sweep = sweep
        self.buffer = buffer

    def __getitem__(self, index: Any) -> Any:
        return self.sweep.read(self.buffer, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.sweep.write(self.buffer, index, value)


class _Loose(_View):
    """A vector or matrix property, which belongs to no vertex or edge.

    Operations also take it as a whole. In arithmetic, also within `fg.dot`, it is this
    lane's entry of the vector.
    """

    #: NumPy's arrays leave arithmetic with this object to the methods of this class.
    __array_ufunc__ = None
    __hash__ = object.__hash__

    def whole(self) -> Any:
        """Return the value for an operation: the whole, or this lane's entry."""
        return self.sweep.read(self.buffer, ())


def _entry(value: Any) -> Any:
    return value.whole() if isinstance(value, _Loose) else value


def _plain(value: Any) -> Any:
    """Return a number as a plain float or int, for arithmetic with arrays."""
    if isinstance(value, float):
        return float(value)
    return int(value) if isinstance(value, int) else value


def _of_entries(name: str, reflected: bool) -> Callable[..., Any]:
    compute = getattr(operator, name)

    def operate(self: _Loose, *others: Any) -> Any:
        values = [self.whole(), *map(_entry, others)]
        if any(isinstance(x, np.ndarray) for x in values):
            values = [_plain(x) for x in values]
        return compute(*(reversed(values) if reflected else values))

    return operate


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
for _name in (*_ARITHMETIC, "lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs"):
    setattr(_Loose, f"__{_name}__", _of_entries(_name, False))
for _name in _ARITHMETIC:
    setattr(_Loose, f"__r{_name}__", _of_entries(_name, True))


Mask = npt.NDArray[np.bool_]


class Running(Protocol):
    """The attributes of `rules._Superstep` that triangle functions need."""

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
    """Run a function on the triangles of S4, without a result."""
    # No property has kind SCALAR: a triangle function writes nothing of its own.
    sweep = Sweep(superstep.memory, function, 1, PropertyKind.SCALAR)

    def call(vertices: tuple[int, ...], rows: tuple[int, ...]) -> bool:
        if plain(*map(Integer, (*vertices, *rows)), sweep.data) is not None:
            raise function.source.error(
                "a triangle function returns nothing",
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
    """Whether all edges have a nonzero `within` entry, in both directions."""
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
