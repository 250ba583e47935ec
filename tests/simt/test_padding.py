"""Rows of properties on the GPU are padded, and nothing of that is seen, emulated."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.base.errors import StateError
from featgraph.base.padding import row_stride, stored_shape
from featgraph.graph.inputs.numbers import STORAGE_DTYPES
from featgraph.program import functions as fn
from featgraph.program import operations as of
from featgraph.program.signature import PropertyKind
from tests.bank import BY_NAME
from tests.simt.case import Case, edge, floats, scalar, signed, vertex
from tests.simt.emulator import MemoryFault
from tests.simt.foreign import Foreign
from tests.simt.gpu import Gpu, emulated_gpu
from tests.simt.memory import poisoned
from tests.simt.programs import BY_NAME as CASES
from tests.simt.test_kernels import VARIANTS, Run
from tests.simt.test_runtime import tiny_graph

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


# -- how far apart rows are


@given(st.integers(1, 1 << 20))
def test_rows_are_little_longer(k: int) -> None:
    stride = row_stride(k)
    assert k <= stride <= k + 7
    if k < 5:
        assert stride == (1, 2, 4, 4)[k - 1]
    else:
        assert 5 * stride <= 8 * k
        assert stride % 4 == 0
    assert row_stride(stride) == stride


@pytest.mark.parametrize("dtype", STORAGE_DTYPES)
def test_what_has_rows(dtype: str) -> None:
    stored = (7, 8) if np.dtype(dtype).itemsize >= 4 else (7, 5)
    assert stored_shape((7, 5), dtype) == stored
    for shape in ((7,), (7, 5, 5)):
        assert stored_shape(shape, dtype) == shape


# -- kernels: what is between rows is poison (`tests.simt.superstep`)

NAMES = ["label_propagation", "say_plainly", "combines", "atomics"]


@settings(max_examples=8)
@given(
    st.sampled_from(NAMES),
    st.integers(1, 11),
    st.sampled_from(["fa", "nfa", "hubs", "checked", "push"]),
    st.sampled_from(["float32", "float64"]),
)
def test_padding_reaches_no_result(name: str, k: int, variant: str, dtype: str) -> None:
    case = CASES[name]
    if variant == "push" and (not case.pushes or dtype == "float64"):
        variant = "hubs"  # keys of 64 bits have no room for a source
    Run(case, k, dtype=dtype, size=(13, 30), **VARIANTS[variant]).check()


@fn.gather(into="halvings", combine="sum")
def halve(f, u, v, e, d):
    x = d.x[u, f]
    place = d.of[u, f]
    n = 0.0
    while x > d.w[e, f]:  # for ever, where x is infinite
        x = x / 2
        n = n + 1
    return n * d.table[place, f]


@fn.vertex
def keep(f, v, d):
    d.x_next[v, f] = d.x[v, f] + d.halvings[v, f]
    return of.any_feature(d.halvings[v, f] > 1)


def halving_state(graph: Any, k: int, rng: Any) -> Any:
    count = graph.vertex_count
    return {
        "x": vertex(8 * floats(rng, count, k), True),
        "w": edge(floats(rng, graph.given_edge_count, k)),
        "of": vertex(abs(signed(rng, count, k))),
        "table": vertex(floats(rng, count, k)),
    }


@pytest.mark.parametrize("k", [3, 5, 9])
def test_loops_and_indices_never_see_it(k: int) -> None:
    """A loop that infinity would not end, and an index, of what stands there."""
    Run(Case("halve", (halve, keep), halving_state), k, size=(21, 40)).check()


def test_a_planted_fault_is_seen() -> None:
    run = Run(CASES["label_propagation"], 5, size=(21, 40))
    text = run.kernels.text
    run.check(text)
    with pytest.raises(AssertionError):  # a feature that is not there is added up
        run.check(text.replace("(aggr_1 if inside_1 else float32(0.0))", "aggr_1"))


def test_poison_would_be_seen() -> None:
    """Without what stands for features behind a row, poison becomes an index."""
    run = Run(Case("halve", (halve, keep), halving_state), 5, size=(21, 40))
    taken = "warp.select(inside_1, of_u[1], of_u[0])"
    assert taken in run.kernels.text
    with pytest.raises(MemoryFault):
        run.check(run.kernels.text.replace(taken, "of_u[1]"))


def test_sums_compute_with_it_and_drop_it() -> None:
    """Where nothing of a row ends a loop or is an index, no value stands for it."""
    text = Run(CASES["label_propagation"], 5, size=(21, 40)).kernels.text
    loop = text[text.index("while position < stop") : text.index("# vertex function")]
    assert "label_u[3]" in loop
    assert "select" not in loop


@fn.vertex
def reach_behind(f, v, d):
    d.x_next[v, f] = d.x[v, f + d.step]
    return True


def test_checked_indices_end_with_the_row() -> None:
    def state(graph: Any, k: int, rng: Any) -> Any:
        return {
            "x": vertex(floats(rng, graph.vertex_count, k), True),
            "step": scalar(1),
        }

    case = Case("behind", (reach_behind,), state)
    values, signature = case.values(tiny_graph(), 5, np.random.default_rng(0))
    from featgraph.fold.plan.options import Options
    from featgraph.fold.plan.planner import make_plan
    from featgraph.fold.plan.traits import GraphTraits
    from featgraph.fold.printing.emit import emit
    from tests.simt.superstep import Superstep

    options = Options(target="cuda", checked=True)
    plan = make_plan(case.program(), signature, options, GraphTraits())
    step = Superstep(emit(plan), tiny_graph(), values)
    step.run(np.ones(10, bool))
    taken, _, _, _, index, bound = step.arrays["fault"]
    assert (taken, index, bound) == (1, 5, 5)


# -- the runtime


def poison(state: fg.State) -> int:
    """Fill what is between rows of a State's buffers; return how many have any."""
    buffers, found = state.residency, 0
    assert buffers is not None
    for arrays in (buffers.current, buffers.next):
        for name, array in arrays.items():
            type_ = state.signature[name]
            if type_.kind is PropertyKind.VECTOR or len(type_.item_shape) != 1:
                continue
            between = array.view()[:, type_.item_shape[0] :]
            between[...] = poisoned(between.shape, between.dtype)
            found += between.size > 0
    return found


