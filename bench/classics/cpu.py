"""The classics on the CPU, at about a million edges, beside other libraries of Python.

NetworkX, scipy.sparse.csgraph, igraph and networkit, each with its own graph in hand;
converting is not timed. Of a search, SciPy's queue gives an order and predecessors; its
Dijkstra gives distances, too. NetworkX is run once, the others ``--repeat``
times, in turn. Every answer of featgraph is checked by the algorithm's verifier, and
numbers that all libraries give (reached vertices, components, triangles) are compared.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph

import featgraph as fg
from bench.baselines.numpy_learning import power_iteration
from bench.graphs import NamedGraph, make_graph
from bench.record import Recorder
from bench.timing import Contender, interleave, time_call, with_answers
from featgraph.algorithms.betweenness_centrality import (
    betweenness_centrality,
    verify_betweenness_centrality,
)
from featgraph.algorithms.bfs import bfs, verify_bfs
from featgraph.algorithms.clustering import clustering
from featgraph.algorithms.connected_components import (
    connected_components,
    verify_connected_components,
)
from featgraph.algorithms.eigenvector_centrality import eigenvector_centrality
from featgraph.algorithms.hits import hits
from featgraph.algorithms.k_core import k_core
from featgraph.algorithms.katz_centrality import katz_centrality
from featgraph.algorithms.pagerank import pagerank, verify_pagerank
from featgraph.algorithms.sssp import sssp, verify_sssp
from featgraph.algorithms.strong_components import strongly_connected_components
from featgraph.algorithms.triangle_count import triangle_count, verify_triangle_count

DEFAULTS = {
    "graph": ["kron-15", "grid708"],
    "repeat": 5,
    "programs": None,
    "without": None,
}
SEED = 20261121
#: Sources of betweenness centrality.
SOURCES = 4
#: Up to so many vertices, all of them are sources, too.
FROM_ALL = 10_000
#: The L1 distance that PageRank may have from its fixpoint, where libraries are
#: compared that stop by different rules: igraph's is less.
NEAR = 1e-10
#: The L1 norm of the last change of PageRank beside products in float32.
LAST_CHANGE = 1e-6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--programs", nargs="+", help="names of the first column")
    parser.add_argument("--without", nargs="+", help="libraries that are not called")


class Inputs:
    """One graph in the form of every library, each made at its first use."""

    def __init__(self, named: NamedGraph) -> None:
        self.named = named
        graph = named.graph
        rng = np.random.default_rng(SEED)
        # Of quarters: sums of them are the same in any order.
        self.weights = rng.integers(1, 256, graph.given_edge_count) / np.float32(4)
        degree = graph.out_degree
        self.source = int(np.argmax(degree))
        self.sources = rng.choice(np.flatnonzero(degree), SOURCES, replace=False)
        self.alpha = 0.5 / max(float(degree.max()), 1.0)  # of Katz; below 1 / lambda

    @cached_property
    def graph(self) -> fg.Graph:
        """Return featgraph's."""
        return self.named.graph

    @cached_property
    def weighted(self) -> Any:
        """Return a CSR matrix of the weights."""
        u, v = np.asarray(self.graph.sources), np.asarray(self.graph.targets)
        count = self.graph.vertex_count
        half = scipy.sparse.coo_array((self.weights, (u, v)), (count, count))
        return scipy.sparse.csr_array(half if self.graph.directed else half + half.T)

    @cached_property
    def matrix(self) -> Any:
        """Return a CSR matrix of ones."""
        made = self.weighted.copy()
        made.data = np.ones_like(made.data)
        return made

    @cached_property
    def networkx(self) -> Any:
        """Return NetworkX's, with weights."""
        import networkx

        made = networkx.DiGraph() if self.graph.directed else networkx.Graph()
        made.add_nodes_from(range(self.graph.vertex_count))
        u, v = self.graph.sources.tolist(), self.graph.targets.tolist()
        made.add_weighted_edges_from(zip(u, v, self.weights.tolist(), strict=True))
        return made

    @cached_property
    def igraph(self) -> Any:
        """Return igraph's, with weights."""
        import igraph

        edges = np.stack([self.graph.sources, self.graph.targets], axis=1)
        made = igraph.Graph(
            self.graph.vertex_count, edges.tolist(), directed=self.graph.directed
        )
        made.es["weight"] = self.weights.tolist()
        return made

    @cached_property
    def networkit(self) -> Any:
        """Return networkit's."""
        return self._networkit(False)

    @cached_property
    def networkit_weighted(self) -> Any:
        """Return networkit's, with weights."""
        return self._networkit(True)

    def _networkit(self, weighted: bool) -> Any:
        import networkit

        graph = self.graph
        ends = graph.sources.astype(np.uint64), graph.targets.astype(np.uint64)
        ones = np.ones(graph.given_edge_count)
        made = networkit.GraphFromCoo(
            (self.weights.astype(float) if weighted else ones, ends),
            n=graph.vertex_count, weighted=weighted, directed=graph.directed,
        )  # fmt: skip
        made.indexEdges()
        return made


