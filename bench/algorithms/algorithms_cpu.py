"""The learning algorithms on the CPU, at about a million edges, beside their peers.

=========  =========================================================================
LP         scikit-learn's LabelPropagation and LabelSpreading on the same kNN graph,
           with the search for neighbors and without (a kernel that returns the graph)
PageRank   networkx.pagerank and products with SciPy, to the same tolerance
MMR...     sparse products or NumPy arrays, a superstep a sweep, the same stopping rule
=========  =========================================================================

Answers are compared outside the timed region, trials taken in turn. Inputs are
made before (featgraph's Graph, networkx's DiGraph, SciPy's matrices) and
returns the answer as an array. featgraph's time holds making the State, but for MMR,
MML and BP, where the arrays of both are ready. ALS is beside `implicit` in a bench of
its own.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse

import featgraph as fg
from bench.baselines.numpy_learning import PEERS, power_iteration
from bench.graphs import make_graph
from bench.learning.problems import make_problem
from bench.record import Recorder
from bench.timing import Contender, interleave
from featgraph.algorithms.label_propagation import labels_of_neighbors, relax
from featgraph.algorithms.pagerank import pagerank
from featgraph.runtime.devices.choose import choose_device

DEFAULTS = {
    "graph": ["kron-15"],
    "k": [4],
    "repeat": 3,
    "points": 1 << 16,
    "programs": ["LP", "PageRank", "BP", "MMR", "MML"],
}
CHOICES = {"programs": DEFAULTS["programs"]}
CLASSES, DIMENSIONS, NEIGHBORS, LABELLED = 8, 6, 15, 0.05
#: scikit-learn's: of all changes of a sweep, added up.
TOLERANCE = 1e-3
SPREADING_ALPHA = 0.2


def _timed(
    comparison: str, name: str, call: Callable[[], Any], note: str = ""
) -> Contender:
    return Contender(name, call, fields={"comparison": comparison, "note": note})


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Measure each program with its peers, and record errors."""
    load = os.getloadavg()[0]
    print(f"load average {load:.2f}", flush=True)
    warnings.simplefilter("ignore", fg.ConvergenceWarning)
    for program in arguments.programs:
        if program == "LP":
            recorder.attempt(program, _points, arguments, recorder, load)
            continue
        for name in arguments.graph:
            make = _ranks if program == "PageRank" else _recurrence
            given = program, name, arguments, recorder, load
            recorder.attempt(program, make, *given)


def _measure(
    program: str, timed: list[Contender], apart: Callable[[Any, Any], dict[str, Any]],
    repeat: int, recorder: Recorder, **fields: Any,
) -> None:  # fmt: skip
    """Time contenders in turn; compare each with featgraph's first."""
    interleave(timed, repeat, 1)
    ours = {t.fields["comparison"]: t for t in timed if t.name == "featgraph"}
    for one in timed:
        comparison = one.fields["comparison"]
        checks = apart(ours[comparison].answer, one.answer)
        recorder.add(
            one.name, one.trials, program=program, **one.fields, checks=checks,
            cell=f"{program} | {comparison} | {one.name}", **fields,
        )  # fmt: skip


# -- label propagation on points


@fg.gather(into="spread", combine="sum")
def spread_labels(f, u, v, e, d):  # type: ignore[no-untyped-def]
    """Class f of the source, by the normalised weight."""
    return d.weight[e] * d.label[u, f]


@fg.vertex
def keep_some(f, v, d):  # type: ignore[no-untyped-def]
    """Mix with the given labels."""
    new = d.alpha * d.spread[v, f] + (1 - d.alpha) * d.given[v, f]
    d.label_next[v, f] = new
    return fg.any_feature(abs(new - d.label[v, f]) > d.epsilon)


@fg.reduce(into="change", combine="sum")
def all_changes(f, v, d):  # type: ignore[no-untyped-def]
    """Add up the changes of a superstep: scikit-learn stops by it."""
    return abs(d.label_next[v, f] - d.label[v, f])


