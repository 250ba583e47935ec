"""Pulled edges: when edge functions join the vertex phase behind them, and why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.snippets import Snippet, fold, make_state

FUNCTIONS = {
    "sends": ("edge", "d.msg_next[e, f] = d.x[u, f]\n    return d.msg[e, f] > 0"),
    "sends_y": ("edge", "d.msg_next[e, f] = d.y[u, f]\n    return True"),
    "sends_next": ("edge", "d.msg_next[e, f] = d.x_next[u, f]\n    return True"),
    "counts_trips": ("edge", "d.trips[e] = d.trips[e] + 1\n    return True"),
    "tests": ("edge", "return d.y[u, f] > 0"),
    "tests_wide": ("edge", "return d.wide[u, f] > 0"),
    "tests_t": ("edge", "return d.t[v, f] > 0"),
    "adds": ("edge", "fg.atomic.add(d.trips, e, 1)\n    return True"),
    "reads_msg": ("gather", "return d.msg_next[e, f] + d.trips[e]"),
    "reads_twin": ("gather", "return d.msg_next[fg.reverse(e), f]"),
    "reads_x": ("gather", "return d.x[u, f]"),
    "takes_t": ("vertex", "d.x_next[v, f] = d.t[v, f]\n    return True"),
    "takes_t_in_y": ("vertex", "d.y[v, f] = d.t[v, f]\n    return True"),
    "own": ("vertex", "d.s[v] = 1.0\n    return d.x[v, f] > 0"),
    "reduces": ("reduce", "return d.x[v, f]"),
}
INTO = {"gather": '(into="t{}")', "reduce": '(into="r")'}
ROLES = {"vertex": "f, v, d", "reduce": "f, v, d"}


def text_of(names: list[str]) -> str:
    parts, gathers = [], 0
    for place, name in enumerate(names):
        kind, body = FUNCTIONS[name]
        into = INTO.get(kind, "").format(gathers or "")
        gathers += kind == "gather"
        roles = ROLES.get(kind, "f, u, v, e, d")
        called = name if names.index(name) == place else f"{name}_again"
        parts.append(f"@fg.{kind}{into}\ndef {called}({roles}):\n    {body}\n")
    return "\n".join(parts)


PULLED = [
    # functions, and which phase of how many pulls edges
    (["sends", "reads_msg", "takes_t"], 0, 1),
    (["sends", "tests", "reads_msg", "takes_t", "own"], 0, 1),
    (["counts_trips", "reads_msg", "takes_t"], 0, 1),
    (["sends", "reads_x", "reads_msg", "takes_t"], 0, 1),
    (["tests", "reads_x"], 0, 1),
    (["own", "sends", "reads_msg", "takes_t"], 1, 2),
    (["reduces", "sends", "reads_msg"], 1, 2),
    (["sends", "reads_msg", "takes_t", "reduces"], 0, 2),
    (["reads_x", "takes_t", "sends_next", "reads_msg"], 1, 2),
]


@pytest.mark.parametrize(
    ("names", "place", "count"), PULLED, ids=["-".join(n) for n, *_ in PULLED]
)
@pytest.mark.parametrize("on", ["cpu", "cuda"])
def test_edges_join_the_gathers_behind_them(
    names: list[str], place: int, count: int, on: str, tmp_path: Path
) -> None:
    kernel = fold(Snippet(tmp_path, text_of(names)), make_state(), target=on)
    phases = kernel.plan.phases
    assert [n for n, p in enumerate(phases) if p.kind.pulls_edges] == [place]
    assert (len(phases), phases[place].kind.name) == (count, "vertex")
    assert "along in-edges whose source is active" in kernel.explain()
    main = next(e for e in kernel.entries if e.phase == place)
    assert "out_edges" not in main.arguments
    assert [i for p in phases for i in p.functions] == list(range(len(names)))


APART = [
    # functions, options, what the vertex phase says
    (["sends", "reads_msg"], {"folding": False}, "folding is off"),
    (["sends", "own"], {}, "no gather sweeps the in-edges behind it"),
    (["sends", "own", "reads_msg"], {"direction": "push"}, "direction is push"),
    (["tests_wide", "reads_x"], {}, "widths differ (3, 4)"),
    (["adds", "reads_x", "takes_t"], {}, "adds uses atomics"),
    (
        ["sends", "reads_twin", "takes_t"],
        {},
        "sends writes msg_next (own), which reads_twin reads (twin)",
    ),
    (
        ["sends_y", "reads_msg", "takes_t_in_y"],
        {},
        "sends_y reads y (neighbor), which takes_t_in_y writes (own)",
    ),
    (
        ["sends_next", "reads_msg", "takes_t"],
        {},
        "sends_next reads x_next (neighbor), which takes_t writes (own)",
    ),
    (["sends", "reads_msg", "tests", "reads_x"], {}, "several phases sweep edges"),
]


@pytest.mark.parametrize(
    ("names", "options", "reason"),
    APART,
    ids=["-".join([*n, *o]) for n, o, _ in APART],
)
@pytest.mark.parametrize("on", ["cpu", "cuda"])
def test_edges_stay_apart(
    names: list[str], options: dict[str, Any], reason: str, on: str, tmp_path: Path
) -> None:
    snippet = Snippet(tmp_path, text_of(names))
    kernel = fold(snippet, make_state(), target=on, **options)
    phases = kernel.plan.phases
    assert not any(p.kind.pulls_edges for p in phases)
    edges = next(n for n, p in enumerate(phases) if p.kind.sweeps_edges)
    expected = f"and is not folded with it: {reason}"
    assert expected in phases[edges + 1].reason
    assert expected in kernel.explain()


def test_edge_functions_alone_stay_as_they_are(tmp_path: Path) -> None:
    kernel = fold(Snippet(tmp_path, text_of(["own", "sends"])), make_state())
    assert [p.kind.name for p in kernel.plan.phases] == ["vertex", "edge"]
