"""Facts of declarations: accesses, widths, and types of values.

`Facts` finds the properties that each function reads and writes, and the width of each
function. `_Typing` finds the type of an expression, one of `_ORDER`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, TypeGuard

from featgraph.base.dataclass import dataclass
from featgraph.program.combines import Combine, require_integers
from featgraph.program.functions import (
    EdgeFunction,
    GatherFunction,
    ReduceFunction,
    UserFunction,
)
from featgraph.program.operations import Collaborative, Operation
from featgraph.program.program import Program
from featgraph.program.signature import (
    PropertyKind,
    PropertyType,
    Real,
    Signature,
    widest_real,
)
from featgraph.program.source import FunctionSource, plain_function

__all__ = ["Access", "Facts", "storage_dtype", "value_type"]

#: Types of values; a type contains those before it.
_ORDER = ("bool", "int32", "int64", "real")
#: Types of built-in numbers; degrees and other names that are no property are int32.
_BUILT_IN = dict.fromkeys(
    ("superstep", "vertex_count", "living_count", "edge_count"), "int64"
)
_TRUTHS = {"bool", "isnan", "isinf", "isfinite"}


def value_type(
    program: Program,
    function: GatherFunction | ReduceFunction,
    names: Mapping[str, PropertyType],
) -> str:
    """Return the type of the results of `function`."""
    types = dict.fromkeys(function.source.parameters, "int32")
    typing = _Typing(program, names, function.source.parameters[-1])
    return typing.returned(function.function, function.source, types)


def storage_dtype(type_: str, real: Real) -> str:
    """Return the storage dtype of a type of `_ORDER`; `real` is that of reals."""
    return real if type_ == "real" else type_


def _join(types: list[str]) -> str:
    """Return the widest of some types."""
    return max(types, key=_ORDER.index, default="bool")


def _of_dtype(dtype: str) -> str:
    if dtype in {"bool", "real"}:
        return dtype
    if dtype.startswith("float"):
        return "real"
    return "int64" if dtype in {"int64", "uint32"} else "int32"


def _of_constant(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "int64" if isinstance(value, int) else "real"


class _Typing:
    """The types of the expressions of one function and of its helpers."""

    def __init__(
        self, program: Program, names: Mapping[str, PropertyType], data: str | None
    ) -> None:
        self.program = program
        self.names = names
        self.data = data
        self.locals: dict[str, str] = {}
        self.captured: Mapping[str, Any] = {}

    def returned(
        self,
        function: Callable[..., Any],
        source: FunctionSource,
        parameters: dict[str, str],
    ) -> str:
        """Return the widest type of all return values.

        Types of locals only widen, so assignments are repeated until none changes.
        """
        self.captured = self.program.captured.get(plain_function(function), {})
        self.locals = dict(parameters)
        before: dict[str, str] = {}
        while before != self.locals:  # types only widen, so that the loop ends
            before = dict(self.locals)
            for node in ast.walk(source.tree):
                self._assignment(node)
        returns = [n.value for n in ast.walk(source.tree) if isinstance(n, ast.Return)]
        return _join([self.of(value) for value in returns if value is not None])

    def _assignment(self, node: ast.AST) -> None:
        if isinstance(node, ast.For):
            self._bind(node.target, "int64")
        elif isinstance(node, ast.Assign):
            self._bind(node.targets[0], self.of(node.value))
        elif isinstance(node, ast.AugAssign):
            real = isinstance(node.op, ast.Div)
            self._bind(node.target, "real" if real else self.of(node.value))

    def _bind(self, target: ast.expr, type_: str) -> None:
        if isinstance(target, ast.Name):
            self.locals[target.id] = _join([self.locals.get(target.id, "bool"), type_])

    def of(self, node: ast.expr) -> str:
        """Return the type of an expression."""
        if isinstance(node, ast.Constant):
            return _of_constant(node.value)
        if isinstance(node, ast.Name) and node.id in self.locals:
            return self.locals[node.id]
        if isinstance(node, ast.Subscript):
            return self.of(node.value)
        if isinstance(node, ast.Name | ast.Attribute):
            return self._of_name(node)
        if isinstance(node, ast.Compare):
            return "bool"
        if isinstance(node, ast.BoolOp):
            return _join([self.of(value) for value in node.values])
        if isinstance(node, ast.UnaryOp):
            return (
                "bool" if isinstance(node.op, ast.Not) else self._number(node.operand)
            )
        if isinstance(node, ast.BinOp):
            both = _join([self.of(node.left), self.of(node.right), "int64"])
            negated = isinstance(node.right, ast.UnaryOp)
            inverse = negated and isinstance(node.right.op, ast.USub)  # type: ignore[attr-defined]
            real = isinstance(node.op, ast.Div)
            real |= isinstance(node.op, ast.Pow) and inverse
            return "real" if real else both
        if isinstance(node, ast.IfExp):
            return _join([self.of(node.body), self.of(node.orelse)])
        return self._of_call(node) if isinstance(node, ast.Call) else "real"

    def _number(self, node: ast.expr) -> str:
        return _join([self.of(node), "int64"])

    def _of_name(self, node: ast.Name | ast.Attribute) -> str:
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == self.data
        ):
            known = self.names.get(node.attr.removesuffix("_next"))
            if known is None:
                return _BUILT_IN.get(node.attr, "int32")
            return _of_dtype(known.arithmetic)
        value = _object(node, self.captured)
        if isinstance(value, bool | int | float):
            return _of_constant(value)
        return "bool"  # fg.nothing, which widens no type

    def _of_call(self, node: ast.Call) -> str:
        called = _object(node.func, self.captured)
        plain = plain_function(called)
        if isinstance(called, Collaborative):
            return self._of_helper(called.function, called.source, node)
        if isinstance(plain, FunctionType) and plain in self.program.helpers:
            return self._of_helper(plain, self.program.helpers[plain], node)
        if isinstance(called, Operation):
            return self._of_operation(called, node)
        name = getattr(called, "__name__", "")
        if name in _TRUTHS:
            return "bool"
        if name == "int":
            return "int64"
        if name == "abs":
            return self._number(node.args[0])
        if called in (min, max):
            return _join([self.of(argument) for argument in node.args])
        return "real"

    def _of_operation(self, called: Operation, node: ast.Call) -> str:
        if called.gives == "operand":
            return self.of(node.args[0])
        if called.gives == "number":
            return self._number(node.args[0])
        return "int64" if called.gives == "edge" else called.gives

    def _of_helper(
        self, function: Callable[..., Any], source: FunctionSource, node: ast.Call
    ) -> str:
        types = dict.fromkeys(source.parameters, "bool")
        given = [self.of(argument) for argument in node.args]
        types |= dict(zip(source.parameters, given, strict=False))
        inner = _Typing(self.program, self.names, None)
        return inner.returned(function, source, types)


_OWN_OR_NEIGHBOR = {"u", "v", "w"}
#: Kinds of values that belong to no vertex or edge.
_LOOSE = {PropertyKind.SCALAR, PropertyKind.VECTOR}


@dataclass(frozen=True)
class Access:
    """One ``d.name[...]`` of a user function.

    Attributes
    ----------
    name : str
        The property, without ``_next``.
    is_next : bool
        Whether the access is to ``d.name_next``.
    indices : tuple of str
        The role of each index (``"f"``, ``"i"``, ``"u"``, ``"v"``, ``"e"``) or ``"?"``.
    """

    name: str
    is_next: bool
    indices: tuple[str, ...]


class Facts:
    """Facts of a program with given types of its properties.

    Attributes
    ----------
    names : dict
        Property, temporary or reduce result -> type. A temporary looks like a vertex
        property.
    temporaries : dict
        Name -> the gather that fills it.
    accesses : list of list of Access
        For each function.
    widths : list of int
        For each function, its number of features.
    real : Real
        Type of real numbers: float64 if a property in use is float64, else float32.
    """

    def __init__(self, program: Program, signature: Signature) -> None:
        for name, type_ in signature.items():
            type_.require_one_type(name)
        self.program = program
        self.accesses = [
            _accesses(function, program.captured[function.function])
            for function in program.functions
        ]
        self.names: dict[str, PropertyType] = dict(signature)
        self.temporaries: dict[str, GatherFunction] = {}
        used = {access.name for found in self.accesses for access in found}
        self.real = widest_real(signature[n] for n in used if n in signature)
        self.widths: list[int] = []
        for function, found in zip(program.functions, self.accesses, strict=True):
            self._check_gathered(function, found)
            self._check_rows(function, program.captured[function.function])
            width = self._width(function, found)
            self.widths.append(width or 1)
            if isinstance(function, GatherFunction):
                self._add_temporary(function, width)
            elif isinstance(function, ReduceFunction):
                dtype = self._result_dtype(function)
                self.names[function.into] = PropertyType(
                    PropertyKind.VECTOR, dtype, (width or 1,) * (1 + function.matrix)
                )

    def _check_gathered(self, function: UserFunction, found: list[Access]) -> None:
        """Raise an error if gathered values are read at another vertex (S5)."""
        for access in found:
            if access.name not in self.temporaries:
                continue
            at_vertex = function.kind.gathers or function.kind.writes_vertices
            if at_vertex and access.indices[:1] == ("v",):
                continue
            raise function.source.error(
                "a gathered value is read where it was not gathered",
                got=f"d.{access.name} in a {function.kind} function",
                expected="d.into[v, f] at the function's own v, after the gather",
                fix="store it in a property, and read that in a second foldmap",
            )

    def _check_rows(self, function: UserFunction, captured: Mapping[str, Any]) -> None:
        """Raise an error for rows and matrices outside of arguments of operations."""
        tree = function.source.tree
        roles = dict(zip(function.source.parameters, function.roles, strict=True))
        given: set[ast.AST] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Subscript):
                given.add(node.value)
            elif isinstance(node, ast.Call) and _takes_rows(node.func, captured):
                given |= {n for a in [*node.args, *node.keywords] for n in ast.walk(a)}
        for node in ast.walk(tree):
            if node in given or not isinstance(getattr(node, "ctx", None), ast.Load):
                continue
            place = node.value if isinstance(node, ast.Subscript) else node
            if not _is_data(place, roles):
                continue
            indices = _elements(node.slice) if isinstance(node, ast.Subscript) else []
            type_ = self.names.get(place.attr.removesuffix("_next"))
            if type_ is None or not type_.item_shape:
                continue
            loose = type_.kind in _LOOSE
            if len(indices) < len(type_.item_shape) + (not loose):
                first = {PropertyKind.VERTEX: ["v"], PropertyKind.EDGE: ["e"]}
                full = [*first.get(type_.kind, []), "i", "f"]
                full = full if len(type_.item_shape) == 2 else [*full[:-2], "f"]
                name = f"d.{place.attr.removesuffix('_next')}"
                raise function.source.error(
                    f"{name} as a whole is no value",
                    node,
                    expected=f"{name}[{', '.join(full)}], or the whole as an argument "
                    "of an operation",
                )

    def _add_temporary(self, gather: GatherFunction, width: int | None) -> None:
        shape: tuple[int, ...] = () if width is None else (width,)
        if gather.matrix:
            shape = (width or 1, width or 1)
        dtype = self._result_dtype(gather)
        kind = PropertyKind.VERTEX
        self.temporaries[gather.into] = gather
        self.names[gather.into] = PropertyType(kind, dtype, shape)
        if gather.combine.is_arg:
            source = f"{gather.into}_source"
            self.temporaries[source] = gather
            self.names[source] = PropertyType(kind, "int32", shape)

    def _result_dtype(self, function: GatherFunction | ReduceFunction) -> str:
        combine = function.combine
        gives = combine.rules.gives
        type_ = value_type(self.program, function, self.names)
        combine.require_numbers(type_, function.source)
        if combine.is_custom and type_ != "real":
            returned = self._combined(combine)
            if function.kind.reduces:
                require_integers(combine, returned, function.source)
            if function.kind.gathers and isinstance(combine.identity, float):
                returned = "real"
            type_ = returned if returned == "real" else type_
        if gives == "bool":
            return gives
        if gives and type_ != "real":
            type_ = gives
        if type_ == "bool" and function.combine.is_arg:
            type_ = "int32"
        return storage_dtype(type_, self.real)

    def _combined(self, combine: Combine) -> str:
        """Return the type that a user's combine of integers returns."""
        source: Any = combine.source
        typing = _Typing(self.program, self.names, None)
        types = dict.fromkeys(source.parameters, "int64")
        return typing.returned(combine.pair, source, types)

    def _width(self, function: UserFunction, found: list[Access]) -> int | None:
        """Return K of the properties that are indexed with f or used as a whole.

        Returns None without such properties.
        """
        widths: dict[int, str] = {}
        for access in found:
            type_ = self.names.get(access.name)
            if type_ is None or not type_.item_shape:
                continue
            first = 0 if type_.kind in _LOOSE else 1
            some = len(access.indices) > 0 or type_.kind is PropertyKind.VECTOR
            whole = some and len(access.indices) < first + len(type_.item_shape)
            if whole or {"f", "i"} & set(access.indices[first:]):
                widths.setdefault(type_.item_shape[-1], access.name)
        if len(widths) > 1:
            raise function.source.error(
                "one function, several widths",
                got=", ".join(f"d.{name} has K = {k}" for k, name in widths.items()),
                expected="one K for all that is indexed with f",
                fix="make two functions",
            )
        return next(iter(widths), None)

    @property
    def is_foreign(self) -> bool:
        """Whether a function reads a vertex property at a vertex but u, v and w."""
        return any(
            access.indices
            and access.indices[0] not in _OWN_OR_NEIGHBOR
            and self._belongs_to_vertices(access.name)
            for found in self.accesses
            for access in found
        )

    def _belongs_to_vertices(self, name: str) -> bool:
        if name in {"in_degree", "out_degree"}:
            return True
        return name in self.names and self.names[name].kind is PropertyKind.VERTEX

    @property
    def tells_targets(self) -> bool:
        """Whether an edge function reads twins of entries that edge functions write.

        Then the targets of edges that passed are due, too.
        """
        stored = {n for n, t in self.names.items() if t.kind is PropertyKind.EDGE}
        written: set[str] = set()
        read_at_twins: set[str] = set()
        for function, found in zip(self.program.functions, self.accesses, strict=True):
            if isinstance(function, EdgeFunction):
                changes = _changes(function, self.program.captured[function.function])
                written |= {name for name, is_next in changes if is_next}
                read_at_twins |= {
                    a.name for a in found if a.indices and a.indices[0] != "e"
                }
        return bool(stored & written & read_at_twins)

    def conflict_ends(self, number: int, has_sides: bool) -> set[str]:
        """Return the ends, "u" and "v", at which a function's edges conflict (S11)."""
        function, found = self.program.functions[number], self.accesses[number]
        written = _stored_at(function)
        names = {name for name, _ in written}
        at = {(a.name, a.indices[0]) for a in found if a.indices and a.name in names}
        return {end for _, end in (written if has_sides else at)} & {"u", "v"}

    @property
    def has_late_reduce(self) -> bool:
        """Whether due vertices read a reduce over values of functions before it."""
        changed: set[tuple[str, bool]] = set()
        late: set[str] = set()
        due: set[str] = set()
        for function, found in zip(self.program.functions, self.accesses, strict=True):
            if not isinstance(function, ReduceFunction):
                changed |= _changes(function, self.program.captured[function.function])
                due |= {access.name for access in found}
            elif changed & {(access.name, access.is_next) for access in found}:
                late.add(function.into)
                changed.add((function.into, False))
        return bool(late & due)

    def loose_reads(self) -> list[tuple[int, str]]:
        """Return (function number, name) of every scalar or vector that is read."""
        return [
            (number, access.name)
            for number, found in enumerate(self.accesses)
            for access in found
            if access.name in self.names and self.names[access.name].kind in _LOOSE
        ]


