"""Matrices of the whole graph, staged in shared memory or registers (CUDA).

``fg.matvec(d.psi, x)`` reads all of d.psi for each edge. Lane f would read its own row,
K entries away from the row of the next lane. So each block copies the matrix to shared
memory once, transposed so that neighboring lanes read neighboring entries, in pieces
for all features of a lane. A small matrix is kept in registers by a lane that has all
features. docs/design/0010-staged-matrices.md has the reasons.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from featgraph.base.dataclass import dataclass
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.schedules.mapping import Mapping
from featgraph.fold.tree.expressions import Operate, Whole
from featgraph.fold.tree.statements import Body, code
from featgraph.program.names import GENERATED
from featgraph.program.signature import Real

__all__ = [
    "STRIDES",
    "Staged",
    "at_hand",
    "find_staged",
    "has_pieces",
    "shared_matrices_of",
]

#: Shared memory that the matrices of one block may take: 12 blocks of 128 threads, all
#: that registers leave room for, then fit a multiprocessor with 200 KiB.
STAGED_BYTES = 16 * 1024
#: Entries of a matrix that one lane may keep in registers.
STAGED_REGISTERS = 16
#: Vertices that a group of lanes takes in turn where its block stages a matrix.
STRIDES = 8


@dataclass(frozen=True)
class Staged:
    """A matrix of the whole graph, and its staged copy.

    Attributes
    ----------
    source : str
        The matrix ``d.source``, k x k.
    names : tuple of str
        Name of the shared array; or names of rows, one tuple each.
    width : int
        K.
    piece : int
        Entries in one load of a lane.
    turns : tuple of bool
        Orientations in use: the matrix (False), its transpose (True), or both. Each
        has an area in shared memory, one behind the other.
    """

    source: str
    names: tuple[str, ...]
    width: int
    piece: int
    turns: tuple[bool, ...]

    @property
    def in_registers(self) -> bool:
        """Whether each lane keeps the whole matrix in registers."""
        return len(self.names) > 1


def shared_matrices_of(function: Analysed, analysis: Analysis) -> dict[str, set[bool]]:
    """Return the matrices of the graph in products, with their orientations."""
    found: dict[str, set[bool]] = {}
    if function.is_scalar:
        return found
    for statement in function.body:
        for node in ast.walk(statement):
            if not isinstance(node, Operate) or not primitive_of(node).multiplies:
                continue
            matrix, transpose = node.args[0], node.option("transpose")
            if not isinstance(matrix, Whole) or matrix.indices:
                continue
            type_ = analysis.signature.get(matrix.name)
            if type_ is None or type_.item_shape != (function.width,) * 2:
                continue
            if transpose is None or isinstance(transpose, ast.Constant):
                turns = {transpose is not None and bool(transpose.value)}
            else:
                turns = {False, True}
            found.setdefault(matrix.name, set()).update(turns)
    return found


def has_pieces(mapping: Mapping, width: int) -> bool:
    """Whether lanes can load unpadded rows in pieces."""
    return mapping.vector_width > 1 and width % mapping.vector_width == 0


def find_staged(
    analysis: Analysis, members: Sequence[Analysed], mapping: Mapping, width: int
) -> dict[str, Staged]:
    """Return the matrices that a kernel stages, by name (CUDA).

    Parameters
    ----------
    members : sequence of Analysed
        Functions of the phase.
    mapping : Mapping
        Of the phase; matrices are staged wherever features have named copies.
    width : int
        K.
    """
    if mapping.is_looped or mapping.tile or width == 1:
        return {}
    turns: dict[str, set[bool]] = {}
    at_edges: set[str] = set()
    for function in members:
        for name, found in shared_matrices_of(function, analysis).items():
            turns.setdefault(name, set()).update(found)
            at_edges |= set() if function.kind.writes_vertices else {name}
    for name in [n for n in turns if n not in at_edges and turns[n] == {True}]:
        # A vertex reads it once, in rows: the first cache brings these as fast.
        if mapping.lanes_per_edge > 1 and has_pieces(mapping, width):
            del turns[name]
    taken = analysis.emitted | set(analysis.signature) | GENERATED
    taken |= {name for f in analysis.functions for name in (*f.variables, f.name)}
    staged: dict[str, Staged] = {}
    left = STAGED_BYTES // analysis.real.itemsize
    for name in sorted(turns):
        dtype = analysis.signature[name].dtype
        small = width * width <= STAGED_REGISTERS and mapping.features_per_lane == width
        in_registers = small and mapping.vector_width == width and dtype in {
            "real", analysis.real,
        }  # fmt: skip
        own = f"{'register_of' if in_registers else 'shared'}_{name}"
        while own in taken or f"{own}_0" in taken:
            own += "_"
        names = tuple(f"{own}_{i}" for i in range(width)) if in_registers else (own,)
        ways = tuple(sorted(turns[name]))
        if not in_registers:
            left -= len(ways) * width * width
            if left < 0:
                return staged
        piece = 1 if width % mapping.vector_width else mapping.vector_width
        staged[name] = Staged(name, names, width, piece, ways)
    return staged


def at_hand(staged: dict[str, Staged], real: Real, threads: int) -> Body:
    """Return the statements in front of a sweep that stage the matrices."""
    out: Body = []
    in_blocks = [s for s in staged.values() if not s.in_registers]
    for matrix in staged.values():
        k, source = matrix.width, f"d.{matrix.source}"
        if matrix.in_registers:
            for i, name in enumerate(matrix.names):
                place = f"{source}, {i}, 0, {k}, {matrix.piece}"
                out += code(f"{name} = warp.load_row({place})")
            continue
        [name] = matrix.names
        shape = f"({len(matrix.turns) * k}, {k})"
        out += code(f"{name} = cuda.shared.array({shape}, {real}, alignment=16)")
    for matrix in in_blocks:
        out += _staged_in_block(matrix, real, threads)
    return out + (code("cuda.syncthreads()") if in_blocks else [])


def _staged_in_block(matrix: Staged, real: Real, threads: int) -> Body:
    """Return the loop in which a block copies a matrix to its shared memory."""
    k, [name] = matrix.width, matrix.names
    each = code(f"row, column = uint32(member) // {k}, uint32(member) % {k}")
    for area, turned in enumerate(matrix.turns):
        entry = "row, column" if turned else "column, row"
        own = f"row + {area * k}" if area else "row"
        each += code(f"element = {real}(d.{matrix.source}[{entry}])")
        each += code(f"{name}[{own}, column] = element")
    members = f"range(cuda.threadIdx.x, {k * k}, {threads})"
    return code(f"for member in {members}:\n    BODY", BODY=each)
