"""Turn a user function into functions of the generated module.

`form_of` chooses how its features are handled, and `defined` returns its first tree.
Passes call the others: `parts_of` splits an outer product into its factors,
`apart` splits off the statements behind a return that differs between features,
`with_keys` returns sources beside keys, and `with_sums` returns the sums of a triangle
function. A triangle function adds to properties of three vertices and three edges; a
kernel visits many triangles of one vertex in a row, and adds their sum to memory once.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from featgraph.base.dataclass import replace
from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathers import Sum, added_by, find_sums
from featgraph.fold.passes.bodies.facts import BodyFacts, Context
from featgraph.fold.passes.bodies.nodes import Define, GoOn
from featgraph.fold.passes.bodies.stores import stores_rows
from featgraph.fold.passes.bodies.vectorized import column_form, vector_form
from featgraph.fold.plan.plan import Phase
from featgraph.fold.syntax.normal_form import returns_apart
from featgraph.fold.tree.statements import (
    Access,
    Atomic,
    Body,
    Rewriting,
    assigned_names,
    code,
    copied,
    copy_location,
    names_read,
    noted,
    placed,
)
from featgraph.program.signature import Signature

__all__ = [
    "apart",
    "decorator_of",
    "defined",
    "form_of",
    "parts_of",
    "with_keys",
    "with_sums",
]


def form_of(context: Context, phase: Phase, function: Analysed) -> str:
    """Return the form in which a function handles its features: see `BodyFacts`."""
    if phase.kind.intersects:
        return "triangle"
    summed = function.outer_product is not None and function.into in phase.in_registers
    if summed or function.into in phase.tiles:
        return "columns" if column_form(context, function) else "parts"
    if vector_form(context, phase, function):
        return "vectorized"
    by_feature = function.is_scalar or not function.kind.exclusive
    by_feature = by_feature and not function.collective
    if by_feature and not stores_rows(context, function):
        return "feature"
    return (
        "looped" if phase.mapping.is_looped and not function.is_scalar else "unrolled"
    )


def defined(facts: BodyFacts) -> Define:
    """Return the `Define` node of a user function as the analysis left it."""
    function, form = facts.function, facts.form
    body = [copied(statement) for statement in function.body]
    roles, given = facts.roles, facts.temporaries
    if form in {"feature", "triangle"} and not function.kind.exclusive:
        unused = {"f"} if function.is_scalar else set()
        roles = tuple(r for r in function.declared.roles if r not in unused)
    in_vectors = form in {"vectorized", "columns"} and not function.kind.writes_vertices
    cuda = facts.context.cuda
    # A call would pass vectors in memory, and all arrays of `d`.
    is_inner = in_vectors or (function.is_inlined and not cuda)
    decorator = "njit(**INNER)" if is_inner else decorator_of(cuda)
    varying = function.varying
    return Define(function.name, form, roles, body, given, varying, decorator=decorator)


def decorator_of(cuda: bool) -> str:
    """Return the decorator of functions that kernels call."""
    return "device_function" if cuda else "njit(**INLINE)"


def parts_of(facts: BodyFacts, node: Define) -> list[Define]:
    """Split an outer product into functions of its column, its row and its scale."""
    parts = facts.function.outer_product
    if parts is None:
        raise TypeError(f"{node.name} is no outer product")
    in_vectors = facts.form == "columns"
    made: list[Define] = []
    for part, first, value in (
        ("column", () if in_vectors else ("f",), parts.column),
        ("row", ("i",), None if parts.symmetric else parts.row),
        ("scale", (), parts.scale),
    ):
        if value is None:
            continue
        returned = copy_location(ast.Return(copied(value)), value)
        is_column = part == "column" and in_vectors
        made.append(
            Define(
                f"{node.name}_{part}",
                "vectorized" if is_column else "feature",
                (*first, *node.roles),
                [returned],
                node.more,
                node.varying,
                decorator=node.decorator,
            )
        )
    return made


def apart(facts: BodyFacts, node: Define) -> list[Define]:
    """Split off the statements behind a return that differs between features."""
    body = node.body
    cut = next(
        (n for n, s in enumerate(body) if returns_apart(s, node.varying)), len(body)
    )
    head, rest = body[:cut], body[cut:]
    if not rest:
        return [node]
    live = sorted(_united(names_read, rest) & _united(assigned_names, head))
    given = [name for name in facts.temporaries if name not in facts.context.solved]
    roles = facts.function.declared.roles
    name = f"{node.name}_rest"
    after = Define(name, "rest", roles, rest, (*given, *live), decorator=node.decorator)
    args = [_named(role) for role in roles]
    args += [_given(facts, temporary) for temporary in given]
    call = ast.Call(_named(name), [*args, *map(_named, live)], [])
    node.body = [*head, GoOn(call)]
    return [after, node]


def _named(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _given(facts: BodyFacts, temporary: str) -> ast.expr:
    """Return the argument that passes a temporary to the split-off function."""
    indices = ["v", "f"] if facts.is_wide(temporary) else ["v"]
    return Access(temporary, "now", list(map(_named, indices)))


def _united(
    names: Callable[[ast.stmt], set[str]], body: Sequence[ast.stmt]
) -> set[str]:
    return set().union(*map(names, body))


def with_keys(facts: BodyFacts, node: Define) -> Define:
    """Make the function of an argmin or argmax return (key, source)."""
    node.body = _Returned(facts).over(node.body)
    return node


class _Returned(Rewriting):
    def __init__(self, facts: BodyFacts) -> None:
        self.facts = facts

    def visit_Return(self, node: ast.Return) -> ast.Return:
        if node.value is not None:
            node.value = self.facts.returned(node.value)
        return node


def with_sums(facts: BodyFacts, node: Define) -> Define:
    """Make a triangle function add to local variables, and return them."""
    sums = find_sums(facts.function, facts.analysis.signature)
    starts: Body = []
    for each in sums:
        start = code(f"{each.name} = {each.zero}")
        starts += noted(start, f"into d.{each.into}[{each.role}]")
    node.body = starts + _Added(sums, facts.analysis.signature).over(node.body)
    return node


class _Added(Rewriting):
    """Replace additions to memory by additions to returned local variables."""

    def __init__(self, sums: tuple[Sum, ...], signature: Signature) -> None:
        self.sums, self.signature = sums, signature
        self.numbered = {replace(s, number=0): s for s in sums}

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        """Add to a local variable."""
        found = added_by(node, self.signature)
        added = None if found is None else self.numbered.get(found)
        if added is None or not isinstance(node.value, Atomic):
            return node
        [more] = code(added.plus("MORE"), MORE=node.value.value)
        return ast.copy_location(more, node)

    def visit_Return(self, node: ast.Return) -> Body:
        """Return the local variables."""
        returned = ", ".join(each.name for each in self.sums)
        return placed(code(f"return {returned}"), node)
