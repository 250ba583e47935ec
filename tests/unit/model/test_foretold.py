"""A run beside what the model has of it, here and on other ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import featgraph as fg
from featgraph.algorithms import pagerank
from featgraph.graph.generators import uniform
from featgraph.graph.partition.partition import Partition
from featgraph.ranks.cost.foretold import foretell
from featgraph.ranks.cost.machine import H200


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
def test_a_run_teaches_what_it_takes_elsewhere() -> None:
    graph = uniform(2000, 30_000, seed=1)
    result = pagerank(
        graph, tol=0.0, max_supersteps=6, target="cpu", record_active=True
    )
    alone = foretell(graph, result.run, Partition([0, 2000]), (H200, "100g"))
    assert len(alone.times) == result.supersteps == 6
    # As if this machine took three times what an H200 does.
    slow = replace(alone, measured=3 * alone.uncorrected)
    found = slow.predicted(learn=2)
    assert np.isnan(found[:3]).all()
    assert found[3:] == pytest.approx(slow.measured[3:], rel=0.02)
    two = foretell(graph, result.run, Partition([0, 992, 2000]), (H200, "100g"))
    assert two.times[1].work.shape == (2,)
    assert two.times[1].latency > alone.times[1].latency == 0
    assert slow.elsewhere(two) == pytest.approx(3 * two.uncorrected, rel=0.02)


def test_waits_are_told_on_several_ranks_only() -> None:
    graph = uniform(100, 400, seed=1)
    assert pagerank(graph, target="cpu").run.waits == []

    def on_a_rank(_: object) -> tuple[int, list[float], list[float]]:
        run = pagerank(fg.distribute(graph), target="cpu").run
        return run.supersteps, run.waits, run.seconds

    for supersteps, waits, seconds in fg.distributed.run_ranks(2, on_a_rank):
        assert len(waits) == supersteps
        for wait, second in zip(waits, seconds, strict=True):
            assert 0 < wait < second
