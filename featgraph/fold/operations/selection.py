"""The feature of the largest value, and the value of a feature."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from featgraph.fold.operations.contexts import Looped, Types, Unrolled
from featgraph.fold.operations.lanes import hold, member, wide
from featgraph.fold.operations.primitive import Primitive
from featgraph.fold.operations.reductions import LOWEST, ZERO
from featgraph.fold.syntax.nodes import Operate
from featgraph.program.operations import argmax, broadcast

__all__ = ["PRIMITIVES"]


def _beats(value: str, top: str) -> str:
    """Return whether a value takes the place of the largest: nan loses to all."""
    return f"{value} > {top} or ({top} != {top} and {value} == {value})"


@dataclass(frozen=True)
class Argmax(Primitive):
    """The feature of the largest value, the first among equals."""

    def typed(self, call: Operate, types: Types) -> str:
        """Take numbers."""
        call.args[0], _ = types.number(call.args[0])
        return "int64"

    def varies(self, call: Operate, varies: Callable[[ast.AST], bool]) -> bool:
        """Differ between groups only."""
        return call.constant("group") is not None

    def print_unrolled(self, call: Operate, target: str, copies: Unrolled) -> None:
        """Compare a lane's copies, then lanes."""
        x, group = call.args[0], call.constant("group")
        texts = copies.operands(x, LOWEST.text(x, copies))
        if group is None:
            top = self._print_first(x, texts, 0, target, copies)
            if copies.predicated:
                found = f"warp.group_argmax({top}, {target}, {copies.lanes})"
                copies.line(f"{target} = {found}[1]")
        elif not copies.predicated:
            names = copies.names(target)
            for start in range(0, len(texts), group):
                first, *others = names[start : start + group]
                self._print_first(x, texts[start : start + group], start, first, copies)
                for name in others:
                    copies.line(f"{name} = {first}")
        elif copies.count == 1:
            place = f"lane, {group}, {copies.lanes}"
            found = f"warp.segment_argmax({wide(texts[0], x, copies)}, {place})"
            copies.line(f"{target} = lane // {group} * {group} + {found}[1]")
        else:
            self._print_members(x, texts, group, copies.names(target), copies)

    def _print_first(
        self, x: ast.expr, texts: list[str], start: int, name: str, copies: Unrolled
    ) -> str:
        """Compare values that one lane has, from feature `start` on.

        The feature goes to `name`. Returns the name of the largest value.
        """
        top = copies.fresh("top")
        copies.line(f"{top} = {wide(texts[0], x, copies)}")
        copies.line(f"{name} = int64({copies.feature(start)})")
        for j, text in enumerate(texts[1:], start + 1):
            with copies.block(f"if {_beats(text, top)}:"):
                copies.line(f"{top} = {text}")
                copies.line(f"{name} = int64({copies.feature(j)})")
        return top

    def _print_members(
        self,
        x: ast.expr,
        texts: list[str],
        group: int,
        names: list[str],
        copies: Unrolled,
    ) -> None:
        """Ask for each member in turn: they stand in copies of several lanes."""
        held = hold(copies, [wide(text, x, copies) for text in texts])
        for j, name in enumerate(names):
            top, value = copies.fresh("top"), copies.fresh("value")
            first = f"{copies.feature(j)} // {group} * {group}"
            copies.line(f"{name} = int64({first})")
            copies.line(f"{top} = {member(copies, held, f'({first})')}")
            with copies.block(f"for member in range(1, {group}):"):
                found = member(copies, held, f"({first} + member)")
                copies.line(f"{value} = {found}")
                with copies.block(f"if {_beats(value, top)}:"):
                    copies.line(f"{top} = {value}")
                    copies.line(f"{name} = int64({first} + member)")

    def print_looped(self, call: Operate, target: str, loops: Looped) -> None:
        """Compare one feature after the other."""
        group, x = call.constant("group"), loops.text(call.args[0])
        top, best = loops.fresh("top"), loops.fresh("best")
        size = group or loops.width
        with loops.block(f"for start in range(0, {loops.width}, {size}):"):
            loops.line(f"{best} = start")
            loops.line("f = start")
            loops.line(f"{top} = {x}")
            with loops.block(f"for f in range(start + 1, start + {size}):"):
                loops.line(f"value = {x}")
                with loops.block(f"if {_beats('value', top)}:"):
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

    def print_unrolled(self, call: Operate, target: str, copies: Unrolled) -> None:
        """Choose a copy, or ask the lane that has it."""
        x, index = call.args
        texts = copies.operands(x, ZERO.text(x, copies))
        names = copies.names(target) if copies.varies(index) else [target]
        for j, name in enumerate(names):
            feature = copies.text(index, j)
            if copies.predicated:
                sent = [wide(text, x, copies) for text in texts]
                chosen = member(copies, sent, f"({feature})")
            elif len(set(texts)) == 1:  # all features have the same
                chosen = texts[0]
            elif feature.isdigit() and int(feature) < len(texts):
                chosen = texts[int(feature)]
            else:
                chosen = f"({', '.join(texts)},)[{feature}]"
            copies.line(f"{name} = {chosen}")

    def print_looped(self, call: Operate, target: str, loops: Looped) -> None:
        """Store the operand first: only an array can be read at another feature."""
        x, index = call.args
        row = loops.new_row(loops.type_of(x))
        with loops.all_features():
            loops.line(f"{row.format('f')} = {loops.text(x)}")
        chosen = row.format(loops.text(index))
        if not loops.varies(index):
            loops.line(f"{target} = {chosen}")
            return
        with loops.all_features():
            loops.line(f"{loops.element_of(target)} = {chosen}")


PRIMITIVES = (Argmax(argmax, "best"), Broadcast(broadcast, "shared"))
