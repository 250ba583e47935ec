"""State: what goes in comes out, in the order given; what does not fit stays out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.program.signature import RESERVED
from tests.strategies import graphs, seeds

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"]
DTYPES += ["float32", "float64"]


@pytest.fixture
def graph() -> fg.Graph:
    return fg.Graph.from_edges([2, 0, 1, 1], [0, 1, 2, 1], vertex_count=4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2)])
def test_round_trip(dtype: str, shape: tuple[int, ...], graph: fg.Graph) -> None:
    values = (np.arange(4 * np.prod(shape, dtype=int)) % 2).reshape(4, *shape)
    values = values.astype(dtype)
    state = fg.State(graph, p=fg.vertex_property(values), q=fg.edge_property(values))
    for name in "pq":
        assert state[name].dtype == dtype
        np.testing.assert_array_equal(state[name], values)
    state["p"] = 1 - values.astype(int)
    np.testing.assert_array_equal(state["p"], 1 - values.astype(int))
    assert state["p"].dtype == dtype


@given(graphs(max_edges=60), seeds, st.booleans())
def test_edges_keep_their_order(graph: fg.Graph, seed: int, both: bool) -> None:
    rng = np.random.default_rng(seed)
    rows = graph.given_edge_count * (2 if both and not graph.directed else 1)
    values = rng.integers(0, 1000, (rows, 2))
    loops = np.flatnonzero(graph.sources == graph.targets)
    if rows > graph.given_edge_count:  # a self-loop has one entry
        values[graph.given_edge_count + loops] = values[loops]
    state = fg.State(graph, w=fg.edge_property(values))
    np.testing.assert_array_equal(state["w"], values)
    other = rng.permutation(values)
    if rows > graph.given_edge_count:
        other[graph.given_edge_count + loops] = other[loops]
    state["w"] = other
    np.testing.assert_array_equal(state["w"], other)


def test_both_directions_or_one() -> None:
    graph = fg.Graph.from_edges([0, 1], [1, 2], directed=False)
    shared = fg.State(graph, w=fg.edge_property([1.0, 2.0]))
    apart = fg.State(graph, w=fg.edge_property([1.0, 2.0, 3.0, 4.0]))
    doubled = fg.State(graph, w=fg.edge_property([1.0, 2.0], per_direction=True))
    filled = fg.State(graph, w=fg.edge_property(0.5, per_direction=True))
    assert shared.signature["w"].shared
    assert shared["w"].tolist() == [1.0, 2.0]
    assert not apart.signature["w"].shared
    assert apart["w"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert doubled["w"].tolist() == [1.0, 2.0, 1.0, 2.0]
    assert filled["w"].tolist() == [0.5] * 4
    with pytest.raises(fg.StateError, match="keeps its shape"):
        shared["w"] = [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(fg.StateError, match="keeps its shape"):
        apart["w"] = [1.0, 2.0]


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0], None, "float32"),
        ([1, 2, 3, 4], None, "int64"),
        ([True, False, True, False], None, "bool"),
        (np.ones(4), None, "float64"),
        (np.ones(4, np.int16), None, "int16"),
        (np.ones(4, ">f4"), None, "float32"),
        (np.ones(4), np.float32, "float32"),
        (np.ones(4), "float32", "float32"),
        ([1, 2, 3, 4], float, "float64"),
        (1.5, None, "float32"),
        (2, None, "int64"),
        (True, None, "bool"),
        (np.float64(1.5), None, "float64"),
    ],
)
def test_dtypes(values: Any, dtype: Any, expected: str, graph: fg.Graph) -> None:
    state = fg.State(graph, p=fg.vertex_property(values, dtype=dtype))
    assert state["p"].dtype == expected
    assert state["p"].shape == (4,)


def test_filled(graph: fg.Graph) -> None:
    state = fg.State(
        graph,
        p=fg.vertex_property(0.5, shape=(3,)),
        q=fg.edge_property(1, shape=(2, 2), dtype=np.int8),
    )
    assert state["p"].shape == (4, 3)
    assert state["q"].shape == (4, 2, 2)
    state["p"] = 0.25
    assert (state["p"] == 0.25).all()


def test_nothing_is_shared(graph: fg.Graph) -> None:
    values, bias = np.ones((4, 2), np.float32), np.ones((3, 3), np.float32)
    state = fg.State(
        graph, p=fg.vertex_property(values), w=fg.edge_property(values), bias=bias
    )
    values[:] = 7
    bias[:] = 7
    for name in ("p", "w", "bias"):
        assert (state[name] == 1).all()
        state[name][...] = 9
        assert (state[name] == 1).all()
    values[:] = 5
    state["p"] = values
    values[:] = 6
    assert (state["p"] == 5).all()
    declared = fg.vertex_property(values)
    first, second = fg.State(graph, p=declared), fg.State(graph, p=declared)
    first["p"] = 0.0
    assert (second["p"] == 6).all()


def test_layouts_that_are_not_ours(graph: fg.Graph) -> None:
    values = np.arange(16.0, dtype=np.float32).reshape(4, 4)
    read_only = values.copy()
    read_only.flags.writeable = False
    for given_ in (
        values.T.copy().T,
        np.repeat(values, 2, axis=0)[::2],
        np.asfortranarray(values),
        values.astype(">f4"),
        read_only,
        values.tolist(),
    ):
        state = fg.State(graph, p=fg.vertex_property(given_))
        np.testing.assert_array_equal(state["p"], values)
        stored = state.stored("p")
        assert stored.flags.c_contiguous
        assert stored.flags.writeable


class ArrayLike:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.arange(4, dtype=dtype or np.float32)


class DLPack:
    """An array of another library."""

    def __init__(self) -> None:
        self.values = np.arange(4, dtype=np.float32)

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


@pytest.mark.parametrize("make", [ArrayLike, DLPack])
def test_arrays_of_others(make: Any, graph: fg.Graph) -> None:
    made = make()
    state = fg.State(graph, p=fg.vertex_property(made), bias=made)
    assert state["p"].tolist() == state["bias"].tolist() == [0, 1, 2, 3]
    if make is DLPack:
        made.values[:] = 7
        assert state["p"].tolist() == [0, 1, 2, 3]


def test_version(graph: fg.Graph) -> None:
    state = fg.State(graph, p=fg.vertex_property([1.0] * 4), alpha=0.5, bias=[1.0, 2.0])
    seen = [state.version]
    for name, value in (("p", 2.0), ("alpha", 0.25), ("bias", [3.0, 4.0])):
        state[name] = value
        seen.append(state.version)
    assert seen == sorted(set(seen))
    before = state.version
    for name, value in (("p", [1.0]), ("alpha", "x"), ("bias", [1.0] * 3), ("z", 1)):
        with pytest.raises(fg.StateError):
            state[name] = value
    assert state.version == before
    assert (state["p"] == 2.0).all()
    assert state["alpha"] == 0.25


def test_as_a_mapping(graph: fg.Graph) -> None:
    state = fg.State(graph, p=fg.vertex_property([1.0] * 4, iterated=True), alpha=1)
    assert list(state) == ["p", "alpha"]
    assert len(state) == 2
    assert "p" in state
    assert "q" not in state
    assert "vertex float32 (V,), iterated" in repr(state)
    with pytest.raises(fg.StateError, match="there is no property 'alhpa'") as caught:
        state["alhpa"]
    assert "did you mean 'alpha'" in str(caught.value)
    assert "p, alpha" in str(caught.value)


def test_scalars(graph: fg.Graph) -> None:
    values = {"a": 0.5, "b": 3, "c": True, "d": np.float32(0.25), "e": np.int8(4)}
    state = fg.State(graph, **values, g=np.array(2.5), h=np.bool_(False))
    kinds = {name: type(state[name]) for name in state}
    assert kinds == dict.fromkeys("adg", float) | dict.fromkeys("be", int) | {
        "c": bool,
        "h": bool,
    }
    state["a"] = 2  # an integer is a real number
    assert state["a"] == 2.0
    assert type(state["a"]) is float
    for name, bad in (
        ("a", "0.5"),
        ("a", None),
        ("a", 1j),
        ("a", [1.0]),
        ("a", np.ones(2)),
        ("b", 0.5),
        ("b", True),
        ("c", 1),
        ("c", 0.5),
    ):
        before = state[name]
        with pytest.raises(fg.StateError, match="a scalar keeps its type") as caught:
            state[name] = bad
        assert caught.value.where == f"state[{name!r}]"
        assert caught.value.expected in {"float", "int", "bool"}
        assert state[name] == before


BAD_DTYPES = [
    np.ones(4, np.uint64),
    np.ones(4, np.float16),
    np.ones(4, np.longdouble),
    np.ones(4, np.complex64),
    np.array([1, "a", None, 2], object),
    np.array(["a", "b", "c", "d"]),
    np.array([b"a"] * 4),
    np.zeros(4, "datetime64[s]"),
    np.zeros(4, [("a", "f4")]),
    ["a"] * 4,
    [None] * 4,
    [[1.0], [1.0, 2.0], [1.0], [1.0]],
    None,
    object(),
    {1: 2},
]


@pytest.mark.parametrize(
    "values", BAD_DTYPES, ids=[str(i) for i in range(len(BAD_DTYPES))]
)
@pytest.mark.parametrize("declare", [fg.vertex_property, fg.edge_property])
def test_dtypes_that_cannot_be_stored(
    values: Any, declare: Any, graph: fg.Graph
) -> None:
    with pytest.raises(fg.StateError) as caught:
        fg.State(graph, p=declare(values))
    error = caught.value
    assert isinstance(error, ValueError)
    assert "property 'p'" in str(error)
    assert error.got is not None
    with pytest.raises(fg.StateError):
        fg.State(graph, p=declare(np.ones(4), dtype=getattr(values, "dtype", "O")))


def test_an_unsigned_dtype_is_replaced_by_an_integer_one(graph: fg.Graph) -> None:
    """float32 holds integers up to 2^24 only."""
    with pytest.raises(fg.StateError, match=r"give dtype=np\.int64"):
        fg.State(graph, p=fg.vertex_property(np.ones(4, np.uint64)))


BAD_SHAPES = {
    "too short": (np.ones(3), "one entry per", "(3,)"),
    "too long": (np.ones((5, 2)), "one entry per", "(5, 2)"),
    "no rows": (np.ones((0, 2)), "one entry per", "(0, 2)"),
    "k = 0": (np.ones((4, 0)), "no features", "K >= 1"),
    "k x 0": (np.ones((4, 2, 0)), "no features", "K >= 1"),
    "not square": (np.ones((4, 2, 3)), "no function can index", "(V, K, K)"),
    "four axes": (np.ones((4, 2, 2, 2)), "no function can index", "(V, K, K)"),
}


@pytest.mark.parametrize(
    ("values", "what", "part"), BAD_SHAPES.values(), ids=BAD_SHAPES
)
def test_shapes(values: Any, what: str, part: str, graph: fg.Graph) -> None:
    with pytest.raises(fg.StateError, match=what) as caught:
        fg.State(graph, p=fg.vertex_property(values))
    assert "property 'p'" in str(caught.value)
    assert part in str(caught.value)


def test_shapes_that_are_given(graph: fg.Graph) -> None:
    with pytest.raises(fg.StateError, match="the requested shape") as caught:
        fg.State(graph, p=fg.vertex_property(np.ones((4, 2)), shape=(3,)))
    assert caught.value.expected == (4, 3)
    for shape in ((0,), (2, 3), (2, 0)):
        with pytest.raises(fg.StateError):
            fg.State(graph, p=fg.vertex_property(0.0, shape=shape))
    with pytest.raises(fg.StateError, match="keeps its shape"):
        fg.State(graph, p=fg.vertex_property(0.0, shape=(2,)))["p"] = np.ones((4, 3))


@pytest.mark.parametrize("bad", [None, "x", b"x", {}, {"a": 1}, np.ones((2, 3)), []])
def test_what_is_no_property(bad: Any, graph: fg.Graph) -> None:
    with pytest.raises(fg.StateError) as caught:
        fg.State(graph, p=bad)
    assert "fg.State(p=...)" in str(caught.value)


@pytest.mark.parametrize("bad", [None, 5, "graph", np.ones(3)])
def test_what_is_no_graph(bad: Any) -> None:
    with pytest.raises(fg.StateError, match="belongs to a graph"):
        fg.State(bad, p=1.0)


# Names

HOSTILE = [
    "",
    " ",
    "x y",
    "x;import os",
    "x\nimport os",
    "x)\nimport os#",
    "1x",
    "x-y",
    "x.y",
    "x[0]",
    "'",
    '"""',
    "{x}",
    "%s",
    "\0",
    "class",
    "None",
    "lambda",
    "import",
    "_x",
    "__class__",
    "__builtins__",
    "__import__",
    "x_next",
    "_next",
    "count",
    "index",
    "ﬁd",
    "x\u200b",
    "ünï",
    "\U0001d4cd",
    "x" * 101,
    "x" * 10_000,
    "; " * 5000,
    *sorted(RESERVED),
]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: repr(name)[:24])
def test_names_that_are_refused(name: str, graph: fg.Graph) -> None:
    for value in (0.5, fg.vertex_property([1.0] * 4), [1.0, 2.0]):
        with pytest.raises(fg.StateError) as caught:
            fg.State(graph, **{name: value})
        error = caught.value
        assert isinstance(error, ValueError)
        assert error.where == "fg.State"
        assert error.fix == "choose another name"
        assert len(str(error)) < 500


