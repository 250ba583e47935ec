"""Values that are given on the GPU, and views of what is there, emulated."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import featgraph as fg
from featgraph.base.errors import StateError
from featgraph.cuda import dialect
from featgraph.program.active import MOST_HELD

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.cuda import foreign
from featgraph.cuda.values import DeviceValues, Reordered
from featgraph.graph.inputs.numbers import STORAGE_DTYPES
from featgraph.graph.inputs.take import storage_array, storage_values
from tests.bank import BY_NAME
from tests.simt.foreign import Foreign
from tests.simt.gpu import Gpu, emulated_gpu
from tests.simt.test_runtime import tiny_graph
from tests.strategies import graphs

pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with emulated_gpu() as made:
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[Gpu]:
    """One for all examples of a property."""
    with emulated_gpu() as made:
        yield made


def moved(values: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a State, with arrays of properties on the GPU."""
    out = {}
    for name, spec in values.items():
        is_array = isinstance(spec, fg.program.given.PropertySpec) and np.ndim(
            spec.values
        )
        if is_array:
            arrange = fg.vertex_property if spec.kind.value == "vertex" else None
            arrange = arrange or fg.edge_property
            dtype = spec.dtype or storage_array(name, spec.values).dtype
            given = Foreign(np.asarray(spec.values, dtype))
            out[name] = arrange(given, iterated=spec.iterated, dtype=dtype)
        else:
            out[name] = spec
    return out


PROGRAMS = ["label_propagation", "bfs", "belief_propagation", "edge_atomics"]


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n in BY_NAME])
@pytest.mark.parametrize("where", ["cuda", "cpu"])
def test_programs_have_the_same_bits(gpu: Gpu, name: str, where: str) -> None:
    program = BY_NAME[name]
    graph = tiny_graph(not program.undirected)
    values = program.make_state(graph, 3, np.random.default_rng(1))
    here, there = fg.State(graph, **values), fg.State(graph, **moved(values))
    assert here.signature == there.signature
    for state in (here, there):
        fg.iterate(program.foldmaps[0], state, max_supersteps=3, target=where)
    for name in here:
        np.testing.assert_array_equal(here[name], there[name], err_msg=name)


def test_what_is_given_on_the_gpu_is_not_brought_to_the_host(gpu: Gpu) -> None:
    graph = tiny_graph()
    given = np.arange(30, dtype=np.float32).reshape(10, 3)
    del gpu.downloads[:]
    state = fg.State(graph, x=fg.vertex_property(Foreign(given)))
    array = state._columns["x"].values.array
    state.view("x")
    assert not gpu.downloads
    given[:] = 0  # the caller's again
    assert state["x"].tolist() == np.arange(30).reshape(10, 3).tolist()
    # The given device array becomes the buffer.
    fg.foldmap(_double)(state, target="cuda")
    assert state.residency.array("x").array is array
    assert state["x"][0].tolist() == [0, 2, 4]


def test_a_call_brings_what_it_has_committed_when_read(gpu: Gpu) -> None:
    graph = tiny_graph()
    state = fg.State(graph, x=fg.vertex_property(np.arange(10.0)))
    del gpu.downloads[:]
    committed = _HALVE(state, target="cuda")
    later = _HALVE(state, target="cuda")
    assert not gpu.downloads
    assert committed.vertices.tolist() == list(range(3, 10))
    assert len(gpu.downloads) == 1
    assert committed.words is committed.words
    assert len(gpu.downloads) == 1
    assert pickle.loads(pickle.dumps(later)).vertices.tolist() == [5, 6, 7, 8, 9]
    assert deepcopy(committed) == committed != later


def test_sets_stay_where_calls_and_runs_have_left_them(gpu: Gpu) -> None:
    graph = tiny_graph()
    state = fg.State(graph, x=fg.vertex_property(np.arange(10.0)))
    committed = _HALVE(state, target="cuda")
    del gpu.uploads[:], gpu.downloads[:]
    rest = _HALVE.on(committed)(state, active_in=committed, target="cuda")
    assert not gpu.uploads + gpu.downloads
    assert len(committed) == 7
    assert gpu.downloads == [8]  # the count
    assert rest.vertices.tolist() == [5, 6, 7, 8, 9]
    assert state["x"].tolist() == [0, 0.5, 1, *(v / 4 for v in range(3, 10))]


