"""Algorithms whose arrays are given on the host, on the GPU, or some here, some there.

The GPU is emulated: an array there is one that the host must not touch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph import algorithms
from featgraph.algorithms import (
    LabelPropagation,
    als,
    belief_propagation,
    betweenness_centrality,
    bfs,
    circuit_simulation,
    closeness_centrality,
    eigenvector_centrality,
    gradient_factorization,
    heat_simulation,
    hits,
    katz_centrality,
    label_propagation,
    label_set_propagation,
    multi_manifold_ranking,
    multimodal_learning,
    neural_network,
    pagerank,
    pagerank_push,
    sssp,
    sswp,
)
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from tests.simt.foreign import Foreign
from tests.simt.gpu import Gpu, emulated_gpu

pytestmark = pytest.mark.filterwarnings(
    "ignore:not converged:featgraph.ConvergenceWarning"
)

#: Vertices: a prime number, of which all arrays over them have multiples of bytes.
V = 37


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    with emulated_gpu() as made:
        yield made


class Drawn:
    """Arrays for a graph, each put where it belongs.

    Parameters
    ----------
    place : callable
        Puts an array on the host or on the GPU.
    on_gpu : bool
        Whether the ends of edges are given there, too.
    """

    def __init__(self, place: Callable[[Any], Any], on_gpu: bool = False) -> None:
        self.rng = np.random.default_rng(12)
        ends = self.rng.integers(0, V, (2, 2 * V)).astype(np.int32)
        self.place = place
        u, v = (Foreign(end) if on_gpu else end for end in ends)
        self.graph = fg.Graph.from_edges(u, v, vertex_count=V)
        ring = np.arange(V, dtype=np.int32)
        u, v = ring, np.roll(ring, -1)
        if on_gpu:
            u, v = Foreign(u), Foreign(v)
        self.ring = fg.Graph.from_edges(u, v, vertex_count=V, directed=False)

    def reals(self, *shape: int, least: float = 0.0) -> Any:
        """Return reals between `least` and `least` + 1."""
        return self.place(self.rng.random(shape) + least)

    def whole(self, low: int, high: int, *shape: int, dtype: Any = np.int64) -> Any:
        """Return integers in [low, high), of which the first is the largest."""
        drawn = self.rng.integers(low, high, shape).astype(dtype)
        drawn.ravel()[0] = high - 1
        return self.place(drawn)

    def weights(self, *shape: int) -> Any:
        """Return weights of the edges of the graph, of any strides."""
        given = (self.rng.random((2 * V, *shape)) + 0.25).astype(np.float32)
        return self.place(np.repeat(given, 2, axis=0)[::2])

    def held(self, width: int) -> Any:
        """Return numbers at a third of the vertices."""
        values = self.rng.random((V, width))
        values[self.rng.random(V) < 0.6] = np.nan
        values[0] = 0.5
        return self.place(values)

    def sources(self) -> Any:
        """Return two vertices."""
        return self.place(np.array([3, 5]))


few: dict[str, Any] = {"max_supersteps": 2}

#: Function -> a call of it. All arrays that it takes are in one of its calls.
CALLS: dict[str, Callable[..., Any]] = {
    "bfs": lambda d, **o: bfs(d.graph, d.sources(), **o),
    "sssp": lambda d, **o: sssp(d.graph, d.sources(), weights=d.weights(), **o),
    "sssp in float64": lambda d, **o: sssp(
        d.graph, 3, weights=d.whole(1, 9, 2 * V), dtype=np.float64, **o
    ),
    "sswp": lambda d, **o: sswp(d.graph, d.sources(), weights=d.weights(), **o),
    "pagerank": lambda d, **o: pagerank(
        d.graph,
        nstart=d.reals(V),
        personalization=d.reals(V, 2),
        dangling=d.reals(V, 1),
        weights=d.weights(),
        **few,
        **o,
    ),
    "pagerank of counts": lambda d, **o: pagerank(
        d.graph, personalization=d.whole(0, 5, V), **few, **o
    ),
    "push": lambda d, **o: pagerank_push(
        d.graph, personalization=d.reals(V, 2), weights=d.weights(), **few, **o
    ),
    "betweenness": lambda d, **o: betweenness_centrality(
        d.graph, sources=d.place(np.array([3])), weights=d.weights(), **o
    ),
    "closeness": lambda d, **o: closeness_centrality(
        d.graph, d.sources(), weights=d.weights(), **o
    ),
    "eigenvector": lambda d, **o: eigenvector_centrality(
        d.graph, nstart=d.reals(V), weights=d.weights(), **few, **o
    ),
    "hits": lambda d, **o: hits(
        d.graph, nstart=d.reals(V), weights=d.weights(), max_iter=2, **o
    ),
    "katz": lambda d, **o: katz_centrality(
        d.graph, beta=d.reals(V, 2), weights=d.weights(), **few, **o
    ),
    "labels": lambda d, **o: label_propagation(
        d.graph, d.whole(-1, 3, V, dtype=np.int8), weights=d.weights(), **few, **o
    ),
    "distributions": lambda d, **o: label_propagation(
        d.graph, d.whole(0, 3, V, 9), weights=d.weights(), **few, **o
    ),
    "label sets": lambda d, **o: label_set_propagation(
        d.graph, d.whole(-1, 3, V, 2), weights=d.weights(2), **few, **o
    ),
    "sets of distributions": lambda d, **o: label_set_propagation(
        d.graph, d.whole(0, 2, V, 2, 3), weights=d.weights(), **few, **o
    ),
    "manifolds": lambda d, **o: multi_manifold_ranking(
        d.graph, d.reals(V), weights=d.weights(3), **few, **o
    ),
    "modalities": lambda d, **o: multimodal_learning(
        d.graph,
        d.reals(V, 2),
        weights=d.weights(2),
        alpha=d.place(np.array([0.2, 0.4])),
        **few,
        **o,
    ),
    "neurons": lambda d, **o: neural_network(
        d.graph,
        d.held(2),
        weights=d.reals(2 * V, least=-0.5),
        bias=d.reals(V, least=-0.5),
        **few,
        **o,
    ),
    "heat": lambda d, **o: heat_simulation(
        d.graph,
        d.reals(V),
        conductivities=d.weights(),
        held=d.place(np.arange(V) % 5 == 0),
        **few,
        **o,
    ),
    "circuit": lambda d, **o: circuit_simulation(
        d.ring,
        d.held(1),
        currents=d.reals(V, 3, least=-0.5),
        conductances=d.reals(V, least=0.5),
        **few,
        **o,
    ),
    "beliefs": lambda d, **o: belief_propagation(
        d.ring,
        d.whole(1, 9, V, 3),
        d.place(np.eye(3) + 0.25),
        evidence=d.whole(-1, 3, V, dtype=np.int32),
        **few,
        **o,
    ),
    "beliefs by edges": lambda d, **o: belief_propagation(
        d.ring, d.reals(V, 2, least=0.25), d.reals(V, 2, 2, least=0.25), **few, **o
    ),
}
#: Those of which none takes arrays, or whose arrays the host has to have.
APART = {
    "AlternatingLeastSquares": "an estimator around als",
    "LabelPropagation": "test_an_estimator_takes_labels_of_the_gpu",
    "gradient_factorization": "as als",
    "MatrixFactorization": "an estimator around sgd_factorization",
    "sgd_factorization": "as als",
    "als": "test_factors_may_begin_on_the_gpu: its graph is made on the host",
    "clustering": "no arrays",
    "connected_components": "no arrays",
    "factor_propagation": "tables of Python",
    "k_core": "no arrays",
    "k_truss": "no arrays",
    "strongly_connected_components": "no arrays",
    "triangle_count": "no arrays",
}


def arrays_of(result: Any) -> dict[str, Any]:
    """Return the attributes of a result, without the record of its run."""
    return {f.name: getattr(result, f.name) for f in fields(result) if f.name != "run"}


def in_turn() -> Callable[[Any], Any]:
    """Return a function that puts every other array on the GPU."""
    placed: list[Any] = []

    def place(array: Any) -> Any:
        placed.append(array)
        return Foreign(array) if len(placed) % 2 else array

    return place


def test_all_that_take_arrays_are_called() -> None:
    called = {name for call in CALLS.values() for name in call.__code__.co_names}
    assert {*algorithms.__all__} - called == {*APART}


@pytest.mark.drawn(8)
@pytest.mark.parametrize("name", CALLS)
def test_bits_are_the_same_wherever_arrays_are(gpu: Gpu, name: str) -> None:
    """And nothing over vertices or edges moves if all arrays are on the GPU."""
    expected = arrays_of(CALLS[name](Drawn(lambda x: x), target="cuda"))
    for place, on_gpu in ((Foreign, True), (in_turn(), False)):
        drawn = Drawn(place, on_gpu)
        del gpu.uploads[:], gpu.downloads[:]
        result = CALLS[name](drawn, target="cuda")
        if on_gpu:
            moved = gpu.uploads + gpu.downloads
            assert not [size for size in moved if size >= V and size % V == 0]
        found = arrays_of(result)
        for key, values in expected.items():
            np.testing.assert_array_equal(found[key], values, err_msg=key)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", ["heat", "distributions"])
def test_a_cpu_gets_arrays_of_the_gpu(gpu: Gpu, name: str) -> None:
    expected = arrays_of(CALLS[name](Drawn(lambda x: x), target="cpu"))
    found = arrays_of(CALLS[name](Drawn(Foreign), target="cpu"))
    for key, values in expected.items():
        np.testing.assert_array_equal(found[key], values, err_msg=key)


def test_an_estimator_takes_labels_of_the_gpu(gpu: Gpu) -> None:
    labels = np.where(np.arange(V) % 4, -1, np.arange(V) % 3)
    ring = Drawn(Foreign).ring
    here, there = (
        LabelPropagation(max_iter=3, target="cuda").fit(ring, y)
        for y in (labels, Foreign(labels))
    )
    assert here.transduction_.tolist() == there.transduction_.tolist()


@pytest.mark.parametrize("factorise", [als, gradient_factorization])
def test_factors_may_begin_on_the_gpu(gpu: Gpu, factorise: Any) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    rng = np.random.default_rng(3)
    ratings = sparse.random(6, 5, density=0.6, random_state=rng, format="csr")
    first = [rng.random((6, 2)), rng.random((5, 2))]
    here, there = (
        factorise(
            ratings, factors=2, iterations=1, initial=given, target="cuda"
        ).factors
        for given in (first, [Foreign(x) for x in first])
    )
    np.testing.assert_array_equal(here, there)


def spoiled(array: Any, place: int, value: Any) -> Any:
    """Return a copy with another value at a place."""
    found = np.array(array)
    found.ravel()[place] = value
    return found


#: Stands for the array that is refused.
HERE = object()


def call_of(function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Return a call that takes the array which is refused."""

    def call(array: Any) -> Any:
        arguments = [array if x is HERE else x for x in given]
        named = {key: array if x is HERE else x for key, x in options.items()}
        return function(*arguments, **named, target="cuda")

    return call