@settings(max_examples=5)
@given(st.sampled_from(["label_propagation", "edge_atomics"]), st.sampled_from([3, 5]))
def test_runs_agree_with_the_cpu(shared: Gpu, name: str, k: int) -> None:
    program = BY_NAME[name]
    graph = tiny_graph(not program.undirected)
    values = program.make_state(graph, k, np.random.default_rng(k))
    emulated, meant = fg.State(graph, **values), fg.State(graph, **values)
    for _ in range(2):
        for state, target in ((emulated, "cuda"), (meant, "cpu")):
            fg.iterate(program.foldmaps[0], state, max_supersteps=2, target=target)
        poison(emulated)
        for name in meant:
            np.testing.assert_allclose(
                emulated[name], meant[name], 1e-4, 1e-6, err_msg=name
            )


@fg.vertex
def double(f, v, d):  # type: ignore[no-untyped-def]
    d.x_next[v, f] = 2 * d.x[v, f]
    return True


STEP = fg.foldmap(double)


@settings(max_examples=15)
@given(
    st.integers(1, 9),
    st.sampled_from(["float32", "float64", "int32", "int64"]),
    st.sampled_from(["host", "gpu", "turned", "filled"]),
)
def test_values_come_and_go(shared: Gpu, k: int, dtype: str, origin: str) -> None:
    """As arrays of the host and of the GPU, as one value; read, lent and assigned."""
    graph = tiny_graph()
    values = np.arange(10 * k).reshape(10, k).astype(dtype)
    given_: Any = values
    if origin == "gpu":
        given_ = Foreign(values)
    elif origin == "turned":
        given_ = Foreign(np.asfortranarray(values))
    declared = fg.vertex_property(given_, iterated=True)
    if origin == "filled":
        values = np.full((10, k), 3, dtype)
        values[4, k - 1] = 7
        declared = fg.vertex_property(
            3, dtype=dtype, shape=(k,), at=([4], [k - 1]), entries=7, iterated=True
        )
    state = fg.State(graph, x=declared)
    np.testing.assert_array_equal(state["x"], values)
    for turn in (1, 2):
        STEP(state, target="cuda")
        poison(state)
        wanted = values * 2**turn
        np.testing.assert_array_equal(state["x"], wanted)
    view = state.view("x")
    array = state.residency.current["x"]  # type: ignore[union-attr]
    size = values.itemsize
    assert view.shape == (10, k)
    assert array.shape == stored_shape((10, k), dtype)
    strides = view.__cuda_array_interface__["strides"]
    assert strides in {None, (array.shape[1] * size, size)}
    assert (strides is None) == (array.shape[1] == k)
    address = view.__cuda_array_interface__["data"][0]
    assert address == array.__cuda_array_interface__["data"][0]
    np.testing.assert_array_equal(np.asarray(view), wanted)
    state["x"] = values  # into the memory that is there
    STEP(state, target="cuda")
    np.testing.assert_array_equal(state["x"], 2 * values)
    STEP(state, target="cpu")
    np.testing.assert_array_equal(state["x"], 4 * values)
    with pytest.raises(StateError):
        np.asarray(view)


