"""Reuse of the memory of deleted States: owners, and no remains of values."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms import bfs, pagerank
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.cuda import arrays as memory
from featgraph.cuda.memory import _exposed
from featgraph.runtime.devices import spare
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.memory import graph_arrays as arrays_module
from featgraph.runtime.memory.buffers import Buffers, buffers_of
from featgraph.runtime.memory.graph_arrays import graph_arrays
from tests.simt.gpu import Gpu, emulated_gpu

V = 40
pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    with emulated_gpu() as made:
        yield made


def path(vertices: int = V) -> fg.Graph:
    ends = np.arange(vertices - 1)
    return fg.Graph.from_edges(ends, ends + 1)


@fg.reduce(into="total", combine="sum")
def add_up(f, v, d):  # type: ignore[no-untyped-def]
    return d.x[v, f]


@fg.gather(into="near", combine="sum")
def neighbors(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.x[u, f]


@fg.vertex
def move(f, v, d):  # type: ignore[no-untyped-def]
    d.x_next[v, f] = d.near[v, f] + 2 * d.x[v, f] + d.total[f]
    return True


step = fg.foldmap(add_up, neighbors, move)


def state_of(graph: fg.Graph, k: int = 2, dtype: str = "float32") -> fg.State:
    x = np.arange(graph.vertex_count * k).reshape(-1, k) % 5
    return fg.State(graph, x=fg.vertex_property(x.astype(dtype), iterated=True))


def ran(graph: fg.Graph, supersteps: int, **types: Any) -> fg.State:
    state = state_of(graph, **types)
    fg.iterate(step, state, max_supersteps=supersteps, target="cuda")
    return state


def after(state: fg.State, supersteps: int) -> Any:
    """Return the values of a State after supersteps, as exact integers."""
    x = state["x"]
    for _ in range(supersteps):
        near = np.vstack([np.zeros_like(x[:1]), x[:-1]])
        x = near + 2 * x + x.sum(axis=0)
    return x


def arrays_of(state: fg.State) -> set[int]:
    residency = state.residency
    assert isinstance(residency, Buffers)
    has = (residency.current, residency.next, residency.temporaries)
    return {id(array.memory) for arrays in has for array in arrays.values()}


def test_a_warm_call_allocates_nothing(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, made = path(12), []
    few: dict[str, Any] = {"target": "cuda", "max_supersteps": 5}
    first = [bfs(graph, 3, **few).levels for _ in range(2)]
    ranks = [pagerank(graph, **few).ranks for _ in range(2)]
    new = memory.array_of
    monkeypatch.setattr(memory, "array_of", lambda *a: made.append(a) or new(*a))
    np.testing.assert_array_equal(bfs(graph, 3, **few).levels, first[0])
    np.testing.assert_array_equal(pagerank(graph, **few).ranks, ranks[0])
    assert not made
    found = bfs(graph, 7, **few).levels
    assert found[:9].tolist() == [-1] * 7 + [0, 1]


def test_states_that_live_at_once_share_nothing(gpu: Gpu) -> None:
    graph = path()
    for _ in range(3):
        alive = [ran(graph, n) for n in (1, 2, 3)]
        arrays = [arrays_of(state) for state in alive]
        assert len(set.union(*arrays)) == sum(map(len, arrays))
        for n, state in enumerate(alive, 1):
            np.testing.assert_array_equal(state["x"], after(state_of(graph), n))


def test_the_next_state_gets_the_arrays_of_the_last(gpu: Gpu) -> None:
    graph = path()
    state = ran(graph, 3)
    before = arrays_of(state)
    del state
    again = ran(graph, 3)
    assert arrays_of(again) == before
    assert not arrays_of(ran(path(), 3)) & before
    assert not arrays_of(ran(graph, 3)) & before  # `again` has them


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_working_memory_starts_as_zeros(gpu: Gpu, where: str) -> None:
    """Also where memory that was written before is used again."""
    graph, device, key = path(), choose_device(where), ("room", "uint8", (64,))
    for _ in range(3):
        state = ran(graph, 1)
        memory = buffers_of(state, device).temporary(*key)
        assert not device.download(memory).any()
        device.fill(memory, 1)
        del state, memory
        np.empty(64, np.uint8)[...] = 1  # NumPy gives out small blocks again


@fg.vertex
def turn(f, v, d):  # type: ignore[no-untyped-def]
    d.x_next[v, f] = d.x[v, f] + d.by[f]
    return True


turned = fg.foldmap(turn)


def test_a_vector_is_where_the_last_one_was_with_its_own_values(gpu: Gpu) -> None:
    """So that what was recorded of supersteps is found again."""
    graph, places, recorded = path(), [], []
    for by in ([1.0, 2.0], [3.0, 5.0], [7.0, 4.0], [1.0, 2.0, 3.0], [2.0, 2.0]):
        first = state_of(graph, len(by))["x"]
        x, vector = fg.vertex_property(first, iterated=True), np.float32(by)
        state = fg.State(graph, x=x, by=vector)
        fg.iterate(turned, state, max_supersteps=6, target="cuda")
        np.testing.assert_array_equal(state["x"], first + 6 * vector)
        np.testing.assert_array_equal(state["by"], vector)
        current = buffers_of(state, choose_device("cuda")).current
        places.append(id(current["by"].memory))
        recorded.append(len(gpu.recordings))
        del state, current
    assert places[0] == places[1] == places[2]
    assert recorded[1] == recorded[2]


@given(st.data())
def test_what_runs_before_changes_no_result(gpu: Gpu, data: st.DataObject) -> None:
    """Of States with the same names and other types, and of some that fail."""
    graph = path(9)
    kinds = st.tuples(
        st.integers(1, 3),
        st.sampled_from(["float32", "float64"]),
        st.integers(1, 4),
        st.sampled_from(["", "fails", "lives", "is assigned"]),
    )
    alive = []
    for k, dtype, supersteps, then in data.draw(st.lists(kinds, max_size=4)):
        state, expected = ran(graph, supersteps, k=k, dtype=dtype), state_of(graph, k)
        values = after(expected, supersteps)
        if then == "is assigned":
            state["x"] = expected["x"] = np.ones((9, k))
            step(state, target="cuda")
            values = after(expected, 1)
        if then == "fails":
            with pytest.raises(ZeroDivisionError):
                fg.iterate(
                    step, state_of(graph, k, dtype), callback=lambda *_: 1 / 0,
                    target="cuda",
                )  # fmt: skip
        np.testing.assert_array_equal(state["x"], values)
        if then == "lives":
            alive.append((state, values))
    for state, values in alive:
        np.testing.assert_array_equal(state["x"], values)


def test_a_state_that_moves_leaves_its_memory(gpu: Gpu) -> None:
    graph, state = path(9), state_of(path(9))
    step(state, target="cuda")
    kits = kits_of(state)
    step(state, target="cpu")
    assert len(kits) == 1
    step(state, target="cuda")
    assert not kits
    np.testing.assert_array_equal(state["x"], after(state_of(graph), 3))


def test_memory_that_was_lent_is_not_taken(gpu: Gpu) -> None:
    """Other streams may use it yet: it is given back, which waits for them."""
    graph, state = path(), ran(path(), 1)
    for lends in (False, True):
        state = ran(graph, 2)
        residency = state.residency
        assert isinstance(residency, Buffers)
        before, own = arrays_of(state), residency.current["x"].memory
        if lends:
            gpu.from_cuda_array_interface(state.view("x").__cuda_array_interface__)
        del state, residency
        state = ran(graph, 2)
        assert before - arrays_of(state) == ({id(own)} if lends else set())
        _exposed.clear()


def test_what_anything_refers_to_is_not_taken() -> None:
    class Held:
        def __init__(self) -> None:
            self.size, self.shape, self.dtype = 3, (3,), np.dtype("int32")

    lent: list[Any] = []
    pools = spare.SpareMemory(lambda to: ({}, {}), lambda array: array in lent)
    names = ("x",)

    def give_back(kit: spare.Kit, **arrays: Any) -> None:
        for use, array in arrays.items():
            kit.note(use, array)
        pools._give_back(kit, {})

    kit, _ = pools.lend(names, gpu, {})
    held, seen = Held(), Held()
    lent.append(seen)
    give_back(kit, a=held, b=seen, c=Held(), d=Held(), e=Held())
    again, _ = pools.lend(names, gpu, {})
    assert again is kit
    assert again.take("a", (3,), np.dtype("int32")) is None
    assert again.take("b", (3,), np.dtype("int32")) is None
    assert again.take("c", (4,), np.dtype("int32")) is None
    assert again.take("d", (3,), np.dtype("int64")) is None
    assert again.take("e", (3,), np.dtype("int32")) is not None
    assert again.take("e", (3,), np.dtype("int32")) is None


def test_memory_ends_with_the_graph(gpu: Gpu) -> None:
    ran(path(), 2)
    gc.collect()
    before = len(gpu.alive)
    graph = path()
    for n in (1, 2):
        ran(graph, n)
    assert len(gpu.alive) > before
    del graph
    gc.collect()
    assert len(gpu.alive) <= before


def test_what_is_kept_is_bounded(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = path()
    alive = [ran(graph, 1) for _ in range(spare._MOST_KITS + 3)]
    kits, residency = kits_of(alive[0]), alive[0].residency
    assert isinstance(residency, Buffers)
    graph_bytes = sum(a.size * a.dtype.itemsize for a in residency.graph.values())
    alive.clear()
    del residency
    assert len(kits) == spare._MOST_KITS
    each = kits[0].byte_count
    monkeypatch.setattr(spare, "_LEAST_BYTES", 3 * each)
    ran(graph, 1)
    assert len(kits) == max(3, graph_bytes // each)
    monkeypatch.setattr(spare, "_LEAST_BYTES", 0)
    many = len(kits)
    ran(graph, 1, k=3 + graph_bytes // V)
    assert len(kits) == many - 1, "one that is too large drives out no others"


def test_one_that_takes_more_than_its_graph_is_kept_by_itself(gpu: Gpu) -> None:
    """Others stay, as many as fit, whatever comes in turn; up to a bound of its own."""
    small, large, huge = (1 << 26), (1 << 26) + 4, (1 << 27) + 4
    kept = spare.SpareMemory(lambda to: ({}, {}), lambda array: False, 1 << 27)
    owner = type("Owner", (), {})

    def ends(name: str, size: int) -> None:
        state = owner()
        kit, _ = kept.lend((name,), state, {})
        kit.note("x", SimpleNamespace(size=size, dtype=np.dtype(np.uint8)))

    for name, size in (("a", small), ("b", large), ("c", large), ("d", huge)):
        ends(name, size)
    assert [kit.names for kit in kept._kits] == [("a",), ("c",)]
    ends("e", 4)  # what is small drives out what is small
    assert [kit.names for kit in kept._kits] == [("c",), ("e",)]


def kits_of(state: fg.State) -> list[spare.Kit]:
    residency = state.residency
    assert isinstance(residency, Buffers)
    memory = residency.graph._spare
    assert memory is not None
    return memory._kits


def test_a_shortage_takes_what_is_kept(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = path()
    expected = np.array(ran(graph, 2)["x"])
    state = ran(graph, 2)
    kits, new, shapes = kits_of(state), memory.array_of, []
    del state
    assert kits

    def scarce(shape: Any, dtype: Any) -> Any:
        shapes.append(shape)
        if kits:
            raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY")
        return new(shape, dtype)

    monkeypatch.setattr(memory, "array_of", scarce)
    monkeypatch.setattr(memory, "memory_error", lambda wanted, error: (
        fg.DeviceMemoryError("none") if kits else error
    ))  # fmt: skip
    wide = ran(graph, 2, k=3)
    assert len(shapes) > 1
    assert wide["x"].shape == (V, 3)
    np.testing.assert_array_equal(ran(graph, 2)["x"], expected)


def test_threads_have_memory_of_their_own(gpu: Gpu) -> None:
    graph = path()
    expected = {n: after(state_of(graph), n) for n in (1, 2, 3)}
    found: list[tuple[int, Any]] = []

    def work(n: int) -> None:
        for _ in range(4):
            state = state_of(graph)
            for _ in range(n):
                step(state, target="cuda")
            found.append((n, np.array(state["x"])))

    threads = [threading.Thread(target=work, args=(n,)) for n in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12
    for n, values in found:
        np.testing.assert_array_equal(values, expected[n])


def test_entries_of_kernels_are_bound_once_a_graph(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, made = path(9), []
    bind = arrays_module.BoundEntry
    monkeypatch.setattr(
        arrays_module, "BoundEntry", lambda *a: made.append(a) or bind(*a)
    )
    for expected in (True, False):
        np.testing.assert_array_equal(ran(graph, 2)["x"], after(state_of(graph), 2))
        assert bool(made) == expected
        made.clear()
    monkeypatch.setattr(arrays_module, "_MOST_ENTRIES", 1)
    graph = path(9)
    for _ in range(2):
        made.clear()
        graph_arrays(graph, choose_device("cuda")).idle.clear()
        np.testing.assert_array_equal(ran(graph, 2)["x"], after(state_of(graph), 2))
        assert made
