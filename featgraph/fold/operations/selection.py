"""The feature of the largest value, and the value of a feature."""

from __future__ import annotations

import ast
from collections.abc import Callable

from featgraph.base.dataclass import dataclass
from featgraph.fold.operations.contexts import Looped, Types, Unrolled
from featgraph.fold.operations.lanes import in_registers, member, named, wide
from featgraph.fold.operations.primitive import Primitive
from featgraph.fold.operations.reductions import LOWEST, ZERO
from featgraph.fold.tree.expressions import Operate, is_same
from featgraph.fold.tree.statements import expression
from featgraph.program.operations import argmax, broadcast

__all__ = ["PRIMITIVES"]


#: Whether a value takes the place of the largest: nan loses to all.
_BEATS = "if X > {0} or ({0} != {0} and X == X):"


@dataclass(frozen=True)
class Argmax(Primitive):
    """The feature of the largest value, the first among equals."""

    compares = True

    def typed(self, call: Operate, types: Types) -> str:
        """Take numbers."""
        call.args[0], _ = types.number(call.args[0])
        return "int64"

    def varies(self, call: Operate, varies: Callable[[ast.AST], bool]) -> bool:
        """Differ between groups only."""
        return call.constant("group") is not None

    def unroll(self, call: Operate, target: str, copies: Unrolled) -> None:
        """Compare a lane's copies, then lanes."""
        x, group = call.args[0], call.constant("group")
        values = copies.operands(x, LOWEST.value(x, copies))
        if group is None:
            top = self._unroll_first(x, values, 0, target, copies)
            if copies.predicated:
                found = f"warp.group_argmax({top}, {target}, {copies.lanes})"
                copies.line(f"{target} = {found}[1]")
        elif not copies.predicated:
            names = copies.names(target)
            for start in range(0, len(values), group):
                first, *others = names[start : start + group]
                members = values[start : start + group]
                self._unroll_first(x, members, start, first, copies)
                for name in others:
                    copies.line(f"{name} = {first}")
        elif copies.count == 1:
            found = f"warp.segment_argmax(X, lane, {group}, {copies.lanes})[1]"
            one = wide(values[0], x, copies)
            copies.line(f"{target} = lane // {group} * {group} + {found}", X=one)
        else:
            self._unroll_members(x, values, group, copies.names(target), copies)

    def _unroll_first(
        self,
        x: ast.expr,
        values: list[ast.expr],
        start: int,
        name: str,
        copies: Unrolled,
    ) -> str:
        """Compare values that one lane has, from feature `start` on.

        The feature goes to `name`. Returns the name of the largest value.
        """
        top = copies.fresh("top")
        copies.line(f"{top} = X", X=wide(values[0], x, copies))
        copies.line(f"{name} = int64(F)", F=copies.feature(start))
        for j, value in enumerate(values[1:], start + 1):
            with copies.block(_BEATS.format(top), X=value):
                copies.line(f"{top} = X", X=value)
                copies.line(f"{name} = int64(F)", F=copies.feature(j))
        return top

    def _unroll_members(
        self,
        x: ast.expr,
        values: list[ast.expr],
        group: int,
        names: list[str],
        copies: Unrolled,
    ) -> None:
        """Ask for each member in turn: they stand in copies of several lanes."""
        registers = in_registers(copies, [wide(value, x, copies) for value in values])
        for j, name in enumerate(names):
            top, value = copies.fresh("top"), copies.fresh("value")
            first = expression(f"F // {group} * {group}", F=copies.feature(j))
            copies.line(f"{name} = int64(F)", F=first)
            copies.line(f"{top} = X", X=member(copies, registers, first))
            with copies.block(f"for member in range(1, {group}):"):
                other = expression("FIRST + member", FIRST=first)
                copies.line(f"{value} = X", X=member(copies, registers, other))
                with copies.block(_BEATS.format(top), X=named(value)):
                    copies.line(f"{top} = {value}")
                    copies.line(f"{name} = int64(F)", F=other)

    def loop(self, call: Operate, target: str, loops: Looped) -> None:
        """Compare one feature after the other."""
        group, x = call.constant("group"), loops.value(call.args[0])
        top, best = loops.fresh("top"), loops.fresh("best")
        size = group or loops.width
        with loops.block(f"for start in range(0, {loops.width}, {size}):"):
            loops.line(f"{best} = start")
            loops.line("f = start")
            loops.line(f"{top} = X", X=x)
            with loops.block(f"for f in range(start + 1, start + {size}):"):
                loops.line("value = X", X=x)
                with loops.block(_BEATS.format(top), X=named("value")):
                    loops.line(f"{top} = value")
                    loops.line(f"{best} = f")
            if group is None:
                loops.line(f"{target} = {best}")
                return
            with loops.block(f"for f in range(start, start + {size}):"):
                loops.line(f"{loops.element_of(target)} = {best}")


@dataclass(frozen=True)
class Broadcast(Primitive):
    """The value of one feature, for all; each feature may ask for another."""

    def typed(self, call: Operate, types: Types) -> str:
        """Take a value of any type, and the number of a feature."""
        call.args[0], type_ = types.value(call.args[0])
        call.args[1] = types.integer(call.args[1], "the feature of broadcast")
        return type_

    def varies(self, call: Operate, varies: Callable[[ast.AST], bool]) -> bool:
        """Differ between features that ask for different ones."""
        return varies(call.args[1])

    def unroll(self, call: Operate, target: str, copies: Unrolled) -> None:
        """Choose a copy, or ask the lane that has it."""
        x, index = call.args
        values = copies.operands(x, ZERO.value(x, copies))
        names = copies.names(target) if copies.varies(index) else [target]
        for j, name in enumerate(names):
            feature = copies.value(index, j)
            place = feature.value if isinstance(feature, ast.Constant) else None
            if copies.predicated:
                sent = [wide(value, x, copies) for value in values]
                chosen = member(copies, sent, feature)
            elif all(is_same(value, values[0]) for value in values):
                chosen = values[0]
            elif type(place) is int and 0 <= place < len(values):
                chosen = values[place]
            else:
                every = ast.Tuple(values, ast.Load())
                chosen = expression("ALL[F]", ALL=every, F=feature)
            copies.line(f"{name} = X", X=chosen)

    def loop(self, call: Operate, target: str, loops: Looped) -> None:
        """Store the operand first: only an array can be read at another feature."""
        x, index = call.args
        row = loops.new_row(loops.type_of(x))
        with loops.all_features():
            loops.line(f"{row} = X", PLACE=named("f"), X=loops.value(x))
        chosen = expression(row, PLACE=loops.value(index))
        if not loops.varies(index):
            loops.line(f"{target} = X", X=chosen)
            return
        with loops.all_features():
            loops.line(f"{loops.element_of(target)} = X", X=chosen)


PRIMITIVES = (Argmax(argmax, "best"), Broadcast(broadcast, "shared"))
