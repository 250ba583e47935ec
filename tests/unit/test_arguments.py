"""Every public function with absurd arguments: it runs, or names the wrong one.

Nothing may have run before: what algorithms call is replaced, but in the deep profile.
"""

from __future__ import annotations

import inspect
import random
import re
import signal
import warnings
import zlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import settings
from scipy import sparse

import featgraph as fg
from featgraph import algorithms, distributed
from featgraph import graph as graphs
from featgraph.base.config import Config
from featgraph.program.operations import Collaborative, Operation
from featgraph.runtime.checkpoints.public import NAMES
from featgraph.runtime.superstep.foldmap import FoldMap

#: One of each kind that people, or programs, give by mistake.
ABSURD: dict[str, Any] = {
    "None": None,
    "nan": float("nan"),
    "inf": float("inf"),
    "-1": -1,
    "0": 0,
    "2.5": 2.5,
    "10**400": 10**400,
    "-2**63": -(2**63),
    "no": "no",
    "empty text": "",
    "NUL": "\0",
    "surrogate": "\ud800",
    "bytes": b"x",
    "True": True,
    "complex": 1j,
    "fraction": Fraction(1, 2),
    "float32": np.float32(1.5),
    "nan32": np.float32("nan"),
    "int8": np.int8(-1),
    "bool_": np.bool_(True),
    "0-d": np.array(3),
    "0-d text": np.array("x"),
    "empty array": np.array([]),
    "matrix": np.ones((2, 2)),
    "empty list": [],
    "list of None": [None],
    "dict": {},
    "set": set(),
    "object": object(),
    "lambda": lambda *_: 0,
    "class": int,
}
#: How many of them a parameter is given, but in the deep profile.
SAMPLED = 4


@fg.gather(into="s", combine="sum")
def from_sources(f, u, v, e, d):
    return d.x[u]


@fg.vertex
def add_up(f, v, d):
    d.x_next[v] = d.s[v]
    return d.s[v] > d.x[v]


def value(f, v, d):
    return d.x[v]


def larger(a, b):
    return max(a, b)


STEP = fg.foldmap(from_sources, add_up)
ENDS = [0, 1, 2, 2], [1, 2, 0, 3]
DIRECTED = fg.Graph.from_edges(*ENDS)
GRAPH = fg.Graph.from_edges(*ENDS, directed=False)
MODEL = fg.FactorGraph({"a": 2, "b": 2}, [(["a", "b"], [[1, 2], [2, 1]])])
RATINGS = sparse.csr_matrix(np.array([[1.0, 0, 2], [0, 3, 1]]))
SEEDS = [0, -1, -1, 1]
ONES = np.ones((4, 2), np.float32)


def call_on_dynamic(name: str) -> Any:
    """Return a function that calls a method on a dynamic graph."""

    def call(**given: Any) -> Any:
        graph = fg.DynamicGraph.from_edges(*ENDS, weights=[1.0, 2, 3, 4], target="cpu")
        return getattr(graph, name)(**given)

    return call


def trimmed_state() -> fg.State:
    graph = fg.DynamicGraph.from_edges(*ENDS, target="cpu")
    state = fg.State(
        graph, x=fg.vertex_property(np.ones(4)),
        previous=fg.vertex_property(np.array([-1, 0, 1, 2])),
    )  # fmt: skip
    graph.delete_edges([0], [1])
    return state


def make_state() -> fg.State:
    return fg.State(DIRECTED, x=fg.vertex_property(np.ones(4), iterated=True))


def fitted() -> algorithms.AlternatingLeastSquares:
    made = algorithms.AlternatingLeastSquares(factors=2)
    made.user_factors, made.item_factors = ONES[:2], ONES[:3]
    return made


def configure(**given: Any) -> None:
    changed = Config()
    for name, value in given.items():
        setattr(changed, name, value)


def fit(model: Any, *data: Any) -> Callable[..., Any]:
    """Return a function that constructs an estimator and fits it."""

    def call(**given: Any) -> Any:
        return model(**given).fit(*data)

    call.__signature__ = inspect.signature(model)  # type: ignore[attr-defined]
    return call


def declared(decorator: Any, function: Any) -> Callable[..., Any]:
    def call(**given: Any) -> Any:
        return decorator(**given)(function)

    call.__signature__ = inspect.signature(decorator)  # type: ignore[attr-defined]
    return call


