"""Prints ``matvec`` over named copies, in each of its semirings.

``plus_times`` adds up A[f, i] * x[i]. The terms of the others are A[f, i] + x[i]:
``max_plus`` takes the largest, ``log_plus`` adds up exp(term - largest) and takes the
logarithm, so that nothing overflows.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from featgraph.fold.codegen.functions.unrolled_columns import Column, MatrixColumns
from featgraph.fold.codegen.functions.unrolled_operands import Origin
from featgraph.fold.codegen.text.expressions import as_part, print_expression
from featgraph.fold.syntax.nodes import Operate, narrowed

__all__ = ["MatrixProducts", "finite_text", "logarithm_text"]

#: Up to so many terms of one thread stand in names of their own, which are registers.
#: Above, they are computed twice, for the largest and for the sum.
MOST_TERMS = 16


def largest_text(terms: list[str]) -> str:
    """Return the text of the largest of some terms."""
    text = terms[0]
    for term in terms[1:]:
        text = f"max({text}, {term})"
    return text


def logarithm_text(top: str, total: str, real: str) -> str:
    """Return the logarithm of a sum of exp(term), given that of exp(term - top).

    One of those is exp(0), so their sum is at least 1. Where the terms are huge it is
    not, once the compiler has reordered what they are made of.
    """
    one = f"{real}(1.0)"
    is_off = f"{total} < {one} or {total} == {real}(math.inf)"
    return f"{top} + math.log({one} if {is_off} else {total})"


def finite_text(top: str, real: str) -> str:
    """Return what to subtract: the largest term, 0 where that is infinite or nan.

    inf - inf is nan: terms that are all -inf have the logarithm of the sum 0, -inf.
    """
    return f"{top} if abs({top}) < {real}(math.inf) else {real}(0.0)"


class MatrixProducts(MatrixColumns):
    """Products of a k x k matrix and a vector with one entry a feature."""

    def _matvec(
        self, target: str, node: Operate, predicate: str, origin: Origin
    ) -> None:
        owner = self.owner
        matrix = node.args[0]
        if isinstance(matrix, Operate) and matrix.name == "outer":
            self._outer_times(target, node, predicate, origin)
            return
        zero = f"{owner.context.real}(0.0)"
        column = self._column(node, origin)
        texts = self._operands(node.args[1], zero, predicate)
        names = self._names(target)
        semiring = node.constant("semiring")
        if semiring in {None, "plus_times"}:
            self._sum_products(names, matrix, column, texts, origin)
        elif owner.width * owner.count <= MOST_TERMS:
            self._few_terms(names, column, texts, semiring, origin)
        else:
            self._many_terms(names, matrix, column, texts, semiring, origin)

    def _hold(self, texts: list[str], origin: Origin) -> list[str]:
        """Give each copy's entry of the vector a name."""
        held = [self.owner.fresh("held") for _ in texts]
        for name, text in zip(held, texts, strict=True):
            self._line(f"{name} = {text}", origin)
        return held

    def _loop(
        self,
        held: list[str],
        column: Column,
        body: Callable[[list[str], str], None],
        origin: Origin,
    ) -> None:
        """Print a loop over the entries of the vector: ``body(column i, x of i)``."""
        owner = self.owner
        if not owner.predicated:
            if len(held) > 1:
                for i, name in enumerate(held):
                    body(column(str(i)), name)
                return
            with owner.writer.block(f"for i in range({owner.width}):"):
                body(column("i"), f"{held[0]}[i]")
            return
        x, count = owner.fresh("x"), owner.count
        # Lanes whose copy j is a feature.
        members = [-(-(owner.width - j) // count) for j in range(count)]
        together = [range(count)] if len(set(members)) == 1 else [
            range(j, j + 1) for j in range(count)
        ]  # fmt: skip
        for copies in together:
            with owner.writer.block(f"for member in range({members[copies[0]]}):"):
                for j in copies:
                    self._line(f"i = member * {count} + {j}", origin)
                    text = f"warp.broadcast({held[j]}, int32(member), {owner.lanes})"
                    self._line(f"{x} = {text}", origin)
                    body(column("i"), x)

    def _looped(self, matrix: ast.expr, texts: list[str], origin: Origin) -> list[str]:
        """Hold the vector so that a loop can index it, or in names of its own."""
        owner = self.owner
        at_hand = bool(owner.staged) or self.takes_rows(matrix)
        if owner.predicated or (at_hand and owner.width > 1):
            return self._hold(texts, origin)
        return self._hold([f"({', '.join(texts)},)"], origin)

    def _sum_products(
        self,
        names: list[str],
        matrix: ast.expr,
        column: Column,
        texts: list[str],
        origin: Origin,
    ) -> None:
        def add(entries: list[str], x: str) -> None:
            for name, entry in zip(names, entries, strict=True):
                self._line(f"{name} += {entry} * {x}", origin)

        for name in names:
            self._line(f"{name} = {self.owner.context.real}(0.0)", origin)
        self._loop(self._looped(matrix, texts, origin), column, add, origin)

    def _few_terms(
        self,
        names: list[str],
        column: Column,
        texts: list[str],
        semiring: str,
        origin: Origin,
    ) -> None:
        """Print every term once, under a name of its own."""
        owner = self.owner
        held = self._hold(texts, origin)
        entries = held
        if owner.predicated:
            entries = []
            for i in range(owner.width):
                entries.append(owner.fresh("x"))
                member, j = divmod(i, owner.count)
                text = f"warp.broadcast({held[j]}, int32({member}), {owner.lanes})"
                self._line(f"{entries[i]} = {text}", origin)
        terms = [owner.fresh("term") for _ in entries]
        top, shift = owner.fresh("top"), owner.fresh("shift")
        columns = [column(str(i)) for i in range(owner.width)]
        for j, name in enumerate(names):
            for term, texts_, x in zip(terms, columns, entries, strict=True):
                self._line(f"{term} = {texts_[j]} + {x}", origin)
            if semiring == "max_plus":
                self._line(f"{name} = {largest_text(terms)}", origin)
                continue
            self._line(f"{top} = {largest_text(terms)}", origin)
            self._line(f"{shift} = {finite_text(top, owner.context.real)}", origin)
            total = " + ".join(f"math.exp({term} - {shift})" for term in terms)
            self._line(f"{name} = {total}", origin)
            text = logarithm_text(top, name, owner.context.real)
            self._line(f"{name} = {text}", origin)

    def _many_terms(
        self,
        names: list[str],
        matrix: ast.expr,
        column: Column,
        texts: list[str],
        semiring: str,
        origin: Origin,
    ) -> None:
        """Loop over the terms: for the largest, and again for the sum."""
        owner, real = self.owner, self.owner.context.real
        held = self._looped(matrix, texts, origin)
        is_max = semiring == "max_plus"
        tops = names if is_max else [owner.fresh("top") for _ in names]

        def raise_top(entries: list[str], x: str) -> None:
            for top, entry in zip(tops, entries, strict=True):
                self._line(f"{top} = max({top}, {entry} + {x})", origin)

        for top in tops:
            self._line(f"{top} = {real}(-math.inf)", origin)
        self._loop(held, column, raise_top, origin)
        if is_max:
            return
        shifts = [owner.fresh("shift") for _ in names]

        def add(entries: list[str], x: str) -> None:
            for name, entry, shift in zip(names, entries, shifts, strict=True):
                self._line(f"{name} += math.exp({entry} + {x} - {shift})", origin)

        for name, top, shift in zip(names, tops, shifts, strict=True):
            self._line(f"{shift} = {finite_text(top, real)}", origin)
            self._line(f"{name} = {real}(0.0)", origin)
        self._loop(held, column, add, origin)
        for name, top in zip(names, tops, strict=True):
            self._line(f"{name} = {logarithm_text(top, name, real)}", origin)

    def _outer_times(
        self, target: str, node: Operate, predicate: str, origin: Origin
    ) -> None:
        """``outer(a, b) @ x`` is ``a * dot(b, x)``; transposed ``b * dot(a, x)``."""
        owner = self.owner
        a, b = narrowed(node.args[0], Operate).args
        transpose = node.option("transpose")
        if transpose is not None and not isinstance(transpose, ast.Constant):
            raise owner.function.declared.source.error(
                "transpose= of an outer product must be a constant", node
            )
        if transpose is not None and transpose.value:
            a, b = b, a
        zero = f"{owner.context.real}(0.0)"
        left = self._operands(b, zero, predicate)
        right = self._operands(node.args[1], zero, predicate)
        dot = owner.fresh("dot")
        pairs = zip(left, right, strict=True)
        text = " + ".join(f"{as_part(p, '*')} * {as_part(q, '*')}" for p, q in pairs)
        if owner.predicated:
            text = f"warp.group_sum({text}, {owner.lanes})"
        self._line(f"{dot} = {text}", origin)
        for name, style in zip(self._names(target), owner.styles, strict=True):
            text = as_part(print_expression(a, style), "*")
            self._line(f"{name} = {text} * {dot}", origin)
