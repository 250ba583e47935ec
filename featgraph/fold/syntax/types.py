"""Third pass: the type of every expression, and conversions of integers to reals.

Numba would compute ``1 - x`` (int64 and float32) and ``x / degree[v]`` in float64. The
folder converts every integer operand of a real operation to the storage type instead.
Types are "bool", "int32", "int64", "real" (the storage type) and "edge" (opaque).

`assign_types` repeats the pass until the types of locals are stable, since a loop may
widen a local that an earlier statement reads.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from featgraph.base.errors import UserFunctionError
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.syntax.arithmetic import (
    bare,
    choice,
    compared,
    converted,
    join,
    loaded,
    operated,
    plain_index,
    stepped,
    turned,
    widened,
)
from featgraph.fold.syntax.normal_form import is_collective
from featgraph.fold.tree.statements import (
    Access,
    Atomic,
    Cast,
    Helper,
    Identity,
    MathCall,
    Numeric,
    Operate,
    Scalar,
    Whole,
    copied,
    copy_location,
    is_matrix_sum,
    narrowed,
)
from featgraph.program.signature import Real
from featgraph.program.source import FunctionSource

__all__ = ["assign_types", "type_of_dtype"]

#: Functions of a real number that return a bool.
_TESTS = frozenset({"isnan", "isinf", "isfinite"})
#: An expression and its type.
Typed = tuple[ast.expr, str]


def type_of_dtype(dtype: str) -> str:
    """Return the type of values loaded from storage type `dtype`."""
    if dtype in {"bool", "real"}:
        return dtype
    if dtype.startswith("float"):
        return "real"
    return "int64" if dtype in {"int64", "uint32"} else "int32"


def assign_types(
    source: FunctionSource,
    body: list[ast.stmt],
    parameters: Mapping[str, str],
    dtypes: Mapping[str, str],
    call_helper: Callable[[Helper, list[str]], str],
    returns: str | None,
    real: Real,
) -> tuple[list[ast.stmt], dict[str, str], str]:
    """Type a function in normal form.

    Parameters
    ----------
    source : FunctionSource
        For errors.
    body : list of ast.stmt
        Its body; not changed.
    parameters : mapping
        Parameter -> type.
    dtypes : mapping
        Property, temporary, scalar and builtin name -> storage dtype.
    call_helper : callable
        Specialises a helper for argument types, sets its name on the node, and returns
        the type that it returns.
    returns : str or None
        "bool" for functions that return a verdict; None for functions of a value.
    real : Real
        The type of real numbers.

    Returns
    -------
    body, variables, returned
        The body with conversions; local -> type; type of the returned value.
    """
    variables = dict(parameters)
    returned = "bool"
    # Types become wider only, so this ends.
    while True:
        values = _Expressions(source, variables, dtypes, call_helper, real)
        typer = _Statements(values, returns)
        typer.block([copied(s) for s in body])
        if values.variables == variables and typer.returned == returned:
            break
        variables, returned = values.variables, typer.returned
    values = _Expressions(source, variables, dtypes, call_helper, real)
    typed = _Statements(values, returns, returned).block([copied(s) for s in body])
    return typed, variables, returned


class _Expressions:
    """Types expressions, as `operations.primitive.Types`.

    `variables` has the types of locals that have been found so far; a local of unknown
    type is taken as "bool", the narrowest.
    """

    def __init__(
        self,
        source: FunctionSource,
        variables: Mapping[str, str],
        dtypes: Mapping[str, str],
        call_helper: Callable[[Helper, list[str]], str],
        real: Real,
    ) -> None:
        self.source, self.storage = source, real
        self.variables = dict(variables)
        self.dtypes = dtypes
        self.call_helper = call_helper

    def condition(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.BoolOp):  # as a condition it needs no `choice`
            node.values = [self.condition(v) for v in node.values]
            return node
        return _truth(*self.value(node))

    def real(self, node: ast.expr) -> ast.expr:
        value, type_ = self.value(node)
        return converted(value, type_, "real")

    def integer(self, node: ast.expr, what: str) -> ast.expr:
        value, type_ = self.value(node)
        if type_ == "real":
            raise self.source.error(
                f"{what} must be an integer", node, got=type_, fix="use int(...)"
            )
        return value

    def index(self, node: ast.expr) -> ast.expr:
        value, type_ = self.typed(node)
        if type_ == "real":
            raise self.source.error(
                "an index must be an integer", node, fix="use int(...)"
            )
        if type_ == "bool":
            return converted(value, type_, "int64")
        return plain_index(bare(value))

    def number(self, node: ast.expr) -> Typed:
        """Type an expression of numbers; a bool becomes 0 or 1."""
        value, type_ = self.value(node)
        if type_ == "bool":
            return converted(value, "bool", "int64"), "int64"
        return value, type_

    def matrix_or_row(self, node: ast.expr) -> ast.expr:
        """Return whole matrices and outer products as they are; others as real."""
        if isinstance(node, Whole) or is_collective(node):
            return node
        return self.real(node)

    def error(self, what: str, node: ast.AST, **details: Any) -> UserFunctionError:
        """Return an error at the line of `node`."""
        return self.source.error(what, node, **details)

    def value(self, node: ast.expr) -> Typed:
        """Type an expression; raise for an edge, which is no value."""
        typed = self.typed(node)
        if typed[1] == "edge":
            raise self.source.error(
                "e is opaque: it indexes edge properties and nothing else",
                node,
                expected="d.name[e], d.name[fg.reverse(e)]",
            )
        return typed

    def typed(self, node: ast.expr) -> Typed:
        """Type any expression."""
        known = _type_at_sight(node)
        if known is not None:
            return known
        handler = getattr(self, f"_{type(node).__name__.lower()}")
        typed: Typed = handler(node)
        return typed

    def _name(self, node: ast.Name) -> Typed:
        return node, self.variables.get(node.id, "bool")

    def _scalar(self, node: Scalar) -> Typed:
        return node, type_of_dtype(self.dtypes[node.name])

    def _access(self, node: Access) -> Typed:
        node.indices = [self.index(i) for i in node.indices]
        dtype = self.dtypes[node.name]
        return loaded(node, dtype, self.storage), type_of_dtype(dtype)

    def _whole(self, node: Whole) -> Typed:
        node.indices = [self.index(i) for i in node.indices]
        return node, type_of_dtype(self.dtypes[node.name])

    def _subscript(self, node: ast.Subscript) -> Typed:  # an element of an inverse
        indices = narrowed(node.slice, ast.Tuple)
        indices.elts = [self.index(i) for i in indices.elts]
        return node, "real"

    def _unaryop(self, node: ast.UnaryOp) -> Typed:
        if isinstance(node.op, ast.Not):
            node.operand = self.condition(node.operand)
            return node, "bool"
        # A negative literal needs no call: -2**63 is one, and cannot overflow.
        literal = isinstance(node.operand, ast.Constant)
        node.operand, type_ = self.value(node.operand)
        if isinstance(node.op, ast.USub) and not literal:
            return turned("negate", node, (node.operand, type_))
        if isinstance(node.op, ast.Invert) and type_ == "real":
            raise self.source.error("bits of a real number", node, fix="use not")
        node.operand = widened(node.operand, type_)
        return node, type_ if type_ == "real" else "int64"

    def _boolop(self, node: ast.BoolOp) -> Typed:
        # Copies, since `tested` types the operands again, as conditions.
        typed = [self.value(copied(v)) for v in node.values]
        common = join(*(t for _, t in typed))
        if common == "bool":
            node.values = [v for v, _ in typed]
            return node, "bool"
        tested = [self.condition(v) for v in node.values[:-1]]
        values = [(converted(v, t, common), t) for v, t in typed]
        return choice(self.source, node, tested, values), common

    def _binop(self, node: ast.BinOp) -> Typed:
        if is_matrix_sum(node):
            return node, "real"
        left, right = self.value(node.left), self.value(node.right)
        return operated(self.source, node, left, right)

    def _compare(self, node: ast.Compare) -> Typed:
        typed = [self.value(n) for n in (node.left, *node.comparators)]
        pairs = compared(self.source, node, typed)
        if pairs is not None:
            return pairs, "bool"
        common = join(*(t for _, t in typed))
        node.left, *node.comparators = [converted(bare(n), t, common) for n, t in typed]
        return node, "bool"

    def _ifexp(self, node: ast.IfExp) -> Typed:
        node.test = self.condition(node.test)
        body, body_type = self.value(node.body)
        orelse, else_type = self.value(node.orelse)
        common = join(body_type, else_type)
        node.body = converted(body, body_type, common)
        node.orelse = converted(orelse, else_type, common)
        return node, common

    def _mathcall(self, node: MathCall) -> Typed:
        if node.name in {"min", "max"}:
            typed = [self.value(a) for a in node.args]
            common = join(*(t for _, t in typed))
            node.args = [converted(n, t, common) for n, t in typed]
            node.of_real = common == "real"
            return node, common
        if node.name == "abs":
            return turned("absolute", node, self.value(node.args[0]))
        if node.name == "float":
            return self.real(node.args[0]), "real"
        if node.name == "int":
            value, type_ = self.value(node.args[0])
            as_int = Numeric("to_int", [value]) if type_ == "real" else value
            return copy_location(widened(as_int, type_), node), "int64"
        if node.name == "bool":
            return self.condition(node.args[0]), "bool"
        node.args = [self.real(a) for a in node.args]
        if node.name in _TESTS:
            return node, "bool"
        if node.name in {"floor", "ceil"}:  # in Numba an int on one target only
            return copy_location(Cast("real", node), node), "real"
        return node, "real"

    def _helper(self, node: Helper) -> Typed:
        typed = [self.value(a) for a in node.args]
        node.args = [n for n, _ in typed]
        node.returns = self.call_helper(node, [t for _, t in typed])
        return node, node.returns

    def _atomic(self, node: Atomic) -> Typed:
        node.indices = [self.index(i) for i in node.indices]
        value, type_ = self.value(node.value)
        wanted = type_of_dtype(self.dtypes[node.name])
        if type_ == "real" and wanted != "real":
            raise self.source.error(
                f"a real number is combined into the {self.dtypes[node.name]} "
                f"property {node.name!r}",
                node,
            )
        node.value = converted(value, type_, wanted)
        return loaded(node, self.dtypes[node.name], self.storage), wanted

    def _operate(self, node: Operate) -> Typed:
        node.extra = [
            self._option(option, node, place) for place, option in enumerate(node.extra)
        ]
        return node, primitive_of(node).typed(node, self)

    def _option(self, option: ast.expr, node: Operate, place: int) -> ast.expr:
        name = next(n for n, p in node.options.items() if p == place)
        if name == "transpose":
            return self.condition(option)
        if name == "diagonal":
            return self.real(option)
        return option


class _Statements:
    """Types statements.

    Attributes
    ----------
    returns : str or None
        "bool" for functions that return a verdict; None for functions of a value.
    return_as : str or None
        Type to which returned values are converted; None to leave them.
    returned : str
        Narrowest type of all returned values so far.
    """

    def __init__(
        self, values: _Expressions, returns: str | None, return_as: str | None = None
    ) -> None:
        self.values = values
        self.returns = returns
        self.return_as = return_as
        self.returned = "bool"

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [self.statement(node) for node in body]

    def statement(self, node: ast.stmt) -> ast.stmt:
        if isinstance(node, ast.Assign):
            self._assign(node)
        elif isinstance(node, ast.Return):
            self._return(node)
        elif isinstance(node, ast.If | ast.While):
            node.test = self.values.condition(node.test)
            node.body = self.block(node.body)
            node.orelse = self.block(node.orelse)
        elif isinstance(node, ast.For):
            call = narrowed(node.iter, ast.Call)
            bounds = [self.values.integer(a, "a bound of range") for a in call.args]
            call.args = stepped(bounds)
            self._bind(narrowed(node.target, ast.Name).id, "int64")
            node.body = self.block(node.body)
        elif isinstance(node, ast.Expr):
            value = self.values.value(node.value)[0]
            node.value = value.value if isinstance(value, Cast) else value
        return node

    def _assign(self, node: ast.Assign) -> None:
        value, type_ = self.values.value(node.value)
        target = node.targets[0]
        if isinstance(target, ast.Name):
            self._bind(target.id, type_)
            wanted = self.values.variables[target.id]
            if not is_collective(node.value):
                value = converted(value, type_, wanted)
        else:
            target = narrowed(target, Access)
            target.indices = [self.values.index(i) for i in target.indices]
            value = self._stored(value, type_, target)
        node.value = value

    def _stored(self, value: ast.expr, type_: str, target: Access) -> ast.expr:
        """Return a value converted for the dtype of a property; or raise."""
        dtype = self.values.dtypes[target.name]
        wanted = type_of_dtype(dtype)
        if type_ == "real" and wanted != "real":
            raise self.values.error(
                f"a real number is stored in the {dtype} property {target.name!r}",
                target,
                fix="convert it: int(...) or a comparison",
            )
        if wanted == "bool":
            return _truth(value, type_)
        return converted(value, type_, wanted if wanted == "real" else type_)

    def _bind(self, name: str, type_: str) -> None:
        variables = self.values.variables
        known = variables.get(name)
        variables[name] = type_ if known is None else join(known, type_)

    def _return(self, node: ast.Return) -> None:
        """Type a returned value; a verdict becomes a bool."""
        given = narrowed(node.value, ast.expr)
        if isinstance(given, Identity):
            return
        if self.returns == "bool":
            node.value = self.values.condition(given)
            return
        value, type_ = self.values.value(given)
        self.returned = join(self.returned, type_)
        node.value = converted(value, type_, self.return_as or type_)


def _type_at_sight(node: ast.expr) -> Typed | None:
    """Type constants and nodes that are typed already; None for others."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, int):  # True for a bool, too
            return node, "bool" if isinstance(node.value, bool) else "int64"
        return copy_location(Cast("real", node), node), "real"
    if isinstance(node, Identity):
        return node, "bool"
    if isinstance(node, Cast):
        return node, {"real": "real", "int": "int64"}[node.to]
    return None


def _truth(node: ast.expr, type_: str) -> ast.expr:
    """Return the test that a value is not zero."""
    if type_ == "bool":
        return node
    zero = converted(copy_location(ast.Constant(0), node), "int64", type_)
    return copy_location(ast.Compare(bare(node), [ast.NotEq()], [zero]), node)
