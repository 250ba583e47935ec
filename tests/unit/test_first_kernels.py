"""How many functions a first call of each algorithm has compiled for the CPU.

A kernel takes up to a second of a first call. `first_kernels.json` has the numbers as
they were recorded. Where one is to change, it is recorded anew::

    python -m tests.unit.test_first_kernels --update
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bench.compile.child import CALLS

KEPT = Path(__file__).with_name("first_kernels.json")
#: Vertices and edges: kernels run on several threads.
SIZE = 20_000, 200_000
#: Prints the functions that Python calls for the first time: those that these call are
#: part of them. Nothing is compiled behind the call, which would be a race.
_PROGRAM = """
import numpy as np
from numba.core.dispatcher import Dispatcher

compile_, names = Dispatcher._compile_for_args, []

def compile_and_note(function, *arguments, **named):
    names.append(f"{function.__module__.split('.')[-1]}.{function.__name__}")
    return compile_(function, *arguments, **named)

Dispatcher._compile_for_args = compile_and_note

import algorithms
import featgraph as fg

fg.config.compile_behind = False
ends = np.random.default_rng(1).integers(0, COUNT, (2, EDGES))
ends = ends[:, ends[0] != ends[1]]
directed = "NAME" == "strongly_connected_components"
graph = fg.Graph.from_edges(
    *ends, vertex_count=COUNT, directed=directed, duplicates="first"
)
given = GIVEN
if "NAME" == "als":
    from scipy import sparse

    ratings = np.ones(len(ends[0]), np.float32)
    graph = sparse.coo_array((ratings, ends), shape=(COUNT, COUNT))
if "NAME" == "label_propagation":
    given = (np.where(np.arange(COUNT) % 20, -1, np.arange(COUNT) % 8),)
algorithms.NAME(graph, *given, target="cpu")
print(*names, sep="\\n")
"""
#: The same, of a call with 33 columns behind one with 32: what was compiled by then.
_NEW_WIDTH = _PROGRAM.replace(
    "given = GIVEN",
    """
given = ()
algorithms.NAME(graph, personalization=np.eye(COUNT, 32) + 1, target="cpu")
names.clear()
""",
).replace("*given,", "personalization=np.eye(COUNT, 33) + 1,")


def functions_of(name: str, program: str = _PROGRAM) -> list[str]:
    """Return the functions that a call of an algorithm waits for.

    The store is empty: where it has the sweep of one chunk, few vertices take that.
    """
    program = program.replace("NAME", name).replace("GIVEN", repr(CALLS[name]))
    for word, number in zip(("COUNT", "EDGES"), SIZE, strict=True):
        program = program.replace(word, str(number))
    command = [sys.executable, "-W", "ignore", "-c", program]
    with tempfile.TemporaryDirectory() as store:
        own = {"NUMBA_NUM_THREADS": "2", "FEATGRAPH_CACHE_DIR": store}
        found = subprocess.run(
            command, env=os.environ | own, capture_output=True, text=True, check=True
        )
    return found.stdout.split()


@pytest.mark.drawn(5)
@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_first_call_has_no_more_compiled(name: str) -> None:
    functions, kept = functions_of(name), json.loads(KEPT.read_text())
    assert len(functions) == kept[name], functions


def test_a_new_number_of_features_has_one_sweep_compiled() -> None:
    """It is the one over edges; no vertex of the graph dangles, so it comes first."""
    [name] = functions_of("pagerank", _NEW_WIDTH)
    assert name.startswith("featgraph_kernel_change_")
    assert name.endswith(".vertex_phase_0")


if __name__ == "__main__":
    found = {name: functions_of(name) for name in sorted(CALLS)}
    for name, functions in found.items():
        print(name, len(functions), *functions)
    if "--update" in sys.argv:
        counts = {name: len(functions) for name, functions in found.items()}
        KEPT.write_text(json.dumps(counts, indent=1) + "\n")
