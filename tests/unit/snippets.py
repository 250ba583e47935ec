"""Functions written to a file and imported, and a State that they can be folded for."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.program.functions import UserFunction

__all__ = [
    "HEADER",
    "K",
    "Snippet",
    "error_of",
    "fold",
    "in_vertex",
    "make_graph",
    "make_state",
]

K = 3
HEADER = "import math\n\nimport numpy as np\n\nimport featgraph as fg\n\n"
#: Marks the line of a snippet that an error must name.
MARK = "#!"
_counter = itertools.count()
_seconds = itertools.count(1_000_000_000)


class Snippet:
    """A module made of text.

    Attributes
    ----------
    path : Path
        Its file.
    line : int
        The line marked with ``#!``; 0 without one.
    """

    def __init__(self, folder: Path, text: str, name: str = "snippet") -> None:
        self.text = HEADER + textwrap.dedent(text)
        self.path = folder / f"{name}.py"
        self.path.write_text(self.text, encoding="utf-8")
        # Compiled files and cached lines are taken for those of a file that was written
        # in the same second and is as long.
        os.utime(self.path, (next(_seconds),) * 2)
        lines = self.text.split("\n")
        self.line = next((n for n, x in enumerate(lines, 1) if MARK in x), 0)

    def load(self) -> ModuleType:
        """Import it, anew each time."""
        name = f"{self.path.stem}_{next(_counter)}"
        spec = importlib.util.spec_from_file_location(name, self.path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        finally:
            del sys.modules[name]
        return module


def in_vertex(body: str) -> str:
    """Return the text of a vertex function `probe` with this body."""
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    return f"@fg.vertex\ndef probe(f, v, d):\n{lines}\n"


def make_graph(*, directed: bool = False) -> fg.Graph:
    """Make a path of five vertices with a chord."""
    return fg.Graph.from_edges([0, 1, 2, 3, 0], [1, 2, 3, 4, 2], directed=directed)


def make_state(*, directed: bool = False, dtype: Any = np.float32) -> fg.State:
    """Make a State with a property of every kind."""
    graph = make_graph(directed=directed)
    v, e = graph.vertex_count, graph.given_edge_count
    rows = e if directed else 2 * e
    values = np.arange(v * K, dtype=dtype).reshape(v, K) / 8
    return fg.State(
        graph,
        x=fg.vertex_property(values, iterated=True),
        y=fg.vertex_property(values.copy()),
        n=fg.vertex_property(np.ones((v, K), np.int32)),
        s=fg.vertex_property(np.ones(v, dtype)),
        parent=fg.vertex_property(np.zeros(v, np.int32)),
        flag=fg.vertex_property(np.zeros(v, np.bool_)),
        M=fg.vertex_property(np.tile(np.eye(K, dtype=dtype), (v, 1, 1))),
        wide=fg.vertex_property(np.ones((v, K + 1), dtype)),
        w=fg.edge_property(np.ones(e, dtype)),
        msg=fg.edge_property(np.ones((rows, K), dtype), iterated=True),
        trips=fg.edge_property(np.zeros(rows, np.int32)),
        bias=np.ones(K, dtype),
        table=np.ones((K, K), dtype),
        alpha=0.5,
        count_limit=3,
        enabled=True,
    )


def fold(snippet: Snippet, state: fg.State, **options: Any) -> Any:
    """Fold the functions of a snippet, in the order in which they stand there."""
    module = snippet.load()
    made = [value for value in vars(module).values() if isinstance(value, UserFunction)]
    return fg.foldmap(*made).fold(state, **({"target": "cpu"} | options))


def error_of(snippet: Snippet, state: fg.State, **options: Any) -> fg.FeatGraphError:
    """Return the error of folding; the state and the marked line are checked."""
    before = {name: np.copy(state[name]) for name in state}
    version = state.version
    with pytest.raises(fg.FeatGraphError) as caught:
        fold(snippet, state, **options)
    error = caught.value
    assert state.version == version
    for name, values in before.items():
        np.testing.assert_array_equal(state[name], values, err_msg=name)
    if snippet.line and isinstance(error, fg.UserFunctionError):
        found = re.search(r"snippet\.py:(\d+)", str(error.where))
        assert found, f"{error.where} names no line"
        assert int(found[1]) == snippet.line, str(error)
    return error
