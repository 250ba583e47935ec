"""Prints ``solve`` and ``inverse`` over named copies."""

from __future__ import annotations

from collections.abc import Callable

from featgraph.fold.nodes import Operate
from featgraph.fold.operands import Origin
from featgraph.fold.printer import Style, print_expression
from featgraph.fold.products import MatrixProducts

__all__ = ["MatrixOperations"]


class MatrixOperations(MatrixProducts):
    """Operations on k x k matrices; a work area holds what is solved or inverted."""

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
