"""CPU ranks beside ranks on an emulated GPU: as on one rank, or refused by all."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph import algorithms as al
from featgraph.cuda import dialect
from featgraph.distributed import run_ranks

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.exchange.host_rows import HostRows
from featgraph.ranks.exchange.members import packed
from featgraph.ranks.exchange.row_forms import Sending
from featgraph.ranks.exchange.target_rows import TranslatedRows
from featgraph.runtime.devices.choose import choose_device
from tests.bank import BANK, BY_NAME
from tests.ranks import (
    test_bank,
    test_calls,
    test_edges,
    test_elsewhere,
    test_emulated,
    test_emulated_triangles,
    test_options,
    test_partitions,
    test_twins,
)
from tests.ranks.forced import forced
from tests.simt.gpu import Gpu
from tests.simt.test_streaming import limited, stream

pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
#: By rank.
MIXED = {2: ("cuda", "cpu"), 3: ("cpu", "cuda", "cpu")}
#: One in so many programs of the bank is run also without the deep profile.
ONE_IN = 16
#: Lanes of the emulator take their time.
deep = pytest.mark.skipif(not test_bank.is_deep(), reason="in the deep profile")


def on_mixed(cuts: list[int], program: Callable[[Any, str], Any], **how: Any) -> Any:
    """Return what a program of a graph and a target gives on ranks of both targets."""
    whole, targets = how.pop("whole"), MIXED[len(cuts) - 1]

    def on_a_rank(engine: Engine) -> Any:
        graph = fg.distribute(whole, cuts=cuts, **how)
        return program(graph, targets[engine.rank])

    return run_ranks(len(targets), on_a_rank)


def require_close(found: list[Any], meant: list[Any]) -> None:
    """Compare values: reals to a tolerance of some roundings, all else exactly."""
    assert len(found) == len(meant)
    for one, other in zip(found, meant, strict=True):
        if isinstance(other, np.ndarray) and other.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_equal(one, other)


def share_and_compare(
    engine: Engine, shard: Any, which: list[int], share: float, seed: int, how: Sending
) -> None:
    """Share rows on ranks of both targets, and have what ranks of the CPU have."""
    rng = np.random.default_rng([seed, engine.rank])
    count = shard.numbers.size
    arrays: list[Any] = []
    for shape, dtype in (test_emulated.PROPERTIES[one] for one in which):
        arrays.append(rng.integers(0, 100, (count, *shape)).astype(dtype) / 3)
        arrays[-1] = arrays[-1].astype(dtype)
    changed = packed(rng.random(count) < share)
    cpu = choose_device("cpu")
    meant = [array.copy() for array in arrays]
    alone = HostRows(shard, engine, cpu)
    wanted = alone.share(meant, changed, how)
    if MIXED[engine.size][engine.rank] == "cpu":
        mixed: Any = HostRows(shard, engine, cpu, sends_behind=False)
        ghosts, found = mixed.share(arrays, changed, how), arrays
    else:
        device = choose_device("cuda")
        rows = device.rows
        values = [rows.held(rows.upload(a.copy()), a.shape) for a in arrays]
        mixed = TranslatedRows(shard, engine, device)
        ghosts = device.download(mixed.share(values, device.sets.upload(changed), how))
        both = zip(values, arrays, strict=True)
        found = [rows.download(v.array, a.shape) for v, a in both]
    np.testing.assert_array_equal(ghosts, wanted)
    for one, other in zip(found, meant, strict=True):
        np.testing.assert_array_equal(one, other)
    assert mixed.forms == alone.forms


@settings(max_examples=max(settings.default.max_examples // 12, 1), deadline=None)
@example(
    which=[1, 4, 3], share=0.01, inner=[64], seed=0, form="auto", wire_dtype="float16"
)
@example(which=[0], share=1.0, inner=[9, 9], seed=0, form="auto", wire_dtype=None)
@example(which=[2, 6], share=0.6, inner=[9, 64], seed=1, form="vr", wire_dtype=None)
@given(
    which=st.lists(
        st.integers(0, len(test_emulated.PROPERTIES) - 1), max_size=3, unique=True
    ),
    share=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    inner=st.lists(st.integers(0, test_emulated.V), min_size=1, max_size=2).map(sorted),
    seed=st.integers(0, 3),
    form=st.sampled_from(["auto", "vr", "vr-list"]),
    wire_dtype=st.sampled_from([None, "float16", "bfloat16"]),
)
def test_rows_reach_ghosts_as_among_ranks_of_the_cpu(
    gpu: Gpu,
    which: list[int],
    share: float,
    inner: list[int],
    seed: int,
    form: str,
    wire_dtype: str | None,
) -> None:
    shards = test_emulated.make_graph(500, seed).partition(
        cuts=[0, *inner, test_emulated.V]
    )
    how = Sending(form, wire_dtype)
    run_ranks(
        len(shards),
        lambda e: share_and_compare(e, shards[e.rank], which, share, seed, how),
    )


def chosen() -> list[str]:
    """Return the programs of the bank to run, by name: drawn by a digest."""
    names = [p.name for p in BANK if not p.thresholds]
    every = 1 if test_bank.is_deep() else ONE_IN
    return [n for n in names if zlib.crc32(n.encode()) % every == 0]


@pytest.mark.parametrize("name", chosen())
def test_a_program_gives_the_same(gpu: Gpu, name: str) -> None:
    program, seed = BY_NAME[name], zlib.crc32(name.encode()) % 1000
    directed = seed % 2 == 0 and not program.undirected
    whole, cuts = (
        test_bank.make_graph(seed, directed),
        [[0, 32, 67], [0, 5, 40, 67]][seed // 2 % 2],
    )

    def run(graph: fg.Graph, target: str) -> Any:
        return test_bank.run(program, graph, seed, target, supersteps=2)

    alone = run(whole, "cpu")
    for values in on_mixed(cuts, run, whole=whole):
        assert values is not None
        assert values.keys() == alone.keys()
        for key, value in values.items():
            if program.exact:
                np.testing.assert_array_equal(value, alone[key], err_msg=key)
            else:
                np.testing.assert_allclose(
                    value, alone[key], rtol=1e-4, atol=1e-5, err_msg=key
                )


def test_what_is_combined_and_read_elsewhere(gpu: Gpu) -> None:
    """Atomics at computed vertices, mirrors, outboxes."""
    meant = test_elsewhere.interpreted(1, True)
    whole, order = test_elsewhere.GRAPHS[True], np.arange(test_elsewhere.V)[::-1]

    def run(graph: fg.Graph, target: str) -> Any:
        return test_elsewhere.run(graph, 1, target)

    for found in on_mixed([0, 30, len(order)], run, whole=whole, order=order):
        test_partitions.require_same(found, meant)


@deep
@pytest.mark.parametrize("directed", [True, False])
def test_whole_programs(gpu: Gpu, directed: bool) -> None:
    """With mirrors, along all edges, restricted, in other orders."""
    whole = test_partitions.GRAPHS[directed]

    def run(graph: fg.Graph, target: str) -> Any:
        return test_partitions.run(graph, 0, target, deterministic=False)

    order, cuts = ("locality", [0, 40, 97]) if directed else ("spread", [0, 9, 9, 97])
    meant = run(whole, "cpu")
    for found in on_mixed(cuts, run, whole=whole, order=order):
        require_close(found, meant)


def test_entries_of_edges(gpu: Gpu) -> None:
    """What edge functions write, gathers along out-edges, twins."""
    ends = np.random.default_rng(5).integers(0, 70, (2, 110))
    whole = fg.Graph.from_edges(*ends, vertex_count=70, directed=False)
    own = test_emulated.carry, test_emulated.hear, test_emulated.keep
    steps = fg.foldmap(*own), fg.edgemap(own[0])

    def told(graph: fg.Graph, target: str) -> list[Any]:
        x = fg.vertex_property(np.arange(70))
        load = fg.edge_property(0, iterated=True, per_direction=True)
        state, found = fg.State(graph, x=x, load=load), []
        for number in (0, 1, 0):
            active = np.arange(number, 70, 2)
            found.append(steps[number](state, active_in=active, target=target).mask)
        return [*found, state["x"], state["load"]]

    meant = told(whole, "cpu")
    for found in on_mixed([0, 40, 70], told, whole=whole):
        test_edges.require_same(found, meant)


@deep
@pytest.mark.parametrize("directed", [True, False])
def test_edge_functions(gpu: Gpu, directed: bool) -> None:
    """Entries of edges, their twins, gathers along out-edges, reduces."""
    rounds = 2

    def run(graph: fg.Graph, target: str) -> Any:
        return test_edges.run(graph, 1, rounds, target)

    cuts, whole = [0, 40, test_edges.V], test_edges.GRAPHS[directed, 1]
    for found in on_mixed(cuts, run, whole=whole):
        test_edges.require_same(found, test_edges.expected(directed, 1, rounds))


@deep
@pytest.mark.parametrize("name", test_emulated.WITH_EDGES)
def test_algorithms_with_edge_functions(gpu: Gpu, name: str) -> None:
    """Some of their foldmaps would commit in place on one of the targets."""
    whole = test_emulated.TIED

    def run(graph: fg.Graph, target: str) -> Any:
        found = test_calls.answers(test_emulated.WITH_EDGES[name](graph, target=target))
        return [found[key] for key in sorted(found)]

    meant = run(whole, "cpu")
    for found in on_mixed([0, 27, 40], run, whole=whole):
        require_close(found, meant)


@deep
def test_ratings(gpu: Gpu) -> None:
    """One target would commit in place, for no user reads from another."""
    whole = fg.graph.ratings(40, 30, 240, seed=1)

    def run(graph: fg.Graph, target: str) -> Any:
        return al.als(graph, factors=3, iterations=2, target=target).factors

    meant, targets = run(whole, "cpu"), MIXED[2]

    def on_a_rank(engine: Engine) -> Any:
        return run(fg.distribute(whole), targets[engine.rank])

    for found in run_ranks(2, on_a_rank):
        np.testing.assert_allclose(found, meant, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_triangles_and_edges_that_changed(gpu: Gpu) -> None:
    whole = test_emulated_triangles.GRAPHS[2]
    meant = test_emulated_triangles.peeled(whole, "cpu")
    cuts = [0, 20, test_emulated_triangles.V]
    for found in on_mixed(cuts, test_emulated_triangles.peeled, whole=whole):
        require_close(found, meant)


@deep
def test_runs_with_options(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near and far, kept aggregates, asynchronous runs: those that name no target."""
    from featgraph.runtime.devices import choose

    known = choose.chosen_target

    def as_rank(target: Any, *others: Any) -> str:
        engine = fg.distributed.current_engine()
        is_open = target == "auto" and engine.size > 1
        return MIXED[engine.size][engine.rank] if is_open else known(target, *others)

    monkeypatch.setattr(choose, "chosen_target", as_rank)
    monkeypatch.setattr(fg.config, "target", "cpu")
    whole = test_options.GRAPHS[True]
    for call in (test_options.keep, test_options.settle):
        meant = call(whole, 0)
        cuts = [0, 40, test_options.V]
        for found in on_mixed(cuts, lambda g, _, c=call: c(g, 0), whole=whole):
            require_close(found, meant)


