"""Systems and inverses where a block has one vertex: all of its threads take part.

Functions run in all warps of the block, but only the lanes that write have values that
count: the right-hand side and the diagonal are theirs. Matrices are read by all.
"""

from __future__ import annotations

import ast
from contextlib import AbstractContextManager

from featgraph.fold.operations.contexts import Unrolled
from featgraph.fold.operations.lanes import named
from featgraph.fold.syntax.nodes import Operate, is_matrix_sum, narrowed
from featgraph.fold.tree.statements import expression

__all__ = ["call_in_block", "fill_in_block", "right_in_block", "solve_in_tiles"]

#: Where a thread is in its block.
THREAD = "cuda.threadIdx.x"


def solve_in_tiles(
    call: Operate, names: list[str], diagonal: ast.expr, copies: Unrolled
) -> None:
    """Solve a positive definite system in tiles; see `featgraph.device.block_tiles`.

    Threads with tiles take those of matrices that stand in whole tiles. All else comes
    band by band: threads fill one, and those with tiles of it take them. What is above
    the diagonal is never read.
    """
    matrix, right = call.args
    k, side, count = copies.width, copies.tile, -(-copies.width // copies.tile)
    panel, tile, row, column = (
        copies.fresh(f"tile_{n}") for n in ("panel", "sums", "row", "column")
    )
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
        place = copies.fresh("place")
        places = f"range({k} + {THREAD}, {count * side}, {copies.threads})"
        with copies.block(f"for {place} in {places}:"):
            copies.line(f"{panel}[{2 * side}, {place}] = {copies.real}(0.0)")
    right_in_block(f"{panel}[{2 * side}, F] = X", right, copies)
    copies.line(f"block_tiles.solve_spd({tile}, {panel}, {count}, {row}, {column})")
    for j, name in enumerate(names):
        copies.line(f"{name} = {panel}[{2 * side}, F]", F=copies.feature(j))


def _terms(matrix: ast.expr, copies: Unrolled) -> tuple[list[str], ast.expr | None]:
    """Return the arrays whose tiles a matrix is the sum of, and what it is besides."""
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
    """Add a matrix to the tiles, a band of it after the other."""
    panel, tile, row, column = names
    band = copies.fresh("tile_band")
    with copies.block(f"for {band} in range({-(-copies.width // copies.tile)}):"):
        _fill_band(matrix, panel, band, copies)
        own = f"{tile}, {panel}, {band}, {row}, {column}"
        copies.line(
            "cuda.syncthreads()\n"
            f"{tile} = block_tiles.plus_band({own})\n"
            "cuda.syncthreads()"
        )


def _fill_band(matrix: ast.expr, panel: str, band: str, copies: Unrolled) -> None:
    """Fill rows of a panel with a band of a matrix, as far as its diagonal."""
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
    """Copy a matrix into a new work area of the block."""
    area, k = copies.new_area(columns), copies.width
    place, row, column = (copies.fresh(n) for n in ("place", "row", "column"))
    with _each_place(matrix, place, k * k, copies):
        copies.line(f"{row} = uint32({place}) // {k}\n{column} = uint32({place}) % {k}")
        element = copies.element(matrix, named(row), named(column))
        copies.line(f"{area}[{row}, {column}] = X", X=element)
    return area


def right_in_block(template: str, right: ast.expr, copies: Unrolled) -> None:
    """Add a statement for the feature F and the value X of each right-hand side."""
    zero = expression(f"{copies.real}(0.0)")
    values = copies.operands(right, zero, masked=False)
    for j, value in enumerate(values):
        inside = f" and {copies.inside(j)}" if copies.padded else ""
        with copies.block(f"if {THREAD} < {copies.lanes}{inside}:"):
            copies.line(template, F=copies.feature(j), X=value)


def call_in_block(
    function: str, area: str, diagonal: ast.expr, copies: Unrolled
) -> None:
    """Call `featgraph.device.block_tiles`, all threads together."""
    shift = _shared_number(diagonal, copies)
    copies.line(
        f"block_tiles.{function}({area}, {copies.width}, {shift}, {THREAD}, "
        f"{copies.threads})"
    )


def _shared_number(value: ast.expr, copies: Unrolled) -> str:
    """Have the first thread tell all others a number; return its name."""
    box, name = copies.fresh("box"), copies.fresh("shift")
    copies.line(f"{box} = cuda.shared.array(1, {copies.real})")
    with copies.block(f"if {THREAD} == 0:"):
        copies.line(f"{box}[0] = X", X=value)
    copies.line(f"cuda.syncthreads()\n{name} = {box}[0]")
    return name


def _each_place(
    matrix: ast.expr, place: str, count: int, copies: Unrolled
) -> AbstractContextManager[None]:
    """Begin a loop over places that threads share: those that may read the matrix."""
    first, step = THREAD, copies.threads
    if copies.is_guarded(matrix):
        first, step = (
            f"{THREAD} if {THREAD} < {copies.lanes} else {count}",
            copies.lanes,
        )
    return copies.block(f"for {place} in range({first}, {count}, {step}):")
