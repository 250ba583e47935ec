"""Calls and files on the way of a run: first ones to the folder, and warm ones.

Calls on two ranks are counted in the thread of each, where plain messages are sent.

Supersteps whose parts are all kept are in test_kept_supersteps.py.
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
from featgraph import algorithms
from featgraph.cuda import dialect
from featgraph.fold.passes import passes
from featgraph.runtime.loops.background import COMPILER
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


#: Files of ours that the first fold of a process passes through, and calls of a warm
#: run on 200 vertices, or of a warm foldmap.
MOST_FILES = {"cpu": 71, "cuda": 78}
MOST_CALLS = {
    "bfs": 940,
    "connected_components": 520,
    "foldmap": 45,
    "label_propagation": 2200,
    "pagerank": 900,
}


def calls_within(public: Callable[[], Any]) -> list[str]:
    """Return the file of each call of ours."""
    found: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and (file.startswith(ROOT) or "/algorithms/" in file):
            found.append(file)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        public()
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize("on", MOST_FILES)
def test_few_files_are_on_the_way_of_a_fold(on: str) -> None:
    if on == "cuda" and not dialect.is_installed():
        pytest.skip("needs numba-cuda, the dialect")
    program, rng = BY_NAME["label_propagation"], np.random.default_rng(3)
    foldmap = fg.FoldMap(program.foldmaps[0].program)
    ends = rng.integers(0, 30, (2, 80))
    graph = fg.Graph.from_edges(*ends, vertex_count=30, directed=not program.undirected)
    state = fg.State(graph, **program.make_state(graph, program.widths[0], rng))
    files = set(calls_within(lambda: foldmap.kernel(state, on, {})))
    assert 40 < len(files) <= MOST_FILES[on], sorted(files)


@pytest.mark.parametrize("name", MOST_CALLS)
def test_few_calls_are_in_a_warm_run(name: str) -> None:
    ends = np.random.default_rng(1).integers(0, 200, (2, 800))
    directed = name != "label_propagation"
    graph = fg.Graph.from_edges(*ends, vertex_count=200, directed=directed)
    program, rng = BY_NAME["pagerank"], np.random.default_rng(3)
    foldmap = fg.FoldMap(program.foldmaps[0].program)
    state = fg.State(graph, **program.make_state(graph, program.widths[0], rng))
    labels = np.full(200, -1)
    labels[:5] = range(5)
    given = {
        "bfs": (graph, 0),
        "foldmap": (state,),
        "label_propagation": (graph, labels),
    }
    function: Any = getattr(algorithms, name, foldmap)

    def run() -> None:
        function(*given.get(name, (graph,)), target="cpu")

    for _ in range(3):
        run()
    COMPILER.wait()
    run()
    assert 40 < len(calls_within(run)) <= MOST_CALLS[name]


#: Calls of a warm superstep on each of two ranks, its exchange of rows included.
MOST_ON_RANKS = 150


@pytest.mark.parametrize("name", ["bfs", "label_propagation"])
def test_few_calls_are_in_a_superstep_on_two_ranks(name: str) -> None:
    program, rng = BY_NAME[name], np.random.default_rng(1)
    ends, directed = rng.integers(0, 200, (2, 800)), not program.undirected
    foldmap = fg.FoldMap(program.foldmaps[0].program)

    def on_a_rank(engine: Any) -> tuple[int, int]:
        graph = fg.Graph.from_edges(*ends, vertex_count=200, directed=directed)
        made = program.make_state(graph, program.widths[-1], np.random.default_rng(3))
        state = fg.State(fg.distribute(graph), **made)
        for _ in range(20):
            foldmap(state, target="cpu")
        COMPILER.wait()
        before = engine.exchanges
        count = len(calls_within(lambda: foldmap(state, target="cpu")))
        return count, engine.exchanges - before

    for count, exchanges in fg.distributed.run_ranks(2, on_a_rank):
        assert exchanges == 1
        assert 90 < count <= MOST_ON_RANKS
