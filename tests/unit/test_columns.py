"""Columns: versions, room for more entries, orders of entries, and types."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import featgraph as fg
from featgraph.cuda import dialect
from featgraph.program.column import Column
from featgraph.program.signature import PropertyKind, PropertyType, Real, widest_real
from featgraph.reference import superstep
from tests.unit.test_kept_supersteps import add_up, make, of_sources, take

step = fg.foldmap(of_sources, take)
mean = fg.foldmap(add_up)


@fg.vertex
def halve(f, v, d):
    d.x_next[v] = d.x_next[v] * 0.5
    return True


in_place = fg.foldmap(halve)
VERTEX = PropertyType(PropertyKind.VERTEX, "float32")


@pytest.fixture(params=["cpu", "cuda"])
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where supersteps run; the GPU is emulated."""
    scope: Any = nullcontext()
    if request.param == "cuda":
        if not dialect.is_installed():
            pytest.skip("needs numba-cuda, the dialect")
        from tests.simt.gpu import emulated_gpu

        scope = emulated_gpu()
    with scope:
        yield request.param


class Versions:
    """Which columns have advanced since the last look."""

    def __init__(self, state: fg.State) -> None:
        self.state, self.seen = state, self.now(state)

    def now(self, state: fg.State) -> dict[str, int]:
        return {name: column.version for name, column in state._columns.items()}

    def advanced(self) -> set[str]:
        before, self.seen = self.seen, self.now(self.state)
        for name, version in before.items():
            assert self.seen[name] >= version
        assert len(set(self.seen.values())) == len(self.seen)
        return {n for n, v in self.seen.items() if v != before.get(n)}


def test_all_writes_advance_versions(place: str) -> None:
    state = make(dtype="float32", count=12)
    versions = Versions(state)
    step(state, target=place)
    assert versions.advanced() == {"x"}
    fg.iterate(step, state, supersteps=3, target=place)
    assert versions.advanced() == {"x"}
    in_place(state, asynchronous=True, target=place)
    assert versions.advanced() == {"x"}
    mean(state, target=place)
    assert versions.advanced() == {"mean"}
    mean(state, target=place)
    assert versions.advanced() == {"mean"}
    state["x"], state["bias"] = 0.25, 0.75
    assert versions.advanced() == {"x", "bias"}
    step(state, target=place)
    assert versions.advanced() == {"x"}
    np.asarray(state.view("x"))
    assert state["x"].shape == (12,)
    assert not versions.advanced(), "reads write nothing"
    state.touch("x")
    state.touch("mean")
    assert versions.advanced() == {"x", "mean"}
    with pytest.raises(fg.StateError):
        state["x"] = [1.0]
    assert not versions.advanced()


def test_views_that_write(place: str) -> None:
    """Values that a view has written, and their version, reach the next superstep."""
    state = make(dtype="float32", count=12)
    step(state, target=place)
    view = state.view("x")
    if view.is_on_gpu:
        pytest.skip("NumPy writes no memory of the GPU")
    before = state._columns["x"].version
    np.asarray(view)[:] = 3.0
    state.touch("x")
    assert state._columns["x"].version > before
    other = make(dtype="float32", count=12)
    other["x"] = 3.0
    for one in (state, other):
        step(one, target=place)
    assert state["x"].tolist() == other["x"].tolist()


def test_other_states_have_other_versions(tmp_path: Path) -> None:
    state = make(count=12)
    step(state, target="cpu")
    state.save(tmp_path / "state")
    loaded = fg.State.load(tmp_path / "state", state.graph)
    packed = pickle.dumps(state)
    again = [pickle.loads(packed) for _ in range(2)]
    every = [state, state.copy(), loaded, *again]
    versions = [c.version for s in every for c in s._columns.values()]
    assert len(set(versions)) == len(versions)
    assert min(versions[len(state) :]) > max(versions[: len(state)])


