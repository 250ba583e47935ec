"""Shares of machines that differ: none is waited for, and none that gains nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.distributed import run_ranks
from featgraph.graph.generators import uniform
from featgraph.ranks.cost.machine import H200, Curve, Machine
from featgraph.ranks.cost.machine_shares import share_out
from featgraph.ranks.cost.times import Work, superstep_times
from featgraph.ranks.engines.links import LINKS, Link
from featgraph.runtime.streaming.needs import MOVING, buffers_in

CPU = Machine(
    "sixteen cores",
    pull=Curve.flat({1: 1e-10}),
    push=Curve.flat({1: 1e-10}),
    vertex=Curve.flat({1: 1e-11}),
    row=Curve.flat({1: 1e-10}),
    fixed_s=20e-6,
)
QUICK = Link.of("quick", 1e-6, 1e13)
INTO = np.full(1 << 16, 200)


def streaming(limit: int = 16 << 20) -> Machine:
    return H200.under(limit)


def test_edges_that_do_not_fit_come_over_the_link() -> None:
    edges, vertices = 100_000_000, 1 << 20
    alone = Work(*(np.array([n]) for n in (edges, vertices, 0, 0, 0, vertices)))
    whole = superstep_times(alone, H200, QUICK)
    limit = 200 << 20
    found = superstep_times(alone, H200.under(limit), QUICK)
    size, count = buffers_in(limit - 16 * vertices)
    copied = 4 * edges - (count - MOVING) * size
    swept = vertices * H200.vertex.at(1)
    assert found.compute[0] == pytest.approx(copied / 54e9 + swept)
    fits = superstep_times(alone, H200.under(4 * edges + 16 * vertices), QUICK)
    assert fits.compute[0] == whole.compute[0]


def test_each_rank_has_the_times_of_its_machine() -> None:
    both = Work(*(np.array([n, n]) for n in (1000, 100, 10, 10, 0, 110)))
    times = superstep_times(both, [H200, CPU], QUICK)
    for rank, machine in enumerate((H200, CPU)):
        own = superstep_times(both, machine, QUICK)
        assert times.compute[rank] == own.compute[rank]
        assert times.load[rank] == own.load[rank]
    assert times.fixed == max(H200.fixed_s, CPU.fixed_s)


def test_a_cpu_beside_a_gpu_that_streams_takes_what_it_can() -> None:
    found = share_out(INTO, [streaming(), CPU], QUICK)
    link, core = 4 / 54e9, 1e-10  # seconds of an edge
    assert found.cuts[1] / INTO.size == pytest.approx(core / (link + core), abs=0.02)
    assert found.seconds < 0.65 * found.alone_s


@pytest.mark.parametrize(
    ("machines", "link", "own"),
    [
        ([H200, CPU], LINKS["shared"], [1, 0]),
        ([CPU, H200], LINKS["shared"], [0, 1]),
        ([streaming(), CPU], Link.of("slow", 1.0, 1e3), [1, 0]),
        ([CPU, CPU], Link.of("slow", 1.0, 1e3), [1, 0]),
    ],
    ids=["in memory", "the other way", "a slow link", "alike"],
)
def test_who_gains_nothing_gets_none(
    machines: list[Machine], link: Link, own: list[int]
) -> None:
    found = share_out(INTO, machines, link)
    np.testing.assert_array_equal(np.diff(found.cuts), np.array(own) * INTO.size)
    assert found.seconds == found.alone_s


@settings(max_examples=20, deadline=None)
@given(
    speeds=st.lists(st.sampled_from([1e-10, 3e-10, 1e-9]), min_size=1, max_size=4),
    count=st.integers(1, 3000),
    seed=st.integers(0, 3),
)
def test_ranges_are_whole_and_no_rank_is_waited_for(
    speeds: list[float], count: int, seed: int
) -> None:
    none = Curve.flat({1: 0.0})
    machines = [
        replace(CPU, name=str(number), pull=Curve.flat({1: 1e3 * each}), vertex=none)
        for number, each in enumerate(speeds)
    ]
    into = np.random.default_rng(seed).integers(0, 50, count)
    found = share_out(into, machines, QUICK)
    assert found.cuts[0] == 0
    assert found.cuts[-1] == count
    assert (np.diff(found.cuts) >= 0).all()
    assert not (found.cuts[:-1] % 32)[found.cuts[:-1] < count].any()
    edges = np.diff(np.concatenate(([0], np.cumsum(into)))[found.cuts])
    each = 1e3 * np.array(speeds)
    even = edges.sum() / (1 / each[np.diff(found.cuts) > 0]).sum()
    # A word of vertices has at most 32 * 50 edges.
    assert (edges * each).max() <= even + 1600 * each.max() + 1e-9


def test_a_forecast_of_several_machines_says_who_is_idle() -> None:
    graph = uniform(1 << 12, 1 << 19, seed=1)
    ahead = fg.distributed.forecast(graph, [1, 2], on=([H200, CPU], "shared"))
    assert [row["idle"] for row in ahead.rows()] == ["-", "1"]
    slow = replace(H200, stream_s=1e-8).under(1 << 20)
    ahead = fg.distributed.forecast(graph, [2], on=([slow, CPU], QUICK))
    [row] = ahead.rows()
    assert row["idle"] == "-"
    assert float(row["quick ms"]) > 0
    with pytest.raises(fg.FeatGraphError, match="each rank has a machine"):
        fg.distributed.forecast(graph, [3], on=([H200, CPU], "shared"))
    with pytest.raises(fg.FeatGraphError, match="not a machine and links"):
        fg.distributed.forecast(graph, [1], on=([], "shared"))


def test_a_graph_is_cut_by_the_machine_of_each_rank() -> None:
    whole = uniform(1 << 12, 1 << 19, seed=1)
    slow = replace(H200, stream_s=1e-9, links=(QUICK,)).under(1 << 20)
    wanted = share_out(np.asarray(whole.in_degree), [slow, CPU], QUICK).cuts

    def on_a_rank(engine: Any) -> Any:
        graph: Any = fg.distribute(whole, cuts=[slow, CPU][engine.rank])
        return graph.shard.partition.cuts.tolist()

    assert run_ranks(2, on_a_rank) == [wanted.tolist()] * 2
    assert 0 < wanted[1] < 1 << 12


def test_machines_of_a_graph_with_sides_are_refused_on_all_ranks() -> None:
    from featgraph.graph.generators import ratings

    whole = ratings(64, 32, 300, seed=1)

    def on_a_rank(engine: Any) -> None:
        with pytest.raises(fg.GraphInputError, match="ranges by the machines of ranks"):
            fg.distribute(whole, cuts=CPU)

    run_ranks(2, on_a_rank)
