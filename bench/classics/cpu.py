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

import networkx as nx
import numpy as np
from scipy.sparse import csgraph

import featgraph as fg
from bench.baselines.numpy_learning import power_iteration
from bench.graphs import SEED, NamedGraph, make_graph
from bench.record import Recorder
from bench.timing import Contender, interleave, with_answers
from featgraph import algorithms as al
from featgraph.algorithms.betweenness_centrality import verify_betweenness_centrality
from featgraph.algorithms.bfs import verify_bfs
from featgraph.algorithms.connected_components import verify_connected_components
from featgraph.algorithms.pagerank import verify_pagerank
from featgraph.algorithms.sssp import verify_sssp
from featgraph.algorithms.triangle_count import verify_triangle_count

DEFAULTS = {
    "graph": ["kron-15", "grid708"],
    "repeat": 5,
    "programs": [],
    "without": [],
}
#: Sources of betweenness centrality.
SOURCES = 4
#: Up to so many vertices, all of them are sources, too.
FROM_ALL = 10_000
#: The L1 distance that PageRank may have from its fixpoint, where libraries are
#: compared that stop by different rules: igraph's is less.
NEAR = 1e-10
#: The L1 norm of the last change of PageRank beside products in float32.
LAST_CHANGE = 1e-6


class Inputs:
    """One graph in the form of every library, each made at its first use."""

    def __init__(self, named: NamedGraph) -> None:
        self.named, self.graph = named, named.graph
        rng, degree = np.random.default_rng(SEED), np.asarray(named.graph.out_degree)
        # Of quarters: sums of them are the same in any order.
        self.weights = rng.integers(1, 256, self.graph.given_edge_count) / 4
        self.source = int(np.argmax(degree))
        self.sources = rng.choice(np.flatnonzero(degree), SOURCES, replace=False)
        self.alpha = 0.5 / max(float(degree.max()), 1.0)  # of Katz; below 1 / lambda

    @cached_property
    def weighted(self) -> fg.Graph:
        """Return the graph with weights of its own."""
        g = self.graph
        return fg.Graph.from_edges(
            g.sources, g.targets, weights=self.weights.astype(np.float32),
            vertex_count=g.vertex_count, directed=g.directed,
        )  # fmt: skip

    @cached_property
    def csr(self) -> Any:
        """Return a CSR matrix of the weights."""
        return self.weighted.to_scipy().astype(np.float64)

    @cached_property
    def ones(self) -> Any:
        """Return a CSR matrix of ones."""
        made = self.csr.copy()
        made.data = np.ones_like(made.data)
        return made

    @cached_property
    def nx(self) -> Any:
        """Return NetworkX's, with weights."""
        kind = nx.DiGraph if self.graph.directed else nx.Graph
        return kind(self.weighted.to_networkx())

    @cached_property
    def ig(self) -> Any:
        """Return igraph's, with weights."""
        import igraph

        g = self.graph
        edges = np.stack([g.sources, g.targets], axis=1).tolist()
        made = igraph.Graph(g.vertex_count, edges, directed=g.directed)
        made.es["weight"] = self.weights.tolist()
        return made

    @cached_property
    def nk(self) -> Any:
        """Return networkit's."""
        return self._networkit(np.ones(self.weights.size), False)

    @cached_property
    def nk_weighted(self) -> Any:
        """Return networkit's, with weights."""
        return self._networkit(self.weights, True)

    def _networkit(self, weights: Any, weighted: bool) -> Any:
        import networkit

        g = self.graph
        ends = g.sources.astype(np.uint64), g.targets.astype(np.uint64)
        how = {"n": g.vertex_count, "weighted": weighted, "directed": g.directed}
        made = networkit.GraphFromCoo((weights, ends), **how)
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
    verify: Callable[[Any], None] = lambda answer: None
    number: dict[str, Callable[[Any], Any]] = field(default_factory=dict)