def test_checkpoints_advance_versions(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    fg.iterate(
        step, make(count=12), supersteps=4, checkpoint=folder, every=0, target="cpu"
    )
    state = make(count=12)
    versions = Versions(state)
    fg.iterate(step, state, supersteps=4, checkpoint=folder, target="cpu")
    assert versions.advanced() == {"x", "bias"}, "no run has written weight"


def test_scalars_are_read_again_where_versions_advance() -> None:
    from featgraph.runtime.memory.buffers import ScalarsRead

    state = make(count=12)
    scalars = ScalarsRead(state, ("bias", "mean"))
    seen = [scalars.read()]
    assert scalars.read() is seen[0]
    state["x"] = 0.0
    assert scalars.read() is seen[0], "x is no scalar"
    state["bias"] = 0.25
    mean(state, target="cpu")
    assert [name for name, _ in scalars.read()] == ["bias", "mean"]
    assert scalars.read()[0] != seen[0][0]


@st.composite
def columns(draw: st.DrawFn) -> tuple[Any, Any]:
    dtype = draw(st.sampled_from(["float32", "float64", "int32", "bool"]))
    shape = (draw(st.integers(1, 9)), *draw(st.sampled_from([(), (3,), (2, 2)])))
    elements = None
    if dtype.startswith("float"):
        elements = st.floats(-8, 8, width=32)
    return draw(arrays.arrays(dtype, shape, elements=elements)), shape[1:]


@given(columns(), st.data())
def test_room_of_columns(drawn: tuple[Any, Any], data: st.DataObject) -> None:
    """Any sequence of growing and assigning is NumPy's."""
    given_values, item = drawn
    kind = PropertyType(PropertyKind.VERTEX, given_values.dtype.name, item)
    expected, column = given_values.copy(), Column(kind, given_values, False)
    count, capacity = len(expected), len(expected)
    for doing in data.draw(st.lists(st.sampled_from("gw"), max_size=6)):
        before = column.version
        if doing == "g":
            capacity = data.draw(st.integers(count, count + 9))
            column.grow(capacity, 1)
            memory: Any = column._memory
            assert (memory[count:] == 1).all()
            assert len(memory) == capacity
        else:
            expected = expected[::-1].copy()
            column.put(expected.copy())
        assert column.version > before
        assert (column.count, column.capacity) == (count, capacity)
        assert column.type == kind
        np.testing.assert_array_equal(column.on_host(), expected)
        assert column.on_host().dtype == expected.dtype


def test_growing_between_supersteps(place: str) -> None:
    """Kernels see the values that a place held, and none of the room behind them."""
    state, other = (make(dtype="float32", count=12) for _ in range(2))
    for one in (state, other):
        step(one, target=place)
        column = one._columns["x"]
        if one is state:
            column.grow(40, 7.0)
            assert (column.capacity, column.count) == (40, 12)
            assert column.held is None
        step(one, target=place)
        one["x"] = one["x"] + 1
    assert state["x"].tolist() == other["x"].tolist()
    assert state._columns["x"].capacity == 40


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda c: c.grow(2, 0.0), "too small"),
        (lambda c: c.grow(9, "x"), "property 'fill'"),
    ],
)
def test_refused_changes(change: Any, what: str) -> None:
    column = Column(VERTEX, np.arange(3, dtype=np.float32), False)
    version = column.version
    with pytest.raises(fg.StateError, match=what):
        change(column)
    assert column.on_host().tolist() == [0, 1, 2]
    assert (column.version, column.capacity) == (version, 3)
    vector = Column(
        PropertyType(PropertyKind.VECTOR, "float32", (3,)), np.ones(3), False
    )
    with pytest.raises(fg.StateError, match="only entries"):
        change(vector)


def test_storage_apart_from_arithmetic_is_refused() -> None:
    stored = VERTEX._replace(dtype="float32", computed_as="float64", iterated=True)
    state = make(dtype="float32", count=12)
    state._columns["x"].type = stored
    state.types_version += 1
    for run in (
        lambda: step.fold(state, target="cpu"),
        lambda: superstep(step.program, state.graph, {}, state.signature),
    ):
        with pytest.raises(fg.StateError, match="stored as float32") as caught:
            run()
        assert "property 'x'" in str(caught.value)
        assert caught.value.fix == "store it as float64"


def test_types_of_real_numbers() -> None:
    kinds = [VERTEX, VERTEX._replace(dtype="int64"), VERTEX._replace(dtype="real")]
    assert widest_real(kinds) is widest_real([]) is Real.FLOAT32
    assert widest_real([*kinds, VERTEX._replace(dtype="float64")]) is Real.FLOAT64
    assert widest_real([VERTEX._replace(computed_as="float64")]) is Real.FLOAT64
    for real in Real:
        assert (real.itemsize, f"{real}") == (np.dtype(real).itemsize, real.value)
    wider = {(a, b) for a in Real for b in [*Real, "int32", "real"] if a.is_wider(b)}
    assert wider == {(Real.FLOAT64, Real.FLOAT32)}
