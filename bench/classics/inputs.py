"""A graph as every library holds it, and calls of the libraries on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

import featgraph as fg
from bench.graphs import NamedGraph

__all__ = ["SOURCES", "Inputs", "Program", "networkit_run"]

SEED = 20261121
#: Sources of betweenness centrality.
SOURCES = 4


class Inputs:
    """One graph as every library holds it; each is made at its first use."""

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


def networkit_run(make: Callable[[], Any]) -> Any:
    """Run an algorithm of networkit and return it."""
    algorithm = make()
    algorithm.run()
    return algorithm
