"""Times of calls beside those of their supersteps, for each of `algorithms/`.

Times are wall time of warm calls until the device is idle, with the graph on the target
and answers left there; ``inside_ms`` is the sum of the supersteps of the run, ``ratio``
the time of the call over this sum, both medians. Runs end by their limits, so that
calls repeat. ``--given`` chooses where arrays are. Answers of the first call and the
last are compared outside the timed region: those that are added up by atomics up to
their rounding, all others bit for bit.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable
from dataclasses import fields
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

import featgraph as fg
from bench.graphs import NamedGraph, make_graph
from bench.record import Recorder
from bench.timing import Budget, join_compilers, time_call, wait_for_gpu
from featgraph import algorithms as of

#: The loop over few vertices of a GPU is compiled behind runs, and not otherwise.
COMPILES_BEHIND = True
DEFAULTS = {
    "graph": ["kron-16"],
    "repeat": 7,
    "programs": None,
    "target": "cuda",
    "given": "device",
    "budget": 500.0,
}
SEED, WARM_UP = 20261125, 3
#: Supersteps of runs that would go on; classes, states and columns.
LIMIT, K = 20, 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--programs", nargs="+", choices=sorted(CALLS))
    parser.add_argument("--given", choices=["device", "host"], help="where arrays are")


class Inputs:
    """A graph, graphs made of it, and arrays over its vertices and edges.

    Parameters
    ----------
    named : NamedGraph
        Undirected.
    target : str
    on_gpu : bool
        If arrays are on the GPU.
    """

    def __init__(self, named: NamedGraph, target: str, on_gpu: bool) -> None:
        self.graph, self.options = named.graph, {"target": target}
        self._on_gpu = on_gpu
        self.count, self.edges = self.graph.vertex_count, self.graph.given_edge_count
        self._rng = np.random.default_rng(SEED)
        degree = np.asarray(self.graph.out_degree)
        self.source = int(np.argmax(degree))
        self.sources = self._rng.choice(np.flatnonzero(degree), 4, replace=False)

    def _given(self, array: Any) -> Any:
        if not self._on_gpu:
            return array
        from featgraph.cuda.dialect import cuda

        return cuda.to_device(np.ascontiguousarray(array))

    @cached_property
    def directed(self) -> fg.Graph:
        """The given edges, in one direction."""
        g = self.graph
        return fg.Graph.from_edges(g.sources, g.targets, vertex_count=self.count)

    @cached_property
    def weights(self) -> Any:
        """One an edge, float32."""
        return self._given(self._rng.random(self.edges, np.float32) + np.float32(0.5))

    @cached_property
    def vectors(self) -> Any:
        """Two an edge."""
        return self._given(self._rng.random((self.edges, 2)) + 0.5)

    @cached_property
    def labels(self) -> Any:
        """Of one vertex in ten."""
        labels = self._rng.integers(0, K, self.count)
        return self._given(np.where(self._rng.random(self.count) < 0.1, labels, -1))

    @cached_property
    def pairs_of_labels(self) -> Any:
        """Of two sets."""
        labels = self._rng.integers(-9, K, (self.count, 2))
        return self._given(np.maximum(labels, -1))

    @cached_property
    def columns(self) -> Any:
        """Numbers over the vertices, of K columns."""
        return self._given(self._rng.random((self.count, K)) + 0.1)

    @cached_property
    def column(self) -> Any:
        """One number for each vertex."""
        return self._given(self._rng.random(self.count) + 0.1)

    @cached_property
    def held(self) -> Any:
        """Numbers at a third of the vertices, and wherever an edge is missing."""
        values = self._rng.random(self.count)
        is_free = self._rng.random(self.count) < 0.6
        names = of.connected_components(self.graph, target="cpu").labels
        is_free[np.unique(names)] = False
        return self._given(np.where(is_free, np.nan, values))

    @cached_property
    def ratings(self) -> Any:
        """The edges as a matrix of ratings, of other rows than columns."""
        data = self._rng.random(self.edges, np.float32) + 1
        shape = (self.count, self.count)
        ends = (np.asarray(self.graph.sources), np.asarray(self.graph.targets))
        return scipy.sparse.coo_matrix((data, ends), shape).tocsr()

    @cached_property
    def rated(self) -> fg.Graph:
        """The graph of these, on the target."""
        return fg.Graph.from_biadjacency(self.ratings, **self.options)


few: dict[str, Any] = {"max_supersteps": LIMIT}
alike = np.full((K, K), 1.0) + np.eye(K)

#: Program -> a call of it.
CALLS: dict[str, Callable[[Inputs], Any]] = {
    "als": lambda i: of.als(i.rated, factors=8, iterations=2, **i.options),
    "als of a matrix": lambda i: of.als(
        i.ratings, factors=8, iterations=2, **i.options
    ),
    "belief_propagation": lambda i: of.belief_propagation(
        i.graph, i.columns, alike, epsilon=0.0, **few, **i.options
    ),
    "betweenness_centrality": lambda i: of.betweenness_centrality(
        i.graph, sources=i.sources, **i.options
    ),
    "bfs": lambda i: of.bfs(i.graph, i.source, **i.options),
    "circuit_simulation": lambda i: of.circuit_simulation(
        i.graph, i.held, conductances=i.weights, epsilon=0.0, **few, **i.options
    ),
    "closeness_centrality": lambda i: of.closeness_centrality(
        i.graph, i.sources, **i.options
    ),
    "clustering": lambda i: of.clustering(i.graph, **i.options),
    "connected_components": lambda i: of.connected_components(i.graph, **i.options),
    "eigenvector_centrality": lambda i: of.eigenvector_centrality(
        i.graph, nstart=i.column, weights=i.weights, tol=1e-30, **few, **i.options
    ),
    "gradient_factorization": lambda i: of.gradient_factorization(
        i.rated, factors=8, iterations=LIMIT, **i.options
    ),
    "heat_simulation": lambda i: of.heat_simulation(
        i.graph, i.columns, conductivities=i.weights, epsilon=0.0, **few, **i.options
    ),
    "hits": lambda i: of.hits(
        i.graph, nstart=i.column, weights=i.weights, tol=1e-30, max_iter=LIMIT,
        **i.options,
    ),
    "k_core": lambda i: of.k_core(i.graph, **i.options),
    "k_truss": lambda i: of.k_truss(i.graph, **i.options),
    "katz_centrality": lambda i: of.katz_centrality(
        i.graph, alpha=1e-6, beta=i.column, weights=i.weights, tol=1e-30, **few,
        **i.options,
    ),
    "label_propagation": lambda i: of.label_propagation(
        i.graph, i.labels, weights=i.weights, epsilon=0.0, **few, **i.options
    ),
    "label_set_propagation": lambda i: of.label_set_propagation(
        i.graph, i.pairs_of_labels, weights=i.weights, epsilon=0.0, **few, **i.options
    ),
    "multi_manifold_ranking": lambda i: of.multi_manifold_ranking(
        i.graph, i.column, weights=i.vectors, epsilon=0.0, **few, **i.options
    ),
    "multimodal_learning": lambda i: of.multimodal_learning(
        i.graph, i.columns, weights=i.vectors, epsilon=0.0, **few, **i.options
    ),
    "neural_network": lambda i: of.neural_network(
        i.graph, i.held, weights=i.weights, bias=i.column, epsilon=0.0, **few,
        **i.options,
    ),
    "pagerank": lambda i: of.pagerank(
        i.graph, personalization=i.column, tol=0.0, **few, **i.options
    ),
    "pagerank_push": lambda i: of.pagerank_push(
        i.graph, personalization=i.column, epsilon=1e-9, **few, **i.options
    ),
    "sgd_factorization": lambda i: of.sgd_factorization(
        i.ratings, factors=8, epochs=LIMIT, **i.options
    ),
    "sssp": lambda i: of.sssp(i.graph, i.source, weights=i.weights, **i.options),
    "sswp": lambda i: of.sswp(i.graph, i.source, weights=i.weights, **i.options),
    "strongly_connected_components": lambda i: of.strongly_connected_components(
        i.directed, **i.options
    ),
    "triangle_count": lambda i: of.triangle_count(i.graph, **i.options),
}  # fmt: skip
#: Programs that add up by atomics, in any order.
ROUNDED = {"pagerank_push"}
#: Of several that are as good, any may be found.
OF_ANY = {"parents", "predecessors"}


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Measure each program on each graph, and record errors."""
    budget, target = Budget(arguments.budget), arguments.target
    recorder.use(target)
    warnings.simplefilter("ignore", fg.ConvergenceWarning)
    for name in arguments.graph:
        named = make_graph(name)
        inputs = Inputs(named, target, target == "cuda" and arguments.given == "device")
        for program in arguments.programs or CALLS:
            if budget.allows(f"{name} | {program}"):
                given = program, named, inputs, arguments, recorder
                recorder.attempt(program, _measure, *given, graph=named.describe())