def _accesses(function: UserFunction, captured: Mapping[str, Any]) -> list[Access]:
    """Return all accesses of a function to properties of `d`."""
    tree = function.source.tree
    roles = dict(zip(function.source.parameters, function.roles, strict=True))
    subscripted: set[ast.Attribute] = set()
    found: list[Access] = []
    for node in ast.walk(tree):  # a subscript comes before its attribute
        if isinstance(node, ast.Subscript) and _is_data(node.value, roles):
            subscripted.add(node.value)
            found.append(_access(node.value.attr, _elements(node.slice), roles))
        elif (
            isinstance(node, ast.Call)
            and len(node.args) > 1
            and _is_data(node.args[0], roles)
            and _is_atomic(node.func, captured)
        ):
            place = node.args[0]  # fg.atomic.add(d.count, v, 1) does not read at v
            subscripted.add(place)
            features = _access(place.attr, _elements(node.args[1]), roles).indices
            found.append(Access(place.attr, False, ("v", *features[1:])))
        elif _is_data(node, roles) and node not in subscripted:
            found.append(_access(node.attr, [], roles))
    return found


def _is_atomic(called: ast.expr, captured: Mapping[str, Any]) -> bool:
    operation = _object(called, captured)
    return isinstance(operation, Operation) and operation.name.startswith("atomic.")


