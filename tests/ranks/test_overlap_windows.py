"""Pieces of sweeps on ranks of an emulated GPU: their bits, and waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph import algorithms as al
from featgraph.base.config import config
from featgraph.cuda import dialect
from featgraph.distributed import run_ranks
from featgraph.ranks.exchange.gpu_transport import GpuTransport

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from tests.ranks.forced import cut, loops
from tests.ranks.test_partitions import ageing
from tests.simt.gpu import Gpu, Streams

pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
V = 70


def make_graph(directed: bool = True) -> fg.Graph:
    ends = np.random.default_rng(3).integers(0, V - 3, (2, 90))
    return fg.Graph.from_edges(*ends, vertex_count=V, directed=directed)


def aged(graph: fg.Graph, target: str, **options: Any) -> tuple[fg.Run, Any]:
    ages = np.random.default_rng(1).integers(0, 4, V)
    state = fg.State(graph, age=fg.vertex_property(ages, iterated=True))
    options = {"max_supersteps": 2, "record_active": True, **options}
    return fg.iterate(ageing, state, target=target, **options), state["age"]


@settings(max_examples=1, deadline=None)
@given(
    directed=st.booleans(),
    inner=st.lists(st.integers(0, V), min_size=1, max_size=2).map(sorted),
    piece_bytes=st.sampled_from([200, 1, 100]),
    supersteps=st.integers(2, 4),
)
def test_windows_give_the_same_bits_in_pieces(
    gpu: Gpu, directed: bool, inner: list[int], piece_bytes: int, supersteps: int
) -> None:
    whole, cuts = make_graph(directed), [0, *inner, V]
    meant, wanted = aged(whole, "cpu", max_supersteps=supersteps)

    def on_a_rank(engine: Any) -> Any:
        graph = fg.distribute(whole, cuts=cuts)
        run, ages = aged(graph, "cuda", overlap=True, max_supersteps=supersteps)
        return run, ages, [found.mask for found in run.active_sets or ()]

    with cut(piece_bytes):
        for run, ages, sets in run_ranks(len(cuts) - 1, on_a_rank):
            assert all(run.pieces)
            assert run.active_counts == meant.active_counts
            np.testing.assert_array_equal(ages, wanted)
            for one, other in zip(sets, meant.active_sets or (), strict=True):
                np.testing.assert_array_equal(one, other.mask)


def test_supersteps_in_pieces_run_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the bits and the number of pieces of runs by the host."""
    whole = make_graph()

    def on_a_rank(engine: Any) -> Any:
        graph = fg.distribute(whole, cuts=[0, 32, V])
        options: Any = {"tol": 0.0, "max_supersteps": 9, "overlap": True}
        found = al.pagerank(graph, target="cuda", **options)
        return found.run.pieces, found.local("ranks")

    with cut(40), loops() as made:
        looped = run_ranks(2, on_a_rank)
        assert sum(loop.ran for loop in made.loops) >= 6
        operations = [
            o[0] for loop in made.loops for w, _ in loop.supersteps for o in w
        ]
        assert operations.count("hold") > operations.count("mark") / 2 > 0
        monkeypatch.setattr(config, "replay", False)
        by_host = run_ranks(2, on_a_rank)
    for (pieces, ranks), (meant, wanted) in zip(looped, by_host, strict=True):
        assert pieces == meant
        assert len(pieces) == 9
        assert min(pieces) > 1
        np.testing.assert_array_equal(ranks, wanted)


@pytest.mark.slow
@pytest.mark.drawn(8)
@pytest.mark.parametrize("cuts", [[0, 32, V], [0, 5, 40, V]])
def test_what_is_measured_is_not_recorded(
    gpu: Gpu, cuts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # An emulated sweep takes longer than rows would on any wire.
    monkeypatch.setattr(GpuTransport, "wire_s", lambda self, row_bytes: 1e9)
    whole = make_graph()
    wanted = aged(whole, "cpu", max_supersteps=9)[1]

    def on_a_rank(engine: Any) -> Any:
        graph = fg.distribute(whole, cuts=cuts)
        return [aged(graph, "cuda", max_supersteps=9) for _ in range(2)]

    with cut(200):
        for runs in run_ranks(len(cuts) - 1, on_a_rank):
            assert any(any(run.pieces) for run, _ in runs)
            for _, ages in runs:
                np.testing.assert_array_equal(ages, wanted)


def test_posts_wait_for_sweeps_and_all_for_what_comes(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each rank: a post behind what was swept, a take behind it, then the rest."""
    calls: list[tuple[Any, ...]] = []
    mark, hold, launch = Streams.mark, Streams.hold, Gpu.launch

    def marks(self: Streams, event: Any, stream: int) -> None:
        calls.append(("mark", stream, id(event)))
        mark(self, event, stream)

    def holds(self: Streams, stream: int, event: Any) -> None:
        calls.append(("hold", stream, id(event)))
        hold(self, stream, event)

    def launches(self: Gpu, handle: Any, *rest: Any) -> None:
        where = int(rest[2].handle) if rest[2] else 0
        calls.append((handle[0].py_func.__name__, where))
        launch(self, handle, *rest)

    monkeypatch.setattr(Streams, "mark", marks)
    monkeypatch.setattr(Streams, "hold", holds)
    monkeypatch.setattr(Gpu, "launch", launches)
    whole = make_graph()

    def on_a_rank(engine: Any) -> Any:
        graph = fg.distribute(whole, cuts=[0, 32, V])
        aged(graph, "cuda", overlap=True, max_supersteps=1)  # first ones are compiled
        engine.barrier()
        if engine.rank == 0:
            calls.clear()
        return aged(graph, "cuda", overlap=True, max_supersteps=1)[0].pieces

    with cut(40):
        for pieces in run_ranks(2, on_a_rank):
            assert pieces[0] > 1
    sides = {one[1] for one in calls if one[0] == "post" and one[1]}
    assert len(sides) == 2  # of each rank one
    for side in sides:
        own = [one for one in calls if one[1] in (0, side)]
        at = [n for n, one in enumerate(own) if one[:2] == ("post", side)]
        for post in at:
            assert own[post - 1][:2] == ("hold", side)
            assert ("mark", 0, own[post - 1][2]) in own[:post]
        order = [one[0] for one in own if one[0] in ("post", "take") and one[1] == side]
        # One block waits, then as many as there are rows for take them.
        assert order == ["post", "take", "take"] * len(at)
        last = max(n for n, one in enumerate(own) if one[:2] == ("take", side))
        behind = [one[:2] for one in own[last:]]
        assert behind.index(("mark", side)) < behind.index(("hold", 0))
