"""Functions as statements about vectors of features, for the CPU's wide loops.

Copies again (`copies`), but each is a vector of neighboring features: ``p_16`` is
features 16 to 31 of ``p``. A loop over features says the same, and LLVM should see it.
It does not where arrays may overlap, and where it has unrolled the loop before. A
gather returns its contributions, so that sums over edges are in registers. What cannot
be said this way is printed as loops: what is no real number, control flow that differs
between features, and operations that have no vector form.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathers import temporaries_of
from featgraph.fold.codegen.text.expressions import (
    Plain,
    array_text,
    print_expression,
    print_statements,
)
from featgraph.fold.functions.featurewise import Context, Printed
from featgraph.fold.functions.vector_expressions import VectorText, VectorTypes
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.plan.plan import Phase
from featgraph.fold.syntax.nodes import Access, Operate, narrowed
from featgraph.fold.syntax.normal_form import is_collective
from featgraph.fold.syntax.variance import varies

__all__ = [
    "column_form",
    "pieces",
    "print_vector_column",
    "print_vectors",
    "vector_form",
]

_VECTOR_BYTES = 64
#: Up to so many vectors a row. More would not stay in registers, and compile slowly.
MOST_VECTORS = 16


def pieces(width: int, real: str) -> list[tuple[int, int]]:
    """Return (first feature, features) of the vectors of a row.

    Whole vectors of 64 bytes, then halves, so that nothing reads beyond the row.
    """
    size = _VECTOR_BYTES // (4 if real == "float32" else 8)
    found, first = [], 0
    while first < width:
        while size > width - first:
            size //= 2
        found.append((first, size))
        first += size
    return found


def vector_form(context: Context, phase: Phase, function: Analysed) -> bool:
    """Return whether a function of a phase is printed as vectors."""
    if not _has_vectors(context) or function.is_scalar or phase.kind != "vertex":
        return False
    if function.kind == "gather":
        temporary = context.analysis.temporaries[str(function.into)]
        others = [str(f.into) for f in context.analysis.functions]
        if (
            not temporary.combine.rules.is_sum
            or temporary.type != "real"
            or len(temporary.item_shape) != 1
            or function.into in phase.keeps
            or any(name.startswith(f"{function.into}_") for name in others)
        ):
            return False
    elif function.kind != "vertex":
        return False
    return _Fitting(context, function).fits_block(list(function.body))


def column_form(context: Context, function: Analysed) -> bool:
    """Return whether the columns of a sum of outer products are printed as vectors."""
    parts = function.rank_one
    if not _has_vectors(context) or parts is None or not parts.symmetric:
        return False
    return _Fitting(context, function).fits_real(parts.column)


def _has_vectors(context: Context) -> bool:
    return (
        not context.cuda
        and context.mapping.loops
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
            if self.function.kind == "vertex":
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


def print_vectors(context: Context, function: Analysed) -> Printed:
    """Print a function that `vector_form` has accepted.

    Returns
    -------
    Printed
        Its parameters are those of the form with loops, but a gather returns its
        contributions, a vector each of `pieces`.
    """
    return _Vectors(context, function).run()


def print_vector_column(context: Context, function: Analysed) -> Printed:
    """Print the columns of a sum of outer products, and the scale."""
    printer = _Vectors(context, function)
    parts = function.rank_one
    if parts is None:
        raise TypeError(f"{function.name} is no outer product")
    return printer.run_column(parts.column, parts.scale)


class _Vectors(VectorTypes):
    """Prints one function: a line for each vector of a row."""

    def __init__(self, context: Context, function: Analysed) -> None:
        super().__init__(context, function)
        self.writer = context.writer
        self.source = function.declared.source
        self.temporaries = temporaries_of(function, context.analysis)
        self.pieces = pieces(context.width, context.real)
        self.rows = 0
        style = context.style(function)
        self.plain = replace(style, temporaries={t: t for t in self.temporaries})

    def run(self) -> Printed:
        place = self._open()
        self.writer.depth += 1
        self._block(list(self.function.body))
        self.writer.depth -= 1
        rows = ["rows"] if self.rows else []
        self.writer.lines[place] = self._header(self.function.name, rows)
        return self._printed()

    def run_column(self, column: ast.expr, scale: ast.expr | None) -> Printed:
        """Print the functions of the column and the scale."""
        for name, value in (("column", column), ("scale", scale)):
            if value is None:
                continue
            place = self._open()
            self.writer.depth += 1
            origin = (self.source.file, getattr(value, "lineno", 0))
            text = (
                self._tuple(value)
                if name == "column"
                else print_expression(value, self.plain)
            )
            self.writer.line(f"return {text}", origin)
            self.writer.depth -= 1
            named = f"{self.function.name}_{name}"
            self.writer.lines[place] = self._header(named, [])
        return self._printed()

    def _printed(self) -> Printed:
        return Printed(
            self.function,
            self.function.name,
            True,
            self.temporaries,
            arrays={"real": self.rows, "int64": 0},
            vectors=True,
        )

    def _open(self) -> int:
        """Print what stands above a function; return the place of its header."""
        is_gather = self.function.kind != "vertex"
        for text in (
            "",
            "",
            f"# {self.source.file}:{self.source.line}",
            "@njit(**INNER)" if is_gather else self.context.decorator,
        ):
            self.writer.line(text)
        place = len(self.writer.lines)
        self.writer.line("def", (self.source.file, self.source.line))
        return place

    def _header(self, name: str, more: list[str]) -> str:
        roles = [r for r in self.function.declared.roles if r not in {"f", "i"}]
        return f"def {name}({', '.join([*roles, *self.temporaries, *more])}):"

    # -- expressions

    def vector(self, node: ast.expr, piece: tuple[int, int]) -> str:
        """Return the text of one vector of an expression."""
        first, size = piece
        names = {x: f"{x}_{first}" for x in self.varying}
        style = replace(self.plain, names=names)
        printer = VectorText(style, self.varying, first, size)
        return printer.vector(node)

    def _tuple(self, node: ast.expr) -> str:
        return "(" + "".join(f"{self.vector(node, p)}, " for p in self.pieces) + ")"

    # -- statements

    def _block(self, body: list[ast.stmt]) -> None:
        for node in body:
            origin = (self.source.file, getattr(node, "lineno", 0))
            if isinstance(node, ast.If):
                test = print_expression(node.test, self.plain)
                with self.writer.block(f"if {test}:", origin):
                    self._block(node.body)
                if node.orelse:
                    with self.writer.block("else:"):
                        self._block(node.orelse)
            elif isinstance(node, ast.Return):
                self._return(narrowed(node.value, ast.expr), origin)
            else:
                self._assign(narrowed(node, ast.Assign), origin)

    def _return(self, value: ast.expr, origin: tuple[str, int]) -> None:
        if self.function.kind != "vertex":
            self.writer.line(f"return {self._tuple(value)}", origin)
        elif varies(value, self.varying):
            votes = [f"vectors.any_of({self.vector(value, p)})" for p in self.pieces]
            self.writer.line(f"return {' or '.join(votes)}", origin)
        else:
            self.writer.line(f"return {print_expression(value, self.plain)}", origin)

    def _assign(self, node: ast.Assign, origin: tuple[str, int]) -> None:
        target, line = node.targets[0], self.writer.line
        if is_collective(node.value):
            call = narrowed(node.value, Operate)
            name = narrowed(target, ast.Name).id
            primitive_of(call).print_vectorized(call, name, _VectorCall(self, origin))
        elif isinstance(target, Access) and self.is_row(target):
            entity = print_expression(target.indices[0], self.plain)
            array = array_text(target, self.plain)
            for first, size in self.pieces:
                value = self.vector(node.value, (first, size))
                line(
                    f"vectors.store_{size}({array}, ({entity}, {first}), {value})",
                    origin,
                )
        elif isinstance(target, ast.Name) and target.id in self.varying:
            for piece in self.pieces:
                line(
                    f"{target.id}_{piece[0]} = {self.vector(node.value, piece)}", origin
                )
        else:
            print_statements([node], self.writer, self.plain, self.source.file)


class _VectorCall:
    """What an operation asks of the function; see `operations.contexts.Vectorized`."""

    def __init__(self, owner: _Vectors, origin: tuple[str, int]) -> None:
        self.owner = owner
        self.origin = origin
        self.width = owner.context.width
        self.pieces = owner.pieces
        self.vector = owner.vector

    def line(self, text: str) -> None:
        self.owner.writer.line(text, self.origin)

    def plain(self, text: str) -> str:
        style = self.owner.plain
        return print_expression(Plain(style).parse(text), style)

    def new_row(self) -> int:
        self.owner.rows += 1
        return self.owner.rows - 1

    def array_of(self, matrix: ast.expr) -> str:
        return self.owner.matrix_text(matrix, self.owner.plain)