def _object(node: ast.expr, captured: Mapping[str, Any]) -> Any:
    """Return the object of a captured name or a chain of attributes."""
    if isinstance(node, ast.Attribute):
        return getattr(_object(node.value, captured), node.attr, None)
    return captured.get(node.id) if isinstance(node, ast.Name) else None


def _takes_rows(called: ast.expr, captured: Mapping[str, Any]) -> bool:
    """Whether an operation is called, or a user function that may call it."""
    value = _object(called, captured)
    own = isinstance(plain_function(value), FunctionType)
    return own or isinstance(value, Operation | Collaborative)


def _changes(
    function: UserFunction, captured: Mapping[str, Any]
) -> set[tuple[str, bool]]:
    """Return the properties that a function writes: (name, whether ``_next``)."""
    roles = dict(zip(function.source.parameters, function.roles, strict=True))
    found: set[tuple[str, bool]] = set()
    for node in ast.walk(function.source.tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            place: ast.expr = node.value
        elif isinstance(node, ast.Call) and _is_atomic(node.func, captured):
            place = node.args[0]
        else:
            continue
        if _is_data(place, roles):
            name = place.attr.removesuffix("_next")
            found.add((name, name != place.attr))
    return found


def _stored_at(function: UserFunction) -> set[tuple[str, str]]:
    """Return the properties that a function assigns to, and the first index of each."""
    roles = dict(zip(function.source.parameters, function.roles, strict=True))
    found: set[tuple[str, str]] = set()
    for node in ast.walk(function.source.tree):
        if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Store):
            continue
        if _is_data(node.value, roles):
            access = _access(node.value.attr, _elements(node.slice), roles)
            found.add((access.name, access.indices[0]))
    return found


def _is_data(node: ast.AST, roles: dict[str, str]) -> TypeGuard[ast.Attribute]:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and roles.get(node.value.id) == "d"
    )


def _elements(index: ast.expr) -> list[ast.expr]:
    return index.elts if isinstance(index, ast.Tuple) else [index]


def _access(attribute: str, indices: list[ast.expr], roles: dict[str, str]) -> Access:
    names: Any = [
        roles.get(n.id, "?") if isinstance(n, ast.Name) else "?" for n in indices
    ]
    name = attribute.removesuffix("_next")
    return Access(name, name != attribute, tuple(names))