#: Functions of `featgraph.algorithms` -> their graph and what they need besides.
OF_ALGORITHMS: dict[str, dict[str, Any]] = {
    "als": {"ratings": RATINGS, "factors": 2, "iterations": 1},
    "belief_propagation": {"graph": GRAPH, "unary": ONES, "pairwise": np.ones((2, 2))},
    "bfs": {"graph": GRAPH, "sources": 0},
    "circuit_simulation": {"graph": GRAPH, "voltages": [1.0, np.nan, np.nan, 0.0]},
    "factor_propagation": {"model": MODEL},
    "gradient_factorization": {"ratings": RATINGS, "factors": 2, "iterations": 1},
    "heat_simulation": {"graph": GRAPH, "temperatures": np.ones(4)},
    "label_propagation": {"graph": GRAPH, "labels": SEEDS},
    "label_set_propagation": {"graph": GRAPH, "labels": np.c_[SEEDS]},
    "multi_manifold_ranking": {"graph": GRAPH, "query": [1.0, 0, 0, 0],
                               "weights": np.ones((4, 2))},
    "multimodal_learning": {"graph": GRAPH, "given": ONES, "weights": np.ones((4, 2))},
    "neural_network": {"graph": DIRECTED, "inputs": np.ones(4)},
    "sgd_factorization": {"ratings": RATINGS, "factors": 2, "epochs": 1},
    "sssp": {"graph": GRAPH, "sources": 0},
    "sswp": {"graph": GRAPH, "sources": 0},
}  # fmt: skip
FRAME = pd.DataFrame({"source": [0, 1], "target": [1, 2]})


