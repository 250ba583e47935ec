"""Operations over features, operations on edges, and the list of all operations.

Sums, extremes, votes, argmax and broadcast run over all features of a vertex, or over
each group of features. In the form of named copies, a lane first combines its copies,
and shuffles then combine the lanes. A copy that is no feature (padding), and a lane
whose vertex does not reach the call, contribute the identity.

`OPERATIONS` has one entry for each operation: those of this file, of `products` and of
`systems`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import reduce

from featgraph.base.dataclass import dataclass
from featgraph.fold.operations import products, systems
from featgraph.fold.operations.primitive import (
    Looped,
    Primitive,
    Types,
    Unrolled,
    VectorFacts,
    Vectorized,
    in_registers,
    member,
    named,
    wide,
)
from featgraph.fold.tree.statements import Operate, expression, is_same
from featgraph.program.operations import (
    all_features,
    any_feature,
    argmax,
    broadcast,
    feature_max,
    feature_min,
    feature_sum,
    is_twin,
    reverse,
)

__all__ = [
    "HIGHEST", "LOWEST", "OPERATIONS", "REDUCTIONS", "ZERO", "Identity", "primitive_of",
]  # fmt: skip


@dataclass(frozen=True)
class Identity:
    """Text of an identity for each type of operands.

    Attributes
    ----------
    real, integer : str
        Identity of real numbers and integers; "" for votes.
    truth : str
        Identity of booleans; "" for numbers.
    """

    real: str = ""
    integer: str = ""
    truth: str = ""

    def value(self, node: ast.expr, form: Unrolled | Looped) -> ast.expr:
        """Return the identity in the type of an operand."""
        if self.truth:
            return expression(self.truth)
        if form.type_of(node) == "real":
            return expression(f"{form.real}({self.real})")
        return expression(f"int64({self.integer})")


ZERO = Identity("0.0", "0")
#: Integers are far from the ends of int64: a sum of two does not wrap around.
LOWEST = Identity("-math.inf", str(-(2**62)))
HIGHEST = Identity("math.inf", str(2**62))


@dataclass(frozen=True)
class Reduction(Primitive):
    """A value combined over all features, or over each group of features.

    Attributes
    ----------
    combine : str
        Template of an expression that combines two values, A and B.
    update : str
        Template of a statement that combines a value X into the variable ``{}``.
    suffix : str
        End of the names of the functions of `featgraph.device.warp` that combine over
        lanes: ``group_sum`` and ``segment_sum`` for "sum".
    identity : Identity
        Value that padding contributes.
    vector : str
        Function of `featgraph.device.vectors_cpu` that combines a vector; "" if there
        is none.
    word : str
        "or" or "and" for votes, Python's operator between two conditions; "" for
        numbers.
    """

    combine: str = ""
    update: str = ""
    suffix: str = ""
    identity: Identity = ZERO
    vector: str = ""
    word: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether it is a vote: sums round, and max and min may pass over a nan."""
        return bool(self.word)

    def typed(self, call: Operate, types: Types) -> str:
        """Convert the operand to a bool for votes; a sum of int32 is an int64."""
        if self.word:
            call.args[0] = types.condition(call.args[0])
            return "bool"
        call.args[0], type_ = types.number(call.args[0])
        is_wider = self.operation.gives == "number" and type_ == "int32"
        return "int64" if is_wider else type_

    def varies(self, call: Operate, varies: Callable[[ast.AST], bool]) -> bool:
        """Return whether there are groups: all features of a group have one result."""
        return call.constant("group") is not None

    # -- named copies

    def unroll(self, call: Operate, target: str, copies: Unrolled) -> None:
        """Combine the copies of a lane, then lanes by shuffles."""
        x, group = call.args[0], call.constant("group")
        values = copies.operands(x, self.identity.value(x, copies))
        if group is not None:
            self._unroll_groups(x, values, group, target, copies)
            return
        one = self._combined(values, x, copies)
        if copies.predicated:
            one = self._wide(one, x, copies)
            one = expression(f"warp.group_{self.suffix}(X, {copies.lanes})", X=one)
        copies.line(f"{target} = X", X=one)

    def _combined(
        self, values: list[ast.expr], x: ast.expr, copies: Unrolled
    ) -> ast.expr:
        """Return the combination of a lane's copies."""
        # Bitwise on CUDA: ``or`` may become a branch behind each test.
        is_bits = copies.cuda and copies.type_of(x) == "bool"
        if self.word and not is_bits:
            operator = ast.Or() if self.word == "or" else ast.And()
            return values[0] if len(values) == 1 else ast.BoolOp(operator, values)
        return reduce(self._both, values)

    def _both(self, a: ast.expr, b: ast.expr) -> ast.expr:
        return expression(self.combine, A=a, B=b)

    def _wide(self, value: ast.expr, x: ast.expr, copies: Unrolled) -> ast.expr:
        return value if self.word else wide(value, x, copies)

    def _unroll_groups(
        self,
        x: ast.expr,
        values: list[ast.expr],
        group: int,
        target: str,
        copies: Unrolled,
    ) -> None:
        """Combine the members of each group, whichever copies and lanes have them."""
        names = copies.names(target)
        if not copies.predicated or (copies.count > 1 and copies.count % group == 0):
            # A lane has all members of its groups.
            for start in range(0, copies.count, group):
                first, *others = names[start : start + group]
                members = values[start : start + group]
                copies.line(f"{first} = X", X=self._combined(members, x, copies))
                for name in others:
                    copies.line(f"{name} = {first}")
        elif copies.count == 1:
            place = f"lane, {group}, {copies.lanes}"
            one = self._wide(values[0], x, copies)
            copies.line(f"{names[0]} = warp.segment_{self.suffix}(X, {place})", X=one)
        else:
            self._unroll_members(x, values, group, names, copies)

    def _unroll_members(
        self,
        x: ast.expr,
        values: list[ast.expr],
        group: int,
        names: list[str],
        copies: Unrolled,
    ) -> None:
        """Combine groups whose members are copies of several lanes, one by one."""
        # Shuffles take no bools.
        bits = [expression("int32(X)", X=value) for value in values]
        sent = bits if self.word else [wide(value, x, copies) for value in values]
        registers = in_registers(copies, sent)
        for j, name in enumerate(names):
            first = expression(f"F // {group} * {group}", F=copies.feature(j))
            copies.line(f"{name} = X", X=member(copies, registers, first))
            with copies.block(f"for member in range(1, {group}):"):
                other = expression("FIRST + member", FIRST=first)
                value = member(copies, registers, other)
                copies.line(f"{name} = X", X=self._both(named(name), value))
            if self.word:
                copies.line(f"{name} = {name} != 0")

    # -- loops over features

    def ends_loop(self, call: Operate) -> bool:
        """Return whether there are no groups: then the operand's loop combines, too."""
        return call.constant("group") is None

    def loop(self, call: Operate, target: str, loops: Looped) -> None:
        """Combine one feature after the other."""
        x, group = call.args[0], call.constant("group")
        initial = self.identity.value(x, loops)
        if group is None:
            loops.line(f"{target} = X", X=initial)
            loops.each(self.update.format(target), X=loops.value(x))
            return
        reduced = loops.fresh("reduced")
        with loops.block(f"for start in range(0, {loops.width}, {group}):"):
            loops.line(f"{reduced} = X", X=initial)
            with loops.block(f"for f in range(start, start + {group}):"):
                loops.line(self.update.format(reduced), X=loops.value(x))
            with loops.block(f"for f in range(start, start + {group}):"):
                loops.line(f"{loops.element_of(target)} = {reduced}")

    # -- vectors

    def fits_vectors(self, call: Operate, facts: VectorFacts) -> bool:
        """Return whether `featgraph.device.vectors_cpu` combines such vectors."""
        if not self.vector or call.constant("group") is not None:
            return False
        fits = facts.fits_mask if self.word else facts.fits_real
        return fits(call.args[0])

    def vectorize(self, call: Operate, target: str, vectors: Vectorized) -> None:
        """Vote over each vector; add vectors of one size, then the elements of each."""
        by_size: dict[int, list[ast.expr]] = {}
        found: list[ast.expr] = []
        for first, size in vectors.pieces:
            found.append(vectors.vector(call.args[0], (first, size)))
            by_size.setdefault(size, []).append(found[-1])
        one = f"vectors.{self.vector}(X)"
        if self.word:
            votes = [expression(one, X=x) for x in found]
            operator = ast.Or() if self.word == "or" else ast.And()
            vote = votes[0] if len(votes) == 1 else ast.BoolOp(operator, votes)
            vectors.line(f"{target} = X", X=vote)
            return
        totals = [reduce(self._both, same) for same in by_size.values()]
        parts = [expression(one, X=total) for total in totals]
        vectors.line(f"{target} = X", X=reduce(self._both, parts))


