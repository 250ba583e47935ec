"""Unroll features into variables: ``p`` becomes ``p_j`` for feature j of a lane.

A thread that owns all features (CPU, or one thread a vertex on CUDA) has one variable
for each feature and keeps the control flow of the user. Where lanes share features, a
lane has variables for its own. Collective operations reduce over these variables.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

from featgraph.fold.analysis.access import INDEXED
from featgraph.fold.analysis.gathers import operand_type
from featgraph.fold.operations.primitive import Column
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.passes.bodies.facts import BodyFacts
from featgraph.fold.passes.bodies.matrix_columns import MatrixColumns, inverse_element
from featgraph.fold.passes.bodies.nodes import (
    AnyFeature,
    Array,
    Collective,
    Define,
    GoOn,
    LoadRows,
    Masked,
    Row,
)
from featgraph.fold.passes.bodies.stores import can_store
from featgraph.fold.schedules.mapping import last_feature, stands_for
from featgraph.fold.schedules.table import SCHEDULES
from featgraph.fold.syntax.normal_form import is_collective, loop_varies, varies
from featgraph.fold.tree.statements import (
    Access,
    Atomic,
    Body,
    Operate,
    Rewriting,
    code,
    copied,
    expression,
    is_same,
    narrowed,
    placed,
)

__all__ = ["Copies", "unrolled"]


def unrolled(facts: BodyFacts, node: Define) -> Define:
    """Write varying names and statements once for each feature of a lane."""
    copies = Copies(facts, node.varying)
    body = copies.body(node.body)
    node.body = _features(copies) + body
    node.areas = tuple(copies.areas)
    given: list[str] = []
    for name in facts.temporaries:
        if name in facts.context.solved:
            k = range(facts.width)
            given += [f"{name}_{i}_{f}" for i in k for f in k]
        else:
            given += copies.names(name) if facts.is_wide(name) else [name]
    lanes = ["lane", "writer"] if facts.predicated else []
    areas = [f"work_{n}" for n in range(len(copies.areas))]
    matrices = [n for s in facts.staged.values() for n in s.names]
    node.more = (*lanes, *given, *areas, *matrices)
    return node


def _features(copies: Copies) -> Body:
    """Return the statements that number the features of a lane, with masks."""
    facts, out = copies.facts, list[str]()
    for j in range(facts.count if facts.predicated else 0):
        name, more = copies.name("f", j), f" + {j}" if j else ""
        lane = f"lane * {facts.count}{more}" if facts.count > 1 else "lane"
        out.append(f"{name} = {lane}")
        if facts.padded:
            out.append(f"{copies.name('inside', j)} = {name} < {facts.width}")
            # Lanes beyond the row repeat its last load.
            last = last_feature(facts.width, facts.piece, j)
            out.append(f"{name} = min({name}, {last})")
    return code("\n".join(out))


class Copies:
    """Copies of names and expressions of a function, one for each feature.

    Parameters
    ----------
    varying : frozenset of str
        Names of which there is a copy for each feature.
    """

    def __init__(self, facts: BodyFacts, varying: frozenset[str]) -> None:
        self.facts, self.varying = facts, varying
        #: Columns of the work areas that operations have asked for.
        self.areas: list[int] = []
        #: Inverse -> the area that it is in.
        self.matrices: dict[str, str] = {}
        self.rows: dict[str, Row] = {}

    # -- names and expressions

    def name(self, name: str, j: int) -> str:
        """Return the name of copy j of a varying name."""
        return name if self.facts.count == 1 else f"{name}_{j}"

    def names(self, name: str) -> list[str]:
        """Return the names of all copies."""
        return [self.name(name, j) for j in range(self.facts.count)]

    def feature(self, j: int) -> ast.expr:
        """Return the feature of copy j."""
        if self.facts.predicated:
            return ast.Name(self.name("f", j), ast.Load())
        return ast.Constant(j)

    def value(self, node: ast.expr, j: int = 0) -> ast.expr:
        """Return an expression for the feature of copy j."""
        return cast("ast.expr", _Copied(self, j).visit(copied(node)))

    def values(self, node: ast.expr) -> list[ast.expr]:
        """Return an expression for all features of a lane."""
        return [self.value(node, j) for j in range(self.facts.count)]

    # -- statements

    def body(self, body: Sequence[ast.stmt]) -> Body:
        """Return statements; varying ones once for each copy."""
        return [new for node in body for new in self._statement(node)]

    def _statement(self, node: ast.stmt) -> Body:
        if isinstance(node, ast.Assign) and is_collective(node.value):
            return placed(unrolled_call(self, Collective(node)), node)
        if isinstance(node, Collective):
            return placed(unrolled_call(self, node), node)
        if isinstance(node, LoadRows):
            return self._loads(node)
        if isinstance(node, ast.Return):
            return placed(self._return(narrowed(node.value, ast.expr)), node)
        if isinstance(node, GoOn):
            return self._go_on(node)
        if isinstance(node, ast.If | ast.For | ast.While) and not self._parts(node):
            return [self._together(node)]
        tests = node.tests if isinstance(node, Masked) else []
        one = node.body[0] if isinstance(node, Masked) else node
        if can_store(self.facts, one):
            return self._row_store(narrowed(one, ast.Assign), tests)
        return self._each(node)

    def _parts(self, node: ast.If | ast.For | ast.While) -> bool:
        """Whether a branch or a loop may diverge between features."""
        if isinstance(node, ast.If):
            return varies(node.test, self.varying)
        return loop_varies(node, self.varying)

    def _together(self, node: ast.If | ast.For | ast.While) -> ast.stmt:
        """Return a branch or loop that is entered by all features or by none."""
        if isinstance(node, ast.For):
            node.iter = self.value(node.iter)
            node.target = self.value(node.target)
        else:
            node.test = self.value(node.test)
        node.body = self.body(node.body)
        node.orelse = self.body(node.orelse)
        return node

    def _each(self, node: ast.stmt) -> Body:
        """Return a statement once if it is uniform, else once for each copy."""
        if isinstance(node, ast.Assign) and isinstance(node.value, AnyFeature):
            node.value = self._any(node.value.value, node.value.is_masked)
            return [node]
        one = node.body[0] if isinstance(node, Masked) else node
        atomics = any(isinstance(n, Atomic) for n in ast.walk(one))
        is_copied = varies(one, self.varying) or atomics
        count = self.facts.count if is_copied else 1
        return [_Copied(self, j).visit(copied(node)) for j in range(count)]

    def _return(self, value: ast.expr) -> Body:
        """Return the values of all features, or their common verdict."""
        entries: list[ast.expr] = []
        if isinstance(value, ast.Tuple) and self._has_all(value):
            entries = [e for x in value.elts[1:] for e in self._all(x)]
            value = value.elts[0]
        if isinstance(value, ast.Starred):
            values = self._all(value)
        elif self.facts.returns_value and not self.facts.predicated:
            values = self.values(value)
        else:
            values = [self._any(value, False)]
        values += entries
        one = values[0] if len(values) == 1 else ast.Tuple(values, ast.Load())
        return [ast.Return(one)]

    def _has_all(self, value: ast.Tuple) -> bool:
        return any(isinstance(x, ast.Starred) for x in value.elts)

    def _all(self, node: ast.expr) -> list[ast.expr]:
        """Return all copies of ``*x``."""
        return self.values(narrowed(node, ast.Starred).value)

    def _any(self, value: ast.expr, is_masked: bool) -> ast.expr:
        """Return whether a condition holds for any feature of a lane."""
        count = self.facts.count if varies(value, self.varying) else 1
        values: list[ast.expr] = []
        for j in range(count):
            one = self.value(value, j)
            if is_masked:
                inside = ast.Name(self.name("inside", j), ast.Load())
                one = ast.BoolOp(ast.And(), [inside, one])
            values.append(one)
        if not self.facts.predicated:
            values = [part for one in _different(values) for part in _either(one)]
        return values[0] if len(values) == 1 else ast.BoolOp(ast.Or(), values)

    def _go_on(self, node: GoOn) -> Body:
        """Return the calls of the split-off rest, one for each feature."""
        calls = self.values(node.call)
        if self.facts.returns_value:
            one = calls[0] if len(calls) == 1 else ast.Tuple(calls, ast.Load())
            return [ast.Return(one)]
        out = code("result = False")
        for call in calls:
            out += code("result |= CALL", CALL=call)
        return out + code("return result")

    # -- rows

    def _loads(self, node: LoadRows) -> Body:
        """Return a load for each piece of the rows."""
        facts, out = self.facts, list[ast.stmt]()
        self.rows = {row.name: row for row in node.rows}
        for first in range(0, facts.count, facts.piece):
            for row in node.rows:
                name = row.piece_name(first, facts.mapping)
                place = f"{row.key[0]}, {row.index}, COLUMN, {facts.mapping.stride}"
                out += code(
                    f"{name} = warp.load_row({place}, {facts.piece})",
                    COLUMN=self.feature(first),
                )
        return out

    def _row_store(self, node: ast.Assign, tests: list[ast.expr]) -> Body:
        """Return an assignment to a row, a store for each piece."""
        facts, target = self.facts, narrowed(node.targets[0], Access)
        out: Body = []
        for first in range(0, facts.count, facts.piece):
            pieces = range(first, first + facts.piece)
            # Nothing reads entries that are stored behind a row.
            values = [self.value(node.value, min(j, facts.count - 1)) for j in pieces]
            store = code(
                f"warp.store_row(ARRAY, ENTITY, COLUMN, {facts.mapping.stride}, "
                f"{facts.piece}, VALUES)",
                ARRAY=Array(target.name, target.version),
                ENTITY=target.indices[0],
                COLUMN=self.feature(first),
                VALUES=ast.Tuple(values, ast.Load()),
            )
            masks = [self.value(test, first) for test in tests]
            store = placed(store, node)
            out += [Masked(masks, store)] if masks else store
        return out


class _Copied(Rewriting):
    """Rewrite a statement or an expression for the feature of one copy."""

    def __init__(self, copies: Copies, j: int) -> None:
        self.copies, self.j = copies, j

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Name the copy."""
        if node.id == "f":
            return self.copies.feature(self.j)
        if node.id in self.copies.varying:
            node.id = self.copies.name(node.id, self.j)
        return node

    def visit_Access(self, node: Access) -> ast.AST:
        """Return an argument, or a loaded entry of a row, in place of an access."""
        facts, version = self.copies.facts, node.version
        if node.row:
            return self._of_row(self.copies.rows[node.row])
        is_given = node.name in facts.temporaries and version != INDEXED
        if is_given and len(node.indices) < 3 and facts.is_wide(node.name):
            return ast.Name(self.copies.name(node.name, self.j), ast.Load())
        return self.generic_visit(node)

    def _of_row(self, row: Row) -> ast.expr:
        """Return the loaded entry of a row; copies past the row get its last entry."""
        facts, j = self.copies.facts, self.j
        own = row.copy(j, facts.mapping)
        other = stands_for(facts.width, facts.piece, j) if facts.padded else None
        if other is not None and not row.register:
            inside = self.copies.name("inside", j)
            own = f"warp.select({inside}, {own}, {row.copy(other, facts.mapping)})"
        return expression(own)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Return an element of an inverse, in the right half of its work area."""
        self.generic_visit(node)
        name = node.value.id if isinstance(node.value, ast.Name) else ""
        area = self.copies.matrices.get(name)
        if area is None:
            return node
        row, column = narrowed(node.slice, ast.Tuple).elts
        return inverse_element(area, row, column, self.copies.facts.width)


def _different(values: list[ast.expr]) -> list[ast.expr]:
    """Return the distinct values, in order."""
    found: list[ast.expr] = []
    for value in values:
        if not any(is_same(value, other) for other in found):
            found.append(value)
    return found


def _either(node: ast.expr) -> list[ast.expr]:
    """Return the operands of a disjunction."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        return node.values
    return [node]


