"""Orders and groups of edges: free of conflicts, complete, maximal, and as replayed."""

from __future__ import annotations

import itertools
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featgraph.graph.views import edge_orders
from featgraph.graph.views.edge_orders import EdgeGroups
from tests.strategies import examples, graphs, seeds

SIDES = ("uv", "u", "v")


class Edges(NamedTuple):
    """Edges, an order of some of them, and the number of vertices of the first side."""

    sources: Any
    targets: Any
    order: Any
    vertex_count: int
    first: int

    def ends(self, sides: str = "uv") -> list[set[int]]:
        """Return the vertices of each edge at which it conflicts with others."""
        u, v = self.sources.tolist(), self.targets.tolist()
        return [
            {x for x, side in zip(pair, "uv", strict=True) if side in sides}
            for pair in zip(u, v, strict=True)
        ]

    @property
    def arguments(self) -> tuple[Any, Any, Any, int]:
        return self.sources, self.targets, self.order, self.vertex_count


@st.composite
def any_edges(draw: st.DrawFn, *, of_two_sides: bool = False) -> Edges:
    """Draw a graph, and most of its edges in any order."""
    graph = draw(graphs())
    u, v = np.array(graph.sources), np.array(graph.targets)
    count = graph.vertex_count
    if of_two_sides:
        v = v + np.int32(count)
    share = draw(st.sampled_from([0, 0.6, 1]))
    rng = np.random.default_rng(draw(seeds))
    order = rng.permutation(u.size)[: int(np.ceil(share * u.size))].astype(np.int32)
    return Edges(u, v, order, count * (1 + of_two_sides), count)


def slices(values: Any, begins: Any) -> list[Any]:
    """Cut values at the begins."""
    assert begins[0] == 0
    assert begins[-1] == len(values)
    return [values[begin:end].tolist() for begin, end in pairwise(begins)]


def groups_of(edges: Edges, made: EdgeGroups) -> list[list[int]]:
    """Return the groups, which have each edge of the order once."""
    assert made.order.dtype == edges.order.dtype
    assert np.array_equal(np.sort(made.order), np.sort(edges.order))
    return slices(made.order, made.groups)


def assert_free_of_conflicts(groups: list[list[int]], ends: list[set[int]]) -> None:
    for group in groups:
        touched = [x for e in group for x in ends[e]]
        assert len(touched) == len(set(touched))


def assert_maximal(groups: list[list[int]], ends: list[set[int]]) -> None:
    """Each edge conflicts with one of each group before its own."""
    taken = [set().union(*(ends[e] for e in group)) for group in groups]
    for g, group in enumerate(groups):
        assert all(ends[e] & before for e in group for before in taken[:g])


def run(edges: Edges, order: Any, sides: str = "uv") -> Any:
    """Run edges one after the other; the result depends on their order at a vertex."""
    x = np.arange(edges.vertex_count, dtype=np.uint64)
    for e in order:
        u, v = edges.sources[e], edges.targets[e]
        a, b = x[u], x[v]
        if "u" in sides:
            x[u] = np.uint64(31) * a + (b if sides == "uv" else 0) + np.uint64(e)
        if "v" in sides:
            x[v] = np.uint64(17) * (a if sides == "uv" else 0) ^ b + np.uint64(e)
    return x


@given(any_edges(), st.sampled_from(SIDES), seeds)
def test_levels_run_as_the_order_does(edges: Edges, sides: Any, seed: int) -> None:
    groups = groups_of(edges, edge_orders.levels(*edges.arguments, sides))
    assert all(groups)
    assert_free_of_conflicts(groups, edges.ends(sides))
    rng = np.random.default_rng(seed)
    shuffled = [e for group in groups for e in rng.permutation(group)]
    with np.errstate(over="ignore"):
        assert np.array_equal(
            run(edges, shuffled, sides), run(edges, edges.order, sides)
        )
    # One group fewer would put two edges of a vertex, or a chain, into one.
    last = dict.fromkeys(range(edges.vertex_count), 0)
    for e in edges.order:
        level = 1 + max(last[x] for x in edges.ends(sides)[e])
        last |= dict.fromkeys(edges.ends(sides)[e], level)
        assert e in groups[level - 1]


