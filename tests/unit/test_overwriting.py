"""Programs whose new entries may be stored over the old ones (0018)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms.bfs import step as search
from featgraph.algorithms.sssp import step as shortest_paths
from featgraph.fold.plan.worklist import overwrites, settles_at_once
from tests.generated.check import load
from tests.programs.queued import QUEUED
from tests.strategies import seeds

HEAD = """
import featgraph as fg


@fg.gather(into="best", combine="max", sources="active")
def gather(f, u, v, e, d):
    return d.low[u, f]
"""
NAMES = ("low", "high")
#: Lines of functions: reads of old entries, of new ones, and writes.
LINES = [
    "x = d.low[v, f]",
    "x = x + d.high[v, f]",
    "x = d.low[v, f] + d.high_next[v, f]",
    "d.low_next[v, f] = x + 1",
    "d.high_next[v, f] = x",
    "d.low_next[v, f] = d.high[v, f]",
    "d.high_next[v, f] = d.high[v, f] + x",
    "d.high_next[v, f] = d.high[v, 0]",
    "d.high_next[v, 1] = x",
]
ENDS = ["return True", "return True", "return False", "return x > 1"]
STORE = "d.low_next[v, f] = d.best[v, f]"


def function(name: str, *lines: str) -> str:
    body = "\n".join(f"    {x}" for text in lines for x in text.split("\n"))
    return f"\n\n@fg.vertex\ndef {name}(f, v, d):\n    x = d.best[v, f]\n{body}\n"


@st.composite
def blocks(draw: st.DrawFn, deep: int = 0) -> str:
    """Draw statements, some of them in branches or turns of a loop."""
    out = []
    for _ in range(draw(st.integers(1, 3))):
        line = draw(st.sampled_from([*LINES, "if", "for", "end"]))
        if line in {"if", "for"} and deep < 2:
            inner = draw(blocks(deep + 1)).replace("\n", "\n    ")
            head = "if x > 2:" if line == "if" else "for i in range(2):"
            out.append(f"{head}\n    {inner}")
        elif line == "end":
            inner = draw(st.sampled_from(ENDS))
            out.append(f"if x > {draw(st.integers(0, 4))}:\n    {inner}")
        elif line not in {"if", "for"}:
            out.append(line)
    return "\n".join(out) or "x = x + 1"


@st.composite
def programs(draw: st.DrawFn) -> list[str]:
    """Draw the functions behind the gather."""
    return [
        function(name, draw(blocks()), draw(st.sampled_from(ENDS)))
        for name in ("one", "two")[: draw(st.integers(1, 2))]
    ]


def made(functions: list[str]) -> tuple[Any, list[Any]]:
    """Return a plan, and the functions behind the gather."""
    module = load(HEAD + "".join(functions))
    behind = [module[n] for n in ("one", "two") if n in module]
    step = fg.foldmap(module["gather"], *behind)
    signature = {
        n: fg.vertex_property(np.zeros((2, 2), np.int64), iterated=True) for n in NAMES
    }
    graph = fg.Graph.from_edges([0], [1])
    state = fg.State(graph, **signature)
    return step.fold(state, target="cpu").plan, behind


def committed(behind: list[Any], values: Any, one_buffer: bool) -> Any:
    """Return a vertex's committed value by S2 and S3, with two buffers."""
    best, *old = values.copy()
    new = old if one_buffer else [x.copy() for x in old]
    d = SimpleNamespace(best=best)
    for name, current, next_ in zip(NAMES, old, new, strict=True):
        setattr(d, name, current)
        setattr(d, f"{name}_next", next_)
    for one in behind:
        verdicts = [one(f, 0, d) for f in range(2)]
        if not any(verdicts):
            return old
    return new


@given(functions=programs(), seed=seeds)
@settings(max_examples=60, deadline=None)
def test_one_buffer_leaves_what_two_leave(functions: list[str], seed: int) -> None:
    """Wherever one is taken: run as Python, each feature behind the one before."""
    try:
        plan, behind = made(functions)
    except fg.UserFunctionError:  # it reads another feature than it writes
        return
    if plan.facts.not_queued or not overwrites(plan):
        return
    rng = np.random.default_rng(seed)
    for _ in range(20):
        values = rng.integers(0, 6, (3, 1, 2))
        meant = committed(behind, values, False)
        assert np.array_equal(committed(behind, values, True), meant)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([STORE, "return True"], True),
        (["x = d.low[v, f]", "if x > 2:\n    return False", STORE, "return True"],
         True),
        ([STORE, "x = d.low_next[v, f]", "d.high_next[v, f] = x", "return True"], True),
        (["d.low_next[v, f] = d.low[v, f] + 1", "return True"], True),
        (["x = d.low[v, f]", f"if x > 2:\n    {STORE}\nelse:\n    x = d.low[v, f]",
          "return True"], True),
        ([STORE, "return x > 2"], False),  # stored, and then dropped
        ([STORE, "if x > 2:\n    return False", "return True"], False),
        ([STORE, "d.high_next[v, f] = d.low[v, f]", "return True"], False),
        ([f"if x > 2:\n    {STORE}", "x = d.low[v, f]", "return True"], False),
        ([f"for i in range(2):\n    x = d.low[v, f]\n    {STORE}", "return True"],
         False),
        (["x = d.low[v, 1 - f]", STORE, "return True"], False),  # of another feature
        (["d.high_next[v, f] = d.low[v, f]", "d.low_next[v, 0] = 1", "return True"],
         False),  # by all features, of which one has read it
    ],
)  # fmt: skip
def test_which_functions_store_over_what_they_read(
    lines: list[str], expected: bool
) -> None:
    plan, _ = made([function("one", *lines)])
    assert not plan.facts.not_queued
    assert overwrites(plan) == expected


def test_a_function_behind_others_reads_what_they_have_left() -> None:
    reads = ["x = d.low[v, f]", "if x > 2:\n    return False", "return True"]
    one, two = function("one", STORE, "return True"), function("two", *reads)
    assert not overwrites(made([one, two])[0])
    first, last = function("one", *reads), function("two", STORE, "return True")
    assert overwrites(made([first, last])[0])


def test_which_programs_do() -> None:
    def found(step: Any, k: int, **options: Any) -> tuple[bool, bool]:
        plan = step.fold(k=k, target="cpu", **options).plan
        return overwrites(plan), settles_at_once(plan)

    assert found(search, 1) == (True, True)
    assert found(search, 1, deterministic=True) == (True, False)  # of several sources
    assert found(search, 2) == (True, False)
    assert found(shortest_paths, 1) == (True, False)
    assert found(QUEUED["rising"][0], 1) == (True, True)
    assert found(QUEUED["paths"][0], 2) == (False, False)
    assert found(QUEUED["peeling"][0], 1) == (False, False)  # writes, and drops
