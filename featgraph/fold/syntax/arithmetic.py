"""Python's arithmetic where Numba differs: library calls, widths, literals, indices.

Numba computes in the integer type that it loads: unsigned integers stay unsigned, and
`abs` of an int8 is an int8. Folded functions compute as Python does: each integer
operand of an operation is converted to int64, and operations for which Numba has other
rules, such as a remainder by 0 or a sum that overflows, become calls of
`featgraph.device.numbers` (`Numeric`). A load that is only an index, compared or
converted keeps its type. `literal_value` evaluates an expression of literals.

`unsigned_indices` casts the indices of CUDA kernels, and of functions that they call,
to unsigned integers; it is the last pass over both.
"""

from __future__ import annotations

import ast
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from featgraph.fold.syntax.names import EDGES
from featgraph.fold.tree.statements import (
    Access,
    Atomic,
    Body,
    Cast,
    Identity,
    MathCall,
    Numeric,
    Rewriting,
    contains,
    copied,
    copy_location,
    every,
)
from featgraph.program.functions import UserFunction
from featgraph.program.signature import Real
from featgraph.program.source import FunctionSource

__all__ = [
    "bare", "choice", "compared", "contributed", "converted", "integer_literal", "join",
    "literal_value", "loaded", "operated", "plain_index", "stepped", "turned",
    "unsigned_indices", "uses_numbers", "widened",
]  # fmt: skip

#: An expression and its type.
Typed = tuple[ast.expr, str]

#: Integers up to this size are exact in float32.
_EXACT = 2**24
#: Shift counts that are defined for an int64.
_WORD = range(64)
#: Types, each able to hold the values of those before it.
_ORDER = ("bool", "int32", "int64", "real")
#: Sums and products of two numbers below this one fit an int64.
_LARGE = 2**31
#: Operators that may overflow -> function of `featgraph.device.numbers`.
_OVERFLOWING: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
}
#: Functions of `featgraph.device.numbers` -> the plain operator that indices use.
_IN_INDEX: dict[str, type[ast.operator]] = {
    **{name: op for op, name in _OVERFLOWING.items()},
    "remainder": ast.Mod,
}
_BITWISE = (ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift, ast.RShift)
#: Comparison of an integer with a real number -> function of the device library.
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "is_less",
    ast.LtE: "is_at_most",
    ast.Gt: "is_greater",
    ast.GtE: "is_at_least",
    ast.Eq: "is_equal",
    ast.NotEq: "is_equal",
}
#: Comparison -> the same with its operands exchanged.
_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
    ast.Eq: ast.Eq,
    ast.NotEq: ast.NotEq,
}


def uses_numbers(statements: Iterable[ast.stmt], cuda: bool) -> bool:
    """Return whether the printed statements call `featgraph.device.numbers`."""
    return any(
        isinstance(node, Numeric)
        or (cuda and isinstance(node, MathCall) and node.of_real)
        for node in every(statements)
    )


def join(*types: str) -> str:
    """Return the narrowest type that holds values of all `types`."""
    return max(types, key=_ORDER.index)


def converted(node: ast.expr, type_: str, wanted: str) -> ast.expr:
    """Return `node` converted from `type_` to `wanted`, if these differ in kind.

    Integers and booleans become real numbers, and booleans become integers.
    """
    if isinstance(node, Identity):
        return node
    if wanted == "real" and type_ != "real":
        return copy_location(Cast("real", bare(node)), node)
    if type_ == "bool" and wanted in {"int32", "int64"}:
        return copy_location(Cast("int", node), node)
    return node


def contributed(function: UserFunction, body: list[ast.stmt], returned: str) -> str:
    """Return the type of contributions of a gather, or of the result of a reduce.

    Booleans are converted to 0 and 1, in `body`, unless the combine is a vote.
    """
    combine: Any = function.combine  # type: ignore[attr-defined]
    if combine.rules.gives == "bool" or returned == "real":
        return returned
    if returned == "bool" and not combine.is_arg:
        for node in every(body):
            if isinstance(node, ast.Return) and node.value is not None:
                node.value = _counted(node.value)
    counts = function.kind.reduces and combine.rules.gives
    return combine.rules.gives if counts else returned


