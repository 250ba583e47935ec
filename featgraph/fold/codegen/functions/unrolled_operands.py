"""Operands of collaborative operations over named copies."""

from __future__ import annotations

import ast
from typing import Protocol

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.operand_type import operand_type
from featgraph.fold.codegen.functions.featurewise import Context
from featgraph.fold.codegen.functions.staging import Staged
from featgraph.fold.codegen.text.expressions import Style, as_part, print_expression
from featgraph.fold.codegen.text.writer import Writer
from featgraph.fold.plan.schedules import Mapping

__all__ = ["Copies", "CopiesOperands", "Origin"]

Origin = tuple[str, int]


class Copies(Protocol):
    """What operations ask of the function that they are printed in."""

    writer: Writer
    context: Context
    function: Analysed
    mapping: Mapping
    varying: frozenset[str]
    staged: dict[str, Staged]
    styles: list[Style]
    areas: list[int]
    #: Copies of a lane, features in all, and lanes that share them.
    count: int
    width: int
    lanes: int
    #: Whether a statement that some lanes skip needs a test, and its name.
    predicated: bool
    live: str
    #: Whether lanes may have copies beyond the last feature.
    padded: bool
    in_rounds: bool

    def copy_name(self, name: str, j: int) -> str:
        """Return the name of copy j of a variable."""

    def feature(self, j: int) -> str:
        """Return the text of the feature of copy j."""

    def fresh(self, stem: str) -> str:
        """Return a name that nothing else has."""

    def needs_guard(self, node: ast.AST) -> bool:
        """Return whether lanes that have left must not evaluate `node`."""


class CopiesOperands:
    """What the operations of one collective function share: operands as text."""

    def __init__(self, owner: Copies) -> None:
        self.owner = owner

    def _line(self, text: str, origin: Origin) -> None:
        self.owner.writer.line(text, origin)

    def _names(self, target: str) -> list[str]:
        return [self.owner.copy_name(target, j) for j in range(self.owner.count)]

    def _operands(self, node: ast.expr, identity: str, predicate: str) -> list[str]:
        """Return the operand of each copy, masked where the lane has none."""
        texts = []
        for j, style in enumerate(self.owner.styles):
            text = print_expression(node, style)
            tests = [predicate] if predicate and self.owner.predicated else []
            tests += [self.owner.live] if self.owner.needs_guard(node) else []
            if self.owner.padded:
                tests.append(self.owner.copy_name("inside", j))
            if tests:
                text = as_part(text, "or")
                text = f"({text} if {' and '.join(tests)} else {identity})"
            elif self.owner.count > 1:
                text = as_part(text, "+")
            texts.append(text)
        return texts

    def _identity(self, name: str, operand: ast.expr) -> str:
        type_ = self._type(operand)
        if name in {"any_feature", "all_features"}:
            return "False" if name == "any_feature" else "True"
        if name == "feature_sum":
            return f"{self.owner.context.real}(0.0)" if type_ == "real" else "int64(0)"
        if type_ == "real":
            sign = "-" if name in {"feature_max", "argmax"} else ""
            return f"{self.owner.context.real}({sign}math.inf)"
        low = name in {"feature_max", "argmax"}
        return f"int64({-(2**62) if low else 2**62})"

    def _type(self, node: ast.expr) -> str:
        return operand_type(node, self.owner.function, self.owner.context.analysis)

    def _wide(self, text: str, operand: ast.expr, name: str) -> str:
        """Shuffles have one type on all lanes: integers travel as int64."""
        if name in {"any_feature", "all_features"} or self._type(operand) == "real":
            return text
        return f"int64({text})"

    def _member(self, held: list[str], feature: str) -> str:
        """Return the value of `feature`, which another lane may hold."""
        owner, count = self.owner, self.owner.count
        parts = [
            f"warp.broadcast({h}, int32({feature} // {count}), {owner.lanes})"
            for h in held
        ]
        text = parts[-1]
        for j in range(count - 2, -1, -1):
            text = f"cuda.selp({feature} % {count} == {j}, {parts[j]}, {text})"
        return text
