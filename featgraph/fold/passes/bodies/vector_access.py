"""Vector loads and stores of rows: several neighboring features at a time.

A lane with several features loads ``d.label[u, f]`` for all of them at once, into
variables that replace the accesses. This pass finds these accesses: the function must
make them on every path, so that no load is wasted, and K must be a multiple of the
features of one load, or rows must be padded.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from featgraph.fold.analysis.analyse import Analysis
from featgraph.fold.analysis.gathered_values import INDEXED
from featgraph.fold.analysis.gathers import is_matrix
from featgraph.fold.passes.bodies.facts import BodyFacts
from featgraph.fold.passes.bodies.memory import Memory, array_of, reached
from featgraph.fold.passes.bodies.nodes import Define, Key, LoadRows, Row
from featgraph.fold.schedules.mapping import Mapping
from featgraph.fold.tree.expressions import Access, Atomic, Whole, is_reversed
from featgraph.fold.tree.statements import Body, Rewriting, every
from featgraph.program.names import GENERATED

__all__ = ["can_store", "copied", "is_piecewise", "row_key", "with_rows"]


def is_piecewise(analysis: Analysis, name: str, width: int, piece: int) -> bool:
    """Return whether rows of a property can be loaded in pieces.

    Their stride is the padded one that the mapping assumes.
    """
    type_ = analysis.signature.get(name)
    if piece == 1 or type_ is None or type_.kind.value not in {"vertex", "edge"}:
        return False
    size = np.dtype(analysis.real if type_.dtype == "real" else type_.dtype).itemsize
    return type_.item_shape == (width,) and size in {4, 8}


def with_rows(facts: BodyFacts, node: Define) -> Define:
    """Load rows that are read on every path, or take them as arguments."""
    function, mapping, feature = facts.function, facts.mapping, "f"
    if node.form == "feature" and is_matrix(function) and facts.form == "feature":
        mapping, feature = mapping.of_column(facts.context.width), "i"
    goes_on = node.form == "unrolled" and facts.predicated
    rows = _find_rows(facts, node.body, mapping, feature, goes_on)
    if node.form == "feature" and function.kind.gathers and facts.form == "feature":
        rows = _with_forwarded(rows, facts)
    by_key = {row.key: row for row in rows}
    for access in [n for n in every(node.body) if isinstance(n, Access)]:
        key = row_key(access, facts.memory, feature)
        row = by_key.get(key) if key is not None else None
        access.row = row.name if row is not None else ""
    if node.form == "unrolled":
        node.body = [LoadRows(rows), *node.body] if rows else node.body
    else:
        node.rows = rows
        node.more += tuple(row.name for row in rows)
        node.body = _Taken().over(node.body)
    return node


class _Taken(Rewriting):
    """Replace accesses to rows by arguments."""

    def visit_Access(self, node: Access) -> ast.expr:
        """Return the loaded entry."""
        return ast.Name(node.row, ast.Load()) if node.row else node


def row_key(node: Access, memory: Memory, feature: str = "f") -> Key | None:
    """Return the key of the row of an access; None if it is no ``[.., f]``."""
    if len(node.indices) != 2 or node.version == INDEXED:
        return None
    entity, last = node.indices
    if not (isinstance(last, ast.Name) and last.id == feature):
        return None
    if is_reversed(entity):
        return ast.unparse(array_of(node, memory)), "twin"
    if isinstance(entity, ast.Name) and entity.id in {"u", "v", "e"}:
        return ast.unparse(array_of(node, memory)), entity.id
    return None


def _find_rows(
    facts: BodyFacts, body: Body, mapping: Mapping, feature: str, goes_on: bool
) -> tuple[Row, ...]:
    """Return the rows that `body` reads on every path, in order of first access.

    Parameters
    ----------
    mapping : Mapping
        Gives the number of features of one load.
    feature : str
        Index over features: "f", or "i" of a matrix.
    goes_on : bool
        Whether lanes execute statements behind a return, as in predicated functions.
        Rows of the own vertex or edge count behind a return in any case: the function
        runs once for them, and most often to its end.
    """
    function, analysis, memory = facts.function, facts.analysis, facts.memory
    if (
        mapping.vector_width == 1
        or facts.context.checked is not None
        or function.is_scalar
    ):
        return ()
    # All reads of what an exclusive function writes come before the first write.
    written = set() if function.kind.exclusive else _written(function.body)
    own = "e" if function.kind.writes_edges else "v"
    if function.kind.gathers:
        own = ""
    taken = analysis.emitted | set(analysis.signature) | GENERATED
    taken |= {name for f in analysis.functions for name in (*f.variables, f.name)}
    taken |= {helper.name for helper in analysis.helpers}
    found: dict[Key, Row] = {}
    for node, behind_return in _certain(body):
        key = row_key(node, memory, feature)
        if key is None or key in found or node.name in memory.temporaries:
            continue
        if behind_return and not goes_on and key[1] != own:
            continue
        if (node.name, node.version) in written or (node.name, "any") in written:
            continue
        if not is_piecewise(analysis, node.name, memory.width, mapping.vector_width):
            continue
        name = f"{key[0].removeprefix('d.')}_{key[1]}"
        while name in taken:
            name += "_"
        taken.add(name)
        index = ast.unparse(reached(node.indices[0], memory))
        found[key] = Row(key, name, index)
    return tuple(found.values())


def _written(body: Body | tuple[ast.stmt, ...]) -> set[tuple[str, str]]:
    """Return (name, version) of assigned arrays; version "any" for atomics."""
    written: set[tuple[str, str]] = set()
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], Access):
                written.add((node.targets[0].name, node.targets[0].version))
            elif isinstance(node, Atomic):
                written.add((node.name, "any"))
    return written


def _certain(body: Body) -> Iterator[tuple[Access, bool]]:
    """Yield the accesses on every path, and whether a return may precede each.

    Accesses under a condition or in a loop are not on every path.
    """
    behind_return = False
    for statement in body:
        if isinstance(statement, ast.Assign | ast.Return):
            parts = [] if statement.value is None else [statement.value]
        elif isinstance(statement, ast.If | ast.While):
            parts = [statement.test]
        elif isinstance(statement, ast.For):
            parts = [statement.iter]
        else:
            parts = list(ast.iter_child_nodes(statement))  # type: ignore[arg-type]
        for part in parts:
            for access in _certain_in(part):
                yield access, behind_return
        if any(isinstance(node, ast.Return) for node in ast.walk(statement)):
            behind_return = True


def _certain_in(node: ast.AST) -> Iterator[Access]:
    if isinstance(node, Access):
        yield node
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.IfExp):
        children = [node.test]
    elif isinstance(node, ast.BoolOp):
        children = children[1:2]  # the operator is first
    elif isinstance(node, ast.Compare):
        children = [node.left, node.comparators[0]]
    for child in children:
        yield from _certain_in(child)


def _with_forwarded(rows: tuple[Row, ...], facts: BodyFacts) -> tuple[Row, ...]:
    """Add the rows of forwarded edge entries that a gather reads."""
    reads = {a.name for a in facts.function.accesses if a.version == "next"}
    in_registers = [
        Row((f"d.{name}_next", "e"), own, "e", own)
        for name, own in facts.context.forwarded.items()
        if name in reads
    ]
    keys = {row.key for row in in_registers}
    return (*(row for row in rows if row.key not in keys), *in_registers)


def copied(name: str, commits: bool) -> tuple[str, str]:
    """Return the arrays that a copy of entries writes and reads.

    Where a function returns False, current entries go to the next buffer; a commit
    copies in the other direction.
    """
    current, next_ = f"d.{name}", f"d.{name}_next"
    return (current, next_) if commits else (next_, current)


def can_store(facts: BodyFacts, node: ast.stmt) -> bool:
    """Return whether an assignment to a row can use vector stores.

    Its value must not read the entries that it writes: copies would otherwise have to
    run one after the other.
    """
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], Access):
        return False
    target = node.targets[0]
    own = row_key(target, facts.memory)
    if facts.context.checked is not None or own is None:
        return False
    for inner in ast.walk(node.value):
        if isinstance(inner, Atomic):
            return False
        if isinstance(inner, Access | Whole) and inner.name == target.name:
            same = isinstance(inner, Access) and row_key(inner, facts.memory) == own
            if not same and inner.version == target.version:
                return False
    return is_piecewise(facts.analysis, target.name, facts.memory.width, facts.piece)
