"""Sums, extremes and votes over the features, or over each group of them.

Over named copies, a lane first combines its own, then lanes combine theirs. A lane that
has no feature (padding), or whose vertex is not in the branch, has the identity.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

from featgraph.fold.operations.contexts import (
    Looped,
    Types,
    Unrolled,
    VectorFacts,
    Vectorized,
)
from featgraph.fold.operations.lanes import hold, member, wide
from featgraph.fold.operations.primitive import Primitive
from featgraph.fold.syntax.nodes import Operate
from featgraph.program.operations import (
    all_features,
    any_feature,
    feature_max,
    feature_min,
    feature_sum,
)

__all__ = ["HIGHEST", "LOWEST", "PRIMITIVES", "ZERO", "Identity"]


@dataclass(frozen=True)
class Identity:
    """What changes nothing, as text: of real numbers, of integers, or of truth values.

    Attributes
    ----------
    real, integer, truth : str
    """

    real: str = ""
    integer: str = ""
    truth: str = ""

    def text(self, node: ast.expr, form: Unrolled | Looped) -> str:
        """Return it in the type of an operand."""
        if self.truth:
            return self.truth
        if form.type_of(node) == "real":
            return f"{form.real}({self.real})"
        return f"int64({self.integer})"


ZERO = Identity("0.0", "0")
#: Far from the ends of int64, so that sums of two do not wrap around.
LOWEST = Identity("-math.inf", str(-(2**62)))
HIGHEST = Identity("math.inf", str(2**62))


@dataclass(frozen=True)
class Reduction(Primitive):
    """One value from those of all features, or of a group's.

    Attributes
    ----------
    combine : str
        The form of two values combined.
    update : str
        The form of a statement that combines a value into a variable.
    suffix : str
        Of the functions of `featgraph.device.warp` that combine over lanes.
    identity : Identity
    vector : str
        The function of `featgraph.device.vectors_cpu` that combines a vector; "" if
        none does.
    word : str
        Of votes: Python's operator between two conditions; "" of numbers.
    """

    combine: str = ""
    update: str = ""
    suffix: str = ""
    identity: Identity = ZERO
    vector: str = ""
    word: str = ""

    def typed(self, call: Operate, types: Types) -> str:
        """Take conditions, or numbers; a sum of int32 is wider."""
        if self.word:
            call.args[0] = types.condition(call.args[0])
            return "bool"
        call.args[0], type_ = types.number(call.args[0])
        is_wider = self.operation.gives == "number" and type_ == "int32"
        return "int64" if is_wider else type_

    def varies(self, call: Operate, varies: Callable[[ast.AST], bool]) -> bool:
        """Differ between groups only."""
        return call.constant("group") is not None

    # -- named copies

    def print_unrolled(self, call: Operate, target: str, copies: Unrolled) -> None:
        """Combine a lane's copies, then lanes."""
        x, group = call.args[0], call.constant("group")
        texts = copies.operands(x, self.identity.text(x, copies))
        if group is not None:
            self._print_groups(x, texts, group, target, copies)
            return
        text = self._combined(texts, x, copies)
        if copies.predicated:
            text = self._wide(text, x, copies)
            text = f"warp.group_{self.suffix}({text}, {copies.lanes})"
        copies.line(f"{target} = {text}")

    def _combined(self, texts: list[str], x: ast.expr, copies: Unrolled) -> str:
        """Return the combination of a lane's copies."""
        # Bits on CUDA, where "or" may branch from test to test.
        is_bits = copies.cuda and copies.type_of(x) == "bool"
        if self.word and not is_bits:
            return f" {self.word} ".join(texts)
        return reduce(self.combine.format, texts)

    def _wide(self, text: str, x: ast.expr, copies: Unrolled) -> str:
        return text if self.word else wide(text, x, copies)

    def _print_groups(
        self, x: ast.expr, texts: list[str], group: int, target: str, copies: Unrolled
    ) -> None:
        names = copies.names(target)
        if not copies.predicated or (copies.count > 1 and copies.count % group == 0):
            # A lane has all members of its groups.
            for start in range(0, copies.count, group):
                first, *others = names[start : start + group]
                members = texts[start : start + group]
                copies.line(f"{first} = {self._combined(members, x, copies)}")
                for name in others:
                    copies.line(f"{name} = {first}")
        elif copies.count == 1:
            place = f"lane, {group}, {copies.lanes}"
            text = self._wide(texts[0], x, copies)
            copies.line(f"{names[0]} = warp.segment_{self.suffix}({text}, {place})")
        else:
            self._print_members(x, texts, group, names, copies)

    def _print_members(
        self,
        x: ast.expr,
        texts: list[str],
        group: int,
        names: list[str],
        copies: Unrolled,
    ) -> None:
        """Ask for each member in turn: they stand in copies of several lanes."""
        sent = [f"int32({t})" if self.word else wide(t, x, copies) for t in texts]
        held = hold(copies, sent)
        for j, name in enumerate(names):
            first = f"{copies.feature(j)} // {group} * {group}"
            copies.line(f"{name} = {member(copies, held, first)}")
            with copies.block(f"for member in range(1, {group}):"):
                value = member(copies, held, f"({first} + member)")
                copies.line(f"{name} = {self.combine.format(name, value)}")
            if self.word:
                copies.line(f"{name} = {name} != 0")

    # -- loops over features

    def ends_loop(self, call: Operate) -> bool:
        """Combine in the loop that computes the operand."""
        return call.constant("group") is None

    def print_looped(self, call: Operate, target: str, loops: Looped) -> None:
        """Combine one feature after the other."""
        x, group = call.args[0], call.constant("group")
        initial = self.identity.text(x, loops)
        if group is None:
            loops.line(f"{target} = {initial}")
            loops.each(self.update.format(target, loops.text(x)))
            return
        held = loops.fresh("held")
        with loops.block(f"for start in range(0, {loops.width}, {group}):"):
            loops.line(f"{held} = {initial}")
            with loops.block(f"for f in range(start, start + {group}):"):
                loops.line(self.update.format(held, loops.text(x)))
            with loops.block(f"for f in range(start, start + {group}):"):
                loops.line(f"{loops.element_of(target)} = {held}")

    # -- vectors

    def fits_vectors(self, call: Operate, facts: VectorFacts) -> bool:
        """Combine vectors where `featgraph.device.vectors_cpu` can."""
        if not self.vector or call.constant("group") is not None:
            return False
        fits = facts.fits_mask if self.word else facts.fits_real
        return fits(call.args[0])

    def print_vectorized(self, call: Operate, target: str, vectors: Vectorized) -> None:
        """Vote over each vector; add up vectors of one size, then their elements."""
        texts = [
            (size, vectors.vector(call.args[0], (first, size)))
            for first, size in vectors.pieces
        ]
        if self.word:
            votes = [f"vectors.{self.vector}({text})" for _, text in texts]
            vectors.line(f"{target} = {f' {self.word} '.join(votes)}")
            return
        by_size: dict[int, list[str]] = {}
        for size, text in texts:
            by_size.setdefault(size, []).append(f"({text})")
        totals = [reduce(self.combine.format, same) for same in by_size.values()]
        parts = [f"vectors.{self.vector}({total})" for total in totals]
        vectors.line(f"{target} = {vectors.plain(reduce(self.combine.format, parts))}")


PRIMITIVES = (
    Reduction(
        feature_sum,
        stem="total",
        combine="{} + {}",
        update="{} += {}",
        suffix="sum",
        identity=ZERO,
        vector="total",
    ),
    Reduction(
        feature_max,
        stem="largest",
        combine="max({}, {})",
        update="{0} = max({0}, {1})",
        suffix="max",
        identity=LOWEST,
    ),
    Reduction(
        feature_min,
        stem="smallest",
        combine="min({}, {})",
        update="{0} = min({0}, {1})",
        suffix="min",
        identity=HIGHEST,
    ),
    Reduction(
        any_feature,
        stem="vote",
        combine="{} | {}",
        update="{} |= {}",
        suffix="any",
        identity=Identity(truth="False"),
        vector="any_of",
        word="or",
    ),
    Reduction(
        all_features,
        stem="vote",
        combine="{} & {}",
        update="{} &= {}",
        suffix="all",
        identity=Identity(truth="True"),
        vector="all_of",
        word="and",
    ),
)
