"""Properties of single gathers and reduces, of triangle sums, and of expressions.

`find_sums` finds the atomic additions of a triangle function that can be accumulated in
registers over many triangles of one vertex or edge.

A changed result of a reduce makes every vertex due in the superstep that reads it (S7).
The change must be known before the first function runs on due vertices. A reduce that
reads nothing that earlier functions write is therefore moved to the front
(`order_of_reduces`). If it does read such values, every vertex is due (`late_reduces`).

`operand_type` returns the type of an expression, and `needs_guard` finds expressions
that idle lanes must not evaluate. Lanes whose vertex is not due, or has returned,
execute a function together with the other lanes of their warp. Their vertex and edge
are clamped to valid ids, so they may read at these. A read that is valid only where the
function runs needs a guard: ``d.x[d.parent[v], f]`` behind ``if d.parent[v] < 0: return
False``. So does a loop that might not end.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np

from featgraph.base.dataclass import dataclass, replace
from featgraph.fold.analysis.access import INDEXED, base_name
from featgraph.fold.analysis.analyse import (
    Analysed,
    Analysis,
    Temporary,
)
from featgraph.fold.operations.systems import is_solution
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.syntax.arithmetic import join
from featgraph.fold.syntax.types import type_of_dtype
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
    contains,
    entity_of,
    every,
    is_reversed,
    name_of,
)
from featgraph.program.combines import Combine
from featgraph.program.functions import GatherFunction, ReduceFunction
from featgraph.program.signature import Real, Signature

__all__ = [
    "ROLES", "Sum", "added_by", "combine_of", "declared_along", "find_sums",
    "has_one_rounding", "has_wide_key", "in_blocks", "is_matrix", "is_only_solved",
    "is_real_matrix", "late_reduces", "memory_dtype", "needs_guard", "operand_type",
    "order_of_reduces", "partial_dtype", "read_where_due", "reduced_type", "rounds",
    "takes_active", "temporaries_of",
]  # fmt: skip


def combine_of(function: Analysed) -> Combine:
    """Return the combine of a gather or reduce."""
    return cast("GatherFunction | ReduceFunction", function.declared).combine


def is_matrix(function: Analysed) -> bool:
    """Return whether the result of a gather or reduce is a K x K matrix."""
    return bool(getattr(function.declared, "matrix", False))


def declared_along(function: Analysed) -> str:
    """Return the `along=` of a gather, "in", "out" or "both"; "in" for others."""
    return str(getattr(function.declared, "along", "in"))


def memory_dtype(type_: str, real: Real) -> str:
    """Return the dtype of a temporary in memory.

    Booleans are int32 there: atomics take 32 bits at least.
    """
    return {"real": real, "bool": "int32"}.get(type_, type_)


def reduced_type(function: Analysed) -> str:
    """Return the type in which a reduce accumulates; a sum of booleans counts them."""
    votes = combine_of(function).rules.gives == "bool"
    return "int32" if function.returns == "bool" and not votes else function.returns


def partial_dtype(function: Analysed, real: Real) -> str:
    """Return the dtype of the partial results of a reduce."""
    type_ = reduced_type(function)
    return {"real": real}.get(type_, type_)


def has_wide_key(temporary: Temporary, real: Real) -> bool:
    """Return whether the key of an argmin or argmax has 64 bits.

    Key and source then do not fit one 64-bit word, which an atomic could update.
    """
    key = np.dtype(memory_dtype(temporary.type, real))
    return temporary.combine.is_arg and key.itemsize > 4


def rounds(function: Analysed) -> bool:
    """Return whether rounding makes a result depend on the order of contributions."""
    if not function.kind.combines or function.returns != "real":
        return False
    return combine_of(function).rules.rounds


def in_blocks(function: Analysed) -> bool:
    """Return whether combining in blocks bounds the rounding error.

    It does for sums, and for a combine of the user's, which may be a sum. In a product
    the relative error is that of the number of factors, in any order.
    """
    return rounds(function) and combine_of(function).rules.in_blocks


#: Functions of real numbers that do not round.
_EXACT = frozenset({"abs", "fabs", "isfinite", "isinf", "isnan"})


def has_one_rounding(
    function: Analysed, analysis: Analysis, *, divides: bool = False
) -> bool:
    """Return whether a function rounds alike with a constant and a variable K.

    It does if its body has at most one product and one sum: the compiler may contract
    these to an FMA. Of two products it may contract either, and it regroups chains and
    quotients, depending on whether the length of the loop is a constant. With
    `divides`, a body of a single quotient is allowed: a division of vectors.
    """
    if function.kind.combines:
        rules = combine_of(function).rules
        if not (rules.is_sum or rules.gives == "bool") or is_matrix(function):
            return False
    left: list[Any] = [ast.Add | ast.Sub, ast.Mult]
    if divides and any(isinstance(n, ast.Div) for n in _nodes_of(function.body)):
        left = [ast.Div]
    for node in _nodes_of(function.body):
        if isinstance(node, Helper):
            inner = _nodes_of(analysis.helper_of[node.emitted].body)
            if any(isinstance(n, _NOT_EXACT) or not _is_exact(n) for n in inner):
                return False
        if isinstance(node, ast.BinOp | ast.AugAssign):
            kinds = [kind for kind in left if isinstance(node.op, kind)]
            if not kinds:
                return False
            left.remove(kinds[0])
        elif not _is_exact(node):
            return False
    return True


def _nodes_of(body: Iterable[ast.stmt]) -> list[ast.AST]:
    return [node for statement in body for node in ast.walk(statement)]


_NOT_EXACT = ast.BinOp | ast.AugAssign | Helper


def _is_exact(node: ast.AST) -> bool:
    """Return whether a node is no loop, calls nothing that rounds, and reads no K."""
    if isinstance(node, MathCall):
        return node.name in _EXACT
    if isinstance(node, Scalar):
        return node.name != "feature_count"
    return not isinstance(node, ast.For | ast.While | Operate | Atomic | Whole)


def takes_active(function: Analysed) -> bool:
    """Return whether a gather combines over the edges from active vertices only."""
    return getattr(function.declared, "sources", "all") == "active"


def temporaries_of(function: Analysed, analysis: Analysis) -> tuple[str, ...]:
    """Return the temporaries that a function takes as arguments, by first read.

    Those that it reads from memory are not among them.
    """
    found: dict[str, None] = {}
    for node in every(function.body):
        if not isinstance(node, Access | Whole) or node.version == INDEXED:
            continue
        known = base_name(node.name, analysis.temporaries) is not None
        if known or node.name in analysis.entries:
            found[node.name] = None
    return tuple(found)


def is_only_solved(name: str, bodies: Iterable[ast.stmt], spd: bool = False) -> bool:
    """Return whether a matrix is read by `fg.solve` only.

    Parameters
    ----------
    bodies : iterable of ast.stmt
        Statements of all functions that may read it.
    spd : bool
        Whether all these solves must have ``spd=True``, so that they read one triangle.
        Reads of entries on the diagonal are then allowed, too.
    """
    nodes = list(every(bodies))
    solved = {
        id(inner)
        for n in nodes
        if isinstance(n, Operate) and is_solution(n)
        if n.constant("spd") or not spd
        for inner in every([n.args[0]])
    }
    reads = [n for n in nodes if isinstance(n, Access | Whole) and n.name == name]
    return bool(reads) and all(
        id(n) in solved or (spd and _is_on_diagonal(n)) for n in reads
    )


def _is_on_diagonal(node: Access | Whole) -> bool:
    """Return whether an access is to an entry of a matrix's diagonal."""
    if not isinstance(node, Access) or len(node.indices) < 3:
        return False
    row, column = map(ast.unparse, node.indices[-2:])
    return row == column


