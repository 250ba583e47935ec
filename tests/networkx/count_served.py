"""A pytest plugin: counts the calls of NetworkX's own tests that featgraph answers.

A call counts where the function of the backend has returned, and where a superstep or a
depth-first search ran in it: not one that was declined and answered by NetworkX, nor
one that featgraph answers without a kernel (a graph without nodes).
``FEATGRAPH_SERVED`` is the file that the counts are written to.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

import featgraph as fg
from featgraph.networkx import backend
from featgraph.networkx.backend import CLAIMS

supersteps = 0
served: Counter[str] = Counter()


def count_supersteps() -> None:
    iterate, call = fg.iterate, fg.FoldMap.__call__
    search = fg.Graph.strong_components

    @wraps(iterate)
    def counted_iterate(*args: Any, **kwargs: Any) -> Any:
        global supersteps
        run = iterate(*args, **kwargs)
        supersteps += run.supersteps
        return run

    @wraps(call)
    def counted_call(self: fg.FoldMap, *args: Any, **kwargs: Any) -> Any:
        global supersteps
        supersteps += 1
        return call(self, *args, **kwargs)

    @wraps(search)
    def counted_search(self: fg.Graph, *args: Any, **kwargs: Any) -> Any:
        global supersteps
        supersteps += 1
        return search(self, *args, **kwargs)

    fg.Graph.strong_components = counted_search  # type: ignore[method-assign]
    fg.iterate = counted_iterate
    fg.FoldMap.__call__ = counted_call


def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def count(*args: Any, **kwargs: Any) -> Any:
        before = supersteps
        result = function(*args, **kwargs)
        if isinstance(result, Iterator):
            return counted_items(name, result)
        served[name] += supersteps > before
        return result

    return count


def counted_items(name: str, items: Iterator[Any]) -> Iterator[Any]:
    """Yield the items of a function; it runs at the request for the first."""
    before = supersteps
    for number, item in enumerate(items):
        served[name] += number == 0 and supersteps > before
        yield item


def pytest_configure(config: pytest.Config) -> None:
    count_supersteps()
    for name in CLAIMS:
        setattr(backend, name, counted(name, getattr(backend, name)))


def pytest_sessionfinish(session: pytest.Session) -> None:
    text = json.dumps({name: served[name] for name in CLAIMS})
    Path(os.environ["FEATGRAPH_SERVED"]).write_text(text, encoding="utf-8")