@pytest.mark.parametrize("ran", [False, True])
def test_copies_and_files_have_the_values(gpu: Gpu, tmp_path: Path, ran: bool) -> None:
    graph, rng = tiny_graph(), np.random.default_rng(0)
    given_ = rng.random((10, 5), np.float32)
    x = fg.vertex_property(Foreign(given_), iterated=True)
    w = fg.edge_property(rng.random((graph.given_edge_count, 3), np.float32))
    state = fg.State(graph, x=x, w=w)
    wanted = given_
    if ran:
        STEP(state, target="cuda")
        assert poison(state) > 0
        wanted = 2 * given_
    path = tmp_path / "state"
    state.save(path)
    loaded = fg.State.load(path, graph)
    for other in (state.copy(), copy.deepcopy(state), loaded, _pickled(state)):
        assert other.signature == state.signature
        for name in ("x", "w"):
            np.testing.assert_array_equal(other[name], state[name])
        np.testing.assert_array_equal(other["x"], wanted)


def _pickled(state: fg.State) -> fg.State:
    return pickle.loads(pickle.dumps(state))  # type: ignore[no-any-return]


def test_rows_of_edges_are_read_in_their_order(gpu: Gpu) -> None:
    graph = tiny_graph()
    given_ = np.random.default_rng(0).random((graph.given_edge_count, 3), np.float32)
    for values in (given_, Foreign(given_)):
        state = fg.State(graph, w=fg.edge_property(values))
        np.testing.assert_array_equal(state["w"], given_)
        np.testing.assert_array_equal(
            np.asarray(state.view("w")), given_[graph.given_index]
        )


@pytest.mark.parametrize("k", [1, 3, 5])
def test_near_keys_are_those_of_the_row(gpu: Gpu, k: int) -> None:
    from featgraph.runtime.devices.choose import choose_device
    from featgraph.runtime.memory.buffers import buffers_of

    graph = tiny_graph()
    keys = 1 + np.random.default_rng(0).random((10, k), np.float32)
    state = fg.State(graph, x=fg.vertex_property(keys, iterated=True))
    device = choose_device("cuda")
    array = buffers_of(state, device).property("x")
    array.view()[:, k:] = -5.0
    everything = device.sets.upload(np.full(1, (1 << 10) - 1, np.uint32))
    assert device.keys.first(everything, array, k, 1.0) == keys.min()
    near = device.keys.near(everything, array, k, 1.0, 1.5)
    mask = fg.ActiveSet.from_words(10, device.download(near)).mask
    np.testing.assert_array_equal(mask, (keys <= 1.5).any(axis=1))


# -- what is said


def test_explain_shows_it() -> None:
    explained = STEP.explain(_state(5), target="cuda")
    assert (
        "property x: a row of K = 5 every 8 elements, 3 of them padding: 32 bytes"
        in explained
    )
    assert "every 4 elements: 16 bytes" in STEP.explain(_state(4), target="cuda")
    assert "every 5 elements: 20 bytes" in STEP.explain(_state(5), target="cpu")


def _state(k: int) -> fg.State:
    return fg.State(tiny_graph(), x=fg.vertex_property(0.0, shape=(k,), iterated=True))
