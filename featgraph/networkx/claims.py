"""The table of what this backend serves, and when it says no.

A function is served by a function of the same name and signature that takes a
`NetworkXGraph`, and `claim` puts it into `CLAIMS`::

    @claim(pays_from=100_000, refuse=unless_in_range)
    def pagerank(G, alpha=0.85, ...): ...

*can_run* asks `refuse` with the same arguments: it returns why not, or None, and looks
at the graph's kind, never at its edges. What only the edges can tell (a weight that is
no number) is found by the conversion or by the function, which raise
NotImplementedError; NetworkX takes its own function then, too. *should_run* compares
V + E with `pays_from`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import networkx as nx

from featgraph.networkx.graph import NetworkXGraph

__all__ = ["CLAIMS", "Claim", "can_run", "claim", "should_run"]


@dataclass(frozen=True)
class Claim:
    """One function of NetworkX that is served.

    Attributes
    ----------
    function : callable
        What serves it, with NetworkX's signature.
    pays_from : int
        V + E from which a call that converts its graph is faster than NetworkX.
    refuse : callable or None
        Called with the arguments of the call: why it is not served, or None.
    """

    function: Callable[..., Any]
    pays_from: int
    refuse: Callable[..., str | None] | None = None

    @property
    def signature(self) -> inspect.Signature:
        """The signature of the function."""
        return inspect.signature(self.function)


#: By the name under which NetworkX dispatches the function.
CLAIMS: dict[str, Claim] = {}


def claim(
    *, pays_from: int, refuse: Callable[..., str | None] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a function into the table, under its name; see `Claim`."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        CLAIMS[function.__name__] = Claim(function, pays_from, refuse)
        return function

    return enter


def can_run(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | str:
    """Return True, or why this backend does not serve the call; NetworkX calls it."""
    claimed = CLAIMS.get(name)
    if claimed is None:
        return f"featgraph does not serve {name}"
    try:
        bound = claimed.signature.bind(*args, **kwargs)
    except TypeError as error:
        return f"featgraph does not take these arguments: {error}"
    if claimed.refuse is None:
        return True
    bound.apply_defaults()
    return claimed.refuse(**bound.arguments) or True


def should_run(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | str:
    """Return True, or why NetworkX is expected to be faster; NetworkX calls it."""
    claimed = CLAIMS[name]
    graph = claimed.signature.bind(*args, **kwargs).arguments["G"]
    if _is_converted(graph) or _is_of_size(graph, claimed.pays_from):
        return True
    return f"NetworkX is faster below {claimed.pays_from} nodes and edges"


def _is_of_size(graph: Any, size: int) -> bool:
    """Return V + E >= size; the edges are counted where the nodes are too few."""
    return len(graph) >= size or len(graph) + graph.number_of_edges() >= size


def _is_converted(graph: Any) -> bool:
    """Return whether NetworkX has a graph of ours for it: what costs most is done."""
    cache = getattr(graph, "__networkx_cache__", None) or {}
    kept = cache.get("backends", {}).get("featgraph", {}).values()
    return nx.config.cache_converted_graphs and any(
        isinstance(one, NetworkXGraph)
        for one in kept  # or a failure is noted there
    )