#: Other functions, with arguments that they take.
OTHERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "AlternatingLeastSquares": (
        fit(algorithms.AlternatingLeastSquares, RATINGS),
        {"factors": 2, "iterations": 1, "target": "cpu"},
    ),
    "LabelPropagation": (
        fit(algorithms.LabelPropagation, GRAPH, SEEDS), {"target": "cpu"}
    ),
    "MatrixFactorization": (
        fit(algorithms.MatrixFactorization, RATINGS),
        {"factors": 2, "epochs": 1, "target": "cpu"},
    ),
    "LabelPropagation of points": (
        fit(algorithms.LabelPropagation, np.eye(4), SEEDS), {"target": "cpu"}
    ),
    "config": (configure, {}),
    "Graph.from_edges": (fg.Graph.from_edges, {"sources": [0, 1], "targets": [1, 2]}),
    "DynamicGraph.from_edges": (
        fg.DynamicGraph.from_edges, {"sources": [0, 1], "targets": [1, 2]}
    ),
    "DynamicGraph.from_graph": (fg.DynamicGraph.from_graph, {"graph": GRAPH}),
    **{
        f"DynamicGraph.{name}": (call_on_dynamic(name), given)
        for name, given in {
            "insert_edges": {"sources": [0], "targets": [1], "weights": [1.0]},
            "delete_edges": {"sources": [0], "targets": [1], "copies": "all",
                             "missing": "ignore"},
            "update": {"sources": [0], "targets": [1], "insert": [True],
                       "weights": [1.0]},
            "insert_vertices": {"vertices": 2},
            "delete_vertices": {"vertices": [1]},
            "contains": {"sources": [0], "targets": [1]},
            "neighbors": {"vertex": 1},
            "changes": {"since": 0},
            "column": {"name": "weight"},
        }.items()
    },
    "TemporalEdges": (
        fg.TemporalEdges,
        {"s": [0, 1], "t": [1, 2], "times": [1, 2], "weights": [1.0, 2.0]},
    ),
    "TemporalEdges.window": (
        fg.TemporalEdges([0, 1], [1, 2], [1, 2]).window,
        {"length": 2, "step": 1, "start": 1},
    ),
    "read_temporal": (fg.read_temporal, {"path": "events.txt"}),
    "trim": (
        lambda **given: fg.trim(trimmed_state(), **given),
        {"source": "previous", "reset": {"x": 1.0}},
    ),
    "Graph.from_biadjacency": (fg.Graph.from_biadjacency, {"matrix": RATINGS}),
    "Graph.from_networkx": (
        fg.Graph.from_networkx, {"source": nx.Graph([(0, 1)])}
    ),
    "Graph.from_pandas": (fg.Graph.from_pandas, {"frame": FRAME}),
    "Graph.from_scipy": (fg.Graph.from_scipy, {"matrix": sparse.eye(3)}),
    "Graph.partition": (GRAPH.partition, {"parts": 2}),
    "Graph.orient": (GRAPH.orient, {}),
    "Graph.vertex_index": (GRAPH.vertex_index, {"name": 1}),
    "as_graph": (fg.as_graph, {"source": "edges.txt"}),
    "distribute": (fg.distribute, {"graph": GRAPH}),
    "iterate": (fg.iterate, {"steps": STEP, "state": make_state,
                             "target": "cpu", "max_supersteps": 1}),
    "FoldMap()": (STEP, {"state": make_state, "target": "cpu"}),
    "FoldMap.fold": (STEP.fold, {"target": "cpu"}),
    "FoldMap.explain": (STEP.explain, {"target": "cpu"}),
    "FoldMap.on": (STEP.on, {"vertices": [0]}),
    "State": (lambda graph: fg.State(graph), {"graph": GRAPH}),
    "State.load": (fg.State.load, {"path": "state", "graph": GRAPH}),
    "State.save": (lambda path: make_state().save(path), {"path": "state"}),
    "State.view": (lambda name: make_state().view(name), {"name": "x"}),
    "State.local": (lambda name: make_state().local(name), {"name": "x"}),
    "vertex_property": (
        lambda **given: fg.State(DIRECTED, x=fg.vertex_property(**given)),
        {"values": 1.0, "iterated": ..., "dtype": ..., "shape": ..., "copy": ...,
         "at": ..., "entries": ...},
    ),
    "edge_property": (
        lambda **given: fg.State(GRAPH, x=fg.edge_property(**given)),
        {"values": 1.0, "iterated": ..., "dtype": ..., "shape": ..., "copy": ...,
         "per_direction": ...},
    ),
    "ActiveSet": (fg.ActiveSet, {"vertex_count": 3}),
    "Checkpoints": (fg.Checkpoints, {"folder": "kept"}),
    "NearFar": (fg.NearFar, {"key": "x"}),
    "above": (fg.above, {"name": "x", "limit": 1.0}),
    "below": (fg.below, {"name": "x", "limit": 1.0}),
    "combine": (fg.combine, {"function": larger, "identity": 0.0}),
    "gather": (declared(fg.gather, from_sources.function), {"into": "s"}),
    "reduce": (
        declared(fg.reduce, value), {"into": "s"}
    ),
    "FactorGraph": (fg.FactorGraph, {"variables": {"a": 2}, "factors": []}),
    "FactorGraph.given": (MODEL.given, {"evidence": {"a": 0}}),
    "FactorGraph.log_score": (MODEL.log_score, {"states": [0, 0]}),
    "FactorGraph.state": (MODEL.state, {"variable": "a", "name": 0}),
    "FactorGraph.variable": (MODEL.variable, {"name": "a"}),
    "newest_checkpoint": (fg.newest_checkpoint, {"folder": "none"}),
    "Partition": (graphs.Partition, {"cuts": [0, 2, 4]}),
    "forecast": (distributed.forecast, {"graph": GRAPH}),
    "run_ranks": (distributed.run_ranks,
                  {"size": 2, "function": lambda engine: engine.rank}),
    "complete_graph": (graphs.complete_graph, {"vertex_count": 3}),
    "cycle_graph": (graphs.cycle_graph, {"vertex_count": 3}),
    "path_graph": (graphs.path_graph, {"vertex_count": 3}),
    "star_graph": (graphs.star_graph, {"vertex_count": 3}),
    "erdos_renyi": (
        graphs.erdos_renyi, {"vertex_count": 3, "edge_count": 2, "seed": 1}
    ),
    "grid": (graphs.grid, {"rows": 2, "columns": 2}),
    "ratings": (graphs.ratings, {"user_count": 3, "item_count": 2,
                                 "rating_count": 4, "seed": 1}),
    "rmat": (graphs.rmat, {"scale": 3, "edge_factor": 2, "seed": 1}),
    "uniform": (graphs.uniform, {"vertex_count": 3, "edge_count": 2, "seed": 1}),
}  # fmt: skip


