"""Programs whose runs begin at some vertices: in any order, and around reduces.

Monotone programs have one fixpoint, whatever runs when: it is compared, and nothing on
the way there. They are run with ``asynchronous=True``, ``near_far=`` and both. A reduce
between two vertex functions makes every vertex due where it changes: there all of a
superstep is compared.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np

from tests.generated.draw import Draw
from tests.generated.options import draw_unordered
from tests.generated.programs import Case, generate
from tests.generated.properties import GraphSpec, Property, draw_graph, fill

__all__ = ["generate_somewhere"]

#: Forms of foldmaps with a reduce behind a function that runs on due vertices.
AROUND = (
    "vrv", "vrv", "gvrv", "vrgv", "rvrv", "vRv", "gvrgv", "vrrv", "evrv", "vrev",
)  # fmt: skip
#: Enough supersteps for a path through the largest graph, one key after the other.
MANY = 2000


def generate_somewhere(source: random.Random, *, work: int = 1500) -> Case:
    """Return a program with a run from a restricted active set."""
    draw = Draw(source)
    if draw.chance(35):
        if draw.chance(70):
            return _around_a_reduce(draw, work)
        case = generate(source, work=work, forms=AROUND)
        rng = np.random.default_rng(draw.number(0, 2**32 - 1))
        run = {"active": _few(draw, rng, case.graph.vertex_count), "on": None}
        actions = [{"iterate": [0], "limit": draw.number(2, 6), **run}]
        features = case.features | {"a reduce between functions"}
        return replace(case, actions=actions, features=features)
    return _Monotone(draw, work).case()


def _few(draw: Draw, rng: Any, count: int) -> list[int]:
    """Return some vertices, not all."""
    share = draw.one((0.05, 0.2, 0.5))
    found = np.flatnonzero(rng.random(count) < share).tolist()
    return found or [int(rng.integers(count))]


def _around_a_reduce(draw: Draw, work: int) -> Case:
    """Return a program whose reduce changes with what functions in front commit."""
    graph, lines = draw_graph(draw, 1, work, True, False), ["import featgraph as fg"]
    rng = np.random.default_rng(draw.number(0, 2**32 - 1))
    read = draw.one(("d.n[v]", "d.n[v]", "d.n_next[v]", "d.m[v]"))
    functions = {
        "first": (
            "@fg.vertex", "f, v, d",
            f"d.n_next[v] = (d.n[v] + {draw.number(1, 9)}) % 97",
            "d.m[v] = d.n[v] % 11", f"return (d.n[v] + v) % {draw.number(2, 5)} != 0",
        ),
        "near": (
            '@fg.gather(into="t", combine="max")', "f, u, v, e, d", "return d.n[u]",
        ),
        "total": (
            f'@fg.reduce(into="r", combine="{draw.one(("sum", "max"))}")', "f, v, d",
            f"return {read}",
        ),
        "last": (
            "@fg.vertex", "f, v, d", "d.o[v] = d.r[0]",
            f"return (d.r[0] + v) % {draw.number(2, 7)} != 0",
        ),
    }  # fmt: skip
    order = draw.one((("first", "total", "last"), ("near", "first", "total", "last"),
                      ("first", "total", "near", "last")))  # fmt: skip
    for name in order:
        decorator, parameters, *body = functions[name]
        lines += ["", decorator, f"def {name}({parameters}):"]
        lines += [f"    {line}" for line in body]
    lines += ["", f"STEPS = [fg.foldmap({', '.join(order)})]", ""]
    properties = [
        Property("n", "vertex", 0, "int64", "next", 90),
        Property("m", "vertex", 0, "int64", "place", 9),
        Property("o", "vertex", 0, "int64", "out"),
    ]
    state = {p.name: (p, fill(p, graph, 1, rng)) for p in properties}
    active = _few(draw, rng, graph.vertex_count)
    run = {"iterate": [0], "active": active, "on": None, "limit": draw.number(2, 6)}
    sets = [
        {},
        draw.one(({"direction": "push"}, {"folding": False}, {"checked": True})),
    ]
    draw.use("a reduce between functions")
    chunk = draw.one((20_000, 1, 16))
    return Case(
        "\n".join(lines), graph, state, [run], sets, chunk, frozenset(draw.features)
    )


class _Monotone:
    """Writes gathers of values that only get better, and what adopts them.

    Worse values at sources give no better contributions: a cost is added or taken as a
    bound, whatever the value.
    """

    def __init__(self, draw: Draw, work: int) -> None:
        self.draw = draw
        self.k = draw.one((1, 1, 2, 3, 5, 17))
        directed = draw.chance(65)
        self.graph: GraphSpec = draw_graph(draw, self.k, work, directed, False)
        self.rng = np.random.default_rng(draw.number(0, 2**32 - 1))
        self.is_least = draw.chance(65)
        self.wide = int(draw.chance(60))
        real = draw.one(("float32", "float64"))
        dtype = draw.one(("int32", "int64", real, "int16", real))
        self.dtype = "int32" if dtype == "int16" and not self.is_least else dtype
        # A cost of at least 0 leaves no way round that gets better for ever.
        self.properties = [
            Property("x", "vertex", self.wide, self.dtype, "next", 60, 2),
            Property("w", "edge", 0, draw.one(("int32", self.dtype)), bound=9, scale=2),
            Property("b", "vertex", 0, "bool"),
            Property("o", "edge", 0, "bool"),
        ]

    def case(self) -> Case:
        """Return the program, its state and its runs."""
        draw, lines = self.draw, ["import featgraph as fg", "", ""]
        names = []
        if draw.chance(15):  # may stop a vertex, by what never changes
            lines += ["@fg.vertex", "def first(f, v, d):", "    return d.b[v]", "", ""]
            names.append("first")
        gathers = [self._gather(lines, n) for n in range(draw.one((1, 1, 1, 2)))]
        names += [*gathers, self._adopt(lines, len(gathers))]
        lines += [f"STEPS = [fg.foldmap({', '.join(names)})]", ""]
        state = {}
        for p in self.properties:
            value = fill(p, self.graph, self.k, self.rng)
            state[p.name] = (p, np.abs(value) if p.name == "w" else value)
        run = {"iterate": [0], "on": None, "limit": MANY}
        active = _few(draw, self.rng, self.graph.vertex_count)
        draw.use("restricted active set")
        sets = draw_unordered(draw, "x")
        return Case(
            "\n".join(lines), self.graph, state, [{**run, "active": active}], sets,
            draw.one((20_000, 1, 16)), frozenset(draw.features),
        )  # fmt: skip

    def _gather(self, lines: list[str], number: int) -> str:
        draw, given = self.draw, [f'into="t{number}"']
        combine = draw.one(("min", "argmin") if self.is_least else ("max", "argmax"))
        given.append(f'combine="{combine}"')
        if draw.chance(65):
            given.append('sources="active"')
            draw.use("sources=active")
        if draw.chance(20):
            along = draw.one(("out", "both"))
            given.append(f'along="{along}"')
            draw.use(f"along={along}")
        read = "d.x[u, f]" if self.wide else "d.x[u]"
        sign, bound = ("+", "max") if self.is_least else ("-", "min")
        value = draw.one((f"{read} {sign} d.w[e]", f"{bound}({read}, d.w[e])", read))
        if draw.chance(25):
            value = f"{value} if d.{draw.one(('o[e]', 'b[u]'))} else fg.nothing"
            draw.use("fg.nothing")
        head = f"def gather{number}(f, u, v, e, d):"
        lines += [
            f"@fg.gather({', '.join(given)})",
            head,
            f"    return {value}",
            "",
            "",
        ]
        draw.use(f"gather {combine}")
        return f"gather{number}"

    def _adopt(self, lines: list[str], gathers: int) -> str:
        """Write the vertex function: it commits whenever what it gathered is better."""
        draw, index = self.draw, "[v, f]" if self.wide else "[v]"
        best = f"d.t0{index}"
        if gathers > 1:
            best = f"{'min' if self.is_least else 'max'}({best}, d.t1{index})"
        test = f"best {'<' if self.is_least else '>'} d.x{index}"
        store = f"d.x_next{index} = best"
        body = draw.one((
            [f"if {test}:", f"    {store}", f"return {test}"],
            [f"if not {test}:", "    return False", store, "return True"],
            [f"is_better = {test}",
             f"d.x_next{index} = best if is_better else d.x{index}",
             "return is_better"],
        ))  # fmt: skip
        lines += ["@fg.vertex", "def adopt(f, v, d):", f"    best = {best}"]
        lines += [*(f"    {line}" for line in body), "", ""]
        return "adopt"
