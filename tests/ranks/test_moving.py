"""Runs whose ranks get other vertices at any superstep: the same as on one rank."""

from __future__ import annotations

import gc
import pickle
import weakref
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph import algorithms as al
from featgraph.distributed import run_ranks
from featgraph.ranks.moving.moves import RankMoves, StateMover
from tests.bank import BANK
from tests.programs.common import BankProgram
from tests.ranks.forced import forced
from tests.ranks.test_options import GRAPHS, V, make_state, search, step
from tests.unit.test_checkpoints import RUNS, require_same, results_of

pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")


@st.composite
def cuts_of(draw: st.DrawFn, ranks: int, words: bool = True) -> list[int]:
    inner = st.lists(st.integers(0, V), min_size=ranks - 1, max_size=ranks - 1)
    cuts = [0, *sorted(draw(inner)), V]
    return [min((cut + 31) // 32 * 32, V) for cut in cuts] if words else cuts


@settings(max_examples=12, deadline=None)
@given(
    name=st.sampled_from(list(RUNS)),
    directed=st.booleans(),
    seed=st.integers(0, 3),
    ranks=st.integers(2, 4),
    order=st.sampled_from(["given", "spread"]),
    data=st.data(),
)
def test_a_run_that_moves_leaves_what_one_rank_leaves(
    name: str, directed: bool, seed: int, ranks: int, order: str, data: st.DataObject
) -> None:
    whole = GRAPHS[directed]
    wanted = results_of(whole, name, seed)
    first = data.draw(cuts_of(ranks, words=False))
    at = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    moves = {number: data.draw(cuts_of(ranks)) for number in at}

    def on_a_rank(engine: Any) -> list[Any]:
        graph = fg.distribute(whole, cuts=first, order=order)
        return results_of(graph, name, seed, repartition="auto")

    with forced(moves):
        for values in run_ranks(ranks, on_a_rank):
            require_same(values, wanted, name)


def values_of(program: BankProgram, graph: fg.Graph, **options: Any) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    state = fg.State(graph, **program.make_state(graph, program.widths[0], rng))
    run = fg.iterate(
        list(program.foldmaps), state, max_supersteps=5, target="cpu", **options
    )
    counts = run.active_counts if program.exact else []
    return {name: state[name] for name in state} | {"": np.array(counts)}


@pytest.mark.drawn(25)
@pytest.mark.parametrize(
    "program", [p for p in BANK if p.iterable], ids=lambda program: program.name
)
def test_a_program_of_the_bank_moves(program: BankProgram) -> None:
    seed = zlib.crc32(program.name.encode())
    rng = np.random.default_rng(seed)
    whole = fg.Graph.from_edges(
        *rng.integers(0, 45, (2, 120)),
        vertex_count=45,
        directed=not program.undirected,
    )
    moves = {1 + seed % 3: [0, 32, 32, 45], 4: [0, 0, 32, 45]}

    def on_a_rank(engine: Any) -> Any:
        graph = fg.distribute(whole, cuts=[0, 9, 32, 45])
        try:
            return values_of(program, graph, repartition="auto")
        except fg.PlanError:
            return None

    with forced(moves):
        found = run_ranks(3, on_a_rank)
    if found[0] is None:
        assert found == [None] * 3
        return
    wanted = values_of(program, whole)
    for values in found:
        assert values.keys() == wanted.keys()
        for name, value in wanted.items():
            if program.exact:
                np.testing.assert_array_equal(values[name], value, err_msg=name)
            else:
                np.testing.assert_allclose(
                    values[name], value, rtol=1e-4, atol=1e-5, err_msg=name
                )


def halves(cuts: list[int] | None = None) -> Any:
    return fg.distribute(GRAPHS[True], cuts=cuts or [0, 32, V])


def test_what_is_left_for_another_foldmap_moves() -> None:
    def left(graph: fg.Graph) -> list[Any]:
        state = make_state(graph, 1)
        kept = {"max_supersteps": 1, "target": "cpu"}
        fg.iterate(search, state, active=[3, 50], **kept)
        fg.iterate(search.on(np.arange(0, V, 3)), state, **kept)
        fg.iterate(step, state, max_supersteps=3, target="cpu", repartition="auto")
        run = fg.iterate(search, state, target="cpu")
        return [run.active_counts, state["y"], state["x"]]

    wanted = left(GRAPHS[True])
    with forced({2: [0, 64, V]}):
        for values in run_ranks(2, lambda _: left(halves())):
            np.testing.assert_equal(values, wanted)


def test_a_moved_state_is_of_another_graph() -> None:
    def on_a_rank(engine: Any) -> Any:
        graph = halves()
        state, other = make_state(graph, 0), make_state(graph, 1)
        early = fg.ActiveSet(V, [5, 40, 80])
        held = search(state, active_in=early, target="cpu")
        run = fg.iterate(
            step, state, max_supersteps=4, target="cpu", repartition="auto"
        )
        [made] = run.partitions
        assert (made.superstep, made.cuts.tolist()) == (2, [0, 64, V])
        assert (made.moved, made.expected_s, made.slowest_s) == (32, 1.0, 2.0)
        assert made.cost_s > 0
        assert state.graph is run.graph
        assert graph.own_vertices.size == [32, V - 32][engine.rank]
        own = state.graph.own_vertices
        assert own.tolist() == [*(range(64), range(64, V))[engine.rank]]
        np.testing.assert_array_equal(state.local("x"), state["x"][own])
        # States and sets that were made before the move can still be used.
        fg.iterate(step, other, max_supersteps=2, target="cpu")
        assert other.graph is graph
        again = search(state, active_in=held, target="cpu")
        assert pickle.loads(pickle.dumps(run)).graph is None
        return held.vertices, again.vertices, other["x"], state["x"]

    with forced({2: [0, 64, V]}):
        found = run_ranks(2, on_a_rank)
    np.testing.assert_equal(found[0], found[1])


def test_a_part_without_users_is_released() -> None:
    """Whatever has run on the State before, and was recorded."""

    def on_a_rank(engine: Any) -> None:
        graph = halves()
        state = make_state(graph, 0)
        search(state, target="cpu")
        gone = weakref.ref(graph.part)
        del graph
        run = fg.iterate(
            step, state, max_supersteps=4, target="cpu", record_active=True,
            repartition="auto",
        )  # fmt: skip
        gc.collect()
        assert len(run.partitions) == 1
        assert gone() is None

    with forced({2: [0, 64, V]}):
        run_ranks(2, on_a_rank)


def test_a_run_within_a_run_stays_where_that_one_is() -> None:
    def on_a_rank(engine: Any) -> None:
        graph = halves()
        state = make_state(graph, 0)

        def look(run: fg.Run, state: fg.State) -> None:
            inner = fg.iterate(
                search, state, max_supersteps=3, target="cpu", repartition="auto"
            )
            assert not inner.partitions

        fg.iterate(step, state, max_supersteps=3, target="cpu", callback=look)
        assert state.graph is graph

    with forced({1: [0, 64, V]}):
        run_ranks(2, on_a_rank)


def test_a_limit_of_moves() -> None:
    def moves(given: Any) -> int:
        state = make_state(halves(), 0)
        run = fg.iterate(step, state, max_supersteps=6, target="cpu", repartition=given)
        return len(run.partitions)

    with forced({1: [0, 64, V], 3: [0, 0, V], 5: [0, V, V]}):
        for given, count in ((False, 0), (None, 0), (1, 1), (2, 2), ("auto", 3)):
            assert run_ranks(2, lambda _, given=given: moves(given)) == [count] * 2


def test_rows_that_are_rounded_stay() -> None:
    def on_a_rank(engine: Any) -> int:
        state = make_state(halves(), 0)
        with pytest.raises(fg.PlanError, match="wire_dtype"):
            fg.iterate(
                step, state, target="cpu", repartition="auto", wire_dtype="float16"
            )
        return state.superstep

    assert run_ranks(2, on_a_rank) == [0, 0]


def test_sides_stay_where_they_are() -> None:
    whole = fg.Graph.from_edges([0, 1], [2, 3], directed=False, sides=(2, V - 2))

    def on_a_rank(engine: Any) -> None:
        state = make_state(fg.distribute(whole), 0)
        with pytest.raises(fg.PlanError, match="a range of each"):
            fg.iterate(step, state, target="cpu", repartition=1)

    run_ranks(2, on_a_rank)


@pytest.mark.parametrize("given", [True, 0, -1, 1.5, "always", "off"])
def test_what_is_no_number_of_moves_is_refused(given: Any) -> None:
    state = make_state(GRAPHS[True], 0)
    with pytest.raises(fg.ArgumentError, match="repartition="):
        fg.iterate(step, state, target="cpu", repartition=given)
    assert state.superstep == 0


def test_a_move_that_fails_leaves_the_state_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class FullError(Exception):
        pass

    def fail(self: Any, state: fg.State) -> None:
        raise FullError

    def on_a_rank(engine: Any) -> Any:
        state = make_state(halves(), 0)
        try:
            fg.iterate(step, state, max_supersteps=5, target="cpu", repartition=1)
        except FullError:
            failed = state.superstep
            fg.iterate(step, state, max_supersteps=3, target="cpu")
            return failed, state["x"], state["y"]
        raise AssertionError

    monkeypatch.setattr(StateMover, "move", fail)
    with forced({2: [0, 64, V]}):
        found = run_ranks(2, on_a_rank)
    alone = make_state(GRAPHS[True], 0)
    fg.iterate(step, alone, max_supersteps=5, target="cpu")
    for failed, x, y in found:
        assert failed == 2
        np.testing.assert_array_equal(x, alone["x"])
        np.testing.assert_array_equal(y, alone["y"])


def test_nothing_moves_what_is_not_in_parts() -> None:
    state = make_state(GRAPHS[True], 0)
    run = fg.iterate(step, state, max_supersteps=3, target="cpu", repartition="auto")
    assert (run.partitions, run.graph) == ([], None)


def test_hosts_share_their_ranges_anew_before_they_change_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranks on two hosts, by declared names; the last superstep is that of one rank."""
    count = 16 * 32
    rng = np.random.default_rng(2)
    whole = fg.Graph.from_edges(*rng.integers(0, count, (2, 4 * count)))
    # Seconds of a vertex, by its place: other ranges take other times.
    before = np.concatenate(
        ([0.0], np.cumsum(np.repeat([5.0, 1.0, 2.0, 2.0], count // 4)))
    )
    add = RankMoves.add

    def timed(self: RankMoves, seconds: Any) -> None:
        cuts = self._state.graph.shard.partition.cuts  # type: ignore[attr-defined]
        add(self, np.diff(before[cuts]))

    monkeypatch.setattr(RankMoves, "add", timed)

    def ranks_of(graph: fg.Graph) -> Any:
        return al.pagerank(
            graph, tol=0.0, max_supersteps=40, repartition="auto", target="cpu"
        )

    def on_a_rank(engine: Any) -> Any:
        even = np.arange(5) * (count // 4)
        result = ranks_of(fg.distribute(whole, cuts=even))
        return engine.host, result.run.partitions, result.ranks

    wanted = ranks_of(whole).ranks
    hosts = ["a", "a", "b", "b"]
    found = run_ranks(4, on_a_rank, hosts=hosts)
    assert [host for host, _, _ in found] == hosts
    for _, moves, ranks in found:
        assert [move.within_hosts for move in moves[:2]] == [True, False]
        assert moves[0].cuts[2] == count // 2 != moves[1].cuts[2]
        assert np.diff(before[moves[-1].cuts]).max() <= before[-1] / 4 / 0.9
        np.testing.assert_allclose(ranks, wanted, rtol=1e-6)
    # All on one host: there is nothing to stay within.
    _, moves, _ = run_ranks(4, on_a_rank)[0]
    assert moves[0].cuts[2] != count // 2
