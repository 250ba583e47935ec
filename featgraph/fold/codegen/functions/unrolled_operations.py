"""Prints collaborative operations over named copies.

First over the copies of a lane, then over the lanes. A lane that has no feature
(padding), or whose vertex is not in the branch, contributes the identity.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from featgraph.fold.codegen.functions.unrolled_operands import Origin
from featgraph.fold.codegen.functions.unrolled_systems import MatrixOperations
from featgraph.fold.codegen.text.expressions import print_expression
from featgraph.fold.syntax.nodes import Operate
from featgraph.fold.syntax.variance import varies

__all__ = ["CopiesOperations"]

_REDUCTIONS = {
    "feature_sum": ("group_sum", "segment_sum"),
    "feature_max": ("group_max", "segment_max"),
    "feature_min": ("group_min", "segment_min"),
    "any_feature": ("group_any", "segment_any"),
    "all_features": ("group_all", "segment_all"),
}


class CopiesOperations(MatrixOperations):
    """The operations of one collective function."""

    def emit(self, target: str, node: Operate, predicate: str, origin: Origin) -> None:
        """Write the statements for ``target = operation(...)``."""
        handlers: dict[str, Callable[[str, Operate, str, Origin], None]] = {
            "argmax": self._argmax,
            "broadcast": self._broadcast,
            "matvec": self._matvec,
            "solve": self._solve,
            "inverse": self._inverse,
        }
        handler = handlers.get(node.name, self._reduction)
        owner = self.owner
        if not (owner.in_rounds and predicate) or node.name == "inverse":
            handler(target, node, predicate, origin)
            return
        # A group that goes round with others keeps what its own last iteration gave.
        found = owner.fresh("found")
        handler(found, node, predicate, origin)
        with owner.writer.block(f"if {predicate}:"):
            varying = target in owner.varying
            pairs = (
                zip(self._names(target), self._names(found), strict=True)
                if varying
                else [(target, found)]
            )
            for own, new in pairs:
                self._line(f"{own} = {new}", origin)

    def _combined(self, name: str, texts: list[str], operand: ast.expr) -> str:
        """Return the combination of one lane's copies."""
        if len(texts) == 1:
            return texts[0]
        symbol = {"any_feature": " | ", "all_features": " & "}.get(name, "")
        if symbol and self.owner.context.cuda and self._type(operand) == "bool":
            return symbol.join(texts)  # "or" may branch from test to test
        if name == "feature_sum":
            return " + ".join(texts)
        if name in {"any_feature", "all_features"}:
            return (" or " if name == "any_feature" else " and ").join(texts)
        function = "max" if name == "feature_max" else "min"
        text = texts[0]
        for other in texts[1:]:
            text = f"{function}({text}, {other})"
        return text

    def _reduction(
        self, target: str, node: Operate, predicate: str, origin: Origin
    ) -> None:
        owner, group = self.owner, node.constant("group")
        operand = node.args[0]
        if group is not None and owner.width % group:
            raise owner.function.declared.source.error(
                "group= must divide the number of features",
                node,
                got=f"group={group}, K={owner.width}",
            )
        texts = self._operands(operand, self._identity(node.name, operand), predicate)
        if group is not None:
            self._segments(target, node, texts, group, origin)
            return
        text = self._combined(node.name, texts, operand)
        if owner.predicated and owner.lanes > 1:
            wide = self._wide(text, operand, node.name)
            text = f"warp.{_REDUCTIONS[node.name][0]}({wide}, {owner.lanes})"
        self._line(f"{target} = {text}", origin)

    def _segments(
        self, target: str, node: Operate, texts: list[str], group: int, origin: Origin
    ) -> None:
        owner, names = self.owner, self._names(target)
        if not owner.predicated or (owner.count > 1 and owner.count % group == 0):
            # A lane has all members of its groups.
            for start in range(0, owner.count, group):
                members = texts[start : start + group]
                text = self._combined(node.name, members, node.args[0])
                self._line(f"{names[start]} = {text}", origin)
                for name in names[start + 1 : start + group]:
                    self._line(f"{name} = {names[start]}", origin)
        elif owner.count == 1:
            function = _REDUCTIONS[node.name][1]
            text = self._wide(texts[0], node.args[0], node.name)
            self._line(
                f"{names[0]} = warp.{function}({text}, lane, {group}, {owner.lanes})",
                origin,
            )
        else:
            self._segments_across_copies(names, node, texts, group, origin)

    def _segments_across_copies(
        self,
        names: list[str],
        node: Operate,
        texts: list[str],
        group: int,
        origin: Origin,
    ) -> None:
        """Members stand in several copies of several lanes: ask for each in turn."""
        owner = self.owner
        is_vote = node.name in {"any_feature", "all_features"}
        held = [owner.fresh("held") for _ in texts]
        for name, text in zip(held, texts, strict=True):
            value = (
                f"int32({text})"
                if is_vote
                else self._wide(text, node.args[0], node.name)
            )
            self._line(f"{name} = {value}", origin)
        combine = {
            "feature_sum": "{} + {}",
            "any_feature": "{} | {}",
            "all_features": "{} & {}",
            "feature_max": "max({}, {})",
            "feature_min": "min({}, {})",
        }[node.name]
        for j, name in enumerate(names):
            first = f"{owner.feature(j)} // {group} * {group}"
            self._line(f"{name} = {self._member(held, first)}", origin)
            with owner.writer.block(f"for member in range(1, {group}):"):
                value = self._member(held, f"({first} + member)")
                self._line(f"{name} = {combine.format(name, value)}", origin)
            if is_vote:
                self._line(f"{name} = {name} != 0", origin)

    def _argmax(
        self, target: str, node: Operate, predicate: str, origin: Origin
    ) -> None:
        owner, group = self.owner, node.constant("group")
        operand = node.args[0]
        texts = self._operands(operand, self._identity("argmax", operand), predicate)
        if group is not None and owner.predicated and owner.count > 1:
            self._argmax_across_copies(
                self._names(target), texts, operand, group, origin
            )
            return
        if group is not None and owner.predicated:
            text = self._wide(texts[0], operand, "argmax")
            self._line(
                f"{target} = lane // {group} * {group} + "
                f"warp.segment_argmax({text}, lane, {group}, {owner.lanes})[1]",
                origin,
            )
            return
        size = group or len(texts)
        names = self._names(target) if group is not None else [target]
        for segment, start in enumerate(range(0, len(texts), size)):
            name = names[start] if group is not None else target
            top = owner.fresh("top")
            self._line(f"{top} = {self._wide(texts[start], operand, 'argmax')}", origin)
            self._line(f"{name} = int64({owner.feature(start)})", origin)
            for j in range(start + 1, start + size):
                with owner.writer.block(
                    f"if {texts[j]} > {top} or "
                    f"({top} != {top} and {texts[j]} == {texts[j]}):"
                ):
                    self._line(f"{top} = {texts[j]}", origin)
                    self._line(f"{name} = int64({owner.feature(j)})", origin)
            for other in names[start + 1 : start + size] if group is not None else []:
                self._line(f"{other} = {name}", origin)
            if owner.predicated and segment == 0:
                self._line(
                    f"{target} = warp.group_argmax({top}, {target}, {owner.lanes})[1]",
                    origin,
                )

    def _argmax_across_copies(
        self,
        names: list[str],
        texts: list[str],
        operand: ast.expr,
        group: int,
        origin: Origin,
    ) -> None:
        """Members stand in several copies of several lanes: ask for each."""
        owner = self.owner
        held = [owner.fresh("held") for _ in texts]
        for name, text in zip(held, texts, strict=True):
            self._line(f"{name} = {self._wide(text, operand, 'argmax')}", origin)
        for j, name in enumerate(names):
            top, value = owner.fresh("top"), owner.fresh("value")
            first = f"{owner.feature(j)} // {group} * {group}"
            self._line(f"{name} = int64({first})", origin)
            self._line(f"{top} = {self._member(held, f'({first})')}", origin)
            with owner.writer.block(f"for member in range(1, {group}):"):
                self._line(
                    f"{value} = {self._member(held, f'({first} + member)')}", origin
                )
                test = f"{value} > {top} or ({top} != {top} and {value} == {value})"
                with owner.writer.block(f"if {test}:"):
                    self._line(f"{top} = {value}", origin)
                    self._line(f"{name} = int64({first} + member)", origin)

    def _broadcast(
        self, target: str, node: Operate, predicate: str, origin: Origin
    ) -> None:
        owner = self.owner
        x, index = node.args
        zero = self._identity("feature_sum", x)
        texts = self._operands(x, zero, predicate)
        per_copy = varies(index, owner.varying)
        for j, name in enumerate(self._names(target) if per_copy else [target]):
            feature = print_expression(index, owner.styles[j])
            if not owner.predicated:
                if len(set(texts)) == 1:  # all features have the same
                    chosen = texts[0]
                elif feature.isdigit() and int(feature) < len(texts):
                    chosen = texts[int(feature)]
                else:
                    chosen = f"({', '.join(texts)},)[{feature}]"
                self._line(f"{name} = {chosen}", origin)
            else:
                held = [self._wide(t, x, "broadcast") for t in texts]
                self._line(f"{name} = {self._member(held, f'({feature})')}", origin)
