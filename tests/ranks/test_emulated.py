"""Ranks whose kernels run on an emulated GPU: rows, algorithms, whole programs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph import algorithms as al
from featgraph.cuda import dialect
from featgraph.distributed import run_ranks
from featgraph.ranks.engines import messages
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.exchange.row_messages import Sending

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.base.errors import DistributedError
from featgraph.graph.building import edges as edge_lists
from featgraph.graph.partition.shard import Shard
from featgraph.ranks.exchange import gpu_messages
from featgraph.ranks.exchange.gpu_messages import FORMS, Outline
from featgraph.ranks.exchange.gpu_rows import GpuEdges, GpuRows
from featgraph.ranks.exchange.host_rows import HostRows
from featgraph.ranks.exchange.remote_entries import PartEdges
from featgraph.ranks.exchange.vertex_sets import packed
from featgraph.ranks.exchange.window_channel import WindowNumbers
from featgraph.runtime.devices.choose import choose_device
from tests.algorithms import test_answers
from tests.ranks import (
    test_calls,
    test_edges,
    test_elsewhere,
    test_options,
    test_partitions,
    test_twins,
)
from tests.ranks.forced import forced
from tests.simt.gpu import Gpu
from tests.strategies import examples

V = 150
#: Shape of a row and dtype of properties, of all units; some rows are padded.
PROPERTIES: list[tuple[tuple[int, ...], str]] = [
    ((), "float32"), ((5,), "float32"), ((), "int64"), ((3,), "float64"),
    ((), "bool"), ((), "int16"), ((2, 2), "float32"),
]  # fmt: skip


def make_graph(edges: int, seed: int = 0, count: int = V) -> fg.Graph:
    ends = np.random.default_rng(seed).integers(0, count, (2, edges))
    return fg.Graph.from_edges(*ends, vertex_count=count)


@fg.gather(into="low", combine="min")
def low_x(f, u, v, e, d):
    return d.x[u]


@fg.vertex
def take_low(f, v, d):
    d.x_next[v] = min(d.x[v], d.low[v])
    return d.low[v] < d.x[v]


lowest = fg.foldmap(low_x, take_low)


class OfHost:
    """An engine without the call that takes arrays of a GPU."""

    def __init__(self, engine: Engine) -> None:
        self.rank, self.size, self.traffic = engine.rank, engine.size, engine.traffic
        self.all_reduce, self.all_gather = engine.all_reduce, engine.all_gather
        self.all_to_allv, self.barrier = engine.all_to_allv, engine.barrier
        self.broadcast, self.hand_bytes = engine.broadcast, engine.hand_bytes
        self.hand_to_all = engine.hand_to_all
        self.begin_bytes = engine.begin_bytes


def share_and_compare(
    engine: Engine,
    shard: Shard,
    which: list[int],
    share: float,
    seed: int,
    form: str = "auto",
) -> None:
    """Share rows in both memories, and have the same ghosts and rows there."""
    rng = np.random.default_rng([seed, engine.rank])
    count = shard.numbers.size
    arrays: list[Any] = []
    for shape, dtype in (PROPERTIES[one] for one in which):
        arrays.append(rng.integers(0, 100, (count, *shape)).astype(dtype))
    changed = packed(rng.random(count) < share)
    cpu, device = choose_device("cpu"), choose_device("cuda")
    rows = device.rows
    values = [rows.held(rows.upload(a.copy()), a.shape) for a in arrays]
    sets, forms, sending = device.sets.upload(changed), Counter[str](), Sending(form)
    ghosts = GpuRows(shard, engine, device, forms).share(values, sets, sending)
    assert set(forms) <= {
        "none",
        "ms",
        *(["vr", "vr-list"] if form == "auto" else [form]),
    }
    assert forms.total() == engine.size - 1
    meant = HostRows(shard, engine, cpu).share(arrays, changed)
    np.testing.assert_array_equal(device.download(ghosts), meant)
    for value, array in zip(values, arrays, strict=True):
        found = rows.download(value.array, array.shape)
        np.testing.assert_array_equal(found, array)


@settings(max_examples=12, deadline=None)
@example(
    which=[1, 4, 3], share=0.01, inner=[64], seed=0, through_host=False, form="auto"
)
@example(which=[0], share=1.0, inner=[], seed=0, through_host=False, form="auto")
@example(
    which=[2, 5], share=0.6, inner=[9, 9], seed=1, through_host=True, form="vr-list"
)
@example(which=[2, 5], share=0.01, inner=[9, 64], seed=1, through_host=True, form="vr")
@given(
    which=st.lists(st.integers(0, len(PROPERTIES) - 1), max_size=3, unique=True),
    share=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    inner=st.lists(st.integers(0, V), max_size=2).map(sorted),
    seed=st.integers(0, 3),
    through_host=st.booleans(),
    form=st.sampled_from(["auto", "vr", "vr-list"]),
)
def test_rows_reach_ghosts_as_on_the_host(
    gpu: Gpu,
    which: list[int],
    share: float,
    inner: list[int],
    seed: int,
    through_host: bool,
    form: str,
) -> None:
    shards = make_graph(500, seed).partition(cuts=[0, *inner, V])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_messages, "_CHUNK_WORDS", 2)  # several chunks of a list

        def on_a_rank(engine: Any) -> None:
            used = OfHost(engine) if through_host else engine
            share_and_compare(used, shards[engine.rank], which, share, seed, form)

        run_ranks(len(shards), on_a_rank)


def test_what_crosses_a_link_is_what_changed(gpu: Gpu) -> None:
    shards = make_graph(2000).partition(cuts=[0, 70, V])

    def on_a_rank(engine: Any) -> list[int]:
        shard, device = shards[engine.rank], choose_device("cuda")
        rows = GpuRows(shard, engine, device, Counter())
        array = np.zeros((shard.numbers.size, 5), np.float32)
        value = device.rows.held(device.rows.upload(array), array.shape)
        listed, sent = shard.send_lists[1 - engine.rank], []
        for taken in (listed[:0], listed[3:4], listed[::2], listed):
            mask = np.isin(np.arange(shard.numbers.size), taken)
            before = engine.traffic.copy()
            rows.share([value], device.sets.upload(packed(mask)))
            sent.append(int((engine.traffic - before).sent.sum()))
        words = -(-listed.size // 32)
        assert sent[0] == 16  # a form and a count
        assert sent[1] == 16 + 8 + 24
        half = listed[::2].size
        assert sent[2] - 16 - 20 * half - 4 * words in range(12)
        assert sent[3] - 16 - 20 * listed.size in range(8)
        return sent

    run_ranks(2, on_a_rank)


def test_lists_of_many_chunks(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_messages, "_CHUNK_WORDS", 1)
    rng, count = np.random.default_rng(0), 1500
    lists = [np.sort(rng.permutation(count)[:size]) for size in (40, 0, 1211)]
    mask, device = rng.random(count) < 0.3, choose_device("cuda")
    links = gpu_messages.GpuLinks(lists, device)
    counts = links.mark(device.sets.upload(packed(mask)))
    links.list_all()
    taken, positions = device.download(links.taken), device.download(links.positions)
    for begin, listed, found in zip(links.begins, lists, counts, strict=True):
        meant = np.flatnonzero(mask[listed])
        rows = slice(begin, begin + found)
        np.testing.assert_array_equal(positions[rows], meant)
        np.testing.assert_array_equal(taken[rows], listed[meant])


def test_a_message_of_another_list_is_refused() -> None:
    for form, count in ((7, 1), (-1, 0), (1, 4), (2, 0), (3, 5), (0, 1)):
        with pytest.raises(DistributedError, match="rows cannot be read"):
            Outline.read(np.array([form, count]), 5, [])
    for count in range(6):
        outline = Outline.choose(count, 5, [])
        assert Outline.read(outline.announcement, 5, []) == outline
    assert Outline.choose(1, 64, []).form == "vr-list"
    assert {Outline.choose(c, 64, []).form for c in range(65)} == set(FORMS)


def test_forms_that_gpus_do_not_send_are_refused(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fg.config, "gpu_links", "host")
    whole = make_graph(500)

    def on_a_rank(engine: Any) -> None:
        graph = fg.distribute(whole, cuts=[0, 64, V])
        state = fg.State(graph, x=fg.vertex_property(0, iterated=True))
        for form in ("all", "ms"):
            with pytest.raises(fg.PlanError, match=f"(?s)exchange=.*'{form}'"):
                lowest(state, exchange=form, target="cuda")
        state = fg.State(graph, x=fg.vertex_property(0.0, iterated=True))
        with pytest.raises(fg.PlanError, match="GPUs round only the rows"):
            lowest(state, wire_dtype="float16", target="cuda")

    run_ranks(2, on_a_rank)


def test_atomics_at_the_reverse_of_an_edge_are_refused(gpu: Gpu) -> None:
    def on_a_rank(engine: Any) -> None:
        graph = fg.distribute(test_twins.WHOLE, cuts=[0, 20, test_twins.V])
        state = test_twins.make_state(graph)
        with pytest.raises(
            fg.PlanError, match="at the reverse of an edge run on ranks"
        ):
            test_twins.STEPS[1](state, target="cuda")
        assert not state["told"].any()

    run_ranks(2, on_a_rank)


@pytest.mark.parametrize("targets", [("cuda", "cpu"), ("cpu", "cuda", "cpu")])
def test_different_targets_are_refused_on_all_ranks(
    gpu: Gpu, targets: tuple[str, ...]
) -> None:
    whole = make_graph(300)

    def on_a_rank(engine: Any) -> None:
        graph = fg.distribute(whole)
        own, x = targets[engine.rank], np.arange(V)[::-1]
        state = fg.State(graph, x=fg.vertex_property(x, iterated=True))
        named = f"(?s)different targets.*{own} on rank {engine.rank}.*one target="
        for call in (lowest, lambda s, **o: fg.iterate(lowest, s, **o)):
            with pytest.raises(fg.PlanError, match=named):
                call(state, target=own)
        np.testing.assert_array_equal(state["x"], x)

    run_ranks(len(targets), on_a_rank)


def test_ranks_that_change_their_targets(gpu: Gpu) -> None:
    whole = make_graph(300)

    def on_a_rank(engine: Any) -> Any:
        graph = fg.distribute(whole, cuts=[0, 64, V])
        state = fg.State(graph, x=fg.vertex_property(0, iterated=True))
        lowest(state, target="cpu")
        lowest(state, target=("cuda", "cpu")[engine.rank])

    with pytest.raises(fg.RankMismatchError, match="the target of each rank"):
        run_ranks(2, on_a_rank)


def test_a_rank_without_vertices_follows_a_rank_of_another_target(gpu: Gpu) -> None:
    whole = make_graph(300)

    def run(graph: fg.Graph, target: str) -> Any:
        state = fg.State(graph, x=fg.vertex_property(np.arange(V)[::-1], iterated=True))
        return fg.iterate(lowest, state, target=target).active_counts, state["x"]

    meant = run(whole, "cpu")

    def on_a_rank(engine: Any) -> Any:
        return run(fg.distribute(whole, ranks=1), ("cuda", "cpu")[engine.rank])

    for found in run_ranks(2, on_a_rank):
        np.testing.assert_equal(found, meant)


ALGORITHMS: dict[str, Any] = {
    "bfs": lambda g, **o: al.bfs(g, [3, 60], **o).levels,
    "pagerank": lambda g, **o: al.pagerank(g, weights=None, tol=1e-2, **o).ranks,
    "components": lambda g, **o: (
        al.connected_components(g, method="propagate", **o).labels
    ),
}


@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_runs_on_ranks_of_a_gpu(gpu: Gpu, name: str) -> None:
    whole, call = make_graph(180, count=66), ALGORITHMS[name]
    alone = call(whole, target="cpu")
    for ranks in (1, 2, 3):
        for found in run_ranks(
            ranks, lambda _: call(fg.distribute(whole), target="cuda")
        ):
            np.testing.assert_allclose(found, alone, rtol=1e-5)


@pytest.mark.parametrize("links", ["auto", "host"])
def test_ranks_without_vertices_follow(
    gpu: Gpu, links: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fg.config, "gpu_links", links)
    # By the clock, rank 0 would send its results more often on a loaded machine.
    monkeypatch.setattr(messages, "MOST_S", np.inf)
    whole, x = make_graph(300), np.random.default_rng(1).integers(0, 99, V)

    def program(graph: fg.Graph) -> Any:
        state = fg.State(graph, x=fg.vertex_property(x, iterated=True))
        run = fg.iterate(lowest, state, target="cuda")
        return run.active_counts, state["x"].tolist()

    def on_a_rank(engine: Any) -> Any:
        graph = fg.distribute(whole, ranks=1)
        begun = engine.exchanges
        found = program(graph)
        return found, engine.exchanges - begun

    # One exchange of rank 0's results, and one of the values of x.
    assert run_ranks(3, on_a_rank) == [(program(whole), 2)] * 3


@pytest.mark.slow
def test_atomics_reach_their_owners(gpu: Gpu) -> None:
    whole, order = test_elsewhere.GRAPHS[True], np.arange(test_elsewhere.V)[::-1]
    meant = test_elsewhere.interpreted(1, True)
    found = run_ranks(
        3,
        lambda _: test_elsewhere.run(
            fg.distribute(whole, order=order, cuts=[0, 9, 40, len(order)]), 1, "cuda"
        ),
    )
    for values in found:
        test_partitions.require_same(values, meant)


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("call", [test_options.keep, test_options.settle])
@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
def test_options_run_on_ranks_of_a_gpu(gpu: Gpu, call: Any) -> None:
    whole = test_options.GRAPHS[True]
    alone = call(whole, 0)  # on the GPU: there seems to be one

    def on_a_rank(engine: Any) -> list[Any]:
        graph = fg.distribute(whole, order="locality", cuts=[0, 40, test_options.V])
        return call(graph, 0)  # type: ignore[no-any-return]

    for found in run_ranks(2, on_a_rank):
        test_partitions.require_same(found, alone)


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
def test_programs_have_the_bits_of_one_rank(gpu: Gpu, directed: bool) -> None:
    """With mirrors, along all edges, restricted, in other orders."""
    whole, run = test_partitions.GRAPHS[directed], test_partitions.run
    alone = run(whole, 0, "cuda")
    order, cuts = ("locality", [0, 40, 97]) if directed else ("spread", [0, 9, 9, 97])

    def on_a_rank(engine: Any) -> list[Any]:
        return run(fg.distribute(whole, order=order, cuts=cuts), 0, "cuda")

    for found in run_ranks(len(cuts) - 1, on_a_rank):
        test_partitions.require_same(found, alone)


@fg.gather(into="degrees", combine="sum")
def degrees_around(f, u, v, e, d):
    return d.out_degree[u] + 1000 * d.in_degree[u]


@fg.vertex
def keep_degrees(f, v, d):
    d.kept[v] = d.degrees[v]
    return True


@pytest.mark.parametrize("directed", [False, True])
def test_ghosts_have_the_degrees_of_the_whole_graph(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, directed: bool
) -> None:
    monkeypatch.setattr(edge_lists, "MANY_EDGES", 0)  # a GPU makes rows by itself
    ends = np.random.default_rng(3).integers(0, V, (2, 300))
    whole = fg.Graph.from_edges(*ends, vertex_count=V, directed=directed)
    step = fg.foldmap(degrees_around, keep_degrees)

    def kept(graph: fg.Graph, target: str) -> Any:
        state = fg.State(graph, kept=fg.vertex_property(0))
        step(state, target=target)
        return state["kept"]

    def on_a_rank(engine: Engine) -> Any:
        return kept(fg.distribute(whole, cuts=[0, 64, V]), "cuda")

    for found in run_ranks(2, on_a_rank):
        assert np.array_equal(found, kept(whole, "cpu"))


def make_edge_values(
    engine: Engine, shard: Shard, which: list[int], seed: int
) -> tuple[list[Any], list[Any]]:
    """Return rows for the edges of a rank, and others that have some of the same."""
    rng, count = np.random.default_rng([seed, engine.rank]), shard.local.edge_count
    now: list[Any] = []
    before: list[Any] = []
    for shape, dtype in (PROPERTIES[one] for one in which):
        array = rng.integers(0, 100, (count, *shape)).astype(dtype)
        other = array.copy()
        changed = rng.random(count) < 0.3
        array[changed] = rng.integers(0, 2, (int(changed.sum()), *shape))
        if np.dtype(dtype).kind == "f":  # which are equal, and differ
            array[:20], other[:20] = 0.0, -0.0
            array[20:30] = other[20:30] = np.nan
        now.append(array)
        before.append(other)
    return now, before


def share_edges_and_compare(
    engine: Engine, shard: Shard, which: list[int], share: float, seed: int
) -> None:
    """Mark and share entries in both memories, and have the same rows there."""
    no_entries = np.zeros(0, np.int64)  # for edges of the whole graph
    edges = PartEdges(shard, "both", no_entries, no_entries).lists
    now, before = make_edge_values(engine, shard, which, seed)
    rng, count = np.random.default_rng([seed, engine.rank]), shard.numbers.size
    sources = [packed(rng.random(count) < share) for _ in range(2)]
    cpu, device = choose_device("cpu"), choose_device("cuda")
    on_host = HostRows(shard, engine, cpu).over(edges)
    on_gpu = GpuRows(shard, engine, device, Counter()).over(edges)
    if seed % 2:  # through windows
        on_gpu = GpuEdges(edges, None, device, (engine, WindowNumbers(device)))

    def marked(transport: Any, sets: Any, held: Any, others: Any) -> Any:
        one, two = (transport.out_of(sets.upload(words)) for words in sources)
        return transport.that_differ(transport.union(one, two), held[0], others[0])

    rows = device.rows
    values, others = (
        [rows.held(rows.upload(a.copy()), a.shape) for a in arrays]
        for arrays in (now, before)
    )
    meant = marked(on_host, cpu.sets, now, before)
    found = marked(on_gpu, device.sets, values, others)
    words = np.concatenate([packed(meant[begin:end]) for begin, end in edges.bounds])
    downloaded = device.download(found)  # a word at least
    assert np.array_equal(downloaded[: words.size], words)
    assert not downloaded[words.size :].any()
    for marks, listed in ((meant, found), (on_host.all(), on_gpu.all())):
        on_host.share(now, marks, [*before[:-1], None])
        on_gpu.share(values, listed, [*others[:-1], None])
        for value, array in zip([*values, *others], [*now, *before], strict=True):
            held = rows.download(value.array, array.shape)
            assert held.tobytes() == array.tobytes()


@examples(6, 8)
@example(directed=False, which=[1, 4, 3], share=0.5, inner=[64], seed=0)
@example(directed=False, which=[1, 4, 3], share=0.5, inner=[9, 9], seed=1)
@given(
    directed=st.booleans(),
    which=st.lists(
        st.integers(0, len(PROPERTIES) - 1), min_size=1, max_size=3, unique=True
    ),
    share=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    inner=st.lists(st.integers(0, V), max_size=2).map(sorted),
    seed=st.integers(0, 3),
)
def test_entries_reach_ghosts_as_on_the_host(
    gpu: Gpu,
    directed: bool,
    which: list[int],
    share: float,
    inner: list[int],
    seed: int,
) -> None:
    ends = np.random.default_rng(seed).integers(0, V, (2, 300))
    whole = fg.Graph.from_edges(*ends, vertex_count=V, directed=directed)
    shards = whole.partition(cuts=[0, *inner, V], along="both")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_messages, "_CHUNK_WORDS", 2)  # several chunks of a list
        run_ranks(
            len(shards),
            lambda engine: share_edges_and_compare(
                engine, shards[engine.rank], which, share, seed
            ),
        )


@fg.edge
def carry(f, u, v, e, d):
    d.load_next[e] = d.x[u] + d.load[fg.reverse(e)]
    return d.load_next[e] % 3 > 0


@fg.gather(into="heard", combine="sum")
def hear(f, u, v, e, d):
    return d.load_next[e] - d.load[fg.reverse(e)]


@fg.vertex
def keep(f, v, d):
    d.x[v] = d.heard[v] % 50
    return True


def test_edge_functions_run_on_ranks_of_a_gpu(gpu: Gpu) -> None:
    """Pulled by the gather behind them, and by themselves."""
    ends = np.random.default_rng(5).integers(0, 70, (2, 110))
    whole = fg.Graph.from_edges(*ends, vertex_count=70, directed=False)
    steps = fg.foldmap(carry, hear, keep), fg.edgemap(carry)

    def results_of(graph: fg.Graph, target: str) -> list[Any]:
        x = fg.vertex_property(np.arange(70))
        load = fg.edge_property(0, iterated=True, per_direction=True)
        state, found = fg.State(graph, x=x, load=load), []
        for number in (0, 1, 1, 0):
            active = np.arange(number, 70, 2)
            found.append(steps[number](state, active_in=active, target=target).mask)
        # Along rows that lead to own vertices alone, listed where they are long.
        options = {"schedule": "balanced_push"} if target == "cuda" else {}
        found.append(steps[1](state, target=target, **options).mask)
        return [*found, state["x"], state["load"]]

    meant = results_of(whole, "cpu")
    for found in run_ranks(
        2, lambda _: results_of(fg.distribute(whole, cuts=[0, 40, 70]), "cuda")
    ):
        test_edges.require_same(found, meant)


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
def test_programs_with_edge_functions_have_the_bits_of_one_rank(
    gpu: Gpu, directed: bool
) -> None:
    whole = test_edges.GRAPHS[directed, 1]
    meant = test_edges.expected(directed, 1, 4)

    def on_a_rank(engine: Engine) -> list[Any]:
        graph = fg.distribute(whole, order="locality", cuts=[0, 40, test_edges.V])
        return test_edges.run(graph, 1, 4, "cuda")

    for found in run_ranks(2, on_a_rank):
        test_edges.require_same(found, meant)


@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
@pytest.mark.parametrize("links", ["auto", "host"])
def test_ranks_of_a_gpu_move(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, links: str
) -> None:
    """Announced by the host, or by kernels through windows."""
    monkeypatch.setattr(fg.config, "gpu_links", links)
    whole, count = test_options.GRAPHS[True], test_options.V

    def results_of(graph: fg.Graph, target: str, **kept: Any) -> list[Any]:
        state = test_options.make_state(graph, 3)
        steps = [test_options.search, test_options.step.on(np.arange(0, count, 2))]
        run = fg.iterate(
            steps, state, active=[3, 50], max_supersteps=6, target=target,
            record_active=True, **kept,
        )  # fmt: skip
        sets = [found.mask for found in run.active_sets or []]
        moves = len(run.partitions)
        return [moves, run.active_counts, state["x"], state["y"], *sets]

    def on_a_rank(engine: Engine) -> list[Any]:
        graph = fg.distribute(whole, cuts=[0, 32, count])
        return results_of(graph, "cuda", repartition="auto")

    meant = results_of(whole, "cpu")
    with forced({2: [0, 64, count], 4: [0, count, count]}):
        for found in run_ranks(2, on_a_rank):
            assert found[0] == 2
            np.testing.assert_equal(found[1:], meant[1:])


ENDS = np.unique(
    np.random.default_rng(7).integers([[0], [20]], [[20], [40]], (2, 60)), axis=1
)
TIED = fg.Graph.from_edges(
    *ENDS, vertex_count=40, directed=False, weights=np.arange(1.0, 1 + ENDS.shape[1])
)
#: Algorithms with edge functions.
WITH_EDGES: dict[str, Any] = {
    "beliefs": lambda g, **o: al.belief_propagation(
        g, test_answers.potentials(TIED), test_answers.ALIKE, max_supersteps=3, **o
    ),
    "circuit": lambda g, **o: al.circuit_simulation(
        g, test_answers.sources(TIED), max_supersteps=3, **o
    ),
    "modalities": lambda g, **o: al.multimodal_learning(
        g, test_answers.seeds(TIED), weights=test_answers.of_modalities(TIED),
        max_supersteps=3, **o,
    ),
    "push": lambda g, **o: al.pagerank_push(g, max_supersteps=3, **o),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_EDGES)
@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
def test_algorithms_with_edge_functions_have_the_bits_of_one_rank(
    gpu: Gpu, name: str
) -> None:
    def answers(graph: fg.Graph) -> dict[str, Any]:
        return test_calls.answers(WITH_EDGES[name](graph, target="cuda"))

    alone = answers(TIED)
    for found in run_ranks(2, lambda _: answers(fg.distribute(TIED, cuts=[0, 27, 40]))):
        for key, value in alone.items():
            if name != "push" or value.dtype.kind != "f":
                np.testing.assert_array_equal(found[key], value, err_msg=key)
            else:  # sums of what is pushed, and of all ranks
                np.testing.assert_allclose(found[key], value, rtol=1e-12)
