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
from dataclasses import dataclass
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
CLASSES, DIMENSIONS, NEIGHBORS, LABELLED = 8, 6, 15, 0.05
#: scikit-learn's: of all changes of a sweep, added up.
TOLERANCE = 1e-3
SPREADING_ALPHA = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--points", type=int, help="of the kNN graph of LP")
    parser.add_argument("--programs", nargs="+", choices=DEFAULTS["programs"])


@dataclass
class Timed:
    """A contender, its answer, and the name of the comparison."""

    comparison: str
    name: str
    call: Callable[[], Any]
    note: str = ""
    answer: Any = None

    def __call__(self) -> None:
        """Run, and keep the answer."""
        self.answer = self.call()


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
    program: str, timed: list[Timed], apart: Callable[[Any, Any], dict[str, Any]],
    repeat: int, recorder: Recorder, **fields: Any,
) -> None:  # fmt: skip
    """Time contenders in turn; compare each with featgraph's first."""
    trials = interleave([Contender(str(i), t) for i, t in enumerate(timed)], repeat, 1)
    firsts = {t.comparison: t for t in reversed(timed) if t.name == "featgraph"}
    for number, contender in enumerate(timed):
        checks = apart(firsts[contender.comparison].answer, contender.answer)
        recorder.add(
            contender.name, trials[str(number), None], program=program,
            comparison=contender.comparison, note=contender.note, checks=checks,
            cell=f"{program} | {contender.comparison} | {contender.name}", **fields,
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


def _propagate(graph: fg.Graph, given: Any, weight: Any) -> Any:
    return _settle(
        _propagating, graph, given, clamped=fg.vertex_property(given.any(axis=1)),
        weight=fg.edge_property(weight), alpha=1.0,
    )  # fmt: skip


def _spread(graph: fg.Graph, given: Any, weight: Any) -> Any:
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
    held = _edges(neighbors)
    without, with_search = "given the kNN graph", "from points"
    given = (labels[:, None] == np.arange(CLASSES)).astype(np.float64)

    def propagate(ends: Any) -> Any:
        return _propagate(ends[0], given, ends[1])

    def spread(ends: Any) -> Any:
        return _spread(ends[0], given, ends[1])

    for variant, ours in (("LabelPropagation", propagate), ("LabelSpreading", spread)):
        is_spreading = variant == "LabelSpreading"

        def make_edges(matrix: Any, normalised: bool = is_spreading) -> Any:
            return _edges(_laplacian(matrix) if normalised else matrix)

        ready = make_edges(neighbors) if is_spreading else held
        timed = [
            Timed(f"{variant}, {without}", "featgraph", lambda o=ours, r=ready: o(r)),
            Timed(
                f"{variant}, {without}",
                "scikit-learn",
                lambda v=variant: _sklearn(v, points, labels, lambda x, y: neighbors),
            ),
            Timed(
                f"{variant}, {with_search}",
                "featgraph",
                lambda o=ours, m=make_edges: o(m(find_neighbors())),
                "scikit-learn's search for neighbors, then featgraph",
            ),
            Timed(
                f"{variant}, {with_search}",
                "scikit-learn",
                lambda v=variant: _sklearn(v, points, labels, "knn"),
            ),
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
    ends = networkx.Graph()
    ends.add_nodes_from(range(graph.vertex_count))
    pairs = zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    ends.add_edges_from(pairs)
    ends = ends.to_directed()

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
        Timed(name, "featgraph", ours),
        Timed(name, "networkx", peer, "holds making its matrix"),
        Timed(name, "SciPy products", lambda: power_iteration(graph, 0.85, tol)),
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
            Timed(f"{name}, k={k}", "featgraph", ours),
            Timed(f"{name}, k={k}", "SciPy + NumPy", theirs),
        ]
        _measure(
            program, timed, apart, arguments.repeat, recorder,
            k=k, inputs=problem.inputs, graph=named.describe(), load=load,
        )  # fmt: skip