@dataclass
class Program:
    """A computation by several libraries, and the comparison of their answers.

    Attributes
    ----------
    peers : dict
        Library -> call; the first is featgraph.
    verify : callable
        Takes featgraph's answer; raises where it is wrong.
    number : dict
        Library -> function of its answer that returns the number to compare.
    """

    name: str
    peers: dict[str, Callable[[], Any]]
    verify: Callable[[Any], None]
    number: dict[str, Callable[[Any], Any]] = field(default_factory=dict)


def programs(i: Inputs) -> list[Program]:
    """Return all comparisons on one undirected graph, by libraries that are there."""
    made = [*traversals(i), *structures(i), *centralities(i)]
    if i.graph.vertex_count <= FROM_ALL:
        made.append(_betweenness_from_all(i))
    if i.named.name.startswith("grid"):  # over 1.8e308 shortest paths between corners
        made = [p for p in made if not p.name.startswith("betweenness")]
    return made


def reached(distances: Any) -> int:
    """Return how many vertices were reached."""
    return int(np.isfinite(distances).sum())


def _networkit() -> Any:
    """Return the module, or None: then it is not called."""
    found = importlib.util.find_spec("networkit") is not None
    return importlib.import_module("networkit") if found else None


def traversals(i: Inputs) -> list[Program]:
    """Return searches and components."""
    import networkx as nx

    g, s, nk = i.graph, i.source, _networkit()
    return [
        Program(
            "bfs",
            {
                "featgraph": lambda: bfs(g, s),
                "networkx": lambda: nx.single_source_shortest_path_length(
                    i.networkx, s
                ),
                "SciPy csgraph": lambda: csgraph.breadth_first_order(i.matrix, s),
                "SciPy dijkstra": lambda: csgraph.dijkstra(
                    i.matrix, indices=s, unweighted=True, return_predecessors=True
                ),
                "igraph": lambda: i.igraph.bfs(s),
                "networkit": lambda: nk.distance.BFS(
                    i.networkit, s, storePaths=True
                ).run(),
            },
            lambda r: verify_bfs(g, s, r.levels, r.parents),
            {
                "featgraph": lambda r: int((r.levels >= 0).sum()),
                "networkx": len,
                "SciPy csgraph": lambda r: r[0].size,
                "SciPy dijkstra": lambda r: reached(r[0]),
            },
        ),
        Program(
            "sssp",
            {
                "featgraph": lambda: sssp(g, s, weights=i.weights),
                "networkx": lambda: nx.single_source_dijkstra_path_length(
                    i.networkx, s
                ),
                "SciPy csgraph": lambda: csgraph.dijkstra(
                    i.weighted, indices=s, return_predecessors=True
                ),
                "igraph": lambda: i.igraph.distances(s, weights="weight"),
                "networkit": lambda: nk.distance.Dijkstra(
                    i.networkit_weighted, s
                ).run(),
            },
            lambda r: verify_sssp(g, s, r.distances, r.predecessors, weights=i.weights),
            {
                "featgraph": lambda r: reached(r.distances),
                "networkx": len,
                "SciPy csgraph": lambda r: reached(r[0]),
                "igraph": lambda r: reached(np.array(r[0])),
            },
        ),
        Program(
            "connected_components",
            {
                "featgraph": lambda: connected_components(g),
                "networkx": lambda: list(nx.connected_components(i.networkx)),
                "SciPy csgraph": lambda: csgraph.connected_components(
                    i.matrix, directed=False
                ),
                "igraph": lambda: i.igraph.connected_components(),
                "networkit": lambda: nk.components.ParallelConnectedComponents(
                    i.networkit
                ).run(),
            },
            lambda r: verify_connected_components(g, r.labels),
            {
                "featgraph": lambda r: np.unique(r.labels).size,
                "networkx": len,
                "SciPy csgraph": lambda r: r[0],
                "igraph": len,
                "networkit": lambda r: r.numberOfComponents(),
            },
        ),
    ]


