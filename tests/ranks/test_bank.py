"""The programs of the bank on several ranks: as on one, or refused before they run."""

from __future__ import annotations

import zlib
from typing import Any

import hypothesis
import numpy as np
import pytest

import featgraph as fg
from featgraph.distributed import run_ranks
from tests.bank import BANK, BY_NAME, BankProgram

V = 67
#: One in so many programs is run also without the deep profile.
ONE_IN = 6


def is_deep() -> bool:
    return bool(hypothesis.settings.get_current_profile_name() == "deep")


def chosen() -> list[str]:
    """Return the programs to run, by name: drawn by a digest."""
    names = [p.name for p in BANK if not p.thresholds]
    return [n for n in names if is_deep() or zlib.crc32(n.encode()) % ONE_IN == 0]


def make_graph(seed: int, directed: bool) -> fg.Graph:
    rng = np.random.default_rng(seed)
    sources, targets = rng.integers(0, V - 2, (2, 160))
    targets = np.where(rng.random(160) < 0.25, seed % V, targets)
    return fg.Graph.from_edges(sources, targets, vertex_count=V, directed=directed)


def run(
    program: BankProgram,
    graph: fg.Graph,
    seed: int,
    target: str,
    supersteps: int = 5,
    **options: Any,
) -> dict[str, Any] | None:
    """Return all values behind some supersteps; None where a foldmap is refused."""
    whole, k = make_graph(seed, graph.directed), program.widths[0]
    given = program.make_state(whole, k, np.random.default_rng(seed))
    state = fg.State(graph, **given)
    active = np.arange(0, V, 3)
    for step in program.foldmaps:
        before = {name: state[name] for name in state}
        try:
            active = step(state, active_in=active, target=target, **options)
        except fg.PlanError:
            for name, value in before.items():
                np.testing.assert_array_equal(state[name], value)
            return None
    if program.iterable:
        most = {"max_supersteps": supersteps, "target": target}
        fg.iterate(list(program.foldmaps), state, **most, **options)
    return {name: state[name] for name in state} | {"": active.mask}


@pytest.mark.drawn(4)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.parametrize("name", chosen())
def test_a_program_gives_the_same_on_ranks(target: str, name: str) -> None:
    program, seed = BY_NAME[name], zlib.crc32(name.encode()) % 1000
    whole = make_graph(seed, directed=seed % 2 == 0 and not program.undirected)
    cuts = [[0, 32, V], [0, 5, 5, V]][seed % 2]
    found = run_ranks(
        len(cuts) - 1,
        lambda _: run(program, fg.distribute(whole, cuts=cuts), seed, target),
    )
    if found[0] is None:
        assert found == [None] * len(found)
        return
    alone = run(program, whole, seed, target)
    assert alone is not None
    for values in found:
        assert values.keys() == alone.keys()
        for key, value in values.items():
            if program.exact:
                np.testing.assert_array_equal(value, alone[key], err_msg=key)
            else:
                np.testing.assert_allclose(
                    value, alone[key], rtol=1e-4, atol=1e-5, err_msg=key
                )


def test_not_all_programs_are_refused(target: str) -> None:
    whole = make_graph(0, directed=True)
    program = BY_NAME["label_propagation"]
    found = run_ranks(
        2, lambda _: run(program, fg.distribute(whole, cuts=[0, 32, V]), 0, target)
    )
    assert None not in found
