"""Prints ``solve`` and ``inverse`` over named copies."""

from __future__ import annotations

from collections.abc import Callable

from featgraph.fold.codegen.functions.small_solve import solve_lines
from featgraph.fold.codegen.functions.unrolled_operands import Origin
from featgraph.fold.codegen.functions.unrolled_products import MatrixProducts
from featgraph.fold.codegen.text.expressions import Style, print_expression
from featgraph.fold.plan.schedules import MOST_HELD
from featgraph.fold.syntax.nodes import Operate

__all__ = ["MatrixOperations"]


class MatrixOperations(MatrixProducts):
    """Operations on k x k matrices; a work area holds what is solved or inverted."""

    def _solve(
        self, target: str, node: Operate, predicate: str, origin: Origin
    ) -> None:
        owner = self.owner
        k = owner.width
        if owner.mapping.schedule == "thread" and k <= MOST_HELD:
            self._solve_held(target, node, origin)
            return
        work = self._fill(node, k + 1, predicate, origin)
        rhs = self._operands(node.args[1], f"{owner.context.real}(0.0)", "")
        self._per_feature(lambda j, f: f"{work}[{f}, {k}] = {rhs[j]}", origin)
        self._call(
            "solve_spd" if node.constant("spd") else "solve_general", work, node, origin
        )
        for j, name in enumerate(self._names(target)):
            self._line(f"{name} = {work}[{self._index(owner.feature(j))}, {k}]", origin)

    def _solve_held(self, target: str, node: Operate, origin: Origin) -> None:
        """Solve a small system in registers."""
        owner = self.owner
        k, spd = owner.width, bool(node.constant("spd"))
        work, diagonal = owner.fresh("work"), owner.fresh("diagonal")
        self._line(f"{diagonal} = {self._diagonal(node)}", origin)
        for i in range(k):
            for f in range(i + 1 if spd else k):
                element = self._element(node.args[0], str(i), str(f), owner.styles[0])
                shift = f" + {diagonal}" if i == f else ""
                self._line(f"{work}_{i}_{f} = {element}{shift}", origin)
        for i, text in enumerate(self._operands(node.args[1], "", "")):
            self._line(f"{work}_{i}_{k} = {text}", origin)
        for line in solve_lines(work, owner.fresh("factor"), k, spd):
            self._line(line, origin)
        for i, name in enumerate(self._names(target)):
            self._line(f"{name} = {work}_{i}_{k}", origin)

    def _diagonal(self, node: Operate) -> str:
        given = node.option("diagonal")
        if given is None:
            return f"{self.owner.context.real}(0.0)"
        return print_expression(given, self.owner.styles[0])

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
        diagonal = self._diagonal(node)
        lane, lanes = ("lane", owner.lanes) if owner.predicated else (0, 1)
        library = (
            "linalg" if owner.predicated or not owner.context.cuda else "linalg_thread"
        )
        self._line(
            f"{library}.{name}({work}, {owner.width}, {diagonal}, {lane}, {lanes})",
            origin,
        )
