"""Captures of functions: constants, arrays, helpers; and names that shadow."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import featgraph as fg
from tests.unit.snippets import Snippet, error_of, fold, in_vertex, make_state


@pytest.fixture(scope="module")
def state() -> fg.State:
    return make_state()


# Helpers and operations of the user's


def test_helpers_that_cannot_be_folded(state: fg.State, tmp_path: Path) -> None:
    cases = {
        "def h(x):\n    return h(x - 1) if x > 0 else 0.0": "recursive",
        "def h(x, y):\n    return x": "wrong number of arguments",
        "def h(x):\n    print(x)\n    return x": "print cannot be called",
        "def h(x):\n    if x > 0:\n        return 1.0": "without return",
        "def h(x):\n    return fg.norm(x) if x > 0 else h(x)": "calls itself",
        "def h(x):\n    if x > 0:\n        x = 1\n    return fg.norm(x)": "be inlined",
        "def h(x, y):\n    return fg.norm(x)": "wrong number of arguments for h",
        "@fg.collaborative\ndef h(x, y='a'):\n    return fg.norm(x)": "default value",
        "@fg.collaborative\ndef h(x):\n    return h(x) + fg.norm(x)": "calls itself",
    }
    for text, what in cases.items():
        probe = in_vertex("return h(d.x[v, f]) > 0")
        error = error_of(Snippet(tmp_path, f"{text}\n\n{probe}"), state)
        assert isinstance(error, fg.UserFunctionError)
        assert what in str(error), text


CAPTURED = """
import numpy as np
array = np.ones(3, np.float32)
scalar = np.float32(2.0)
table = {1: 2}
text = "x"
class Device:
    __cuda_array_interface__ = {}
device = Device()
"""


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("array", "array is a captured array"),
        ("device", "device is a captured array"),
        ("table", "table cannot be used"),
        ("text", "text cannot be used"),
    ],
)
def test_captured_objects(
    name: str, what: str, state: fg.State, tmp_path: Path
) -> None:
    probe = in_vertex(f"return d.x[v, f] > {name}[0]  #!")
    error = error_of(Snippet(tmp_path, CAPTURED + probe), state)
    assert what in str(error)
    if "array" in what:
        assert f"fg.State({name}=...)" in str(error.fix)


def test_captured_array_in_a_closure(state: fg.State, tmp_path: Path) -> None:
    text = """
    def make():
        array = np.ones(3)

        @fg.vertex
        def probe(f, v, d):
            return d.x[v, f] > array[0]  #!

        return probe

    probe = make()
    """
    assert "a captured array" in str(error_of(Snippet(tmp_path, text), state))


def constants_of(module: ModuleType, state: fg.State) -> str:
    return str(module.step.fold(state, target="cpu").source)


FROZEN = """
import types

SHIFT = 1.25
settings = types.SimpleNamespace(LEVEL=3.5)

def helper(x):
    return x * SHIFT

@fg.vertex
def probe(f, v, d):
    d.y[v, f] = helper(d.x[v, f]) + SHIFT + settings.LEVEL
    return True

step = fg.foldmap(probe)

def again():
    return fg.foldmap(probe)