#: Library -> the number of components of its answer.
COMPONENTS: dict[str, Callable[[Any], Any]] = {
    "featgraph": lambda r: np.unique(r.labels).size,
    "networkx": len,
    "SciPy csgraph": lambda r: r[0],
    "igraph": len,
    "networkit": lambda r: r.numberOfComponents(),
}


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
    g, s, nk = i.graph, i.source, _networkit()
    return [
        Program(
            "bfs",
            {
                "featgraph": lambda: al.bfs(g, s),
                "networkx": lambda: nx.single_source_shortest_path_length(i.nx, s),
                "SciPy csgraph": lambda: csgraph.breadth_first_order(i.ones, s),
                "SciPy dijkstra": lambda: csgraph.dijkstra(
                    i.ones, indices=s, unweighted=True, return_predecessors=True
                ),
                "igraph": lambda: i.ig.bfs(s),
                "networkit": lambda: nk.distance.BFS(i.nk, s, storePaths=True).run(),
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
                "featgraph": lambda: al.sssp(g, s, weights=i.weights),
                "networkx": lambda: nx.single_source_dijkstra_path_length(i.nx, s),
                "SciPy csgraph": lambda: csgraph.dijkstra(
                    i.csr, indices=s, return_predecessors=True
                ),
                "igraph": lambda: i.ig.distances(s, weights="weight"),
                "networkit": lambda: nk.distance.Dijkstra(i.nk_weighted, s).run(),
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
                "featgraph": lambda: al.connected_components(g),
                "networkx": lambda: list(nx.connected_components(i.nx)),
                "SciPy csgraph": lambda: csgraph.connected_components(i.ones, False),
                "igraph": lambda: i.ig.connected_components(),
                "networkit": lambda: nk.components.ParallelConnectedComponents(
                    i.nk
                ).run(),
            },
            lambda r: verify_connected_components(g, r.labels),
            COMPONENTS,
        ),
    ]


def structures(i: Inputs) -> list[Program]:
    """Return cores, triangles and clustering."""
    g, nk = i.graph, _networkit()
    return [
        Program(
            "k_core",
            {
                "featgraph": lambda: al.k_core(g),
                "networkx": lambda: nx.core_number(i.nx),
                "igraph": lambda: i.ig.coreness(),
                "networkit": lambda: nk.centrality.CoreDecomposition(i.nk).run(),
            },
            number={
                "featgraph": lambda r: int(r.core_numbers.sum()),
                "networkx": lambda r: sum(r.values()),
                "igraph": sum,
                "networkit": lambda r: int(sum(r.scores())),
            },
        ),
        Program(
            "triangle_count",
            {
                "featgraph": lambda: al.triangle_count(g),
                "networkx": lambda: nx.triangles(i.nx),
                "SciPy products": lambda: (i.ones @ i.ones).multiply(i.ones),
                "igraph": lambda: i.ig.list_triangles(),
                "networkit": lambda: nk.sparsification.TriangleEdgeScore(i.nk).run(),
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
                "featgraph": lambda: al.clustering(g),
                "networkx": lambda: nx.clustering(i.nx),
                "igraph": lambda: i.ig.transitivity_local_undirected(mode="zero"),
                "networkit": lambda: nk.centrality.LocalClusteringCoefficient(
                    i.nk, turbo=True
                ).run(),
            },
            number={
                "featgraph": lambda r: round(float(np.sum(r.coefficients)), 2),
                "networkx": lambda r: round(sum(r.values()), 2),
                "igraph": lambda r: round(sum(r), 2),
                "networkit": lambda r: round(sum(r.scores()), 2),
            },
        ),
    ]


def centralities(i: Inputs) -> list[Program]:
    """Return centralities."""
    g, sources, nk = i.graph, i.sources, _networkit()
    listed = sources.tolist()
    return [
        Program(
            "pagerank",
            {
                "featgraph": lambda: al.pagerank(g),
                "networkx": lambda: nx.pagerank(i.nx, weight=None),
                "igraph": lambda: i.ig.pagerank(),
                "networkit": lambda: nk.centrality.PageRank(i.nk, 0.85, 1e-6).run(),
            },
            lambda r: verify_pagerank(g, r.ranks),
        ),
        _pagerank_by_last_change(i),
        Program(
            f"betweenness_centrality, {SOURCES} sources",
            {
                "featgraph": lambda: al.betweenness_centrality(g, sources=sources),
                "networkx": lambda: nx.betweenness_centrality_subset(
                    i.nx, listed, range(g.vertex_count)
                ),
                "igraph": lambda: i.ig.betweenness(sources=listed),
                "networkit": lambda: nk.centrality.EstimateBetweenness(
                    i.nk, SOURCES
                ).run(),
            },
            lambda r: verify_betweenness_centrality(g, r.centralities, sources=sources),
        ),
        Program(
            "hits",
            {
                "featgraph": lambda: al.hits(g, dtype=np.float64),
                "networkx": lambda: nx.hits(i.nx),
                "igraph": lambda: i.ig.hub_score(),
            },
        ),
        Program(
            "katz_centrality",
            {
                "featgraph": lambda: al.katz_centrality(g, alpha=i.alpha),
                "networkx": lambda: nx.katz_centrality(i.nx, i.alpha, weight=None),
                "networkit": lambda: nk.centrality.KatzCentrality(
                    i.nk, i.alpha, 1.0
                ).run(),
            },
        ),
        Program(
            "eigenvector_centrality",
            {
                "featgraph": lambda: al.eigenvector_centrality(g, max_supersteps=500),
                "networkx": lambda: nx.eigenvector_centrality(i.nx, max_iter=500),
                "igraph": lambda: i.ig.eigenvector_centrality(),
                "networkit": lambda: nk.centrality.EigenvectorCentrality(
                    i.nk, 1e-6
                ).run(),
            },
        ),
    ]