def test_ranks_move(gpu: Gpu) -> None:
    whole, count = test_options.GRAPHS[True], test_options.V

    def told(graph: fg.Graph, target: str, **kept: Any) -> list[Any]:
        state = test_options.make_state(graph, 3)
        run = fg.iterate(
            test_options.search, state, active=[3, 50], max_supersteps=5,
            target=target, **kept,
        )  # fmt: skip
        return [len(run.partitions), run.active_counts, state["x"], state["y"]]

    meant = told(whole, "cpu")

    def moving(graph: fg.Graph, target: str) -> list[Any]:
        return told(graph, target, repartition="auto")

    with forced({2: [0, 64, count], 4: [0, count, count]}):
        for found in on_mixed([0, 32, count], moving, whole=whole):
            assert found[0] == 2
            np.testing.assert_equal(found[1:], meant[1:])


def test_edges_of_the_gpu_are_streamed() -> None:
    whole = test_emulated.make_graph(400)

    def run(graph: fg.Graph, target: str) -> Any:
        if target == "cuda":
            stream(graph.part)
        given = {"weights": None, "tol": 1e-3, "target": target}
        return al.pagerank(graph, **given).ranks

    meant = run(whole, "cpu")
    with limited(1 << 20, 512) as gpu:
        for found in on_mixed([0, 64, test_emulated.V], run, whole=whole):
            np.testing.assert_allclose(found, meant, rtol=1e-5)
        assert gpu.streamed


