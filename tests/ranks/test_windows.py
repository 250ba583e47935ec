"""Ranks of an emulated GPU with windows: rows, numbers, ranks lost, replay."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph import algorithms as al
from featgraph.cuda import dialect as cuda_dialect
from featgraph.distributed import run_ranks
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.exchange import window_channel

if not cuda_dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.base.config import config
from featgraph.base.errors import ArgumentError, DeviceError, WorkerLostError
from featgraph.ranks.exchange import windows
from featgraph.ranks.exchange.gpu_transport import WindowRows
from featgraph.ranks.exchange.host_rows import HostRows
from featgraph.ranks.exchange.remote_entries import identity
from featgraph.ranks.exchange.vertex_sets import packed, unpacked
from featgraph.ranks.exchange.window_channel import Channel, WindowNumbers
from featgraph.runtime.devices import spare
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.loops import replay
from featgraph.runtime.memory.graph_arrays import graph_arrays
from featgraph.runtime.recording import cuda_trace
from featgraph.runtime.recording.cuda_record import _between_turns
from tests.ranks.forced import loops
from tests.ranks.test_emulated import PROPERTIES, V, make_graph
from tests.simt import dialect
from tests.simt.dialect import Dialect
from tests.simt.gpu import Gpu


@settings(max_examples=6, deadline=None)
@example(which=[[0], [3, 5, 1], []], share=0.3, inner=[64], seed=0)
@example(which=[[4], [4]], share=1.0, inner=[], seed=0)
@given(
    which=st.lists(
        st.lists(st.integers(0, len(PROPERTIES) - 1), max_size=2, unique=True),
        min_size=1,
        max_size=3,
    ),
    share=st.sampled_from([0.0, 0.01, 0.5]),
    inner=st.lists(st.integers(0, V), max_size=2).map(sorted),
    seed=st.integers(0, 3),
)
def test_rows_reach_ghosts_as_on_the_host(
    gpu: Gpu, which: list[list[int]], share: float, inner: list[int], seed: int
) -> None:
    """Several times, of few bytes and of many: slots are used again, and grow."""
    shards = make_graph(500, seed).partition(cuts=[0, *inner, V])

    def on_a_rank(engine: Engine) -> None:
        shard, rng = shards[engine.rank], np.random.default_rng([seed, engine.rank])
        cpu, device = choose_device("cpu"), choose_device("cuda")
        transports = WindowRows(shard, engine, device), HostRows(shard, engine, cpu)
        for chosen in (*which, *which):
            count = shard.numbers.size
            arrays: list[Any] = [
                rng.integers(0, 100, (count, *shape)).astype(dtype)
                for shape, dtype in (PROPERTIES[one] for one in chosen)
            ]
            changed = packed(rng.random(count) < share)
            rows = device.rows
            values = [rows.held(rows.upload(a.copy()), a.shape) for a in arrays]
            ghosts = transports[0].share(values, device.sets.upload(changed))
            meant = transports[1].share(arrays, changed)
            np.testing.assert_array_equal(device.download(ghosts), meant)
            for value, array in zip(values, arrays, strict=True):
                found = rows.download(value.array, array.shape)
                np.testing.assert_array_equal(found, array)

    run_ranks(len(shards), on_a_rank)


@settings(max_examples=4, deadline=None)
@example(which=([0], [3, 5]), share=0.3, inner=[64], seed=0)
@given(
    which=st.tuples(*[st.lists(st.integers(0, 6), max_size=2, unique=True)] * 2),
    share=st.sampled_from([0.0, 0.01, 0.5]),
    inner=st.lists(st.integers(0, V), max_size=2).map(sorted),
    seed=st.integers(0, 3),
)
def test_all_that_is_ready_travels_at_once(
    gpu: Gpu,
    which: tuple[list[int], list[int]],
    share: float,
    inner: list[int],
    seed: int,
) -> None:
    """Two sets with rows of their own, a count and a result, several times.

    Rows that come go to both buffers of a property, where it has two.
    """
    shards = make_graph(500, seed).partition(cuts=[0, *inner, V])

    def on_a_rank(engine: Engine) -> list[int]:
        shard, rng = shards[engine.rank], np.random.default_rng([seed, engine.rank])
        cpu, device = choose_device("cpu"), choose_device("cuda")
        transports = WindowRows(shard, engine, device), HostRows(shard, engine, cpu)
        count, rows, own = shard.numbers.size, device.rows, shard.own
        counted = []
        for _ in range(2):
            arrays: list[list[Any]] = [
                [
                    rng.integers(0, 100, (count, *shape)).astype(dtype)
                    for shape, dtype in (PROPERTIES[one] for one in chosen)
                ]
                for chosen in which
            ]
            masks = [rng.random(count) < share for _ in which]
            result = device.upload(np.array([engine.rank + 1.0, -engine.rank]))
            values = [
                [rows.held(rows.upload(a.copy()), a.shape) for a in some]
                for some in arrays
            ]
            sets = [device.sets.upload(packed(mask)) for mask in masks]
            transports[0].numbers.add(result, "sum")
            parts = zip(sets, values, strict=True)
            flat = [array for some in arrays for array in some]
            zeros = [rows.held(rows.upload(0 * a), a.shape) for a in flat]
            into = [None if n % 3 == 2 else one for n, one in enumerate(zeros)]
            found = transports[0].receive_active(
                transports[0].post_active(*parts), into
            )
            meant = [
                transports[1].share(some, packed(mask))
                for some, mask in zip(arrays, masks, strict=True)
            ]
            union = packed(masks[0]) | meant[0]
            for words, right in zip(found, (union, meant[1]), strict=True):
                np.testing.assert_array_equal(device.download(words), right)
            for some, others in zip(values, arrays, strict=True):
                for value, array in zip(some, others, strict=True):
                    came = rows.download(value.array, array.shape)
                    np.testing.assert_array_equal(came, array)
            come = [m for m, some in zip(meant, arrays, strict=True) for _ in some]
            pairs = zip(flat, zip(zeros, into, strict=True), come, strict=True)
            for array, (other, target), ghosts in pairs:
                is_stored = unpacked(ghosts)[:count] & (target is not None)
                array[~is_stored] = 0
                again = rows.download(other.array, array.shape)
                np.testing.assert_array_equal(again, array)
            sums = sum(r + 1.0 for r in range(engine.size))
            np.testing.assert_array_equal(
                device.download(result), [sums, engine.size - sums]
            )
            assert transports[0].leave_known(found[0])
            total = int(device.read_counts(0, 0)[0])
            # It may be another set by now.
            assert not transports[0].leave_known(found[0])
            one = np.array([masks[0][:own].sum()], np.int64)
            assert total == engine.all_reduce(one, "sum", about="a count")[0]
            counted.append(total)
        return counted

    run_ranks(len(shards), on_a_rank)


def rows_of(device: Any, array: Any) -> Any:
    """Return values of a property on a device."""
    return device.rows.held(device.rows.upload(array), array.shape)


@pytest.mark.parametrize("operation", ["add", "min", "max"])
def test_outboxes_are_combined_as_on_the_host(gpu: Gpu, operation: str) -> None:
    order = np.random.default_rng(0).permutation(V)
    shards = make_graph(300).partition(cuts=[0, 64, 64, V], order=order)

    def on_a_rank(engine: Engine) -> None:
        shard, rng = shards[engine.rank], np.random.default_rng(engine.rank)
        nothing = identity(operation, np.dtype(np.float64))
        sent = np.where(rng.random((V, 1)) < 0.3, rng.random((V, 3)), nothing)
        own = rng.random((shard.numbers.size, 3))
        cpu, device = choose_device("cpu"), choose_device("cuda")
        values, rows = own.copy(), device.rows
        reached = HostRows(shard, engine, cpu).deliver(sent.copy(), values, operation)
        found, outbox = (rows.held(rows.upload(a), a.shape) for a in (own, sent))
        came = WindowRows(shard, engine, device).deliver(outbox, found, operation)
        np.testing.assert_array_equal(device.download(came), reached)
        np.testing.assert_array_equal(rows.download(found.array, own.shape), values)

    run_ranks(3, on_a_rank)


def test_work_is_timed_without_waits(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock of the GPU: from what has been taken to what is posted next."""
    shards, now = make_graph(500).partition(cuts=[0, 64, V]), threading.local()
    clock = SimpleNamespace(perf_counter_ns=lambda: now.ns)
    monkeypatch.setattr(dialect, "time", clock)

    def on_a_rank(engine: Engine) -> list[int]:
        shard, device, found = shards[engine.rank], choose_device("cuda"), []
        transport, now.ns = WindowRows(shard, engine, device), 1000
        marked = device.sets.upload(packed(np.ones(shard.numbers.size, np.bool_)))
        outbox = rows_of(device, np.zeros(V, np.float32))
        values = rows_of(device, np.zeros(shard.numbers.size, np.float32))
        for more in (0, 50):
            transport.begin_timed()
            now.ns += 3 + 10 * engine.rank + more
            posted = transport.post_active((marked, []), None)
            now.ns += 900  # it waits
            transport.receive_active(posted)
            now.ns += 7
            transport.share([], marked)
            now.ns += 2
            transport.deliver(outbox, values, "add")
            now.ns += 400  # behind the last exchange
            assert transport.is_timed
            found.append(transport.worked_ns())
            assert not transport.is_timed
        return found

    assert run_ranks(2, on_a_rank) == [[12, 62], [22, 72]]