def directed_programs(i: Inputs) -> list[Program]:
    """Return the comparisons on a directed graph."""
    g, nk = i.graph, _networkit()
    strong = Program(
        "strongly_connected_components",
        {
            "featgraph": lambda: al.strongly_connected_components(g),
            "networkx": lambda: list(nx.strongly_connected_components(i.nx)),
            "SciPy csgraph": lambda: csgraph.connected_components(
                i.ones, connection="strong"
            ),
            "igraph": lambda: i.ig.connected_components(mode="strong"),
            "networkit": lambda: nk.components.StronglyConnectedComponents(i.nk).run(),
        },
        number=COMPONENTS,
    )
    return [strong, _pagerank_by_last_change(i), _pagerank_as_near(i)]


def _pagerank_by_last_change(i: Inputs) -> Program:
    """Return PageRank in float32 until the L1 norm of a change is small."""
    g, tol = i.graph, LAST_CHANGE / i.graph.vertex_count
    return Program(
        f"pagerank, L1 {LAST_CHANGE:g}",
        {
            "featgraph": lambda: al.pagerank(g, tol=tol, max_supersteps=1000),
            "SciPy float32": lambda: power_iteration(g, 0.85, tol, np.float32),
        },
        lambda r: verify_pagerank(g, r.ranks, tol=tol),
    )


def _pagerank_as_near(i: Inputs) -> Program:
    """Return PageRank as close to the fixpoint as igraph's, which has no tol."""
    g, how = i.graph, {"max_supersteps": 1000, "dtype": np.float64}
    exact = al.pagerank(g, tol=1e-18, **how).ranks

    def is_near(ranks: Any) -> bool:
        return bool(np.abs(np.asarray(ranks) - exact).sum() < NEAR)

    # A residual r leaves at most alpha / (1 - alpha) r to go.
    tol = NEAR * 0.15 / 0.85 / g.vertex_count
    return Program(
        f"pagerank, error {NEAR:g}",
        {
            "featgraph": lambda: al.pagerank(g, tol=tol, **how),
            "igraph": lambda: i.ig.pagerank(),
        },
        lambda r: verify_pagerank(g, r.ranks, tol=tol),
        {"featgraph": lambda r: is_near(r.ranks), "igraph": is_near},
    )


def _betweenness_from_all(i: Inputs) -> Program:
    """Return betweenness of all vertices, from all of them."""
    return Program(
        "betweenness_centrality, all sources",
        {
            "featgraph": lambda: al.betweenness_centrality(i.graph, normalized=False),
            "networkx": lambda: nx.betweenness_centrality(i.nx, normalized=False),
            "igraph": lambda: i.ig.betweenness(),
        },
        number={
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
            for library in (*missing, *arguments.without):
                program.peers.pop(library, None)
            if not arguments.programs or program.name in arguments.programs:
                given = program, inputs, arguments, recorder
                recorder.attempt(program.name, _measure, *given)


def _measure(
    program: Program, inputs: Inputs, arguments: argparse.Namespace, recorder: Recorder
) -> None:
    peers, about = program.peers, {"program": program.name}
    about["graph"] = inputs.named.describe()
    run_ours, slow = peers["featgraph"], peers.pop("networkx", None)
    peers["featgraph"] = lambda: with_answers(run_ours())
    contenders = [Contender(name, call) for name, call in peers.items()]
    for contender in contenders:
        recorder.attempt(contender.name, contender.run, **about)
    # One that raised is recorded, and not timed.
    contenders = [c for c in contenders if c.answer is not None]
    interleave(contenders, arguments.repeat, 0)
    if slow is not None:
        _ = inputs.nx  # made outside the timed region
        contenders.append(Contender("networkx", slow))
        interleave(contenders[-1:], 1, 0)
    program.verify(next(c.answer for c in contenders if c.name == "featgraph"))
    wanted = None
    for one in contenders:
        checks: dict[str, Any] | None = None
        if one.name in program.number:
            number = program.number[one.name](one.answer)
            wanted = number if wanted is None else wanted
            checks = {"ok": number == wanted, "number": number}
        recorder.add(
            one.name, one.trials, checks=checks, **about,
            cell=f"{inputs.named.name} | {program.name} | {one.name}",
        )  # fmt: skip