def structures(i: Inputs) -> list[Program]:
    """Return cores, triangles and clustering."""
    import networkx as nx

    g, nk = i.graph, _networkit()
    return [
        Program(
            "k_core",
            {
                "featgraph": lambda: k_core(g),
                "networkx": lambda: nx.core_number(i.networkx),
                "igraph": lambda: i.igraph.coreness(),
                "networkit": lambda: nk.centrality.CoreDecomposition(i.networkit).run(),
            },
            lambda r: None,
            {
                "featgraph": lambda r: int(r.core_numbers.sum()),
                "networkx": lambda r: sum(r.values()),
                "igraph": sum,
                "networkit": lambda r: int(sum(r.scores())),
            },
        ),
        Program(
            "triangle_count",
            {
                "featgraph": lambda: triangle_count(g),
                "networkx": lambda: nx.triangles(i.networkx),
                "SciPy products": lambda: (i.matrix @ i.matrix).multiply(i.matrix),
                "igraph": lambda: i.igraph.list_triangles(),
                "networkit": lambda: nk.sparsification.TriangleEdgeScore(
                    i.networkit
                ).run(),
            },
            lambda r: verify_triangle_count(g, r.triangles),
            {
                "featgraph": lambda r: int(r.total),
                "networkx": lambda r: sum(r.values()) // 3,
                "SciPy products": lambda r: round(r.sum() / 6),
                "igraph": len,
                "networkit": lambda r: int(sum(r.scores())) // 3,
            },
        ),
        Program(
            "clustering",
            {
                "featgraph": lambda: clustering(g),
                "networkx": lambda: nx.clustering(i.networkx),
                "igraph": lambda: i.igraph.transitivity_local_undirected(mode="zero"),
                "networkit": lambda: nk.centrality.LocalClusteringCoefficient(
                    i.networkit, turbo=True
                ).run(),
            },
            lambda r: None,
            {
                "featgraph": lambda r: round(float(np.sum(r.coefficients)), 2),
                "networkx": lambda r: round(sum(r.values()), 2),
                "igraph": lambda r: round(sum(r), 2),
                "networkit": lambda r: round(sum(r.scores()), 2),
            },
        ),
    ]


def centralities(i: Inputs) -> list[Program]:
    """Return centralities."""
    import networkx as nx

    g, nk = i.graph, _networkit()
    return [
        Program(
            "pagerank",
            {
                "featgraph": lambda: pagerank(g),
                "networkx": lambda: nx.pagerank(i.networkx, weight=None),
                "igraph": lambda: i.igraph.pagerank(),
                "networkit": lambda: nk.centrality.PageRank(
                    i.networkit, 0.85, 1e-6
                ).run(),
            },
            lambda r: verify_pagerank(g, r.ranks),
        ),
        _pagerank_by_last_change(i),
        Program(
            f"betweenness_centrality, {SOURCES} sources",
            {
                "featgraph": lambda: betweenness_centrality(g, sources=i.sources),
                "networkx": lambda: nx.betweenness_centrality_subset(
                    i.networkx, i.sources.tolist(), range(g.vertex_count)
                ),
                "igraph": lambda: i.igraph.betweenness(sources=i.sources.tolist()),
                "networkit": lambda: nk.centrality.EstimateBetweenness(
                    i.networkit, SOURCES
                ).run(),
            },
            lambda r: verify_betweenness_centrality(
                g, r.centralities, sources=i.sources
            ),
        ),
        Program(
            "hits",
            {
                "featgraph": lambda: hits(g, dtype=np.float64),
                "networkx": lambda: nx.hits(i.networkx),
                "igraph": lambda: i.igraph.hub_score(),
            },
            lambda r: None,
        ),
        Program(
            "katz_centrality",
            {
                "featgraph": lambda: katz_centrality(g, alpha=i.alpha),
                "networkx": lambda: nx.katz_centrality(
                    i.networkx, alpha=i.alpha, weight=None
                ),
                "networkit": lambda: nk.centrality.KatzCentrality(
                    i.networkit, i.alpha, 1.0
                ).run(),
            },
            lambda r: None,
        ),
        Program(
            "eigenvector_centrality",
            {
                "featgraph": lambda: eigenvector_centrality(g, max_supersteps=500),
                "networkx": lambda: nx.eigenvector_centrality(i.networkx, max_iter=500),
                "igraph": lambda: i.igraph.eigenvector_centrality(),
                "networkit": lambda: nk.centrality.EigenvectorCentrality(
                    i.networkit, 1e-6
                ).run(),
            },
            lambda r: None,
        ),
    ]


def directed_programs(i: Inputs) -> list[Program]:
    """Return the comparisons on a directed graph."""
    import networkx as nx

    nk = _networkit()
    strong = Program(
        "strongly_connected_components",
        {
            "featgraph": lambda: strongly_connected_components(i.graph),
            "networkx": lambda: list(nx.strongly_connected_components(i.networkx)),
            "SciPy csgraph": lambda: csgraph.connected_components(
                i.matrix, connection="strong"
            ),
            "igraph": lambda: i.igraph.connected_components(mode="strong"),
            "networkit": lambda: nk.components.StronglyConnectedComponents(
                i.networkit
            ).run(),
        },
        lambda r: None,
        {
            "featgraph": lambda r: np.unique(r.labels).size,
            "networkx": len,
            "SciPy csgraph": lambda r: r[0],
            "igraph": len,
            "networkit": lambda r: r.numberOfComponents(),
        },
    )
    return [strong, _pagerank_by_last_change(i), _pagerank_as_near(i)]