#: Parameters of a triangle function: corners in degree order, and edges.
ROLES = ("u", "v", "w", "e_uv", "e_uw", "e_vw")
#: Types that sums can have.
_SUMMED = ("int32", "int64", "uint32", "float32", "float64")


@dataclass(frozen=True)
class Sum:
    """A sum of `dtype` that a triangle function adds to ``d.into[role]``."""

    into: str
    role: str
    dtype: str
    number: int = 0

    @property
    def name(self) -> str:
        """Name of the accumulator in generated code."""
        return f"sum_{self.number}"

    @property
    def more(self) -> str:
        """Name of the contribution of one triangle in generated code."""
        return f"more_{self.number}"

    @property
    def zero(self) -> str:
        """Text of zero in the dtype of the sum."""
        return f"{self.dtype}({'0.0' if self.dtype.startswith('float') else '0'})"

    def plus(self, value: str) -> str:
        """Return the statement that adds `value`."""
        return f"{self.name} = {self.dtype}({self.name} + {value})"


def find_sums(function: Analysed, signature: Signature) -> tuple[Sum, ...]:
    """Return the atomic additions that can be accumulated in registers.

    Each is a statement, so that the old value is not used, and its only index is a
    vertex or an edge of the triangle.
    """
    found: dict[Sum, None] = {}
    for node in every(function.body):
        added = added_by(node, signature)
        if added is not None:
            found[added] = None
    return tuple(replace(s, number=n) for n, s in enumerate(found))