class CopiesLike(Protocol):
    """Interface of `Copies` for operations."""

    facts: BodyFacts
    varying: frozenset[str]
    areas: list[int]
    matrices: dict[str, str]

    def name(self, name: str, j: int) -> str:
        """Return the name of copy j of a varying name."""

    def names(self, name: str) -> list[str]:
        """Return the names of all copies."""

    def feature(self, j: int) -> ast.expr:
        """Return the feature of copy j."""

    def value(self, node: ast.expr, j: int = 0) -> ast.expr:
        """Return an expression for the feature of copy j."""


def unrolled_call(copies: CopiesLike, node: Collective) -> Body:
    """Return the statements of ``target = operation(...)``."""
    assigned = narrowed(node.call, ast.Assign)
    target = narrowed(assigned.targets[0], ast.Name).id
    operate = narrowed(assigned.value, Operate)
    copies.facts.fresh.begin()
    call = _UnrolledCall(copies, node)
    if not node.is_masked:
        primitive_of(operate).unroll(operate, target, call)
        return call.body
    # A group that only accompanies others keeps the result of its own last iteration.
    found = call.fresh("found")
    primitive_of(operate).unroll(operate, found, call)
    with call.block(f"if {node.predicate}:"):
        names, new = [target], [found]
        if target in copies.varying:
            names, new = copies.names(target), copies.names(found)
        for name, value in zip(names, new, strict=True):
            call.line(f"{name} = {value}")
    return call.body


