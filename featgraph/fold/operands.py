"""Operands of collaborative operations over named copies."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from featgraph.fold.operand import operand_type
from featgraph.fold.printer import as_part, print_expression

if TYPE_CHECKING:
    from featgraph.fold.copy_names import CopyNames

__all__ = ["CopiesOperands", "Origin"]

Origin = tuple[str, int]


class CopiesOperands:
    """What the operations of one collective function share: operands as text."""

    def __init__(self, owner: CopyNames) -> None:
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
