"""A combine of the user's may be called like a built-in one, and is none."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import reference
from featgraph.program.combines import RULES


def _largest(name: str) -> Callable[..., Any]:
    """Return a function that takes the larger value, and has this name."""
    path = f"<combine {name}>"
    text = f"def {name}(a, b):\n    return a if a > b else b\n"
    linecache.cache[path] = len(text), None, text.splitlines(keepends=True), path
    names: dict[str, Any] = {}
    exec(compile(text, path, "exec"), names)  # noqa: S102
    return names[name]  # type: ignore[no-any-return]


def _step(name: str) -> fg.FoldMap:
    """Return a foldmap whose gather takes the largest, by a function of this name."""

    @fg.gather(into="got", combine=fg.combine(_largest(name), identity=-1000))
    def take(f, u, v, e, d):
        return d.x[u, f] - d.weight[e]

    @fg.vertex
    def keep(f, v, d):
        d.x_next[v, f] = d.got[v, f] if d.got[v, f] > d.x[v, f] else d.x[v, f]
        return d.got[v, f] > d.x[v, f]

    return fg.foldmap(take, keep)


def _state(seed: int, k: int, dtype: Any) -> fg.State:
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, 40, (2, 160))
    graph = fg.Graph.from_edges(*ends, vertex_count=40)
    return fg.State(
        graph,
        x=fg.vertex_property(rng.integers(-9, 9, (40, k)).astype(dtype), iterated=True),
        weight=fg.edge_property(rng.integers(0, 3, 160).astype(dtype)),
    )


@pytest.mark.drawn(16)
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize("k", [1, 3, 40])
@pytest.mark.parametrize("name", RULES)
def test_a_step_agrees_with_the_interpreter(
    name: str, k: int, dtype: Any, target: str
) -> None:
    step, state = _step(name), _state(k, k, dtype)
    meant = reference.superstep(step.program, *reference.from_state(state))
    step(state, target=target)
    np.testing.assert_array_equal(np.asarray(state["x"]), meant.values["x"])


@pytest.mark.drawn(6)
@pytest.mark.parametrize("options", [{}, {"change_driven": True}], ids=["", "kept"])
@pytest.mark.parametrize("name", RULES)
def test_a_run_ends_as_under_another_name(
    name: str, options: dict[str, Any], target: str
) -> None:
    ends = []
    for called in (name, "largest"):
        state = _state(3, 3, np.int32)
        fg.iterate(_step(called), state, target=target, **options)
        ends.append(np.asarray(state["x"]))
    np.testing.assert_array_equal(*ends)
