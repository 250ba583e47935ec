"""Gathers and reduces of a program, and how they combine."""

from __future__ import annotations

import re
from dataclasses import replace

from tests.generated.bodies import Body
from tests.generated.draw import Draw
from tests.generated.expressions import Expression
from tests.generated.properties import GraphSpec, Property
from tests.generated.reads import Known, Reads, Temporary

__all__ = ["Gathers"]

#: Combines of the user's: name -> (text, identity by type, types).
OWN = {
    "larger": (
        "def larger(a, b):\n"
        "    return a if abs(a) > abs(b) or (abs(a) == abs(b) and a > b) else b",
        {"real": "0.0", "int": "0"},
    ),
    "mixed": ("def mixed(a, b):\n    return a ^ b", {"int": "0"}),
    "smaller": (
        "def smaller(a, b):\n    if a < b:\n        return a\n    return b",
        {"real": "9999.0", "int": "9999"},
    ),
}
COMBINES = (
    "sum", "sum", "min", "max", "product", "any", "all", "argmin", "argmax", "own",
    "sum",
)  # fmt: skip


class Gathers:
    """Writes gathers and reduces; what they leave is known to those behind them.

    Attributes
    ----------
    lines : list of str
        The module's text.
    """

    def __init__(
        self,
        draw: Draw,
        k: int,
        without: frozenset[str],
        graph: GraphSpec,
        properties: list[Property],
    ) -> None:
        self.draw, self.k, self.without = draw, k, without
        self.graph, self.properties = graph, properties
        self.constants: list[tuple[str, Expression]] = []
        self.helpers: list[tuple[str, list[str], Expression]] = []
        self.lines: list[str] = []
        self.number = 0
        self.owns: set[str] = set()
        self.temporaries: list[Temporary] = []
        self.unseen: list[Temporary] = []
        self.hot: frozenset[str] = frozenset()
        #: Whether gathers are to depend on what sources commit, and nothing else new.
        self.patches = False
        self.changed = ""  # whether a row has changed, as an expression

    def _body(self, kind: str, wide: int) -> Body:
        known = Known(self.properties, self.temporaries, not self.graph.directed)
        reads = Reads(self.draw, self.k, self.without, known, kind, wide)
        reads.helpers, reads.constants = self.helpers, self.constants
        reads.hot = self.hot
        if self.patches and kind == "gather":
            reads.sources_only = self.draw.chance(75)
        return Body(reads)

    def _name(self, kind: str) -> str:
        self.number += 1
        return f"{kind}{self.number}"

    def _end(self, decorator: str, head: str, body: Body) -> None:
        self.lines += [decorator, f"def {head}:", *body.lines, ""]

    def _of(self, of: str, roles: set[str], wide: bool) -> list[Property]:
        return [
            p
            for p in self.properties
            if p.of == of and p.role in roles and (wide or not p.wide)
        ]

    def gather(self, *, matrix: bool = False) -> str:
        draw, graph = self.draw, self.graph
        axes = 2 if matrix else int(draw.chance(75))
        if self.patches:
            axes = self._hot_width()
        body, name = self._body("gather", axes), self._name("gather")
        given = []
        if draw.chance(20):
            along = draw.one(("out", "both"))
            given.append(f'along="{along}"')
            draw.use(f"along={along}")
        if draw.chance(10) and not matrix and not self.patches:
            given.append('sources="active"')
            draw.use("sources=active")
        combine = draw.one(COMBINES[:6] if matrix else COMBINES)
        if self.patches:
            combine = draw.one(("sum", "min", "max", "sum", "any", "all"))
        is_first = combine in {"min", "max", "any", "all"} and not matrix
        is_first = is_first and draw.chance(15)
        is_first = is_first and not self.patches
        into = f"t{self.number}"
        text = self._combined(body, combine, into, axes, graph.terms, is_first)
        if is_first:
            given.append("first=True")
            draw.use("first=True")
        given = [f'into="{into}"', f"combine={text}", *given]
        given += ["matrix=True"] * matrix
        head = f"{name}({'i, ' * matrix}f, u, v, e, d)"
        self._end(f"@fg.gather({', '.join(given)})", head, body)
        draw.use(f"gather {combine}{' matrix' * matrix}")
        return name

    def reduce(self, *, matrix: bool = False) -> str:
        draw = self.draw
        axes = 2 if matrix else int(draw.chance(75))
        body, name = self._body("reduce", axes), self._name("reduce")
        body.reads.together = False
        combine = draw.one(("sum", "min", "max", "product", "any", "all", "own"))
        into = f"t{self.number}"
        count = self.graph.vertex_count
        text = self._combined(body, combine, into, axes, count, False, is_loose=True)
        more = ", matrix=True" * matrix
        self._end(
            f'@fg.reduce(into="{into}", combine={text}{more})',
            f"{name}({'i, ' * matrix}f, v, d)",
            body,
        )
        draw.use(f"reduce {combine}{' matrix' * matrix}")
        return name

    def _combined(
        self,
        body: Body,
        combine: str,
        into: str,
        axes: int,
        terms: int,
        is_first: bool,
        is_loose: bool = False,
    ) -> str:
        """Write the body of a gather or reduce; return how it is combined."""
        draw = self.draw
        types = ["real", "int"]
        if combine in {"min", "max"} and "bool minimum" not in self.without:
            types.append("bool")
        rows = [p for p in self.properties if p.name in self.hot]
        hot = [p.type for p in rows if p.type in types and (p.wide or self.patches)]
        type_ = "bool" if combine in {"any", "all"} else draw.one(hot or types)
        text = f'"{combine}"'
        if combine == "own":
            own = draw.one([n for n in OWN if type_ in OWN[n][1]])
            if own not in self.owns:
                self.owns.add(own)
                self.lines.insert(0, OWN[own][0])
            text = f"fg.combine({own}, identity={OWN[own][1][type_]})"
            draw.use(f"combine of one's own: {own}")
        if is_first:
            body.line(f"if {body.reads.of('bool', 2)}:")
            body.line("    return fg.nothing")
            e = _of_target(self.properties, body, type_)
        else:
            body.statements(draw.number(0, 1), 2)
            if not is_loose and draw.chance(30):
                body.line(f"if {body.reads.of('bool', 2)}:")
                body.line("    return fg.nothing")
                body.reads.together = False
                draw.use("fg.nothing")
            e = self._wide(body, type_, axes)
        bound, scale = 1, 0
        if combine == "product":
            choices = ("-1.0", "1.0", "0.0") if type_ == "real" else ("-1", "2", "3")
            c = self._wide(body, "bool", axes)
            a, b = draw.one(choices), draw.one(choices)
            one = body.reads.of("bool", 0)
            e = Expression(f"({a} if {c} else ({b} if {one} else 1))", type_)
            if type_ == "real":
                e = replace(e, text=f"({a} if {c} else ({b} if {one} else 1.0))")
            bound = 1 if type_ == "real" else 1000
        elif type_ == "real":
            e = body.reads.fit_real(e, 16, 3) if e.units > 2**12 else e
            bound, scale = e.bound * (terms if combine == "sum" else 1), e.scale
        elif type_ == "int":
            most = 2**40 if draw.chance(15) and combine != "own" else 2**21
            if combine in {"argmin", "argmax", "own"}:
                most = 9000
            e = body.reads.small(e, most_int=most)
            e = body.reads.fit_int(e, -9000, 9000) if combine == "own" else e
            bound = e.bound * (terms if combine == "sum" else 1)
        if combine in {"argmin", "argmax"} and draw.chance(60):
            # Several sources have the best key.
            if type_ == "int":
                e, bound = replace(e, text=f"({e} % 3)"), 3
            else:
                e, bound, scale = body.reads.fit_real(e, 1, 0), 1, 0
        body.line(f"return {e}")
        keeps = combine in {"sum", "any"} or (combine == "product" and type_ == "real")
        # The width is that of what is indexed with f itself, or with i.
        wide = axes if re.search(r"[\[ ][fi]\]", "\n".join(body.lines)) else 0
        made = Temporary(into, type_, wide, max(bound, 1), scale, keeps, is_loose)
        self.temporaries.append(made)
        self.unseen.append(made)
        if combine in {"argmin", "argmax"}:
            count = self.graph.vertex_count
            source = Temporary(f"{into}_source", "int", wide, count, 0, True)
            self.temporaries.append(source)
            self.unseen.insert(0, source)
        return text

    def _hot_width(self) -> int:
        return max((p.wide for p in self.properties if p.name in self.hot), default=1)

    def _hot_rows(self) -> list[Property]:
        """Return vertex properties that the foldmap writes at other vertices."""
        return [
            p for p in self.properties
            if p.of == "vertex" and p.wide == 1 and p.name in self.hot
        ]  # fmt: skip

    def _wide(self, body: Body, type_: str, axes: int) -> Expression:
        """Return an expression that reads something with f, where it is to be wide."""
        e = body.reads.of(type_, 3)
        if not axes:
            if self.patches:
                hot = [p for p in self.properties if p.name in self.hot]
                if hot and hot[0].type == type_ != "bool":
                    return body.reads.joined("add", body.reads.read(hot[0]), e, type_)
            return e
        ends = [x for x in body.reads._ends() if x in "uv"]
        found = [
            p
            for p in self.properties
            if p.of == "vertex" and p.wide == 1 and p.type == type_ and p.role != "out"
            and p.role != "atomic"
        ]  # fmt: skip
        hot = [p for p in self._hot_rows() if p.type == type_]
        if hot and "u" in ends:
            found, ends = hot, ["u"]
        end = self.draw.one(ends)
        index = "f" if axes == 1 else self.draw.one(("f", "i"))
        if not found:
            p = next(p for p in self.properties if p.name == "b0")
            text = f"d.b0[{index}]"
        else:
            p = self.draw.one(found)
            text = f"d.{p.name}[{end}, {index}]"
        if p.type == "bool" and type_ != "bool":
            text, bound, scale = f"int({text})", 1, 0
        elif type_ == "bool" and p.type != "bool":
            text, bound, scale = f"({text} > 0)", 1, 0
        elif type_ == "int" and p.type == "real":
            text, bound, scale = f"int({text})", p.bound, 0
        else:
            bound, scale = p.bound, p.scale
        read = Expression(text, type_, bound, scale, False)
        if axes == 2:
            other = "i" if index == "f" else "f"
            if type_ == "bool":
                return Expression(
                    f"({read} or {e} or {other} == 0)", "bool", 1, 0, False
                )
            many = body.reads.joined("add", read, Expression(other, "int", 5), type_)
            return body.reads.joined("add", many, e, type_)
        if type_ == "bool":
            sign = self.draw.one(("or", "and", "!="))
            return Expression(f"({read} {sign} {e})", "bool", 1, 0, False)
        return body.reads.joined(self.draw.one(("add", "sub", "least")), read, e, type_)


def _of_target(properties: list[Property], body: Body, type_: str) -> Expression:
    """Return a value of the target, which all its contributions share."""
    found = [
        p
        for p in properties
        if p.of == "vertex" and p.wide == body.reads.axes and p.type == type_
        and p.role in {"const", "next"} and not p.index
    ]  # fmt: skip
    if not found:
        return Expression({"bool": "True", "int": "v", "real": "1.5"}[type_], type_)
    p = body.reads.draw.one(found)
    index = "v, f" if p.wide else "v"
    return Expression(f"d.{p.name}[{index}]", type_, p.bound, p.scale, False)
