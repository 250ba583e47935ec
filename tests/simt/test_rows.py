"""Kernels whose lanes load pieces of rows, lane by lane, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from featgraph.base.padding import row_stride
from featgraph.program import functions as fn
from featgraph.program import operations as fg
from tests.simt.case import Case, edge, floats, scalar, signed, vertex
from tests.simt.emulator import MemoryFault
from tests.simt.programs import BY_NAME, CASES
from tests.simt.test_emulator import run
from tests.simt.test_kernels import Run

SMALL = (21, 60)


@pytest.mark.drawn(20)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_every_program_with_lanes_beyond_the_row(case: Case) -> None:
    # Three pieces of four over four lanes: the last has no feature.
    Run(case, 12, hubs=True, size=SMALL).check()


@pytest.mark.parametrize("k", [2, 4, 6, 20])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_widths_and_types(k: int, dtype: str) -> None:
    run = Run(BY_NAME["label_propagation"], k, dtype=dtype, hubs=True, size=SMALL)
    piece = 2 if dtype == "float64" or k == 2 else 4
    assert f", {row_stride(k)}, {piece})" in run.kernels.text
    run.check()


@pytest.mark.parametrize("name", ["pagerank", "messages", "combines"])
def test_float64_and_wide_offsets(name: str) -> None:
    Run(BY_NAME[name], 6, dtype="float64", wide=True, size=SMALL).check()


FORCED: list[tuple[int, dict[str, int]]] = [
    (8, {"lanes_per_edge": 2, "features_per_lane": 4, "lanes_per_vertex": 2}),
    (
        8,
        {
            "lanes_per_edge": 2,
            "features_per_lane": 4,
            "lanes_per_vertex": 32,
            "unroll": 2,
        },
    ),
    (
        8,
        {
            "lanes_per_edge": 4,
            "features_per_lane": 2,
            "vector_width": 2,
            "lanes_per_vertex": 8,
            "unroll": 3,
        },
    ),
    (
        8,
        {
            "lanes_per_edge": 8,
            "features_per_lane": 1,
            "vector_width": 1,
            "lanes_per_vertex": 32,
        },
    ),
    (8, {"lanes_per_edge": 1, "features_per_lane": 8, "lanes_per_vertex": 4}),
    (
        12,
        {
            "lanes_per_edge": 2,
            "features_per_lane": 8,
            "lanes_per_vertex": 16,
            "unroll": 4,
        },
    ),
]


@pytest.mark.parametrize(("k", "mapping"), FORCED)
def test_forced_mappings(k: int, mapping: dict[str, int]) -> None:
    forced = tuple(mapping.items())
    run = Run(BY_NAME["label_propagation"], k, mapping=forced, hubs=True, size=SMALL)
    chosen = run.kernels.plan.phases[0].mapping
    assert all(getattr(chosen, name) == value for name, value in forced)
    run.check()


@fn.gather(into="seen", combine="max")
def open_sources(f, u, v, e, d):
    if d.closed[u]:
        return fg.nothing
    return d.i[u, f]


@fn.vertex
def raise_(f, v, d):
    d.i_next[v, f] = max(d.i[v, f], d.seen[v, f] - d.step)
    return d.i_next[v, f] > d.i[v, f]


def raise_state(graph, k, rng):
    count = graph.vertex_count
    return {
        "i": vertex(signed(rng, count, k), True),
        "closed": vertex(rng.random(count) < 0.5),
        "step": scalar(2),
    }


RAISE = Case("raise", (open_sources, raise_), raise_state)


@fn.gather(into="most", combine="max")
def strongest(f, u, v, e, d):
    return d.w[e, f] * d.x[u, f]


@fn.vertex
def spread(f, v, d):
    d.x_next[v, f] = d.x[v, f] + d.most[v, f] * d.own[v, f]
    d.own[v, f] = d.own[v, f] * d.half
    return True


def spread_state(graph, k, rng):
    count = graph.vertex_count
    return {
        "x": vertex(floats(rng, count, k), True),
        "w": edge(floats(rng, graph.given_edge_count, k)),
        "own": vertex(floats(rng, count, k)),
        "half": scalar(0.5),
    }


def test_what_stands_behind_a_condition_is_not_loaded_before() -> None:
    run = Run(RAISE, 8)
    assert "load_row(d.i, uint32(u)" not in run.kernels.text
    assert "load_row(d.i, uint32(v)" in run.kernels.text
    run.check()


def test_rows_of_edges_and_what_a_function_writes() -> None:
    run = Run(Case("spread", (strongest, spread), spread_state), 8)
    text = run.kernels.text
    for load in ("load_row(d.w, e,", "load_row(d.x, uint32(u),"):
        assert load in text
    assert "store_row(d.x_next, uint32(v)," in text
    assert "store_row(d.own, uint32(v)," in text
    assert "load_row(d.own," not in text, "it is written in the same function"
    run.check()


def test_groups_within_a_lane_need_no_shuffle() -> None:
    run = Run(BY_NAME["pairs"], 8)
    assert "segment_sum" not in run.kernels.text
    run.check()


# Name, program, K, options, text, what stands in its place, what catches it.
FAULTS = [
    ("tail", "label_propagation", 12, {}, "min(lane * 4, 8)", "lane * 4", MemoryFault),
    (
        "column",
        "label_propagation",
        8,
        {},
        "load_row(d.label, uint32(u), uint32(f_0)",
        "load_row(d.label, uint32(u), uint32(0)",
        AssertionError,
    ),
    (
        "mask",
        "pagerank",
        8,
        {},
        "    if writer:\n        warp.store_row",
        "    if True:\n        warp.store_row",
        AssertionError,
    ),
    (
        "whole",
        "label_propagation",
        8,
        {"mapping": (("unroll", 2),)},
        "whole = int32(stop - 4)",
        "whole = int32(stop)",
        MemoryFault,
    ),
    (
        "rest",
        "label_propagation",
        8,
        {"mapping": (("unroll", 2),)},
        "while position < stop:",
        "while position < whole:",
        AssertionError,
    ),
    ("four", "label_propagation", 8, {}, "aggr_3, 2, 8)", "aggr_3, 2, 4)", None),
]


@pytest.mark.parametrize(
    ("name", "k", "options", "text", "instead", "error"),
    [pytest.param(*fault[1:], id=fault[0]) for fault in FAULTS],
)
def test_a_planted_fault_is_caught(
    name: str, k: int, options: dict[str, Any], text: str, instead: str, error: Any
) -> None:
    run = Run(BY_NAME[name], k, **options)
    planted = run.kernels.text.replace(text, instead)
    assert planted != run.kernels.text
    with pytest.raises(error or AssertionError):
        run.check(planted)


@pytest.mark.parametrize("place", ["0, 2, 8, 4", "0, 0, 4, 4", "0, 0, 8, 3"])
def test_the_emulator_refuses_what_is_not_aligned(place: str) -> None:
    rows = np.zeros((4, 8), np.float32)
    with pytest.raises((MemoryFault, AssertionError)):
        run(f"warp.load_row(a, {place})", rows)