def _counted(node: ast.expr) -> ast.expr:
    """Return a bool converted to int32, in each branch but `fg.nothing`."""
    if isinstance(node, ast.IfExp):
        node.body, node.orelse = _counted(node.body), _counted(node.orelse)
        return node
    if isinstance(node, Identity):
        return node
    return copy_location(Cast("int32", node), node)


def loaded(node: ast.expr, dtype: str, real: Real) -> ast.expr:
    """Return a load as an operand, converted where Numba would keep its storage type.

    Unsigned integers become int64; reals narrower than `real` become `real`.
    """
    if real.is_wider(dtype):
        return copy_location(Cast("real", node), node)
    if not dtype.startswith("uint"):
        return node
    return copy_location(Cast("int", node), node)


def bare(node: ast.expr) -> ast.expr:
    """Return an integer load without its conversion to int64; others as they are."""
    is_load = isinstance(node, Cast) and isinstance(node.value, Access)
    return node.value if is_load and node.to == "int" else node  # type: ignore[attr-defined]


def widened(node: ast.expr, type_: str) -> ast.expr:
    """Return an operand converted to int64; a real number as it is."""
    if type_ in {"real", "int64"}:
        return node
    return copy_location(Cast("int", bare(node)), node)


def stepped(arguments: list[ast.expr]) -> list[ast.expr]:
    """Return the arguments of a range that is empty if a computed step is 0.

    Python raises for a step of 0, which kernels cannot.
    """
    if len(arguments) < 3 or integer_literal(arguments[2]) is not None:
        return arguments
    start, stop, step = arguments
    end = Numeric("range_stop", [copied(start), stop, copied(step)])
    return [
        start,
        copy_location(end, stop),
        copy_location(Numeric("range_step", [step]), step),
    ]


def operated(
    source: FunctionSource, node: ast.BinOp, left: Typed, right: Typed
) -> Typed:
    """Return a binary operation on numbers, and its type."""
    types = left[1], right[1]
    result = join(*types, "int64")
    if isinstance(node.op, _BITWISE) and result == "real":
        raise source.error(
            "bits of a real number",
            node,
            expected="integers or conditions",
            fix="use `and`, `or`, `not` for conditions, int(...) for numbers",
        )
    node.left, node.right = left[0], right[0]
    is_power = isinstance(node.op, ast.Pow)
    if is_power and types[0] == "real" and integer_literal(node.right) is not None:
        return node, "real"
    sign = node.right.op if isinstance(node.right, ast.UnaryOp) else None
    negated = isinstance(sign, ast.USub) or (
        isinstance(node.right, Numeric) and node.right.name == "negate"
    )
    if isinstance(node.op, ast.Div) or (is_power and negated):
        result = "real"
    name = _library_call(node, types) if result != "real" else None
    if name is not None:
        args = [widened(*left), widened(*right)]
        return copy_location(Numeric(name, args), node), result
    node.left = converted(node.left, types[0], result)
    node.right = converted(node.right, types[1], result)
    return node, result


def turned(name: str, node: ast.UnaryOp | MathCall, operand: Typed) -> Typed:
    """Return ``-a`` ("negate") or ``abs(a)`` ("absolute"), and its type.

    An int64 takes a library call, since -2**63 has no positive counterpart.
    """
    value = widened(*operand)
    if operand[1] == "real" or _is_small(*operand):
        if isinstance(node, MathCall):
            node.args = [value]
        else:
            node.operand = value
        return node, operand[1] if operand[1] == "real" else "int64"
    return copy_location(Numeric(name, [value]), node), "int64"


