"""Programs of small functions that read each other's ``_next`` entries elsewhere.

Whatever function may return False, so that entries are dropped that others read: at
vertices that they compute, at neighbors, at twins. Values are integers below `MOST`.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tests.generated.draw import Draw
from tests.generated.options import CHOICES
from tests.generated.programs import Case, draw_actions
from tests.generated.properties import GraphSpec, Property, draw_graph, fill

__all__ = ["generate_elsewhere"]

MOST = 97
WIDTHS = (2, 1, 3, 5, 33)
DTYPES = ("int32", "int32", "int8", "bool", "int64", "uint16")
COMBINES = ("sum", "min", "max", "argmin")


def generate_elsewhere(source: random.Random, *, work: int = 300) -> Case:
    """Return a program; `work` is about how many features its graph has."""
    draw = Draw(source)
    k = draw.one(WIDTHS)
    graph = draw_graph(draw, k, work, None, False)
    functions = _Functions(draw, k, graph)
    steps = [functions.foldmap() for _ in range(draw.one((1, 1, 2)))]
    lines = ["import featgraph as fg", "", *functions.lines]
    text = "\n".join([*lines, f"STEPS = [{', '.join(steps)}]", ""])
    rng = np.random.default_rng(draw.number(0, 2**32 - 1))
    state = {
        p.name: (p, fill(p, graph, k, rng))
        for p in functions.properties
        if f"d.{p.name}" in text
    }
    actions = draw_actions(draw, graph, len(steps), rng)
    if "iterate" in actions[-1] and draw.chance(20):
        actions[-1]["limit"] = 14  # the device repeats supersteps by itself
    sets: list[dict[str, Any]] = [{}]
    sets += [draw.one(CHOICES) for _ in range(draw.number(0, 2))]
    chunk = draw.one((20_000, 1, 16))
    return Case(text, graph, state, actions, sets, chunk, frozenset(draw.features))


def _properties(draw: Draw, graph: GraphSpec) -> list[Property]:
    count = graph.vertex_count

    def made(name: str, of: str, role: str, **given: Any) -> Property:
        wide, dtype = int(draw.chance(60)), draw.one(DTYPES)
        bound = 1 if dtype == "bool" else MOST - 1
        return Property(name, of, wide, dtype, role, bound=bound, **given)

    two = {"per_direction": not graph.directed}
    return [
        made("x", "vertex", "next"),
        made("y", "vertex", "next"),
        made("m", "edge", "next", **two),
        made("n", "edge", "next", **two),
        made("c", "vertex", "const"),
        Property("pick", "vertex", 0, "int32", bound=count, index=count),
        Property("o", "vertex", 1, "int32", "out"),
        Property("q", "vertex", 0, "int32", "out"),
        Property("r", "edge", 1, "int32", "out", **two),
        Property("s", "edge", 0, "int32", "out", **two),
    ]


class _Functions:
    """Writes functions; what one has written, those behind it read."""

    def __init__(self, draw: Draw, k: int, graph: GraphSpec) -> None:
        self.draw, self.k, self.graph = draw, k, graph
        self.properties = _properties(draw, graph)
        self.lines: list[str] = []
        self.number = 0
        self.written: list[Property] = []
        self.reduced: list[str] = []
        self.left: list[tuple[str, int]] = []  # what gathers have left, and how wide

    def foldmap(self) -> str:
        """Write the functions of a foldmap; return its expression."""
        draw = self.draw
        self.written, self.left, self.reduced = [], [], []
        form = draw.one(("v", "e"))
        form += "".join(draw.one("vgevge") for _ in range(draw.number(1, 4)))
        if draw.chance(10):
            form = form[0] + "r" + form[1:]
        form += "v" if form[-1] in "gr" else ""
        draw.use(f"form {form}")
        kinds = {"v": self._mapped, "e": self._mapped}
        kinds |= {"g": self._gather, "r": self._reduce}
        return f"fg.foldmap({', '.join(kinds[kind](kind) for kind in form)})"

    def _gather(self, kind: str) -> str:
        draw, wide = self.draw, self.draw.one((1, 0))
        name, into = self._name("gather"), f"t{self.number}"
        combine = draw.one(COMBINES)
        given = [f'into="{into}"', f'combine="{combine}"']
        if draw.chance(30):
            given.append(f'along="{draw.one(("out", "both"))}"')
        if draw.chance(10):
            given.append('sources="active"')
            draw.use("sources=active")
        value = self._sum(kind, wide, [])
        self.lines += [f"@fg.gather({', '.join(given)})", f"def {name}(f, u, v, e, d):"]
        if draw.chance(25):
            self.lines += [
                f"    if {self._sum(kind, 0, [])} % 3 == 0:",
                "        return fg.nothing",
            ]
        self.lines += [f"    return {value}", "", ""]
        # Its width is that of what it reads.
        wide = int("f]" in value)
        self.left.append((into, wide))
        if combine == "argmin":
            self.left.append((f"{into}_source", wide))
        return name

    def _reduce(self, kind: str) -> str:
        """Write a reduce, of which functions of scalars read the first number."""
        name, into = self._name("reduce"), f"t{self.number}"
        given = f'into="{into}", combine="{self.draw.one(COMBINES[:3])}"'
        self.lines += [f"@fg.reduce({given})", f"def {name}(f, v, d):"]
        self.lines += [f"    return {self._sum('v', 0, [])}", "", ""]
        self.reduced.append(into)
        return name

    def _mapped(self, kind: str) -> str:
        """Write a vertex or an edge function."""
        draw = self.draw
        of, end, head = (
            ("vertex", "v", "v") if kind == "v" else ("edge", "e", "u, v, e")
        )
        wide = draw.one((1, 0))
        fits = [p for p in self.properties if p.of == of and p.wide == wide]
        kept = [p for p in fits if p.role == "next"]
        chosen = [p for p in kept if draw.chance(65)]
        if not chosen or draw.chance(50):
            chosen += [p for p in fits if p.role == "out"]
        name = self._name("vertex" if kind == "v" else "edge")
        self.lines += [f"@fg.{of}", f"def {name}(f, {head}, d):"]
        if draw.chance(20):
            self._leave(kind, wide, chosen)
        for p in chosen:
            place = f"[{end}, f]" if p.wide else f"[{end}]"
            what = f"d.{p.name}{'_next' * (p.role == 'next')}{place}"
            value = self._sum(kind, wide, chosen)
            value += " % 2 == 0" * (p.type == "bool")
            if draw.chance(25):
                self.lines.append(f"    if {self._sum(kind, wide, chosen)} % 2 == 0:")
                self.lines.append(f"        {what} = {value}")
            else:
                self.lines.append(f"    {what} = {value}")
            if draw.chance(10):
                self._leave(kind, wide, chosen)
        self.lines += [f"    return {self._verdict(kind, wide, chosen)}", "", ""]
        self.written += [p for p in chosen if p.role == "next"]
        return name

    def _leave(self, kind: str, wide: int, chosen: list[Property]) -> None:
        test = f"{self._sum(kind, wide, chosen)} % 4 == 0"
        self.lines += [
            f"    if {test}:",
            f"        return {self.draw.one((False, True))}",
        ]

    def _name(self, kind: str) -> str:
        self.number += 1
        return f"{kind}{self.number}"

    def _verdict(self, kind: str, wide: int, chosen: list[Property]) -> str:
        draw = self.draw
        if draw.chance(25):
            return draw.one(("True", "True", "True", "False"))
        return f"{self._sum(kind, wide, chosen)} % {draw.number(2, 4)} != 0"

    def _sum(self, kind: str, wide: int, chosen: list[Property]) -> str:
        draw = self.draw
        terms = [self._read(kind, wide, chosen) for _ in range(draw.number(1, 3))]
        terms += [f"d.{t}[0] % {MOST}" for t in self.reduced if draw.chance(30)]
        if kind == "v":
            terms += [
                self._left(t, axes, wide) for t, axes in self.left if draw.chance(60)
            ]
        terms.append(str(draw.number(0, 3)))
        return f"(({' + '.join(terms)}) % {MOST})"

    def _left(self, name: str, axes: int, wide: int) -> str:
        index = "" if not axes else (", f" if wide else ", 0")
        return f"min(max(d.{name}[v{index}], -1), {MOST})"

    def _read(self, kind: str, wide: int, chosen: list[Property]) -> str:
        """Return a read of a function, mostly of a property written before it."""
        draw = self.draw
        ofs = {"v": ("vertex",), "g": ("vertex", "edge"), "e": ("vertex", "edge")}
        readable = [p for p in self.properties if p.of in ofs[kind] and p.role != "out"]
        if draw.chance(15):
            return draw.one({"v": "v", "g": "uv", "e": "uv"}[kind])
        hot = [p for p in readable if p in self.written]
        p = draw.one(hot if hot and draw.chance(80) else readable)
        is_next = p.role == "next" and draw.chance(80)
        here = is_next and p in chosen  # what it writes itself is read where it is
        if p.of == "edge":
            end = "e"
            if not self.graph.directed and draw.chance(60) and not here:
                end = "fg.reverse(e)"
        elif kind == "v":
            end = "v" if here or draw.chance(30) else draw.one(("d.pick[v]", "far"))
            if end == "far":
                end = f"(v + {draw.number(1, 5)}) % d.vertex_count"
        else:
            end = draw.one(("u", "v"))
            if draw.chance(15):
                end = f"d.pick[{end}]"
        name = p.name + "_next" * is_next
        index = ", f" if wide else ", 0"
        if wide and not here and draw.chance(10):
            index = f", (f + 1) % {self.k}"
        read = f"d.{name}[{end}{index * p.wide}]"
        return f"int({read})" if p.type == "bool" else read
