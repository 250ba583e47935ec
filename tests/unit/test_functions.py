"""Declarations: what is no function of the model is refused where it is declared."""

from __future__ import annotations

import functools
import linecache
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from tests.unit.snippets import Snippet, make_graph, make_state


def plain(f, v, d):
    return True


def with_default(f, v, d=None):
    return True


def with_args(*args):
    return True


def with_more_args(f, v, d, *args):
    return True


def with_kwargs(f, v, d, **kwargs):
    return True


def with_keyword_only(f, v, d, *, k):
    return True


def with_positional_only(f, v, d, /):
    return True


def with_two(f, v):
    return True


def with_four(f, u, v, d):
    return True


def with_none():
    return True


def generator(f, v, d):
    yield True


async def coroutine(f, v, d):
    return True


async def async_generator(f, v, d):
    yield True


class Class:
    def method(self, f, v, d):
        return True

    @classmethod
    def class_method(cls, f, v, d):
        return True

    def __call__(self, f, v, d):
        return True


class Callable_:
    def __init__(self, f, v, d):
        pass


def without_source() -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec("def made(f, v, d):\n    return True\n", namespace)  # noqa: S102
    return namespace["made"]


NOT_FUNCTIONS = {
    "default": (with_default, "default values"),
    "*args": (with_args, "*args"),
    "more *args": (with_more_args, "*args"),
    "**kwargs": (with_kwargs, "**kwargs"),
    "keyword-only": (with_keyword_only, "keyword-only"),
    "positional-only": (with_positional_only, "positional-only"),
    "two parameters": (with_two, "wrong number of parameters"),
    "four parameters": (with_four, "wrong number of parameters"),
    "no parameters": (with_none, "wrong number of parameters"),
    "lambda": (lambda f, v, d: True, "only a plain def"),
    "generator": (generator, "generator"),
    "async": (coroutine, "only a plain def"),
    "async generator": (async_generator, "only a plain def"),
    "bound method": (Class().method, "not a plain Python function"),
    "method": (Class.method, "wrong number of parameters"),
    "class method": (Class.class_method, "not a plain Python function"),
    "callable object": (Class(), "not a plain Python function"),
    "class": (Callable_, "not a plain Python function"),
    "builtin": (max, "not a plain Python function"),
    "math function": (math.sqrt, "not a plain Python function"),
    "ufunc": (np.add, "not a plain Python function"),
    "partial": (functools.partial(plain), "not a plain Python function"),
    "without source": (without_source(), "cannot be read"),
    "number": (3, "not a plain Python function"),
    "None": (None, "not a plain Python function"),
    "string": ("def f(f, v, d): pass", "not a plain Python function"),
    "decorated": (fg.vertex(plain), "decorated twice"),
    "foldmap": (fg.foldmap(fg.vertex(plain)), "not a plain Python function"),
}


@pytest.mark.parametrize(("given", "what"), NOT_FUNCTIONS.values(), ids=NOT_FUNCTIONS)
def test_not_a_vertex_function(given: Any, what: str) -> None:
    with pytest.raises(fg.UserFunctionError) as caught:
        fg.vertex(given)
    error = caught.value
    assert isinstance(error, fg.FeatGraphError)
    assert isinstance(error, TypeError)
    assert what in error.what
    assert error.where
    if hasattr(given, "__code__") and "source" not in str(given):
        assert str(given.__code__.co_firstlineno) in error.where
        assert error.got or error.fix or error.expected


def test_errors_of_arity_name_what_is_expected() -> None:
    for decorate, expected in (
        (fg.vertex, "(f, v, d)"),
        (fg.edge, "(f, u, v, e, d)"),
        (fg.gather(into="t"), "(f, u, v, e, d)"),
        (fg.gather(into="t", matrix=True), "(i, f, u, v, e, d)"),
        (fg.reduce(into="t"), "(f, v, d)"),
    ):
        with pytest.raises(fg.UserFunctionError) as caught:
            decorate(with_two)
        assert caught.value.expected == expected
        assert caught.value.got == "(f, v)"
        assert f"{__file__}:" in str(caught.value)
        assert "in with_two" in str(caught.value)


def test_what_is_declared_stays_callable() -> None:
    declared = fg.vertex(plain)
    assert declared(0, 1, None) is True
    assert declared.function is plain
    assert declared.source.file == __file__
    assert declared.source.line == plain.__code__.co_firstlineno
    assert declared.__wrapped__ is plain


