"""Prints ``matvec``, ``solve`` and ``inverse`` over named copies."""

from __future__ import annotations

import ast
from collections.abc import Callable

from featgraph.fold.nodes import Operate, Whole, narrowed
from featgraph.fold.operands import CopiesOperands, Origin
from featgraph.fold.printer import Style, print_element, print_expression

__all__ = ["MatrixOperations"]


class MatrixOperations(CopiesOperands):
    """Operations on k x k matrices; a work area holds what is solved or inverted."""

    def _element(self, matrix: ast.expr, row: str, column: str, style: Style) -> str:
        """Return the text of ``matrix[row, column]``."""
        real = self.owner.context.real
        if isinstance(matrix, Whole):
            text = print_element(matrix, row, column, style)
            if self._type(matrix) != "real":
                text = f"{real}({text})"
            guarded = self.owner.needs_guard(matrix)
            return (
                f"({text} if {self.owner.live} else {real}(0.0))" if guarded else text
            )
        row_, column_ = style.index(row), style.index(column)
        if isinstance(matrix, ast.Name) and matrix.id in self.owner.function.matrices:
            return (
                f"{style.matrices[matrix.id]}[{row_}, {self.owner.width} + {column_}]"
            )
        raise self.owner.function.declared.source.error(
            "not a matrix",
            matrix,
            expected="d.name[v] or d.name, k x k, outer(x, y), inverse(A)",
        )

    def _matvec(
        self, target: str, node: Operate, predicate: str, origin: Origin
    ) -> None:
        owner = self.owner
        matrix, x = node.args
        if isinstance(matrix, Operate) and matrix.name == "outer":
            self._outer_times(target, node, predicate, origin)
            return
        zero = f"{owner.context.real}(0.0)"
        names = self._names(target)
        for name in names:
            self._line(f"{name} = {zero}", origin)
        texts = self._operands(x, zero, predicate)
        if not owner.predicated:
            held = owner._fresh("held")
            self._line(f"{held} = ({', '.join(texts)},)", origin)
            with owner.writer.block(f"for i in range({owner.width}):"):
                self._accumulate(names, node, f"{held}[i]", origin)
            return
        for j, text in enumerate(texts):
            held = owner._fresh("held")
            self._line(f"{held} = {text}", origin)
            members = -(
                -(owner.width - j) // owner.count
            )  # lanes whose copy j is a feature
            with owner.writer.block(f"for member in range({members}):"):
                self._line(f"i = member * {owner.count} + {j}", origin)
                self._line(
                    f"x_i = warp.broadcast({held}, int32(member), {owner.lanes})",
                    origin,
                )
                self._accumulate(names, node, "x_i", origin)

    def _accumulate(
        self, names: list[str], node: Operate, value: str, origin: Origin
    ) -> None:
        owner, matrix = self.owner, node.args[0]
        transpose = node.option("transpose")
        for j, name in enumerate(names):
            style, f = owner.styles[j], owner.feature(j)
            plain = self._element(matrix, f, "i", style)
            turned = self._element(matrix, "i", f, style)
            if transpose is None or (
                isinstance(transpose, ast.Constant) and not transpose.value
            ):
                text = plain
            elif isinstance(transpose, ast.Constant):
                text = turned
            else:
                text = (
                    f"({turned} if {print_expression(transpose, style)} else {plain})"
                )
            self._line(f"{name} += {text} * {value}", origin)

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
        dot = owner._fresh("dot")
        text = " + ".join(f"{p} * {q}" for p, q in zip(left, right, strict=True))
        if owner.predicated:
            text = f"warp.group_sum({text}, {owner.lanes})"
        self._line(f"{dot} = {text}", origin)
        for name, style in zip(self._names(target), owner.styles, strict=True):
            self._line(f"{name} = {print_expression(a, style)} * {dot}", origin)

    def _solve(
        self, target: str, node: Operate, predicate: str, origin: Origin
    ) -> None:
        owner = self.owner
        k = owner.width
        work = self._fill(node, k + 1, predicate, origin)
        rhs = self._operands(node.args[1], f"{owner.context.real}(0.0)", "")
        self._per_feature(lambda j, f: f"{work}[{f}, {k}] = {rhs[j]}", origin)
        self._call(
            "solve_spd" if node.constant("spd") else "solve_general", work, node, origin
        )
        for j, name in enumerate(self._names(target)):
            self._line(f"{name} = {work}[{self._index(owner.feature(j))}, {k}]", origin)

    def _inverse(
        self, target: str, node: Operate, predicate: str, origin: Origin
    ) -> None:
        owner = self.owner
        work = self._fill(node, 2 * owner.width, predicate, origin)
        self._call(
            "inverse_spd" if node.constant("spd") else "inverse_general",
            work,
            node,
            origin,
        )
        owner.styles = [
            Style(**{**s.__dict__, "matrices": {**s.matrices, target: work}})
            for s in owner.styles
        ]

    def _fill(self, node: Operate, columns: int, predicate: str, origin: Origin) -> str:
        """Copy the matrix into a work area, each lane the rows of its features."""
        owner = self.owner
        work = f"work_{len(owner.areas)}"
        owner.areas.append(columns)
        matrix = node.args[0]
        if owner.predicated:
            self._line("warp.sync()", origin)
        column = self._index("column")

        def element(j: int) -> str:
            feature = owner.feature(j)
            return self._element(matrix, feature, "column", owner.styles[j])

        with owner.writer.block(f"for column in range({owner.width}):"):
            self._per_feature(
                lambda j, f: f"{work}[{f}, {column}] = {element(j)}",
                origin,
            )
        return work

    def _index(self, text: str) -> str:
        return self.owner.styles[0].index(text)

    def _per_feature(self, text: Callable[[int, str], str], origin: Origin) -> None:
        owner = self.owner
        for j in range(owner.count):
            line = text(j, self._index(owner.feature(j)))
            if owner.padded:
                with owner.writer.block(f"if {owner.copy_name('inside', j)}:"):
                    self._line(line, origin)
            else:
                self._line(line, origin)

    def _call(self, name: str, work: str, node: Operate, origin: Origin) -> None:
        owner = self.owner
        given = node.option("diagonal")
        diagonal = (
            f"{owner.context.real}(0.0)"
            if given is None
            else print_expression(given, owner.styles[0])
        )
        lane, lanes = ("lane", owner.lanes) if owner.predicated else (0, 1)
        library = (
            "linalg" if owner.predicated or not owner.context.cuda else "linalg_thread"
        )
        self._line(
            f"{library}.{name}({work}, {owner.width}, {diagonal}, {lane}, {lanes})",
            origin,
        )