#: Test that a value X replaces the largest value {0}: nan is less than any number.
_BEATS = "if X > {0} or ({0} != {0} and X == X):"


@dataclass(frozen=True)
class Argmax(Primitive):
    """The feature of the largest value, the first among equals."""

    compares = True

    def typed(self, call: Operate, types: Types) -> str:
        """Convert the operand to a number; the result is a feature, an int64."""
        call.args[0], _ = types.number(call.args[0])
        return "int64"

    def varies(self, call: Operate, varies: Callable[[ast.AST], bool]) -> bool:
        """Return whether there are groups: all features of a group have one result."""
        return call.constant("group") is not None

    def unroll(self, call: Operate, target: str, copies: Unrolled) -> None:
        """Compare the copies of a lane, then lanes by shuffles."""
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
        """Compare values of one lane, which begin with feature `start`.

        The feature of the largest value is assigned to `name`. The name of the variable
        with that value is returned.
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
        """Compare groups whose members are copies of several lanes, one by one."""
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
    """The operand at a selected feature; each feature may select another one."""

    def typed(self, call: Operate, types: Types) -> str:
        """Return the type of the operand; the second operand, a feature, is integer."""
        call.args[0], type_ = types.value(call.args[0])
        call.args[1] = types.integer(call.args[1], "the feature of broadcast")
        return type_

    def varies(self, call: Operate, varies: Callable[[ast.AST], bool]) -> bool:
        """Return whether the selected feature varies."""
        return varies(call.args[1])

    def unroll(self, call: Operate, target: str, copies: Unrolled) -> None:
        """Select a copy, or shuffle from the lane that has it."""
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
        """Store the operand in an array, then read it at the selected feature."""
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


REDUCTIONS = (
    Reduction(
        feature_sum,
        stem="total",
        combine="A + B",
        update="{} += X",
        suffix="sum",
        identity=ZERO,
        vector="total",
    ),
    Reduction(
        feature_max,
        stem="largest",
        combine="max(A, B)",
        update="{0} = max({0}, X)",
        suffix="max",
        identity=LOWEST,
    ),
    Reduction(
        feature_min,
        stem="smallest",
        combine="min(A, B)",
        update="{0} = min({0}, X)",
        suffix="min",
        identity=HIGHEST,
    ),
    Reduction(
        any_feature,
        stem="vote",
        combine="A | B",
        update="{} |= X",
        suffix="any",
        identity=Identity(truth="False"),
        vector="any_of",
        word="or",
    ),
    Reduction(
        all_features,
        stem="vote",
        combine="A & B",
        update="{} &= X",
        suffix="all",
        identity=Identity(truth="True"),
        vector="all_of",
        word="and",
    ),
    Argmax(argmax, "best"),
    Broadcast(broadcast, "shared"),
)


@dataclass(frozen=True)
class _OfEdge(Primitive):
    """An operation that reads an array of the graph at an edge."""

    def typed(self, call: Operate, types: Types) -> str:
        """Return the declared type; raise if the operand is no edge."""
        if types.typed(call.args[0])[1] != "edge":
            raise types.error(
                f"fg.{self.name} takes an edge", call, expected=f"fg.{self.name}(e)"
            )
        return self.operation.gives

    def varies(self, call: Operate, varies: Callable[[ast.AST], bool]) -> bool:
        """Return whether the edge varies."""
        return varies(call.args[0])


_OF_EDGES = (
    _OfEdge(reverse, edge_array="edge_twin"),
    _OfEdge(is_twin, edge_array="edge_is_twin"),
)

#: Name of an operation -> its primitive.
OPERATIONS: dict[str, Primitive] = {
    primitive.name: primitive
    for primitive in (
        *_OF_EDGES,
        *REDUCTIONS,
        *products.PRIMITIVES,
        *systems.PRIMITIVES,
    )
}


def primitive_of(call: Operate) -> Primitive:
    """Return the primitive of a call."""
    return OPERATIONS[call.name]
