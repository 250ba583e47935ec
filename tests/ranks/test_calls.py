"""Every algorithm on two ranks: the answer of one rank, or an error with a reason."""

from __future__ import annotations

import zlib
from dataclasses import fields
from typing import Any

import hypothesis
import numpy as np
import pytest

import featgraph as fg
from featgraph.distributed import run_ranks
from featgraph.runtime.loops.run import repartition_option
from tests.algorithms import test_answers
from tests.algorithms.test_answers import CALLS, GRAPH
from tests.ranks.forced import forced

#: Calls that run; others are refused.
RUNS = {
    "bfs", "sssp", "sswp", "propagate", "pagerank", "renormalized", "betweenness",
    "closeness", "eigenvector", "hits", "label propagation", "label sets", "manifolds",
    "neurons", "heat", "strong components", "strong components of rings",
    "beliefs", "beliefs by edges", "circuit", "modalities", "push",
    "push weighted", "cores", "triangles", "clustering", "trusses",
}  # fmt: skip
#: Methods that make graphs of a graph.
DERIVED = ("simple", "weighted", "rings")
#: One in so many is called also without the deep profile.
ONE_IN = 8


def called(moves: bool = False) -> list[str]:
    is_deep = hypothesis.settings.get_current_profile_name() == "deep"
    names = sorted(RUNS if moves else CALLS.keys() - {"katz"})  # diverges on this graph
    one_in = 3 * ONE_IN if moves else ONE_IN
    return [n for n in names if is_deep or zlib.crc32(n.encode()) % one_in == 0]


def answers(result: Any) -> dict[str, Any]:
    names = {field.name for field in fields(result)} - {"run", "residuals"}
    return {name: np.asarray(getattr(result, name)) for name in sorted(names)}


@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
@pytest.mark.parametrize("name", called(moves=True))
def test_an_algorithm_that_moves_answers_as_on_one_rank(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with forced({1: [0, 0.75, 1.0], 3: [0, 0.2, 1.0]}):
        require_answers(monkeypatch, "cpu", name, "auto")


@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
@pytest.mark.parametrize("name", called())
def test_an_algorithm_answers_as_on_one_rank(
    monkeypatch: pytest.MonkeyPatch, target: str, name: str
) -> None:
    require_answers(monkeypatch, target, name, False)


def require_answers(
    monkeypatch: pytest.MonkeyPatch, target: str, name: str, repartition: Any
) -> None:
    # Graphs that calls derive are made of the whole, and distributed then.
    whole: dict[str, fg.Graph] = {}
    for derive in DERIVED:
        whole[derive] = getattr(test_answers, derive)(GRAPH)
    given = {n: getattr(test_answers, n)(GRAPH) for n in ("seeds", "sources")}
    for derive, values in given.items():
        monkeypatch.setattr(test_answers, derive, lambda _, v=values: v)
    for derive in DERIVED:
        made = whole[derive]  # itself on one rank
        monkeypatch.setattr(test_answers, derive, lambda _, g=made: fg.distribute(g))
    alone = answers(CALLS[name](GRAPH, target=target))

    def on_a_rank(engine: Any) -> Any:
        try:
            with repartition_option(repartition):
                return answers(CALLS[name](fg.distribute(GRAPH), target=target))
        except fg.FeatGraphError as error:
            return str(error)

    for found in run_ranks(2, on_a_rank):
        if name not in RUNS:
            assert isinstance(found, str), "it runs now: say so in RUNS"
            assert "rank" in found
            continue
        assert not isinstance(found, str), found
        for key, value in alone.items():
            if value.dtype.kind == "f":
                np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-6)
            else:
                np.testing.assert_array_equal(found[key], value)
