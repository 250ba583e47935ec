"""What is done with values: statements for one feature, from what a kernel does."""

from __future__ import annotations

import ast
from collections.abc import Callable

from featgraph.fold.codegen.kernels.accumulate import was_packed
from featgraph.fold.codegen.kernels.accumulators import Accumulator
from featgraph.fold.lowering.calls import call_for_all, call_for_one, rows_of
from featgraph.fold.lowering.facts import Facts
from featgraph.fold.tree.nodes import Called, Features, FromMemory, Push, RowLoad
from featgraph.fold.tree.statements import Body, Rewriting, code

__all__ = ["Leaves", "element", "place_of", "shape_of"]


def shape_of(accumulator: Accumulator) -> str:
    """Return what features an accumulator has: "one", "wide" or "matrix"."""
    return ("one", "wide", "matrix")[len(accumulator.shape)]


def element(accumulator: Accumulator, name: str = "") -> str:
    """Return an element of an accumulator, or of what goes with one."""
    index = {"one": "", "wide": "[f]", "matrix": "[i, f]"}[shape_of(accumulator)]
    return f"{name or accumulator.name}{index}"


def place_of(accumulator: Accumulator) -> str:
    """Return the index of an element in memory, at vertex v."""
    return {"one": "v", "wide": "v, f", "matrix": "v, i, f"}[shape_of(accumulator)]


class Leaves(Rewriting):
    """Has what lanes do with values say what it does for one feature."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.axis = facts, facts.binding.features

    def visit_FromMemory(self, node: FromMemory) -> Body:
        """Bring what has been gathered for v, or a single entry of it."""
        entry = self.facts.plan.analysis.entries.get(node.of)
        if entry is not None:
            form = self.facts.context.indexed[entry.of]
            return code(f"{node.of} = {form.format(f'v, {entry.feature}')}")
        accumulator = self.facts.accumulators[node.of]
        if accumulator.is_matrix:
            return code(f"{node.of} = d.{node.of}[v]")
        packed = was_packed(accumulator, self.facts.plan)
        index, library = place_of(accumulator), self.facts.library
        lines = accumulator.load(element(accumulator), index, packed, library)
        return self._each(accumulator, lines)

    def visit_Called(self, node: Called) -> Body:
        """Have all lanes call a function, and keep what it contributes."""
        printed = self.facts.printed[node.function]
        wide = self.facts.filled(node.function).is_wide
        call = call_for_all(self.facts, printed, node.mask)
        return [_assigned(f"*{node.into}," if wide else node.into, call)]

    def visit_Push(self, node: Push) -> Body:
        """Combine a contribution into memory; lanes without a feature must not."""
        accumulator = self.facts.filled(node.function)
        packed = "_packed" if accumulator.is_arg else ""
        index, real = place_of(accumulator), self.facts.context.real
        place = f"({index})" if ", " in index else index
        array = f"d.{accumulator.name}{packed}"

        def combine(value: str) -> list[str]:
            return accumulator.atomic(array, place, value, self.facts.library, real)

        return self._taken(node.function, accumulator, combine, guarded=True)

    def _taken(
        self,
        function: str,
        accumulator: Accumulator,
        combine: Callable[[str], list[str]],
        guarded: bool = False,
    ) -> Body:
        """Return what takes a contribution, wherever it goes."""
        facts, printed = self.facts, self.facts.printed[function]
        if facts.shuffles(function):
            value = element(accumulator, f"new_{accumulator.name}")
            return self._each(accumulator, combine(value), guarded=guarded)
        if not printed.is_collective or accumulator.is_matrix:
            value = ast.unparse(call_for_one(facts, printed))
            rows = rows_of(printed)
            return self._each(accumulator, combine(value), rows, guarded)
        call = call_for_all(facts, printed)
        if function in facts.rows_left:
            row = element(accumulator, facts.row_left(function))
            if accumulator.is_arg:
                row += ", contribution_source[f]"
            left: Body = [ast.Expr(call)]
            return left + self._each(accumulator, combine(row))
        wide = accumulator.is_wide
        left = [_assigned("*contribution," if wide else "contribution_0", call)]
        value = "contribution[f]" if wide else "contribution_0"
        return left + self._each(accumulator, combine(value), guarded=guarded)

    def _each(
        self,
        accumulator: Accumulator,
        lines: list[str],
        rows: tuple[RowLoad, ...] = (),
        guarded: bool = False,
    ) -> Body:
        """Return statements for each feature of an accumulator."""
        body = code("\n".join(lines))
        return [Features(shape_of(accumulator), body, rows, guarded)]


def _assigned(names: str, value: ast.expr) -> ast.stmt:
    [statement] = code(f"{names} = None")
    statement.value = value  # type: ignore[attr-defined]
    return statement
