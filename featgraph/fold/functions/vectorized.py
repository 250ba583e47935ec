"""Functions as statements about vectors of features, for the CPU's wide loops.

Copies again (`unrolled`), but each is a vector of neighboring features: ``p_16`` is
features 16 to 31 of ``p``. A loop over features says the same, and LLVM should see it.
It does not where arrays may overlap, and where it has unrolled the loop before. A
gather returns its contributions, so that sums over edges are in registers. What cannot
be said this way is said in loops: what is no real number, control flow that differs
between features, and operations that have no vector form.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.functions.facts import Context, FunctionFacts
from featgraph.fold.functions.nodes import Array, Define
from featgraph.fold.functions.vector_expressions import (
    InVectors,
    VectorTypes,
    matrix_array,
)
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.plan.plan import Phase
from featgraph.fold.syntax.nodes import Access, Operate, narrowed
from featgraph.fold.syntax.normal_form import is_collective
from featgraph.fold.syntax.variance import varies
from featgraph.fold.tree.statements import Body, code, expression, placed
from featgraph.program.signature import Real

__all__ = ["column_form", "pieces", "vector_form", "vectorized"]

_VECTOR_BYTES = 64
#: Up to so many vectors a row. More would not stay in registers, and compile slowly.
MOST_VECTORS = 16


def pieces(width: int, real: Real) -> list[tuple[int, int]]:
    """Return (first feature, features) of the vectors of a row.

    Whole vectors of 64 bytes, then halves, so that nothing reads beyond the row.
    """
    size = _VECTOR_BYTES // real.itemsize
    found, first = [], 0
    while first < width:
        while size > width - first:
            size //= 2
        found.append((first, size))
        first += size
    return found


def vector_form(context: Context, phase: Phase, function: Analysed) -> bool:
    """Return whether a function of a phase is said in vectors."""
    if not _has_vectors(context) or function.is_scalar or not phase.kind.pulls:
        return False
    if function.kind.gathers:
        temporary = context.analysis.temporaries[str(function.into)]
        others = [str(f.into) for f in context.analysis.functions]
        if (
            not temporary.combine.rules.is_sum
            or temporary.type != "real"
            or len(temporary.item_shape) != 1
            or function.into in phase.incremental
            or any(name.startswith(f"{function.into}_") for name in others)
        ):
            return False
    elif not function.kind.writes_vertices:
        return False
    return _Fitting(context, function).fits_block(list(function.body))


def column_form(context: Context, function: Analysed) -> bool:
    """Return whether the columns of a sum of outer products are said in vectors."""
    parts = function.outer_product
    if not _has_vectors(context) or parts is None or not parts.symmetric:
        return False
    return _Fitting(context, function).fits_real(parts.column)


def _has_vectors(context: Context) -> bool:
    return (
        not context.cuda
        and context.mapping.is_looped
        and context.checked is None
        and len(pieces(context.width, context.real)) <= MOST_VECTORS
    )


class _Fitting(VectorTypes):
    """Tells whether statements can be said in vectors."""

    def fits_block(self, body: list[ast.stmt]) -> bool:
        """Return whether a block of statements fits."""
        return all(self._fits(statement) for statement in body)

    def _fits(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.If):
            if varies(node.test, self.varying):
                return False
            return self.fits_block(node.body) and self.fits_block(node.orelse)
        if isinstance(node, ast.Return):
            value = narrowed(node.value, ast.expr)
            if self.function.kind.writes_vertices:
                return not varies(value, self.varying) or self.fits_mask(value)
            return self.fits_real(value)
        if not isinstance(node, ast.Assign):
            return False
        target = node.targets[0]
        if is_collective(node.value):
            call = narrowed(node.value, Operate)
            return primitive_of(call).fits_vectors(call, self)
        if isinstance(target, Access):
            if self.is_row(target):
                return self.fits_real(node.value)
            return not varies(target, self.varying) and not varies(
                node.value, self.varying
            )
        name = narrowed(target, ast.Name).id
        if name not in self.varying:
            return True
        if self.function.variables.get(name) == "bool":
            return self.fits_mask(node.value)
        return self.function.variables.get(name) == "real" and self.fits_real(
            node.value
        )


def vectorized(facts: FunctionFacts, node: Define) -> Define:
    """Return a function with a statement for each vector of a row.

    A gather returns its contributions, a vector each of `pieces`.
    """
    vectors = Vectors(facts, node.varying)
    node.body = vectors.body(node.body)
    node.arrays = {"real": vectors.rows, "int64": 0}
    node.more = (*facts.temporaries, *(["rows"] if vectors.rows else []))
    return node


class Vectors:
    """The vectors of a function's names and expressions."""

    def __init__(self, facts: FunctionFacts, varying: frozenset[str]) -> None:
        self.facts, self.varying = facts, varying
        self.types = VectorTypes(facts.context, facts.function)
        self.pieces = pieces(facts.width, facts.context.real)
        self.rows = 0

    def vector(self, node: ast.expr, piece: tuple[int, int]) -> ast.expr:
        """Return one vector of an expression."""
        return InVectors(self.facts, self.varying, piece).vector(node)

    def body(self, body: Sequence[ast.stmt]) -> Body:
        """Return statements with what varies written once for each vector."""
        out: Body = []
        for node in body:
            if isinstance(node, ast.If):
                node.body, node.orelse = self.body(node.body), self.body(node.orelse)
                out.append(node)
            elif isinstance(node, ast.Return):
                node.value = self._returned(narrowed(node.value, ast.expr))
                out.append(node)
            else:
                out += placed(self._assign(narrowed(node, ast.Assign)), node)
        return out

    def _returned(self, value: ast.expr) -> ast.expr:
        """Return the vectors of a contribution, or the verdict of all features."""
        if not self.facts.function.kind.writes_vertices:
            return ast.Tuple([self.vector(value, p) for p in self.pieces], ast.Load())
        if not varies(value, self.varying):
            return value
        masks = [self.vector(value, p) for p in self.pieces]
        votes = [expression("vectors.any_of(MASK)", MASK=mask) for mask in masks]
        return votes[0] if len(votes) == 1 else ast.BoolOp(ast.Or(), votes)

    def _assign(self, node: ast.Assign) -> Body:
        [target] = node.targets
        out: Body = []
        if is_collective(node.value):
            call = narrowed(node.value, Operate)
            vectors = _VectorCall(self)
            name = narrowed(target, ast.Name).id
            primitive_of(call).vectorize(call, name, vectors)
            return vectors.body
        if isinstance(target, Access) and self.types.is_row(target):
            for first, size in self.pieces:
                out += code(
                    f"vectors.store_{size}(ARRAY, (ENTITY, {first}), X)",
                    ARRAY=Array(target.name, target.version),
                    ENTITY=target.indices[0],
                    X=self.vector(node.value, (first, size)),
                )
            return out
        if isinstance(target, ast.Name) and target.id in self.varying:
            for piece in self.pieces:
                value = self.vector(node.value, piece)
                out += code(f"{target.id}_{piece[0]} = X", X=value)
            return out
        return [node]


class _VectorCall:
    """What an operation asks of the function; see `operations.contexts.Vectorized`."""

    def __init__(self, vectors: Vectors) -> None:
        self.vectors = vectors
        self.body: Body = []
        self.width, self.pieces = vectors.facts.width, vectors.pieces
        self.vector = vectors.vector

    def line(self, template: str, **parts: ast.expr) -> None:
        self.body += code(template, **parts)

    def new_row(self) -> int:
        self.vectors.rows += 1
        return self.vectors.rows - 1

    def array_of(self, matrix: ast.expr) -> ast.expr:
        return matrix_array(self.vectors.facts, matrix)
