"""Reading an edge list: two columns of plain integers, by one thread.

The text has 1.57M lines and 21 MB: drawn edges between 300,000 vertices. Contenders are
featgraph's parser, its whole reader, which also makes the graph, pandas, where it is
installed, and NumPy. `cpu_ms` is the least processor time of a call.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np

import featgraph as fg
from bench.record import Recorder
from bench.timing import time_both
from featgraph.graph.formats.text import read_text, scan_table

DEFAULTS = {"repeat": 7, "lines": 1_570_000}
VERTICES = 300_000


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Read a drawn text in all ways."""
    edges = np.random.default_rng(1).integers(0, VERTICES, (arguments.lines, 2))
    about = {"name": "drawn", "vertices": VERTICES, "edges": arguments.lines}
    threads = numba.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "edges.txt"
        np.savetxt(text, edges, fmt="%d")
        numba.set_num_threads(1)
        try:
            for name, (read, columns_of) in readers(text).items():
                both = [time_both(read) for _ in range(arguments.repeat + 1)][1:]
                trials, spent = np.array(both).T.tolist()
                is_same = all(map(np.array_equal, columns_of(read()), edges.T))
                recorder.add(
                    name, trials, cpu_ms=round(min(spent), 1), threads=1, k=1,
                    file_bytes=text.stat().st_size, graph=about, checks={"ok": is_same},
                )  # fmt: skip
        finally:
            numba.set_num_threads(threads)


Columns = Callable[[Any], tuple[Any, Any]]


def readers(text: Path) -> dict[str, tuple[Callable[[], Any], Columns]]:
    """Return calls that read a text, with functions from answers to columns."""
    found: dict[str, tuple[Callable[[], Any], Columns]] = {
        "featgraph, columns": (
            lambda: scan_table(read_text(text), 0, "ii"),
            lambda table: tuple(table.integers),
        ),
        "featgraph, graph": (
            lambda: fg.read_edge_list(text, vertex_count=VERTICES),
            lambda graph: (graph.sources, graph.targets),
        ),
        "numpy.loadtxt": (lambda: np.loadtxt(text, np.int64), lambda table: table.T),
    }
    with contextlib.suppress(ImportError):
        import pandas

        found["pandas.read_csv"] = (
            lambda: pandas.read_csv(text, sep=" ", header=None),
            lambda table: (table[0], table[1]),
        )
    return found
