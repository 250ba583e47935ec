"""Expressions of which it is known that every evaluation of them is exact."""

from __future__ import annotations

from dataclasses import replace

from tests.generated.forms import Apart, Expression, Forms, literal

__all__ = ["Apart", "Expression", "Expressions", "literal"]


class Expressions(Forms):
    """Draws operations of each type."""

    def operation(self, type_: str, depth: int) -> Expression:
        """Return an operation of a type."""
        kinds = {"bool": self.truth, "int": self.integer, "real": self.real}
        return kinds[type_](depth)

    def real(self, depth: int) -> Expression:
        """Return a real that float32 holds."""
        draw = self.draw
        kind = draw.one(
            (
                "add", "sub", "mul", "least", "pick", "scaled", "neg", "abs", "mod",
                "floor", "from int", "team", "helper", "mixed", "either",
            )
        )  # fmt: skip
        draw.use(f"real {kind}")
        less = depth - 1
        if kind in {"add", "sub", "mul", "least"}:
            a, b = self.of("real", less), self.of("real", less)
            return self.joined(kind, a, b, "real")
        if kind == "mixed":
            whole = self.fit_int(self.of("int", less), -64, 64)
            return self.joined(draw.one(("add", "mul")), self.of("real", less), whole)
        if kind == "pick":
            return self.pick("real", less)
        if kind == "from int":
            whole = self.fit_int(self.of("int", less), -999, 999)
            text = draw.one((f"float({whole})", f"({whole} * 0.5)", f"({whole} / 4)"))
            return replace(whole, text=text, type="real", scale=2)
        if kind == "either":
            return self.either("real", less)
        if kind == "team":
            return self.team("real", less)
        if kind == "helper":
            return self.call_helper("real", less)
        a = self.of("real", less)
        if kind == "scaled":
            if a.scale > 5:
                return a
            text = draw.one((f"({a} / 2)", f"({a} * 0.5)", f"({a} / 4.0)"))
            return replace(a, text=text, scale=a.scale + 2)
        if kind == "neg":
            return replace(a, text=f"(-{a})")
        if kind == "abs":
            return replace(a, text=draw.one((f"abs({a})", f"math.fabs({a})")))
        if kind == "mod":
            by = draw.one(("2", "4.0", "-4.0", "0.5"))
            if draw.chance(50):
                return replace(a, text=f"({a} % {by})", bound=4, scale=max(a.scale, 1))
            return replace(a, text=f"({a} // {by})", bound=2 * a.bound + 1, scale=0)
        text = draw.one((f"math.floor({a})", f"math.ceil({a})", f"float(int({a}))"))
        return replace(a, text=text, bound=a.bound + 1, scale=0)

    def integer(self, depth: int) -> Expression:
        """Return an integer far from 2**63."""
        draw = self.draw
        kind = draw.one(
            (
                "add", "sub", "mul", "least", "pick", "neg", "abs", "mod", "floordiv",
                "bits", "shift", "invert", "from real", "team", "helper", "square",
                "from bool", "either", "far shift", "least integer",
            )
        )  # fmt: skip
        draw.use(f"int {kind}")
        less = depth - 1
        if kind in {"add", "sub", "mul", "least", "bits"}:
            a, b = self.of("int", less), self.of("int", less)
            return self.joined(kind, a, b, "int")
        if kind == "pick":
            return self.pick("int", less)
        if kind == "team":
            return self.team("int", less)
        if kind == "helper":
            return self.call_helper("int", less)
        if kind == "from real":
            a = self.of("real", less)
            return replace(a, text=f"int({a})", type="int", scale=0)
        if kind == "either":
            return self.either("int", less)
        if kind == "from bool":
            a = self.of("bool", less)
            return replace(a, text=f"int({a})", type="int", bound=1)
        a = self.of("int", less)
        if kind == "neg":
            return replace(a, text=f"(-{a})")
        if kind == "abs":
            return replace(a, text=f"abs({a})")
        if kind == "invert":
            return replace(a, text=f"(~{a})", bound=a.bound + 1)
        if kind == "square":
            a = self.fit_int(a, -999, 999)
            return replace(a, text=f"({a} ** 2)", bound=a.bound**2)
        if kind == "far shift":
            by = draw.one((31, 62, 63, 64, 70))
            return replace(a, text=f"({a} >> {by})", bound=max(a.bound >> by, 1))
        if kind == "least integer":
            most, least = 2**63 - 1, -(2**63)
            text = draw.one((f"max({a}, {least})", f"min({a}, {most})"))
            return replace(a, text=text)
        if kind == "shift":
            a = self.fit_int(a, -9999, 9999)
            by = draw.number(0, 5)
            if draw.chance(50):
                return replace(a, text=f"({a} << {by})", bound=a.bound << by)
            return replace(a, text=f"({a} >> {by})")
        by = draw.one(("2", "3", "7", "(-3)", "(-1)"))
        if draw.chance(20):
            inner = self.of("int", 0)
            by = f"({inner} % 3 + 1)"
            a = replace(a, uniform=a.uniform and inner.uniform)
        if kind == "mod":
            return replace(a, text=f"({a} % {by})", bound=7)
        return replace(a, text=f"({a} // {by})", bound=a.bound + 1)

    def either(self, type_: str, depth: int) -> Expression:
        """Return ``a or b``, ``a and b`` of numbers: one of them."""
        a = self.of(type_, depth)
        with Apart(self, a.uniform):
            b = self.of(type_, depth)
        made = replace(a, text=f"({a} {self.draw.one(('or', 'and'))} {b})")
        bound, scale = max(a.bound, b.bound), max(a.scale, b.scale)
        return replace(made, bound=bound, scale=scale, uniform=a.uniform and b.uniform)

    def _near(self, number: int) -> Expression:
        """Return a real at a number up to which float32 holds all integers, or not."""
        return Expression(f"{self.draw.one((number, -number))}.0", "real", number)

    def truth(self, depth: int) -> Expression:
        """Return a condition."""
        draw = self.draw
        kind = draw.one(
            ("compare", "compare", "and", "or", "not", "chain", "team", "same", "pick")
        )
        draw.use(f"bool {kind}")
        less = depth - 1
        if kind in {"compare", "same", "chain"}:
            type_ = draw.one(("real", "int"))
            a, b = self.of(type_, less), self.of(type_, less)
            if draw.chance(15):  # beside what float32 does not tell from it
                a, b = self.of("int", less), self._near(draw.one((2**24, 2**31, 9)))
            sign = draw.one(("==", "!=") if kind == "same" else ("<", ">", "<=", ">="))
            text, uniform = f"{a} {sign} {b}", a.uniform and b.uniform
            if kind == "chain":
                with Apart(self, uniform):
                    c = self.of(type_, 0)
                text += f" {draw.one(('<', '<='))} {c}"
                uniform = uniform and c.uniform
            return Expression(f"({text})", "bool", uniform=uniform)
        if kind in {"and", "or"}:
            a = self.of("bool", less)
            with Apart(self, a.uniform):
                b = self.of("bool", less)
            return Expression(
                f"({a} {kind} {b})", "bool", uniform=a.uniform and b.uniform
            )
        if kind == "not":
            a = self.of("bool", less)
            return replace(a, text=f"(not {a})")
        return self.team("bool", less) if kind == "team" else self.pick("bool", less)
