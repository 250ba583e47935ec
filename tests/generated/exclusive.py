"""Exclusive functions: they read both ends first, and then write one or both.

Under each schedule that fits, the interpreter has the same bits in the recorded order.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tests.generated.check import load
from tests.generated.draw import Draw
from tests.programs.exclusive import ANY, TWO_SIDES, check_run, graph_of, state_of

__all__ = ["check_exclusive"]


def check_exclusive(seed: int, target: str, edges: int = 60) -> str:
    """Run a drawn function under drawn schedules; return its text.

    Raises
    ------
    AssertionError
        Where a run is not serialisable, or differs from the interpreter.
    """
    draw = Draw(random.Random(seed))
    kind = draw.one(("directed", "undirected", "sides"))
    graph = graph_of(kind, draw.one((7, 20, 33)), draw.number(1, edges), seed)
    k, text = draw.one((1, 2, 5, 8, 17)), _text(draw)
    step, active = load(text)["step"], None
    if draw.chance(40):
        active = np.random.default_rng(seed).random(graph.vertex_count) < 0.6
    names = [*ANY, "auto", *[*TWO_SIDES][:-1] * (kind == "sides")]
    for schedule in sorted({draw.one(names) for _ in range(3)}):
        options: dict[str, Any] = {"schedule": schedule}
        options["shuffle"] = draw.one((0, None, seed))
        if schedule == "blocks":
            options["parts"] = draw.number(1, 5)
        elif schedule == "hybrid" and draw.chance(50):
            options["hubs"] = draw.number(1, 5)
        elif schedule in {"matching_nodes", "subgraph_matching", "block_diagonal"}:
            options["block_vertices"] = draw.number(1, 9)
        state = state_of(graph, k, seed)
        options |= {"target": target, "record_order": "turn"}
        committed = step(state, active_in=active, **options)
        try:
            check_run(step, state, committed, active, seed)
        except AssertionError as error:
            about = f"seed {seed}, {options}, k = {k}, {kind}:\n{text}"
            raise AssertionError(about) from error
    return text


def _text(draw: Draw) -> str:
    """Return a module with an exclusive function over x and n, and its foldmap."""
    at = draw.one(("uv", "uv", "u", "v"))
    wide = [("a", "d.x[u, f]"), ("b", "d.x[v, f]"), ("c", "d.y[u, f]")]
    single = [("m", "d.n[u]"), ("n", "d.n[v]"), ("w", "d.w[e]")]
    lines = [f"    {name} = {read}" for name, read in (*wide, *single)]
    if draw.chance(40):
        lines.append(f"    s = fg.feature_sum(a {draw.one(('+', '^'))} b)")
        single.append(("s", ""))
    few, all_ = [n for n, _ in single], [n for n, _ in (*wide, *single)]
    writes = []
    for end in at:
        writes += [f"    d.x[{end}, f] = {_value(draw, all_)}"] * draw.chance(90)
        store = f"d.n[{end}] = {_value(draw, few)}"
        if draw.chance(50):
            store = f"if {draw.one(few)} % {draw.number(2, 4)} == 0:\n        {store}"
        writes.append(f"    {store}")
    draw.random.shuffle(writes)
    lines += [*writes, "    d.runs[e] = d.runs[e] + 1"]
    lines.append(f"    return {draw.one(('True', 'w % 3 != 0', 'm < n'))}")
    head = "import featgraph as fg\n\n\n@fg.edge(exclusive=True)\n"
    body = "\n".join(["def drawn(f, u, v, e, d):", *lines])
    if draw.chance(30):
        first = "\n\n\n@fg.vertex\ndef some(f, v, d):\n    return v % 4 != 1"
        return f"{head}{body}{first}\n\n\nstep = fg.foldmap(some, drawn)\n"
    return f"{head}{body}\n\n\nstep = fg.foldmap(drawn)\n"


def _value(draw: Draw, names: list[str]) -> str:
    """Return an expression in which the order of edges shows."""
    one, two, three = (draw.one(names) for _ in range(3))
    factor = draw.one((3, 7, 17, 31))
    return f"{factor} * {one} {draw.one(('+', '-', '^'))} ({two} + {three})"
