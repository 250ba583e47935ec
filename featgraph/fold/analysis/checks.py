"""Small checks of a typed function: matrices, constant indices, widths."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from featgraph.fold.analysis.access import AccessRecord
from featgraph.fold.operations.products import is_outer
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.syntax.names import BUILTIN_ARRAYS
from featgraph.fold.tree.expressions import (
    Access,
    Atomic,
    Operate,
    Whole,
    is_matrix_sum,
    names_read,
)
from featgraph.program.functions import UserFunction
from featgraph.program.signature import PropertyKind, Signature
from featgraph.program.source import FunctionSource

__all__ = [
    "check_features",
    "check_groups",
    "check_matrices",
    "feature_indices",
    "matrix_names",
    "width_of",
    "with_filter",
]


def matrix_names(body: list[ast.stmt]) -> frozenset[str]:
    """Return the locals that hold a k x k matrix."""
    return frozenset(
        node.targets[0].id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, Operate)
        and primitive_of(node.value).is_matrix
    )


def check_matrices(
    source: FunctionSource, body: list[ast.stmt], matrices: frozenset[str]
) -> None:
    """See that matrices are indexed or given to operations, and nothing else is."""
    good: set[int] = set()
    nodes = [n for s in body for n in ast.walk(s)]
    whole = {id(n) for n in nodes if isinstance(n, Whole)}
    for node in nodes:
        if isinstance(node, ast.Subscript):
            owner = node.value
            if not (isinstance(owner, ast.Name) and owner.id in matrices):
                raise source.error(
                    "only properties and matrices can be indexed",
                    node,
                    got=owner.id if isinstance(owner, ast.Name) else "a value",
                    expected="d.name[...], or what fg.outer and fg.inverse return",
                )
            good.add(id(owner))
        elif isinstance(node, Operate) and primitive_of(node).takes_matrix:
            good |= {id(argument) for argument in node.args}
            good |= {id(a) for a in node.args if isinstance(a, Operate)}
            if isinstance(node.args[0], Whole) or is_matrix_sum(node.args[0]):
                whole -= {id(n) for n in ast.walk(node.args[0])}
    for node in nodes:
        is_matrix = (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)
            and node.id in matrices
        )
        is_bad = (is_matrix or is_outer(node)) and id(node) not in good
        if is_bad or id(node) in whole:
            raise source.error(
                "a matrix cannot be used as a value",
                node,
                expected="one of its elements, [i, f], or fg.matvec of it",
            )


def check_features(
    function: UserFunction, body: list[ast.stmt], collective: bool
) -> None:
    """Refuse features where a function has none, or has two of them at a time."""
    source = function.source
    has_rows = any("f" in names_read(s) for s in body)
    if function.kind.intersects and (collective or has_rows):
        raise source.error(
            "a triangle function runs once a triangle, not once a feature",
            expected="d.x[v], or a constant feature: d.x[v, 0]",
            fix="combine the features in a vertex function first",
        )
    if collective and getattr(function, "matrix", False):
        raise source.error(
            f"a matrix {function.kind} makes no collaborative calls but outer of "
            "whole rows",
            fix="return fg.outer(d.x[u], d.x[u])[i, f]",
        )


def with_filter(
    function: UserFunction, accesses: tuple[AccessRecord, ...], signature: Signature
) -> tuple[AccessRecord, ...]:
    """Return the accesses with that of the property that `within` names.

    Raises
    ------
    UserFunctionError
        If it is no property of edges with one number each.
    """
    within: str | None = getattr(function, "within", None)
    if within is None:
        return accesses
    type_ = signature.get(within)
    if type_ is None or type_.kind is not PropertyKind.EDGE or type_.item_shape:
        raise function.source.error(
            "within= names no property of edges with one entry each",
            got=repr(within) if type_ is None else f"{within}: {type_.describe()}",
            fix=f"declare {within}=fg.edge_property(True)",
        )
    if any(a.name == within and a.mode == "atomic" for a in accesses):
        raise function.source.error(
            f"{within!r} says which triangles there are, and is updated by the function"
        )
    read = AccessRecord(within, "now", "read", "own")
    return tuple(sorted({*accesses, read}))


def check_groups(source: FunctionSource, body: list[ast.stmt], width: int) -> None:
    """See that ``group=`` divides the features of a function."""
    for node in (n for s in body for n in ast.walk(s)):
        option = node.option("group") if isinstance(node, Operate) else None
        if option is None:
            continue
        size = option.value if isinstance(option, ast.Constant) else None
        if type(size) is not int or size < 1 or width % size:
            raise source.error(
                "group= must divide the number of features",
                node,
                got=f"group={ast.unparse(option)}, K = {width}",
                expected="a positive integer that divides K",
            )


def feature_indices(
    node: Access | Atomic, kinds: Mapping[str, str]
) -> list[tuple[int, ast.expr]]:
    """Return the indices that count features, with their axes of one entry."""
    if node.name in BUILTIN_ARRAYS:
        return []
    first = 0 if kinds.get(node.name) == "vector" else 1
    return list(enumerate(node.indices[first:]))


def width_of(
    source: FunctionSource,
    body: list[ast.stmt],
    kinds: Mapping[str, str],
    item_shape: Callable[[str], tuple[int, ...]],
) -> tuple[int, bool]:
    """Return K of what a function indexes with f, and whether it is nothing.

    Raises
    ------
    UserFunctionError
        If widths differ, nothing says what `f` runs over, or a constant is no feature.
    """
    widths: dict[int, str] = {}
    uses_f = False
    for node in (n for s in body for n in ast.walk(s)):
        if isinstance(node, Access | Atomic):
            for axis, index in feature_indices(node, kinds):
                size = item_shape(node.name)[axis]
                if isinstance(index, ast.Name) and index.id in {"f", "i"}:
                    widths.setdefault(size, node.name)
                _check_constant(source, node, index, size)
        elif isinstance(node, Whole):
            widths.setdefault(item_shape(node.name)[-1], node.name)
        uses_f = uses_f or (isinstance(node, ast.Name) and node.id == "f")
    if len(widths) > 1:
        raise source.error(
            "properties of different width are indexed by f",
            got=", ".join(f"{name}: {k}" for k, name in widths.items()),
            expected="one K in a function",
            fix="split the function",
        )
    if not widths:
        if uses_f:
            raise source.error(
                "f is used but indexes no property, so its range is unknown",
                fix="index a property with f",
            )
        return 1, True
    return next(iter(widths)), False


def _check_constant(
    source: FunctionSource, node: Access | Atomic, index: ast.expr, size: int
) -> None:
    negative = isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub)
    plain = index.operand if isinstance(index, ast.UnaryOp) and negative else index
    if not isinstance(plain, ast.Constant) or not isinstance(plain.value, int):
        return
    if negative or plain.value >= size:
        raise source.error(
            f"an index of d.{node.name} is out of range",
            node,
            got=-plain.value if negative else plain.value,
            expected=f"0 <= index < {size}",
        )