def test_one_kernel_packs_for_all_and_one_stores(gpu: Gpu) -> None:
    shards = make_graph(500).partition(cuts=[0, 40, 90, V])

    def on_a_rank(engine: Engine) -> list[str]:
        shard, device = shards[engine.rank], choose_device("cuda")
        transport, launched = WindowRows(shard, engine, device), list[str]()
        arrays = [np.zeros((shard.numbers.size, k), np.float32) for k in (1, 3)]
        rows = [device.rows.held(device.rows.upload(a), a.shape) for a in arrays]
        changed = device.sets.upload(packed(np.ones(shard.numbers.size, np.bool_)))
        transport.share(rows, changed)
        reads = len(gpu.downloads)
        device.recorder.begin({})
        transport.share(rows, changed)
        operations = device.recorder._own.operations or []
        launched = [o[1][0].py_func.__name__ for o in operations if o[0] == "launch"]
        device.recorder.end()
        assert len(gpu.downloads) == reads
        return launched

    assert run_ranks(3, on_a_rank) == [["post", "take"]] * 3


@pytest.mark.parametrize("algorithm", ["pagerank", "bfs"])
def test_a_superstep_takes_few_launches(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    """No row of a ghost is copied from buffer to buffer, and no count either."""
    monkeypatch.setattr(config, "replay", False)
    ends = np.arange(65)
    whole = fg.Graph.from_edges(ends, ends + 1, vertex_count=66, directed=False)
    launched: dict[int, list[str]] = {}
    was = cuda_trace.TracedDriver.launch

    def launch(driver: Any, handle: Any, *others: Any) -> None:
        launched.setdefault(threading.get_ident(), []).append(
            handle[0].py_func.__name__
        )
        was(driver, handle, *others)

    def on_a_rank(_: Engine) -> tuple[list[str], int]:
        graph, mine = (
            fg.distribute(whole),
            launched.setdefault(threading.get_ident(), []),
        )
        if algorithm == "bfs":
            run = al.bfs(graph, 0, target="cuda", max_supersteps=9).run
        else:
            run = al.pagerank(graph, tol=0.0, max_supersteps=9, target="cuda").run
        ends = [n for n, name in enumerate(mine) if name == "take"]
        return mine[ends[-2] + 1 : ends[-1] + 1], run.supersteps

    monkeypatch.setattr(cuda_trace.TracedDriver, "launch", launch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        found = run_ranks(2, on_a_rank)
    between, supersteps = found[0]
    assert supersteps == 9
    names = [name for name in between if not name.startswith(("find", "reach"))]
    if algorithm == "bfs":
        # As on one GPU, with the count, and of the due vertices the own ones.
        first, *middle, sweep, post, take = names
        assert (first, post, take) == ("words_and", "post", "take")
        assert middle == ["refresh_vertices_without"] * 2
        assert sweep.endswith("vertex_phase_0")
    else:
        assert [n for n in names if n.startswith(("refresh", "words"))] == []


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "bool"])
def test_numbers_are_combined_in_the_order_of_ranks(gpu: Gpu, dtype: str) -> None:
    """All at once, in one exchange."""
    rng = np.random.default_rng(0)
    given = (100 * rng.random((3, 70))).astype(dtype)
    if given.dtype.kind == "f":
        given[1, 4] = np.nan
    operators: dict[str, Any] = {"sum": np.add, "min": np.minimum, "max": np.maximum}
    if dtype == "bool":
        given = rng.random((3, 70)) < 0.5
        operators = {"or": np.logical_or, "and": np.logical_and}

    def on_a_rank(engine: Engine) -> None:
        device = choose_device("cuda")
        numbers, none = WindowNumbers(device), [np.empty(0, np.int32)] * 3
        channel = Channel(none, none, engine, device, "numbers", numbers)
        arrays = [device.upload(given[engine.rank].copy()) for _ in operators]
        for array, operator in zip(arrays, operators, strict=True):
            assert numbers.can_combine(array, operator)
            numbers.add(array, operator)
        channel.take(channel.post([]))
        assert not numbers.has_deferred
        first, second, third = given
        for array, combine in zip(arrays, operators.values(), strict=True):
            with np.errstate(over="ignore"):
                meant = combine(combine(first, second), third).astype(dtype)
            np.testing.assert_array_equal(device.download(array), meant)

    run_ranks(3, on_a_rank)