def _measure(
    program: str, named: NamedGraph, inputs: Inputs, arguments: argparse.Namespace,
    recorder: Recorder,
) -> None:  # fmt: skip
    last: list[Any] = [None]

    def call() -> None:
        last[0] = CALLS[program](inputs)
        wait_for_gpu(arguments.target)

    first = time_call(call)
    expected = _answers(last[0])
    for _ in range(WARM_UP):
        join_compilers()
        call()
    join_compilers()
    trials, inside = [], []
    for _ in range(arguments.repeat):
        trials.append(time_call(call))
        inside.append(1e3 * sum(last[0].run.seconds))
    within = statistics.median(inside)
    recorder.add(
        "featgraph", trials, program=program, given=arguments.given,
        graph=named.describe(), cell=f"{named.name} | {program}",
        first_call_ms=round(first, 1), supersteps=last[0].run.supersteps,
        inside_ms=round(within, 3),
        ratio=round(statistics.median(trials) / max(within, 1e-6), 3),
        checks={"ok": _agree(program, expected, _answers(last[0]))},
    )  # fmt: skip


def _answers(result: Any) -> list[Any]:
    """Return the arrays of a result, on the host."""
    names = (field.name for field in fields(result) if field.name not in OF_ANY)
    found = (getattr(result, name) for name in names)
    return [np.array(a) for a in found if isinstance(a, np.ndarray) and a.size]


def _agree(program: str, expected: list[Any], found: list[Any]) -> bool:
    """Return whether answers are the same, or as near as sums in any order."""
    pairs = zip(expected, found, strict=True)
    if program in ROUNDED:
        return all(np.allclose(a, b, atol=1e-6) for a, b in pairs)
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)
