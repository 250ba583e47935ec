"""Bytes that ranks send with each `exchange=`, and announcements."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.distributed import run_ranks
from featgraph.fold.plan.options import EXCHANGES
from featgraph.ranks.exchange.row_messages import FORMS
from tests.ranks.test_partitions import GRAPHS, V

EXCHANGE_OPTIONS = ("all", "ms", "vr", "vr-list", "auto")
K = 3


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):
    return d.label[u, f]


@fg.vertex
def adopt(f, v, d):
    d.label_next[v, f] = min(d.label[v, f], d.low[v, f])
    return fg.any_feature(d.low[v, f] < d.label[v, f])


@fg.gather(into="least", combine="min")
def least_bias(f, u, v, e, d):
    return d.bias[u]


@fg.vertex
def raise_bias(f, v, d):
    if f == 0:
        d.bias[v] = d.bias[v] + 1
    d.label_next[v, f] = d.label[v, f] + d.least[v]
    return v % 7 == d.turn


step = fg.foldmap(lowest, adopt)
in_place = fg.foldmap(least_bias, raise_bias)


def make_state(graph: fg.Graph) -> fg.State:
    rng = np.random.default_rng(3)
    return fg.State(
        graph,
        label=fg.vertex_property(
            rng.integers(0, 900, (V, K)).astype(np.int16), iterated=True
        ),
        bias=fg.vertex_property(rng.integers(0, 9, V)),
        turn=2,
    )


class Links:
    """Notes what a rank hands to each other as rows of ghosts, call by call."""

    def __init__(self, engine: Any) -> None:
        self.sizes: list[list[int]] = []
        self._engine, self._begin_bytes = engine, engine.begin_bytes
        engine.begin_bytes = self.begin_bytes

    def begin_bytes(self, sizes: Any, write: Any, read: Any, *, about: str = "") -> Any:
        before = self._engine.traffic.copy()
        begun = self._begin_bytes(sizes, write, read, about=about)
        counted = (self._engine.traffic - before).sent
        assert counted.tolist() == [
            size * (rank != self._engine.rank) for rank, size in enumerate(sizes)
        ]
        if about == "rows of ghosts":
            self.sizes.append(counted.tolist())
        return begun


def needed(graph: fg.Graph, owner: Any, sender: int, taker: int) -> Any:
    """Return the vertices of a rank that another has edges from: by definition."""
    ends = [(graph.sources, graph.targets), (graph.targets, graph.sources)]
    found = [u[(owner[u] == sender) & (owner[v] == taker)] for u, v in ends]
    return np.unique(np.concatenate(found))


@settings(max_examples=12, deadline=None)
@given(
    form=st.sampled_from(EXCHANGE_OPTIONS),
    directed=st.booleans(),
    inner=st.lists(st.integers(0, V), min_size=1, max_size=3).map(sorted),
    active=st.sampled_from([[0, 3, 40], [90], None]),
)
def test_a_link_carries_what_was_foretold(
    form: str, directed: bool, inner: list[int], active: Any
) -> None:
    whole, cuts = GRAPHS[directed], [0, *inner, V]
    ranks, row = len(cuts) - 1, 2 * K
    owner = np.searchsorted(cuts, np.arange(V), "right") - 1

    def on_a_rank(engine: Any) -> tuple[Any, Any, Any, Any]:
        graph, links = fg.distribute(whole, cuts=cuts), Links(engine)
        state = make_state(graph)
        run = fg.iterate(
            step, state, active=active, record_active=True, exchange=form, target="cpu"
        )
        sets = [found.mask for found in run.active_sets or ()]
        return links.sizes, sets, state["label"], run.forms

    alone = make_state(whole)
    meant = fg.iterate(step, alone, active=active, record_active=True, target="cpu")
    for rank, (sizes, sets, label, forms) in enumerate(run_ranks(ranks, on_a_rank)):
        np.testing.assert_array_equal(label, alone["label"])
        assert len(sizes) == len(sets) == meant.supersteps
        assert sum(forms.values()) == len(sizes) * (ranks - 1)
        assert set(forms) <= {"none", form} | set(FORMS if form == "auto" else ())
        for one, active_set, of_one in zip(
            sizes, sets, meant.active_sets or (), strict=True
        ):
            np.testing.assert_array_equal(active_set, of_one.mask)
            for taker, size in enumerate(one):
                wanted = needed(whole, owner, rank, taker)
                if taker == rank or not wanted.size:
                    assert size == 0
                    continue
                changed = int(active_set[wanted].sum())
                own = cuts[rank + 1] - cuts[rank]
                bits = -(-wanted.size // 8)
                partly = bits * (changed < wanted.size)
                foretold = {
                    "all": own * row + partly + 1,
                    "ms": wanted.size * row + partly + 1,
                    "vr": (changed * row + bits + 1) * (changed > 0),
                }
                # Gaps of at most 24 bits, a count and a code.
                most = (changed * row + 3 * changed + 5) * (changed > 0)
                if form in foretold:
                    assert size == foretold[form]
                elif form == "vr-list":
                    assert changed * row <= size <= most
                else:
                    assert changed * row <= size <= min(*foretold.values(), most)


@pytest.mark.drawn(6)
@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.parametrize("form", EXCHANGE_OPTIONS)
def test_rows_that_wait_go_in_the_form(form: str) -> None:
    whole = GRAPHS[True]

    def on_a_rank(engine: Any) -> Any:
        graph, links = fg.distribute(whole, cuts=[0, 40, V]), Links(engine)
        state = make_state(graph)
        run = fg.iterate(in_place, state, max_supersteps=3, exchange=form)
        return links.sizes, graph.shard, run.forms, state["bias"], state["label"]

    alone = make_state(whole)
    fg.iterate(in_place, alone, max_supersteps=3)
    for sizes, shard, forms, bias, label in run_ranks(2, on_a_rank):
        np.testing.assert_array_equal(bias, alone["bias"])
        np.testing.assert_array_equal(label, alone["label"])
        [listed] = [n.size for n in shard.send_lists if n.size]
        # Behind each superstep who committed; before the second one all rows.
        _, one, _, _, _ = (sum(row) for row in sizes)
        rows = 8 * (shard.own if form == "all" else listed)
        if form == "vr-list":
            assert one > rows + 1
        else:
            assert one == rows + 1 + (form == "vr") * -(-listed // 8)
        assert forms["ms" if form == "auto" else form] >= 1


def test_what_explain_shows_of_forms() -> None:
    assert set(EXCHANGES) == {"auto", *FORMS} - {"none"}
    whole = GRAPHS[True]
    with pytest.raises(fg.PlanError, match="exchange cannot be 'none'"):
        step(make_state(whole), exchange="none")
    alone = fg.iterate(step, make_state(whole), exchange="ms")
    assert not alone.forms
    assert "messages" not in alone.explain()

    def on_a_rank(engine: Any) -> list[str]:
        state = make_state(fg.distribute(whole, cuts=[0, 40, V]))
        folded = [
            step.explain(state, exchange=one, target="cpu") for one in EXCHANGE_OPTIONS
        ]
        return [fg.iterate(step, state, exchange="vr").explain(), *folded]

    for run, *texts in run_ranks(2, on_a_rank):
        assert "messages of rows to other ranks: " in run
        assert "as 'vr'" in run
        for form, text in zip(EXCHANGE_OPTIONS, texts, strict=True):
            assert (f"(exchange='{form}')" in text) == (form != "auto")


def test_a_run_goes_on_in_another_form(tmp_path: Any) -> None:
    whole = GRAPHS[False]

    def on_a_rank(engine: Any) -> Any:
        state = make_state(fg.distribute(whole, cuts=[0, 40, V]))
        for most, form in ((2, "all"), (1000, "vr")):
            run = fg.iterate(
                step, state, exchange=form, max_supersteps=most, checkpoint=tmp_path
            )
            state = make_state(fg.distribute(whole, cuts=[0, 40, V]))
        return run.supersteps

    alone = fg.iterate(step, make_state(whole)).supersteps
    with pytest.warns(fg.ConvergenceWarning):
        assert run_ranks(2, on_a_rank) == [alone, alone]


def test_bytes_by_form_are_in_order() -> None:
    """All is the most, then ms; what fits takes no more than any."""
    whole = GRAPHS[False]

    def on_a_rank(engine: Any) -> list[int]:
        found = []
        for form in EXCHANGE_OPTIONS:
            before = engine.traffic.copy()
            state = make_state(fg.distribute(whole, cuts=[0, 40, V]))
            fg.iterate(step, state, active=[0, 3], exchange=form)
            found.append(int((engine.traffic - before).sent.sum()))
        return found

    for every, listed, *changed in run_ranks(2, on_a_rank):
        assert every > listed > max(changed)
        assert changed[-1] == min(changed)
        assert prod(changed) > 0