def test_large_results_and_others_go_by_the_host(gpu: Gpu) -> None:
    def on_a_rank(engine: Engine) -> None:
        device = choose_device("cuda")
        numbers = WindowNumbers(device)
        large = device.upload(np.zeros(window_channel.MOST_NUMBERS // 8 + 1))
        assert not numbers.can_combine(large, "sum")
        small = device.upload(np.zeros(2))
        assert numbers.can_combine(small, "product")
        assert not numbers.can_combine(small, "or")
        assert not numbers.can_combine(small, None)

    run_ranks(2, on_a_rank)


def test_a_rank_that_posts_nothing_is_named(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "timeout_of", lambda engine: 1e-3)
    whole = make_graph(200)

    def on_a_rank(engine: Engine) -> None:
        graph = fg.distribute(whole, cuts=[0, 64, V])
        exchange = graph.ranks.exchange(choose_device("cuda"))
        words = exchange.own(None)
        assert exchange.count(words) == V
        if engine.rank == 1:
            engine.barrier(about="rows of ghosts")
            return
        with pytest.raises(WorkerLostError, match="rank 1 of 2 was lost") as found:
            exchange.count(words)
        assert found.value.rank == 1
        assert "rank 0, in a kernel" in str(found.value)

    run_ranks(2, on_a_rank)


class Heard:
    """A watch that has just heard of a lost rank when kernels wait for it."""

    def __init__(self) -> None:
        self.wakes: list[Any] = []
        self.awaited: list[Any] = []

    def when_lost(self, wake: Any) -> None:
        self.wakes.append(wake)

    def watch_also(self, awaited: Any) -> Any:
        self.awaited.append(awaited)
        return self.awaited.clear

    def find_loss(self) -> WorkerLostError:
        return WorkerLostError("rank 1 of 2 was lost", rank=1, got="signal 9")


def test_a_rank_that_a_watch_reports_lost_is_not_waited_for(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though there is time left: the alarm wakes the kernel."""
    whole = make_graph(200)

    def sleep(nanoseconds: int) -> None:
        raise AssertionError("it waits for a rank that is lost")

    monkeypatch.setattr(Dialect, "nanosleep", staticmethod(sleep))

    def on_a_rank(engine: Any) -> None:
        engine.watch = watch = Heard()
        engine.timeout = 1e9
        graph = fg.distribute(whole, cuts=[0, 64, V])
        exchange = graph.ranks.exchange(choose_device("cuda"))
        words = exchange.own(None)
        assert exchange.count(words) == V
        if engine.rank == 1:
            engine.barrier(about="rows of ghosts")
            return
        for wake in watch.wakes:
            wake()
        with pytest.raises(WorkerLostError, match="rank 1 of 2") as found:
            exchange.count(words)
        assert "signal 9" in str(found.value)

    run_ranks(2, on_a_rank)


def test_a_kernel_that_waits_reports_it_and_goes_on(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits while the watch reports no lost rank, beyond the engine's timeout."""
    whole = make_graph(200)
    heard: dict[int, Heard] = {}
    waits: list[str] = []

    def sleep(nanoseconds: int) -> None:
        waits.append(heard[0].awaited[0]())
        if waits[-1]:
            heard[0].wakes[0]()

    clock = SimpleNamespace(perf_counter_ns=itertools.count(0, 10**7).__next__)
    monkeypatch.setattr(dialect, "time", clock)
    monkeypatch.setattr(Dialect, "nanosleep", staticmethod(sleep))

    def on_a_rank(engine: Any) -> None:
        engine.watch = heard[engine.rank] = watch = Heard()
        engine.timeout = 1e-3
        graph = fg.distribute(whole, cuts=[0, 64, V])
        exchange = graph.ranks.exchange(choose_device("cuda"))
        words = exchange.own(None)
        assert exchange.count(words) == V
        assert [read() for read in watch.awaited] == [""]
        if engine.rank == 1:
            engine.barrier(about="rows of ghosts")
            return
        with pytest.raises(WorkerLostError, match="rank 1 of 2"):
            exchange.count(words)
        assert [read() for read in watch.awaited] == [""]

    run_ranks(2, on_a_rank)
    assert len(waits) > 5
    assert set(waits) == {"", "stores of rank 1, in a kernel"}


@pytest.mark.parametrize("call", ["iterate", "a foldmap"])
@pytest.mark.parametrize("is_lost", [True, False])
def test_an_error_of_the_gpu_is_of_the_rank_that_is_lost(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, is_lost: bool, call: str
) -> None:
    """Kernels have stored into its freed memory; the watch names the rank."""
    whole, step = make_graph(200), fg.foldmap(add_up, climb)

    def on_a_rank(engine: Any) -> None:
        engine.watch = Heard()
        if not is_lost:
            engine.watch.find_loss = lambda: None
        graph = fg.distribute(whole, cuts=[0, 64, V])
        x = fg.vertex_property(np.arange(V) % 7, iterated=True)
        state = fg.State(graph, x=x, noted=fg.vertex_property(0))
        step(state, target="cuda")
        if engine.rank == 1:
            engine.barrier(about="the end")
            return
        post = Channel.post

        def fails(*given: Any, **more: Any) -> Any:
            raise DeviceError("a call of the CUDA driver failed", got="ILLEGAL_ADDRESS")

        monkeypatch.setattr(Channel, "post", fails)
        error = WorkerLostError if is_lost else DeviceError
        calls = {
            "iterate": lambda: fg.iterate(step, state, target="cuda"),
            "a foldmap": lambda: step(state, target="cuda"),
        }
        with pytest.raises(error) as found:
            calls[call]()
        assert isinstance(found.value.__cause__, DeviceError) == is_lost
        monkeypatch.setattr(Channel, "post", post)
        engine.barrier(about="the end")

    run_ranks(2, on_a_rank)


def run_pagerank(graph: fg.Graph, target: str = "cuda", most: int = 9) -> Any:
    found = al.pagerank(
        graph, weights=None, tol=0.0, max_supersteps=most, target=target
    )
    return found.ranks


@fg.gather(into="around", combine="sum")
def add_up(f, u, v, e, d):
    return d.x[u] + d.noted[u]


@fg.vertex
def climb(f, v, d):
    d.x_next[v] = d.x[v] + 1 + d.around[v] % 2
    d.noted[v] = d.around[v] % 5
    return d.x[v] < 20


def run_climb(graph: fg.Graph, target: str = "cuda") -> Any:
    x = np.arange(graph.vertex_count) % 7
    state = fg.State(
        graph, x=fg.vertex_property(x, iterated=True), noted=fg.vertex_property(0)
    )
    fg.iterate(fg.foldmap(add_up, climb), state, target=target)
    return state["x"]


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.drawn(2)
@pytest.mark.parametrize("run", [run_pagerank, run_climb])
def test_supersteps_on_ranks_are_replayed(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    # Lanes take their time: on one rank nothing would be replayed.
    monkeypatch.setattr(replay, "_MOST_SHARED_SECONDS", np.inf)
    whole = make_graph(180, count=66)
    before = len(gpu.recordings)
    found = run_ranks(2, lambda _: run(fg.distribute(whole)))
    made = gpu.recordings[before:]
    assert made
    assert sum(recording.launched for recording in made) >= 4
    monkeypatch.setattr(config, "replay", False)
    again = run_ranks(2, lambda _: run(fg.distribute(whole)))
    for values, meant in zip(found, again, strict=True):
        np.testing.assert_array_equal(values, meant)
    np.testing.assert_allclose(found[0], run(whole), rtol=1e-6)


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
def test_a_second_call_makes_nothing_though_states_are_larger_than_graphs(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are where a rank has many ghosts, and few of the edges."""
    monkeypatch.setattr(replay, "_MOST_SHARED_SECONDS", np.inf)
    monkeypatch.setattr(spare, "_LEAST_BYTES", 0)
    monkeypatch.setattr(gpu, "memory_bytes", lambda: 1 << 20)
    whole, seeds = make_graph(40, count=66), np.maximum(np.arange(66) % 12 - 4, -1)
    made: list[int] = []

    def on_a_rank(engine: Engine) -> None:
        graph = fg.distribute(whole)
        for _ in range(3):
            al.label_propagation(
                graph, seeds, class_count=8, epsilon=0.0, max_supersteps=8,
                history=False, target="cuda",
            )  # fmt: skip
            engine.barrier()
            made.append(len(gpu.recordings))
            engine.barrier()
        arrays = graph_arrays(graph.part, choose_device("cuda"))
        size = sum(array.size * array.dtype.itemsize for array in arrays.values())
        assert arrays._spare is not None
        assert arrays._spare._kits[-1].byte_count > size

    run_ranks(2, on_a_rank)
    assert 0 < made[0] == made[-1]


@pytest.fixture
def looping() -> Iterator[Gpu]:
    """A GPU on which loops pay at once, and ranks take turns in loops of their own."""
    with loops() as made:
        yield made


def run_components(graph: fg.Graph, target: str = "cuda") -> Any:
    """Two foldmaps in turn, one of which reads a mirror."""
    found = al.connected_components(graph, method="propagate", target=target)
    return found.labels


def run_beliefs(graph: fg.Graph, target: str = "cuda") -> Any:
    """With entries of edges."""
    prior = np.random.default_rng(0).random((graph.vertex_count, 2)) + 0.1
    found = al.belief_propagation(
        graph, prior, np.eye(2) + 1, epsilon=1e-9, max_supersteps=9, target=target
    )
    return found.marginals


@pytest.mark.drawn(4)
@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.parametrize("run", [run_climb, run_pagerank, run_components, run_beliefs])
def test_supersteps_on_ranks_run_in_a_loop(looping: Gpu, run: Any) -> None:
    """With the exchange inside."""
    whole = make_graph(60, count=40)
    if run in {run_components, run_beliefs}:
        ends = np.arange(39)
        whole = fg.Graph.from_edges(ends, ends + 1, vertex_count=40, directed=False)
    found = run_ranks(2, lambda _: run(fg.distribute(whole, along="both")))
    assert sum(loop.ran for loop in looping.loops) >= 4
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], run(whole, target="cpu"), rtol=1e-5)


@fg.gather(into="low", combine="min")
def low_around(f, u, v, e, d):
    return d.x[u]


@fg.vertex
def lower_and_note(f, v, d):
    d.x_next[v] = min(d.x[v], d.low[v])
    d.noted[v] += 1
    return d.low[v] < d.x[v]


@fg.gather(into="near", combine="sum")
def noted_around(f, u, v, e, d):
    return d.noted[u]


@fg.vertex
def take_near(f, v, d):
    d.noted[v] = d.near[v]
    return False


def run_noting(graph: fg.Graph, most: int, target: str = "cuda") -> Any:
    """Return the vertices due for another foldmap after a run ended within a cycle."""
    x, step = np.arange(40), fg.foldmap(low_around, lower_and_note)
    state = fg.State(
        graph, x=fg.vertex_property(x, iterated=True), noted=fg.vertex_property(0)
    )
    fg.iterate(step, state, active=[0], target=target, max_supersteps=most)
    fg.foldmap(noted_around, take_near)(state, target=target)
    return state["noted"]


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
def test_what_waits_behind_a_loop_is_sent_later(looping: Gpu) -> None:
    ends = np.arange(39)
    whole = fg.Graph.from_edges(ends, ends + 1, vertex_count=40)

    def on_a_rank(engine: Engine) -> None:
        graph = fg.distribute(whole, cuts=[0, 10, 40])
        found = run_noting(graph, 9)  # when the cut is crossed
        np.testing.assert_array_equal(found, run_noting(whole, 9, "cpu"))

    run_ranks(2, on_a_rank)
    assert looping.loops


def lose(exchange: Any) -> None:
    """Have a rank take it that rank 1 has posted nothing in time."""
    device, own = exchange.device, exchange.transport.fused._ghosts._boxes.own
    state = device.download(own)
    device.upload(np.array([*state[:2], 2, *state[3:]], np.int64), own)


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
def test_a_rank_that_is_lost_ends_a_loop(
    looping: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, launch = make_graph(60, count=40), replay.DeviceReplay.run

    def run(flight: Any, how: Any) -> bool:
        lose(flight._run_state.exchange)
        return launch(flight, how)

    monkeypatch.setattr(replay.DeviceReplay, "run", run)
    with pytest.raises(WorkerLostError, match="rank 1 of 2 was lost"):
        run_ranks(2, lambda _: run_pagerank(fg.distribute(whole)))
    assert {loop.ran for loop in looping.loops} <= {0, 1}


@pytest.mark.drawn(2)
@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.parametrize("way", ["host", "shorter loops"])
def test_a_rank_in_a_loop_goes_with_others_that_are_in_none(
    looping: Gpu, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Each rank chooses its form of execution; all ranks agree on the end of a run."""
    whole, found = make_graph(60, count=40), threading.local()
    loop, flight = cuda_trace.TracedDriver.loop, replay.DeviceReplay.run

    def some_loop(*given: Any) -> Any:
        return None if found.rank == 0 and way == "host" else loop(*given)

    def shorter(self: Any, how: Any) -> bool:
        if found.rank == 0:
            how = dataclasses.replace(how, limit=min(how.limit, 2))
        return flight(self, how)

    def on_a_rank(engine: Engine) -> Any:
        found.rank = engine.rank
        return run_climb(fg.distribute(whole))

    monkeypatch.setattr(cuda_trace.TracedDriver, "loop", some_loop)
    monkeypatch.setattr(replay.DeviceReplay, "run", shorter)
    values = run_ranks(2, on_a_rank)
    assert looping.loops
    np.testing.assert_array_equal(*values)
    np.testing.assert_allclose(values[0], run_climb(whole, "cpu"), rtol=1e-6)


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
def test_a_rank_that_is_lost_ends_a_replay(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_MOST_SECONDS", np.inf)
    whole = make_graph(180, count=66)
    launches: list[int] = []
    from featgraph.runtime.loops.replay_report import HostReplay

    launch = HostReplay._launch

    def launch_third(flight: Any) -> None:
        launches.append(1)
        if len(launches) == 3:
            lose(flight._run_state.exchange)
        launch(flight)

    monkeypatch.setattr(HostReplay, "_launch", launch_third)
    with pytest.raises(WorkerLostError, match="rank 1 of 2 was lost"):
        run_ranks(2, lambda _: run_pagerank(fg.distribute(whole)))
    assert len(launches) >= 3


@pytest.mark.parametrize("way", ["engine", "host"])
def test_other_ways_are_chosen_by_name(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    whole = make_graph(180, count=66)
    alone = al.bfs(whole, 3, target="cpu").levels
    monkeypatch.setattr(config, "gpu_links", way)
    before = len(gpu.by_driver)

    def on_a_rank(engine: Engine) -> Any:
        return al.bfs(fg.distribute(whole), 3, target="cuda").levels

    for levels in run_ranks(2, on_a_rank):
        np.testing.assert_array_equal(levels, alone)
    assert not {"post", "take"} & set(gpu.by_driver[before:])
    with pytest.raises(ArgumentError, match="'wire'"):
        config.gpu_links = "wire"  # type: ignore[assignment]


def test_a_graph_is_cut_where_ranks_take_turns() -> None:
    def turn() -> None: ...

    done = [("copy", n) for n in range(3)]
    alone = [done[0], ("turn", None), *done[1:]]
    assert _between_turns(alone) == [(done, None)]
    cut = [done[0], ("turn", turn), *done[1:]]
    assert _between_turns(cut) == [(done[:1], turn), (done[1:], None)]
    assert _between_turns([*done, ("turn", turn)]) == [(done, turn)]
    assert _between_turns([]) == [([], None)]