def test_dispatchers_are_taken() -> None:
    numba = pytest.importorskip("numba")
    declared = fg.vertex(numba.njit(plain))
    assert declared.function is plain


def test_names_come_from_the_source() -> None:
    """`__name__` is a string that anyone can set; generated text never has it."""

    def honest(f, v, d):
        return d.x[v, f] > 0

    honest.__name__ = '"""\nimport os\nos.abort()\n"""'
    kernel = fg.foldmap(fg.vertex(honest)).fold(k=2, target="cpu")
    assert fg.vertex(honest).name == "honest"
    assert "abort" not in kernel.source


HOSTILE_FILES = ["x\nimport os", 'x"""\nimport os', "x\\", "ünï.py", "x\u2028import os"]


@pytest.mark.parametrize("file", HOSTILE_FILES)
def test_file_names_are_no_code(file: str) -> None:
    text = "def hostile(f, v, d):\n    return d.x[v, f] > 0\n"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    namespace: dict[str, Any] = {}
    try:
        exec(compile(text, file, "exec"), namespace)  # noqa: S102
        declared = fg.vertex(namespace["hostile"])
    except fg.UserFunctionError:
        return  # the file is not there: nothing was generated
    finally:
        linecache.cache.pop(file, None)
    source = fg.foldmap(declared).fold(k=2, target="cpu").source
    assert not any(line.startswith("import os") for line in source.splitlines())


# Foldmaps


def test_foldmaps_of_nothing_and_of_others() -> None:
    vertex = fg.vertex(plain)
    for given, what in (
        ((), "at least one function"),
        ((plain,), "not a declared function"),
        ((vertex, 3), "not a declared function"),
        ((vertex, None), "not a declared function"),
        (([vertex],), "not a declared function"),
        ((fg.foldmap(vertex),), "not a declared function"),
    ):
        with pytest.raises(fg.UserFunctionError, match=what):
            fg.foldmap(*given)


def test_maps_of_one_kind() -> None:
    vertex = fg.vertex(plain)

    @fg.edge
    def edge(f, u, v, e, d):
        return True

    assert fg.vertexmap(vertex).program.functions == (vertex,)
    assert fg.edgemap(edge).program.functions == (edge,)
    for made, given, kind in (
        (fg.vertexmap, edge, "vertex"),
        (fg.edgemap, vertex, "edge"),
    ):
        with pytest.raises(
            fg.UserFunctionError, match=f"takes {kind} functions"
        ) as error:
            made(given)
        assert "fg.foldmap" in str(error.value)


def test_into_twice() -> None:
    @fg.gather(into="t")
    def first(f, u, v, e, d):
        return 1.0

    @fg.gather(into="t", combine="max")
    def second(f, u, v, e, d):
        return 1.0

    @fg.gather(into="t_source", combine="max")
    def third(f, u, v, e, d):
        return 1.0

    @fg.gather(into="t", combine="argmin")
    def with_source(f, u, v, e, d):
        return 1.0

    @fg.reduce(into="t")
    def reduced(f, v, d):
        return 1.0

    for pair in ((first, second), (third, with_source), (first, reduced)):
        with pytest.raises(fg.UserFunctionError, match="filled by another") as caught:
            fg.foldmap(*pair)
        assert caught.value.got == pair[0].name
        assert "another into" in str(caught.value.fix)


@pytest.mark.parametrize("combine", ["sum", "argmin"])
def test_into_is_a_property(combine: str, tmp_path: Path) -> None:
    graph = make_graph()
    into = "t"
    clash = "t" if combine == "sum" else "t_source"
    state = fg.State(graph, **{clash: fg.vertex_property(np.ones(5, np.int32))})
    text = f"""
    @fg.gather(into={into!r}, combine={combine!r})
    def filled(f, u, v, e, d):
        return u

    step = fg.foldmap(filled)
    """
    module = Snippet(tmp_path, text).load()
    with pytest.raises(
        fg.UserFunctionError, match="is the name of a property"
    ) as caught:
        module.step(state, target="cpu")
    assert clash in str(caught.value)
    assert state[clash].tolist() == [1] * 5


