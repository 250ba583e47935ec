"""Graph arguments of algorithms, refusals, and import paths."""

from __future__ import annotations

import importlib
import inspect
import pickle
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

import featgraph as fg
from featgraph import algorithms

ROOT = Path(__file__).parents[2]
#: Functions whose first argument is a graph.
TAKE_GRAPHS = [
    name
    for name in algorithms.__all__
    if inspect.isfunction(value := getattr(algorithms, name))
    and next(iter(inspect.signature(value).parameters)) == "graph"
]
#: Those that need an undirected graph, and read edges that do not say as such.
UNDIRECTED = {
    "belief_propagation", "circuit_simulation", "clustering", "k_truss",
    "triangle_count",
}  # fmt: skip


def forms(ends: Any, folder: Path, *, undirected: bool) -> list[Any]:
    matrix = sparse.coo_array((np.ones(3, bool), ends), shape=(3, 3)).tocsr()
    if undirected:
        matrix = matrix.maximum(matrix.T)
    kind = nx.Graph if undirected else nx.DiGraph
    columns = {"source": ends[0], "target": ends[1]}
    path = folder / "edges.txt"
    path.write_text("".join(f"{u} {v}\n" for u, v in zip(*ends, strict=True)))
    return [
        matrix,
        sparse.csc_matrix(matrix),
        kind(list(zip(*ends, strict=True))),
        pd.DataFrame(columns),
        pl.DataFrame(columns),
        path,
        str(path),
    ]


@pytest.mark.parametrize("undirected", [False, True])
def test_every_form_is_the_same_graph(undirected: bool, tmp_path: Path) -> None:
    ends = [0, 0, 1], [1, 2, 2]
    expected = fg.Graph.from_edges(*ends, directed=not undirected)
    for form in forms(ends, tmp_path, undirected=undirected):
        found = fg.as_graph(form, directed=False if undirected else None)
        assert found.digest == expected.digest
        assert found.weights is None
    assert fg.as_graph(expected, directed=undirected) is expected


@pytest.mark.parametrize("name", ["pagerank", "triangle_count"])
def test_algorithms_take_every_form(name: str, tmp_path: Path) -> None:
    ends, undirected = ([0, 0, 1], [1, 2, 2]), name in UNDIRECTED
    function = getattr(algorithms, name)
    graph = fg.Graph.from_edges(*ends, directed=not undirected)
    for form in forms(ends, tmp_path, undirected=undirected):
        result, other = function(graph, target="cpu"), function(form, target="cpu")
        for field in fields(result):
            value = getattr(result, field.name)
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(getattr(other, field.name), value)


@pytest.mark.parametrize("name", TAKE_GRAPHS)
def test_each_algorithm_names_its_edges(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SeenError(Exception):
        pass

    seen = []

    def watch(source: Any, *, directed: bool | None = None) -> Any:
        seen.append((source, directed))
        raise SeenError

    monkeypatch.setattr(fg, "as_graph", watch)
    function = getattr(algorithms, name)
    for call in (function, getattr(sys.modules[function.__module__], f"verify_{name}")):
        with pytest.raises(SeenError):
            call("here", **needed(call))
    assert seen == [("here", False if name in UNDIRECTED else None)] * 2


def needed(call: Any) -> dict[str, None]:
    """Return the arguments that a function needs beside its graph."""
    parameters = list(inspect.signature(call).parameters.values())[1:]
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        p.name: None for p in parameters if p.default is p.empty and p.kind not in kinds
    }


class Weird:
    """An object with a name that errors show."""


NO_GRAPHS = {
    "a dense matrix": (np.eye(3), "ndarray", "coo_array"),
    "arrays": (([0, 1], [1, 2]), "tuple", "from_edges"),
    "none": (None, "NoneType", "from_edges"),
    "a number": (3, "int", "from_edges"),
    "bytes": (b"graph.txt", "bytes", "from_edges"),
    "an object": (Weird(), "Weird", "from_edges"),
    "a class": (nx.Graph, "type", "from_edges"),
    "a dictionary": ({0: [1]}, "dict", "from_edges"),
}


