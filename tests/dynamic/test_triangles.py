"""Triangles that have come and gone, against all triangles of both graphs."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

import featgraph as fg
from featgraph.algorithms import k_truss, triangle_count
from featgraph.dynamic.triangles import add_triangles

PAIRS = st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=40)


def undirected(pairs: Any) -> set[tuple[int, int]]:
    return {(min(pair), max(pair)) for pair in pairs}


def matrix_of(pairs: Any) -> Any:
    found = np.zeros((9, 9), np.int64)
    for u, v in pairs:
        if u != v:
            found[u, v] = found[v, u] = 1
    return found


def rows_of(pairs: Any, rng: np.random.Generator) -> Any:
    """Return rows in any order, with spare slots between them."""
    starts, stops, ends = [], [], []
    for vertex in range(9):
        own = [v if u == vertex else u for u, v in pairs if vertex in (u, v)]
        starts.append(len(ends))
        ends += rng.permutation(own).tolist() if own else []
        stops.append(len(ends))
        ends += [2**31 - 1] * 2
    return tuple(np.array(x, np.int32) for x in (starts, stops, ends))


def ends_of(pairs: Any) -> Any:
    ordered = sorted(pairs, key=lambda pair: (pair[1], -pair[0]))
    found = np.array(ordered, np.int32).reshape(-1, 2)
    return found[:, 1], found[:, 0]


@given(before=PAIRS, after=PAIRS, seed=st.integers(0, 99))
def test_counts_follow_changes(before: Any, after: Any, seed: int) -> None:
    old, new = undirected(before), undirected(after)
    a, b = matrix_of(old), matrix_of(new)
    counts = np.diag(a @ a @ a) // 2
    rows = rows_of(new, np.random.default_rng(seed))
    counts = counts.copy()
    found = add_triangles(rows, ends_of(new - old), ends_of(old - new), counts)
    assert found is not None
    expected = np.diag(b @ b @ b) // 2
    assert counts.tolist() == expected.tolist()
    assert found[0] == (np.trace(b @ b @ b) - np.trace(a @ a @ a)) // 6


def test_copies_of_an_edge_are_found() -> None:
    rows = rows_of([(0, 1), (0, 1), (1, 2)], np.random.default_rng(0))
    counts = np.zeros(9, np.int64)
    assert add_triangles(rows, ends_of([(0, 1)]), ends_of([]), counts) is None
    assert add_triangles(rows, ends_of([(1, 2)]), ends_of([]), counts) is not None


def test_edges_get_ids_where_a_kernel_reads_them_alone() -> None:
    """Ids that edges get behind the first triangles fit arrays that exist then."""
    ends = np.random.default_rng(3).integers(0, 30, (2, 200))
    options: dict[str, Any] = {"directed": False, "duplicates": "last", "loops": "drop"}
    graph = fg.DynamicGraph.from_edges(*ends, target="cpu", **options)
    graph.insert_edges([1, 2, 3], [7, 8, 9])
    frozen = graph.freeze()
    expected = triangle_count(frozen).triangles, k_truss(frozen).trussness
    assert triangle_count(graph).triangles.tolist() == expected[0].tolist()
    assert graph._store.free_ids is None
    assert k_truss(graph).trussness.tolist() == expected[1].tolist()
    assert graph._store.free_ids is not None
    graph.delete_edges([1], [7])
    assert (
        k_truss(graph).trussness.tolist() == k_truss(graph.freeze()).trussness.tolist()
    )
