"""Checked mode: every index is compared with the axis that it goes to.

A read out of range is reported and gets entry 0; a store or an atomic is reported and
left out.
"""

from __future__ import annotations

import ast
from typing import cast

from featgraph.base.dataclass import dataclass
from featgraph.fold.analysis.gathered_values import INDEXED
from featgraph.fold.passes.bodies.memory import Memory, bound_of, is_number
from featgraph.fold.passes.bodies.nodes import Checked, Masked, Place
from featgraph.fold.tree.expressions import Access, Atomic
from featgraph.fold.tree.statements import Rewriting, copied, expression

__all__ = ["IndexChecks", "Site"]

#: Function, file, line, property and axis of an index, by its number.
Site = tuple[str, str, int, str, int]


@dataclass
class IndexChecks(Rewriting):
    """Puts tests around indices, and in front of stores.

    Attributes
    ----------
    memory : Memory
        Where values are.
    function, file : str
        The user's function, and where it is.
    sites : list of Site
        Gets one for each index.
    """

    memory: Memory
    function: str
    file: str
    sites: list[Site]

    def _site(self, node: Access | Atomic, axis: int) -> int:
        line = getattr(node, "lineno", 0)
        self.sites.append((self.function, self.file, line, node.name, axis))
        return len(self.sites) - 1

    def visit_Assign(self, node: ast.Assign) -> ast.Assign | Masked:
        """Store where all indices are in range."""
        node.value = self._checked(node.value)
        [target] = node.targets
        if not isinstance(target, Access):
            return node
        return Masked(self._tests(target, target.indices), [node])

    def visit_Masked(self, node: Masked) -> Masked:
        """Ask everything that must hold for a store at once."""
        is_assigned = isinstance(node.body[0], ast.Assign)
        node.body = self.over(node.body)
        first = node.body[0]
        if is_assigned and isinstance(first, Masked):
            return Masked([*node.tests, *first.tests], first.body)
        return node

    def visit_Access(self, node: Access) -> Access:
        """Check the indices of a read; what is given has none for its vertex."""
        is_given = node.name in self.memory.temporaries and node.version != INDEXED
        if is_given and len(node.indices) < 3:
            return node
        first = int(is_given)
        for axis, index in enumerate(node.indices[first:]):
            checked = self._checked(index)
            if not (is_number(checked) or isinstance(checked, Place)):
                checked = Checked(checked, axis, self._site(node, axis))
            node.indices[first + axis] = checked
        return node

    def visit_Atomic(self, node: Atomic) -> ast.expr:
        """Leave out an atomic whose index is out of range."""
        indices = [copied(index) for index in node.indices]
        self.generic_visit(node)
        tests = self._tests(node, indices)
        test = tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)
        zeros = [ast.Constant(0) for _ in indices]
        return ast.IfExp(test, node, Access(node.name, "now", zeros))

    def _tests(self, node: Access | Atomic, indices: list[ast.expr]) -> list[ast.expr]:
        """Return the tests of all indices of what is changed."""
        vertex, edge = self.memory.ends
        tests = []
        for axis, index in enumerate(indices):
            site = self._site(node, axis)
            text = f"{self.memory.intrinsics}.checked(INDEX, BOUND, {site}, "
            tests.append(
                expression(
                    f"{text}{vertex}, {edge}, d.fault)",
                    INDEX=self._checked(copied(index)),
                    BOUND=bound_of(node, axis, self.memory),
                )
            )
        return tests

    def _checked(self, node: ast.expr) -> ast.expr:
        return cast("ast.expr", self.visit(node))
