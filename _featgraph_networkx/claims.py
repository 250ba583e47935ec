"""The table of what this backend serves, and when it says no.

*can_run* returns True, or why a call is not served. It looks at the arguments and at
the graph's kind, never at its edges. What only the edges can tell (a weight that is no
number) is found by the conversion or by the function, which raise NotImplementedError;
NetworkX takes its own function then, too. *should_run* compares V + E with sizes that
were measured. Both are asked before featgraph is imported: this module imports NetworkX
alone, which is there already, and a declined call costs microseconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx

__all__ = ["CLAIMS", "Claim", "can_run", "own_arguments", "should_run"]


@dataclass(frozen=True)
class Claim:
    """One function of NetworkX that is served.

    Attributes
    ----------
    parameters : tuple of str
        Of NetworkX's parameters, in its order, those that featgraph knows. Any other
        one, of a newer NetworkX, has to have its default.
    pays_from : int or None
        V + E from which a call that converts its graph is faster than NetworkX; None:
        it never is.
    converted : int
        V + E from which a call with a graph that is converted already is.
    refuse : callable or None
        Called with the arguments of the call: why it is not served, or None.
    like : callable or None
        Called likewise: the function whose sizes hold of a call that has less to do
        than most, or None.
    """

    parameters: tuple[str, ...]
    pays_from: int | None
    converted: int
    refuse: Callable[..., str | None] | None = None
    like: Callable[..., str | None] | None = None


def _claim(parameters: str, *rest: Any, **more: Any) -> Claim:
    return Claim(tuple(parameters.split()), *rest, **more)


def _unless_it_ends(max_iter: int, tol: float, **_: Any) -> str | None:
    return None if max_iter >= 1 and tol > 0 else "max_iter < 1 or tol <= 0"


def _unless_pagerank(alpha: float, **rest: Any) -> str | None:
    if not 0 <= alpha <= 1:
        return f"alpha={alpha}: featgraph takes 0 to 1"
    return _unless_it_ends(**rest)


def _unless_katz(alpha: float, beta: Any, nstart: Any, **rest: Any) -> str | None:
    if not alpha > 0:
        return f"alpha={alpha}: featgraph takes more than 0"
    if not isinstance(beta, int | float | Mapping):
        return f"beta of type {type(beta).__name__}: featgraph takes a number or a dict"
    if nstart is not None:
        return "nstart: featgraph begins with zeros"
    return _unless_it_ends(**rest)


def _unless_betweenness(G: Any, k: int | None, weight: Any, **_: Any) -> str | None:
    if G.is_multigraph():
        return "featgraph counts paths along each of repeated edges"
    if k is not None and k < 1:
        return f"k={k}: featgraph takes one source at least"
    return _unless_named(weight)


def _unless_closeness(distance: Any, **_: Any) -> str | None:
    return _unless_named(distance)


def _unless_named(weight: Any) -> str | None:
    if callable(weight):
        return "lengths by a function: featgraph takes the name of an attribute"
    return None


def _unless_attribute(weight: Any, target: Any = None, **_: Any) -> str | None:
    if callable(weight):
        return "weight is a function: featgraph takes the name of an attribute"
    return None if target is None else "target: NetworkX stops where it is found"


def _unless_path(weight: Any, method: Any, **_: Any) -> str | None:
    if callable(weight):
        return "weight is a function: featgraph takes the name of an attribute"
    if weight is not None and method == "bellman-ford":
        return "bellman-ford: its order follows from how it searches"
    return None


def _unless_simple(
    G: Any, nodes: Any = None, weight: Any = None, **_: Any
) -> str | None:
    if G.is_directed() or G.is_multigraph():
        return "featgraph counts triangles of undirected graphs without repeated edges"
    if nodes is not None:
        return "nodes: NetworkX looks at their neighbors only"
    return None if weight is None else "weight: featgraph counts triangles"


def _like_one_search(
    u: Any = None, k: int | None = None, distance: Any = None, weight: Any = None,
    **_: Any,
) -> str | None:  # fmt: skip
    """Tell a call of one search, or of few, from one that searches from all nodes."""
    if u is None and (k is None or k >= FEW):
        return None
    if distance is None and weight is None:
        return "single_source_shortest_path_length"
    return "single_source_dijkstra_path_length"


#: Searches that cost NetworkX no more than a conversion does.
FEW = 4

#: By the name under which NetworkX dispatches the function. The sizes are measured:
#: bench/results/networkx-cpu.jsonl, two cores, `python -m bench.run networkx-cpu`.
CLAIMS: dict[str, Claim] = {
    "average_clustering": _claim(
        "G nodes weight count_zeros", 1_000, 1_000, _unless_simple
    ),
    "betweenness_centrality": _claim(
        "G k normalized weight endpoints seed",
        1_000, 1_000, _unless_betweenness, _like_one_search,
    ),
    "bfs_layers": _claim("G sources", None, 5_000),
    "closeness_centrality": _claim(
        "G u distance wf_improved",
        1_000, 1_000, _unless_closeness, _like_one_search,
    ),
    "clustering": _claim("G nodes weight", 1_000, 1_000, _unless_simple),
    "connected_components": _claim("G", None, 4_000),
    "core_number": _claim("G", 14_000, 11_000),
    "descendants_at_distance": _claim("G source distance", None, 5_000),
    "eigenvector_centrality": _claim(
        "G max_iter tol nstart weight", 2_000, 1_000, _unless_it_ends
    ),
    "is_connected": _claim("G", None, 2_000),
    "is_strongly_connected": _claim("G", None, 60_000),
    "is_weakly_connected": _claim("G", None, 2_000),
    "katz_centrality": _claim(
        "G alpha beta max_iter tol nstart normalized weight", 1_000, 1_000, _unless_katz
    ),
    "multi_source_dijkstra_path_length": _claim(
        "G sources cutoff weight", 450_000, 4_000, _unless_attribute
    ),
    "node_connected_component": _claim("G n", None, 4_000),
    "number_connected_components": _claim("G", None, 3_000),
    "number_strongly_connected_components": _claim("G", 9_000, 4_000),
    "number_weakly_connected_components": _claim("G", None, 2_000),
    "pagerank": _claim(
        "G alpha personalization max_iter tol nstart weight dangling",
        5_000, 2_000, _unless_pagerank,
    ),
    "shortest_path": _claim("G source target weight method", None, 8_000, _unless_path),
    "shortest_path_length": _claim(
        "G source target weight method", None, 8_000, _unless_path
    ),
    "single_source_dijkstra": _claim(
        "G source target cutoff weight", 450_000, 4_000, _unless_attribute
    ),
    "single_source_dijkstra_path": _claim(
        "G source cutoff weight", 450_000, 4_000, _unless_attribute
    ),
    "single_source_dijkstra_path_length": _claim(
        "G source cutoff weight", 450_000, 4_000, _unless_attribute
    ),
    "single_source_shortest_path_length": _claim("G source cutoff", None, 8_000),
    "transitivity": _claim("G", 1_000, 1_000, _unless_simple),
    "triangles": _claim("G nodes", 4_000, 1_000, _unless_simple),
    "weakly_connected_components": _claim("G", None, 3_000),
}  # fmt: skip


def own_arguments(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call that featgraph knows, by name, with defaults.

    Raises
    ------
    TypeError
        If NetworkX's function does not take the arguments, or featgraph does not: a
        parameter that it does not know, with another value than its default.
    """
    signature = inspect.signature(getattr(nx, name))
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    given, known = bound.arguments, CLAIMS[name].parameters
    more = given.pop("backend_kwargs", {})  # what NetworkX's function does not name
    given.pop("backend", None)
    others = [
        p for p in given if p not in known and not _is_default(signature, given, p)
    ]
    if more or others:
        raise TypeError(f"unknown to featgraph: {', '.join([*more, *others])}")
    return {p: given[p] for p in known if p in given}


