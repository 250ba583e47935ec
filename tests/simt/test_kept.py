"""Kernels that patch kept aggregates, run lane by lane, against the interpreter."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from featgraph.base import padding
from tests.simt.case import Case
from tests.simt.kept import KEPT_BY_NAME, KEPT_CASES, KeptRun
from tests.simt.test_kernels import tiny_graph

VARIANTS: dict[str, dict[str, Any]] = {
    "fa": {},
    "one_edge_lane": {"degree": 1},
    "nfa": {"feature_parallel": False},
    "hubs": {"hubs": True},
    "checked": {"checked": True},
    "unfolded": {"folding": False},
}


def graph_for(case: Case, k: int) -> Any:
    size = (41, 110) if k <= 10 else (17, 40)
    return tiny_graph(case.undirected, *size, np.random.default_rng(k))


def _rotated() -> Any:
    """Every case in every variant, each time with another width."""
    widths = (1, 3, 4, 8, 33)
    for place, case in enumerate(KEPT_CASES):
        for turn, (variant, options) in enumerate(VARIANTS.items()):
            k = widths[(place * 2 + turn) % len(widths)]
            yield pytest.param(case, k, options, id=f"{case.name}-{variant}-{k}")


@pytest.mark.drawn(12)
@pytest.mark.parametrize(("case", "k", "options"), list(_rotated()))
def test_agrees_with_the_interpreter(
    case: Case, k: int, options: dict[str, Any]
) -> None:
    KeptRun(case, k, graph_for(case, k), **options).check()


def test_loops_over_features_leave_both_contributions_in_arrays() -> None:
    """As it is and as it was, of each of two types."""
    case = KEPT_BY_NAME["below"]
    run = KeptRun(case, 17, graph_for(case, 17), feature_parallel=False)
    assert "contribution_seen_bool[f]" in run.kernels.text
    run.check()


# Name, program, options, text, what stands in its place.
FAULTS = [
    (
        "stale",
        "label_propagation",
        {},
        "is_due and (not warp.test_bit(stale, v))",
        "is_due",
    ),
    ("old", "label_propagation", {}, "d.label_seen[", "d.label["),
    (
        "edge_lanes",
        "label_propagation",
        {},
        "aggr = warp.edge_lane_sum(aggr, #, #)",
        "",
    ),
    (
        "retreat",
        "every_combine",
        {},
        "contributed <= low or not retreated <= low",
        "True",
    ),
    ("any", "mark", {}, "contributed or not retreated", "True"),
    ("store", "label_propagation", {}, "d.aggr[uint32(v), uint32(f)] = aggr", "pass"),
    ("vote", "every_combine", {"degree": 4}, "warp.group_all(is_patched, ", "bool("),
    (
        "kept",
        "label_propagation",
        {"hubs": True},
        "aggr += d.aggr[uint32(v), uint32(f)]",
        "pass",
    ),
]


@pytest.mark.parametrize(
    ("name", "options", "text", "instead"),
    [pytest.param(*fault[1:], id=fault[0]) for fault in FAULTS],
)
def test_a_planted_fault_is_caught(
    name: str,
    options: dict[str, Any],
    text: str,
    instead: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # With one feature a lane at K = 3, which is what the texts are of.
    monkeypatch.setattr(padding, "MULTIPLES", (1,))
    case = KEPT_BY_NAME[name]
    run = KeptRun(case, 3, graph_for(case, 3), **options)
    pattern = re.escape(text).replace(r"\#", r"\d+")  # however lanes are shared out
    planted = re.sub(rf"(?<!_){pattern}", lambda match: instead, run.kernels.text)
    assert planted != run.kernels.text
    with pytest.raises(AssertionError):
        run.check(planted)