@deep
def test_parts_of_graphs_on_the_gpu_and_on_the_host(gpu: Gpu) -> None:
    ends = np.random.default_rng(0).integers(0, 90, (2, 300))
    meant = fg.Graph.from_edges(*ends, vertex_count=90)

    def on_a_rank(engine: Engine) -> Any:
        target = MIXED[2][engine.rank]
        graph = fg.Graph.from_edges(*ends, vertex_count=90, target=target)
        parted = fg.distribute(graph, cuts=[0, 64, 90])
        return al.bfs(parted, 0, target=target).levels

    for found in run_ranks(2, on_a_rank):
        np.testing.assert_array_equal(found, al.bfs(meant, 0, target="cpu").levels)


#: What is asked for, and what the error names.
REFUSED = {
    "deterministic": ({"deterministic": True}, "each target has bits of its own"),
    "exchange": ({"exchange": "ms"}, "GPUs send the rows that changed"),
}


@pytest.mark.parametrize("asked", REFUSED)
def test_what_targets_do_not_do_together_is_refused_by_all(
    gpu: Gpu, asked: str
) -> None:
    options, text = REFUSED[asked]

    def run(graph: fg.Graph, target: str) -> None:
        x = np.arange(test_emulated.V)[::-1]
        state = fg.State(graph, x=fg.vertex_property(x, iterated=True))
        named = rf"(?s){text}.*'cpu' on ranks 0, 2, 'cuda' on rank 1.*target=\"cpu\""
        with pytest.raises(fg.PlanError, match=named):
            test_emulated.lowest(state, target=target, **options)
        np.testing.assert_array_equal(state["x"], x)

    cuts = [0, 32, 64, test_emulated.V]
    on_mixed(cuts, run, whole=test_emulated.make_graph(300))


