"""Functions as statements over SIMD vectors of features (CPU).

As in `unrolled` there are several variables for a name, but each is a vector of
neighboring features: ``p_16`` holds features 16 to 31 of ``p``. LLVM does not vectorize
the equivalent loop where arrays may alias, or where it unrolled the loop first. A
gather returns its contributions, so that sums over edges stay in registers. Functions
with values that are no real numbers, control flow that differs between features, or
operations without a vector form have the form `looped` instead.

`vector_form` and `column_form` decide; `Vectors` and `InVectors` rewrite statements and
expressions.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import cast

from featgraph.fold.analysis.access import INDEXED
from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathers import is_real_matrix, operand_type
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.passes.bodies.facts import BodyFacts, Context
from featgraph.fold.passes.bodies.nodes import Array, Define
from featgraph.fold.plan.plan import Phase
from featgraph.fold.syntax.normal_form import is_collective, varies
from featgraph.fold.tree.statements import (
    Access,
    Body,
    Cast,
    Identity,
    MathCall,
    Operate,
    Rewriting,
    Whole,
    code,
    copied,
    expression,
    name_of,
    names_read,
    narrowed,
    placed,
    when,
)
from featgraph.program.signature import Real

__all__ = ["VECTOR_BYTES", "column_form", "pieces", "vector_form", "vectorized"]

#: Comparisons that vectors have.
_ORDERS = ast.Lt | ast.LtE | ast.Gt | ast.GtE | ast.Eq | ast.NotEq
#: Functions of real numbers that `featgraph.device.vectors_cpu` has.
_MATH = {"abs": "absolute", "fabs": "absolute", "isfinite": "is_finite"}


class VectorTypes:
    """Tests of statements and expressions: whether they can be vectors, or masks.

    Parameters
    ----------
    function : Analysed
        A function whose features one thread owns.
    """

    def __init__(self, context: Context, function: Analysed) -> None:
        self.context = context
        self.function = function
        self.varying = function.varying

    def is_row(self, node: Access) -> bool:
        """Return whether an access reads a row of real numbers along f."""
        analysis, real = self.context.analysis, self.context.real
        *others, last = node.indices
        if name_of(last) != "f" or node.version == INDEXED:
            return False
        if any(varies(index, self.varying) for index in others):
            return False
        temporary = analysis.temporaries.get(node.name)
        if temporary is not None:
            return temporary.type == "real" and len(node.indices) == 2
        type_ = analysis.signature.get(node.name)
        return type_ is not None and type_.dtype in {real, "real"}

    def fits_real(self, node: ast.expr) -> bool:
        """Return whether an expression can be a vector of real numbers."""
        if isinstance(node, Identity):
            return True  # printed in the type that is combined
        is_real = operand_type(node, self.function, self.context.analysis) == "real"
        if not varies(node, self.varying):
            return is_real
        if isinstance(node, ast.Name):
            return is_real and node.id != "f"
        if isinstance(node, Access):
            return self.is_row(node)
        if isinstance(node, ast.BinOp):
            fits = isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div)
            return fits and self.fits_real(node.left) and self.fits_real(node.right)
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.USub) and self.fits_real(node.operand)
        if isinstance(node, ast.IfExp):
            test = not varies(node.test, self.varying) or self.fits_mask(node.test)
            return test and self.fits_real(node.body) and self.fits_real(node.orelse)
        return (
            isinstance(node, MathCall)
            and _MATH.get(node.name) == "absolute"
            and self.fits_real(node.args[0])
        )

    def fits_mask(self, node: ast.expr) -> bool:
        """Return whether a varying condition can be a mask."""
        if not varies(node, self.varying):
            return False
        if isinstance(node, ast.Name):
            return self.function.variables.get(node.id) == "bool"
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.Not) and self.fits_mask(node.operand)
        if isinstance(node, ast.BoolOp):
            return all(self.fits_mask(value) for value in node.values)
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            fits = len(sides) == 2 and isinstance(node.ops[0], _ORDERS)
            return fits and all(self.fits_real(side) for side in sides)
        return (
            isinstance(node, MathCall)
            and _MATH.get(node.name) == "is_finite"
            and self.fits_real(node.args[0])
        )

    def is_real_matrix(self, node: ast.expr) -> bool:
        """Return whether an expression is a whole matrix of the real type."""
        return is_real_matrix(node, self.function, self.context.analysis)

    def fits_block(self, body: list[ast.stmt]) -> bool:
        """Return whether a block of statements fits."""
        return all(self._fits(statement) for statement in body)

    def _fits(self, node: ast.stmt) -> bool:
        """Return whether a statement has a vector form.

        Branches must be uniform, values real numbers or masks, and returns either a
        verdict or a contribution.
        """
        if isinstance(node, ast.If):
            if varies(node.test, self.varying):
                return False
            return self.fits_block(node.body) and self.fits_block(node.orelse)
        if isinstance(node, ast.Return):
            value = narrowed(node.value, ast.expr)
            if _has_verdict(self.function):
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


def matrix_array(facts: BodyFacts, matrix: ast.expr) -> ast.expr:
    """Return the array of a matrix argument."""
    if not isinstance(matrix, Whole):
        raise TypeError(f"{type(matrix).__name__} is no matrix")
    if matrix.name in facts.temporaries:
        return ast.Name(matrix.name, ast.Load())
    array = Array(matrix.name)
    if not matrix.indices:
        return array
    return expression("ARRAY[ENTITY]", ARRAY=array, ENTITY=matrix.indices[0])


class InVectors(Rewriting):
    """Rewrite an expression for the features of one vector.

    Parameters
    ----------
    varying : frozenset of str
        Names with one vector for each piece.
    piece : tuple of int
        First feature, and number of features.
    place : str
        Text of the first feature if it is not a constant; else "".
    """

    def __init__(
        self, facts: BodyFacts, varying: frozenset[str], piece: tuple[int, int],
        place: str = "",
    ) -> None:  # fmt: skip
        self.facts, self.varying = facts, varying
        self.first, self.size = piece
        self.place = place or str(self.first)

    def _one(self, node: ast.expr) -> ast.expr:
        return cast("ast.expr", self.visit(copied(node)))

    def vector(self, node: ast.expr) -> ast.expr:
        """Return a vector; uniform values are broadcast."""
        number = self._one(node)
        if varies(node, self.varying):
            return number
        if not self._is_real(node):
            number = expression(f"{self.facts.context.real}(X)", X=number)
        return expression(f"vectors.spread_{self.size}(X)", X=number)

    def _is_real(self, node: ast.expr) -> bool:
        """Whether an expression already has the storage type."""
        if isinstance(node, Identity):
            return self.facts.memory.identity.startswith(f"{self.facts.context.real}(")
        return isinstance(node, Cast) and node.to in {"real", self.facts.context.real}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Name the vector."""
        if node.id in self.varying:
            node.id = f"{node.id}_{self.first}"
        return node

    def visit_Access(self, node: Access) -> ast.AST:
        """Load a row; other accesses are uniform."""
        if "f" not in names_read(node.indices[-1]):
            return self.generic_visit(node)
        array: ast.expr = Array(node.name, node.version)
        others = node.indices[:-1]
        if node.name in self.facts.temporaries:
            array, others = ast.Name(node.name, ast.Load()), []
        place = expression(self.place)
        if others:
            place = ast.Tuple([*map(self._one, others), place], ast.Load())
        load = f"vectors.load_{self.size}(ARRAY, PLACE)"
        return expression(load, ARRAY=array, PLACE=place)

    def visit_MathCall(self, node: MathCall) -> ast.AST:
        """Call the elementwise function."""
        if not varies(node, self.varying):
            return self.generic_visit(node)
        return expression(f"vectors.{_MATH[node.name]}(X)", X=self._one(node.args[0]))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """Negate masks."""
        if isinstance(node.op, ast.Not) and varies(node, self.varying):
            return expression("vectors.negated(X)", X=self._one(node.operand))
        return self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Combine masks; all operands are evaluated."""
        if not varies(node, self.varying):
            return self.generic_visit(node)
        name = "both" if isinstance(node.op, ast.And) else "either"
        first, *others = (self._one(value) for value in node.values)
        for other in others:
            first = expression(f"vectors.{name}(A, B)", A=first, B=other)
        return first

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """Select element by element, or a whole vector."""
        if not varies(node, self.varying):
            return self.generic_visit(node)
        parts = {
            "TEST": self._one(node.test),
            "A": self.vector(node.body),
            "B": self.vector(node.orelse),
        }
        form = "A if TEST else B"
        if varies(node.test, self.varying):
            form = "vectors.where(TEST, A, B)"
        return expression(form, **parts)


#: Bytes of the largest vector, an AVX-512 register: as in `featgraph.device.tiles_cpu`,
#: which is not imported here, since it imports Numba.
VECTOR_BYTES = 64
#: Most vectors of a row. More would be spilled from registers, and compile slowly.
MOST_VECTORS = 16


def pieces(width: int, real: Real) -> list[tuple[int, int]]:
    """Return (first feature, features) of the vectors of a row.

    Vectors of 64 bytes, then halves, so that no load reads beyond the row.
    """
    size = VECTOR_BYTES // real.itemsize
    found, first = [], 0
    while first < width:
        while size > width - first:
            size //= 2
        found.append((first, size))
        first += size
    return found


def vector_form(context: Context, phase: Phase, function: Analysed) -> bool:
    """Return whether a function of a phase is vectorized."""
    is_swept = phase.kind.pulls or phase.kind.in_turns
    if not _has_vectors(context) or function.is_scalar or not is_swept:
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
    elif not _has_verdict(function):
        return False
    return VectorTypes(context, function).fits_block(list(function.body))


def _has_verdict(function: Analysed) -> bool:
    """Whether a function stores rows and returns one value for all features."""
    return function.kind.writes_vertices or function.kind.exclusive


def column_form(context: Context, function: Analysed) -> bool:
    """Return whether the columns of a sum of outer products are vectors."""
    parts = function.outer_product
    if not _has_vectors(context) or parts is None or not parts.symmetric:
        return False
    return VectorTypes(context, function).fits_real(parts.column)


def _has_vectors(context: Context) -> bool:
    return (
        not context.cuda
        and context.mapping.is_looped
        and context.checked is None
        and len(pieces(context.width, context.real)) <= MOST_VECTORS
    )


def vectorized(facts: BodyFacts, node: Define) -> Define:
    """Write varying statements once for each vector of a row.

    A gather returns its contributions, one vector for each of `pieces`.
    """
    vectors = Vectors(facts, node.varying)
    is_any = bool(facts.context.any_width)
    node.body = (vectors.of_any_width if is_any else vectors.body)(node.body)
    node.arrays = {"real": vectors.rows, "int64": 0}
    node.more = (*facts.temporaries, *(["rows"] if vectors.rows else []))
    return node


class Vectors:
    """Rewriting of the statements of a function, with vectors for varying names."""

    def __init__(self, facts: BodyFacts, varying: frozenset[str]) -> None:
        self.facts, self.varying = facts, varying
        self.types = VectorTypes(facts.context, facts.function)
        self.pieces = pieces(facts.width, facts.context.real)
        self.rows, self.place = 0, ""

    def vector(self, node: ast.expr, piece: tuple[int, int]) -> ast.expr:
        """Return one vector of an expression."""
        return InVectors(self.facts, self.varying, piece, self.place).vector(node)

    def body(self, body: Sequence[ast.stmt]) -> Body:
        """Return statements; varying ones once for each vector."""
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

    def of_any_width(self, body: Sequence[ast.stmt]) -> Body:
        """Return statements for rows of any K, the same vectors as those of `pieces`.

        A loop processes vectors of 64 bytes. Behind it, each set bit of K adds one
        smaller vector, so that no load reads beyond the row.
        """
        k = self.facts.context.any_width
        size = VECTOR_BYTES // self.facts.context.real.itemsize
        self.facts.fresh.begin()
        self.place = self.facts.fresh("first")
        each = self._piece(body, size)
        loop = f"for {self.place} in range(0, {k} & -{size}, {size}):\n    BODY"
        out = code(loop, BODY=each)
        while size > 1:
            first = code(f"{self.place} = {k} & -{size}")
            size //= 2
            out += when([f"{k} & {size}"], first + self._piece(body, size))
        return [*out, body[-1]]

    def _piece(self, body: Sequence[ast.stmt], size: int) -> Body:
        self.pieces = [(size, size)]
        return self.body([copied(statement) for statement in body[:-1]])

    def _returned(self, value: ast.expr) -> ast.expr:
        """Return the vectors of a contribution, or the verdict of all features."""
        if not _has_verdict(self.facts.function):
            return ast.Tuple([self.vector(value, p) for p in self.pieces], ast.Load())
        if not varies(value, self.varying):
            return value
        masks = [self.vector(value, p) for p in self.pieces]
        votes = [expression("vectors.any_of(MASK)", MASK=mask) for mask in masks]
        return votes[0] if len(votes) == 1 else ast.BoolOp(ast.Or(), votes)

    def _assign(self, node: ast.Assign) -> Body:
        """Return an assignment, once for each vector if its target varies."""
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
                    f"vectors.store_{size}(ARRAY, (ENTITY, {self.place or first}), X)",
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
    """Context of an operation: see `operations.primitive.Vectorized`."""

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
