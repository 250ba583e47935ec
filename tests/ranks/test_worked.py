"""What ranks count of a run on their parts: what the whole graph's sets say."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

import featgraph as fg
from bench.distributed.worked import works_here
from featgraph import algorithms as al
from featgraph.distributed import run_ranks
from featgraph.graph import rmat
from featgraph.ranks.cost.times import Work
from featgraph.ranks.cost.works import works_of

pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
CALLS: dict[str, Callable[[Any], Any]] = {
    "bfs": lambda g: al.bfs(g, 1, target="cpu"),
    "components": lambda g: al.connected_components(
        g, method="propagate", target="cpu"
    ),
    "sssp": lambda g: al.sssp(g, 1, target="cpu"),
    "pagerank": lambda g: al.pagerank(g, max_supersteps=3, tol=0, target="cpu"),
}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[Any, Any]]:
    """Have the last run of each thread record its sets; with what it began with."""
    kept: dict[int, tuple[Any, Any]] = {}
    iterate = fg.iterate

    def record(steps: Any, state: Any, **options: Any) -> Any:
        run = iterate(steps, state, **options | {"record_active": True})
        kept[threading.get_ident()] = run, options.get("active")
        return run

    monkeypatch.setattr(fg, "iterate", record)
    return kept


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("ranks", [1, 3])
def test_each_rank_counts_its_own_part(
    name: str, ranks: int, runs: dict[int, tuple[Any, Any]]
) -> None:
    whole = rmat(7, 3, seed=2, directed=False, weighted=True, target="cpu")

    def on_a_rank(engine: Any) -> None:
        graph: Any = fg.distribute(whole)
        CALLS[name](graph)
        run, active = runs[threading.get_ident()]
        first = None
        if active is not None:
            is_set = isinstance(active, fg.ActiveSet)
            first = (active if is_set else fg.ActiveSet(whole, active)).mask
        cuts = [0, 128] if ranks == 1 else graph.shard.partition.cuts
        meant = works_of(whole, run, fg.graph.Partition(cuts), first)
        found = works_here(graph, run, first)
        assert len(found) == len(meant) == run.supersteps
        for one, other in zip(found, meant, strict=True):
            for field in fields(Work):
                mine, theirs = getattr(one, field.name), getattr(other, field.name)
                # Another rank may have gone the other way.
                assert mine[engine.rank] == theirs[engine.rank], field.name

    run_ranks(ranks, on_a_rank)


def test_a_run_without_sets_is_refused() -> None:
    graph = rmat(4, 2, seed=1, target="cpu")
    run = al.bfs(graph, 1, target="cpu").run
    with pytest.raises(fg.ArgumentError, match="no record"):
        works_here(graph, run)
