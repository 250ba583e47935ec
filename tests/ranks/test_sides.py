"""Graphs of sides that are given, drawn, read and cut in parts: each side by itself."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import featgraph as fg
from featgraph.algorithms import (
    AlternatingLeastSquares,
    als,
    gradient_factorization,
    label_propagation,
)
from featgraph.distributed import run_ranks
from featgraph.graph import ratings
from featgraph.graph.formats.convert import write_graph
from featgraph.ranks.loading import build, chunks, rows
from tests.ranks.test_loading import errors_of, require_equal

# Loopback ranks take turns within `warnings.catch_warnings`.
pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")


@pytest.fixture(autouse=True)
def few_edges_are_many_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (chunks, build):
        monkeypatch.setattr(module, "ROUND_EDGES", 40)
    monkeypatch.setattr(rows.HostRows, "round_edges", 40)
    monkeypatch.setattr("featgraph.graph.slices.files.BLOCK_BYTES", 64)


@st.composite
def sided_edges(draw: st.DrawFn) -> dict[str, Any]:
    """Draw edges between sides, the first and others or any two; some are popular."""
    sides = tuple(draw(st.lists(st.sampled_from([1, 2, 31, 33, 70]), max_size=3)))
    sides = (draw(st.sampled_from([1, 40, 65])), *sides)
    size = draw(st.sampled_from([0, 1, 90, 400]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    u = (sides[0] * rng.random(size) ** 2).astype(np.int64)
    v = sum(sides) - 1 - (sum(sides[1:]) * rng.random(size) ** 3).astype(np.int64)
    if draw(st.booleans()):
        u, v = rng.integers(0, sum(sides), (2, size))
    of_u, of_v = (np.searchsorted(np.cumsum(sides), end, "right") for end in (u, v))
    u, v = u[of_u != of_v], v[of_u != of_v]
    size = u.size
    weights = rng.random(size) if draw(st.booleans()) else None
    return {"sources": u, "targets": v, "weights": weights, "sides": sides,
            "directed": draw(st.booleans())}  # fmt: skip


def require_part_of(made: Any, graph: fg.Graph, along: str, **how: Any) -> None:
    """Hold a graph in parts to the shards that the whole is cut into."""
    shard, meant = made.shard, graph.partition(along=along, **how)[made.engine.rank]
    assert shard.partition.digest == meant.partition.digest
    assert np.array_equal(shard.numbers, meant.numbers)
    assert np.array_equal(shard.ghosts, meant.ghosts)
    for one, other in zip(shard.send_lists, meant.send_lists, strict=True):
        assert np.array_equal(one, other)
    for name in ("sources", "targets", "weights"):
        mine, theirs = getattr(shard.local, name), getattr(meant.local, name)
        assert np.array_equal(mine, theirs), name
        assert getattr(mine, "dtype", None) == getattr(theirs, "dtype", None), name
    ids, numbers = np.array(meant.edge_ids, int), meant.numbers
    rows = graph.given_index[ids][meant.local.given_index]
    assert np.array_equal(made.edges.given_rows, rows)
    starts = graph.in_edges.row_offsets[numbers[: meant.own]]
    assert np.array_equal(made.edges.starts, starts)
    for name in ("in_degree", "out_degree"):
        assert np.array_equal(getattr(made.part, name), getattr(graph, name)[numbers])


@given(sided_edges(), st.integers(2, 4), st.sampled_from(["both", "in"]), st.data())
@settings(max_examples=60)
def test_a_whole_graph_is_cut_into_its_shards(
    edges: dict[str, Any], ranks: int, along: str, data: st.DataObject
) -> None:
    """With sides or none, in any order, between any cuts."""
    sides = edges.pop("sides")
    edges["vertex_count"] = count = sum(sides)
    has_sides = data.draw(st.booleans())
    graph = fg.Graph.from_edges(**edges, sides=sides if has_sides else None)
    order: Any = data.draw(st.sampled_from(["given", "locality", "spread", "own"]))
    if order == "own":
        order = np.random.default_rng(0).permutation(count)
    how: dict[str, Any] = {"order": order, "parts": ranks}
    if data.draw(st.booleans()):
        inner = [data.draw(st.integers(0, count)) for _ in range(ranks - 1)]
        how = {"order": order, "cuts": [0, *sorted(inner), count]}
    given_ = {name: how[name] for name in how if name != "parts"}

    def on_a_rank(engine: Any) -> None:
        made = fg.distribute(graph, along=along, **given_)
        require_part_of(made, graph, along, **how)

    run_ranks(ranks, on_a_rank)


@given(sided_edges(), st.integers(2, 4), st.sampled_from(["both", "in"]), st.data())
def test_edges_with_sides_on_any_rank(
    edges: dict[str, Any], ranks: int, along: str, data: st.DataObject
) -> None:
    graph, size = fg.Graph.from_edges(
        **edges, vertex_count=sum(edges["sides"])
    ), edges["sources"].size  # fmt: skip
    cuts = [data.draw(st.integers(0, size)) for _ in range(ranks - 1)]
    cuts = [0, *sorted(cuts), size]

    def on_a_rank(engine: Any) -> None:
        here = slice(*cuts[engine.rank : engine.rank + 2])
        mine = {n: a[here] for n, a in edges.items() if isinstance(a, np.ndarray)}
        made = fg.Graph.from_edges(**{**edges, **mine}, partition="edges", along=along)
        require_equal(made, fg.distribute(graph, along=along))
        assert made.sides == graph.sides
        working = fg.Graph.from_edges(
            **{**edges, **mine}, partition="edges", along=along, ranks=1
        )
        require_equal(working, fg.distribute(graph, along=along, ranks=1))

    run_ranks(ranks, on_a_rank)


@settings(max_examples=15)
@given(sided_edges(), st.integers(1, 3), st.sampled_from(["given", "locality"]),
       st.sampled_from(["both", "in"]))  # fmt: skip
def test_slices_with_sides(
    tmp_path_factory: pytest.TempPathFactory, edges: dict[str, Any], ranks: int,
    order: str, along: str,
) -> None:  # fmt: skip
    graph = fg.Graph.from_edges(**edges)
    path = tmp_path_factory.mktemp("slices") / "graph.fgs"
    write_graph(graph, path, order=order)
    assert fg.read_graph(path).sides == graph.sides

    def on_a_rank(engine: Any) -> None:
        made: Any = fg.read_graph(path, partition="edges", along=along)
        if engine.size == 1:
            assert made.digest == graph.digest
        else:
            require_equal(made, fg.distribute(graph, along=along, order=order))
            assert made.sides == graph.sides

    run_ranks(ranks, on_a_rank)


def some_ratings() -> Any:
    rng = np.random.default_rng(5)
    full = rng.integers(1, 6, (130, 45)) * (rng.random((130, 45)) < 0.2)
    full[:, 7] = rng.integers(1, 6, 130)
    return sparse.csr_matrix(full.astype(np.float64))


@pytest.mark.parametrize("form", ["csr", "coo", "csc"])
def test_entries_that_ranks_have_of_a_matrix(form: str) -> None:
    matrix = some_ratings()
    cuts = [0, 60, 60, 130]

    def rows_of(rank: int) -> Any:
        mine = matrix.tolil(copy=True)
        mine[: cuts[rank]] = 0
        mine[cuts[rank + 1] :] = 0
        return mine.tocsr().asformat(form)

    parts = [rows_of(rank).tocoo() for rank in range(3)]
    row, column, data = (
        np.concatenate([getattr(p, name) for p in parts])
        for name in ("row", "col", "data")
    )
    graph = fg.Graph.from_biadjacency(
        sparse.coo_matrix((data, (row, column)), matrix.shape)
    )

    def on_a_rank(engine: Any) -> None:
        made = fg.Graph.from_biadjacency(rows_of(engine.rank), partition="edges")
        require_equal(made, fg.distribute(graph))
        assert made.sides == (130, 45)

    run_ranks(3, on_a_rank)


def factors_of(result: Any) -> list[Any]:
    return [result.supersteps, result.user_factors, result.item_factors]


FACTORIZATIONS: dict[str, Any] = {
    "als": lambda g, **o: als(g, factors=3, iterations=3, **o),
    "implicit": lambda g, **o: als(g, factors=3, iterations=2, implicit=True, **o),
    "gradient": lambda g, **o: gradient_factorization(g, factors=3, iterations=3, **o),
    "estimator": lambda g, target, deterministic: (
        AlternatingLeastSquares(3, iterations=3, target=target).fit(g).result_
    ),
}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", FACTORIZATIONS)
def test_factorizations_of_parts_have_the_bits_of_one_rank(
    name: str, tmp_path: Path
) -> None:
    graph, path = fg.Graph.from_biadjacency(some_ratings()), tmp_path / "ratings.fgs"
    write_graph(graph, path, order="locality")
    exact = {"target": "cpu", "deterministic": True}
    alone = factors_of(FACTORIZATIONS[name](graph, **exact))

    def on_a_rank(engine: Any) -> None:
        count, rank, size = graph.given_edge_count, engine.rank, engine.size
        here = slice(count * rank // size, count * (rank + 1) // size)
        u, v, weights = (
            np.asarray(a)[here] for a in (graph.sources, graph.targets, graph.weights)
        )
        parts = [
            fg.read_graph(path, partition="edges"),
            fg.Graph.from_edges(
                u, v, weights=weights, sides=graph.sides, directed=False,
                partition="edges",
            ),
        ]  # fmt: skip
        for part in parts:
            found = factors_of(FACTORIZATIONS[name](part, **exact))
            for one, other in zip(found, alone, strict=True):
                assert np.array_equal(one, other)

    for ranks in (1, 2, 3):
        run_ranks(ranks, on_a_rank)


def test_programs_of_all_kinds_run_on_graphs_with_sides() -> None:
    graph = ratings(70, 30, 500, seed=3)
    seeds = np.full(100, -1)
    seeds[::7] = np.arange(15) % 3

    def answer(of: Any) -> Any:
        return label_propagation(
            of, seeds, class_count=3, max_supersteps=4, epsilon=0, history=False,
            target="cpu",
        ).distributions  # fmt: skip

    alone = answer(graph)

    def on_a_rank(engine: Any) -> None:
        made = ratings(70, 30, 500, seed=3, partition="edges", target="cpu")
        require_equal(made, fg.distribute(graph))
        assert np.array_equal(answer(made), alone)

    run_ranks(3, on_a_rank)


def test_ratings_are_drawn_by_rule() -> None:
    graph = ratings(900, 40, 20_000, seed=1, target="cpu")
    assert graph.sides == (900, 40)
    assert set(np.unique(graph.weights)) == {1, 2, 3, 4, 5}
    users, items = np.asarray(graph.sources), np.asarray(graph.targets) - 900
    assert (users.min(), users.max(), items.min(), items.max()) == (0, 899, 0, 39)
    # Item k is drawn where a square of what is even in [0, 1) says so.
    counts = np.bincount(items, minlength=40)
    meant = np.diff(np.sqrt(np.arange(41) / 40)) * 20_000
    assert (np.abs(counts - meant) < 6 * np.sqrt(meant)).all()
    for begin, end in pairwise([0, 20_000 // 3, 20_000]):
        part = ratings(900, 40, end, seed=1, target="cpu")
        assert np.array_equal(part.targets[begin:], graph.targets[begin:end])


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda rank: fg.Graph.from_edges([0], [1], sides=(1, rank + 1),
                                          partition="edges"), "of graph differs"),
        (lambda rank: fg.Graph.from_edges([0], [1 + 2 * rank], sides=(1, 1),
                                          partition="edges"), "out of range|vertex"),
        (lambda rank: fg.Graph.from_edges([0, 2], [2, 3 - rank], sides=(2, 2),
            partition="edges"), r"within a side.*\n.*2 and 3, both of side 1"),
        (lambda rank: fg.Graph.from_edges([0], [1], sides=(0, 2),
                                          partition="edges"), "sides"),
        (lambda rank: fg.Graph.from_biadjacency(
            sparse.coo_matrix((2, 3 + rank)), partition="edges"), "of graph differs"),
        (lambda rank: fg.Graph.from_biadjacency(
            np.ones((2, 2)) if rank else sparse.coo_matrix((2, 2)),
            partition="edges"), "not a SciPy sparse"),
        (lambda rank: fg.Graph.from_biadjacency(
            sparse.coo_matrix((2, 2)), target=("cpu", None)[rank],
            partition="edges"), "target= differs"),
        (lambda rank: fg.distribute(fg.Graph.from_edges([0], [1]), cuts=[0, 2]),
         "do not fit the number of ranks"),
    ],
)  # fmt: skip
def test_what_makes_no_graph_is_raised_on_all_ranks(call: Any, what: str) -> None:
    def on_a_rank(engine: Any) -> None:
        with pytest.raises(fg.GraphInputError, match=what):
            call(engine.rank)

    run_ranks(2, on_a_rank)


def test_slices_that_mix_sides_are_refused(tmp_path: Path) -> None:
    graph = fg.Graph.from_biadjacency(some_ratings())
    path = tmp_path / "ratings.fgs"
    write_graph(graph, path, order="locality")
    mixed = fg.read_graph(path)
    import featgraph.graph.formats.convert as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "side_bounds", lambda sides: np.array([0, 175]))
        write_graph(mixed, tmp_path / "mixed.fgs", order="locality")
    for error in errors_of(
        2, lambda: fg.read_graph(tmp_path / "mixed.fgs", partition="edges")
    ):
        assert "vertices of one side" in str(error)
