"""The folder: from declared functions to kernels. Start reading here.

    Program --make_plan--> FoldPlan --emit--> KernelSource --Kernel--> launch

`make_plan` analyses the functions (`analysis.analyse`) and makes all decisions; `emit`
prints the module; `Kernel` compiles it at the first launch.

`fold_assumed` folds a program without a State, for inspection: `assumed_signature`
infers types from the way in which functions index properties. `fold_due_set` returns
kernels over vertex sets, which depend on no program.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeGuard

from featgraph.fold.compiling.kernel import DueSetKernel, Kernel
from featgraph.fold.operations.table import OPERATIONS
from featgraph.fold.passes.nests.due_sets import KERNELS, SetFacts
from featgraph.fold.passes.nests.facts import LAYOUTS
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.printing.emit import emit
from featgraph.program.program import Program
from featgraph.program.signature import RESERVED, PropertyKind, PropertyType, Signature

__all__ = ["assumed_signature", "fold", "fold_assumed", "fold_due_set"]


def fold(
    program: Program,
    signature: Signature,
    options: Options,
    traits: GraphTraits,
    known: dict[Any, Kernel] | None = None,
) -> Kernel:
    """Fold a program into kernels.

    Parameters
    ----------
    program : Program
        The user functions, in order.
    signature : Signature
        Types of the properties and scalars in these functions.
    options : Options
        Target and options of the call.
    traits : GraphTraits
        Traits of the graph on which mappings depend.
    known : dict, optional
        Kernels of this program. A plan that differs in traits only gets one of these.

    Returns
    -------
    Kernel
        The generated module; it is compiled at the first launch.

    Raises
    ------
    UserFunctionError
        If a function violates the model; the message has file and line.
    PlanError
        If the program does not allow the options.
    """
    plan = make_plan(program, signature, options, traits)
    if known is None:
        return Kernel(emit(plan))
    key = tuple(sorted(signature.items())), options, plan.printed
    if key not in known:
        known[key] = Kernel(emit(plan))
    return known[key]


def fold_due_set(
    name: str, traits: GraphTraits, target: str, along: str
) -> DueSetKernel:
    """Return a kernel over vertex sets, by name, that walks edges `along`.

    One kernel serves all programs and all graphs of a layout.
    """
    wide = traits.wide_offsets or (along == "both" and traits.wide_both)
    layout = traits.layout
    has_twins = traits.undirected and layout == "runs"
    return _due_set(name, layout, LAYOUTS[layout], target, wide, has_twins)


@cache
def _due_set(
    name: str, layout: str, make: Any, target: str, wide: bool, has_twins: bool
) -> DueSetKernel:
    """Return a kernel, cached; `make`, the class of the layout, is part of the key."""
    traits = GraphTraits(layout=layout, wide_offsets=wide, undirected=has_twins)
    return DueSetKernel(SetFacts(KERNELS[target][name], traits, target))


def fold_assumed(program: Program, k: int, dtype: str, options: Options) -> Kernel:
    """Fold a program for types inferred from its functions, for inspection.

    Parameters
    ----------
    k : int
        Features of properties indexed with f.
    dtype : str
        Storage type of real numbers.
    """
    return fold(program, assumed_signature(program, k, dtype), options, GraphTraits())


#: Operations whose first argument is a matrix; the second is a row.
_TAKE_MATRICES = {n for n, p in OPERATIONS.items() if p.takes_matrix}
#: Operations whose arguments are rows, with those written in terms of others.
_TAKE_ROWS = {n for n, p in OPERATIONS.items() if p.is_pattern}
_TAKE_ROWS |= {"dot", "log_normalize", "logsumexp", "norm"}


def assumed_signature(program: Program, k: int, dtype: str) -> Signature:
    """Return the types that the functions of a program suggest.

    ``d.x[v, f]`` is a vertex property of `k` features, ``d.w[e]`` an edge property,
    ``d.a[f]`` a vector, and ``d.alpha`` a real scalar. A name that is used with
    ``_next`` is iterated. A property in an index, or in the feature of a broadcast, is
    an integer. ``d.x[v]`` as an argument of an operation is a matrix or a row, as the
    operation takes it; ``d.x`` is a matrix or vector that belongs to no vertex.
    """
    seen: dict[str, tuple[PropertyKind, int]] = {}
    iterated: set[str] = set()
    integers: set[str] = set()
    filled = {getattr(f, "into", None) for f in program.functions}
    filled |= {f"{name}_source" for name in filled}
    for function in program.functions:
        roles = dict(zip(function.source.parameters, function.roles, strict=True))
        within = getattr(function, "within", None)
        if within is not None:
            _note(seen, iterated, within, (PropertyKind.EDGE, 0))
        indexed: set[int] = set()
        for node in ast.walk(function.source.tree):
            owner = getattr(node, "value", None)
            if isinstance(node, ast.Subscript) and _is_data(owner, roles):
                indexed.add(id(owner))
                _note(seen, iterated, owner.attr, _shape(node.slice, roles))
                integers |= _data_names(node.slice, roles)
            elif isinstance(node, ast.Call):
                if ast.unparse(node.func).split(".")[-1] == "broadcast":
                    for feature in node.args[1:2]:
                        integers |= _data_names(feature, roles)
                for owner, shape in _given_whole(node, roles):
                    indexed.add(id(owner))
                    _note(seen, iterated, owner.attr, shape)
        for node in ast.walk(function.source.tree):
            if _is_data(node, roles) and id(node) not in indexed:
                _note(seen, iterated, node.attr, (PropertyKind.SCALAR, 0))
    signature: Signature = {}
    for name, (kind, rank) in seen.items():
        if name in filled or name in RESERVED:
            continue
        is_scalar = kind is PropertyKind.SCALAR
        stored = "real" if is_scalar else dtype
        if name in integers:
            stored = "int64" if is_scalar else "int32"
        signature[name] = PropertyType(kind, stored, (k,) * rank, name in iterated)
    return signature


def _is_data(node: Any, roles: dict[str, str]) -> TypeGuard[ast.Attribute]:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and roles.get(node.value.id) == "d"
    )


def _data_names(index: ast.expr, roles: dict[str, str]) -> set[str]:
    """Return the properties in an index expression."""
    return {n.attr for n in ast.walk(index) if _is_data(n, roles)}


def _given_whole(
    call: ast.Call, roles: dict[str, str]
) -> Iterator[tuple[ast.Attribute, tuple[PropertyKind, int]]]:
    """Yield properties in arguments of atomics, and whole matrices and rows.

    Each comes with its kind and its number of feature axes.
    """
    called = ast.unparse(call.func).split(".")
    first = call.args[0] if call.args else None
    if "atomic" in called and len(call.args) == 3 and _is_data(first, roles):
        yield first, _shape(call.args[1], roles)
    for matrix in _summands(first) if called[-1] in _TAKE_MATRICES else []:
        if isinstance(matrix, ast.Subscript):
            owner = matrix.value
            kind, rank = _shape(matrix.slice, roles)
            if rank == 0 and _is_data(owner, roles):
                yield owner, (kind, 2)
        elif _is_data(matrix, roles):
            yield matrix, (PropertyKind.VECTOR, 2)
    takes_rows = called[-1] in _TAKE_MATRICES | _TAKE_ROWS
    for row in call.args[called[-1] in _TAKE_MATRICES :] if takes_rows else []:
        if isinstance(row, ast.Subscript) and _is_data(row.value, roles):
            kind, rank = _shape(row.slice, roles)
            yield row.value, (kind, max(rank, 1))
        elif called[-1] in _TAKE_ROWS and _is_data(row, roles):
            yield row, (PropertyKind.VECTOR, 1)


def _summands(node: Any) -> list[Any]:
    """Return the operands of a chain of binary operators, such as ``A + B - C``."""
    if isinstance(node, ast.BinOp):
        return _summands(node.left) + _summands(node.right)
    return [node]


def _shape(index: ast.expr, roles: dict[str, str]) -> tuple[PropertyKind, int]:
    """Return the kind and the number of feature axes of a property, by an index."""
    elements = index.elts if isinstance(index, ast.Tuple) else [index]
    first = elements[0]
    role = roles.get(first.id) if isinstance(first, ast.Name) else None
    if role in {"f", "i"}:
        return PropertyKind.VECTOR, len(elements)
    is_edge = role in {"e", "e_uv", "e_uw", "e_vw"} or (
        isinstance(first, ast.Call) and "reverse" in ast.unparse(first.func)
    )
    return (PropertyKind.EDGE if is_edge else PropertyKind.VERTEX), len(elements) - 1


def _note(
    seen: dict[str, tuple[PropertyKind, int]],
    iterated: set[str],
    name: str,
    shape: tuple[PropertyKind, int],
) -> None:
    """Record a use of a property: the use with most feature axes wins."""
    if name.endswith("_next"):
        name = name[:-5]
        iterated.add(name)
    known = seen.get(name)
    if known is None or shape[1] > known[1]:
        seen[name] = shape