@pytest.mark.parametrize(("given", "type_", "fix"), NO_GRAPHS.values(), ids=NO_GRAPHS)
def test_anything_else_is_refused_by_name(given: Any, type_: str, fix: str) -> None:
    with pytest.raises(fg.GraphInputError, match="not a graph") as caught:
        algorithms.pagerank(given)
    assert type_ in str(caught.value.got)
    assert fix in str(caught.value.fix)


def test_names_come_with_results(tmp_path: Path) -> None:
    drawn = nx.DiGraph([("b", "a"), ("c", "a"), ("a", "b")])
    found = algorithms.pagerank(drawn, target="cpu")
    assert found.vertex_names == ("b", "a", "c")
    by_name = dict(zip(found.vertex_names, found.ranks, strict=True))
    for node, rank in nx.pagerank(drawn).items():
        assert by_name[node] == pytest.approx(rank, abs=1e-5)
    frame = pd.DataFrame({"source": ["b", "c", "a"], "target": ["a", "a", "b"]})
    assert algorithms.pagerank(frame, target="cpu").vertex_names == ("b", "a", "c")
    path = tmp_path / "sparse_ids.txt"
    path.write_text("70 50\n90 50\n50 70\n")
    assert list(algorithms.bfs(path, 0, target="cpu").vertex_names) == [50, 70, 90]
    # A name that is a number is that vertex, whatever comes first.
    turned = nx.DiGraph([(2, 0), (1, 0), (0, 2)])
    plain = algorithms.pagerank(turned, target="cpu")
    assert plain.vertex_names is None
    for node, rank in nx.pagerank(turned).items():
        assert plain.ranks[node] == pytest.approx(rank, abs=1e-5)
    assert algorithms.k_core(nx.DiGraph([("x", "y")]), target="cpu").vertex_names == (
        "x",
        "y",
    )


def test_weights_are_those_of_the_form() -> None:
    ends, weights = ([0, 1, 0], [1, 2, 2]), [1.0, 1.0, 5.0]
    expected = algorithms.sssp(
        fg.Graph.from_edges(*ends, weights=weights), 0, target="cpu"
    ).distances.tolist()
    assert expected == [0, 1, 2]
    drawn = nx.DiGraph()
    drawn.add_weighted_edges_from(zip(*ends, weights, strict=True))
    frame = pd.DataFrame({"source": ends[0], "target": ends[1], "weight": weights})
    for form in (drawn, frame, sparse.coo_array((weights, ends), shape=(3, 3))):
        assert algorithms.sssp(form, 0, target="cpu").distances.tolist() == expected


def test_the_package_lists_functions_and_estimators() -> None:
    assert dir(algorithms) == algorithms.__all__ == sorted(algorithms.__all__)
    for name in algorithms.__all__:
        value = getattr(algorithms, name)
        assert inspect.isfunction(value) or inspect.isclass(value)
        assert value.__name__ == name
        module = importlib.import_module(value.__module__)
        assert getattr(module, name) is value
        assert getattr(algorithms, name) is value, "the module has taken its place"
        assert pickle.loads(pickle.dumps(value)) is value
    with pytest.raises(AttributeError, match="no attribute 'pageranks'"):
        algorithms.pageranks  # noqa: B018


@pytest.mark.parametrize(
    "code",
    [
        "from featgraph.algorithms import pagerank",
        "from featgraph.algorithms.pagerank import pagerank",
        "import featgraph.algorithms.pagerank\n"
        "pagerank = featgraph.algorithms.pagerank",
        "import featgraph.algorithms as a\n"
        "from featgraph.algorithms.pagerank import verify_pagerank\n"
        "pagerank = a.pagerank",
        "from featgraph.algorithms import *",
    ],
)
def test_a_function_and_not_its_module(code: str) -> None:
    check = "\nimport inspect\nassert inspect.isfunction(pagerank), pagerank"
    subprocess.run([sys.executable, "-c", code + check], cwd=ROOT, check=True)


def test_modules_are_loaded_when_first_used() -> None:
    code = (
        "import sys, featgraph.algorithms as a\n"
        "dir(a)\n"
        "loaded = [m for m in sys.modules if m.startswith('featgraph.algorithms.')]\n"
        "assert not loaded, loaded\n"
        "a.bfs\n"
        "assert 'featgraph.algorithms.pagerank' not in sys.modules\n"
        "assert 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
