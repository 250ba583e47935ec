"""Pieces of rows: several neighboring features of a property by one load or store.

A lane that takes several features reads ``d.label[u, f]`` for all of them at once, into
named copies that stand for the accesses in what is printed. Which accesses these are is
found here, from their nodes: those that a function makes in any case, so that no load
is made in vain, to a row that as many features share out evenly as a load takes.
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

    Such rows are as far apart as a mapping says that has pieces of them.
    """
    type_ = analysis.signature.get(name)
    if piece == 1 or type_ is None or type_.kind.value not in {"vertex", "edge"}:
        return False
    size = np.dtype(analysis.real if type_.dtype == "real" else type_.dtype).itemsize
    return type_.item_shape == (width,) and size in {4, 8}


def with_rows(facts: BodyFacts, node: Define) -> Define:
    """Have a function take the rows that it reads in any case, or load them."""
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
    """Takes features of rows that a function is given."""

    def visit_Access(self, node: Access) -> ast.expr:
        """Take what has been loaded."""
        return ast.Name(node.row, ast.Load()) if node.row else node


def row_key(node: Access, memory: Memory, feature: str = "f") -> Key | None:
    """Return what tells this access's row from others; None if it is no ``[.., f]``."""
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
    """Return the rows that `body` reads in any case, in order of first reading.

    Parameters
    ----------
    mapping : Mapping
        How many features are loaded at once.
    feature : str
        The index whose features these are: "f", or "i" of a matrix.
    goes_on : bool
        Whether a lane goes through what stands behind a return, as predicated functions
        do. Rows of the function's own vertex or edge are read behind one anyway: the
        function runs once for them, and most often to its end.
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
    """Return (name, version) of what is assigned to; "any" version of atomics."""
    written: set[tuple[str, str]] = set()
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], Access):
                written.add((node.targets[0].name, node.targets[0].version))
            elif isinstance(node, Atomic):
                written.add((node.name, "any"))
    return written


def _certain(body: Body) -> Iterator[tuple[Access, bool]]:
    """Yield the accesses on the way through `body`, and whether a return may precede.

    What stands under a condition or in a loop is not on the way.
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
    """Return `rows` with what a gather reads of edges whose entries are forwarded."""
    reads = {a.name for a in facts.function.accesses if a.version == "next"}
    in_registers = [
        Row((f"d.{name}_next", "e"), own, "e", own)
        for name, own in facts.context.forwarded.items()
        if name in reads
    ]
    keys = {row.key for row in in_registers}
    return (*(row for row in rows if row.key not in keys), *in_registers)


def copied(name: str, commits: bool) -> tuple[str, str]:
    """Return the arrays that entries are copied to and from.

    They are copied to the next buffer where a function returns False; a commit goes
    the other way.
    """
    current, next_ = f"d.{name}", f"d.{name}_next"
    return (current, next_) if commits else (next_, current)


def can_store(facts: BodyFacts, node: ast.stmt) -> bool:
    """Return whether an assignment to a row can be made in pieces.

    What it assigns must not read what it writes: the copies come one after the other
    otherwise.
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
