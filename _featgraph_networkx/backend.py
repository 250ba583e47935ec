"""The module that NetworkX loads: two conversions, two questions, and the functions.

NetworkX asks for a function as an attribute of this module, under the name by which it
dispatches. Functions and conversions import featgraph when they are called, and not
before: a call that is declined needs none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from _featgraph_networkx.claims import CLAIMS, can_run, own_arguments, should_run

__all__ = ["CLAIMS", "can_run", "convert_from_nx", "convert_to_nx", "should_run"]


def convert_from_nx(graph: Any, **options: Any) -> Any:
    """Make arrays of a NetworkX graph; `featgraph.networkx.convert_from_nx`."""
    return import_module("featgraph.networkx").convert_from_nx(graph, **options)


def convert_to_nx(result: Any, *, name: str | None = None) -> Any:
    """Make a NetworkX graph of ours; `featgraph.networkx.convert_to_nx`."""
    return import_module("featgraph.networkx").convert_to_nx(result, name=name)


def _served(name: str) -> Callable[..., Any]:
    """Return a function that takes NetworkX's arguments and passes those known on."""

    def serve(*args: Any, **kwargs: Any) -> Any:
        function = getattr(import_module("featgraph.networkx.backend"), name)
        return function(**own_arguments(name, args, kwargs))

    serve.__name__ = serve.__qualname__ = name
    return serve


globals().update({name: _served(name) for name in CLAIMS})