@given(st.text(max_size=30))
def test_any_text_is_a_plain_name_or_refused(name: str) -> None:
    graph = fg.Graph.from_edges([0], [1])
    if name in {"self", "graph"}:
        return
    try:
        state = fg.State(graph, **{name: 0.5})
    except fg.StateError:
        return
    assert name.isascii()
    assert name.isidentifier()
    assert state[name] == 0.5


@pytest.mark.parametrize(
    "name", ["match", "case", "type", "print", "x" * 100, "K", "f"]
)
def test_names_that_may_be_used(name: str, graph: fg.Graph) -> None:
    """Soft keywords, builtins, names of generated code: they are attributes of `d`."""
    assert fg.State(graph, **{name: 0.5})[name] == 0.5


# -- arrays that are not copied


@fg.gather(into="total", combine="sum")
def values_of_neighbors(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.w[e] * d.x[u, f]


@fg.vertex
def take_the_total(f, v, d):  # type: ignore[no-untyped-def]
    d.y[v, f] = d.total[v, f]
    return True


@fg.vertex
def add_one(f, v, d):  # type: ignore[no-untyped-def]
    d.x_next[v, f] = d.x[v, f] + 1
    return True


def lent_state() -> tuple[fg.State, np.ndarray, np.ndarray]:
    graph = fg.Graph.from_edges([2, 0, 0], [0, 1, 2])  # in the order of their ids
    x, w = np.arange(6.0).reshape(3, 2), np.array([1.0, 2.0, 3.0])
    state = fg.State(
        graph,
        x=fg.vertex_property(x, iterated=True, copy=False),
        y=fg.vertex_property(np.zeros((3, 2))),
        w=fg.edge_property(w, copy=False),
    )
    return state, x, w


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
def test_what_is_only_read_is_read_where_it_is(target: str) -> None:
    state, x, w = lent_state()
    assert state.stored("x") is x
    assert state.stored("w") is w
    step = fg.foldmap(values_of_neighbors, take_the_total)
    step(state, target=target)
    assert state["y"].tolist() == [[4, 5], [0, 2], [0, 3]]
    x[:] += 1
    w[:] *= 2
    state.touch("x")
    state.touch("w")
    fg.iterate(step, state, max_supersteps=1, target=target)
    assert state["y"].tolist() == [[10, 12], [4, 8], [6, 12]]
    np.testing.assert_array_equal(state["x"], x)
    if target == "cpu":
        assert state.stored("x") is x


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.parametrize("first", ["read", "nothing"])
def test_what_is_written_is_copied_first(target: str, first: str) -> None:
    state, x, w = lent_state()
    given = x.copy()
    if first == "read":
        fg.foldmap(values_of_neighbors, take_the_total)(state, target=target)
    fg.iterate(fg.foldmap(add_one), state, max_supersteps=3, target=target)
    np.testing.assert_array_equal(x, given)
    np.testing.assert_array_equal(state["x"], given + 3)
    x[:] = -1  # no more the State's
    state.touch("x")
    np.testing.assert_array_equal(state["x"], given + 3)
    np.testing.assert_array_equal(state.copy()["w"], w)


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
def test_an_assignment_leaves_the_array_alone() -> None:
    state, x, _ = lent_state()
    with pytest.raises(fg.StateError):
        state["x"] = np.zeros((2, 2))
    assert state.stored("x") is x
    state["x"] = 7.0
    fg.iterate(fg.foldmap(add_one), state, max_supersteps=1, target="cpu")
    assert x[2].tolist() == [4, 5]
    assert (state["x"] == 8).all()


def test_what_kernels_cannot_read_as_it_is_is_copied() -> None:
    graph = fg.Graph.from_edges([0, 0, 2], [2, 1, 0])  # ids in another order
    x = np.arange(6.0).reshape(3, 2)
    frozen = x.copy()
    frozen.flags.writeable = False
    for values, dtype in [
        (x.T.copy().T, None), (x, np.float32), (frozen, None), (x.tolist(), None),
        (x.astype(">f8"), None),
    ]:  # fmt: skip
        given = fg.vertex_property(values, copy=False, dtype=dtype)
        state = fg.State(graph, x=given)
        assert not np.shares_memory(state.stored("x"), np.asarray(values))
        assert state["x"].tolist() == x.tolist()
    w = np.arange(3.0)
    state = fg.State(graph, w=fg.edge_property(w, copy=False))
    assert not np.shares_memory(state.stored("w"), w)
    assert state["w"].tolist() == [0, 1, 2]
    other = state.copy()
    w[:] = 7  # too early: nothing has read it here
    assert other["w"].tolist() == [0, 1, 2]
    view = state.view("w")
    w[:] = 8
    assert np.asarray(view).tolist() == [7, 7, 7]