def _library_call(node: ast.BinOp, types: tuple[str, str]) -> str | None:
    """Return the library function for an operation on integers.

    None if Numba's operator gives the result of Python's for these operands.
    """
    right = integer_literal(node.right)
    if type(node.op) in _OVERFLOWING:
        small = map(_is_small, (node.left, node.right), types)
        return None if all(small) else _OVERFLOWING[type(node.op)]
    if isinstance(node.op, ast.FloorDiv):
        return "floor_divide" if right in {None, 0, -1} else None
    if isinstance(node.op, ast.Mod):
        return "remainder" if right in {None, 0} else None
    if isinstance(node.op, ast.Pow):
        is_square = right == 2 and types[0] != "int64"
        return None if is_square else "power"
    if isinstance(node.op, ast.LShift | ast.RShift) and right not in _WORD:
        return "shift_left" if isinstance(node.op, ast.LShift) else "shift_right"
    return None


def _is_small(node: ast.expr, type_: str) -> bool:
    """Return whether a sum or product of such integers cannot overflow an int64."""
    literal = integer_literal(node)
    return type_ != "int64" or (literal is not None and abs(literal) < _LARGE)


def plain_index(node: ast.expr) -> ast.expr:
    """Return an index with plain operators in place of library calls.

    A 64-bit overflow would be out of range anyway. LLVM infers that such sums are not
    negative, and drops the test for a wrap-around.
    """
    return _PlainIndex().visit(node)  # type: ignore[no-any-return]


class _PlainIndex(ast.NodeTransformer):
    """Replaces library calls by operators in an index."""

    def visit_Numeric(self, node: Numeric) -> ast.expr:
        self.generic_visit(node)
        op = _IN_INDEX.get(node.name)
        if op is None:
            return node
        left, right = map(bare, node.args)
        return copy_location(ast.BinOp(left, op(), right), node)

    def visit_Access(self, node: Access) -> ast.expr:
        return node  # its own indices are plain already


def compared(
    source: FunctionSource, node: ast.Compare, typed: list[Typed]
) -> ast.expr | None:
    """Return a comparison of integers with real numbers, pair by pair.

    Python compares them exactly, Numba after converting the integer. None is returned
    if all operands can be compared exactly in one type.
    """
    kinds = {_kind(n, t) for n, t in typed}
    if not {"integer", "real"} <= kinds:
        return None
    if any(contains(between, Atomic) for between, _ in typed[1:-1]):
        raise source.error(
            "a chain of comparisons of integers and real numbers with an atomic "
            "operation inside",
            node,
            fix="give its value to a name first",
        )
    pairs = [
        _pair((copied(left[0]), left[1]), op, right, node)
        for left, op, right in zip(typed, node.ops, typed[1:], strict=False)
    ]
    if len(pairs) == 1:
        return pairs[0]
    return copy_location(ast.BoolOp(ast.And(), pairs), node)


def _kind(node: ast.expr, type_: str) -> str:
    """Return "integer" or "real", or "either" for a value that is exact in both."""
    if type_ == "real":
        return "real"
    literal = integer_literal(node)
    small = literal is not None and abs(literal) <= _EXACT
    return "either" if small or type_ == "bool" else "integer"


def _pair(left: Typed, op: ast.cmpop, right: Typed, node: ast.expr) -> ast.expr:
    """Return one comparison: by operators, or of an integer with a real by a call."""
    kinds = {_kind(*left), _kind(*right)}
    if kinds != {"integer", "real"}:
        sides = [
            converted(*s, "real") if "real" in kinds else widened(*s)
            for s in (left, right)
        ]
        return copy_location(ast.Compare(sides[0], [op], [sides[1]]), node)
    if left[1] == "real":
        left, right, op = right, left, _TURNED[type(op)]()
    call = Numeric(
        _COMPARISONS[type(op)], [bare(left[0]), right[0]], "bool", of_real=True
    )
    copy_location(call, node)
    if isinstance(op, ast.NotEq):
        return copy_location(ast.UnaryOp(ast.Not(), call), node)
    return call


