"""Arrays that callers pass: one set of rules for all of them, and no value changes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import featgraph as fg
from featgraph import algorithms
from featgraph.algorithms import (
    AlternatingLeastSquares,
    LabelPropagation,
)
from featgraph.algorithms.pagerank import verify_pagerank
from featgraph.algorithms.ranking_metrics import ranking_metrics, rmse

ALGORITHMS = Path(__file__).parents[2] / "algorithms"
RING = fg.Graph.from_edges([0, 1, 2, 0], [1, 2, 0, 2])
CHAIN = fg.Graph.from_edges([0, 1, 2], [1, 2, 3], directed=False)
#: Ratings of a graph of two sides.
LIKES = sparse.csr_array(np.array([[5.0, 0, 1], [0, 2, 3]]))


def floats(*shape: int) -> Any:
    return np.linspace(1, 2, int(np.prod(shape))).reshape(shape)


#: Algorithm -> the graph, and an array for each argument that takes one. The second
#: value is what an error calls it, if that is another name.
GIVEN: dict[str, tuple[Any, dict[str, Any]]] = {
    "als": (LIKES, {"initial": floats(2, 2)}),
    "belief_propagation": (
        CHAIN,
        {"unary": floats(4, 2), "pairwise": floats(2, 2), "evidence": [-1, 0, -1, 1]},
    ),
    "betweenness_centrality": (RING, {"sources": [0, 1], "weights": floats(4)}),
    "bfs": (RING, {"sources": [0, 1]}),
    "circuit_simulation": (
        CHAIN,
        {"voltages": floats(4), "conductances": floats(3), "currents": floats(4)},
    ),
    "closeness_centrality": (RING, {"vertices": [0, 1], "weights": floats(4)}),
    "eigenvector_centrality": (RING, {"weights": floats(4), "nstart": floats(3)}),
    "gradient_factorization": (LIKES, {"initial": floats(2, 2)}),
    "heat_simulation": (
        CHAIN,
        {
            "temperatures": floats(4),
            "conductivities": floats(3),
            "held": [True, False, False, False],
        },
    ),
    "hits": (RING, {"weights": floats(4), "nstart": floats(3)}),
    "katz_centrality": (RING, {"beta": floats(3), "weights": floats(4)}),
    "label_propagation": (CHAIN, {"labels": [0, -1, -1, 1], "weights": floats(3)}),
    "label_set_propagation": (
        CHAIN,
        {"labels": [[0, 1], [-1, -1], [-1, -1], [1, 0]], "weights": floats(3)},
    ),
    "multi_manifold_ranking": (CHAIN, {"query": floats(4), "weights": floats(3, 2)}),
    "multimodal_learning": (
        CHAIN,
        {"given": floats(4), "weights": floats(3, 2), "alpha": floats(2) / 10},
    ),
    "neural_network": (
        RING,
        {"inputs": floats(3), "weights": floats(4), "bias": floats(3)},
    ),
    "pagerank": (
        RING,
        {
            "personalization": floats(3),
            "dangling": floats(3),
            "weights": floats(4),
            "nstart": floats(3),
        },
    ),
    "pagerank_push": (RING, {"personalization": floats(3), "weights": floats(4)}),
    "sgd_factorization": (LIKES, {"initial": floats(2, 2)}),
    "sssp": (RING, {"sources": [0, 1], "weights": floats(4)}),
    "sswp": (RING, {"sources": [0, 1], "weights": floats(4)}),
}


def masked(good: Any) -> Any:
    hidden = np.zeros(good.shape, bool)
    hidden.flat[0] = True
    return np.ma.array(good, mask=hidden)


def ragged(good: Any) -> Any:
    rows: list[Any] = good.tolist()
    return [[rows[0]], *([row, row] for row in rows)]


def missing(good: Any) -> Any:
    items = good.astype(object)
    items.flat[0] = None
    return items.tolist()


def objects(good: Any) -> Any:
    return np.full(good.shape, object())


#: Kind of array -> what makes one of a good one.
BAD: dict[str, Callable[[Any], Any]] = {
    "masked": masked,
    "ragged": ragged,
    "None": missing,
    "objects": objects,
    "text": lambda good: good.astype(str),
    "bytes": lambda good: good.astype("S4"),
    "complex": lambda good: good.astype(complex),
    "timedelta": lambda good: good.astype("m8[s]"),
    "dates": lambda good: good.astype("m8[s]") + np.datetime64("2020-01-01"),
    "huge": lambda good: np.full(good.shape, 10**400, object).tolist(),
    "missing": lambda good: pd.Series([None, *good.ravel()[1:]], dtype="Float64"),
}

ARGUMENTS = [(name, each) for name, (_, given) in GIVEN.items() for each in given]


def refused(
    call: Callable[[], Any],
    where: str,
    kind: type[fg.FeatGraphError] = fg.GraphInputError,
) -> fg.FeatGraphError:
    """Return the error of a call: where, what was given, and what helps."""
    with pytest.raises(kind) as caught:
        call()
    error = caught.value
    assert type(error) is kind
    assert where in str(error.where)
    assert error.got is not None
    assert error.expected is not None or error.fix is not None
    return error


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_an_array_that_is_none_of_numbers_is_refused(name: str, argument: str) -> None:
    function = getattr(algorithms, name)
    graph, good = GIVEN[name]
    needed = inspect.signature(function).parameters
    given = {
        key: value
        for key, value in good.items()
        if needed[key].default is inspect._empty
    }
    if name in {"als", "gradient_factorization", "sgd_factorization"}:
        given["factors"] = 2
    for make in BAD.values():
        bad = make(np.asarray(good[argument]))
        bad = (bad, floats(3, 2)) if argument == "initial" else bad
        refused(
            lambda bad=bad: function(graph, target="cpu", **given | {argument: bad}),  # type: ignore[misc]
            argument,
        )


def test_the_table_has_every_argument_that_takes_an_array() -> None:
    found = {
        (name, key)
        for name in algorithms.__all__
        if inspect.isfunction(function := getattr(algorithms, name))
        for key, one in inspect.signature(function).parameters.items()
        if "Array" in str(one.annotation) or "ByVertex" in str(one.annotation)
    }
    assert found == set(ARGUMENTS)


#: NumPy's functions that drop masks, and make text and objects arrays.
BARE = {"asarray", "asanyarray", "array", "atleast_1d", "ndim", "shape"}


@pytest.mark.parametrize(
    "path", sorted(ALGORITHMS.glob("[a-z]*.py")), ids=lambda path: path.name
)
def test_no_argument_is_taken_past_the_rules(path: Path) -> None:
    for function in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(function, ast.FunctionDef) or function.name.startswith("_"):
            continue
        names = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
        bare = [
            call.lineno
            for call in ast.walk(function)
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and ast.unparse(call.func.value) == "np"
            and call.func.attr in BARE
            and isinstance(call.args[0], ast.Name)
            and call.args[0].id in names
        ]
        assert not bare, f"{path.name}:{bare}: fg.given_array has the rules"


def model() -> AlternatingLeastSquares:
    made = AlternatingLeastSquares(factors=2)
    made.user_factors, made.item_factors = floats(2, 2), floats(3, 2)
    return made


def fitted() -> LabelPropagation:
    made = LabelPropagation(target="cpu")
    made.graph_, made.classes_ = CHAIN, np.array([5, 9])
    made.label_distributions_ = floats(4, 2)
    return made


def no_filter(**given: Any) -> Any:
    return model().recommend(
        **{"userid": 0, "filter_already_liked_items": False} | given
    )


TWO = fg.FactorGraph({"a": 2, "b": 2}, [(("a",), [1, 2])])

#: Other calls that take arrays: the argument, a good array, and the call.
CALLS: dict[str, tuple[str, Any, Callable[[Any], Any]]] = {
    "ActiveSet": ("active set", [0, 1], lambda x: fg.ActiveSet(3, x)),
    "given_array": ("here", floats(3), lambda x: fg.given_array(x, where="here")),
    "from_edges": (
        "weights",
        floats(2),
        lambda x: fg.Graph.from_edges([0, 1], [1, 2], weights=x),
    ),
    "vertex_property": (
        "'x'",
        floats(3),
        lambda x: fg.State(RING, x=fg.vertex_property(x)),
    ),
    "edge_property": (
        "'x'",
        floats(4),
        lambda x: fg.State(RING, x=fg.edge_property(x)),
    ),
    "at=": (
        "at=",
        [0, 1],
        lambda x: fg.State(RING, x=fg.vertex_property(0.0, at=x, entries=1.0)),
    ),
    "entries=": (
        "'x'",
        floats(2),
        lambda x: fg.State(RING, x=fg.vertex_property(0.0, at=[0, 1], entries=x)),
    ),
    "vector": ("'x'", floats(3), lambda x: fg.State(RING, x=x)),
    "table": ("factor 0", floats(2), lambda x: fg.FactorGraph({"a": 2}, [(("a",), x)])),
    "log_score": ("states", [0, 1], TWO.log_score),
    "predict(users)": ("user", [0, 1], lambda x: model().predict(x, 0)),
    "predict(items)": ("item", [0, 1], lambda x: model().predict(0, x)),
    "recommend": ("userid", [0, 1], lambda x: no_filter(userid=x)),
    "recommend(items)": ("item", [0, 1], lambda x: no_filter(items=x)),
    "similar_items": ("item", [0, 1], lambda x: model().similar_items(x)),
    "similar_users": ("user", [0, 1], lambda x: model().similar_users(0, users=x)),
    "partial_fit": ("user", [0, 1], lambda x: model().partial_fit_users(x, LIKES)),
    "fit": ("y", [0, -1, -1, 1], lambda x: LabelPropagation().fit(CHAIN, x)),
    "predict": ("X", [0, 1], lambda x: fitted().predict(x)),
    "score": ("y", [5, 9], lambda x: fitted().score([0, 1], x)),
    "sample_weight": (
        "sample_weight",
        floats(2),
        lambda x: fitted().score([0, 1], [5, 9], sample_weight=x),
    ),
    "rmse(users)": (
        "user_factors",
        floats(2, 2),
        lambda x: rmse(LIKES, x, floats(3, 2)),
    ),
    "rmse(items)": (
        "item_factors",
        floats(3, 2),
        lambda x: rmse(LIKES, floats(2, 2), x),
    ),
    "verify": ("ranks", floats(3) / 4.5, lambda x: verify_pagerank(RING, x, tol=1)),
}


#: Of these, what a State is given: its errors have a class of their own.
OF_A_STATE = {"vertex_property", "edge_property", "at=", "entries=", "vector"}


@pytest.mark.parametrize(
    ("name", "error"),
    [(x, fg.StateError if x in OF_A_STATE else fg.GraphInputError) for x in CALLS],
)
def test_the_rules_hold_for_all_that_takes_arrays(
    name: str, error: type[fg.FeatGraphError]
) -> None:
    where, good, call = CALLS[name]
    for kind, make in BAD.items():
        if kind in {"text", "bytes"} and name in {"fit", "score"}:
            continue  # labels may be text
        refused(lambda make=make: call(make(np.asarray(good))), where, error)  # type: ignore[misc]
    if name != "fit":  # which runs
        call(good)


def test_numbers_of_recommendations_and_pairs_are_counts() -> None:
    for count in (2.5, "2", None, True):
        refused(lambda count=count: no_filter(N=count), "N=", fg.ArgumentError)  # type: ignore[misc]
    refused(lambda: no_filter(N=-1), "N=")
    assert no_filter(N=0)[0].shape == (0,)
    refused(lambda: model().predict([0, 1], [0, 1, 2]), "itemids")
    assert model().predict([0, 1], 2).shape == (2,)
    for call in (
        lambda: ranking_metrics(model(), LIKES, floats(2, 3)),
        lambda: ranking_metrics(model(), LIKES, LIKES[:1]),
        lambda: rmse(LIKES, floats(2, 2), floats(2, 2)),
        lambda: rmse([[1, 2]], floats(2, 2), floats(2, 2)),
    ):
        with pytest.raises(fg.GraphInputError):
            call()
