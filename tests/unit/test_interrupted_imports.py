"""An interrupt while the first call imports Numba leaves a process that works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Children that begin with nothing but featgraph; in each, an interrupt comes at
#: another of the imports that the first call makes.
SCRIPT = """
import os, signal, sys, traceback
signal.signal(signal.SIGINT, signal.default_int_handler)
import featgraph as fg
assert "numba" not in sys.modules

@fg.vertex
def count(f, v, d):
    d.x[v, f] = d.x[v, f] + 1
    return False

step = fg.foldmap(count)

def call():
    graph = fg.Graph.from_edges([0, 1], [1, 2])
    state = fg.State(graph, x=fg.vertex_property([[1.0], [2.0], [3.0]]))
    step(state, target="cpu")
    return state["x"].ravel().tolist()

class Interrupting:
    def __init__(self, wanted):
        self.wanted, self.names = wanted, []

    def find_spec(self, name, path=None, target=None):
        self.names.append(name)
        if len(self.names) == self.wanted:
            os.kill(os.getpid(), signal.SIGINT)
        return None

def child(wanted, out):
    hook = Interrupting(wanted)
    sys.meta_path.insert(0, hook)
    came = False
    try:
        call()
    except KeyboardInterrupt:
        came = True
    problem = ""
    if wanted >= 0 and not came:
        problem = "no interrupt came"
    try:
        if call() != [2.0, 3.0, 4.0]:
            problem = "another result"
        import numba
        numba.njit(lambda x: x + 1)(1)
    except BaseException:
        problem = traceback.format_exc()
    os.write(out, f"{len(hook.names)}|{problem[-800:]}".encode())

def run(wanted):
    reads, writes = os.pipe()
    if os.fork() == 0:
        try:
            signal.alarm(100)
            child(wanted, writes)
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as file:
        text = file.read()
    os.wait()
    return text.split("|", 1)

total, problem = run(-1)
assert problem == "", problem
total = int(total)
assert total > 100, total  # Numba's among them
failed = 0
for number in range(1, MOMENTS + 1):
    wanted = 1 + total * number // (MOMENTS + 1)
    _, problem = run(wanted)
    if problem:
        failed += 1
        print("at import", wanted, "of", total, problem, file=sys.stderr)
assert not failed
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_interrupts_while_numba_is_imported(tmp_path: Path) -> None:
    moments = int(os.environ.get("FEATGRAPH_TEST_MOMENTS", "5"))
    script = tmp_path / "interrupted.py"  # a function's source is read from a file
    script.write_text(SCRIPT.replace("MOMENTS", str(moments)))
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "FEATGRAPH_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