def _is_default(
    signature: inspect.Signature, given: Mapping[str, Any], name: str
) -> bool:
    value, default = given[name], signature.parameters[name].default
    if value is default:
        return True
    # Arrays and graphs, which == may compare element by element, are never defaults.
    return isinstance(value, int | float | str) and bool(value == default)


def can_run(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | str:
    """Return True, or why this backend does not serve the call; NetworkX calls it."""
    claimed = CLAIMS.get(name)
    if claimed is None:
        return f"featgraph does not serve {name}"
    try:
        arguments = own_arguments(name, args, kwargs)
    except TypeError as error:
        return f"featgraph does not take these arguments: {error}"
    if claimed.refuse is None:
        return True
    return claimed.refuse(**arguments) or True


def should_run(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | str:
    """Return True, or why NetworkX is expected to be faster; NetworkX calls it."""
    claimed, arguments = CLAIMS[name], own_arguments(name, args, kwargs)
    like = None if claimed.like is None else claimed.like(**arguments)
    if like is not None:
        claimed = CLAIMS[like]
    graph = arguments["G"]
    if _is_converted(graph):
        size, where = claimed.converted, ""
    elif claimed.pays_from is None:
        return "NetworkX is faster, unless the graph is converted already"
    else:
        size, where = claimed.pays_from, " where the graph is to be converted"
    # Counting edges takes longer than counting nodes: those go first.
    if len(graph) >= size or len(graph) + graph.number_of_edges() >= size:
        return True
    return f"NetworkX is faster below {size} nodes and edges{where}"


def _is_converted(graph: Any) -> bool:
    """Return whether NetworkX has a graph of ours for it: what costs most is done."""
    cache = getattr(graph, "__networkx_cache__", None) or {}
    kept = cache.get("backends", {}).get("featgraph", {}).values()
    return nx.config.cache_converted_graphs and any(
        getattr(one, "__networkx_backend__", None) == "featgraph"
        for one in kept  # or a failure is noted there
    )
