"""Systems of K equations (`fg.solve`), and inverses (`fg.inverse`).

There are three ways:

- In memory: the matrix is copied to a work area, and a function of
  `featgraph.device.linalg` solves the system with all lanes of the vertex.
- In registers: a thread solves a small system of its own. Registers have no computed
  index, so all steps of the same methods are printed one by one (`solve_lines`).
- In a block that has one vertex: all threads solve together, a positive definite system
  in tiles. All warps execute the function and read the matrix. The right-hand side and
  the diagonal are valid only in the lanes that write the vertex, which share them
  through shared memory.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from featgraph.base.dataclass import dataclass
from featgraph.fold.operations.primitive import Looped, Primitive, Unrolled, named
from featgraph.fold.tree.statements import Operate, expression, is_matrix_sum, narrowed
from featgraph.program.operations import inverse, solve

__all__ = ["PRIMITIVES", "is_solution"]


@dataclass(frozen=True)
class Solve(Primitive):
    """The solution x of ``(A + diagonal * I) @ x = b``."""

    takes_area = True

    def unroll(self, call: Operate, target: str, copies: Unrolled) -> None:
        """Solve in registers, in a block with one vertex, or in memory."""
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
        """Solve in memory; on the CPU `cholesky` solves positive definite systems."""
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
    """The inverse of a matrix, in columns K to 2 K - 1 of its work area."""

    is_matrix = True
    takes_area = True

    def varies(self, call: Operate, varies: Callable[[ast.AST], bool]) -> bool:
        """Return False: all features have one inverse."""
        return False

    def unroll(self, call: Operate, target: str, copies: Unrolled) -> None:
        """Invert in memory, by the lanes of the vertex or all threads of a block."""
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
    """Return whether an expression is a call of `fg.solve`."""
    return isinstance(node, Operate) and node.operation is solve


def _method(call: Operate) -> str:
    return "spd" if call.constant("spd") else "general"


def _diagonal(call: Operate, form: Unrolled | Looped) -> ast.expr:
    given = call.option("diagonal")
    return expression(f"{form.real}(0.0)") if given is None else form.value(given)


# -- named copies


def _solve_in_registers(call: Operate, names: list[str], copies: Unrolled) -> None:
    """Solve by a thread; each element of the system is a variable ``work_i_j``."""
    matrix, right = call.args
    k, is_spd = copies.width, bool(call.constant("spd"))
    work, diagonal = copies.fresh("work"), copies.fresh("diagonal")
    copies.line(f"{diagonal} = X", X=_diagonal(call, copies))
    for i in range(k):
        # LDL^T reads the lower triangle only.
        for f in range(i + 1 if is_spd else k):
            shift = f" + {diagonal}" if i == f else ""
            element = copies.element(matrix, ast.Constant(i), ast.Constant(f))
            copies.line(f"{work}_{i}_{f} = A{shift}", A=element)
    # No mask: the thread has all features.
    for i, value in enumerate(copies.operands(right, ast.Constant(0))):
        copies.line(f"{work}_{i}_{k} = X", X=value)
    copies.line("\n".join(solve_lines(work, copies.fresh("factor"), k, is_spd)))
    for i, name in enumerate(names):
        copies.line(f"{name} = {work}_{i}_{k}")


def _solve_in_block(call: Operate, names: list[str], copies: Unrolled) -> None:
    """Solve with all threads of a block; positive definite systems in tiles."""
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
    """Copy a matrix to a new work area; each lane copies the rows of its features."""
    area, column = copies.new_area(columns), named("column")
    if copies.predicated:
        # Lanes may still read the solution of the last vertex in that area.
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
    """Add a call of a solver in which all lanes of the vertex take part."""
    is_thread = copies.cuda and not copies.predicated
    solver = "linalg_thread" if is_thread else "linalg"
    lanes = f"lane, {copies.lanes}" if copies.predicated else "0, 1"
    copies.line(
        f"{solver}.{function}({area}, {copies.width}, DIAGONAL, {lanes})",
        DIAGONAL=_diagonal(call, copies),
    )


# -- loops over features


def _fill_looped(matrix: ast.expr, columns: int, loops: Looped) -> str:
    """Copy a matrix to a new work area."""
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


def solve_lines(work: str, factor: str, k: int, spd: bool) -> list[str]:
    """Return statements that solve the system of variables ``work_i_j``.

    Column k is the right-hand side, and then the solution; all other variables, and
    `factor`, are overwritten. A positive definite system is solved by LDL^T of the
    lower triangle, any other by Gauss-Jordan elimination with partial pivoting.
    """
    return (_ldlt if spd else _gauss_jordan)(work, factor, k)


def _ldlt(work: str, factor: str, k: int) -> list[str]:
    """Return the steps of LDL^T without square roots; only the lower triangle is read.

    Elimination leaves D on the diagonal, and the product L D below it.
    """
    lines = []
    for step in range(k):
        pivot = f"{work}_{step}_{step}"
        for row in range(step + 1, k):
            lines.append(f"{factor} = {work}_{row}_{step} / {pivot}")
            for column in range(step + 1, row + 1):
                lines.append(
                    f"{work}_{row}_{column} -= {factor} * {work}_{column}_{step}"
                )
            lines.append(f"{work}_{row}_{k} -= {factor} * {work}_{step}_{k}")
    for step in reversed(range(k)):
        lines.append(f"{work}_{step}_{k} /= {work}_{step}_{step}")
        for row in range(step):
            lines.append(f"{work}_{row}_{k} -= {work}_{step}_{row} * {work}_{step}_{k}")
    return lines


def _gauss_jordan(work: str, factor: str, k: int) -> list[str]:
    """Return the steps of Gauss-Jordan elimination, which ends with a diagonal."""
    lines = []
    for step in range(k):
        pivot = f"{work}_{step}_{step}"
        for row in range(step + 1, k):  # swaps the largest pivot up, row by row
            lines.append(f"if abs({work}_{row}_{step}) > abs({pivot}):")
            for column in range(step, k + 1):
                upper, lower = f"{work}_{step}_{column}", f"{work}_{row}_{column}"
                lines.append(f"    {upper}, {lower} = {lower}, {upper}")
        for row in range(k):
            if row == step:
                continue
            lines.append(f"{factor} = {work}_{row}_{step} / {pivot}")
            for column in range(step + 1, k + 1):
                lines.append(
                    f"{work}_{row}_{column} -= {factor} * {work}_{step}_{column}"
                )
    for row in range(k):
        lines.append(f"{work}_{row}_{k} /= {work}_{row}_{row}")
    return lines


#: Number of a thread in its block.
THREAD = "cuda.threadIdx.x"


def solve_in_tiles(
    call: Operate, names: list[str], diagonal: ast.expr, copies: Unrolled
) -> None:
    """Solve a positive definite system in tiles; see `featgraph.device.block_tiles`.

    A thread that has a tile of the lower triangle loads it from each array of whole
    tiles. Other matrices are added band by band: all threads fill a band of rows in
    shared memory, and the threads with tiles in the band add these. Elements above the
    diagonal are never read.
    """
    matrix, right = call.args
    k, side, count = copies.width, copies.tile, -(-copies.width // copies.tile)
    panel, tile, row, column = (
        copies.fresh(f"tile_{n}") for n in ("panel", "sums", "row", "column")
    )
    # The last row is the right side, and then the solution.
    shape = f"({2 * side + 1}, {count * side})"
    copies.line(f"{panel} = cuda.shared.array({shape}, {copies.real}, alignment=16)")
    shift = _shared_number(diagonal, copies)
    copies.line(
        f"{column}, {row}, {column} = block_tiles.lower_place({THREAD}, {count}, 1)\n"
        f"{tile} = block_tiles.zeros({copies.real}(0.0))"
    )
    in_tiles, others = _terms(matrix, copies)
    for array in in_tiles:
        copies.line(
            f"{tile} = block_tiles.plus_matrix({tile}, {array}, {row}, {column})"
        )
    if others is not None:
        _take_bands(others, (panel, tile, row, column), copies)
    one = f"{copies.real}(1.0)"
    own = f"{tile}, {shift}, {one}, {row}, {column}, {k}"
    copies.line(f"{tile} = block_tiles.plus_diagonal({own})")
    if count * side > k:
        # Where the right side is zero, so is the solution.
        place = copies.fresh("place")
        places = f"range({k} + {THREAD}, {count * side}, {copies.threads})"
        with copies.block(f"for {place} in {places}:"):
            copies.line(f"{panel}[{2 * side}, {place}] = {copies.real}(0.0)")
    right_in_block(f"{panel}[{2 * side}, F] = X", right, copies)
    copies.line(f"block_tiles.solve_spd({tile}, {panel}, {count}, {row}, {column})")
    for j, name in enumerate(names):
        copies.line(f"{name} = {panel}[{2 * side}, F]", F=copies.feature(j))


def _terms(matrix: ast.expr, copies: Unrolled) -> tuple[list[str], ast.expr | None]:
    """Split a sum of matrices: arrays that consist of whole tiles, and the rest."""
    array = copies.in_whole_tiles(matrix)
    if array:
        return [array], None
    if is_matrix_sum(matrix):
        sum_ = narrowed(matrix, ast.BinOp)
        arrays, others = _terms(sum_.left, copies)
        if isinstance(sum_.op, ast.Add):
            more, rest = _terms(sum_.right, copies)
            if others is not None and rest is not None:
                return arrays + more, ast.BinOp(others, sum_.op, rest)
            return arrays + more, rest if others is None else others
        if others is not None:
            return arrays, ast.BinOp(others, sum_.op, sum_.right)
    return [], matrix


def _take_bands(
    matrix: ast.expr, names: tuple[str, str, str, str], copies: Unrolled
) -> None:
    """Add a matrix to the tiles, band by band."""
    panel, tile, row, column = names
    band = copies.fresh("tile_band")
    with copies.block(f"for {band} in range({-(-copies.width // copies.tile)}):"):
        _fill_band(matrix, panel, band, copies)
        own = f"{tile}, {panel}, {band}, {row}, {column}"
        # The band is complete, and none still reads it when the next one is filled.
        copies.line(
            "cuda.syncthreads()\n"
            f"{tile} = block_tiles.plus_band({own})\n"
            "cuda.syncthreads()"
        )


def _fill_band(matrix: ast.expr, panel: str, band: str, copies: Unrolled) -> None:
    """Fill rows of the panel with a band of the lower triangle of a matrix."""
    k, side = copies.width, copies.tile
    padded = -(-k // side) * side
    place, within, row, column = (
        copies.fresh(n) for n in ("place", "within", "row", "column")
    )
    with _each_place(matrix, place, side * padded, copies):
        copies.line(
            f"{within} = uint32({place}) // {padded}\n"
            f"{column} = uint32({place}) % {padded}\n"
            f"{row} = uint32({band} * {side}) + {within}"
        )
        own = copies.element(matrix, named(row), named(column))
        if padded > k:
            own = expression(f"X if {row} < {k} else {copies.real}(0.0)", X=own)
        with copies.block(f"if {column} <= {row}:"):
            copies.line(f"{panel}[{within}, {column}] = X", X=own)


def fill_in_block(matrix: ast.expr, columns: int, copies: Unrolled) -> str:
    """Copy a matrix to a new work area of the block."""
    area, k = copies.new_area(columns), copies.width
    place, row, column = (copies.fresh(n) for n in ("place", "row", "column"))
    with _each_place(matrix, place, k * k, copies):
        copies.line(f"{row} = uint32({place}) // {k}\n{column} = uint32({place}) % {k}")
        element = copies.element(matrix, named(row), named(column))
        copies.line(f"{area}[{row}, {column}] = X", X=element)
    return area


def right_in_block(template: str, right: ast.expr, copies: Unrolled) -> None:
    """Add a statement for each entry X, at feature F, of the right-hand side."""
    zero = expression(f"{copies.real}(0.0)")
    values = copies.operands(right, zero, masked=False)
    for j, value in enumerate(values):
        inside = f" and {copies.inside(j)}" if copies.padded else ""
        with copies.block(f"if {THREAD} < {copies.lanes}{inside}:"):
            copies.line(template, F=copies.feature(j), X=value)


def call_in_block(
    function: str, area: str, diagonal: ast.expr, copies: Unrolled
) -> None:
    """Add a call of `featgraph.device.block_tiles` by all threads of the block."""
    shift = _shared_number(diagonal, copies)
    copies.line(
        f"block_tiles.{function}({area}, {copies.width}, {shift}, {THREAD}, "
        f"{copies.threads})"
    )


def _shared_number(value: ast.expr, copies: Unrolled) -> str:
    """Broadcast a number of thread 0 to the block; return the name of the variable."""
    box, name = copies.fresh("box"), copies.fresh("shift")
    copies.line(f"{box} = cuda.shared.array(1, {copies.real})")
    with copies.block(f"if {THREAD} == 0:"):
        copies.line(f"{box}[0] = X", X=value)
    copies.line(f"cuda.syncthreads()\n{name} = {box}[0]")
    return name


def _each_place(
    matrix: ast.expr, place: str, count: int, copies: Unrolled
) -> AbstractContextManager[None]:
    """Begin a loop over `count` places, divided among threads.

    If idle lanes must not read the matrix, only the lanes that write the vertex loop.
    """
    first, step = THREAD, copies.threads
    if copies.is_guarded(matrix):
        first, step = (
            f"{THREAD} if {THREAD} < {copies.lanes} else {count}",
            copies.lanes,
        )
    return copies.block(f"for {place} in range({first}, {count}, {step}):")
