"""Full collections wait while ranks run supersteps: others would wait for them."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

import featgraph as fg
from featgraph.base.interrupts import _RARER, rare_collections
from featgraph.distributed import run_ranks


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 7)
    yield gc.get_threshold()
    gc.set_threshold(*before)


def test_young_objects_are_collected_as_before(thresholds: tuple[int, ...]) -> None:
    young, middle, old = thresholds
    with rare_collections:
        assert gc.get_threshold() == (young, middle, _RARER * old)
        with rare_collections:  # ranks of a process have one collector
            pass
        assert gc.get_threshold() == (young, middle, _RARER * old)
    assert gc.get_threshold() == thresholds


def test_a_failure_brings_them_back(thresholds: tuple[int, ...]) -> None:
    with pytest.raises(KeyError), rare_collections:
        raise KeyError
    assert gc.get_threshold() == thresholds


def test_what_a_callback_has_set_stays() -> None:
    with rare_collections:
        gc.set_threshold(0)
    assert gc.get_threshold()[0] == 0


@fg.gather(into="most", combine="max")
def most_around(f, u, v, e, d):
    return d.x[u]


@fg.vertex
def take_most(f, v, d):
    d.x_next[v] = max(d.x[v], d.most[v])
    return d.most[v] > d.x[v]


@pytest.mark.parametrize("ranks", [0, 2])
def test_runs_of_ranks_have_few(ranks: int, thresholds: tuple[int, ...]) -> None:
    ends, seen = np.arange(9), []
    whole = fg.Graph.from_edges(ends, ends + 1)

    def on_a_rank(engine: object) -> None:
        graph = fg.distribute(whole) if ranks else whole
        state = fg.State(
            graph, x=fg.vertex_property(np.arange(10)[::-1], iterated=True)
        )
        fg.iterate(
            fg.foldmap(most_around, take_most), state, target="cpu",
            callback=lambda run, state: seen.append(gc.get_threshold()[2]),
        )  # fmt: skip

    if ranks:
        run_ranks(ranks, on_a_rank)
    else:
        on_a_rank(None)
    assert set(seen) == {thresholds[2] * (_RARER if ranks else 1)}
    assert gc.get_threshold() == thresholds
