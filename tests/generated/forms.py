"""Expressions with bounds, and forms of them that several types have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tests.generated.draw import Draw

__all__ = ["MOST_INT", "MOST_REAL", "Apart", "Expression", "Forms", "literal"]

#: Units of 2**-scale that a real may count: float32 holds 2**24.
MOST_REAL = 2**20
MOST_INT = 2**44


@dataclass(frozen=True)
class Expression:
    """Text with its type, bounds, and whether it is the same for all features."""

    text: str
    type: str
    bound: int = 1
    scale: int = 0
    uniform: bool = True

    @property
    def units(self) -> int:
        """Return the most units of 2**-scale that it is."""
        return self.bound << self.scale

    def __str__(self) -> str:
        return self.text


def literal(draw: Draw, type_: str) -> Expression:
    """Return a constant."""
    if type_ == "bool":
        return Expression(draw.one(("True", "False")), "bool")
    if type_ == "int":
        value = draw.one((0, 1, 2, 3, 5, 7, -1, -2, 11))
        return Expression(_signed(value), "int", abs(value))
    number = draw.one((0.0, 1.0, 0.5, 2.0, -1.0, 0.25, -0.5, 3.0, -2.5, 1.75))
    return Expression(_signed(number), "real", 3, 2)


def _signed(value: Any) -> str:
    return f"({value})" if value < 0 else str(value)


class Forms:
    """Draws expressions; the reads are those of a function's body (`leaves`).

    Attributes
    ----------
    together : bool
        Whether all features are here, so that collaborative calls are allowed.
    """

    def __init__(self, draw: Draw, k: int, without: frozenset[str]) -> None:
        self.draw = draw
        self.k = k
        self.without = without
        self.together = False
        self.wide = False
        self.helpers: list[tuple[str, list[str], Expression]] = []

    def leaves(self, type_: str) -> list[Any]:
        """Return functions of no argument that give an expression each."""
        raise NotImplementedError

    def of(self, type_: str, depth: int) -> Expression:
        """Return an expression of a type."""
        if depth <= 0 or self.draw.chance(15):
            return self.leaf(type_)
        return self.operation(type_, depth)

    def operation(self, type_: str, depth: int) -> Expression:
        """Return an operation on expressions of less depth."""
        raise NotImplementedError

    def leaf(self, type_: str) -> Expression:
        """Return a read, or a constant."""
        found = self.leaves(type_)
        if found and self.draw.chance(85):
            return self.draw.one(found)()
        return literal(self.draw, type_)

    def number(self, depth: int) -> Expression:
        """Return an int or a real."""
        return self.of(self.draw.one(("real", "int")), depth)

    def joined(
        self, kind: str, a: Expression, b: Expression, type_: str = "real"
    ) -> Expression:
        """Return a op b, brought down first where the result would be too large."""
        draw = self.draw
        both = Expression("", type_, uniform=a.uniform and b.uniform)
        if kind == "least":
            name = draw.one(("min", "max"))
            bound, scale = max(a.bound, b.bound), max(a.scale, b.scale)
            return replace(both, text=f"{name}({a}, {b})", bound=bound, scale=scale)
        if kind == "bits":
            sign = draw.one(("&", "|", "^"))
            bound = 2 ** (max(a.bound, b.bound)).bit_length()
            return replace(both, text=f"({a} {sign} {b})", bound=bound)
        if kind == "mul":
            a, b = self.small(a), self.small(b)
            bound, scale = a.bound * b.bound, a.scale + b.scale
        else:
            bound, scale = a.bound + b.bound, max(a.scale, b.scale)
        sign = {"add": "+", "sub": "-", "mul": "*"}[kind]
        made = replace(both, text=f"({a} {sign} {b})", bound=bound, scale=scale)
        return self.small(made, MOST_REAL, MOST_INT)

    def small(
        self, e: Expression, most_real: int = 2**9, most_int: int = 2**21
    ) -> Expression:
        """Return `e`, or e made so small."""
        if e.type == "int":
            if e.bound <= most_int:
                return e
            return replace(e, text=f"({e} % 1009)", bound=1009)
        return e if e.units <= most_real else self.fit_real(e, 8, 2)

    def fit_real(self, e: Expression, bound: int, scale: int) -> Expression:
        """Return `e` rounded and cut to a bound and a scale."""
        text = e.text
        if e.scale > scale:
            text = f"math.floor({text})"
            if scale and self.draw.chance(50):
                text = f"math.floor({e.text} * {2**scale}) / {2**scale}"
        if e.bound + 1 > bound:
            text = f"min(max({text}, {float(-bound)}), {float(bound)})"
        return replace(e, text=f"({text})", bound=bound, scale=scale)

    def fit_int(self, e: Expression, low: int, high: int) -> Expression:
        """Return `e` cut to a range."""
        if e.bound <= high and (low <= -e.bound):
            return e
        bound = max(abs(low), abs(high))
        if low <= 0 and self.draw.chance(50):
            return replace(e, text=f"({e} % {high + 1})", bound=bound)
        return replace(e, text=f"min(max({e}, {low}), {high})", bound=bound)

    def pick(self, type_: str, depth: int) -> Expression:
        """Return ``a if c else b``."""
        condition = self.of("bool", depth)
        with Apart(self, condition.uniform):
            a, b = self.of(type_, depth), self.of(type_, depth)
        return Expression(
            f"({a} if {condition} else {b})",
            type_,
            max(a.bound, b.bound),
            max(a.scale, b.scale),
            a.uniform and b.uniform and condition.uniform,
        )

    def team(self, type_: str, depth: int) -> Expression:
        """Return a collaborative call."""
        if not self.together:
            return self.leaf(type_)
        draw = self.draw
        if type_ == "bool":
            name = draw.one(("any_feature", "all_features"))
            draw.use(name)
            return self.grouped(name, self.of("bool", depth), None)
        names = ["feature_sum", "feature_max", "feature_min", "broadcast"]
        if type_ == "int":
            names.append("argmax")
        elif self.wide:
            names += ["dot", "normalize"]
        name = draw.one(names)
        draw.use(name)
        if name == "normalize":
            at, c = draw.number(0, self.k - 1), self.of("real", 0)
            if not c.uniform:
                return c
            # Compilers may multiply by 1 / sum: exact where the sum is a power of two.
            one = f"(4.0 if {c} > 0.0 else 0.0)"
            text = f"fg.normalize({one} if f == {at} else 0.0)"
            return Expression(text, "real", 1, 0, False)
        x = self.of(type_, depth)
        if name == "argmax":
            return self.grouped(name, self.of("int", depth), self.k)
        if name == "broadcast":
            i = draw.number(0, self.k - 1) if self.wide else 0
            if draw.chance(30):
                chosen = self.of("int", depth - 1)
                if chosen.uniform:
                    text = f"fg.broadcast({x}, {chosen} % {self.k})"
                    return replace(x, text=text, uniform=True)
            return replace(x, text=f"fg.broadcast({x}, {i})", uniform=True)
        if name == "dot":
            a, b = self.small(x, 2**6), self.small(self.of("real", depth), 2**6)
            made = replace(a, text=f"fg.dot({a}, {b})", scale=a.scale + b.scale)
            made = replace(made, bound=a.bound * b.bound * self.k, uniform=True)
            return self.small(made, MOST_REAL)
        if name == "feature_sum":
            x = self.small(x, MOST_REAL // 128)
            return self.grouped(name, replace(x, bound=x.bound * self.k), None)
        return self.grouped(name, x, None)

    def grouped(self, name: str, x: Expression, bound: int | None) -> Expression:
        """Return a call, for groups of features now and then."""
        options, uniform = "", True
        divisors = [g for g in (2, 3, 4) if self.k % g == 0 and g < self.k]
        if self.wide and divisors and self.draw.chance(15):
            options, uniform = f", group={self.draw.one(divisors)}", False
            self.draw.use("group=")
        made = replace(x, text=f"fg.{name}({x}{options})", uniform=uniform)
        return made if bound is None else replace(made, bound=bound, type="int")

    def call_helper(self, type_: str, depth: int) -> Expression:
        """Return a call of a helper of the program."""
        found = [h for h in self.helpers if h[2].type == type_]
        if not found:
            return self.pick(type_, depth)
        name, types, result = self.draw.one(found)
        given = []
        for parameter in types:
            e = self.of(parameter, depth)
            if parameter == "real":
                e = self.fit_real(e, 8, 2)
            elif parameter == "int":
                e = self.fit_int(e, -50, 50)
            given.append(e)
        uniform = all(e.uniform for e in given)
        text = f"{name}({', '.join(map(str, given))})"
        return replace(result, text=text, uniform=uniform)


class Apart:
    """Where not all features come: no collaborative calls."""

    def __init__(self, expressions: Forms, uniform: bool) -> None:
        self.expressions, self.uniform = expressions, uniform

    def __enter__(self) -> None:
        self.before = self.expressions.together
        self.expressions.together = self.before and self.uniform

    def __exit__(self, *_: object) -> None:
        self.expressions.together = self.before
