"""How many calls lie between what users call and the folder, where nothing is kept.

What runs where everything is kept is in test_kept_supersteps.py.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import dialect
from featgraph.fold.passes import passes
from tests.bank import BY_NAME

ROOT = str(Path(fg.__file__).parent)
FOLDERS = {str(passes.__file__)}
#: Functions of ours on the way to a pass, the one that was called among them.
MOST = 9


@pytest.fixture(params=["cpu", "cuda"])
def where(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "cuda":
        if not dialect.is_installed():
            pytest.skip("needs numba-cuda, the dialect")
        from tests.simt.gpu import emulated_gpu

        with emulated_gpu():
            yield "cuda"
        return
    yield "cpu"


def chains_to_passes(public: Callable[[], Any]) -> list[list[str]]:
    """Return the functions of ours that were open where passes began."""
    opened: list[tuple[str, str]] = []
    chains: list[list[str]] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        ours = code.co_filename.startswith(ROOT)
        if not ours or code.co_name.startswith("<"):  # as a comprehension
            return
        if event == "call":
            if code.co_filename in FOLDERS and not FOLDERS & {f for _, f in opened}:
                chains.append([name for name, _ in opened])
            opened.append((code.co_name, code.co_filename))
        elif event == "return" and opened:
            opened.pop()

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        public()
    finally:
        sys.setprofile(before)
    return chains


@pytest.mark.drawn(3)
@pytest.mark.parametrize("called", ["foldmap", "iterate"])
@pytest.mark.parametrize("name", ["bfs", "label_propagation", "pagerank"])
def test_few_hops_lead_to_the_first_pass(name: str, called: str, where: str) -> None:
    program, rng = BY_NAME[name], np.random.default_rng(3)
    foldmap = fg.FoldMap(program.foldmaps[0].program)  # has folded nothing
    ends = rng.integers(0, 30, (2, 80))
    graph = fg.Graph.from_edges(*ends, vertex_count=30, directed=not program.undirected)
    state = fg.State(graph, **program.make_state(graph, program.widths[0], rng))

    def run() -> None:
        if called == "foldmap":
            foldmap(state, target=where)
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fg.ConvergenceWarning)
            fg.iterate(foldmap, state, max_supersteps=1, target=where)

    chains = chains_to_passes(run)
    public = {"foldmap": "__call__", "iterate": "iterate"}[called]
    assert {chain[0] for chain in chains} == {public}
    assert {chain[-1] for chain in chains} >= {"_print_function"}
    for chain in chains:
        assert len(chain) <= MOST, " -> ".join(chain)