@given(any_edges(), st.sampled_from(SIDES), st.sampled_from([0, 1 << 10, 1 << 29]))
def test_matchings_are_maximal(edges: Edges, sides: Any, room: int) -> None:
    """Colors are in bitsets, in lists, or in both."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge_orders, "_BITSET_BYTES", room)
        made = edge_orders.matching_edges(*edges.arguments, sides)
    groups = groups_of(edges, made)
    assert all(groups)
    assert_free_of_conflicts(groups, edges.ends(sides))
    assert_maximal(groups, edges.ends(sides))
    place = np.empty(edges.sources.size, int)
    place[edges.order] = np.arange(edges.order.size)
    assert all((np.diff(place[group]) > 0).all() for group in groups)


@given(
    any_edges(of_two_sides=True),
    st.sampled_from([1, 2, 5, 64]),
    st.sampled_from([0, 1 << 9, 1 << 29]),
)
def test_matchings_by_blocks_of_vertices(edges: Edges, size: int, room: int) -> None:
    ends = edges.ends()
    arguments = *edges.arguments, edges.first, size
    nodes = edge_orders.matching_nodes(*arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge_orders, "_BITSET_BYTES", room)
        subgraphs = edge_orders.subgraph_matching(*arguments)
    matchings = groups_of(edges, edge_orders.matching_edges(*edges.arguments))
    for made in (nodes, subgraphs):
        groups = groups_of(edges, made)
        assert all(groups)
        assert_free_of_conflicts(groups, ends)
        assert made.rounds is not None
        assert made.vertices is not None
        side = range(edges.first, edges.vertex_count)
        assert sorted(made.vertices.tolist()) == list(side)
        rounds = [groups[begin:end] for begin, end in pairwise(made.rounds)]
        assert len(rounds) == -(-len(side) // size)
        for r, of_round in enumerate(rounds):
            block = set(made.vertices[r * size : (r + 1) * size].tolist())
            assert all(edges.targets[e] in block for group in of_round for e in group)
            if made is nodes:
                whole = [[e for e in m if edges.targets[e] in block] for m in matchings]
                assert of_round == [part for part in whole if part]
            else:
                assert_maximal(of_round, ends)
    degree = np.bincount(edges.targets[edges.order], minlength=edges.vertex_count)
    assert subgraphs.vertices is not None
    assert (np.diff(degree[subgraphs.vertices]) <= 0).all()


@given(any_edges(of_two_sides=True))
def test_diagonals(edges: Edges) -> None:
    groups = groups_of(edges, edge_orders.diagonal(*edges.arguments[:3]))
    assert all(groups)
    assert_free_of_conflicts(groups, edges.ends())
    along = (edges.targets - edges.sources).astype(int)
    numbers = [set(along[group].tolist()) for group in groups]
    assert all(len(of) == 1 for of in numbers)
    assert (np.diff([min(of) for of in numbers]) <= 0).all()


def test_parallel_edges_share_their_diagonal_with_others() -> None:
    u, v = np.array([[0, 0, 1, 1, 2, 0], [3, 3, 4, 4, 6, 3]], np.int32)
    made = edge_orders.diagonal(u, v, np.arange(6))
    assert slices(made.order, made.groups) == [[4], [0, 2], [1, 3], [5]]


def assert_rounds(edges: Edges, made: EdgeGroups, sides: str = "uv") -> list[Any]:
    """Return the groups of each round, which have no vertices in common."""
    groups = groups_of(edges, made)
    ends = edges.ends(sides)
    assert made.rounds is not None
    rounds = [groups[begin:end] for begin, end in pairwise(made.rounds)]
    assert sum(map(len, rounds)) == len(groups)
    for of_round in rounds:
        touched = [x for g in of_round for x in set().union(*(ends[e] for e in g))]
        assert len(touched) == len(set(touched))
        for group in of_round if "v" in sides else ():
            targets = edges.targets[group]
            assert np.count_nonzero(np.diff(targets)) <= max(len(set(targets)) - 1, 0)
    return rounds


@given(any_edges(of_two_sides=True), st.sampled_from([1, 2, 5, 64]))
def test_diagonals_of_blocks(edges: Edges, size: int) -> None:
    made = edge_orders.block_diagonal(*edges.arguments[:3], edges.first, size)
    rounds = assert_rounds(edges, made)
    u, v = edges.sources // size, (edges.targets - edges.first) // size
    assert all(len(set(u[g])) == len(set(v[g])) == 1 for r in rounds for g in r)
    along = [[int(v[e]) - int(u[e]) for g in r for e in g] for r in rounds]
    assert all(len(set(of)) == 1 for of in along)
    assert (np.diff([of[0] for of in along]) < 0).all()


@given(
    any_edges(of_two_sides=True),
    st.sampled_from([1, 2, 7, 40]),
    st.sampled_from([None, 0, 2**64 - 1]),
)
def test_blocks(edges: Edges, parts: int, seed: int | None) -> None:
    both, sizes = edges.arguments[:2], (edges.vertex_count, edges.first, parts, seed)
    placed = edge_orders.by_target(edges.targets, edges.order)
    rounds = assert_rounds(edges, edge_orders.blocks(*both, placed, *sizes))
    place = np.empty(len(edges.sources), int)
    place[edges.order] = np.arange(len(edges.order))
    made = edge_orders.blocks(*both, edges.order, *sizes)
    for group, adjacent in zip(
        groups_of(edges, made), itertools.chain(*rounds), strict=True
    ):
        assert (np.diff(place[group]) > 0).all()
        assert sorted(group) == sorted(adjacent)
    assert [len(of_round) for of_round in rounds] == [parts] * parts
    # Block i of each round has the same sources, whatever the round.
    own = [{int(edges.sources[e]) for r in rounds for e in r[i]} for i in range(parts)]
    assert sum(map(len, own)) == len(set().union(*own))
    at = [
        {int(edges.targets[e]) for r in range(parts) for e in rounds[r][j - r]}
        for j in range(parts)
    ]
    assert sum(map(len, at)) == len(set().union(*at))


def test_blocks_have_about_equal_numbers_of_edges() -> None:
    rng = np.random.default_rng(5)
    u = (2000 * rng.random(200_000) ** 2).astype(np.int32)
    v = (2000 + 1000 * rng.random(u.size) ** 2).astype(np.int32)
    order = edge_orders.given_order(np.arange(u.size), 3)
    counts = np.diff(edge_orders.blocks(u, v, order, 3000, 2000, 8).groups)
    assert counts.max() < 1.2 * counts.mean()
    by_id = edge_orders.blocks(u, v, order, 3000, 2000, 8, None)
    first = by_id.order[by_id.groups[0] : by_id.groups[1]]
    assert u[first].max() < 2000 / 8  # the first eighth of edges is that of few


@given(any_edges(), st.sampled_from(["u", "v"]))
def test_rows_run_as_the_order_does(edges: Edges, sides: Any) -> None:
    made = edge_orders.rows(*edges.arguments[:3], sides)
    (groups,) = assert_rounds(edges, made, sides)
    ends = edges.ends(sides)
    assert all(len(set().union(*(ends[e] for e in group))) == 1 for group in groups)
    assert (np.diff([len(group) for group in groups]) <= 0).all()
    with np.errstate(over="ignore"):
        expected = run(edges, edges.order, sides)
        assert np.array_equal(run(edges, made.order, sides), expected)


def test_turned_rows_ascend_from_the_first_edge_on() -> None:
    rng = np.random.default_rng(3)
    targets = np.sort(rng.integers(5, 12, 90)).astype(np.int32)
    order = rng.permutation(90)
    found = edge_orders.rows(targets, targets, order, "v")
    turned = found.order.copy()
    edge_orders.turn_rows(targets, found.groups, turned)
    for first, stop in pairwise(found.groups):
        rows, begin = np.sort(found.order[first:stop]), found.order[first]
        place = int(np.searchsorted(rows, begin))
        assert turned[first:stop].tolist() == [*rows[place:], *rows[:place]]


@given(any_edges(), st.sampled_from(SIDES))
def test_tickets_count_the_edges_before(edges: Edges, sides: Any) -> None:
    turns = edge_orders.tickets(*edges.arguments, sides)
    assert turns.dtype == np.int32
    taken = np.zeros(edges.vertex_count, int)
    for turn, e in zip(turns.tolist(), edges.order, strict=True):
        pair = (edges.sources[e], "u"), (edges.targets[e], "v")
        assert turn == [taken[x] if side in sides else -1 for x, side in pair]
        taken[list(edges.ends(sides)[e])] += 1


@pytest.mark.parametrize("count", [0, 1, 5, (1 << 15) + 1, 200_000])
def test_orders_are_shuffled(count: int) -> None:
    given_index = np.random.default_rng(1).permutation(2 * count)[:count]
    kept = edge_orders.given_order(given_index, None)
    assert (np.diff(given_index[kept]) > 0).all()
    orders = [edge_orders.given_order(given_index, seed) for seed in (0, 1, 2**64 - 1)]
    for order in orders:
        assert np.array_equal(np.sort(order), np.arange(count))
    if count > 5:
        place = np.empty((3, count))
        for row, order in zip(place, orders, strict=True):
            row[given_index[order].argsort()] = np.arange(count)
        # Of independent permutations, correlations are normal with 1 / sqrt(N).
        found = np.corrcoef(np.vstack((np.arange(count), place)))
        assert np.abs(found - np.eye(4)).max() < 5 / np.sqrt(count)


def test_all_permutations_are_as_likely() -> None:
    found = np.zeros((4, 4), int)
    for seed in range(2000):
        found[np.arange(4), edge_orders.given_order(np.arange(4), seed)] += 1
    assert np.abs(found - 500).max() < 5 * np.sqrt(2000 * 3 / 16)


def test_the_order_of_a_seed_stays() -> None:
    order = edge_orders.given_order(np.arange(12), 7)
    assert order.tolist() == [6, 2, 1, 5, 4, 7, 8, 0, 10, 9, 11, 3]


def test_backward_edges_are_found() -> None:
    u, v = np.array([[0, 1, 0], [2, 3, 2]], np.int32)
    assert edge_orders.first_backward(u, v, 2) == -1
    assert edge_orders.first_backward(u, v, 1) == 1
    assert edge_orders.first_backward(v, u, 2) == 0
    assert edge_orders.first_backward(u, np.array([2, 2, 1], np.int32), 2) == 2


#: The example of the source: row (user) and column (movie) of edges a to l.
EXAMPLE = ((0, 0), (1, 0), (2, 0), (4, 0), (5, 0), (0, 1), (1, 1), (4, 1), (3, 2),
           (5, 2), (0, 3), (1, 3))  # fmt: skip


@pytest.mark.parametrize(
    ("name", "more", "expected"),
    [
        ("levels", (10,), "ai bf cgk dl eh j"),
        ("matching_edges", (10,), "agi bfj chk dl e"),
        ("subgraph_matching", (10, 6, 2), "ag bf ch d e ik jl"),
        ("diagonal", (), "k l f ag bi c hj d e"),
        ("block_diagonal", (6, 2), "kl abfgi cj deh"),
    ],
)
def test_the_example_of_twelve_edges(
    name: str, more: tuple[int, ...], expected: str
) -> None:
    u, v = np.array(EXAMPLE, np.int32).T
    made = getattr(edge_orders, name)(u, v + np.int32(6), np.arange(12), *more)
    begins = made.groups[made.rounds] if name == "block_diagonal" else made.groups
    letters = [
        "".join("abcdefghijkl"[e] for e in g) for g in slices(made.order, begins)
    ]
    assert letters == expected.split()


#: Name -> file, delimiter, lines of header; matchings, diagonals, and groups of
#: `subgraph_matching` with 64, 256 and 1024 vertices.
MOVIELENS: dict[str, tuple[str, str, int, tuple[int, ...]]] = {
    "ml-latest-small": ("small/ml-latest-small/ratings.csv.gz", ",", 1, (2150, 9921)),
    "ml-100k": (
        "restricted/ml-100k/u.data.gz", "\t", 0, (582, 2165, 1692, 947, 629),
    ),
    "ml-1m": (
        "restricted/ml-1m/ratings.csv.gz", ",", 1, (2718, 9666, 14304, 5528, 3862),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVIELENS)
def test_groups_of_real_ratings(name: str, data_dir: Path) -> None:
    """Of the last 80 % of a permutation of the ratings by seed 0, in its order."""
    path, delimiter, header, (matchings, diagonals, *blocks) = MOVIELENS[name]
    if not (data_dir / path).is_file():
        pytest.skip(f"{path} is not there")
    ids = np.loadtxt(
        data_dir / path, delimiter=delimiter, skiprows=header, usecols=(0, 1)
    )
    u, v = (np.unique(column, return_inverse=True)[1] for column in ids.T)
    first, count = int(u.max()) + 1, int(u.max() + v.max()) + 2
    kept = np.random.default_rng(0).permutation(u.size)[int(0.2 * u.size) :]
    u, v = u[kept].astype(np.int32), (first + v[kept]).astype(np.int32)
    order = np.arange(u.size, dtype=np.int32)
    assert edge_orders.first_backward(u, v, first) == -1
    highest = max(np.bincount(u).max(), np.bincount(v).max())

    def count_groups(name: str, *more: int) -> int:
        made: EdgeGroups = getattr(edge_orders, name)(u, v, order, *more)
        return made.groups.size - 1

    assert count_groups("matching_edges", count) == matchings == highest
    assert count_groups("diagonal") == diagonals
    assert highest < count_groups("levels", count) < 1.15 * highest
    for size, expected in zip((64, 256, 1024), blocks, strict=False):
        assert count_groups("subgraph_matching", count, first, size) == expected


@examples(20, 200)
@given(any_edges())
def test_all_of_no_edges(edges: Edges) -> None:
    none = Edges(*edges[:2], edges.order[:0], *edges[3:])
    for made in (
        edge_orders.levels(*none.arguments),
        edge_orders.matching_edges(*none.arguments),
    ):
        assert groups_of(none, made) == []
