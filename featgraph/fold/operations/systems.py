"""Systems of K equations, and inverses.

Each copies the matrix to a work area of memory, and calls `featgraph.device`; a thread
solves a small system in registers.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from featgraph.fold.operations.block_systems import (
    call_in_block,
    fill_in_block,
    right_in_block,
    solve_in_tiles,
)
from featgraph.fold.operations.contexts import Looped, Unrolled
from featgraph.fold.operations.lanes import named
from featgraph.fold.operations.primitive import Primitive
from featgraph.fold.operations.small_solve import solve_lines
from featgraph.fold.syntax.nodes import Operate
from featgraph.fold.tree.statements import expression
from featgraph.program.operations import inverse, solve

__all__ = ["PRIMITIVES", "is_solution"]


@dataclass(frozen=True)
class Solve(Primitive):
    """The x with ``(A + diagonal * I) @ x = b``."""

    takes_area = True

    def unroll(self, call: Operate, target: str, copies: Unrolled) -> None:
        """Solve in registers where matrices stand there, else in memory."""
        names, k = copies.names(target), copies.width
        if copies.in_registers:
            _solve_in_registers(call, names, copies)
            return
        if copies.threads:
            _solve_in_block(call, names, copies)
            return
        area = _fill_unrolled(call.args[0], k + 1, copies)
        zero = expression(f"{copies.real}(0.0)")
        right = copies.operands(call.args[1], zero, masked=False)
        _each_row(f"{area}[F, {k}] = X", right, copies)
        _call_unrolled(f"solve_{_method(call)}", area, call, copies)
        for j, name in enumerate(names):
            copies.line(f"{name} = {area}[F, {k}]", F=copies.feature(j))

    def loop(self, call: Operate, target: str, loops: Looped) -> None:
        """Solve in memory; the CPU has a solver of its own for what is definite."""
        matrix, right = call.args
        k = loops.width
        area = _fill_looped(matrix, k + 1, loops)
        with loops.all_features():
            loops.line(f"{area}[f, {k}] = X", X=loops.value(right))
        if call.constant("spd") and not loops.cuda:
            diagonal = _diagonal(call, loops)
            loops.line(f"cholesky.solve_spd({area}, {k}, DIAGONAL)", DIAGONAL=diagonal)
        else:
            _call_looped(f"solve_{_method(call)}", area, call, loops)
        with loops.all_features():
            loops.line(f"{loops.element_of(target)} = {area}[f, {k}]")


@dataclass(frozen=True)
class Inverse(Primitive):
    """The inverse of a matrix; it stands right of column K of its work area."""

    is_matrix = True
    takes_area = True

    def varies(self, call: Operate, varies: Callable[[ast.AST], bool]) -> bool:
        """Be one matrix for all features."""
        return False

    def unroll(self, call: Operate, target: str, copies: Unrolled) -> None:
        """Invert in memory."""
        columns, function = 2 * copies.width, f"inverse_{_method(call)}"
        if copies.threads:
            area = fill_in_block(call.args[0], columns, copies)
            call_in_block(function, area, _diagonal(call, copies), copies)
        else:
            area = _fill_unrolled(call.args[0], columns, copies)
            _call_unrolled(function, area, call, copies)
        copies.store_inverse(target, area)

    def loop(self, call: Operate, target: str, loops: Looped) -> None:
        """Invert in memory."""
        area = _fill_looped(call.args[0], 2 * loops.width, loops)
        _call_looped(f"inverse_{_method(call)}", area, call, loops)
        loops.store_inverse(target, area)


def is_solution(node: ast.AST) -> bool:
    """Return whether an expression solves a system."""
    return isinstance(node, Operate) and node.operation is solve


def _method(call: Operate) -> str:
    return "spd" if call.constant("spd") else "general"


def _diagonal(call: Operate, form: Unrolled | Looped) -> ast.expr:
    given = call.option("diagonal")
    return expression(f"{form.real}(0.0)") if given is None else form.value(given)


# -- named copies


def _solve_in_registers(call: Operate, names: list[str], copies: Unrolled) -> None:
    matrix, right = call.args
    k, is_spd = copies.width, bool(call.constant("spd"))
    work, diagonal = copies.fresh("work"), copies.fresh("diagonal")
    copies.line(f"{diagonal} = X", X=_diagonal(call, copies))
    for i in range(k):
        for f in range(i + 1 if is_spd else k):
            shift = f" + {diagonal}" if i == f else ""
            element = copies.element(matrix, ast.Constant(i), ast.Constant(f))
            copies.line(f"{work}_{i}_{f} = A{shift}", A=element)
    # Nothing is masked: all features are this thread's.
    for i, value in enumerate(copies.operands(right, ast.Constant(0))):
        copies.line(f"{work}_{i}_{k} = X", X=value)
    copies.line("\n".join(solve_lines(work, copies.fresh("factor"), k, is_spd)))
    for i, name in enumerate(names):
        copies.line(f"{name} = {work}_{i}_{k}")


def _solve_in_block(call: Operate, names: list[str], copies: Unrolled) -> None:
    """Solve with all threads of a block, in tiles what is definite."""
    diagonal, k = _diagonal(call, copies), copies.width
    if call.constant("spd"):
        solve_in_tiles(call, names, diagonal, copies)
        return
    area = fill_in_block(call.args[0], k + 1, copies)
    right_in_block(f"{area}[F, {k}] = X", call.args[1], copies)
    call_in_block("solve_general", area, diagonal, copies)
    for j, name in enumerate(names):
        copies.line(f"{name} = {area}[F, {k}]", F=copies.feature(j))


def _fill_unrolled(matrix: ast.expr, columns: int, copies: Unrolled) -> str:
    """Copy a matrix into a new work area, each lane the rows of its features."""
    area, column = copies.new_area(columns), named("column")
    if copies.predicated:
        copies.line("warp.sync()")
    with copies.block(f"for column in range({copies.width}):"):
        rows = [
            copies.element(matrix, copies.feature(j), column, j)
            for j in range(copies.count)
        ]
        _each_row(f"{area}[F, COLUMN] = X", rows, copies, COLUMN=column)
    return area


def _each_row(
    template: str, values: list[ast.expr], copies: Unrolled, **parts: ast.expr
) -> None:
    """Add a statement for the row F and the value X of each copy that is a feature."""
    for j, value in enumerate(values):
        row = copies.feature(j)
        with ExitStack() as under:
            if copies.padded:
                under.enter_context(copies.block(f"if {copies.inside(j)}:"))
            copies.line(template, F=row, X=value, **parts)


def _call_unrolled(function: str, area: str, call: Operate, copies: Unrolled) -> None:
    """Call `featgraph.device.linalg`, all lanes together."""
    is_thread = copies.cuda and not copies.predicated
    solver = "linalg_thread" if is_thread else "linalg"
    lanes = f"lane, {copies.lanes}" if copies.predicated else "0, 1"
    copies.line(
        f"{solver}.{function}({area}, {copies.width}, DIAGONAL, {lanes})",
        DIAGONAL=_diagonal(call, copies),
    )


# -- loops over features


def _fill_looped(matrix: ast.expr, columns: int, loops: Looped) -> str:
    """Copy a matrix into a new work area."""
    area = loops.new_area(columns)
    with loops.all_features(), loops.block(f"for i in range({loops.width}):"):
        loops.line(f"{area}[f, i] = A", A=loops.element(matrix, named("f"), named("i")))
    return area


def _call_looped(function: str, area: str, call: Operate, loops: Looped) -> None:
    solver = "linalg_thread" if loops.cuda else "linalg"
    loops.line(
        f"{solver}.{function}({area}, {loops.width}, DIAGONAL, 0, 1)",
        DIAGONAL=_diagonal(call, loops),
    )


PRIMITIVES = (Solve(solve, "solution"), Inverse(inverse, "inverted"))