"""


def test_constants_are_frozen_when_the_foldmap_is_declared(
    state: fg.State, tmp_path: Path
) -> None:
    module = Snippet(tmp_path, FROZEN).load()
    module.SHIFT, module.settings.LEVEL = 7.75, 9.5
    text = constants_of(module, state)
    assert "1.25" in text
    assert "3.5" in text
    assert "7.75" not in text
    assert "9.5" not in text
    renewed = module.again().fold(state, target="cpu").source
    assert "7.75" in renewed
    assert "9.5" in renewed
    assert "1.25" not in renewed
    assert "3.5" not in renewed


def test_programs_share_the_source_of_a_helper(state: fg.State, tmp_path: Path) -> None:
    text = """
    SHIFT = 1.25

    def shifted(x):
        return x + SHIFT

    @fg.vertex
    def probe(f, v, d):
        d.y[v, f] = shifted(d.x[v, f])
        return True

    step = fg.foldmap(probe)
    """
    module = Snippet(tmp_path, text).load()
    module.SHIFT = 7.75
    again = fg.foldmap(module.probe)
    sources = [m.program.helpers[module.shifted] for m in (module.step, again)]
    assert sources[0] is sources[1]
    assert sources[0].free_names == ["SHIFT"]
    # Values are frozen for each program.
    assert "1.25" in module.step.fold(state, target="cpu").source
    assert "7.75" in again.fold(state, target="cpu").source


def test_special_constants(state: fg.State, tmp_path: Path) -> None:
    text = """
    LOW, HIGH, NONE = -math.inf, math.inf, math.nan
    YES, BIG = True, 2**40

    @fg.vertex
    def probe(f, v, d):
        d.y[v, f] = min(max(d.x[v, f], LOW), HIGH) + NONE + BIG
        return YES
    """
    source = fold(Snippet(tmp_path, text), state).source
    assert "-float32(math.inf)" in source
    assert "float32(math.nan)" in source
    assert str(2**40) in source
    assert "return True" in source


# Names that hide others


def test_names_of_parameters_are_free(tmp_path: Path) -> None:
    """The third parameter is the state, whatever its name; a global `f` is not f."""
    text = """
    f = 2.5

    def v(d):
        return d * f

    @fg.vertex
    def probe(feature, vertex, data):
        data.y[vertex, feature] = v(data.x[vertex, feature])
        return data.y[vertex, feature] > f

    step = fg.foldmap(probe)
    """
    fresh = make_state()
    Snippet(tmp_path, text).load().step(fresh, target="cpu")
    np.testing.assert_allclose(fresh["y"], fresh["x"] * 2.5)


def test_locals_that_hide_generated_names(tmp_path: Path) -> None:
    """Locals may have the names of kernels' locals, helpers, temporaries, builtins."""
    names = ["total", "K", "lane", "word", "min", "float32", "math", "x_0", "helper"]
    names += ["ünï", "_private", "_", "twice", "p_1", "data", "result", "cpu", "done"]
    lines = [f"    {n} = d.x[v, f] + {i}.0" for i, n in enumerate(names)]
    lines += [f"    d.y[v, f] = {' + '.join(names)} + d.total[v, f]"]
    body = "\n".join(lines)
    text = f"""
def twice(helper):
    return helper + helper

other = twice

@fg.gather(into="total", combine="sum")
def gathered(f, u, v, e, d):
    return other(d.s[u]) * d.x[u, f]

@fg.vertex
def probe(f, v, d):
{body}
    return True

step = fg.foldmap(gathered, probe)
"""
    state = make_state()
    Snippet(tmp_path, text).load().step(state, target="cpu")
    x, graph = state["x"].astype(np.float64), state.graph
    total = np.zeros_like(x)
    for s, t in zip(graph.sources, graph.targets, strict=True):
        total[t] += 2 * x[s]
        total[s] += 2 * x[t]
    count = len(names)
    expected = count * x + count * (count - 1) / 2 + total
    np.testing.assert_allclose(state["y"], expected, rtol=1e-5)


def test_functions_named_as_what_they_fill(tmp_path: Path) -> None:
    text = """
    @fg.gather(into="aggr", combine="sum")
    def aggr(f, u, v, e, d):
        return d.s[u]

    @fg.vertex
    def sweep_0(f, v, d):
        d.s_out[v] = d.aggr[v]
        return True

    step = fg.foldmap(aggr, sweep_0)
    """
    graph = fg.Graph.from_edges([0, 1], [1, 2])
    state = fg.State(
        graph,
        s=fg.vertex_property([1.0, 2.0, 4.0]),
        s_out=fg.vertex_property([0.0, 0.0, 0.0]),
    )
    Snippet(tmp_path, text).load().step(state, target="cpu")
    assert state["s_out"].tolist() == [0.0, 1.0, 2.0]
