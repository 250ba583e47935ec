"""Kernels compiled by several processes, for a bench that finds them in the store.

A kernel depends on the traits of a graph alone, not on the graph: each process takes a
small graph that gets the traits of the large one, and runs the program a few
supersteps. All of them store kernels in `FEATGRAPH_CACHE_DIR`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import featgraph as fg
from bench.record import ROOT, child_environment
from bench.schedules.eight import Inputs, capture
from featgraph.fold.plan import traits as known
from featgraph.fold.plan.traits import HUB_DEGREE, GraphTraits, graph_traits

__all__ = ["Task", "compile_ahead"]

#: Vertices of the small graph: few enough to be due for kernels that pack them.
VERTICES = 4 * HUB_DEGREE


@dataclass(frozen=True)
class Task:
    """A program with the options of a schedule, as JSON, on graphs with some traits."""

    program: str
    options: str
    traits: GraphTraits
    both_ways: GraphTraits

    @classmethod
    def of(cls, program: str, options: dict[str, Any], inputs: Inputs) -> Task:
        """Return the task for the graph of some inputs."""
        told = graph_traits(inputs.graph), graph_traits(inputs.both_ways)
        return cls(program, json.dumps(options), *told)


def compile_ahead(tasks: list[Task], processes: int, limit: float) -> float:
    """Run tasks in several processes; return how many s that took.

    Tasks that are not done after `limit` s are left, with a message.
    """
    begun = time.perf_counter()
    # Those of one program are apart: they compile the same loops of the runtime first.
    shares = [tasks[n::processes] for n in range(processes)]
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for number, share in enumerate(filter(None, shares)):
            file = Path(folder) / f"{number}.json"
            file.write_text(json.dumps([asdict(task) for task in share]))
            line = [sys.executable, "-m", "bench.schedules.compile_ahead", str(file)]
            environment = child_environment() | {"NUMBA_NUM_THREADS": "1"}
            running.append(subprocess.Popen(line, cwd=ROOT, env=environment))
        for number, process in enumerate(running):
            left = max(limit - (time.perf_counter() - begun), 0.1)
            try:
                code = process.wait(left)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = "after the time it had"
            if code:
                print(f"compiling in process {number} ended {code}", flush=True)
    return time.perf_counter() - begun


def small_graph(traits: GraphTraits) -> fg.Graph:
    """Return a small graph that is taken for one with these traits."""
    ring = np.arange(VERTICES)
    sources, targets = [ring], [(ring + 1) % VERTICES]
    if traits.has_hubs:  # a kernel for hubs is compiled where there is one
        spokes = ring[1 : HUB_DEGREE + 1]
        sources += [spokes, 0 * spokes]
        targets += [0 * spokes, spokes]
    ends = np.concatenate(sources), np.concatenate(targets)
    graph = fg.Graph.from_edges(
        *ends, vertex_count=VERTICES, directed=not traits.undirected
    )
    known.set_traits(graph, traits)
    return graph


def run_task(task: Task) -> None:
    """Compile the kernels of a run, with all vertices due and with few."""
    inputs = Inputs(small_graph(task.traits))
    if inputs.graph.directed:
        inputs.both_ways = small_graph(task.both_ways)
    options = {"target": "cuda", "direction": "pull", **json.loads(task.options)}
    captured = capture(task.program, inputs, **options)
    captured.iterate(max_supersteps=3)
    if captured.options.get("active") is not None:
        captured.iterate(max_supersteps=2, active=None)


def main() -> None:
    """Run the tasks of a file; print errors, and go on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    for given in json.loads(Path(parser.parse_args().file).read_text()):
        told = (GraphTraits(**given[name]) for name in ("traits", "both_ways"))
        task = Task(given["program"], given["options"], *told)
        try:
            run_task(task)
        except Exception as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            print(f"{task.program} {task.options}: {text}", flush=True)


if __name__ == "__main__":
    main()
