"""Graphs that are drawn on a GPU, or read to one from slices, as rows of the host."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.distributed import run_ranks
from featgraph.graph import generators, rmat
from tests.altered import GRAPHS, require_refused, write_sound

pytestmark = pytest.mark.gpu
ROWS = ("in_edges", "out_edges", "incident_edges")


def require_equal(one: Any, other: Any) -> None:
    """Hold rows and weights of a graph to those of another one."""
    for name in ROWS:
        mine, theirs = getattr(one, name), getattr(other, name)
        assert np.array_equal(mine.row_offsets, theirs.row_offsets), name
        assert np.array_equal(mine.column_indices, theirs.column_indices), name
        if name == "out_edges":
            assert np.array_equal(mine.edge_ids, theirs.edge_ids)
    for name in ("in_degree", "out_degree"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    weights = [g.expand_edge_values(g.weights) for g in (one, other)]
    assert np.array_equal(*weights)


@pytest.mark.parametrize("directed", [True, False])
def test_rows_are_those_of_the_host(
    directed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from featgraph.graph.building import gpu_part_edges

    monkeypatch.setattr(generators, "MANY_DRAWN", 0)
    monkeypatch.setattr(gpu_part_edges, "LEAST_SLAB", 1 << 14)
    monkeypatch.setattr(gpu_part_edges, "PIECE_EDGES", 50_000)
    draw = partial(rmat, 13, 16, seed=3, directed=directed, weighted=True)
    whole = draw(target="cpu")
    made = draw(target="cuda")
    assert (made.digest, made.weights_digest) == (whole.digest, whole.weights_digest)
    require_equal(made, whole)

    def on_a_rank(engine: Any) -> None:
        mine: Any = draw(target="cuda", partition="edges")
        meant: Any = fg.distribute(whole)
        assert (mine.digest, repr(mine.shard)) == (meant.digest, repr(meant.shard))
        assert np.array_equal(mine.given_index, meant.given_index)
        require_equal(mine.part, meant.part)

    run_ranks(2, on_a_rank)


@pytest.mark.parametrize(("kind", "order"), GRAPHS)
def test_slices_are_checked_on_the_gpu(kind: str, order: str, tmp_path: Path) -> None:
    path = tmp_path / "graph.fgs"
    whole = write_sound(path, kind, order)
    read = partial(fg.read_graph, target="cuda")
    made = read(path)
    assert (made.digest, made.weights_digest) == (whole.digest, whole.weights_digest)
    require_equal(made, whole)
    require_refused(path, read)