def test_reduce_into_a_property(tmp_path: Path) -> None:
    """A vertex property of that name must not be dropped for it."""
    text = """
    @fg.reduce(into="s")
    def reduced(f, v, d):
        return 1.0

    step = fg.foldmap(reduced)
    """
    state = make_state()
    before = state["s"]
    with pytest.raises(fg.UserFunctionError, match="is the name of a property"):
        Snippet(tmp_path, text).load().step(state, target="cpu")
    np.testing.assert_array_equal(state["s"], before)


BAD_INTO = [
    "",
    "1x",
    "a b",
    "x;import os",
    "x\n",
    "class",
    "None",
    "_t",
    "__class__",
    "t_next",
    "superstep",
    "in_degree",
    "count",
    "index",
    "ﬁd",
    "ünï",
    "t" * 101,
    "t" * 10_000,
]


@pytest.mark.parametrize("into", BAD_INTO, ids=lambda into: repr(into)[:20])
def test_bad_into(into: Any) -> None:
    for decorate in (fg.gather(into=into), fg.reduce(into=into)):
        with pytest.raises(fg.UserFunctionError) as caught:
            decorate(with_five if decorate.__qualname__.startswith("gather") else plain)
        assert f"{__file__}:" in str(caught.value)
        assert len(str(caught.value)) < 1500


@pytest.mark.parametrize("given", [3, None, b"t"])
def test_names_are_text(given: Any) -> None:
    for declare in (
        lambda: fg.gather(into=given),
        lambda: fg.reduce(into=given),
        lambda: fg.gather(into="t", along=given),
    ):
        with pytest.raises(fg.ArgumentError, match="not a string"):
            declare()


def with_five(f, u, v, e, d):
    return 1.0


# Combines


def test_unknown_combine() -> None:
    for given in ("mean", "SUM", "", "sum ", "x;import os"):
        for decorate in (fg.gather, fg.reduce):
            with pytest.raises(fg.UserFunctionError, match="unknown combine") as caught:
                decorate(into="t", combine=given)(with_five)
            assert "argmax" in str(caught.value.expected)
            assert "fg.combine" in str(caught.value.fix)


@pytest.mark.parametrize("given", [None, 3, max, lambda a, b: a, ["sum"]])
def test_combine_of_another_type(given: Any) -> None:
    with pytest.raises(fg.UserFunctionError, match="unknown combine"):
        fg.gather(into="t", combine=given)(with_five)


def larger(a, b):
    return a if a > b else b


@pytest.mark.parametrize("identity", ["0", None, [0], 1j, np.zeros(2)])
def test_identity_is_a_number(identity: Any) -> None:
    with pytest.raises(fg.UserFunctionError, match="identity of a combine") as caught:
        fg.combine(larger, identity=identity)
    assert "in larger" in str(caught.value)


def test_own_combine() -> None:
    assert fg.combine(larger, identity=np.float32(0.5)).identity == 0.5
    for given in (plain, with_none, lambda a, b: a, max):
        with pytest.raises(fg.UserFunctionError):
            fg.combine(given, identity=0)


def test_combines_that_do_not_fit() -> None:
    with pytest.raises(fg.UserFunctionError, match="no argmin or argmax"):
        fg.reduce(into="t", combine="argmin")(plain)
    with pytest.raises(fg.UserFunctionError, match="no argmin or argmax"):
        fg.gather(into="t", combine="argmax", matrix=True)(with_five)
    for along in ("inout", ""):
        with pytest.raises(fg.UserFunctionError, match="along some edges") as caught:
            fg.gather(into="t", along=along)(with_five)  # type: ignore[arg-type]
        assert "'out'" in str(caught.value)
    with pytest.raises(fg.UserFunctionError, match="is exclusive or not"):
        fg.edge(exclusive=1)  # type: ignore[arg-type]


# Operations


@pytest.mark.parametrize(
    "operation", [fg.feature_sum, fg.reverse, fg.atomic.add, fg.normalize]
)
def test_operations_outside_a_superstep(operation: Any) -> None:
    with pytest.raises(
        fg.UserFunctionError, match="outside a running superstep"
    ) as error:
        operation(1.0)
    assert "fg.foldmap" in str(error.value)


def test_own_operations() -> None:
    @fg.collaborative
    def centred(x, group=None):
        return x - fg.feature_max(x, group=group)

    assert centred.name == "centred"
    assert centred.defaults == (None,)
    for given in (lambda x: x, max, Class().method, generator):
        with pytest.raises(fg.UserFunctionError):
            fg.collaborative(given)
