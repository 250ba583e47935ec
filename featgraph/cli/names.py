"""The algorithms of ``featgraph run`` and ``featgraph list``, a line each."""

from __future__ import annotations

__all__ = ["ALGORITHMS", "UNDIRECTED"]

#: By the name on the command line; a test holds them against the package.
ALGORITHMS = {
    "als": "factors of users and items, from ratings",
    "belief-propagation": "marginals of a pairwise model, from arrays",
    "betweenness-centrality": "which part of all shortest paths runs through a vertex",
    "bfs": "levels and parents of a breadth-first search",
    "circuit-simulation": "voltages and currents of a network of resistors",
    "closeness-centrality": "how near the others are to a vertex",
    "clustering": "local clustering coefficients",
    "connected-components": "components, weak ones of directed graphs",
    "eigenvector-centrality": "the eigenvector of the largest eigenvalue",
    "factor-propagation": "marginals of a model in a .bif or .uai file",
    "gradient-factorization": "the same as als, by gradient descent",
    "heat-simulation": "heat that spreads along edges",
    "hits": "hubs and authorities",
    "k-core": "core numbers",
    "k-truss": "the trussness of every edge",
    "katz-centrality": "how many walks lead to a vertex",
    "label-propagation": "spread the labels of some vertices to all others",
    "label-set-propagation": "the same for several sets of labels",
    "multi-manifold-ranking": "nearness to a query along several manifolds",
    "multimodal-learning": "given values spread over several modalities",
    "neural-network": "neurons on any graph, settled for given inputs",
    "pagerank": "how often a random surfer is found at a vertex",
    "pagerank-push": "the same from few seeds of a large graph",
    "sgd-factorization": "the same as als, by stochastic gradient descent",
    "sssp": "shortest paths: distances and predecessors",
    "sswp": "widest paths: widths and predecessors",
    "strongly-connected-components": "strong components",
    "triangle-count": "triangles of each vertex",
}

#: Those that take each line of an edge list both ways, asked to or not.
UNDIRECTED = frozenset(
    {
        "belief-propagation",
        "circuit-simulation",
        "clustering",
        "k-truss",
        "triangle-count",
    }
)
