"""Pieces of rows: several neighboring features of a property by one load or store.

A lane that takes several features reads ``d.label[u, f]`` for all of them at once, into
named copies that stand for the accesses in what is printed. Which accesses these are is
found here, from their nodes: those that a function makes in any case, so that no load
is made in vain, to a row that as many features share out evenly as a load takes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.codegen.text.expressions import Style, print_expression, row_key
from featgraph.fold.schedules.mapping import Mapping
from featgraph.fold.syntax.nodes import Access, Atomic, Whole
from featgraph.program.names import GENERATED

__all__ = [
    "Row",
    "can_store",
    "copied",
    "find_rows",
    "is_piecewise",
    "load_lines",
    "store_line",
    "with_forwarded",
]


@dataclass(frozen=True)
class Row:
    """A row that a function reads in pieces.

    Attributes
    ----------
    key : (str, str)
        Text of the array, and of the vertex or edge: what accesses are known by.
    name : str
        Of the loaded tuple, where a lane takes one piece; else with the place of the
        piece's first feature behind it.
    index : str
        Text of the first index.
    held : str
        Where the row is in registers anyway: what its copies are called.
    """

    key: tuple[str, str]
    name: str
    index: str
    held: str = ""

    def piece_name(self, j: int, mapping: Mapping) -> str:
        """Return the name of the piece that holds a lane's feature j."""
        first = j - j % mapping.piece
        return self.name if mapping.copies == mapping.piece else f"{self.name}_{first}"

    def copy(self, j: int, mapping: Mapping) -> str:
        """Return the text of a lane's feature j."""
        if self.held:
            return f"{self.held}_{j}"
        return f"{self.piece_name(j, mapping)}[{j % mapping.piece}]"


def is_piecewise(analysis: Analysis, name: str, width: int, piece: int) -> bool:
    """Return whether rows of a property can be loaded in pieces."""
    type_ = analysis.signature.get(name)
    if piece == 1 or type_ is None or type_.kind.value not in {"vertex", "edge"}:
        return False
    size = np.dtype(analysis.real if type_.dtype == "real" else type_.dtype).itemsize
    return type_.item_shape == (width,) and width % piece == 0 and size in {4, 8}


def find_rows(
    analysis: Analysis,
    function: Analysed,
    mapping: Mapping,
    style: Style,
    body: list[ast.stmt],
    goes_on: bool,
) -> tuple[Row, ...]:
    """Return the rows that `body` reads in any case, in order of first reading.

    Parameters
    ----------
    goes_on : bool
        Whether a lane goes through what stands behind a return, as predicated functions
        do. Rows of the function's own vertex or edge are read behind one anyway: the
        function runs once for them, and most often to its end.
    """
    if mapping.piece == 1 or style.guard is not None or function.is_scalar:
        return ()
    written = _written(function.body)
    own = "e" if function.kind == "edge" else "v"
    if function.kind == "gather":
        own = ""
    taken = set(analysis.temporaries) | set(analysis.signature) | GENERATED
    taken |= {name for f in analysis.functions for name in (*f.variables, f.name)}
    taken |= {helper.name for helper in analysis.helpers}
    found: dict[tuple[str, str], Row] = {}
    for node, behind_return in _certain(body):
        key = row_key(node, style)
        if key is None or key in found or node.name in style.temporaries:
            continue
        if behind_return and not goes_on and key[1] != own:
            continue
        if (node.name, node.version) in written or (node.name, "any") in written:
            continue
        if not is_piecewise(analysis, node.name, style.width, mapping.piece):
            continue
        name = f"{key[0].removeprefix('d.')}_{key[1]}"
        while name in taken:
            name += "_"
        taken.add(name)
        found[key] = Row(key, name, _index(node.indices[0], key[1], style))
    return tuple(found.values())


def _index(entity: ast.expr, name: str, style: Style) -> str:
    text = print_expression(entity, style)
    return style.index(text) if name in {"u", "v"} else text


def _written(body: list[ast.stmt] | tuple[ast.stmt, ...]) -> set[tuple[str, str]]:
    """Return (name, version) of what is assigned to; "any" version of atomics."""
    written: set[tuple[str, str]] = set()
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], Access):
                written.add((node.targets[0].name, node.targets[0].version))
            elif isinstance(node, Atomic):
                written.add((node.name, "any"))
    return written


def _certain(body: list[ast.stmt]) -> Iterator[tuple[Access, bool]]:
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


def load_lines(
    rows: tuple[Row, ...], first: int, f: str, width: int, mapping: Mapping
) -> list[str]:
    """Return the statements that load the piece of all `rows` that begins at `first`.

    Parameters
    ----------
    f : str
        Text of the feature of copy `first`.
    width : int
        K.
    """
    column = f if f.isdigit() else f"uint32({f})"
    return [
        f"{row.piece_name(first, mapping)} = warp.load_row({row.key[0]}, {row.index}, "
        f"{column}, {width}, {mapping.piece})"
        for row in rows
        if not row.held
    ]


def with_forwarded(
    rows: tuple[Row, ...], function: Analysed, forwarded: dict[str, str]
) -> tuple[Row, ...]:
    """Return `rows` with what a gather reads of edges whose entries are forwarded."""
    reads = {a.name for a in function.accesses if a.version == "next"}
    held = [
        Row((f"d.{name}_next", "e"), own, "e", own)
        for name, own in forwarded.items()
        if name in reads
    ]
    keys = {row.key for row in held}
    return (*(row for row in rows if row.key not in keys), *held)


def store_line(
    target: Access, values: list[str], f: str, style: Style, piece: int
) -> str:
    """Return the statement that stores a piece of a row."""
    column = f if f.isdigit() else f"uint32({f})"
    array, entity = row_key(target, style) or ("", "")
    index = _index(target.indices[0], entity, style)
    return (
        f"warp.store_row({array}, {index}, {column}, {style.width}, {piece}, "
        f"({', '.join(values)}))"
    )


def copied(name: str, commits: bool) -> tuple[str, str]:
    """Return the arrays that entries are copied to and from.

    They are copied to the next buffer where a function returns False; a commit goes
    the other way.
    """
    current, next_ = f"d.{name}", f"d.{name}_next"
    return (current, next_) if commits else (next_, current)


def can_store(analysis: Analysis, node: ast.stmt, style: Style, piece: int) -> bool:
    """Return whether an assignment to a row can be made in pieces.

    What it assigns must not read what it writes: the copies come one after the other
    otherwise.
    """
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], Access):
        return False
    target = node.targets[0]
    own = row_key(target, style)
    if style.guard is not None or own is None:
        return False
    for inner in ast.walk(node.value):
        if isinstance(inner, Atomic):
            return False
        if isinstance(inner, Access | Whole) and inner.name == target.name:
            same = isinstance(inner, Access) and row_key(inner, style) == own
            if not same and inner.version == target.version:
                return False
    return is_piecewise(analysis, target.name, style.width, piece)
