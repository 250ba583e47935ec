"""Rows of extents on a GPU: the bank agrees with the interpreter, as with CSR."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph import reference
from tests.bank import BY_NAME, BankProgram
from tests.layouts.laid_out import laid_out
from tests.layouts.test_extents import CASES, KINDS, same_bits
from tests.reference.test_agreement import check_agreement
from tests.strategies import seeds

#: Programs take them in turn.
SCHEDULES: list[dict[str, Any]] = [
    {},
    {"feature_parallel": False},
    {"schedule": "warp_segmentation"},
    {"schedule": "virtual_warp", "lanes_per_vertex": 4},
]
#: Few vertices, and a hub.
VERTICES, EDGES, HUB_EDGES = 70, 500, 2300


def _graph(directed: bool, rng: np.random.Generator, hub: bool) -> fg.Graph:
    source, target = rng.integers(0, VERTICES, (2, EDGES))
    if hub:
        source = np.append(source, rng.integers(0, VERTICES, HUB_EDGES))
        target = np.append(target, np.full(HUB_EDGES, 3))
    return fg.Graph.from_edges(source, target, vertex_count=VERTICES, directed=directed)


def _in_turn() -> Iterator[Any]:
    for turn, case in enumerate(CASES):
        yield pytest.param(*case.values, SCHEDULES[turn % 4], id=case.id)


@pytest.mark.gpu
@pytest.mark.parametrize(("program", "kind", "k", "schedule"), list(_in_turn()))
def test_agrees(
    program: BankProgram, kind: str, k: int, schedule: dict[str, Any]
) -> None:
    options = {"target": "cuda", **KINDS[kind], **schedule}

    @settings(max_examples=4, phases=[Phase.generate])
    @given(seeds, st.booleans(), st.booleans())
    def agrees(seed: int, hub: bool, everywhere: bool) -> None:
        rng = np.random.default_rng(seed)
        graph = _graph(not program.undirected, rng, hub)
        other, foldmap = laid_out(graph, seed, "cuda"), program.foldmaps[0]
        values = program.make_state(graph, k, rng)
        state, laid = (fg.State(g, **copy.deepcopy(values)) for g in (graph, other))
        assert "extent_firsts" in foldmap.fold(laid, **options).source
        mask = None if everywhere else rng.random(VERTICES) < 0.5
        before = reference.from_state(state)
        outcome = reference.superstep(foldmap.program, *before, active=mask)
        here, there = (
            None if mask is None else fg.ActiveSet(g, mask) for g in (graph, other)
        )
        out = foldmap(state, active_in=here, **options)
        active_out = foldmap(laid, active_in=there, **options)
        exact = program.exact and (program.exact_at_hubs or not hub)
        held = replace(program, exact=exact)
        check_agreement(held, k, before[1], outcome, laid, active_out)
        if kind == "vertex":  # atomics come in any order
            same_bits(active_out.mask, out.mask, "active_out")
            for name in state:
                same_bits(laid[name], state[name], name)

    agrees()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [{}, {"change_driven": True}, {"schedule": "warp_segmentation"}],
    ids=["", "change-driven", "rows together"],
)
def test_a_run_has_the_same_bits(options: dict[str, Any]) -> None:
    """From superstep to superstep, with what is due behind each."""
    program, rng = BY_NAME["label_propagation"], np.random.default_rng(4)
    graph = _graph(True, rng, True)
    values = program.make_state(graph, 3, rng)
    laid = laid_out(graph, 5, "cuda")
    states = [fg.State(g, **copy.deepcopy(values)) for g in (graph, laid)]
    given = {"target": "cuda", "direction": "pull", **options}
    runs = [fg.iterate(program.foldmaps[0], s, **given) for s in states]
    assert runs[0].active_counts == runs[1].active_counts
    assert runs[0].supersteps > 2
    for name in states[0]:
        same_bits(states[1][name], states[0][name], name)
