"""Whatever a public call is given, it succeeds or raises an error of ours."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import featgraph as fg
from featgraph.algorithms import AlternatingLeastSquares
from featgraph.graph import (
    complete_graph,
    cycle_graph,
    erdos_renyi,
    grid,
    path_graph,
    rmat,
    star_graph,
)
from featgraph.graph.formats.readers import FORMATS

#: One of each kind that people, or programs, give by mistake.
ODD = {
    "None": None,
    "nan": float("nan"),
    "inf": float("inf"),
    "-1": -1,
    "2.5": 2.5,
    "10**400": 10**400,
    "no": "no",
    "empty text": "",
    "NUL": "\0",
    "bytes": b"x",
    "True": True,
    "complex": 1j,
    "fraction": Fraction(1, 2),
    "float32": np.float32(1.5),
    "float64": np.float64(1.5),
    "int8": np.int8(-1),
    "0-d": np.array(3),
    "0-d text": np.array("x"),
    "empty array": np.array([]),
    "matrix": np.ones((2, 2)),
    "dates": np.array([1, 2], "M8[s]"),
    "masked": np.ma.array([1, 2], mask=[True, False]),
    "empty list": [],
    "nested": [[]],
    "list of None": [None],
    "dict": {},
    "set": set(),
    "object": object(),
    "function": lambda *_: 0,
    "class": int,
}


@fg.gather(into="s", combine="sum")
def from_sources(f, u, v, e, d):
    return d.x[u]


@fg.vertex
def add_up(f, v, d):
    d.x_next[v] = d.s[v]
    return d.s[v] > d.x[v]


STEP = fg.foldmap(from_sources, add_up)
GRAPH = fg.Graph.from_edges([0, 1], [1, 2])
UNDIRECTED = fg.Graph.from_edges([0, 1], [1, 2], directed=False)
EDGE = nx.Graph([(0, 1)])
FRAME = pd.DataFrame({"source": [0, 1], "target": [1, 2]})
MODEL = fg.FactorGraph({"a": 2}, [])


def state() -> fg.State:
    return fg.State(GRAPH, x=fg.vertex_property([1.0, 2.0, 3.0], iterated=True))


def edges(**given: Any) -> fg.Graph:
    return fg.Graph.from_edges(**{"sources": [0, 1], "targets": [1, 2]} | given)


def run(**given: Any) -> fg.Run:
    return fg.iterate(STEP, state(), **{"max_supersteps": 1, "target": "cpu"} | given)


def gather(**given: Any) -> Any:
    return fg.gather(**{"into": "s", "combine": "sum"} | given)(from_sources.function)


def model() -> AlternatingLeastSquares:
    made = AlternatingLeastSquares(factors=2)
    made.user_factors = made.item_factors = np.ones((2, 2), np.float32)
    return made


def recommend(**given: Any) -> Any:
    rows = sparse.csr_matrix(np.eye(2)[:1])
    return model().recommend(**{"userid": 0, "user_items": rows} | given)


CALLS: dict[str, Callable[[Any], Any]] = {
    **{f"from_edges({key})": lambda x, key=key: edges(**{key: x}) for key in (
        "sources", "targets", "weights", "vertex_count", "directed", "duplicates",
        "names",
    )},
    **{f"from_pandas({key})": lambda x, key=key: fg.Graph.from_pandas(FRAME, **{key: x})
       for key in ("source", "target", "weight", "vertex_count", "directed",
                   "duplicates", "names")},
    "from_pandas": fg.Graph.from_pandas,
    "from_networkx": fg.Graph.from_networkx,
    "from_networkx(weight)": lambda x: fg.Graph.from_networkx(EDGE, weight=x),
    "from_scipy": fg.Graph.from_scipy,
    "from_scipy(directed)": lambda x: fg.Graph.from_scipy(sparse.eye(3), directed=x),
    "as_graph": fg.as_graph,
    "Graph": fg.Graph,
    "vertex_index": GRAPH.vertex_index,
    "expand_edge_values": GRAPH.expand_edge_values,
    "collect_edge_values": GRAPH.collect_edge_values,
    "collect_edge_values(per_direction)": lambda x: UNDIRECTED.collect_edge_values(
        np.zeros(4), x
    ),
    "rmat(a)": lambda x: rmat(3, 2, seed=1, a=x),
    "rmat(b)": lambda x: rmat(3, 2, seed=1, b=x),
    "rmat(seed)": lambda x: rmat(3, 2, seed=x),
    "rmat(scale)": lambda x: rmat(x, 2, seed=1),
    "rmat(directed)": lambda x: rmat(3, 2, seed=1, directed=x),
    "rmat(duplicates)": lambda x: rmat(3, 2, seed=1, duplicates=x),
    "erdos_renyi": lambda x: erdos_renyi(x, 2, 1),
    "erdos_renyi(edge_count)": lambda x: erdos_renyi(3, x, 1),
    "erdos_renyi(directed)": lambda x: erdos_renyi(3, 2, 1, directed=x),
    "grid": lambda x: grid(x, 3),
    "path_graph": path_graph,
    "cycle_graph": cycle_graph,
    "star_graph": star_graph,
    "star_graph(directed)": lambda x: star_graph(3, directed=x),
    "complete_graph": complete_graph,
    "complete_graph(directed)": lambda x: complete_graph(3, directed=x),
    "State": fg.State,
    "State(x)": lambda x: fg.State(GRAPH, x=x),
    "vertex_property": lambda x: fg.State(GRAPH, x=fg.vertex_property(x)),
    "edge_property": lambda x: fg.State(GRAPH, x=fg.edge_property(x)),
    **{f"vertex_property({key})":
       lambda x, key=key: fg.State(GRAPH, x=fg.vertex_property(1.0, **{key: x}))
       for key in ("dtype", "iterated", "shape")},
    "state[...]": lambda x: state()[x],
    "state[...] =": lambda x: state().__setitem__(x, 1.0),
    "state['x'] =": lambda x: state().__setitem__("x", x),
    "FactorGraph(variables)": lambda x: fg.FactorGraph(x, []),
    "FactorGraph(states)": lambda x: fg.FactorGraph({"a": x}, []),
    "FactorGraph(factors)": lambda x: fg.FactorGraph({"a": 2}, x),
    "FactorGraph(factor)": lambda x: fg.FactorGraph({"a": 2}, [x]),
    "FactorGraph(scope)": lambda x: fg.FactorGraph({"a": 2}, [(x, [1, 2])]),
    "FactorGraph(table)": lambda x: fg.FactorGraph({"a": 2}, [(["a"], x)]),
    "given": MODEL.given,
    "given(state)": lambda x: MODEL.given({"a": x}),
    "ActiveSet": fg.ActiveSet,
    "ActiveSet(vertices)": lambda x: fg.ActiveSet(3, x),
    "vertex": fg.vertex,
    "edge": fg.edge,
    "collaborative": fg.collaborative,
    "foldmap": fg.foldmap,
    "gather(into)": lambda x: gather(into=x),
    "gather(combine)": lambda x: gather(combine=x),
    "on": STEP.on,
    "iterate(steps)": lambda x: fg.iterate(x, state()),
    "iterate(state)": lambda x: fg.iterate(STEP, x),
    "call": STEP,
    "call(active_in)": lambda x: STEP(state(), active_in=x, target="cpu"),
    "explain": STEP.explain,
    **{f"fold({key})": lambda x, key=key: STEP.fold(**{"target": "cpu", key: x})
       for key in ("state", "k", "dtype", "target", "direction", "schedule")},
    **{f"iterate({key})": lambda x, key=key: run(**{key: x}) for key in (
        "target", "direction", "schedule", "folding", "deterministic", "change_driven",
        "asynchronous", "near_far", "max_supersteps", "until", "callback", "progress",
        "nonsense",
    )},
    "recommend(user_items)": lambda x: recommend(user_items=x),
    "recommend(userid)": lambda x: recommend(userid=x),
}  # fmt: skip


#: Arguments that are called.
CALLED = {"iterate(until)", "iterate(callback)"}


def stop(*_: Any) -> None:
    raise TimeoutError("the call has not ended")


@pytest.mark.parametrize("name", CALLS)
def test_errors_are_ours(name: str) -> None:
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(30)
    try:
        for shown, value in ODD.items():
            if name == "as_graph" and isinstance(value, str):
                continue  # a path: there is no such file
            if name in CALLED and callable(value):
                continue  # what a function of the user's raises is the user's
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    CALLS[name](value)
            except fg.FeatGraphError:
                pass
            except Exception as error:
                raise AssertionError(f"{name} of {shown}: {error!r}") from error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


READERS = [
    *(getattr(fg, found.read.__name__) for found in FORMATS),
    fg.read_bif,
    fg.read_graph,
    fg.read_labels,
    fg.read_ratings,
    fg.read_uai,
    fg.read_uai_evidence,
    fg.read_uai_marginals,
]


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_readers(read: Any, tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text("0 1 2\n1 2 1\n")
    for shown, value in ODD.items():
        try:
            read(value)
        except (fg.FeatGraphError, OSError):
            pass
        except Exception as error:
            raise AssertionError(f"path {shown}: {error!r}") from error
        options = ["max_bytes"]
        if read is fg.read_edge_list:
            options += ["comments", "columns", "weights", "names", "directed"]
        for option in options:
            try:
                read(path, **{option: value})
            except fg.FeatGraphError:
                pass
            except Exception as error:
                raise AssertionError(f"{option}={shown}: {error!r}") from error
    with pytest.raises((fg.FeatGraphError, OSError)):
        read(tmp_path)


def test_errors_name_wrong_arguments(tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text("0 1\n")
    for call, part in (
        (lambda: fg.read_edge_list(None), "not a path"),
        (lambda: fg.read_edge_list("a\0b"), "no NUL"),
        (lambda: fg.read_edge_list(path, max_bytes="1"), "not a number of bytes"),
        (lambda: fg.read_edge_list(path, comments=None), "begin comments"),
        (lambda: fg.read_edge_list(path, columns=3), "the columns of an edge"),
        (lambda: edges(directed="no"), "directed="),
        (lambda: run(until=3), "until="),
        (lambda: recommend(user_items=np.ones((1, 2))), "a sparse matrix"),
    ):
        with pytest.raises(fg.FeatGraphError, match=part):
            call()
