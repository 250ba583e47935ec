"""The signature of a program before there is a State: what its functions let one assume."""

from __future__ import annotations

import ast

from featgraph.program.functions import RESERVED
from featgraph.program.program import Program
from featgraph.program.signature import PropertyKind, PropertyType, Signature

__all__ = ["assumed_signature"]


def assumed_signature(program: Program, k: int, dtype: str) -> Signature:
    """Return types read off the way in which properties are indexed.

    ``d.x[v, f]`` is a vertex property of `k` features, ``d.w[e]`` an edge property, ``d.a[f]`` a vector, ``d.alpha`` a real scalar;
    a name with a ``_next`` somewhere is iterated. `d.x[v]` given as a whole to a collaborative operation is a matrix if nothing
    else says what it is.
    """
    seen: dict[str, tuple[PropertyKind, int]] = {}
    iterated: set[str] = set()
    filled = {getattr(f, "into", None) for f in program.functions}
    filled |= {f"{name}_source" for name in filled}
    for function in program.functions:
        roles = dict(zip(function.source.parameters, function.roles, strict=True))
        indexed: set[int] = set()
        for node in ast.walk(function.source.tree):
            if isinstance(node, ast.Subscript) and _is_data(node.value, roles):
                assert isinstance(node.value, ast.Attribute)
                indexed.add(id(node.value))
                _note(seen, iterated, node.value.attr, _shape(node.slice, roles))
        for node in ast.walk(function.source.tree):
            if _is_data(node, roles) and id(node) not in indexed:
                assert isinstance(node, ast.Attribute)
                _note(seen, iterated, node.attr, (PropertyKind.SCALAR, 0))
    signature: Signature = {}
    for name, (kind, rank) in seen.items():
        if name in filled or name in RESERVED:
            continue
        stored = "real" if kind is PropertyKind.SCALAR else dtype
        signature[name] = PropertyType(kind, stored, (k,) * rank, name in iterated)
    return signature


def _is_data(node: ast.AST, roles: dict[str, str]) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and roles.get(node.value.id) == "d"
    )


def _shape(index: ast.expr, roles: dict[str, str]) -> tuple[PropertyKind, int]:
    elements = index.elts if isinstance(index, ast.Tuple) else [index]
    first = elements[0]
    role = roles.get(first.id) if isinstance(first, ast.Name) else None
    if role in {"f", "i"} and len(elements) == 1:
        return PropertyKind.VECTOR, 1
    is_edge = role == "e" or (isinstance(first, ast.Call) and "reverse" in ast.unparse(first.func))
    return (PropertyKind.EDGE if is_edge else PropertyKind.VERTEX), len(elements) - 1


def _note(
    seen: dict[str, tuple[PropertyKind, int]], iterated: set[str], name: str, shape: tuple[PropertyKind, int]
) -> None:
    if name.endswith("_next"):
        name = name[:-5]
        iterated.add(name)
    known = seen.get(name)
    if known is None or shape[1] > known[1]:
        seen[name] = shape
