"""States that are saved on some ranks and loaded on others, and written by views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.distributed import run_ranks
from featgraph.ranks import graph
from tests.ranks.test_options import GRAPHS, V, search, step

pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
WITHIN = np.arange(0, V, 2)


def make_state(graph: fg.Graph) -> fg.State:
    rng = np.random.default_rng(4)
    edges = graph.given_edge_count * (1 if graph.directed else 2)
    return fg.State(
        graph,
        x=fg.vertex_property(rng.integers(0, 9, V), iterated=True),
        y=fg.vertex_property(rng.integers(0, 99, V), iterated=True),
        weight=fg.vertex_property(rng.integers(0, 9, V) / 2, iterated=True),
        step=fg.edge_property(rng.integers(1, 5, graph.given_edge_count)),
        length=fg.edge_property(rng.random((edges, 3)).astype(np.float32)),
        wide=fg.vertex_property(rng.random((V, 2)) < 0.5),
        base=1,
        table=rng.random(4),
    )


def begin(graph: fg.Graph) -> fg.State:
    """Return a State with something due."""
    state = make_state(graph)
    fg.iterate(step, state, max_supersteps=2)
    fg.iterate(search.on(WITHIN), state, active=[4, 50], max_supersteps=1)
    return state


def go_on(state: fg.State) -> list[Any]:
    run = fg.iterate([search, step], state, max_supersteps=6, record_active=True)
    assert run.active_sets is not None
    found = [found.mask for found in run.active_sets]
    return [run.active_counts, state.superstep, *found, *(state[n] for n in state)]


@fg.vertex
def mark(f, v, d):
    d.base_of[v] = d.x[v] + 1
    return True


@fg.gather(into="most", combine="max")
def marks(f, u, v, e, d):
    return d.base_of[u]


@fg.vertex
def take(f, v, d):
    d.y_next[v] = d.most[v]
    return True


marking, taking = fg.vertexmap(mark), fg.foldmap(marks, take)


def require_same(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_array_equal(one, other, err_msg=f"the value at {place}")


CUTS = st.lists(st.integers(0, V), max_size=2).map(sorted)


@settings(max_examples=12, deadline=None)
@given(
    directed=st.booleans(),
    inner=st.tuples(CUTS, CUTS),
    orders=st.tuples(*[st.sampled_from(["given", "spread"])] * 2),
    piece=st.sampled_from([1, 300, 1 << 24]),
)
def test_saved_on_some_ranks_and_loaded_on_others(
    tmp_path_factory: pytest.TempPathFactory,
    directed: bool,
    inner: tuple[list[int], list[int]],
    orders: tuple[str, str],
    piece: int,
) -> None:
    whole, folder = GRAPHS[directed], tmp_path_factory.mktemp("saved")
    (before, after), (first, second) = inner, orders

    def save(engine: Any) -> None:
        graph = fg.distribute(whole, order=first, cuts=[0, *before, V])
        state = begin(graph)
        for _ in range(2):  # the second time over the first one
            state.save(folder / "state")

    def load(engine: Any) -> list[Any]:
        graph = fg.distribute(whole, order=second, cuts=[0, *after, V])
        return go_on(fg.State.load(folder / "state", graph))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "PIECE_BYTES", piece)
        run_ranks(len(before) + 1, save)
    begun = begin(whole)
    begun.save(folder / "alone")
    assert sizes(folder / "state") == sizes(folder / "alone")
    wanted = go_on(begun)
    for found in run_ranks(len(after) + 1, load):
        require_same(found, wanted)


def sizes(folder: Path) -> list[int]:
    return sorted(file.stat().st_size for file in folder.glob("*.npy"))


def test_a_write_that_fails_is_raised_on_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first file, at a later one, and where something else is there."""
    from featgraph.base import files

    written = files._write

    def fail_at(number: int) -> Any:
        left = [number]

        def write(*given: Any) -> int:
            left[0] -= 1
            if not left[0]:
                raise OSError("no space")
            return written(*given)

        return write

    def on_a_rank(engine: Any) -> str:
        state = begin(fg.distribute(GRAPHS[True]))
        kinds = (OSError, fg.StateError, fg.DistributedError)
        with pytest.raises(kinds) as caught:
            state.save(tmp_path / "state")
        state.save(tmp_path / f"other {engine.size}")  # ranks are together
        return str(caught.value)

    for number in (1, 5):
        monkeypatch.setattr(files, "_write", fail_at(number))
        found = run_ranks(3, on_a_rank)
        assert found[0] == "no space"
        assert all("rank 0: OSError: no space" in text for text in found[1:])
        assert not (tmp_path / "state").exists()
    (tmp_path / "state").write_text("mine")
    assert "other files" in run_ranks(2, on_a_rank)[1]


def test_a_file_that_one_rank_cannot_read(tmp_path: Path) -> None:
    begin(GRAPHS[True]).save(tmp_path / "state")

    def on_a_rank(engine: Any) -> str:
        name = "state" if engine.rank else "none"
        graph = fg.distribute(GRAPHS[True])
        with pytest.raises(fg.FeatGraphError) as caught:
            fg.State.load(tmp_path / name, graph)
        return str(caught.value)

    mine, other = run_ranks(2, on_a_rank)
    assert "not a saved State" in mine
    assert "as rank 0 found" in other


def test_what_is_written_through_views_reaches_ghosts() -> None:
    whole = GRAPHS[True]

    def run(graph: fg.Graph) -> list[Any]:
        state = make_state(graph)
        results: list[Any] = []
        for number in range(3):
            view = np.asarray(state.view("x"))
            own = view[: len(view) if graph.ranks is None else graph.shard.own]
            own *= 3 + number
            state.touch("x")
            fg.iterate(step, state, max_supersteps=2)
            results += [state[name] for name in state]
        return results

    wanted = run(whole)
    for found in run_ranks(3, lambda _: run(fg.distribute(whole, order="spread"))):
        require_same(found, wanted)


def test_a_copy_has_what_has_not_been_sent_yet() -> None:
    whole = GRAPHS[True]

    def run(graph: fg.Graph) -> list[Any]:
        state = fg.State(
            graph,
            x=fg.vertex_property(np.arange(V)[::-1]),
            y=fg.vertex_property(0, iterated=True),
            base_of=fg.vertex_property(0),
        )
        marking(state)
        copy = state.copy()
        taking(copy)
        taking(state)
        return [copy["y"], state["y"]]

    wanted = run(whole)
    for found in run_ranks(3, lambda _: run(fg.distribute(whole, order="spread"))):
        require_same(found, wanted)
