"""Graphs in parts that are cut otherwise: as if they had been distributed so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.distributed import run_ranks
from featgraph.ranks.loading import rows
from tests.ranks.test_loading import edge_lists, require_equal


@pytest.fixture(autouse=True)
def many_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows.HostRows, "round_edges", 40)


@settings(max_examples=60)
@given(edge_lists(), st.integers(2, 4), st.sampled_from(["both", "in"]),
       st.sampled_from(["given", "locality"]), st.data())  # fmt: skip
def test_other_cuts_give_the_graph_that_distribute_makes(
    edges: dict[str, Any], ranks: int, along: str, order: str, data: st.DataObject
) -> None:
    whole = fg.Graph.from_edges(**edges)
    count = whole.vertex_count
    inner = st.lists(st.integers(0, count), min_size=ranks - 1, max_size=ranks - 1)
    before, after = ([0, *sorted(data.draw(inner)), count] for _ in range(2))
    after = [min((cut + 31) // 32 * 32, count) for cut in after]

    def on_a_rank(engine: Any) -> None:
        made = fg.distribute(whole, cuts=before, order=order, along=along)
        again = fg.distribute(made, cuts=after)
        require_equal(again, fg.distribute(whole, cuts=after, order=order, along=along))
        back = fg.distribute(again, cuts=[0] * ranks + [count])
        require_equal(fg.distribute(back, cuts=after), again)
        if edges["weights"] is not None:
            assert np.array_equal(again.weights, whole.weights)

    run_ranks(ranks, on_a_rank)


def ring(engine: Any) -> Any:
    ends = np.arange(64)
    return fg.distribute(fg.Graph.from_edges(ends, (ends + 1) % 64), cuts=[0, 32, 64])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "can be moved to other cuts only"),
        ({"cuts": [0, 31, 64]}, r"multiples of 32"),
        ({"cuts": [0, 5, 64], "order": "spread"}, "can be moved to other cuts only"),
        ({"cuts": [0, 5, 64], "along": "in"}, "can be moved to other cuts only"),
        ({"cuts": [0, 5, 6, 64]}, "do not fit the graph"),
        ({"cuts": [0, 5, 65]}, "2 ranges of 65"),
        ({"cuts": [0, 50, 5]}, "not cuts"),
    ],
)
def test_what_cannot_be_cut_is_refused(given: dict[str, Any], text: str) -> None:
    def on_a_rank(engine: Any) -> None:
        graph = ring(engine)
        with pytest.raises(fg.GraphInputError, match=text):
            fg.distribute(graph, **given)
        assert graph.shard.own == 32

    run_ranks(2, on_a_rank)


def test_ranks_that_cut_differently_are_refused() -> None:
    def on_a_rank(engine: Any) -> None:
        fg.distribute(ring(engine), cuts=[0, 32 * engine.rank, 64])

    with pytest.raises(fg.GraphInputError, match="different graphs or cuts"):
        run_ranks(2, on_a_rank)
