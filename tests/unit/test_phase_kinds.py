"""Kinds of phases: what the table holds, and what a new kind takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.fold.kinds import table
from featgraph.fold.kinds.base import PhaseKind
from featgraph.fold.kinds.table import EDGE
from featgraph.runtime.superstep import kinds


@fg.vertex
def halve(f, v, d):
    d.x_next[v] = d.x[v] * 0.5
    return d.x[v] > 1.0


@fg.gather(into="total", combine="sum")
def add(f, u, v, e, d):
    return d.x[u]


@fg.reduce(into="all", combine="sum")
def norm(f, v, d):
    return d.x[v]


@fg.triangle
def count(u, v, w, e_uv, e_uw, e_vw, d):
    fg.atomic.add(d.triangles, u, 1)


def made() -> tuple[Any, fg.State]:
    """Return a foldmap of one edge function, which is new each time, and its State."""

    @fg.edge
    def send(f, u, v, e, d):
        d.sent[e] = d.x[u] + d.x[v]
        return d.x[u] < d.x[v]

    graph = fg.Graph.from_edges([0, 0, 1, 2, 3], [1, 2, 2, 0, 1])
    x = np.array([1, 2, 3, 0], np.float32)
    properties = {
        "x": fg.vertex_property(x),
        "sent": fg.edge_property(np.zeros(5, np.float32)),
    }
    return fg.foldmap(send), fg.State(graph, **properties)


@pytest.mark.parametrize("kind", table.KINDS, ids=repr)
def test_the_runtime_has_what_a_kind_names(kind: PhaseKind) -> None:
    for name in (kind.prepare, kind.finish):
        assert getattr(kinds, name).__module__ == kinds.__name__


@pytest.mark.parametrize(
    ("function", "name", "pushed"),
    [
        (halve, "vertex", "vertex"), (add, "vertex", "push"),
        (norm, "reduce", "reduce"), (count, "triangle", "triangle"),
    ],
)  # fmt: skip
def test_the_kind_that_a_function_begins(function: Any, name: str, pushed: str) -> None:
    assert table.kind_of(function, pushes=False).name == name
    assert table.kind_of(function, pushes=True).name == pushed


def test_kinds_that_report_nothing_end_nowhere() -> None:
    silent = {kind.name for kind in table.KINDS if not kind.reports_due}
    assert silent == {"reduce", "triangle"}


def test_a_new_kind_is_an_object_and_its_place_in_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def title(facts: Any) -> str:
        return "Sweep the edges of a kind that nobody has."

    def prepare(bound: Any, own: Any, frontier: Any) -> Any:
        given = kinds.prepare_edges(bound, own, frontier)
        frontier.passed = given["sources"]  # both ends are due
        return given

    active = [0, 2, 3]
    step, state = made()
    targets = step(state, active_in=active, target="cpu").vertices
    sent = np.array(state["sent"])
    both = frozenset({"targets", "passed"})
    new = replace(EDGE, name="unheard", title=title, prepare="prepare_new", ends=both)
    monkeypatch.setattr(table, "KINDS", (new, *table.KINDS))
    monkeypatch.setattr(kinds, "prepare_new", prepare, raising=False)
    step, state = made()
    kernel = step.fold(state, target="cpu")
    assert [phase.kind for phase in kernel.plan.phases] == [new]
    assert "def unheard_phase_0(" in kernel.source
    assert title(None) in kernel.source
    assert kernel.plan.as_dict()["phases"][0]["kind"] == "unheard"
    found = step(state, active_in=active, target="cpu").vertices
    assert set(targets) - set(active) == {1}
    assert set(found) == {*targets, *active}
    assert np.array_equal(state["sent"], sent)
