"""Rows that are sent while others are swept: the bits of one rank, whatever is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.distributed import run_ranks
from featgraph.fold.plan.options import EXCHANGES
from featgraph.ranks.exchange.ghosts import Choice
from tests.ranks import test_options, test_partitions
from tests.ranks.forced import cut, forced
from tests.ranks.test_forms import Links
from tests.ranks.test_partitions import GRAPHS, V, ageing, expected, require_same

PIECES = st.sampled_from([1, 40, 200, 1 << 20])
INNER = st.lists(st.integers(0, V), max_size=3).map(sorted)
ORDERS = st.sampled_from(["given", "spread", "locality", "reversed"])
COMES = st.sampled_from(["first", "last"])


def order_of(name: str, count: int = V) -> Any:
    return np.arange(count)[::-1] if name == "reversed" else name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@settings(max_examples=4, deadline=None)
@given(
    directed=st.booleans(),
    seed=st.integers(0, 2),
    inner=INNER,
    order=ORDERS,
    form=st.sampled_from(EXCHANGES),
    piece_bytes=PIECES,
    comes=COMES,
)
def test_the_same_bits_in_any_pieces(
    target: str,
    directed: bool,
    seed: int,
    inner: list[int],
    order: str,
    form: str,
    piece_bytes: int,
    comes: str,
) -> None:
    cuts = [0, *inner, V]

    def on_a_rank(engine: Any) -> list[Any]:
        graph = fg.distribute(GRAPHS[directed], order=order_of(order), cuts=cuts)
        return test_partitions.run(graph, seed, target, form, overlap=True)

    with cut(piece_bytes, comes):
        for found in run_ranks(len(cuts) - 1, on_a_rank):
            require_same(found, expected(directed, seed, target))


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.parametrize("call", [test_options.keep, test_options.settle])
@settings(max_examples=2, deadline=None)
@given(
    directed=st.booleans(),
    seed=st.integers(0, 2),
    inner=st.lists(st.integers(0, test_options.V), max_size=3).map(sorted),
    order=ORDERS,
    piece_bytes=PIECES,
    comes=COMES,
)
def test_options_give_the_same_in_pieces(
    call: Any,
    directed: bool,
    seed: int,
    inner: list[int],
    order: str,
    piece_bytes: int,
    comes: str,
) -> None:
    cuts, whole = [0, *inner, test_options.V], test_options.GRAPHS[directed]
    meant = call(whole, seed)

    def on_a_rank(engine: Any) -> list[Any]:
        order_given = order_of(order, test_options.V)
        return call(fg.distribute(whole, order=order_given, cuts=cuts), seed)  # type: ignore[no-any-return]

    with cut(piece_bytes, comes), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Choice, "take", lambda self, _, may_pay: self.best is None)
        for found in run_ranks(len(cuts) - 1, on_a_rank):
            require_same(found, meant)


def aged(graph: fg.Graph, **options: Any) -> tuple[fg.Run, Any]:
    rng = np.random.default_rng(1)
    ages = rng.integers(0, 4, V)
    state = fg.State(graph, age=fg.vertex_property(ages, iterated=True))
    run = fg.iterate(ageing, state, **{"target": "cpu", **options})
    return run, state["age"]


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.parametrize("overlap", ["auto", True])
def test_ranks_that_follow_send_nothing(overlap: Any) -> None:
    whole = GRAPHS[True]
    wanted = aged(whole)[1]

    def on_a_rank(engine: Any) -> Any:
        graph = fg.distribute(whole, cuts=[0, V, V])
        return [aged(graph, overlap=overlap) for _ in range(3)]

    with cut(50):
        for runs in run_ranks(2, on_a_rank):
            for run, ages in runs:
                assert not any(run.pieces)
                np.testing.assert_array_equal(ages, wanted)


def test_moves_between_supersteps_in_pieces() -> None:
    whole = GRAPHS[True]
    wanted = aged(whole)[1]

    def on_a_rank(engine: Any) -> Any:
        graph = fg.distribute(whole, cuts=[0, 32, V])
        run, ages = aged(graph, overlap=True, repartition="auto")
        return len(run.partitions), run.pieces, ages

    with cut(1), forced({1: [0, 64, V], 2: [0, 32, V]}):
        for moves, pieces, ages in run_ranks(2, on_a_rank):
            assert moves == 2
            assert all(pieces)
            np.testing.assert_array_equal(ages, wanted)


def test_what_a_run_reports() -> None:
    whole = GRAPHS[True]
    alone, wanted = aged(whole, overlap=True)
    assert alone.pieces == []

    def on_a_rank(engine: Any) -> Any:
        graph = fg.distribute(whole, cuts=[0, 64, V])
        results = []
        for overlap in (True, False, "auto"):
            before = engine.exchanges
            run, ages = aged(graph, overlap=overlap)
            np.testing.assert_array_equal(ages, wanted)
            results.append((run.pieces, run.explain(), engine.exchanges - before))
        return results

    with cut(64):
        for pieces, whole_one, measured in run_ranks(2, on_a_rank):
            assert set(pieces[0]) == {7}  # of 63 rows of 8 bytes
            assert "rows sent while others were swept" in pieces[1]
            assert not any(whole_one[0])
            assert "swept" not in whole_one[1]
            assert pieces[2] > whole_one[2]
            assert len(measured[0]) == len(whole_one[0])


def test_nothing_is_sent_twice() -> None:
    step = fg.foldmap(lowest, near, greatest)

    def on_a_rank(engine: Any) -> Any:
        graph, links = fg.distribute(GRAPHS[True], cuts=[0, 40, V]), Links(engine)
        labels = fg.vertex_property(np.arange(V) * 7 % V, iterated=True)
        run = fg.iterate(step, fg.State(graph, label=labels), overlap=True)
        return links.sizes, run.pieces

    with cut(1):
        for whole_messages, pieces in run_ranks(2, on_a_rank):
            assert not whole_messages
            assert all(pieces)


def test_small_messages_are_not_measured() -> None:
    def on_a_rank(engine: Any) -> Any:
        graph = fg.distribute(GRAPHS[True], cuts=[0, 40, V])
        aged(graph, overlap=False)  # targets are told once
        counts = []
        for overlap in ("auto", False):
            before = engine.exchanges
            aged(graph, overlap=overlap)
            counts.append(engine.exchanges - before)
        return counts

    for auto, without in run_ranks(2, on_a_rank):
        assert auto == without


class Slower:
    """An engine on which another rank took as much longer."""

    def __init__(self, slower: Any) -> None:
        self.slower, self.calls = np.array(slower), 0

    def all_reduce(self, array: Any, operator: str, *, about: str) -> Any:
        assert operator == "max"
        self.calls += 1
        return np.maximum(array, self.slower)


@pytest.mark.parametrize(
    ("took", "others", "best"),
    [
        ({False: 10.0, True: 8.0}, [0.0, 0.0], True),
        ({False: 10.0, True: 9.9}, [0.0, 0.0], False),
        ({False: 10.0, True: 8.0}, [0.0, 11.0], False),
        ({False: 10.0, True: 8.0}, [12.0, 11.0], True),
    ],
)
def test_the_faster_way_is_kept(took: Any, others: list[float], best: bool) -> None:
    engine: Any = Slower(others)
    clock = [0.0]
    choice, tried = Choice("auto", engine), []
    while choice.best is None:
        assert not choice.take(lambda: clock[0], may_pay=False)
        choice.end(lambda: clock[0], lambda: 5.0)
        tried.append(choice.take(lambda: clock[0], may_pay=True))
        clock[0] += took[tried[-1]] + (100.0 if len(tried) in (1, 3) else 0.0)
        choice.end(lambda: clock[0], lambda: 5.0)
    assert sorted(set(tried)) == [False, True]
    assert choice.best is best
    assert choice.take(lambda: clock[0], may_pay=True) is best
    assert not choice.take(lambda: clock[0], may_pay=False)
    assert engine.calls == 2


@pytest.mark.parametrize(
    ("wire", "others", "goes_on"),
    [(0.2, [0.0, 0.0], False), (0.4, [0.0, 0.0], True), (0.2, [0.0, 0.4], True),
     (0.4, [20.0, 0.0], False)],
)  # fmt: skip
def test_what_cannot_pay_is_not_tried(
    wire: float, others: list[float], goes_on: bool
) -> None:
    """Of 10 seconds 0.3 are 3 %: nothing is gained by hiding less."""
    engine: Any = Slower(others)
    clock = [0.0]
    choice = Choice("auto", engine)
    for _ in range(2):
        assert choice.take(lambda: clock[0], may_pay=True) is False
        clock[0] += 10.0
        choice.end(lambda: clock[0], lambda: wire)
    assert choice.best is (None if goes_on else False)
    assert choice.take(lambda: clock[0], may_pay=True) is goes_on


def test_a_superstep_that_fails_is_not_counted() -> None:
    """Ranks fail in different places: what they have tried must stay the same."""
    choice = Choice("auto", Slower([0.0, 0.0]))  # type: ignore[arg-type]
    for _ in range(9):
        assert not choice.take(lambda: 0.0, may_pay=True)  # the first of those tried
        choice.forget()
        assert not choice.take(lambda: 0.0, may_pay=False)
        choice.end(lambda: 1.0, lambda: 1.0)
    assert choice.best is None


def test_later_runs_go_on_with_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    begin = Choice.__init__

    def begun(self: Choice, choice: Any, engine: Any) -> None:
        made.append((engine.rank, choice))
        begin(self, choice, engine)

    monkeypatch.setattr(Choice, "__init__", begun)

    def on_a_rank(engine: Any) -> None:
        graph = fg.distribute(GRAPHS[True], cuts=[0, 64, V])
        for _ in range(3):
            aged(graph, overlap="auto")

    run_ranks(2, on_a_rank)
    assert sorted(made) == [(0, "auto"), (1, "auto")]


@fg.vertex
def near(f, v, d):
    d.label_next[v] = min(d.label[v], d.low[v])
    return d.low[v] < d.label[v]


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):
    return d.label[u]


@fg.reduce(into="greatest", combine="max")
def greatest(f, v, d):
    return d.label[v]


@fg.vertex
def halve(f, v, d):
    d.label_next[v] = d.label[v] // 2
    return d.label[v] > 1


@fg.edge
def pass_on(f, u, v, e, d):
    return d.label[u] < d.label[v]


@fg.vertex
def count_around(f, v, d):
    fg.atomic.add(d.seen, d.pick[v], 1)
    d.label_next[v] = min(d.label[v], d.low[v])
    return d.low[v] < d.label[v]


@pytest.mark.parametrize(
    ("step", "options", "text"),
    [
        (fg.foldmap(lowest, near), {}, "rows of label go piece by piece"),
        (fg.foldmap(lowest, near), {"overlap": False}, "none (overlap=False)"),
        (fg.foldmap(lowest, near), {"exchange": "all"}, "is one message"),
        (fg.foldmap(lowest, near), {"asynchronous": True}, "values that others commit"),
        (fg.foldmap(lowest, near), {"direction": "push"}, "while phase 1 sweeps"),
        (fg.foldmap(pass_on), {"overlap": True}, "behind all edges"),
        (fg.foldmap(lowest, count_around), {}, "atomic operations"),
        (fg.vertexmap(halve), {"overlap": True}, "no row is sent"),
    ],
)
def test_where_sweeps_are_cut(step: Any, options: Any, text: str) -> None:
    def on_a_rank(engine: Any) -> str:
        state = fg.State(
            fg.distribute(GRAPHS[True], cuts=[0, 40, V]),
            label=fg.vertex_property(np.arange(V), iterated=True),
            seen=fg.vertex_property(0),
            pick=fg.vertex_property(np.zeros(V, np.int64)),
        )
        return str(step.explain(state, target="cpu", **options))

    for explained in run_ranks(2, on_a_rank):
        [line] = [line for line in explained.splitlines() if "overlap: " in line]
        assert text in line


def test_values_of_the_option() -> None:
    with pytest.raises(fg.PlanError, match="overlap cannot be 'on'"):
        aged(GRAPHS[True], overlap="on")