def test_the_newest_sets_stay_on_the_device(gpu: Gpu) -> None:
    state = fg.State(tiny_graph(), x=fg.vertex_property(np.arange(10.0) * 2**20))
    kept = [_HALVE(state, target="cuda") for _ in range(MOST_HELD + 5)]
    assert [one.is_held for one in kept] == [False] * 5 + [True] * MOST_HELD
    for number, one in enumerate(kept):
        expected = np.flatnonzero(np.arange(10) * 2.0 ** (19 - number) > 1)
        assert one.vertices.tolist() == expected.tolist()
    del kept, one
    again = [_HALVE(state, target="cuda") for _ in range(2)]
    assert all(one.is_held for one in again)


def test_recorded_sets_are_those_of_the_cpu(gpu: Gpu) -> None:
    """More than stay on the device."""
    ends = np.arange(40)
    graph = fg.Graph.from_edges(ends, ends + 1)
    found = {}
    for where in ("cpu", "cuda"):
        level = fg.vertex_property(-1, at=[0], entries=0, iterated=True)
        state = fg.State(graph, level=level)
        run = fg.iterate(_SPREAD, state, active=[0], record_active=True, target=where)
        assert [len(s) for s in run.active_sets or []] == run.active_counts
        found[where] = [s.vertices.tolist() for s in run.active_sets or []]
    assert found["cpu"] == found["cuda"]
    assert found["cpu"][:2] == [[1], [2]]