def _pagerank_by_last_change(i: Inputs) -> Program:
    """Return PageRank in float32 until the L1 norm of a change is small."""
    g, tol = i.graph, LAST_CHANGE / i.graph.vertex_count
    return Program(
        f"pagerank, L1 {LAST_CHANGE:g}",
        {
            "featgraph": lambda: pagerank(g, tol=tol, max_supersteps=1000),
            "SciPy float32": lambda: power_iteration(g, 0.85, tol, np.float32),
        },
        lambda r: verify_pagerank(g, r.ranks, tol=tol),
    )


def _pagerank_as_near(i: Inputs) -> Program:
    """Return PageRank as close to the fixpoint as igraph's, which has no tol."""
    exact = pagerank(i.graph, tol=1e-18, max_supersteps=1000, dtype=np.float64).ranks

    def is_near(ranks: Any) -> bool:
        return bool(np.abs(np.asarray(ranks) - exact).sum() < NEAR)

    # A residual r leaves at most alpha / (1 - alpha) r to go.
    tol = NEAR * 0.15 / 0.85 / i.graph.vertex_count
    return Program(
        f"pagerank, error {NEAR:g}",
        {
            "featgraph": lambda: pagerank(
                i.graph, tol=tol, max_supersteps=1000, dtype=np.float64
            ),
            "igraph": lambda: i.igraph.pagerank(),
        },
        lambda r: verify_pagerank(i.graph, r.ranks, tol=tol),
        {"featgraph": lambda r: is_near(r.ranks), "igraph": is_near},
    )


def _betweenness_from_all(i: Inputs) -> Program:
    """Return betweenness of all vertices, from all of them."""
    import networkx as nx

    return Program(
        "betweenness_centrality, all sources",
        {
            "featgraph": lambda: betweenness_centrality(i.graph, normalized=False),
            "networkx": lambda: nx.betweenness_centrality(i.networkx, normalized=False),
            "igraph": lambda: i.igraph.betweenness(),
        },
        lambda r: None,
        {
            "featgraph": lambda r: float(f"{r.centralities.sum():.9g}"),
            "networkx": lambda r: float(f"{sum(r.values()):.9g}"),
            "igraph": lambda r: float(f"{sum(r):.9g}"),
        },
    )


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Measure every program on every graph, and record errors."""
    print(f"load average {os.getloadavg()[0]:.2f}", flush=True)
    optional = ("igraph", "networkit")
    missing = [name for name in optional if importlib.util.find_spec(name) is None]
    for name in arguments.graph:
        inputs = Inputs(make_graph(name))
        listed = directed_programs if inputs.graph.directed else programs
        for program in listed(inputs):
            for library in (*missing, *(arguments.without or ())):
                program.peers.pop(library, None)
            if not arguments.programs or program.name in arguments.programs:
                given = program, inputs, arguments, recorder
                recorder.attempt(program.name, _measure, *given)


def _measure(
    program: Program, inputs: Inputs, arguments: argparse.Namespace, recorder: Recorder
) -> None:
    answers: dict[str, Any] = {}
    run_ours = program.peers["featgraph"]
    program.peers["featgraph"] = lambda: with_answers(run_ours())
    peers = {
        name: lambda n=name, c=call: answers.__setitem__(n, c())
        for name, call in program.peers.items()
    }
    slow = peers.pop("networkx", None)
    if slow is not None:
        _ = inputs.networkx  # made outside the timed region
    about = {"program": program.name, "graph": inputs.named.describe()}
    contenders = []
    for name, call in peers.items():
        recorder.attempt(name, call, **about)
        if name in answers:  # one that raised is recorded, and not timed
            contenders.append(Contender(name, call))
    trials = {n: t for (n, _), t in interleave(contenders, arguments.repeat, 0).items()}
    if slow is not None:
        trials["networkx"] = [time_call(slow)]
    program.verify(answers["featgraph"])
    wanted = None
    for name, taken in trials.items():
        checks: dict[str, Any] | None = None
        if name in program.number:
            number = program.number[name](answers[name])
            wanted = number if wanted is None else wanted
            checks = {"ok": number == wanted, "number": number}
        recorder.add(
            name, taken, checks=checks, **about,
            cell=f"{inputs.named.name} | {program.name} | {name}",
        )  # fmt: skip
