"""The table of what this backend serves, and when it says no.

A function is served by a function of the same name and signature that takes a
`NetworkXGraph`, and `claim` puts it into `CLAIMS`::

    @claim(pays_from=10_000, converted=5_000, refuse=_unless_in_range)
    def pagerank(G, alpha=0.85, ...): ...

*can_run* asks `refuse` with the same arguments: it returns why not, or None, and looks
at the graph's kind, never at its edges. What only the edges can tell (a weight that is
no number) is found by the conversion or by the function, which raise
NotImplementedError; NetworkX takes its own function then, too. *should_run* compares
V + E with `pays_from`, or with `converted` where NetworkX has our graph in its cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import networkx as nx

from featgraph._cached import cached_property
from featgraph.networkx.graph import NetworkXGraph

__all__ = ["CLAIMS", "Claim", "can_run", "claim", "should_run"]


@dataclass(frozen=True)
class Claim:
    """One function of NetworkX that is served.

    Attributes
    ----------
    function : callable
        What serves it, with NetworkX's signature.
    pays_from : int or None
        V + E from which a call that converts its graph is faster than NetworkX; None:
        it never is.
    converted : int
        V + E from which a call with a graph that is converted already is.
    refuse : callable or None
        Called with the arguments of the call: why it is not served, or None.
    """

    function: Callable[..., Any]
    pays_from: int | None
    converted: int
    refuse: Callable[..., str | None] | None = None

    @cached_property
    def signature(self) -> inspect.Signature:
        """The signature of the function."""
        return inspect.signature(self.function)


#: By the name under which NetworkX dispatches the function. The sizes are measured:
#: bench/results/networkx-cpu.jsonl, two cores, `python -m bench.run networkx-cpu`.
CLAIMS: dict[str, Claim] = {}


def claim(
    *,
    pays_from: int | None,
    converted: int,
    refuse: Callable[..., str | None] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a function into the table, under its name; see `Claim`."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        CLAIMS[function.__name__] = Claim(function, pays_from, converted, refuse)
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
        isinstance(one, NetworkXGraph)
        for one in kept  # or a failure is noted there
    )
