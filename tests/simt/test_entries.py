"""Properties of one value but for a few entries: made where they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.base.errors import ArgumentError, StateError
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.graph.inputs.numbers import STORAGE_DTYPES
from featgraph.runtime.devices.cuda_arrays import _FEW_ENTRIES
from tests.simt.gpu import Gpu, emulated_gpu

V = 70
GRAPH = fg.Graph.from_edges([0], [1], vertex_count=V)


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    """One for all examples of a property."""
    with emulated_gpu() as made:
        yield made


@fg.vertex
def keep(f, v, d):  # type: ignore[no-untyped-def]
    return d.x[v, f] == d.x[v, f]


@fg.vertex
def keep_one(f, v, d):  # type: ignore[no-untyped-def]
    return d.x[v] == d.x[v]


wide, narrow = fg.foldmap(keep), fg.foldmap(keep_one)


@pytest.mark.parametrize("count", [1, _FEW_ENTRIES, _FEW_ENTRIES + 1])
@pytest.mark.parametrize("dtype", STORAGE_DTYPES)
def test_few_entries_take_nothing_from_the_host(
    gpu: Gpu, dtype: str, count: int
) -> None:
    """The driver sets them; with more, their places are uploaded."""
    at, entries = np.arange(count) * 7 + 2, np.arange(count) % 2 + 1
    declared = fg.vertex_property(0, dtype=dtype, at=at, entries=entries > 0)
    if dtype != "bool":
        declared = fg.vertex_property(0, dtype=dtype, at=at, entries=entries)
    narrow(fg.State(GRAPH, x=declared), target="cuda")  # with the set of all vertices
    state, before = fg.State(GRAPH, x=declared), len(gpu.uploads)
    narrow(state, target="cuda")
    assert (len(gpu.uploads) > before) == (count > _FEW_ENTRIES)
    expected = np.zeros(V, dtype)
    expected[at] = entries
    np.testing.assert_array_equal(state["x"], expected)


def test_few_active_vertices_take_nothing_from_the_host(gpu: Gpu) -> None:
    state = fg.State(GRAPH, x=fg.vertex_property(1.0))
    narrow(state, target="cuda")
    before = len(gpu.uploads)
    for ids in ([5], [33, 5, 33, 69], []):
        done = narrow(state, active_in=ids, target="cuda")
        assert len(gpu.uploads) == before
        assert done.vertices.tolist() == sorted(set(ids))


@given(st.data())
def test_entries_are_those_of_an_assignment(gpu: Gpu, data: st.DataObject) -> None:
    """Also of entries that are named twice, in every type."""
    dtype = np.dtype(data.draw(st.sampled_from(STORAGE_DTYPES)))
    shape = data.draw(st.sampled_from([(), (3,)]))
    value = data.draw(st.sampled_from([0, 1]))
    number = st.integers(0, 1 if dtype.kind == "b" else 100)
    count = data.draw(st.integers(0, 6))
    axes = [
        np.array(
            data.draw(st.lists(st.integers(0, n - 1), min_size=count, max_size=count)),
            data.draw(st.sampled_from([np.int32, np.int64, np.uint64])),
        )
        for n in (V, *shape)
    ]
    entries: Any = np.array(
        data.draw(st.lists(number, min_size=count, max_size=count)), np.int64
    )
    entries = data.draw(st.sampled_from([entries, 1]))
    expected = np.full((V, *shape), value, dtype)
    expected[tuple(axes)] = entries
    at: Any = tuple(axes) if shape else axes[0]
    declared = fg.vertex_property(
        value, dtype=dtype, shape=shape, at=at, entries=entries
    )
    for target in (None, "cpu", "cuda"):
        state = fg.State(GRAPH, x=declared)
        if target is not None:
            before = len(gpu.uploads)
            (wide if shape else narrow)(state, target=target)
            new = gpu.uploads[before:]
            assert target == "cpu" or expected.nbytes not in new or count >= V
        found = state["x"]
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, expected)


def test_what_is_overwritten_is_filled_again(gpu: Gpu) -> None:
    """Memory of values that an assignment has replaced is used for the next ones."""
    declared = fg.vertex_property(1.0, at=[3], entries=5.0)
    state = fg.State(GRAPH, x=declared)
    for target in ("cuda", "cpu", "cuda"):
        narrow(state, target=target)
        assert state["x"][2:5].tolist() == [1, 5, 1]
    state["x"] = 2.0
    narrow(state, target="cuda")
    assert state["x"].tolist() == [2] * V


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"at": [V], "entries": 1}, f"0 <= index < {V}"),
        ({"at": [0, -1], "entries": 1}, "index 1 of axis 0"),
        ({"at": [0.5], "entries": 1}, "float64 of shape"),
        ({"at": [True], "entries": 1}, "not an index"),
        ({"at": [[0]], "entries": 1}, "not an index"),
        ({"at": 0, "entries": 1}, "not an index"),
        ({"at": ([0], [0]), "entries": 1}, "not an index"),
        ({"at": ([0], [0, 1]), "entries": 1, "shape": (2,)}, "not an index"),
        ({"at": [0], "entries": 1, "shape": (2,)}, "2 arrays of N integers"),
        ({"at": [0, 1], "entries": [1, 2, 3]}, "one value per entry"),
        ({"at": [0], "entries": [0.5]}, "does not fit int64"),
    ],
    ids=str,
)
def test_what_is_no_entry_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(StateError, match=words.replace("(", r"\(")):
        fg.State(GRAPH, x=fg.vertex_property(-1, **options))


def test_entries_stand_beside_one_value() -> None:
    with pytest.raises(StateError, match="with one value"):
        fg.State(GRAPH, x=fg.vertex_property(np.ones(V), at=[0], entries=1))
    for half in ({"at": [0]}, {"entries": 1}):
        with pytest.raises(ArgumentError, match="indices and values"):
            fg.vertex_property(1, **half)
