"""Times of giving a State values, of viewing them, and of reading them.

A State with one property, of an array on the GPU or on the host, beside CuPy's copy of
the same array: device to device, host to device, device to host. From the call until
the device is done.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

import featgraph as fg
from bench.graphs import make_graph
from bench.record import Recorder
from bench.timing import time_calls

__all__ = ["DEFAULTS", "run"]

DEFAULTS = {"graph": ["grid1448"], "k": [1, 32], "repeat": 11}
#: Edges whose values are permuted have a row each: fewer features.
MOST_OF_EDGES = 4


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Time each of them on every graph."""
    recorder.require_gpu()
    for name in arguments.graph:
        named = make_graph(name)
        for k in arguments.k:
            for kind in ("vertex", "edge"):
                if kind == "edge" and k > MOST_OF_EDGES:
                    continue
                _measure(named, k, kind, arguments.repeat, recorder)


def _measure(named: Any, k: int, kind: str, repeat: int, recorder: Recorder) -> None:
    import cupy

    graph = named.graph
    rows = graph.vertex_count if kind == "vertex" else graph.given_edge_count
    on_host = np.random.default_rng(0).random((rows, k), np.float32)
    on_gpu = cupy.asarray(on_host)
    make = fg.vertex_property if kind == "vertex" else fg.edge_property
    state = fg.State(graph, x=make(on_gpu))
    contenders: dict[str, Callable[[], Any]] = {
        "State of a device array": lambda: fg.State(graph, x=make(on_gpu)),
        "CuPy: copy": on_gpu.copy,
        "assignment of a device array": lambda: state.__setitem__("x", on_gpu),
        "State of a host array": lambda: fg.State(graph, x=make(on_host)),
        "CuPy: from the host": lambda: cupy.asarray(on_host),
        "State of one value": lambda: fg.State(graph, x=make(0.0, shape=(k,))),
        "view": lambda: cupy.asarray(state.view("x")),
        "reading": lambda: state["x"],
        "CuPy: to the host": on_gpu.get,
    }
    fields = {"k": k, "kind": kind, "rows": rows, "graph": named.describe()}
    given = on_host if kind == "vertex" else state["x"]
    checks = {"ok": bool((state["x"] == given).all())}
    for name, call in contenders.items():
        taken = time_calls(call, repeat, target="cuda", warm_up=3)
        recorder.add(name, taken, **fields, checks=checks)