_spreading = fg.foldmap(spread_labels, keep_some, all_changes)
_propagating = fg.foldmap(labels_of_neighbors, relax, all_changes)


def _settle(step: fg.FoldMap, graph: fg.Graph, initial: Any, **state: Any) -> Any:
    """Return the labels as soon as all changes of a superstep are below the limit."""
    values = fg.State(
        graph, label=fg.vertex_property(initial, iterated=True), epsilon=0.0, **state
    )
    fg.iterate(
        step, values, target="cpu",
        until=lambda state: float(np.sum(state["change"])) < TOLERANCE,
    )  # fmt: skip
    return values["label"]


def _propagate(graph: fg.Graph, weight: Any, given: Any) -> Any:
    return _settle(
        _propagating, graph, given, clamped=fg.vertex_property(given.any(axis=1)),
        weight=fg.edge_property(weight), alpha=1.0,
    )  # fmt: skip


def _spread(graph: fg.Graph, weight: Any, given: Any) -> Any:
    label = _settle(
        _spreading, graph, given, given=fg.vertex_property(given),
        weight=fg.edge_property(weight), alpha=SPREADING_ALPHA,
    )  # fmt: skip
    mass = label.sum(axis=1, keepdims=True)
    return label / np.where(mass == 0, 1, mass)


def _points(arguments: argparse.Namespace, recorder: Recorder, load: float) -> None:
    from sklearn.neighbors import NearestNeighbors

    rng = np.random.default_rng(11)
    classes = rng.integers(0, CLASSES, arguments.points)
    centers = rng.normal(size=(CLASSES, DIMENSIONS)) * 1.5
    points = centers[classes] + rng.normal(size=(arguments.points, DIMENSIONS))
    labels = np.where(rng.random(arguments.points) < LABELLED, classes, -1)
    labels[:CLASSES] = np.arange(CLASSES)

    def find_neighbors() -> Any:
        search = NearestNeighbors(n_neighbors=NEIGHBORS, n_jobs=-1).fit(points)
        return search.kneighbors_graph(points, mode="connectivity")

    neighbors = find_neighbors()
    without, with_search = "given the kNN graph", "from points"
    given = (labels[:, None] == np.arange(CLASSES)).astype(np.float64)

    for variant, ours, edges_of in (
        ("LabelPropagation", _propagate, _edges),
        ("LabelSpreading", _spread, lambda matrix: _edges(_laplacian(matrix))),
    ):

        def search(ours: Any = ours, edges_of: Any = edges_of) -> Any:
            return ours(*edges_of(find_neighbors()), given)

        ready = partial(ours, *edges_of(neighbors), given)
        note = "scikit-learn's search for neighbors, then featgraph"
        theirs = partial(_sklearn, variant, points, labels)
        peers = partial(theirs, lambda x, y: neighbors), partial(theirs, "knn")
        timed = [
            _timed(f"{variant}, {without}", "featgraph", ready),
            _timed(f"{variant}, {without}", "scikit-learn", peers[0]),
            _timed(f"{variant}, {with_search}", "featgraph", search, note),
            _timed(f"{variant}, {with_search}", "scikit-learn", peers[1]),
        ]
        _measure(
            "LP", timed, _distributions_apart, arguments.repeat, recorder,
            k=CLASSES, edges=int(neighbors.nnz), load=load, tolerance=TOLERANCE,
        )  # fmt: skip


def _laplacian(matrix: Any) -> Any:
    """Return the matrix of LabelSpreading: the Laplacian off its diagonal."""
    normalised = scipy.sparse.csgraph.laplacian(matrix, normed=True).tocoo()
    off = normalised.row != normalised.col
    parts = (-normalised.data[off], (normalised.row[off], normalised.col[off]))
    return scipy.sparse.coo_array(parts, shape=matrix.shape)


