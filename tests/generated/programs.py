"""Whole programs: functions, foldmaps, a state, and what is done with them."""

from __future__ import annotations

import ast
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.generated import options
from tests.generated.draw import Draw
from tests.generated.expressions import Expression, literal
from tests.generated.functions import Functions
from tests.generated.properties import (
    DTYPES,
    GraphSpec,
    Property,
    draw_graph,
    draw_width,
    fill,
)
from tests.generated.reads import Known, Reads

__all__ = ["Case", "draw_actions", "generate"]


@dataclass(frozen=True)
class Case:
    """A program, its state, and what to run under which options.

    Attributes
    ----------
    text : str
        A module; ``STEPS`` are its foldmaps.
    state : dict
        Name -> (property, value).
    actions : list of dict
        ``{"call": number, "active": ..., "on": ...}`` for a superstep, or
        ``{"iterate": [numbers], "active": ..., "on": ..., "limit": n}``. Vertices are
        lists; "out" is what the call before has committed.
    options : list of dict
        Option sets, each tried from the start.
    """

    text: str
    graph: GraphSpec
    state: dict[str, tuple[Property, Any]]
    actions: list[dict[str, Any]]
    options: list[dict[str, Any]]
    chunk: int = 20_000
    features: frozenset[str] = field(default=frozenset(), compare=False)


#: Kinds of functions of a foldmap; letters for vertex, gather, edge, reduce, triangle,
#: matrix gather.
FORMS = (
    "v", "gv", "gv", "egv", "egv", "ggv", "vgv", "gvv", "gvgv", "vv", "rv", "rgv",
    "grv", "e", "ve", "ee", "ev", "egv", "vev", "vee", "g", "mv", "mgv", "evgv",
    "rvg", "vge", "eve", "vgvgv", "gge", "re", "Rv",
)  # fmt: skip
TRIANGLES = ("t", "et", "vt", "tt", "ret")
#: Orders of functions that may be patched in runs driven by changes.
PATCHED = ("gv", "gv", "ggv", "gvv", "egv", "vgv")


def generate(
    source: random.Random,
    *,
    work: int = 1500,
    without: frozenset[str] = frozenset(),
    forms: Sequence[str] = (),
) -> Case:
    """Return a program.

    Parameters
    ----------
    source : random.Random
        Seeded, or hypothesis's.
    work : int
        About how many vertices and edges times features its graph has.
    without : frozenset of str
        What not to write: "gathered" (gathered values at other features), ...
    forms : sequence of str, optional
        Of which the program has one; by default, all forms.
    """
    draw = Draw(source)
    has_triangles = not forms and draw.chance(6)
    patches = not (forms or has_triangles) and draw.chance(20)
    chosen_forms = [draw.one(forms or (TRIANGLES if has_triangles else FORMS))]
    if patches:
        chosen_forms = [draw.one(PATCHED)]
    elif not forms and draw.chance(15):
        chosen_forms.append(draw.one(FORMS))
    forms = chosen_forms
    k = draw_width(draw)
    if any("m" in form or "R" in form for form in forms):
        k = min(k, 5)
    directed = False if has_triangles else None
    graph = draw_graph(draw, k, work, directed, has_triangles)
    rng = np.random.default_rng(draw.number(0, 2**32 - 1))
    properties = _properties(draw, graph)
    functions = Functions(draw, k, without, graph, properties)
    functions.patches = patches
    lines = [*_constants(draw, functions), *_helpers(draw, functions)]
    steps = []
    for form in forms:
        draw.use(f"form {form}", f"k={k}")
        names = functions.write(form)
        steps.append(f"fg.foldmap({', '.join(names)})")
    lines += functions.lines
    lines.append(f"STEPS = [{', '.join(steps)}]")
    text = ast.unparse(ast.parse("\n".join(lines)))
    text = "import math\n\nimport featgraph as fg\n\n" + text + "\n"
    used = [p for p in properties if f"d.{p.name}" in text or f'"{p.name}"' in text
            or f"'{p.name}'" in text]  # fmt: skip
    state = {p.name: (p, fill(p, graph, k, rng)) for p in used}
    if patches:
        actions = [_long_run(draw, graph, rng)]
        chosen = [draw.one(options.PATCHING)]
    else:
        actions = draw_actions(draw, graph, len(steps), rng)
        chosen = options.draw_sets(draw, has_triangles)
    chunk = draw.one((20_000, 1, 16))
    return Case(text, graph, state, actions, chosen, chunk, frozenset(draw.features))


