"""The decorators that declare functions over vertices, edges and triangles.

Each decorator returns a `UserFunction` of its own class. Its `FunctionKind` defines
where the function runs and how its value is used. It has the parsed source
(`program.source`) and stays callable as a plain function.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, ClassVar, Self, overload

from featgraph.base.arguments import checked_arguments
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import UserFunctionError
from featgraph.program.combines import SELECTIVE, Combine, as_combine
from featgraph.program.signature import LONGEST, name_problem
from featgraph.program.source import FunctionSource, parse_function, plain_function

__all__ = [
    "EdgeFunction",
    "ExclusiveFunction",
    "FunctionKind",
    "GatherFunction",
    "ReduceFunction",
    "TriangleFunction",
    "UserFunction",
    "VertexFunction",
    "edge",
    "find_named",
    "gather",
    "name_in",
    "named",
    "reduce",
    "triangle",
    "vertex",
]

#: Values of ``along=``: the edges of a vertex that a gather reads.
ALONG = ("in", "out", "both")


@dataclass(frozen=True)
class FunctionKind:
    """The kind of a function: where it runs, and how its value is used.

    Attributes
    ----------
    name : str
        The name of its decorator.
    writes : str
        "vertex" or "edge": the owner of the entries that it writes, which are committed
        if it returns True; "" for a function without a verdict.
    gathers, reduces : bool
        Whether its values are combined along the edges of a vertex, or over all
        vertices.
    intersects : bool
        Whether it runs on triangles.
    exclusive : bool
        Whether no other call accesses the ends of its edge meanwhile (S11).
    settings : tuple of str
        The attributes that its decorator sets, in the order of its constructor.
    """

    name: str
    writes: str = ""
    gathers: bool = False
    reduces: bool = False
    intersects: bool = False
    exclusive: bool = False
    settings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    @property
    def writes_vertices(self) -> bool:
        """Whether it writes at a vertex, and returns the verdict of the vertex."""
        return self.writes == "vertex"

    @property
    def writes_edges(self) -> bool:
        """Whether it writes at an edge, and returns the verdict of the edge."""
        return self.writes == "edge"

    @property
    def combines(self) -> bool:
        """Whether its values are combined."""
        return self.gathers or self.reduces

    @property
    def along_edges(self) -> bool:
        """Whether it runs on an edge of a row."""
        return self.gathers or self.writes_edges

    @property
    def is_silent(self) -> bool:
        """Whether it makes no vertex due."""
        return self.reduces or self.intersects


class UserFunction:
    """A declared function, which stays callable.

    Attributes
    ----------
    function : callable
        The plain Python function.
    declared : object
        The decorated object: the function itself or a CUDA or Numba dispatcher.
    source : FunctionSource
        Its syntax tree, file and line.
    """

    kind: ClassVar[FunctionKind]
    roles: tuple[str, ...] = ()

    def __init__(self, declared: Callable[..., Any]) -> None:
        if isinstance(declared, UserFunction):
            raise UserFunctionError(
                "decorated twice",
                where=declared.source.where(),
                got=f"@fg.{self.kind} over @fg.{declared.kind}",
                expected="one decorator of featgraph",
            )
        self.declared = declared
        self.function = plain_function(declared)
        self.source: FunctionSource = parse_function(declared)
        self.name = self.source.name
        self.__name__ = self.name
        self.__doc__ = self.function.__doc__
        self.__wrapped__ = self.function
        self.__module__ = self.function.__module__
        self.__qualname__ = self.function.__qualname__
        self._check_arity()

    def settings(self) -> dict[str, Any]:
        """Return the arguments of its decorator, with the name of a combine."""
        values = {name: getattr(self, name) for name in self.kind.settings}
        named = values.get("combine")
        return values if named is None else values | {"combine": named.name}

    def __reduce__(self) -> tuple[Any, ...]:
        # By its name in the module, as Python pickles functions. If the name refers to
        # another object, unpickling declares the function again.
        module, name = self.__module__, self.__qualname__
        if find_named(module, name) is self:
            return named, (UserFunction, module, name)
        given = (getattr(self, name) for name in self.kind.settings)
        return type(self), (self.declared, *given)

    def __copy__(self) -> Self:
        return self  # immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def _check_arity(self) -> None:
        if len(self.source.parameters) != len(self.roles):
            raise self.source.error(
                f"wrong number of parameters for @fg.{self.kind}",
                got=f"({', '.join(self.source.parameters)})",
                expected=f"({', '.join(self.roles)})",
            )

    def __call__(self, *args: Any) -> Any:
        """Call the plain function."""
        return self.function(*args)

    def __repr__(self) -> str:
        return f"<featgraph {self.kind} function {self.name}>"


class VertexFunction(UserFunction):
    """``(f, v, d) -> bool``: computes feature f of vertex v.

    True commits and announces.
    """

    kind = FunctionKind("vertex", writes="vertex")
    roles = ("f", "v", "d")


class EdgeFunction(UserFunction):
    """``(f, u, v, e, d) -> bool``: writes at edge e, elsewhere through `fg.atomic`."""

    kind = FunctionKind("edge", writes="edge")
    roles = ("f", "u", "v", "e", "d")


class ExclusiveFunction(EdgeFunction):
    """``(f, u, v, e, d) -> bool``: reads and writes at u, v and e alone (S11)."""

    kind = FunctionKind(
        "edge", writes="edge", exclusive=True, settings=("exclusive",)
    )  # fmt: skip

    def __init__(self, declared: Callable[..., Any], exclusive: bool = True) -> None:
        super().__init__(declared)
        self.exclusive = exclusive


class TriangleFunction(UserFunction):
    """``(u, v, w, e_uv, e_uw, e_vw, d)``: writes through `fg.atomic`; returns nothing.

    Attributes
    ----------
    within : str or None
        The edge property that selects the edges.
    """

    kind = FunctionKind("triangle", intersects=True, settings=("within",))
    roles = ("u", "v", "w", "e_uv", "e_uw", "e_vw", "d")

    def __init__(self, declared: Callable[..., Any], within: str | None) -> None:
        super().__init__(declared)
        self.within = None if within is None else _checked_name(within, "within", self)


class GatherFunction(UserFunction):
    """``(f, u, v, e, d) -> value``: the contribution of edge e to ``into[v, f]``.

    `u` is the neighbor, at the other end of one of the edges that `along` selects.
    """

    kind = FunctionKind(
        "gather", gathers=True,
        settings=("into", "combine", "along", "matrix", "first", "sources"),
    )  # fmt: skip
    roles: tuple[str, ...] = ("f", "u", "v", "e", "d")

    def __init__(
        self,
        declared: Callable[..., Any],
        into: str,
        combine: Combine,
        along: str,
        matrix: bool,
        first: bool = False,
        sources: str = "all",
    ) -> None:
        self.matrix = matrix
        self.first = first
        self.sources = sources
        if matrix:
            self.roles = ("i", *GatherFunction.roles)
        super().__init__(declared)
        self.into = _checked_name(into, "into", self)
        self.combine = combine
        self.along = along


class ReduceFunction(UserFunction):
    """``(f, v, d) -> value``: combined over all vertices into ``d.name[f]``."""

    kind = FunctionKind("reduce", reduces=True, settings=("into", "combine", "matrix"))
    roles: tuple[str, ...] = ("f", "v", "d")

    def __init__(
        self,
        declared: Callable[..., Any],
        into: str,
        combine: Combine,
        matrix: bool = False,
    ) -> None:
        self.matrix = matrix
        if matrix:
            self.roles = ("i", *ReduceFunction.roles)
        super().__init__(declared)
        self.into = _checked_name(into, "into", self)
        self.combine = combine


def _checked_name(name: str, what: str, function: UserFunction) -> str:
    problem = name_problem(name)
    if problem is not None:
        shown = repr(name)
        raise function.source.error(
            f"{what} {problem}",
            got=shown if len(shown) <= 2 * LONGEST else f"{shown[:LONGEST]}...",
            expected="an ASCII identifier, not reserved, not ending in _next",
            fix="choose another name",
        )
    return name


def vertex(function: Callable[..., Any]) -> VertexFunction:
    """Declare a vertex function ``(f, v, d) -> bool``.

    It computes feature `f` of vertex `v`, reads properties anywhere and writes those of
    `v`. True, for any feature, commits the ``_next`` entries of the vertex and
    announces it; after False the remaining functions do not run on it.

    Raises
    ------
    UserFunctionError
        If the source cannot be read or the parameters are not three.

    Examples
    --------
    >>> import featgraph as fg
    >>> @fg.vertex
    ... def halve(f, v, d):
    ...     d.x_next[v, f] = d.x[v, f] * 0.5
    ...     return d.x[v, f] > 1e-3
    """
    return VertexFunction(function)


@checked_arguments
def gather(
    *,
    into: str,
    combine: str | Combine = "sum",
    along: str = "in",
    matrix: bool = False,
    first: bool = False,
    sources: str = "all",
) -> Callable[[Callable[..., Any]], GatherFunction]:
    """Declare a gather ``(f, u, v, e, d) -> value``: contributions of edges to `v`.

    Parameters
    ----------
    into : str
        The temporary that later functions of the foldmap read as ``d.into[v, f]``;
        argmin and argmax store the key there and its `u` as ``d.into_source[v, f]`` (-1
        if nothing contributed).
    combine : str or Combine, optional
        Name of a built-in combine (``"sum"``, ..., see S5 of the model) or the result
        of `fg.combine`.
    along : {"in", "out", "both"}, optional
        The edges of `v` to read: those into it, those out of it, or all of them. `u` is
        the neighbor at their other end: the source, the target, or either. A self-loop
        is one edge and occurs once. On an undirected graph, which has each edge both
        ways, ``"both"`` is ``"in"``, and ``"out"`` reads the twins of those edges.
    matrix : bool, optional
        Parameters ``(i, f, u, v, e, d)``, and ``d.into[v, i, f]`` is k x k.
    first : bool, optional
        Any one contribution is enough: min, max, any, all, argmin or argmax may take
        the first and skip the remaining edges. ``deterministic=True`` combines all.
    sources : {"all", "active"}, optional
        "active" combines over the edges from active vertices only, in whichever
        direction the gather runs.

    Raises
    ------
    UserFunctionError
        If the parameters, the name, the combine or the edges do not fit.

    Examples
    --------
    >>> import featgraph as fg
    >>> @fg.gather(into="total", combine="sum")
    ... def neighbor_sum(f, u, v, e, d):
    ...     return d.weight[e] * d.x[u, f]
    """

    def declare(function: Callable[..., Any]) -> GatherFunction:
        where = f"@fg.gather({into!r})"
        operator = as_combine(combine, where)
        if along not in ALONG:
            raise UserFunctionError(
                "a gather goes along some edges of its vertex",
                where=where,
                got=f"along={along!r}",
                expected="along='in', 'out' or 'both'",
            )
        if matrix and operator.is_arg:
            raise UserFunctionError(
                "a matrix gather has no argmin or argmax",
                where=where,
                got=operator.name,
            )
        if first and (matrix or not operator.rules.selects):
            raise UserFunctionError(
                "first=True takes one contribution for all of them",
                where=where,
                got="a matrix" if matrix else f"combine={operator.name!r}",
                expected=f"one of {', '.join(SELECTIVE)}",
                fix="drop first=True",
            )
        if sources not in {"all", "active"}:
            raise UserFunctionError(
                "a gather takes all sources or the active ones",
                where=where,
                got=f"sources={sources!r}",
                expected="'all' or 'active'",
            )
        return GatherFunction(function, into, operator, along, matrix, first, sources)

    return declare


def edge(
    function: Callable[..., Any] | None = None, *, exclusive: bool = False
) -> EdgeFunction | Callable[[Callable[..., Any]], EdgeFunction]:
    """Declare an edge function ``(f, u, v, e, d) -> bool``.

    It runs on the out-edges ``u -> v`` of the active vertices and writes properties of
    edge `e`, and anything else through `fg.atomic`. True commits the ``_next`` entries
    of the edge and makes `v` due.

    Parameters
    ----------
    function : callable, optional
        The function; without it, a decorator is returned.
    exclusive : bool, optional
        The function reads and writes properties of `u`, `v` and `e` in place, as if
        edges ran one after the other (S11 of the model). True makes `u` due, too.

    Raises
    ------
    UserFunctionError
        If the source cannot be read, the parameters are not five, or `exclusive` is
        no bool.

    Examples
    --------
    >>> import featgraph as fg
    >>> @fg.edge(exclusive=True)
    ... def meet(f, u, v, e, d):
    ...     a = d.x[u]
    ...     b = d.x[v]
    ...     d.x[u] = b
    ...     d.x[v] = a + b
    ...     return True
    """
    if not isinstance(exclusive, bool):
        raise UserFunctionError(
            "an edge function is exclusive or not",
            where="@fg.edge",
            got=f"exclusive={exclusive!r}",
            expected="True or False",
        )
    declare = ExclusiveFunction if exclusive else EdgeFunction
    return declare if function is None else declare(function)


@checked_arguments
def reduce(
    *, into: str, combine: str | Combine = "sum", matrix: bool = False
) -> Callable[[Callable[..., Any]], ReduceFunction]:
    """Declare a reduce ``(f, v, d) -> value``, combined into ``d.into[f]``.

    Parameters
    ----------
    into : str
        The name of the result in ``d`` and in the State.
    combine : str or Combine, optional
        As for `gather`, except argmin and argmax.
    matrix : bool, optional
        Parameters ``(i, f, v, d)``, and ``d.into[i, f]`` is k x k; ``d.into`` is the
        whole matrix.

    Raises
    ------
    UserFunctionError
        If the parameters, the name or the combine do not fit.
    """

    def declare(function: Callable[..., Any]) -> ReduceFunction:
        operator = as_combine(combine, f"@fg.reduce({into!r})")
        if operator.is_arg:
            raise UserFunctionError(
                "a reduce has no argmin or argmax",
                where=f"@fg.reduce({into!r})",
                got=operator.name,
                fix="use min or max",
            )
        return ReduceFunction(function, into, operator, matrix)

    return declare


@overload
def triangle(function: Callable[..., Any]) -> TriangleFunction: ...


@overload
def triangle(
    *, within: str | None = None
) -> Callable[[Callable[..., Any]], TriangleFunction]: ...


def triangle(
    function: Callable[..., Any] | None = None, *, within: str | None = None
) -> TriangleFunction | Callable[[Callable[..., Any]], TriangleFunction]:
    """Declare a triangle function ``(u, v, w, e_uv, e_uw, e_vw, d)``.

    It runs once for every triangle of an undirected graph. `u`, `v` and `w` ascend by
    (degree, id); `e_uv` is the edge from `u` to `v`, and so on. It reads properties of
    all six, writes through `atomic` only, and returns nothing.

    Parameters
    ----------
    function : callable
        The function; without it, a decorator is returned.
    within : str, optional
        The name of an edge property. The function runs only on triangles whose edges
        have nonzero entries, in both directions. Other edges are filtered before rows
        are intersected.

    Raises
    ------
    UserFunctionError
        If the source cannot be read, the parameters are not seven, or `within` is no
        name of a property.

    Examples
    --------
    >>> import featgraph as fg
    >>> @fg.triangle
    ... def count(u, v, w, e_uv, e_uw, e_vw, d):
    ...     fg.atomic.add(d.triangles, u, 1)
    ...     fg.atomic.add(d.triangles, v, 1)
    ...     fg.atomic.add(d.triangles, w, 1)
    """
    if function is not None:
        return TriangleFunction(function, within)
    return lambda declared: TriangleFunction(declared, within)


def named(kind: type, module: str, name: str) -> Any:
    """Return the object of a module with a name; unpickling calls this.

    Raises
    ------
    AttributeError
        If there is no such object of that kind.
    """
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, kind):
        raise AttributeError(
            f"{module}.{name} is no {kind.__name__}, as it was when it was pickled"
        )
    return found


def find_named(module: str, name: str) -> Any:
    """Return the object of an imported module with a dotted name, or None."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def name_in(module: str, wanted: object) -> str | None:
    """Return the name of an object in a module, if it has one."""
    held = vars(sys.modules[module]) if module in sys.modules else {}
    return next((name for name, value in held.items() if value is wanted), None)
