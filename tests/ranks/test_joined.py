"""Values that are put together on every rank, from pieces of any size."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.distributed import run_ranks
from featgraph.ranks.exchange import gather_rows
from featgraph.ranks.exchange.vertex_sets import packed
from featgraph.runtime.devices.choose import choose_device
from tests.strategies import graphs, seeds

ORDERS = ["given", "spread", "locality"]
TYPES = ["?", "i1", "u2", "f4", "i8"]
SHAPES = [(), (1,), (3,), (2, 2)]


@settings(deadline=None)
@given(
    whole=graphs(),
    data=st.data(),
    order=st.sampled_from(ORDERS),
    dtype=st.sampled_from(TYPES),
    shape=st.sampled_from(SHAPES),
    piece=st.sampled_from([1, 40, 200, 1 << 23]),
    seed=seeds,
)
def test_every_rank_has_the_values_of_all(
    whole: fg.Graph,
    data: st.DataObject,
    order: str,
    dtype: str,
    shape: tuple[int, ...],
    piece: int,
    seed: int,
) -> None:
    rng, count = np.random.default_rng(seed), whole.vertex_count
    within = st.lists(st.integers(0, count), min_size=1, max_size=3)
    cuts = [0, *sorted(data.draw(within)), count]
    per_direction = not whole.directed and data.draw(st.booleans())
    rows = whole.given_edge_count * (1 + per_direction)
    x = rng.integers(0, 200, (count, *shape)).astype(dtype)
    w = rng.integers(0, 200, (rows, *shape)).astype(dtype)
    active = packed(rng.random(count) < 0.5)
    if per_direction:  # a loop is its own twin
        loops = np.asarray(whole.self_loops)
        w[loops + whole.given_edge_count] = w[loops]

    def on_a_rank(engine: Any) -> tuple[Any, ...]:
        graph: Any = fg.distribute(whole, order=order, cuts=cuts)
        state = fg.State(
            graph,
            x=fg.vertex_property(x),
            w=fg.edge_property(w, per_direction=per_direction),
        )
        before, exchanges = engine.traffic.copy(), engine.exchanges
        found = state["x"]
        sent = (engine.traffic - before).sent.sum()
        times = engine.exchanges - exchanges
        mine = graph.own_vertices.size * x.itemsize * int(np.prod(shape))
        assert sent == mine * (engine.size - 1)
        most = int(np.diff(graph.shard.partition.cuts).max())
        per = max(piece // (x.itemsize * int(np.prod(shape))) // 8, 1) * 8
        assert times == -(-most // per)
        holder = graph.exchange(choose_device("cpu")).holder
        members = holder.download(holder.upload(active))
        return found, state["w"], state.view("x").whole(), members

    with mock.patch.object(gather_rows, "PIECE_BYTES", piece):
        found = run_ranks(len(cuts) - 1, on_a_rank)
    for vertices, edges, viewed, members in found:
        for values, meant in ((vertices, x), (edges, w), (viewed, x)):
            assert values.dtype == meant.dtype
            np.testing.assert_array_equal(values, meant)
            assert values.flags.writeable
        np.testing.assert_array_equal(members, active)


def test_ranks_that_have_other_types_are_distinguished() -> None:
    whole = fg.Graph.from_edges([0, 1], [1, 2], vertex_count=64)

    def on_a_rank(engine: Any) -> Any:
        dtype = np.int32 if engine.rank else np.float32
        graph = fg.distribute(whole, cuts=[0, 32, 64])
        return fg.State(graph, x=fg.vertex_property(np.zeros(64, dtype)))["x"]

    with pytest.raises(fg.RankMismatchError, match=r"float32\[\].*int32\[\]"):
        run_ranks(2, on_a_rank)


def test_a_rank_that_reads_alone_is_named() -> None:
    whole = fg.Graph.from_edges([0, 1], [1, 2], vertex_count=64)

    def on_a_rank(engine: Any) -> Any:
        state = fg.State(
            fg.distribute(whole, cuts=[0, 32, 64]), x=fg.vertex_property(0)
        )
        return state["x"] if engine.rank else None

    with pytest.raises(fg.RankMismatchError, match="the values of a property"):
        run_ranks(2, on_a_rank)
