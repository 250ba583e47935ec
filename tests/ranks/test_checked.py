"""Checked mode on ranks: one bad index raises on all, in the user's terms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.distributed import run_ranks

V = 41


@fg.vertex
def follow(f, v, d):
    d.y[v] = d.x[d.to[v]]
    return True


@fg.gather(into="most", combine="max")
def along_edges(f, u, v, e, d):
    return d.x[d.hop[e]]


@fg.vertex
def keep(f, v, d):
    d.y[v] = d.most[v]
    return True


@fg.vertex
def send(f, v, d):
    fg.atomic.add(d.y, d.to[v], 1)
    return True


CALLS = {
    "read": fg.foldmap(follow),
    "edge": fg.foldmap(along_edges, keep),
    "atomic": fg.foldmap(send),
}


def fault_of(graph: fg.Graph, name: str) -> fg.KernelFaultError:
    """Return the error for an index behind the last vertex, at vertex 29."""
    to, hop = np.arange(V), np.arange(V)
    to[29], hop[28] = V, V + 7
    state = fg.State(
        graph,
        x=fg.vertex_property(np.arange(V)),
        y=fg.vertex_property(0),
        to=fg.vertex_property(to),
        hop=fg.edge_property(hop),
    )
    with pytest.raises(fg.KernelFaultError) as caught:
        CALLS[name](state, target="cpu")
    return caught.value


@pytest.mark.drawn(4)
@pytest.mark.parametrize("along", ["in", "both"])
@pytest.mark.parametrize("name", CALLS)
def test_a_fault_is_raised_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch, name: str, along: str
) -> None:
    monkeypatch.setattr(fg.config, "checked", True)
    whole = fg.Graph.from_edges(np.arange(V), (np.arange(V) + 1) % V)
    alone = fault_of(whole, name)
    order = np.random.default_rng(2).permutation(V)

    def on_a_rank(engine: Any) -> fg.KernelFaultError:
        return fault_of(fg.distribute(whole, order=order, along=along), name)

    faults = run_ranks(3, on_a_rank)
    assert len({str(fault) for fault in faults}) == 1
    owner = next(
        shard.rank
        for shard in whole.partition(order=order, parts=3)
        if 29 in shard.numbers[: shard.own]
    )
    assert str(alone).partition(": an index of d.")[2] in str(faults[0])
    assert f"vertex 29, on rank {owner}" in str(faults[0])
    for part in ("vertex", "edge", "index", "bound", "function"):
        assert getattr(faults[0], part) == getattr(alone, part)