class _UnrolledCall:
    """Context of an operation: see `operations.contexts.Unrolled`."""

    def __init__(self, copies: CopiesLike, node: Collective) -> None:
        facts = copies.facts
        self.copies, self.facts, self.node = copies, facts, node
        self.body: Body = []
        self.width, self.count = facts.width, facts.count
        self.lanes = facts.mapping.lanes_per_edge
        self.real, self.cuda = facts.context.real, facts.context.cuda
        self.predicated, self.padded = facts.predicated, facts.padded
        schedule = SCHEDULES[facts.mapping.schedule]
        self.in_registers = facts.width <= schedule.most_held
        self.tile = facts.mapping.tile
        self.threads = facts.mapping.lanes_per_vertex if self.tile else 0
        self.columns = MatrixColumns(copies, self.line)
        self.fresh = facts.fresh
        self.names, self.feature = copies.names, copies.feature

    def line(self, template: str, **parts: ast.expr) -> None:
        self.body += code(template, **parts)

    @contextmanager
    def block(self, header: str, **parts: ast.expr) -> Iterator[None]:
        outside, self.body = self.body, []
        yield
        self.body = outside + code(f"{header}\n    BODY", BODY=self.body, **parts)

    def inside(self, j: int) -> str:
        return self.copies.name("inside", j)

    # -- expressions

    def value(self, node: ast.expr, j: int = 0) -> ast.expr:
        return self.copies.value(node, j)

    def operands(
        self, node: ast.expr, identity: ast.expr, masked: bool = True
    ) -> list[ast.expr]:
        guarded = self.facts.needs_guard(node)
        predicate = self.node.predicate if masked and self.predicated else ""
        runs = bool(predicate) and self.node.runs
        tests = [predicate] if predicate else []
        tests += [self.facts.live] * (guarded and not runs)
        values = []
        for j in range(self.count):
            value = self.value(node, j)
            every = tests + ([self.inside(j)] if self.padded else [])
            if every:
                form = f"X if {' and '.join(every)} else NOTHING"
                value = expression(form, X=value, NOTHING=identity)
            values.append(value)
        return values

    def type_of(self, node: ast.expr) -> str:
        return operand_type(node, self.facts.function, self.facts.analysis)

    def varies(self, node: ast.AST) -> bool:
        return varies(node, self.copies.varying)

    # -- matrices

    def element(
        self, matrix: ast.expr, row: ast.expr, column: ast.expr, j: int = 0
    ) -> ast.expr:
        return self.columns.element(matrix, row, column, j)

    def in_whole_tiles(self, matrix: ast.expr) -> str:
        return self.columns.in_whole_tiles(matrix)

    def column(self, call: Operate) -> Column:
        return self.columns.column(call)

    def is_guarded(self, node: ast.expr) -> bool:
        return self.facts.needs_guard(node)

    def is_at_hand(self, matrix: ast.expr) -> bool:
        in_registers = bool(self.facts.staged) or self.columns.takes_rows(matrix)
        return in_registers and self.width > 1

    def new_area(self, columns: int) -> str:
        self.copies.areas.append(columns)
        return f"work_{len(self.copies.areas) - 1}"

    def store_inverse(self, target: str, area: str) -> None:
        self.copies.matrices[target] = area