def added_by(node: ast.AST, signature: Signature) -> Sum | None:
    """Return the sum to which a statement adds; None if it is no such addition."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, Atomic):
        return None
    atomic = node.value
    dtype, role = signature[atomic.name].dtype, entity_of(atomic)
    if atomic.op != "add" or len(atomic.indices) != 1 or dtype not in _SUMMED:
        return None
    return Sum(atomic.name, role, dtype) if role in ROLES else None


def late_reduces(functions: Sequence[Analysed]) -> frozenset[str]:
    """Return the results of reduces of new values that functions of due vertices read.

    Such a reduce reads properties that functions in front of it change.
    """
    late = {str(functions[place].into) for place in _late(functions)}
    return frozenset(late & read_where_due(functions))


def order_of_reduces(functions: Sequence[Analysed]) -> list[int]:
    """Return the places of functions in a new order: movable reduces in front.

    A reduce that reads no new values moves. It stays if no function of due vertices
    reads its result, since a change of the result then makes no vertex due.
    """
    late, wanted = _late(functions), read_where_due(functions)
    first = next((n for n, f in enumerate(functions) if not f.kind.reduces), 0)
    moved = list[int]()
    for place in range(len(functions) - 1, first, -1):
        function = functions[place]
        if function.kind.reduces and place not in late and function.into in wanted:
            moved.insert(0, place)
            wanted |= {a.name for a in function.accesses}
    others = [n for n in range(first, len(functions)) if n not in moved]
    return [*range(first), *moved, *others]


def read_where_due(functions: Sequence[Analysed]) -> set[str]:
    """Return the names that functions of due vertices, and of edges, access."""
    return {a.name for f in functions if not f.kind.reduces for a in f.accesses}


def _late(functions: Sequence[Analysed]) -> set[int]:
    """Return the places of reduces that read values written by functions in front."""
    changed, late = set[tuple[str, str]](), set[int]()
    for place, function in enumerate(functions):
        if not function.kind.reduces:
            accesses = (a for a in function.accesses if a.mode != "read")
            changed |= {(a.name, a.version) for a in accesses}
        elif changed & {(a.name, a.version) for a in function.accesses}:
            late.add(place)
            # A reduce that reads the result of a late one is late, too.
            changed.add((str(function.into), "now"))
    return late


def operand_type(node: ast.expr, function: Analysed, analysis: Analysis) -> str:
    """Return the type of an expression after `assign_types`."""
    if isinstance(node, Cast):
        return "real" if node.to == "real" else "int64"
    if isinstance(node, ast.Name):
        return function.variables.get(node.id, "int64")
    if isinstance(node, Identity):
        return "bool"  # the narrowest type: `join` takes that of the other operand
    if isinstance(node, Access | Whole | Scalar):
        return _stored_type(node.name, analysis)
    if isinstance(node, ast.Compare | ast.BoolOp):
        return "bool"
    if isinstance(node, Operate):
        return primitive_of(node).operation.gives
    if isinstance(node, Helper):
        return node.returns
    if isinstance(node, Numeric):
        return node.type_
    if isinstance(node, MathCall) and node.name not in {"min", "max", "abs"}:
        return "real"
    if isinstance(node, ast.Constant):
        return "bool" if isinstance(node.value, bool) else "int64"
    if isinstance(node, ast.Subscript):
        return "real"
    if isinstance(node, ast.IfExp):
        children: list[ast.expr] = [node.body, node.orelse]
    else:
        children = [c for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        children = [node.left]  # converted to the type of the result
    found = join(*(operand_type(c, function, analysis) for c in children))
    return (
        found if found == "real" or isinstance(node, ast.IfExp | MathCall) else "int64"
    )


def is_real_matrix(node: ast.expr, function: Analysed, analysis: Analysis) -> bool:
    """Return whether an expression is a whole matrix, stored in the real type."""
    if not isinstance(node, Whole):
        return False
    type_ = analysis.signature.get(node.name)
    if type_ is not None:
        return type_.dtype in {analysis.real, "real"}
    return operand_type(node, function, analysis) == "real"


def _stored_type(name: str, analysis: Analysis) -> str:
    """Return the type of an entry, temporary, property, or result of a reduce."""
    if name in analysis.entries:
        name = analysis.entries[name].of
    if name in analysis.temporaries:
        return analysis.temporaries[name].type
    if name.endswith("_source") and name[:-7] in analysis.temporaries:
        return "int32"
    if name in analysis.signature:
        return type_of_dtype(analysis.signature[name].arithmetic)
    for function in analysis.functions:
        if function.kind.reduces and function.into == name:
            return function.returns
    return "int64"


#: Indices that are valid in idle lanes, too.
_ROLES = frozenset({"f", "u", "v", "e"})


def needs_guard(node: ast.AST, analysis: Analysis) -> bool:
    """Return whether idle lanes must not execute a statement or expression."""
    for inner in every([node]):
        # A loop whose end depends on values of an idle lane might not end.
        if isinstance(inner, ast.While):
            return True
        if isinstance(inner, ast.For) and not all(
            map(_is_constant, every([inner.iter]))
        ):
            return True
        if isinstance(inner, ast.Assign) and contains(inner.value, Atomic):
            return True
        if isinstance(inner, Helper):
            called = analysis.helper_of[inner.emitted]
            if any(needs_guard(statement, analysis) for statement in called.body):
                return True
        if isinstance(inner, Access | Whole | Atomic) and not all(
            map(_is_valid, inner.indices)
        ):
            return True
    return False


def _is_constant(node: ast.AST) -> bool:
    return name_of(node) == "range" or isinstance(node, ast.Constant | ast.Call)


def _is_valid(index: ast.expr) -> bool:
    """Return whether an index is in range also in idle lanes."""
    is_number = isinstance(index, ast.Constant)
    return is_number or is_reversed(index) or name_of(index) in _ROLES
