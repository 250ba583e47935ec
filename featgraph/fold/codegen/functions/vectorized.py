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
from featgraph.fold.codegen.functions.featurewise import Context, Printed
from featgraph.fold.codegen.functions.vector_expressions import VectorText, VectorTypes
from featgraph.fold.codegen.text.expressions import (
    Plain,
    array_text,
    print_expression,
    print_statements,
)
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
_SUMS = {"feature_sum": "total", "any_feature": "any_of", "all_features": "all_of"}


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
            temporary.combine != "sum"
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
            return self._fits_operation(narrowed(node.value, Operate))
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

    def _fits_operation(self, call: Operate) -> bool:
        if call.name == "matvec":
            return self.is_plain_product(call) and self.fits_real(call.args[1])
        if call.name not in _SUMS or call.constant("group") is not None:
            return False
        is_sum = call.name == "feature_sum"
        return (self.fits_real if is_sum else self.fits_mask)(call.args[0])


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

    def _text(self, node: ast.expr, piece: tuple[int, int]) -> str:
        """Return the vector of an expression."""
        first, size = piece
        names = {x: f"{x}_{first}" for x in self.varying}
        style = replace(self.plain, names=names)
        printer = VectorText(style, self.varying, first, size)
        return printer.vector(node)

    def _tuple(self, node: ast.expr) -> str:
        return "(" + "".join(f"{self._text(node, p)}, " for p in self.pieces) + ")"

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
            self.writer.line(f"return {self._votes(value, 'any_of')}", origin)
        else:
            self.writer.line(f"return {print_expression(value, self.plain)}", origin)

    def _assign(self, node: ast.Assign, origin: tuple[str, int]) -> None:
        target, line = node.targets[0], self.writer.line
        if is_collective(node.value):
            call = narrowed(node.value, Operate)
            name = narrowed(target, ast.Name).id
            if call.name == "matvec":
                self._product(name, call, origin)
            elif call.name == "feature_sum":
                line(f"{name} = {self._total(call.args[0])}", origin)
            else:
                text = self._votes(call.args[0], _SUMS[call.name])
                line(f"{name} = {text}", origin)
        elif isinstance(target, Access) and self.is_row(target):
            entity = print_expression(target.indices[0], self.plain)
            array = array_text(target, self.plain)
            for first, size in self.pieces:
                value = self._text(node.value, (first, size))
                line(
                    f"vectors.store_{size}({array}, ({entity}, {first}), {value})",
                    origin,
                )
        elif isinstance(target, ast.Name) and target.id in self.varying:
            for piece in self.pieces:
                line(
                    f"{target.id}_{piece[0]} = {self._text(node.value, piece)}", origin
                )
        else:
            print_statements([node], self.writer, self.plain, self.source.file)

    def _total(self, x: ast.expr) -> str:
        """Return the sum over all features: first over vectors of one size."""
        by_size: dict[int, list[str]] = {}
        for piece in self.pieces:
            by_size.setdefault(piece[1], []).append(f"({self._text(x, piece)})")
        text = " + ".join(f"vectors.total({' + '.join(t)})" for t in by_size.values())
        return print_expression(Plain(self.plain).parse(text), self.plain)

    def _votes(self, x: ast.expr, vote: str) -> str:
        word = " or " if vote == "any_of" else " and "
        return word.join(f"vectors.{vote}({self._text(x, p)})" for p in self.pieces)

    def _product(self, name: str, call: Operate, origin: tuple[str, int]) -> None:
        """Print the product of a matrix and a vector through two rows of memory."""
        source, target = self.rows, self.rows + 1
        self.rows += 2
        for first, size in self.pieces:
            text = self._text(call.args[1], (first, size))
            self.writer.line(
                f"vectors.store_{size}(rows, ({source}, {first}), {text})", origin
            )
        matrix = self.matrix_text(call.args[0], self.plain)
        self.writer.line(
            f"vectors.multiply({matrix}, rows, {source}, {target}, "
            f"{self.context.width})",
            origin,
        )
        for first, size in self.pieces:
            self.writer.line(
                f"{name}_{first} = vectors.load_{size}(rows, ({target}, {first}))"
            )