def choice(
    source: FunctionSource,
    node: ast.BoolOp,
    tested: list[ast.expr],
    values: list[Typed],
) -> ast.expr:
    """Return ``a or b`` of numbers as a conditional expression: ``a if a else b``.

    Parameters
    ----------
    source : FunctionSource
        For errors.
    node : ast.BoolOp
        The expression.
    tested : list of ast.expr
        All operands but the last, as conditions.
    values : list of (ast.expr, str)
        All operands, in the type of the result.
    """
    if any(contains(test, Atomic) for test in tested):
        word = "or" if isinstance(node.op, ast.Or) else "and"
        raise source.error(
            f"`{word}` of numbers, one of which an atomic operation returns",
            node,
            fix="give its value to a name first, or write `y if x else z`",
        )
    result = values[-1][0]
    for test, (value, _) in zip(reversed(tested), reversed(values[:-1]), strict=True):
        sides = (value, result) if isinstance(node.op, ast.Or) else (result, value)
        result = copy_location(ast.IfExp(test, *sides), node)
    return result


#: Literals of more bits are not evaluated: a kernel has 64 bits.
_MOST_BITS = 200
_TOO_LARGE = 1 << _MOST_BITS
_OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.RShift: operator.rshift,
}


def integer_literal(node: ast.AST) -> int | None:
    """Return the value of an integer literal with any sign; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = integer_literal(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def literal_value(node: ast.AST) -> int | None:
    """Return the value of an expression of integer literals in Python.

    None for any other expression, and where Python raises. Values beyond 2**200 are
    returned as 2**200, with their sign.
    """
    if isinstance(node, ast.UnaryOp):
        value = literal_value(node.operand)
        if value is None or isinstance(node.op, ast.Not):
            return None
        signs = {ast.USub: -value, ast.UAdd: value, ast.Invert: ~value}
        return signs[type(node.op)]
    if isinstance(node, ast.BinOp):
        left, right = literal_value(node.left), literal_value(node.right)
        if left is None or right is None:
            return None
        result = _computed(node.op, left, right)
        return None if result is None else max(min(result, _TOO_LARGE), -_TOO_LARGE)
    return integer_literal(node)


def _computed(op: ast.operator, left: int, right: int) -> int | None:
    """Return the result of an operator on integers, without computing huge numbers."""
    if isinstance(op, ast.LShift | ast.RShift | ast.Pow) and right < 0:
        return None
    if isinstance(op, ast.LShift | ast.Pow):
        is_power = isinstance(op, ast.Pow)
        bits = left.bit_length() * right if is_power else left.bit_length() + right
        if bits > 2 * _MOST_BITS and abs(left) > is_power:
            return _TOO_LARGE
        if is_power and abs(left) <= 1:
            # Powers of -1, 0 and 1 depend on whether the exponent is 0, odd or even.
            right = min(right, 2 - right % 2)
        return int(left**right) if is_power else left << right if left else 0
    if isinstance(op, ast.FloorDiv | ast.Mod) and right == 0:
        return None
    operate = _OPERATORS.get(type(op))
    return None if operate is None else operate(left, right)


#: Functions of the device library with a row and a column as arguments.
_MOVES = frozenset({"warp.load_row", "warp.store_row"})
_CASTS = frozenset({"uint32", "uint64"})
#: Functions that return their first argument, in its type.
_AS_GIVEN = frozenset({"guarded", "warp.anew"})


def unsigned_indices(body: Body) -> Body:
    """Cast indices to unsigned integers: Numba adds a wrap-around for signed ones.

    An index is cast in the subscript, unless it is a literal or a name that is bound to
    unsigned values. If all indices of an element are literals and counters of loops
    over constant ranges, none is cast: the compiler infers that they are not negative,
    and casts take registers, 140 instead of 118 in a thread that loops over the
    elements of an 8 x 8 matrix (sm_90).
    """
    return _Unsigned(_unsigned_names(body)).over(body)


class _Unsigned(Rewriting):
    """Casts indices of arrays, and those that device functions take as arguments."""

    def __init__(self, unsigned: frozenset[str]) -> None:
        self.unsigned = unsigned
        #: Targets of loops around over ``range(N)`` with a literal N.
        self.counted: frozenset[str] = frozenset()

    def visit_For(self, node: ast.For) -> ast.For:
        """Record the counter of a loop over a constant range, within its body."""
        counted, target = self.counted, {ast.unparse(node.target)}
        args = node.iter.args if isinstance(node.iter, ast.Call) else []
        is_counted = len(args) == 1 and isinstance(args[0], ast.Constant)
        self.counted = counted | target if is_counted else counted - target
        self.generic_visit(node)
        self.counted = counted
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        """Cast the index of an array, or of a tuple."""
        self.generic_visit(node)
        if isinstance(node.slice, ast.Tuple):
            node.slice.elts = self._cast(node.slice.elts)
        elif not isinstance(node.slice, ast.Slice):
            [node.slice] = self._cast([node.slice])
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Cast the indices that a function of the device library takes."""
        self.generic_visit(node)
        name = ast.unparse(node.func)
        if name in _MOVES:
            node.args[1:3] = self._cast(node.args[1:3])
        elif name.startswith("warp.atomic_"):
            place = node.args[1]
            if isinstance(place, ast.Tuple):
                place.elts = self._cast(place.elts)
            else:
                [node.args[1]] = self._cast([place])
        return node

    def _cast(self, indices: list[ast.expr]) -> list[ast.expr]:
        """Return the indices of one element, cast if need be."""
        if all(map(self._is_counted, indices)):
            return indices
        return [
            index
            if isinstance(index, ast.Constant) or _is_unsigned(index, self.unsigned)
            else ast.Call(ast.Name("uint32"), [index], [])
            for index in indices
        ]

    def _is_counted(self, node: ast.expr) -> bool:
        """Return whether an index consists of literals and counters of loops."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
            return self._is_counted(node.left) and self._is_counted(node.right)
        if isinstance(node, ast.Name):
            return node.id in self.counted
        return isinstance(node, ast.Constant)


def _unsigned_names(body: Body) -> frozenset[str]:
    """Return the names that are bound to unsigned values only, and those of edge ids.

    A fixed point: names are dropped until all values of the rest are unsigned.
    """
    bound = defaultdict[str, list[ast.expr | None]](list)
    for node in every(body):
        for name, value in _bindings(node):
            bound[name].append(value)
    unsigned, before = frozenset(bound), None
    while unsigned != before:
        before, known = unsigned, unsigned | EDGES
        unsigned = frozenset(
            name
            for name in before
            if all(value and _is_unsigned(value, known) for value in bound[name])
        )
    return unsigned | EDGES


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the names that a statement binds, with the value; None if unknown."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _unpacked(target, node.value)
    elif isinstance(node, ast.AugAssign | ast.For):
        yield from _unpacked(node.target, None)


def _unpacked(
    target: ast.expr, value: ast.expr | None
) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the names of a target with their values, tuples element by element."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple):
        values: list[ast.expr | None] = [None] * len(target.elts)
        if isinstance(value, ast.Tuple) and len(value.elts) == len(values):
            values = [*value.elts]
        for one, own in zip(target.elts, values, strict=True):
            yield from _unpacked(one, own)
    elif isinstance(target, ast.Starred):
        yield from _unpacked(target.value, None)


def _is_unsigned(node: ast.expr, names: frozenset[str]) -> bool:
    """Return whether an expression has an unsigned type without a cast."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.IfExp):
        return _is_unsigned(node.body, names) and _is_unsigned(node.orelse, names)
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    return name in _CASTS or (name in _AS_GIVEN and _is_unsigned(node.args[0], names))