def _edges(matrix: Any) -> tuple[fg.Graph, Any]:
    """Return edges from the column (a neighbor) to the row, and their weights."""
    entries = matrix.tocoo()
    graph = fg.Graph.from_edges(
        entries.col, entries.row, vertex_count=matrix.shape[0], directed=True
    )
    _ = graph.in_edges
    return graph, entries.data


def _sklearn(variant: str, points: Any, labels: Any, kernel: Any) -> Any:
    from sklearn import semi_supervised

    options = {"alpha": SPREADING_ALPHA} if variant == "LabelSpreading" else {}
    model = getattr(semi_supervised, variant)(
        kernel=kernel, n_neighbors=NEIGHBORS, tol=TOLERANCE, max_iter=1000, n_jobs=-1,
        **options,
    )  # fmt: skip
    if callable(kernel):  # the model normalises the matrix in place
        model.kernel = lambda x, y: kernel(x, y).copy()
    return model.fit(points, labels).label_distributions_


def _distributions_apart(ours: Any, theirs: Any) -> dict[str, Any]:
    apart = float(np.abs(ours - theirs).max())
    same = float((ours.argmax(axis=1) == theirs.argmax(axis=1)).mean())
    # Rows are divided by their sums in the end, which may be next to nothing: there a
    # tolerance bounds no error of the distribution: the labels are compared.
    return {"ok": same >= 0.999, "apart": apart, "same_label": same}


# -- PageRank


def _ranks(
    program: str, name: str, arguments: argparse.Namespace, recorder: Recorder,
    load: float,
) -> None:  # fmt: skip
    import networkx

    named = make_graph(name)
    graph, tol = named.graph, 1e-9
    ends = networkx.Graph(graph.to_networkx()).to_directed()

    def peer() -> Any:
        ranks = networkx.pagerank(ends, tol=tol, max_iter=1000)
        return np.array([ranks[v] for v in range(graph.vertex_count)])

    def ours() -> Any:
        found = pagerank(
            graph, tol=tol, dtype=np.float64, target="cpu", max_supersteps=1000
        )
        return found.ranks

    def apart(a: Any, b: Any) -> dict[str, Any]:
        worst = float(np.abs(a - b).sum())
        return {"ok": worst <= 10 * graph.vertex_count * tol, "l1_apart": worst}

    timed = [
        _timed(name, "featgraph", ours),
        _timed(name, "networkx", peer, "holds making its matrix"),
        _timed(name, "SciPy products", lambda: power_iteration(graph, 0.85, tol)),
    ]
    _measure(
        program, timed, apart, arguments.repeat, recorder,
        graph=named.describe(), load=load, tolerance=tol,
    )  # fmt: skip


# -- the recurrences of the GPU tables


def _recurrence(
    program: str, name: str, arguments: argparse.Namespace, recorder: Recorder,
    load: float,
) -> None:  # fmt: skip
    named = make_graph(name)
    device = choose_device("cpu")
    for k in arguments.k:
        problem = make_problem(program, named.graph, k)
        peer = PEERS[program](problem)

        def ours(problem: Any = problem) -> Any:
            problem.reset(device)
            fg.iterate(problem.steps, problem.state, target="cpu")
            return problem.answer()

        def theirs(problem: Any = problem, peer: Any = peer) -> Any:
            return problem.comparable(peer())

        def apart(a: Any, b: Any, problem: Any = problem) -> dict[str, Any]:
            worst = float(np.abs(a - b).max() / problem.epsilon)
            return {"ok": worst <= 20, "epsilons_apart": worst}

        timed = [
            _timed(f"{name}, k={k}", "featgraph", ours),
            _timed(f"{name}, k={k}", "SciPy + NumPy", theirs),
        ]
        _measure(
            program, timed, apart, arguments.repeat, recorder,
            k=k, inputs=problem.inputs, graph=named.describe(), load=load,
        )  # fmt: skip