def _properties(draw: Draw, graph: GraphSpec) -> list[Property]:
    """Return candidate properties; those that no function uses are removed later."""
    undirected = not graph.directed
    sided = undirected and draw.chance(60)
    is_double = draw.chance(15)

    def dtype() -> str:
        chosen = draw.one(DTYPES)
        if chosen == "float64" and not is_double:
            chosen = "float32"
        if chosen == "float32" and is_double and draw.chance(50):
            chosen = "float64"
        draw.use(chosen)
        return chosen

    made: list[Property] = []

    def add(name: str, of: str, wide: int, role: str = "const", **given: Any) -> None:
        type_ = given.pop("dtype", None) or dtype()
        p = Property(name, of, wide, type_, role, **given)
        if "bound" not in given:
            _bound(draw, p)
        made.append(p)

    for number in range(draw.number(2, 3)):
        add(f"x{number}", "vertex", 1)
        add(f"s{number}", "vertex", 0)
        add(f"n{number}", "vertex", draw.one((1, 0)), "next")
    add("p0", "vertex", 1, "place")
    add("p1", "vertex", 0, "place")
    real = "float64" if is_double else "float32"
    for name, wide in (("a0", 1), ("a1", 0)):
        type_ = draw.one(("int32", "int64", real, "uint32"))
        add(name, "vertex", wide, "atomic", dtype=type_, bound=2**18)
    count = graph.vertex_count
    add("to", "vertex", 0, dtype="int32", bound=count, index=count)
    for number in range(2):
        add(f"w{number}", "edge", number, per_direction=sided and draw.chance(50))
    if graph.directed or sided:
        for number, role in enumerate(("next", "place", "out", "out")):
            add(f"e{number}", "edge", draw.one((0, 1)), role, per_direction=undirected)
        add("e4", "edge", 1, "out", per_direction=undirected)
    add("b0", "vector", 1)
    add("c0", "scalar", 0, dtype=draw.one(("float32", "int64", "bool")))
    add("m0", "matrix", 2, dtype=draw.one((real, "int32")), bound=4)
    for name, wide, type_ in (
        ("o0", 1, real), ("o1", 1, dtype()), ("o2", 0, real), ("o3", 0, dtype()),
        ("o4", 1, "int64"), ("o5", 0, "int64"), ("o6", 1, "bool"),
    ):  # fmt: skip
        add(name, "vertex", wide, "out", dtype=type_)
    return made


def _bound(draw: Draw, p: Property) -> None:
    """Choose how large values are: narrow integers fill their type."""
    if p.type == "bool":
        p.bound = 1
    elif p.type == "real":
        p.bound, p.scale = draw.one(((8, 2), (4, 0), (16, 3), (2, 1)))
    else:
        info = np.iinfo(p.dtype)
        small = draw.one((5, 9, 100))
        full = min(int(info.max), 2**40)
        p.bound = full if draw.chance(30) else min(small, full)
        if p.bound == full and p.dtype != "int64":
            draw.use(f"whole range of {p.dtype}")


def _constants(draw: Draw, functions: Functions) -> list[str]:
    lines = []
    for number in range(draw.number(0, 3)):
        e = literal(draw, draw.one(("real", "int", "bool")))
        name = f"C{number}"
        lines.append(f"{name} = {e}")
        made = Expression(name, e.type, e.bound, e.scale)
        functions.constants.append((name, made))
        draw.use("captured constant")
    return lines


def _helpers(draw: Draw, functions: Functions) -> list[str]:
    """Write plain functions that the user functions call."""
    lines = []
    for number in range(draw.number(0, 2)):
        types = [draw.one(("real", "int")) for _ in range(draw.number(1, 2))]
        nothing = Known([], [], False)
        reads = Reads(draw, 1, functions.without, nothing, "helper", 0)
        for letter, type_ in zip("ab", types, strict=False):
            bound, scale = (8, 2) if type_ == "real" else (50, 0)
            reads.locals[letter] = Expression(letter, type_, bound, scale)
        reads.constants = list(functions.constants)
        name, result = f"h{number}", draw.one(("real", "int", "bool"))
        first = reads.of(result, 2)
        letters = ", ".join("ab"[: len(types)])
        lines.append(f"def {name}({letters}):")
        bound, scale = first.bound, first.scale
        if draw.chance(40):
            condition, other = reads.of("bool", 1), reads.of(result, 1)
            lines += [f"    if {condition}:", f"        return {other}"]
            bound, scale = max(bound, other.bound), max(scale, other.scale)
        lines.append(f"    return {first}")
        made = Expression("", result, bound, scale)
        functions.helpers.append((name, types, made))
        draw.use("helper")
    return lines


def _some(draw: Draw, rng: Any, count: int) -> Any:
    """Return vertices: None for all, or a list."""
    kind = draw.one(
        (*("all", "most", "some") * 3, "one", "empty", "last", "few", "few")
    )
    if kind == "all":
        return None
    if kind in {"one", "last"}:
        return [int(rng.integers(count)) if kind == "one" else count - 1]
    share = {"some": 0.3, "most": 0.85, "empty": 0.0, "few": 0.07}[kind]
    return np.flatnonzero(rng.random(count) < share).tolist()


def _long_run(draw: Draw, graph: GraphSpec, rng: Any) -> dict[str, Any]:
    """Return a run in which aggregates are kept from one superstep to the next."""
    draw.use("iterate", "patches")
    active = _some(draw, rng, graph.vertex_count) if draw.chance(30) else None
    limit = draw.number(3, 7)
    return {"iterate": [0], "active": active, "on": None, "limit": limit}


def draw_actions(
    draw: Draw, graph: GraphSpec, steps: int, rng: Any
) -> list[dict[str, Any]]:
    """Return calls of some of the steps, and mostly a run behind them."""
    actions: list[dict[str, Any]] = []
    count = graph.vertex_count
    for number in range(draw.number(1, 3)):
        active = _some(draw, rng, count)
        if number and draw.chance(50):
            active = "out"
        on = _some(draw, rng, count) if draw.chance(25) else None
        if on is not None:
            draw.use(".on")
        if active is not None:
            draw.use("active set")
        actions.append({"call": draw.number(0, steps - 1), "active": active, "on": on})
    if draw.chance(60):
        order = [draw.number(0, steps - 1)] if draw.chance(50) else list(range(steps))
        active = _some(draw, rng, count) if draw.chance(40) else None
        restricts = draw.chance(15) and "sources=active" not in draw.features
        on = _some(draw, rng, count) if restricts else None
        limit = draw.number(1, 6)
        draw.use("iterate")
        actions.append({"iterate": order, "active": active, "on": on, "limit": limit})
    return actions