def test_atomics_at_the_reverse_of_an_edge_are_refused_by_all(gpu: Gpu) -> None:
    def run(graph: fg.Graph, target: str) -> None:
        state = test_twins.make_state(graph)
        with pytest.raises(fg.PlanError, match=r"(?s)at the reverse.*'cuda' on rank 0"):
            test_twins.STEPS[1](state, target=target)
        assert not state["told"].any()

    on_mixed([0, 20, test_twins.V], run, whole=test_twins.WHOLE)


def test_ranks_that_change_their_targets_are_told(gpu: Gpu) -> None:
    whole = test_emulated.make_graph(300)

    def on_a_rank(engine: Engine) -> Any:
        graph = fg.distribute(whole, cuts=[0, 64, test_emulated.V])
        state = fg.State(graph, x=fg.vertex_property(0, iterated=True))
        test_emulated.lowest(state, target="cpu")
        test_emulated.lowest(state, target=MIXED[2][engine.rank])

    with pytest.raises(fg.RankMismatchError, match="the target of each rank"):
        run_ranks(2, on_a_rank)


def test_forms_are_those_of_the_host(gpu: Gpu) -> None:
    whole = test_emulated.make_graph(300)

    def run(graph: fg.Graph, target: str) -> Any:
        x = np.random.default_rng(2).integers(0, 99, test_emulated.V)
        state = fg.State(graph, x=fg.vertex_property(x, iterated=True))
        made = fg.iterate(test_emulated.lowest, state, target=target)
        return Counter(made.forms), made.pieces

    cuts = [0, 64, test_emulated.V]
    meant = run_ranks(2, lambda _: run(fg.distribute(whole, cuts=cuts), "cpu"))
    assert on_mixed(cuts, run, whole=whole) == meant