def _refusals() -> dict[str, tuple[Callable[..., Any], Any]]:
    """Return calls, and arrays of the host that they refuse."""
    g = Drawn(lambda x: x)
    rng = np.random.default_rng(4)
    one, weights, rows = rng.random(V), rng.random(2 * V), rng.random((V, 3))
    integers, alike = rng.integers(-1, 3, V), np.eye(2) + 1.0
    two = rows[:, :2]

    def of_weights(f: Callable[..., Any]) -> Callable[..., Any]:
        return call_of(f, g.graph, weights=HERE)

    searched, between = call_of(sssp, g.graph, 3, weights=HERE), betweenness_centrality
    personal = call_of(pagerank, g.graph, personalization=HERE)
    labelled = call_of(label_propagation, g.graph, HERE)
    in_sets = call_of(label_set_propagation, g.graph, HERE)
    fired = call_of(neural_network, g.graph, HERE)
    biased = call_of(neural_network, g.graph, one, bias=HERE)
    believed = call_of(belief_propagation, g.ring, HERE, alike)
    joined = call_of(belief_propagation, g.ring, two, HERE)
    seen = call_of(belief_propagation, g.ring, two, alike, evidence=HERE)
    logs = call_of(belief_propagation, g.ring, HERE, alike, is_log=True)
    ranked = call_of(multi_manifold_ranking, g.graph, one, weights=HERE)
    kept = call_of(heat_simulation, g.graph, one, held=HERE)
    table = np.stack([weights, weights], axis=1)
    return {
        "a length of nan": (searched, spoiled(weights, 7, np.nan)),
        "a negative length": (searched, spoiled(weights, 7, -0.5)),
        "lengths of another shape": (searched, weights[:-1]),
        "a length of zero": (of_weights(between), spoiled(weights, 7, 0)),
        "an infinite length": (of_weights(between), spoiled(weights, 7, np.inf)),
        "a negative weight": (of_weights(pagerank), spoiled(weights, 9, -1)),
        "an infinite weight": (of_weights(hits), spoiled(weights, 9, np.inf)),
        "a negative count": (of_weights(hits), np.arange(2 * V)[::-1] - 3),
        "a negative value": (personal, spoiled(rows, 40, -1)),
        "a value of nan": (personal, spoiled(rows, 40, np.nan)),
        "nothing in a column": (personal, rows * [1, 0, 1]),
        "rows of another shape": (personal, rows[1:]),
        "no class": (labelled, spoiled(integers, 5, -2)),
        "no label": (labelled, np.full(V, -1)),
        "labels of reals": (labelled, one),
        "no distribution": (labelled, spoiled(rows, 40, -1)),
        "no labels": (labelled, rows * 0),
        "no class of a set": (in_sets, spoiled(np.stack([integers] * 2, 1), 5, -2)),
        "an infinite input": (fired, spoiled(one, 3, np.inf)),
        "half an input": (fired, spoiled(rows, 40, np.nan)),
        "a bias of nan": (biased, spoiled(one, 3, np.nan)),
        "no potential": (believed, spoiled(two, 9, -1)),
        "no state": (believed, two * (np.arange(V) != 8)[:, None]),
        "no log": (logs, spoiled(two, 9, np.inf)),
        "no log of a state": (logs, np.where((np.arange(V) == 8)[:, None], -np.inf, 0)),
        "no potential of an edge": (joined, spoiled(rng.random((V, 2, 2)), 9, np.nan)),
        "no potential of all": (joined, spoiled(alike, 1, -1)),
        "no state that is seen": (seen, spoiled(np.full(V, -1), 6, 2)),
        "states of reals": (seen, one),
        "a weight that is too small": (ranked, spoiled(table, 31, 1e-39)),
        "numbers for a mask": (kept, integers),
    }


REFUSED = _refusals()


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_alike(gpu: Gpu, name: str) -> None:
    call, array = REFUSED[name]
    with pytest.raises(fg.GraphInputError) as here:
        call(array)
    with pytest.raises(fg.GraphInputError) as there:
        call(Foreign(array))
    assert str(there.value) == str(here.value)