@fg.gather(into="before", combine="max")
def _level_before(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.level[u]


@fg.vertex
def _step_on(f, v, d):  # type: ignore[no-untyped-def]
    d.level_next[v] = d.before[v] + 1
    return d.level[v] < 0 and d.before[v] >= 0


_SPREAD = fg.foldmap(_level_before, _step_on)


@fg.vertex
def _halve(f, v, d):  # type: ignore[no-untyped-def]
    d.x[v] = d.x[v] / 2
    return d.x[v] > 1


_HALVE = fg.vertexmap(_halve)


@fg.vertex
def _double(f, v, d):  # type: ignore[no-untyped-def]
    d.x[v, f] = 2 * d.x[v, f]
    return True


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("per_direction", [True, False])
def test_edges_get_the_order_of_kernels(
    gpu: Gpu, directed: bool, per_direction: bool
) -> None:
    graph = tiny_graph(directed)
    rows = graph.given_edge_count * (1 + (per_direction and not directed))
    given = np.arange(2 * rows, dtype=np.int32).reshape(rows, 2)
    here = fg.State(graph, w=fg.edge_property(given))
    there = fg.State(graph, w=fg.edge_property(Foreign(given)))
    assert here.signature == there.signature
    np.testing.assert_array_equal(here.stored("w"), there.stored("w"))
    np.testing.assert_array_equal(there["w"], here["w"])
    given[0] = -7
    here["w"], there["w"] = given, Foreign(given)
    np.testing.assert_array_equal(there["w"], here["w"])
    view = there.view("w")
    order = view.order % rows
    np.testing.assert_array_equal(np.asarray(view), given[order])


@given(graphs(max_edges=40), st.booleans(), st.booleans())
def test_edges_of_the_host_are_ordered_where_they_are_read(
    shared: Gpu, graph: fg.Graph, per_direction: bool, writeable: bool
) -> None:
    """Values come to the GPU as they were given; lent ones are as if they were not."""
    rows = graph.given_edge_count * (1 + (per_direction and not graph.directed))
    given = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    given.flags.writeable = writeable
    found = []
    for copy in (True, False):
        weight = fg.edge_property(given, per_direction=per_direction, copy=copy)
        out = fg.vertex_property(0.0, shape=(2,))
        state = fg.State(graph, w=weight, out=out)
        is_late = isinstance(state._columns["w"].values, Reordered)
        assert is_late or not copy
        _weights_in(state, target="cuda")
        if is_late:
            assert state._columns["w"].values is None
        found.append([state[name] for name in ("w", "out")])
    for there, here in zip(*found, strict=True):
        np.testing.assert_array_equal(there, here)


@pytest.mark.parametrize("where", ["cuda", "cpu"])
@pytest.mark.parametrize("width", [6, 8])
def test_views_have_other_shapes(gpu: Gpu, where: str, width: int) -> None:
    """Rows of six stand apart on the GPU; the values of each are one behind another."""
    graph = fg.Graph.from_edges(np.arange(9), np.arange(1, 10))
    given = np.arange(10 * width, dtype=np.float32).reshape(10, width)
    state = fg.State(graph, x=fg.vertex_property(given))
    fg.foldmap(_double)(state, target=where)
    shaped = state.view("x").reshape(10, 2, width // 2)
    assert shaped.shape == (10, 2, width // 2)
    expected = (2 * given).reshape(shaped.shape)
    np.testing.assert_array_equal(np.asarray(shaped), expected)
    if where == "cuda" and width == 6:
        with pytest.raises(ValueError, match="padded rows cannot be"):
            state.view("x").reshape(20, 3)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("where", ["cuda", "cpu"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_target_has_the_weights_of_a_graph_once(
    gpu: Gpu, where: str, dtype: str
) -> None:
    """Until a State writes them, or a view could."""
    ends = np.array([4, 0, 3, 1, 0]), np.array([0, 2, 1, 0, 1])
    weights = np.arange(1.0, 6.0)
    graph = fg.Graph.from_edges(*ends, weights=weights)

    def made() -> fg.State:
        lent = graph.weights_as(dtype)
        state = fg.State(
            graph,
            w=fg.edge_property(lent, copy=False),
            out=fg.vertex_property(0.0, dtype=dtype),
        )
        _own_weights_in(state, target=where)
        return state

    totals = np.bincount(ends[1], weights, 5)
    one, other = made(), made()
    buffers = [state.residency.current["w"] for state in (one, other)]
    assert buffers[0] is buffers[1]
    np.testing.assert_array_equal(other["out"], totals)
    _double_weights(one, target=where)
    np.testing.assert_array_equal(one["w"], 2 * weights)
    view = other.view("w")
    changed = view.__cuda_array_interface__ if where == "cuda" else view.__array__()
    held = gpu.from_cuda_array_interface(changed).data if where == "cuda" else changed
    held[...] = 7
    other.touch("w")
    assert (other["w"] == 7).all()
    other["w"] = 3.0
    third = made()
    np.testing.assert_array_equal(third["w"], weights)
    np.testing.assert_array_equal(third["out"], totals)
    third["w"] = weights + 1
    _own_weights_in(third, target=where)
    np.testing.assert_array_equal(made()["w"], weights)
    lent = fg.edge_property(graph.weights_as(dtype), copy=False)
    _double_weights(fg.State(graph, w=lent), target=where)
    moved = made()
    _own_weights_in(moved, target="cpu" if where == "cuda" else "cuda")
    np.testing.assert_array_equal(moved["w"], weights)
    np.testing.assert_array_equal(moved["out"], totals)


@fg.gather(into="total", combine="sum")
def _own_weight(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.w[e]


@fg.vertex
def _keep_one(f, v, d):  # type: ignore[no-untyped-def]
    d.out[v] = d.total[v]
    return True


_own_weights_in = fg.foldmap(_own_weight, _keep_one)


@fg.edge
def _double_weight(f, u, v, e, d):  # type: ignore[no-untyped-def]
    d.w[e] = 2 * d.w[e]
    return True


_double_weights = fg.edgemap(_double_weight)


@fg.gather(into="total", combine="sum")
def _weight(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.w[e, f]


@fg.vertex
def _keep(f, v, d):  # type: ignore[no-untyped-def]
    d.out[v, f] = d.total[v, f]
    return True


_weights_in = fg.foldmap(_weight, _keep)


def strided(data: np.ndarray, turn: int) -> np.ndarray:
    """Return values with strides of many kinds."""
    wide = np.zeros((*data.shape[:-1], 2 * data.shape[-1]), data.dtype)
    wide[..., ::2] = data
    forms = [
        data,
        np.asfortranarray(data),
        wide[..., ::2],
        np.ascontiguousarray(data[::-1])[::-1],
    ]
    return forms[turn % len(forms)]


DTYPES = [*STORAGE_DTYPES, "uint64"]


@given(st.data())
def test_casts_are_those_of_the_host(shared: Gpu, data: st.DataObject) -> None:
    """Equal values, or the same error in the same words."""
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    wanted = data.draw(st.sampled_from(STORAGE_DTYPES))
    shape = data.draw(st.sampled_from([(3,), (4, 2), (2, 3, 3)]))
    limits = [
        float(bound)
        for name in STORAGE_DTYPES[1:8]
        for bound in (np.iinfo(name).min, np.iinfo(name).max, np.iinfo(name).max + 1)
    ]
    elements: Any = arrays.from_dtype(dtype)
    if dtype.kind == "f":
        edges = [*limits, 3.4028235677973366e38, 3.4028235e38, -0.0, 0.5]
        with np.errstate(over="ignore"):
            elements |= st.sampled_from([dtype.type(edge).item() for edge in edges])
        elements |= st.integers(-3, 300).map(float)
    elif dtype.kind in "iu":
        elements |= st.integers(0, 3)
    values = data.draw(arrays.arrays(dtype, shape, elements=elements))
    values = strided(values, data.draw(st.integers(0, 3)))
    outcomes = []
    for array in (values, Foreign(values)):
        try:
            found = storage_values("x", array, wanted)
            found = found if isinstance(found, np.ndarray) else found.copied().array
            found = found if isinstance(found, np.ndarray) else found.copy_to_host()
            outcomes.append(found.tobytes())
        except StateError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def _read_only() -> Any:
    array = np.arange(3.0)
    array.setflags(write=False)
    return array


ODD = {
    "read-only": _read_only(),
    "no dimension": np.array(2.0),
    "no features": np.zeros((3, 0)),
    "no rows": np.zeros(0),
    "backwards": np.arange(6.0)[::-2],
    "every other column": np.arange(12.0).reshape(3, 4)[:, ::2],
    "one row for all": np.broadcast_to(np.array([1.0, 2.0]), (3, 2)),
    "complex": np.zeros(3, complex),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_arrays_are_taken_or_refused_as_those_of_the_host(
    gpu: Gpu, name: str
) -> None:
    graph, outcomes = fg.Graph.from_edges([0, 1, 2], [1, 2, 0]), []
    before = ODD[name].copy()
    for given_array in (ODD[name], Foreign(ODD[name])):
        try:
            state = fg.State(graph, x=fg.vertex_property(given_array))
            outcomes.append(state["x"].tolist())
        except StateError as error:
            outcomes.append(str(error))
            continue
        state["x"] = 0.0  # what was given is the caller's
        assert np.array_equal(ODD[name], before)
    assert outcomes[0] == outcomes[1]


def test_what_cannot_be_taken_is_refused(gpu: Gpu, monkeypatch: Any) -> None:
    graph = tiny_graph()
    with pytest.raises(StateError, match="one entry per vertex"):
        fg.State(graph, x=fg.vertex_property(Foreign(np.zeros((3, 2)))))
    with pytest.raises(StateError, match="cannot be stored"):
        fg.State(graph, x=fg.vertex_property(Foreign(np.zeros(10, np.uint64))))
    monkeypatch.setattr(foreign, "device_of", lambda array: 3)
    with pytest.raises(StateError, match="another GPU"):
        fg.State(graph, x=fg.vertex_property(Foreign(np.zeros(10))))


def test_the_stream_of_an_array_is_waited_for(gpu: Gpu) -> None:
    """Whether it is a property, is assigned, or is looked at for an algorithm."""
    graph, values = tiny_graph(), np.arange(10.0)
    state = fg.State(graph, x=fg.vertex_property(Foreign(values, stream=7)))
    assert gpu.waited_for == [7]
    state["x"] = Foreign(values[::-1], stream=9)
    assert gpu.waited_for == [7, 9]
    assert state["x"].tolist() == values[::-1].tolist()
    assert fg.given_array(Foreign(values, stream=11)).first_not_finite() is None
    assert gpu.waited_for == [7, 9, 11]
    fg.State(graph, x=fg.vertex_property(Foreign(values)))  # the default stream's
    assert gpu.waited_for == [7, 9, 11]


@pytest.mark.parametrize("ran", [0, 2])
@pytest.mark.parametrize("where", ["cuda", "cpu"])
def test_a_copy_is_made_where_the_values_are(gpu: Gpu, ran: int, where: str) -> None:
    """It shares no memory, and a run on it goes on as one on the State does."""
    program = BY_NAME["label_propagation"]
    graph = tiny_graph(not program.undirected)
    values = program.make_state(graph, 3, np.random.default_rng(2))
    state = fg.State(graph, **moved(values), level=fg.vertex_property(-1, shape=(3,)))
    options = {"max_supersteps": 2, "target": where}
    if ran:
        fg.iterate(program.foldmaps[0], state, **options)
    other = state.copy()
    is_there = [isinstance(c.values, DeviceValues) for c in other._columns.values()]
    assert any(is_there) == (where == "cuda" or not ran)
    before = {name: other[name] for name in other}
    ended = fg.iterate(program.foldmaps[0], state, **options)
    for name in before:
        np.testing.assert_array_equal(other[name], before[name], err_msg=name)
    again = fg.iterate(program.foldmaps[0], other, **options)
    assert again.active_counts == ended.active_counts
    for name in state:
        np.testing.assert_array_equal(other[name], state[name], err_msg=name)
    assert (state["level"] == -1).all()


# -- views


def test_a_view_ends_where_values_may_be_others(gpu: Gpu) -> None:
    state = fg.State(tiny_graph(), x=fg.vertex_property(np.ones(10)), y=1.0)
    step = fg.foldmap(_double_one)

    def use(view: Any) -> Any:
        return np.asarray(view)

    changes = [
        lambda: step(state, target="cuda"),
        lambda: fg.iterate(step, state, max_supersteps=1, target="cuda"),
        lambda: state.__setitem__("y", 2.0),
        lambda: state.__setitem__("x", 2.0),
        lambda: step(state, target="cpu"),
    ]
    for change in changes:
        view = state.view("x")
        use(view), state["x"], state.copy()
        use(view)
        change()
        with pytest.raises(StateError, match="the view has ended"):
            use(view)
    ended = []

    def callback(*_: Any) -> None:
        if ended:
            with pytest.raises(StateError, match="has ended"):
                use(ended[-1])
        ended.append(state.view("x"))

    fg.iterate(step, state, max_supersteps=3, target="cuda", callback=callback)
    assert len(ended) == 3


@fg.vertex
def _double_one(f, v, d):  # type: ignore[no-untyped-def]
    d.x[v] = 2 * d.x[v]
    return True


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_what_is_written_through_a_view_is_due(gpu: Gpu, where: str) -> None:
    program = BY_NAME["label_propagation"]
    graph = tiny_graph(not program.undirected)
    values = program.make_state(graph, 3, np.random.default_rng(1))
    states = [fg.State(graph, **values) for _ in range(2)]
    written = next(n for n, t in states[0].signature.items() if t.iterated)
    for state in states:
        fg.iterate(program.foldmaps[0], state, max_supersteps=2, target=where)
    changed = states[0][written][::-1].copy()
    states[0][written] = changed
    view = states[1].view(written)
    if where == "cpu":
        np.asarray(view)[...] = changed
    else:
        described = view.__cuda_array_interface__
        assert described["stream"] == 1
        gpu.from_cuda_array_interface(described).data[...] = changed
    states[1].touch(written)
    np.asarray(view)
    for state in states:
        fg.iterate(program.foldmaps[0], state, max_supersteps=3, target=where)
    np.testing.assert_array_equal(states[0][written], states[1][written])


def test_what_was_made_of_a_view_outlives_the_state(gpu: Gpu) -> None:
    given_values = np.arange(30.0).reshape(10, 3)
    state = fg.State(tiny_graph(), x=fg.vertex_property(Foreign(given_values)))
    view = state.view("x")
    described = view.__cuda_array_interface__
    assert described["stream"] == 1  # the default one, which others have to wait for
    taken = gpu.from_cuda_array_interface(described, owner=view)
    fg.foldmap(_double_rows)(state, target="cuda")
    del state
    with pytest.raises(StateError, match="has ended"):
        view.__cuda_array_interface__  # noqa: B018
    assert taken.copy_to_host().tolist() == (2 * given_values).tolist()


@fg.vertex
def _double_rows(f, v, d):  # type: ignore[no-untyped-def]
    d.x[v, f] = 2 * d.x[v, f]
    return True


def test_a_view_of_one_type_is_given_as_another(gpu: Gpu) -> None:
    """It is an array of another library as well: cast, or refused by its values."""
    graph = tiny_graph()
    whole = fg.State(graph, x=fg.vertex_property(Foreign(np.arange(10.0))))
    other = fg.State(graph, n=fg.vertex_property(whole.view("x"), dtype=np.int16))
    assert other["n"].tolist() == list(range(10))
    whole["x"] = Foreign(np.arange(10.0) + 0.5)
    with pytest.raises(StateError, match="does not fit int16"):
        other["n"] = whole.view("x")
    assert other["n"].tolist() == list(range(10))


def test_views_name_their_memory(gpu: Gpu) -> None:
    state = fg.State(
        tiny_graph(), x=fg.vertex_property(1.5, shape=(2,)), s=3, w=np.ones(4)
    )
    view = state.view("x")
    assert (view.shape, view.dtype, view.order) == ((10, 2), np.float32, None)
    assert "host" in repr(view)
    assert not hasattr(view, "__cuda_array_interface__")
    assert np.from_dlpack(view).base is not None
    assert np.shares_memory(np.asarray(view), np.asarray(state.view("x")))
    assert state.view("w").shape == (4,)
    for name in ("s", "missing"):
        with pytest.raises(StateError):
            state.view(name)


class Masked(Foreign):
    """An array with a mask of missing entries."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return super().__cuda_array_interface__ | {"mask": self}


def test_a_masked_array_is_refused(gpu: Gpu) -> None:
    """Its entries would be read as if all were there."""
    values = Masked(np.zeros(3, np.float32))
    with pytest.raises(StateError, match="cannot be read") as error:
        fg.State(fg.Graph.from_edges([0, 1], [1, 2]), x=fg.vertex_property(values))
    assert "__cuda_array_interface__ without a mask" in str(error.value)
