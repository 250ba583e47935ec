"""Processes that are forked, or spawned, from one whose kernels have run on threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
import multiprocessing, os, signal, sys, threading, time
import numpy as np
import featgraph as fg

@fg.gather(into="total", combine="sum")
def neighbors(f, u, v, e, d):
    return d.x[u, f]

@fg.vertex
def mix(f, v, d):
    d.x_next[v, f] = 0.5 * d.x[v, f] + 0.25 * d.total[v, f]
    return d.active_always

@fg.reduce(into="sum", combine="sum")
def add(f, v, d):
    return d.x[v, f]

@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):
    return d.label[u]

@fg.vertex
def adopt(f, v, d):
    d.label_next[v] = min(d.label[v], d.low[v])
    return d.low[v] < d.label[v]

step = fg.foldmap(add, neighbors, mix)
components = fg.foldmap(lowest, adopt)
V = 60_000

def make():
    ends = np.arange(V)
    graph = fg.Graph.from_edges(ends, (ends + 1) % V, directed=False)
    x = np.random.default_rng(3).random((V, 4))
    return fg.State(
        graph, x=fg.vertex_property(x.astype(np.float32), iterated=True),
        label=fg.vertex_property(ends[::-1] // 3, iterated=True), active_always=True,
    )

def work(number):
    state = make()
    fg.iterate(step, state, max_supersteps=3, target="cpu", until=lambda s: False)
    # Half of the vertices are active, then few: each way to find the due vertices.
    for active in (np.arange(0, V, 2), np.arange(0, V, 50), [7]):
        fg.iterate(components, state, active=active, max_supersteps=2, target="cpu")
    return state["x"].tobytes(), state["label"].tobytes(), state["sum"].tobytes()

def in_a_fork(function):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(100)
            code = 0 if function() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

#: Scripts that must run in a child, by name.
SCRIPTS = {
    "forks": """
expected = work(0)
from featgraph.runtime.devices.cpu_sweeps import is_single_threaded
import numba
assert not is_single_threaded()
layer = numba.threading_layer()
for _ in range(2):
    assert in_a_fork(lambda: work(0) == expected) == 0
# Of a child's child, and with what the child itself compiles.
assert in_a_fork(lambda: in_a_fork(lambda: work(0) == expected) == 0) == 0

def compiles():
    @fg.vertex
    def count(f, v, d):
        d.x_next[v, f] = d.x[v, f] + 1
        return False
    state = make()
    fg.foldmap(count)(state, target="cpu")
    return is_single_threaded() == (layer == "omp")

assert in_a_fork(compiles) == 0
# One State: the child goes on from what the parent has, and changes nothing of it.
state, other = make(), make()
for s in (state, other):
    step(s, target="cpu")
before = state["x"]
def goes_on():
    return step(state, target="cpu") and (state["x"] != before).any()
assert in_a_fork(goes_on) == 0
assert np.array_equal(state["x"], before)
step(state, target="cpu"), step(other, target="cpu")
assert np.array_equal(state["x"], other["x"])
assert work(0) == expected
""",
    "pools": """
expected = work(0)
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map_async(work, range(3)).get(100) == [expected] * 3
for method in ("spawn", "forkserver"):
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.map_async(work, range(1)).get(100) == [expected]
""",
    "first": """
# The parent has run nothing: children have threads of their own.
expected = {}
from featgraph.runtime.devices.cpu_sweeps import is_single_threaded
assert in_a_fork(lambda: work(0) and not is_single_threaded()) == 0
assert in_a_fork(lambda: work(0) and not is_single_threaded()) == 0
""",
    "threads": """
expected = work(0)
stop = threading.Event()
def busy():
    while not stop.is_set():
        assert work(0) == expected
threads = [threading.Thread(target=busy) for _ in range(2)]
for thread in threads:
    thread.start()
try:
    for _ in range(3):
        assert in_a_fork(lambda: work(0) == expected) == 0
finally:
    stop.set()
for thread in threads:
    thread.join()
# A thread that compiles holds a lock that a child could never take.
from numba.core.compiler_lock import global_compiler_lock as lock
begun = threading.Event()
def compile_long():
    with lock:
        begun.set()
        time.sleep(0.5)
thread = threading.Thread(target=compile_long)
thread.start()
begun.wait()
def takes():
    signal.alarm(20)
    with lock:
        return True
assert in_a_fork(takes) == 0
thread.join()
with lock:
    pass
# So would one that a property holds while another thread computes its value.
from featgraph.base.cached import cached_property
begun = threading.Event()
class Slow:
    @cached_property
    def value(self):
        begun.set()
        time.sleep(0.5)
        return 7
thread = threading.Thread(target=lambda: Slow().value)
thread.start()
begun.wait()
assert in_a_fork(lambda: Slow().value == 7) == 0
thread.join()
""",
    "other": """
# The user's own functions of Numba, before and after.
import numba
@numba.njit(parallel=True)
def total(x):
    sum = 0.0
    for i in numba.prange(x.size):
        sum += x[i]
    return sum
ones = np.ones(1000)
assert total(ones) == 1000
expected = work(0)
assert numba.threading_layer() == (numba.config.THREADING_LAYER if
                                   numba.config.THREADING_LAYER != "default" else "omp")
assert total(ones) == 1000
assert in_a_fork(lambda: work(0) == expected) == 0
if numba.threading_layer() != "omp":
    assert in_a_fork(lambda: total(ones) == 1000) == 0
assert total(ones) == 1000
""",
}


@pytest.mark.drawn(3)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("forks", "default"),
        ("pools", "default"),
        ("first", "default"),
        ("threads", "default"),
        ("other", "default"),
        ("other", "workqueue"),
    ],
)
def test_children_run_kernels(
    name: str, layer: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "forks"
    folder.mkdir(exist_ok=True, mode=0o700)
    (folder / "forked_program.py").write_text(PROGRAM)
    script = folder / f"{name}.py"
    body = "".join(f"    {line}\n" for line in SCRIPTS[name].splitlines())
    script.write_text(
        f"from forked_program import *\n\nif __name__ == '__main__':\n{body}"
    )
    environment = os.environ | {
        "FEATGRAPH_CACHE_DIR": str(folder / "cache"),  # the first one compiles for all
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]),
        "PYTHONWARNINGS": "ignore",  # Numba's, where it looks for a threading layer
        "NUMBA_THREADING_LAYER": layer,
        "NUMBA_NUM_THREADS": "2",
    }
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stderr
