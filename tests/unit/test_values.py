"""Values enter a State as they are, or not at all."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import featgraph as fg

GRAPH = fg.Graph.from_edges([0, 1, 2], [1, 2, 0])
MASKED = np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False])
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"]
DECLARE = {"vertex": fg.vertex_property, "edge": fg.edge_property}


def stored(values: Any, dtype: Any = None, kind: str = "vertex") -> Any:
    return fg.State(GRAPH, x=DECLARE[kind](values, dtype=dtype))["x"]


KEPT = {
    "a mask that hides nothing": (np.ma.array([1.0, 2.0, 3.0]), "float64"),
    "a frame": (pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [1, 2, 3]}), "float64"),
    "a frame with bools": (pd.DataFrame({"a": [1, 2, 3], "b": [True] * 3}), "int64"),
    "a frame of float32": (pd.DataFrame({"a": [1, 2, 3]}, dtype="float32"), "float32"),
    "a column": (pd.Series([1.0, 2.0, 3.0]), "float64"),
    "an index": (pd.Index([1, 2, 3]), "int64"),
    "nullable integers": (pd.Series([1, 2, 3], dtype="Int16"), "int16"),
    "nullable floats": (pd.Series([1, 2, 3], dtype="Float32"), "float32"),
    "nullable bools": (pd.Series([True, False, True], dtype="boolean"), "bool"),
    "categories of integers": (pd.Series([7, 8, 7], dtype="category"), "int64"),
    "integers as objects": (pd.Series([1, 2, 3], dtype=object), "int64"),
    "a polars column": (pl.Series([1.0, 2.0, 3.0]), "float64"),
    "polars bools": (pl.Series([True, False, True]), "bool"),
    "a polars frame": (pl.DataFrame({"a": [1.0, 2.0, 3.0], "b": [1, 2, 3]}), "float64"),
    "infinities": ([np.inf, -np.inf, np.nan], "float32"),
    "too large for float32, in an array": (np.array([1e300, 0, 0]), "float64"),
}


@pytest.mark.parametrize("kind", DECLARE)
@pytest.mark.parametrize(("values", "dtype"), KEPT.values(), ids=KEPT)
def test_values_keep_their_type(values: Any, dtype: str, kind: str) -> None:
    found = stored(values, kind=kind)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.asarray(values))


HIDDEN = {
    "a mask": (MASKED, ".filled("),
    "masks in a list": ([MASKED, MASKED, MASKED], ".filled("),
    "the masked constant": ([1.0, np.ma.masked, 2.0], ".filled("),
    "nullable integers": (pd.Series([1, 2, None], dtype="Int16"), ".fillna("),
    "nullable floats": (pd.Series([1, 2, None], dtype="Float64"), ".fillna("),
    "categories": (pd.Series([7, None, 7], dtype="category"), ".fillna("),
    "a column of a frame": (
        pd.DataFrame({"a": pd.Series([1, 2, None], dtype="Float64"), "b": [1, 2, 3]}),
        "column 'a'",
    ),
    "polars": (pl.Series([1.0, None, 3.0]), ".fill_null("),
    "a polars frame": (
        pl.DataFrame({"a": [1.0, 2.0, 3.0], "b": [1, None, 3]}),
        "column 'b'",
    ),
}


@pytest.mark.parametrize("dtype", [None, np.float32, np.int64])
@pytest.mark.parametrize("kind", DECLARE)
@pytest.mark.parametrize(("values", "part"), HIDDEN.values(), ids=HIDDEN)
def test_what_is_hidden_is_not_made_a_value(
    values: Any, part: str, kind: str, dtype: Any
) -> None:
    with pytest.raises(fg.StateError, match="have no value") as caught:
        stored(values, dtype, kind)
    assert "property 'x'" in str(caught.value)
    assert part in str(caught.value)
    if getattr(values, "shape", (3,)) == (3,):
        state = fg.State(GRAPH, x=DECLARE[kind]([0.0] * 3))
        with pytest.raises(fg.StateError, match="have no value"):
            state["x"] = values
        with pytest.raises(fg.StateError, match="have no value"):
            fg.State(GRAPH, x=values)
    with pytest.raises(fg.GraphInputError, match="have no value"):
        fg.Graph.from_edges([0, 1, 2], [1, 2, 0], weights=values)


NOT_HELD = {
    "a fraction": ([1, 2.5, 3], np.int32, [1], "2.5"),
    "nan": ([1, 2, np.nan], np.int64, [2], "nan"),
    "an infinity": ([np.inf, 2, 3], np.int64, [0], "inf"),
    "one too many": ([[1, 2], [3, 2**31], [5, 6]], np.int32, [1, 1], "2147483648"),
    "2 ** 63": ([0, 2.0**63, 3], np.int64, [1], "9.223372036854776e+18"),
    "a negative one": ([0, 1, -1], np.uint8, [2], "-1"),
    "uint64": (np.array([2**63, 0, 0], np.uint64), np.int64, [0], str(2**63)),
    "300": ([300, 0, 0], np.int8, [0], "300"),
    "two": ([1, 0, 2], bool, [2], "2"),
    "a half": ([0.5, 0, 1], bool, [0], "0.5"),
    "1e300": ([0, 1e300, 0], None, [1], "1e+300"),
    "1e300 as asked": (np.array([0, -1e300, 0]), np.float32, [1], "-1e+300"),
    "none": ([1.0, None, 2.0], np.float32, [1], "None (NoneType)"),
    "text": (pd.Series(["1", "2", "3"]), int, [0], "'1' (str)"),
    "10 ** 5000": ([1, 10**5000, 3], None, [1], "an integer of 16610 bits"),
    "10 ** 400": ([1, 10**400, 3], float, [1], "an integer of 1329 bits"),
    "no number": ([1, Fraction(1, 2), 3], float, [1], "Fraction(1, 2) (Fraction)"),
}


@pytest.mark.parametrize(
    ("values", "dtype", "index", "shown"), NOT_HELD.values(), ids=NOT_HELD
)
@pytest.mark.parametrize("kind", DECLARE)
def test_what_a_type_cannot_hold(
    values: Any, dtype: Any, index: list[int], shown: str, kind: str
) -> None:
    with pytest.raises(fg.StateError) as caught:
        stored(values, dtype, kind)
    assert caught.value.where == f"property 'x', index {index}"
    assert caught.value.got == shown
    if dtype is not None:
        shape = (3, 2) if len(index) == 2 else (3,)
        state = fg.State(GRAPH, x=DECLARE[kind](np.zeros(shape, dtype)))
        with pytest.raises(fg.StateError) as caught:
            state["x"] = values
        assert caught.value.got == shown
        assert not state["x"].any()


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([*INTEGERS, "bool"]))
def test_integers_are_held_exactly_or_refused(data: st.DataObject, dtype: str) -> None:
    given_dtype = data.draw(
        st.sampled_from([*INTEGERS, "float32", "float64", "uint64"])
    )
    array = data.draw(hnp.arrays(given_dtype, 3))
    exact = [x.item() for x in array]
    if dtype == "bool":
        low, high = 0, 1
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    fits = all(low <= x <= high and x == int(x) for x in exact)
    if fits:
        assert stored(array, dtype).tolist() == [type(low)(x) for x in exact]
    else:
        with pytest.raises(fg.StateError, match="does not fit"):
            stored(array, dtype)


@pytest.mark.parametrize("value", [None, "1", b"1", MASKED, 1j, [1.0, None, 2.0]])
def test_an_assignment_that_is_no_number(value: Any) -> None:
    state = fg.State(GRAPH, x=fg.vertex_property([1.0, 2.0, 3.0]), v=np.ones(3))
    for name in ("x", "v"):
        before, version = state[name], state.version
        with pytest.raises(fg.StateError, match=f"property '{name}'"):
            state[name] = value
        np.testing.assert_array_equal(state[name], before)
        assert state.version == version


@pytest.mark.parametrize("flag", ["no", "yes", 1, 0, None, [], np.ones(2)])
@pytest.mark.parametrize("declare", DECLARE.values())
def test_flags_are_true_or_false(declare: Any, flag: Any) -> None:
    with pytest.raises(fg.ArgumentError, match="not a truth value") as caught:
        declare([1.0], iterated=flag)
    assert isinstance(caught.value, TypeError)
    if flag is not None:
        with pytest.raises(fg.ArgumentError, match="per_direction="):
            fg.edge_property([1.0], per_direction=flag)
    assert fg.vertex_property([1.0], iterated=np.bool_(True)).iterated is True


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((-1,), fg.StateError),
        ((10**12,), fg.StateError),
        ((10**400,), fg.StateError),
        ((0,), fg.StateError),
        ("3", fg.ArgumentError),
        ((1.5,), fg.ArgumentError),
        ((True,), fg.ArgumentError),
        ({3}, fg.ArgumentError),
    ],
)
def test_shapes_of_entries(shape: Any, kind: Any) -> None:
    with pytest.raises(kind, match="shape="):
        fg.vertex_property(0.0, shape=shape)
    assert fg.State(GRAPH, x=fg.vertex_property(0.0, shape=2))["x"].shape == (3, 2)


def test_more_than_there_is_memory() -> None:
    with pytest.raises(
        fg.DeviceMemoryError, match="does not fit into memory"
    ) as caught:
        fg.State(GRAPH, x=fg.vertex_property(0.0, shape=(10**9, 10**9)))
    assert isinstance(caught.value, MemoryError)
    assert "shape (3, 1000000000, 1000000000)" in str(caught.value)


@pytest.mark.parametrize("dtype", ["quux", [1, 2], object, "O", {}, np.complex64, -1])
def test_what_is_no_storage_type(dtype: Any) -> None:
    with pytest.raises(fg.StateError) as caught:
        fg.vertex_property(0.0, dtype=dtype)
    assert "float32" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "is_right"),
    [
        (np.longdouble(0.5), True),
        (np.array(2), True),
        (2**63 - 1, True),
        (2**63, False),
        (10**400, False),
        (np.uint64(2**63), False),
        (np.datetime64(5, "ns"), False),
        (np.timedelta64(5, "ns"), False),
        (np.ma.masked, False),
        (Fraction(1, 2), False),
        (1j, False),
    ],
)
def test_scalars(value: Any, is_right: bool) -> None:
    if is_right:
        assert fg.State(GRAPH, a=value)["a"] == value
        return
    with pytest.raises(fg.StateError):
        fg.State(GRAPH, a=value)
    state = fg.State(GRAPH, n=1)
    with pytest.raises(fg.StateError, match="state\\['n'\\]"):
        state["n"] = value
    assert state["n"] == 1


def test_a_real_scalar_takes_large_integers() -> None:
    state = fg.State(GRAPH, a=1.0)
    state["a"] = 2**70
    assert state["a"] == 2.0**70
    with pytest.raises(fg.StateError, match="does not fit a float"):
        state["a"] = 10**400


def test_any_name_that_is_not_reserved() -> None:
    state = fg.State(GRAPH, self=1.0, graph=2, properties=3.0)
    assert [state[name] for name in ("self", "graph", "properties")] == [1.0, 2, 3.0]
    assert list(fg.State(graph=GRAPH, x=1.0)) == ["x"]
    with pytest.raises(fg.StateError, match="belongs to a graph"):
        fg.State(x=1.0)
    with pytest.raises(fg.StateError, match="reserved") as caught:
        fg.State(GRAPH, count=1.0)
    for name in ("count", "index", "in_degree", "superstep", "vertex_count"):
        assert name in str(caught.value)


@pytest.mark.parametrize("key", [3, None, ("x",), ["x"], b"x", "x\0", "y" * 10_000])
def test_keys_that_are_no_names(key: Any) -> None:
    state = fg.State(GRAPH, x=1.0)
    with pytest.raises(fg.StateError, match="there is no property") as caught:
        state[key] = 1.0
    assert len(str(caught.value)) < 1000
    with pytest.raises(fg.StateError, match="there is no property"):
        state[key]


def test_a_matrix_that_is_not_square() -> None:
    with pytest.raises(
        fg.StateError, match="a matrix of no vertex is square"
    ) as caught:
        fg.State(GRAPH, x=np.ones((2, 5)))
    assert "(5, 5)" in str(caught.value)
    assert "fg.vertex_property" in str(caught.value)


def test_a_feature_that_is_read_off_is_an_integer_without_a_state() -> None:
    @fg.vertex
    def pick(f, v, d):
        d.x_next[v, f] = fg.broadcast(d.x[v, f], d.which[v])
        return True

    step = fg.foldmap(pick)
    for options in ({}, {"k": 4}, {"target": "cuda"}):
        assert "pick" in step.explain(**options)


def test_a_scalar_that_the_foldmap_does_not_hold_is_refused() -> None:
    @fg.vertex
    def shrink(f, v, d):
        d.x[v] = d.size * 1e-38
        return True

    graph, shrunk = fg.Graph.from_edges([0], [1]), fg.vertexmap(shrink)
    state = fg.State(graph, x=fg.vertex_property([1.0, 1.0]), size=2e38)
    shrunk(state, target="cpu")
    shown = state["x"].tolist()
    state["size"] = 1e300
    for _ in range(2):
        with pytest.raises(fg.StateError, match="does not fit float32") as caught:
            shrunk(state, target="cpu")
        assert caught.value.where == "scalar 'size'"
        assert state["x"].tolist() == shown
    state["size"] = float("inf")
    shrunk(state, target="cpu")
    assert np.isinf(state["x"]).all()
