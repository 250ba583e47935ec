"""One collaborative operation over named copies."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from featgraph.fold.analysis.operand_type import operand_type
from featgraph.fold.functions.facts import FunctionFacts
from featgraph.fold.functions.matrix_columns import MatrixColumns
from featgraph.fold.functions.nodes import Collective
from featgraph.fold.operations.contexts import Column
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.plan.schedules import MOST_HELD
from featgraph.fold.syntax.nodes import Operate, narrowed
from featgraph.fold.syntax.variance import varies
from featgraph.fold.tree.statements import Body, code, expression

__all__ = ["CopiesLike", "unrolled_call"]


class CopiesLike(Protocol):
    """The copies of a function's names: see `unrolled.Copies`."""

    facts: FunctionFacts
    varying: frozenset[str]
    areas: list[int]
    matrices: dict[str, str]

    def name(self, name: str, j: int) -> str:
        """Return the name of copy j of a varying name."""

    def names(self, name: str) -> list[str]:
        """Return the names of all copies."""

    def feature(self, j: int) -> ast.expr:
        """Return copy j's feature."""

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
    # A group that goes round with others keeps what its own last iteration gave.
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
    """What the operation asks of the function; see `operations.contexts.Unrolled`."""

    def __init__(self, copies: CopiesLike, node: Collective) -> None:
        facts = copies.facts
        self.copies, self.facts, self.node = copies, facts, node
        self.body: Body = []
        self.width, self.count = facts.width, facts.count
        self.lanes = facts.mapping.lanes_per_edge
        self.real, self.cuda = facts.context.real, facts.context.cuda
        self.predicated, self.padded = facts.predicated, facts.padded
        is_thread = facts.mapping.schedule == "thread"
        self.in_registers = is_thread and facts.width <= MOST_HELD
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