def calls() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Return public functions by name, with arguments that they take."""
    found: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}
    for name in algorithms.__all__:
        function = getattr(algorithms, name)
        if inspect.isfunction(function):
            given = OF_ALGORITHMS.get(name, {"graph": GRAPH})
            found[name] = function, {**given, "target": "cpu"}
    model = fitted()
    for method in ("predict", "recommend", "similar_items", "similar_users", "save"):
        found[method] = getattr(model, method), {
            "predict": {"userids": [0], "itemids": [1]},
            "recommend": {"userid": 0, "user_items": RATINGS[:1]},
            "similar_items": {"itemid": 0}, "similar_users": {"userid": 0},
            "save": {"path": "model.npz"},
        }[method]  # fmt: skip
    found |= OTHERS
    found["write_arrays"] = fg.write_arrays, {"path": "arrays.npz", "arrays": {}}
    for name in fg.__all__:
        if name.startswith("read_"):
            found[name] = getattr(fg, name), {"path": "edges.txt"}
    found["Result.view"] = lambda name: ranked().view(name), {"name": "ranks"}
    found["Result.local"] = lambda name: ranked().local(name), {"name": "ranks"}
    return found


@cache
def ranked() -> Any:
    return algorithms.pagerank(DIRECTED, target="cpu")


#: Public names that are no functions of arguments, and why.
NOT_CALLED = {
    "in user functions, which parsing checks": {"atomic", "nothing"},
    "take one function, and say what it is not: test_functions": {
        "collaborative", "edge", "edgemap", "foldmap", "triangle", "trianglemap",
        "vertex", "vertexmap", "algorithm", "checked_arguments", "checkpointed",
    },
    "made by featgraph, or types": {
        "Adjacency", "Engine", "Factor", "FoldMap", "Graph", "GraphLike", "Held",
        "NullEngine", "Partition", "Run", "Shard", "StoppingTest", "Traffic", "View",
        "distributed", "GivenArray",
    },
    "constants of a machine, checked as a whole: model/test_times": {"H200", "Machine"},
    "take no argument of a caller's": {"current_engine", "restart_count", "calibrate"},
    "is called once a process: test_start": {"init"},
    "arrays: test_given_arrays": {"given_array"},
    "of the innermost loop of an algorithm": {"rounds"},
}  # fmt: skip


CALLS = calls()


class Ran(Exception):
    """An algorithm has begun: its arguments were taken."""


def run(*_: Any, **__: Any) -> None:
    raise Ran


def stop(*_: Any) -> None:
    raise TimeoutError("the call has not ended")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in a folder of its own, for a minute at most."""
    monkeypatch.chdir(tmp_path)
    Path("edges.txt").write_text("0 1 2\n1 2 1\n")
    make_state().save("state")
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(3000 if is_deep() else 60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def is_deep() -> bool:
    return settings.get_current_profile_name() == "deep"


def parameters(function: Any, given: dict[str, Any]) -> list[str]:
    own = inspect.signature(function).parameters.values()
    kinds = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    found = [p.name for p in own if p.kind not in kinds]
    more = set(given) - {p.name for p in own}
    found += sorted(more)
    is_ours = function.__module__.startswith("featgraph")
    takes_any = is_ours and any(p.kind is p.VAR_KEYWORD for p in own)
    return found + [n for n in NAMES if takes_any and n not in found]


def outcome(name: str, parameter: str, value: Any) -> str:
    """Return the fault in a function's handling of a value, or an empty text."""
    if parameter == "function" and value is int:
        return ""  # which raises errors of its own
    function, given = CALLS[name]
    arguments = {
        n: v() if v is make_state else v for n, v in given.items() if v is not ...
    } | {parameter: value}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(**arguments)
    except Ran:
        return ""
    except fg.FileFormatError:
        return ""  # the file has no such thing
    except fg.FeatGraphError as error:
        name = CALLED.get(parameter, parameter.rstrip("s"))
        named = re.search(rf"\b(?:{name})", str(error))
        return "" if named else f"does not name it: {error.what}"
    except Exception as error:
        is_file = isinstance(error, OSError) and parameter in PATHS
        return "" if is_file else repr(error)
    return ""


#: Parameters that may be a graph or a path, and what errors call them.
CALLED = {
    "graph": "graph|format|path",
    "source": "graph|format|path|source",
    "name": "name|property|array|vertex|state|variable",
    "path": "path|file|folder|format",
    "values": "property",
    "active_in": "active set|vertices|vertex",
    "vertices": "vertices|vertex",
    "function": "function|def",
    "matrix": "matrix|parameters",
}
#: Parameters that are paths: that there is no such file is said by the system.
PATHS = {"path", "source"}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", CALLS)
def test_absurd_arguments_are_taken_or_named(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in algorithms.__all__ and not is_deep():
        monkeypatch.setattr(fg, "iterate", run)
        monkeypatch.setattr(FoldMap, "__call__", run)
    draw, wrong = random.Random(zlib.crc32(name.encode())), []
    for parameter in parameters(*CALLS[name]):
        count = len(ABSURD) if is_deep() else SAMPLED
        for shown in draw.sample(list(ABSURD), count):
            found = outcome(name, parameter, ABSURD[shown])
            if found:
                wrong.append(f"{name}({parameter}={shown}): {found}")
    assert not wrong, "\n".join(wrong)


def test_all_public_functions_are_tried() -> None:
    tried = {name.partition("(")[0].partition(".")[0] for name in CALLS}
    for module in (fg, graphs, distributed, algorithms):
        # Parsing checks calls of operations.
        public = {
            name for name in module.__all__
            if not isinstance(found := getattr(module, name), Operation | Collaborative)
            and not (inspect.isclass(found) and issubclass(found, Exception))
        }  # fmt: skip
        assert public - tried - set().union(*NOT_CALLED.values()) == set()
