"""Errors of functions that cannot be folded, with line and fix, before compiling."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import featgraph as fg
from tests.unit.snippets import Snippet, error_of, in_vertex, make_state

# Bodies of a vertex function; `#!` marks the line that the error names.
UNSUPPORTED = {
    "dict": ("t = {1: 2}  #!\nreturn True", "a dict cannot be folded"),
    "list": ("t = [1, 2]  #!\nreturn True", "a list cannot be folded"),
    "set": ("t = {1, 2}  #!\nreturn True", "a set cannot be folded"),
    "tuple": ("t = (1, 2)  #!\nreturn True", "a tuple cannot be folded"),
    "tuple assignment": ("a, b = 1, 2  #!\nreturn True", "cannot"),
    "starred": ("a = max(*d.x[v, f])  #!\nreturn True", "a starred expression"),
    "comprehension": ("t = [i for i in range(3)]  #!\nreturn True", "comprehension"),
    "generator expression": (
        "t = sum(i for i in range(3))  #!\nreturn True",
        "cannot be",
    ),
    "lambda": ("t = lambda x: x  #!\nreturn True", "a lambda cannot be folded"),
    "string": ('t = "text"  #!\nreturn True', "only numbers can be folded"),
    "bytes": ('t = b"text"  #!\nreturn True', "only numbers can be folded"),
    "f-string": ('t = f"{v}"  #!\nreturn True', "an f-string cannot be folded"),
    "None": ("return None  #!", "only numbers can be folded"),
    "complex": ("t = 1j  #!\nreturn True", "only numbers can be folded"),
    "walrus": ("return (t := d.s[v]) > 0  #!", "(:=)"),
    "try": ("try:  #!\n    t = 1\nexcept ValueError:\n    t = 2\nreturn True", "try"),
    "with": ("with open('x') as t:  #!\n    pass\nreturn True", "with"),
    "global": ("global t  #!\nt = 1\nreturn True", "global"),
    "import": ("import math  #!\nreturn True", "import"),
    "import from": ("from math import pi  #!\nreturn True", "import"),
    "nested def": ("def t():  #!\n    return 1\nreturn True", "nested def"),
    "class": ("class T:  #!\n    pass\nreturn True", "class"),
    "del": ("t = 1\ndel t  #!\nreturn True", "del"),
    "assert": ("assert v >= 0  #!\nreturn True", "assert"),
    "raise": ("raise ValueError  #!", "raise"),
    "match": ("match v:  #!\n    case 0:\n        return True\nreturn False", "match"),
    "print": ("print(v)  #!\nreturn True", "print cannot be called"),
    "len": ("return len(d.x[v, f]) > 0  #!", "len cannot be called"),
    "numpy call": ("return np.sum(d.x[v, f]) > 0  #!", "np.sum cannot be called"),
    "numpy array": ("t = np.zeros(3)  #!\nreturn True", "np.zeros cannot be called"),
    "method": ("return d.x[v, f].item() > 0  #!", "unsupported expression"),
    "slice": ("return d.x[v, :] > 0  #!", "slices cannot be folded"),
    "is": ("return d.s[v] is None  #!", "in and is cannot be folded"),
    "in": ("return v in (1, 2)  #!", "cannot be folded"),
    "matmul": ("return d.x[v, f] @ d.x[v, f]  #!", "@ cannot be folded"),
    "for else": (
        "for i in range(3):  #!\n    pass\nelse:\n    pass\nreturn True",
        "els",
    ),
    "while else": ("while v < 0:  #!\n    pass\nelse:\n    pass\nreturn True", "else"),
    "for over list": (
        "for i in [1, 2]:  #!\n    pass\nreturn True",
        "loops over range",
    ),
    "for over row": ("for x in d.x[v]:  #!\n    pass\nreturn True", "loops over range"),
    "chained assignment": ("a = b = 1.0  #!\nreturn True", "one name at a time"),
    "no effect": ("d.s[v]  #!\nreturn True", "this statement has no effect"),
    "keyword argument": ("return math.sqrt(x=d.s[v]) > 0  #!", "keyword arguments"),
    "unknown name": ("return nowhere > 0  #!", "'nowhere' means nothing here"),
    "unknown attribute": ("return math.nowhere > 0  #!", "does not exist"),
    "module": ("return math > 0  #!", "math cannot be used"),
    "function as value": ("t = math.sqrt  #!\nreturn True", "cannot be used"),
    "bare annotation": ("t: int  #!\nreturn True", "an annotation without a value"),
    "huge integer": ("return d.s[v] > 2**3 + 99999999999999999999  #!", "64 bits"),
    "arguments of math": ("return math.sqrt() > 0  #!", "wrong number of arguments"),
    "min of one": ("return min(d.s[v]) > 0  #!", "wrong number of arguments"),
    "range of nothing": ("for i in range():  #!\n    pass\nreturn True", "range takes"),
    "unbound local": (
        "if d.flag[v]:\n    t = 1.0\nreturn t > 0  #!",
        "'t' has no value yet on some path",
    ),
    "read before": ("t = t + 1.0  #!\nreturn True", "'t' has no value yet"),
    "assigned parameter": ("v = 1  #!\nreturn True", "a parameter cannot be assigned"),
    "augmented parameter": ("f += 1  #!\nreturn True", "a parameter cannot be"),
    "loop over a parameter": (
        "for v in range(2):  #!\n    pass\nreturn True",
        "parame",
    ),
    "nothing in a vertex function": ("return fg.nothing  #!", "fg.nothing is no value"),
    "bits of a real": ("return d.s[v] & 1  #!", "bits of a real number"),
}


@pytest.fixture(scope="module")
def state() -> fg.State:
    return make_state()


@pytest.mark.parametrize(("body", "what"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_unsupported_python(
    body: str, what: str, state: fg.State, tmp_path: Path
) -> None:
    error = error_of(Snippet(tmp_path, in_vertex(body)), state)
    assert isinstance(error, fg.UserFunctionError)
    assert isinstance(error, TypeError)
    assert what in str(error)
    assert "in probe" in str(error)


PROPERTIES = {
    "misspelt": ("return d.x[v, f] > d.alhpa  #!", "no property 'alhpa'", "'alpha'"),
    "misspelt next": ("d.x_nxt[v, f] = 1  #!\nreturn True", "no property", "'x_next'"),
    "not iterated": (
        "d.y_next[v, f] = 1  #!\nreturn True",
        "not iterated",
        "iterated=",
    ),
    "bare": ("return d.s > 0  #!", "d.s needs indices", "d.s[v]"),
    "bare row": ("return d.x > 0  #!", "d.x needs indices", "d.x[v, f]"),
    "bare matrix": ("return d.M > 0  #!", "d.M needs indices", "d.M[v, i, f]"),
    "too few": ("return d.M[v, f] > 0  #!", "wrong number of indices", "d.M[v, i, f]"),
    "too many": ("return d.s[v, f] > 0  #!", "wrong number of indices", "d.s[v]"),
    "scalar indexed": ("return d.alpha[v] > 0  #!", "is a scalar", None),
    "row as value": ("return d.x[v] > 0  #!", "whole", "d.x[v, f]"),
    "row in arithmetic": ("t = d.x[v] + 1  #!\nreturn True", "whole", "d.x[v, f]"),
    "vector as value": ("return d.bias > 0  #!", "whole", "d.bias[f]"),
    "loose matrix as value": ("return d.table > 0  #!", "whole", "d.table[i, f]"),
    "loose matrix as a row": ("return fg.norm(d.table) > 1  #!", "a matrix", "matvec"),
    "loose matrix of v": (
        "return d.table[v, f] > 0  #!",
        "belongs to no vertex",
        "fg.vertex_property",
    ),
    "write a loose matrix": (
        "d.table[0, f] = 1.0  #!\nreturn True",
        "cannot write",
        "of v",
    ),
    "index of a loose matrix": (
        "return d.table[3, f] > 0  #!",
        "out of range",
        "0 <= index < 3",
    ),
    "d as value": ("t = d  #!\nreturn True", "d cannot be used as a value", "d.name"),
    "d to a helper": ("return abs(d) > 0  #!", "d cannot be used as a value", None),
    "real index": ("return d.x[d.s[v], f] > 0  #!", "must be an integer", "int("),
    "constant index": ("return d.x[v, 3] > 0  #!", "out of range", "0 <= index < 3"),
    "negative constant": ("return d.x[v, -1] > 0  #!", "out of range", "0 <= index"),
    "real in int": (
        "d.n[v, f] = d.s[v]  #!\nreturn True",
        "int32 property 'n'",
        "int(",
    ),
    "iterated in place": ("d.x[v, f] = 1  #!\nreturn True", "iterated", "d.x_next"),
    "elsewhere": ("d.y[d.parent[v], f] = 1  #!\nreturn True", "only at v", "fg.atomic"),
    "write scalar": ("d.alpha = 1.0  #!\nreturn True", "cannot assign", "d.name[...]"),
    "write a vector": ("d.bias[f] = 1.0  #!\nreturn True", "cannot write", "of v"),
    "write a degree": ("d.in_degree[v] = 1  #!\nreturn True", "cannot write", "of v"),
    "read elsewhere": (
        "t = d.y[d.parent[v], f]\nd.y[v, f] = t\nreturn True",
        "'y' is written in place and read elsewhere",
        "iterated=True",
    ),
    "other feature": (
        "d.y[v, f] = d.y[v, 0] + 1  #!\nreturn True",
        "read at another feature",
        "fg.broadcast",
    ),
    "an edge property": ("return d.w[v] > 0  #!", "has no edge", None),
    "f without an index": ("return f > 1", "f is used but indexes no", "index a"),
    "f as a vertex": ("return d.s[f] > 1", "f is used but indexes no", "index a"),
    "widths": ("return d.x[v, f] > d.wide[v, f]", "different width", "split"),
    "an element of a value": (
        "t = d.s[v]\nreturn t[0, 1] > 0  #!",
        "indexed",
        "d.name",
    ),
    "one index of a matrix": (
        "t = fg.inverse(d.M[v])\nreturn t[0] > 0  #!",
        "two indices",
        "[i, f]",
    ),
    "a matrix as value": (
        "t = fg.inverse(d.M[v])\nreturn t > 0  #!",
        "a matrix cannot be used as a value",
        "[i, f]",
    ),
    "an outer product as value": (
        "return fg.outer(d.x[v, f], d.x[v, f]) > 0  #!",
        "a matrix cannot be used as a value",
        "[i, f]",
    ),
    "arguments of an operation": ("return fg.norm() > 0  #!", "wrong arguments", "x"),
    "unknown option": ("return fg.norm(d.x[v, f], axis=0) > 0  #!", "no such", "group"),
    "group of a variable": (
        "return fg.norm(d.x[v, f], group=d.count_limit) > 0  #!",
        "group= must be a constant",
        None,
    ),
    "group and K": (
        "return fg.norm(d.x[v, f], group=2) > 0  #!",
        "group",
        None,
    ),
    "group of nothing": ("return fg.norm(d.x[v, f], group=0) > 0  #!", "group", None),
    "atomic without d": ("fg.atomic.add(1, v, 1)  #!\nreturn True", "a property", "d."),
    "atomic arguments": (
        "fg.atomic.add(d.s, v)  #!\nreturn True",
        "wrong arguments",
        "(",
    ),
    "atomic next": (
        "fg.atomic.add(d.x_next, (v, f), 1)  #!\nreturn True",
        "in pl",
        None,
    ),
    "atomic indices": ("fg.atomic.add(d.y, v, 1)  #!\nreturn True", "indices", "d.y["),
    "atomic iterated": (
        "fg.atomic.add(d.x, (v, f), 1)\nreturn True",
        "'x' is iterated and cannot be updated atomically",
        "without iterated=True",
    ),
    "atomic real in int": (
        "fg.atomic.add(d.parent, v, 0.5)  #!\nreturn True",
        "int32 property 'parent'",
        None,
    ),
}


@pytest.mark.parametrize(("body", "what", "fix"), PROPERTIES.values(), ids=PROPERTIES)
def test_properties(
    body: str, what: str, fix: str | None, state: fg.State, tmp_path: Path
) -> None:
    error = error_of(Snippet(tmp_path, in_vertex(body)), state)
    assert isinstance(error, fg.UserFunctionError)
    assert what in str(error)
    if fix is not None:
        assert fix in f"{error.fix} {error.expected}"


COLLABORATIVE = {
    "under f": (
        "t = 0.0\nif d.x[v, f] > 0:  #!\n    t = fg.norm(d.x[v, f])\nreturn t > 0",
        "under a condition that is not uniform",
    ),
    "under a varying local": (
        "c = d.x[v, f] > 0\nt = 0.0\nif c:  #!\n    t = fg.norm(d.x[v, f])\n"
        "return t > 0",
        "under a condition that is not uniform",
    ),
    "in a conditional expression": (
        "t = fg.norm(d.x[v, f]) if d.x[v, f] > 0 else 0.0  #!\nreturn t > 0",
        "under a condition that is not uniform",
    ),
    "behind and": (
        "return d.x[v, f] > 0 and fg.any_feature(d.x[v, f] > 1)  #!",
        "under a condition that is not uniform",
    ),
    "behind a return": (
        "if d.x[v, f] > 0:\n    return False\nt = fg.norm(d.x[v, f])  #!\nreturn t > 0",
        "behind a return that only some features take",
    ),
    "in while": (
        "t = 8.0\nwhile t > 1:  #!\n    t = t / fg.norm(d.x[v, f])\nreturn True",
        "in a while loop",
    ),
    "in a varying loop": (
        "t = 8.0\nfor i in range(f):  #!\n    t = fg.norm(d.x[v, f])\nreturn t > 0",
        "under a condition that is not uniform",
    ),
    "in a loop that is left": (
        "t = 0.0\nfor i in range(3):  #!\n    t = fg.norm(d.x[v, f])\n    break\n"
        "return t > 0",
        "break, continue and return",
    ),
}


@pytest.mark.parametrize(("body", "what"), COLLABORATIVE.values(), ids=COLLABORATIVE)
def test_collaborative_calls_that_lanes_would_miss(
    body: str, what: str, state: fg.State, tmp_path: Path
) -> None:
    error = error_of(Snippet(tmp_path, in_vertex(body)), state)
    assert what in str(error)


EDGES = {
    "e in arithmetic": ("return e + 1", "e is opaque"),
    "e returned": ("return e", "e is opaque"),
    "e negated": ("return -e", "e is opaque"),
    "e compared": ("return 1.0 if e > 0 else 0.0", "e is opaque"),
    "e as a condition": ("return 1.0 if e else 0.0", "e is opaque"),
    "e converted": ("return float(e)", "e is opaque"),
    "e in min": ("return min(e, 1)", "e is opaque"),
    "e in a local": ("t = e\n    return d.w[t]", "e is opaque"),
    "e to a helper": ("return helper(e)", "e is opaque"),
    "e and vertices": ("return d.s[e]", "is indexed by a vertex"),
    "e and vectors": ("return d.bias[e]", "is indexed by"),
    "v and edges": ("return d.w[v]", "is indexed by an edge"),
    "reverse of a vertex": (
        "return d.msg[fg.reverse(u), f]",
        "fg.reverse takes an edge",
    ),
    "reverse of a number": (
        "return d.msg[fg.reverse(3), f]",
        "fg.reverse takes an edge",
    ),
    "is_twin of a vertex": ("return fg.is_twin(u)", "fg.is_twin takes an edge"),
    "is_twin as an edge": (
        "return d.w[fg.is_twin(e)]",
        "the edge property 'w' is indexed by an edge",
    ),
    "write": ("d.y[v, f] = 1.0\n    return 1.0", "a gather is pure"),
    "write next": ("d.x_next[v, f] = 1.0\n    return 1.0", "a gather is pure"),
    "atomic": ("fg.atomic.add(d.s, v, 1.0)\n    return 1.0", "a gather is pure"),
    "nothing in arithmetic": ("return fg.nothing + 1", "fg.nothing is no value"),
    "nothing in a local": ("t = fg.nothing\n    return t", "fg.nothing is no value"),
    "no return": ("t = d.s[u]", "without return"),
    "return on one path": ("if d.flag[u]:\n        return 1.0", "without return"),
    "empty return": ("return", "return without a value"),
}


@pytest.mark.parametrize(("body", "what"), EDGES.values(), ids=EDGES)
def test_gathers(body: str, what: str, state: fg.State, tmp_path: Path) -> None:
    text = (
        "def helper(x):\n    return x\n\n"
        '@fg.gather(into="t")\n'
        f"def probe(f, u, v, e, d):\n    {body}\n"
    )
    error = error_of(Snippet(tmp_path, text), state)
    assert isinstance(error, fg.UserFunctionError)
    assert what in str(error)
    assert f"{tmp_path / 'snippet.py'}:" in str(error)
    if what == "a gather is pure":
        assert "in a vertex function" in (error.fix or "")


def test_edge_functions(state: fg.State, tmp_path: Path) -> None:
    head = "@fg.edge\ndef probe(f, u, v, e, d):\n    "
    cases = {
        "d.w[e] = 1.0\n    return True  ": "both directions",
        "d.y[v, f] = 1.0\n    return True": "an edge function cannot write d.y",
        "d.msg[e, f] = 1.0\n    return True": "'msg' is iterated",
        "d.trips[fg.reverse(e)] = 1\n    return True": "function writes only at e",
        "d.trips[e] = d.trips[fg.reverse(e)]\n    return True": "read elsewhere",
        "fg.atomic.add(d.w, e, 1.0)\n    return True": "both directions",
    }
    for body, what in cases.items():
        error = error_of(Snippet(tmp_path, head + body), state)
        assert what in str(error), body
    assert "per_direction=True" in str(
        error_of(Snippet(tmp_path, head + "d.w[e] = 1.0\n    return True"), state)
    )


@pytest.mark.parametrize(
    ("operation", "value"),
    [
        ("reverse", "d.msg[fg.reverse(e), f]"),
        ("is_twin", "d.msg[e, f] if fg.is_twin(e) else 0.0"),
    ],
)
def test_twins_need_an_undirected_graph(
    operation: str, value: str, tmp_path: Path
) -> None:
    snippet = Snippet(
        tmp_path,
        f"""
        @fg.edge
        def turn(f, u, v, e, d):
            d.msg_next[e, f] = {value}
            return True

        step = fg.foldmap(turn)
        """,
    )
    state = make_state(directed=True)
    before = state["msg"]
    with pytest.raises(
        fg.StateError, match=f"{operation} needs an undirected graph"
    ) as caught:
        snippet.load().step(state, target="cpu")
    assert "directed=False" in str(caught.value)
    assert f"{snippet.path}:" in str(caught.value)
    np.testing.assert_array_equal(state["msg"], before)


@fg.gather(into="mean", combine="sum")
def neighbors(f, u, v, e, d):
    return d.x[u, f]


@fg.reduce(into="all_of_it", combine="sum")
def gathered(f, v, d):
    return d.mean[v, f]


def test_a_reduce_of_what_was_gathered(state: fg.State) -> None:
    """Only due vertices have it, and a reduce runs over all."""
    before = {name: np.array(state[name]) for name in state}
    with pytest.raises(fg.UserFunctionError, match="known at the due vertices only"):
        fg.foldmap(neighbors, gathered)(state, target="cpu")
    for name, values in before.items():
        np.testing.assert_array_equal(state[name], values)
