"""Batches, programs and dead vertices on an emulated GPU: as on the CPU."""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest

from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

import featgraph as fg
from featgraph.algorithms import connected_components, triangle_count
from featgraph.cuda import arrays
from featgraph.dynamic import (
    gpu_memory,
    gpu_pools,
    kernels_cpu,
    pools,
    triangles_cuda,
    views,
)
from featgraph.dynamic.audit import audit
from featgraph.dynamic.batches import Batch
from featgraph.dynamic.rows import living_slots
from featgraph.dynamic.store import EdgeStore
from featgraph.fold.plan import traits
from featgraph.runtime.devices import cuda_device, cuda_sets, protocol
from featgraph.runtime.loops.replay_report import ReplayReport
from tests.bank import BY_NAME
from tests.dynamic.model import edges_in, set_shares, update
from tests.dynamic.pairs import (
    check_arrays,
    check_batches,
    check_long_rows,
    check_triangles,
    printed_by,
    require_same,
    require_values,
    stores_of,
)
from tests.dynamic.reached import reached
from tests.dynamic.test_dead import check_dead, counted, path
from tests.dynamic.test_programs import ran
from tests.dynamic.test_resumed import require_labels, spread_labels
from tests.simt.emulator import EmulationError
from tests.simt.foreign import Foreign
from tests.simt.gpu import Gpu, emulated_gpu, pauses
from tests.simt.test_watched_loops import have_loops
from tests.unit.test_hops import calls_within

pytestmark = pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
HUB = 66
SPEC = {"weight": (np.dtype(np.float64), None)}


#: Most entries of one block, how many blocks may meet, and their threads.
BY_BLOCKS = {"one": (4096, 1, 64), "some": (4096, 3, 32), "many": (0, 3, 64)}


@pytest.mark.parametrize("blocks", BY_BLOCKS)
@pytest.mark.parametrize("seed", range(3))
def test_batches(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, seed: int, blocks: str
) -> None:
    few, count, threads = BY_BLOCKS[blocks]
    have_blocks(monkeypatch, few, count, threads)
    replace_text(gpu, *RANKED, str(16 * seed))
    if blocks == "some":
        have_parts(gpu)
    if seed == 1:  # the GPU checks all updates
        monkeypatch.setattr(gpu_memory, "LEAST_MOVED", 0)
    rng = np.random.default_rng(seed)
    check_batches(rng, int(rng.integers(1, 12)), 3, [1, 5, 33, 70])


def test_page_locked_memory_is_used_again(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the batches of graphs that are made when others are gone."""
    made: list[int] = []
    pinned = arrays.pinned
    monkeypatch.setattr(arrays, "_unused", {})
    monkeypatch.setattr(arrays, "pinned", lambda n: made.append(n) or pinned(n))
    for turn in range(3):
        graph = fg.DynamicGraph.from_edges([0, 1], [1, 2], target="cuda")
        graph.insert_edges([2], [0])
        del graph
        gc.collect()
        if turn == 0:
            first = len(made)
    assert len(made) == first > 0


def have_blocks(patch: pytest.MonkeyPatch, few: int, count: int, threads: int) -> None:
    """Have so many blocks meet, and more entries than `few` be shared by them."""
    patch.setattr(gpu_pools, "FEW", few)
    patch.setattr(gpu_pools, "LEAST_SHARED", 0)
    patch.setattr(gpu_pools, "_MOST_BLOCKS", count)
    for name in ("THREADS", "COPY_THREADS"):
        patch.setattr(gpu_pools, name, threads)
    patch.setattr(arrays, "multiprocessors", lambda: count)


@pytest.fixture(params=[4096, 0])
def few(request: Any, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have one block take batches, or two."""
    have_blocks(monkeypatch, request.param, 2, 32)
    return request.param


#: The text of the most entries of a row that no sort orders, before their number.
RANKED = "MOST_RANKED = 32", "MOST_RANKED = "


def replace_text(gpu: Gpu, right: str, *wrong: str) -> None:
    """Have the emulator run another text of the kernels of batches."""
    load = gpu.emulator._execute

    def execute(source: str, *given: str) -> object:
        if given[0].startswith("featgraph.dynamic."):
            source = source.replace(right, "".join(wrong))
        return load(source, *given)

    gpu.emulator._execute = execute  # type: ignore[method-assign,assignment]


def have_parts(gpu: Gpu) -> None:
    """Have several warps copy rows of nine edges."""
    replace_text(gpu, "LONG = 2048", "LONG = 9")
    replace_text(gpu, "passes.LONG", "9")
    replace_text(gpu, "share_of_grid(total, 32 * HELD)", "share_of_grid(total, 8)")


@pytest.mark.parametrize("seed", range(3))
def test_long_rows(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    have_blocks(monkeypatch, 4096 * (seed > 0), 2, 64)
    have_parts(gpu)
    check_long_rows(np.random.default_rng(seed), 150, 30, 60)


@pytest.mark.parametrize("blocks", BY_BLOCKS)
def test_lanes_in_drawn_orders(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, blocks: str
) -> None:
    """One row gets everything; no answer depends on which lane comes first."""
    have_blocks(monkeypatch, *BY_BLOCKS[blocks])
    both, rng = stores_of(40, duplicates="last", columns=SPEC), np.random.default_rng(4)
    with pauses(5):
        for _ in range(3):
            ends = np.stack([rng.integers(0, 5, 40), np.full(40, 7)])
            weights = {"weight": rng.random(40)}
            for store in both:
                update(store, *ends, np.arange(40) % 3 > 0, weights)
    require_same(both)


#: Faults of batches that take many blocks.
MANY_BLOCKS = "sums", "digits", "meeting"
#: Faults that only rows of many edges have, and those of rows that warps share.
SHARED_ROWS = "kept", "first", "appended"
LONG_ROWS = "warp", *SHARED_ROWS
#: Exit code of a process in which a fault was found.
FOUND = 77
#: Text, its replacement, and the number of batches that find the fault.
FAULTS: dict[str, tuple[str, str, int]] = {
    "free_runs": ("to = d.table[passes.STOPS, size_class] + j", "to = 0", 5),
    "gap": ("now += less - gone_before(mark, d)", "now -= 0", 8),
    "warp": ("cuda.syncwarp()\n            for k", "for k", 4),
    "kept": ("if is_left and stays and now - there < low:", "if False:", 2),
    "first": ("high = min(high, d.wide[passes.COPY_AT, first + 1])", "high = low", 0),
    "appended": (
        "if turn > first:\n            meet_grid(d)",
        "if False:\n            pass",
        4,
    ),
    "dead": ("d.fates[top] = d.fates[top] | codes.DEAD", "pass", 6),
    "match": ("leaves = d.work[NEED, p] == EVERY", "leaves = False", 0),
    "sums": ("d.totals[cuda.blockIdx.x] = total", "d.totals[cuda.blockIdx.x] = 0", 16),
    "rank": ("target = counts[own + digit] + rank", "target = counts[own + digit]", 6),
    "order": ("if other_key < key or", "if other_key > key or", 5),
    "digits": ("= before + here", "= before + here + count", 6),
    "turn": ("if digits_of(bits_of(d.limit))[0] & 1 != 0:", "if False:", 6),
    "meeting": ("if d.blocks > 1:\n        meet_grid(d)", "if False:\n        pass", 6),
    "laid": ("d.table[FREE, region] + laid - base", "d.table[FREE, 0] + laid", 5),
}


def find_fault(fault: str) -> None:
    """Raise what batches by a faulty kernel raise."""
    right, wrong, seed = FAULTS[fault]
    with emulated_gpu() as gpu, pytest.MonkeyPatch.context() as patch:
        if fault in MANY_BLOCKS:
            have_blocks(patch, 0, 3, 32)
        else:
            have_blocks(patch, 4096, 2, 64)
        if fault in SHARED_ROWS:
            have_parts(gpu)
        replace_text(gpu, right, wrong)
        rng = np.random.default_rng(seed)
        if fault == "turn":  # the second sort
            replace_text(gpu, *RANKED, "2")
        try:
            if fault in LONG_ROWS:
                for turn in range(6):  # until another warp comes in between
                    with pauses(seed + turn, 0.01, 99):
                        check_long_rows(rng, 150, 30, 60)
            else:
                check_batches(rng, int(rng.integers(1, 12)), 4, [1, 2, 5, 33])
        except (AssertionError, fg.StateError, EmulationError) as error:
            raise SystemExit(FOUND) from error


def find_faults() -> None:
    """Print the exit codes of processes that each run one fault.

    A faulty kernel stays in caches. Children of one process import nothing again.
    """
    codes = {}
    for fault in FAULTS:
        child = os.fork()
        if not child:
            code = 1
            try:
                find_fault(fault)
            except SystemExit:
                code = FOUND
            finally:
                os._exit(code)
        codes[fault] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps(codes))


def test_planted_faults_are_found() -> None:
    codes = printed_by("tests.dynamic.test_on_gpu.find_faults")
    assert codes == dict.fromkeys(FAULTS, FOUND)


@pytest.fixture
def short_hubs(gpu: Gpu) -> Iterator[Callable[[str], None]]:
    """Have short rows be hubs, on the GPU and in pools of a target."""
    with pytest.MonkeyPatch.context() as patch:
        set_hub_degree(patch, HUB)
        for name in ("HUB_DEGREE", "HUB"):
            patch.setattr(views, name, HUB)

        def choose(target: str) -> None:
            least = HUB if target == "cuda" else 2048
            for module in (kernels_cpu, pools, gpu_pools):
                patch.setattr(module, "HUB", least)

        yield choose


def set_hub_degree(patch: pytest.MonkeyPatch, degree: int) -> None:
    """Have rows of so many edges be hubs of kernels."""
    for module in (protocol, cuda_device, cuda_sets, traits):
        patch.setattr(module, "HUB_DEGREE", degree)


@pytest.mark.drawn(56)
@pytest.mark.parametrize("name", BY_NAME)
def test_programs(short_hubs: Callable[[str], None], name: str) -> None:
    check_program(short_hubs, name)


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("name", "schedule", "options"),
    [
        ("label_propagation", "warp_segmentation", {}),
        ("label_propagation", "virtual_warp", {"lanes_per_vertex": 8}),
        ("bfs", "balanced_push", {"direction": "push"}),
        ("edge_atomics", "balanced_push", {"direction": "push"}),
    ],
)
def test_schedules(
    short_hubs: Callable[[str], None], name: str, schedule: str, options: Any
) -> None:
    check_program(short_hubs, name, schedule=schedule, **options)


def check_program(short_hubs: Callable[[str], None], name: str, **options: Any) -> None:
    """Run it behind batches, among dead vertices, and from some; so does the CPU."""
    program, found = BY_NAME[name], []
    for target in ("cpu", "cuda"):
        short_hubs(target)
        graph = reached(
            np.random.default_rng(7), 61, directed=not program.undirected, size=150,
            batches=2, target=target,
        )  # fmt: skip
        own = options if target == "cuda" else {}
        run = partial(ran, graph, program, program.widths[0], **own)
        runs = [run()]
        graph.delete_vertices(np.arange(4, 61, 3))
        graph.insert_vertices(2)
        ends = np.resize(np.flatnonzero(graph.living)[:-2], 60), np.full(60, 3)
        graph.insert_edges(*ends, weights=np.ones(60, np.float32))
        runs.append(run())
        with pytest.MonkeyPatch.context() as patch:
            have_loops(patch)
            found.append([*runs, run(active=np.flatnonzero(graph.living)[::3])])
    for (ours, counts), (theirs, wanted) in zip(*found, strict=True):
        require_values(theirs, ours, program.exact)
        assert wanted == counts


def test_results_follow(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    labelling = importlib.import_module("featgraph.algorithms.label_propagation")
    monkeypatch.setattr(labelling, "FEW_SUPERSTEPS", 0)
    rng = np.random.default_rng(1)
    graph = fg.DynamicGraph.from_edges(
        *rng.integers(0, 30, (2, 60)), vertex_count=30, directed=False,
        duplicates="last", loops="drop", target="cuda",
    )  # fmt: skip
    parts, triangles = connected_components(graph), triangle_count(graph)
    labels = spread_labels(graph)
    for _ in range(2):
        graph.update(*rng.integers(0, 30, (2, 8)), rng.random(8) < 0.5)
        graph.delete_edges(np.full(30, 13), np.arange(30))
        assert labels.update().began_anew == ""
        require_labels(graph, labels, spread_labels(graph))
        assert labels.labels[13] == -1
        assert "edges went" in parts.update().began_anew
        assert triangles.update().began_anew == ""
        frozen = graph.freeze()
        np.testing.assert_array_equal(parts.labels, connected_components(frozen).labels)
        np.testing.assert_array_equal(
            triangles.triangles, triangle_count(frozen).triangles
        )
    graph.delete_vertices([7])  # it is labelled, also when its id is given out again
    graph.insert_vertices(1)
    graph.insert_edges([7], [13])
    assert labels.update().began_anew == ""
    require_labels(graph, labels, spread_labels(graph))
    assert labels.labels[13] >= 0
    monkeypatch.setattr(triangles_cuda, "FEW_READ", -1)
    monkeypatch.setattr(triangles_cuda, "READ_SHARE", 0)
    assert "too many paths" in triangles.update().began_anew
    assert triangles.total == triangle_count(graph.freeze()).total
    graph.delete_vertices([3])
    assert not graph.contains(np.full(30, 3), np.arange(30)).any()
    assert graph.neighbors(4).size == graph.in_degree[4]
    graph.audit()


def test_triangles_of_long_rows(gpu: Gpu) -> None:
    check_triangles(np.random.default_rng(5), 14, 12, chunk=3, part=4)


def test_arrays_of_the_gpu(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that lie on the GPU do not pass the host."""
    check_arrays(monkeypatch, arrays.upload, 20, 90, gpu.downloads)


@pytest.mark.parametrize("wrong", [-3, 1 << 40])
def test_first_ids_that_are_wrong_raise_as_on_the_host(gpu: Gpu, wrong: int) -> None:
    ends, found = np.array([[0, 1, wrong], [1, 2, 0]]), []
    for place in (np.array, Foreign):
        with pytest.raises(fg.GraphInputError) as caught:
            fg.DynamicGraph.from_edges(*map(place, ends), target="cuda")
        found.append(str(caught.value))
    assert found[0] == found[1]
    assert str(wrong) in found[0]


@pytest.mark.parametrize("directed", [True, False])
def test_callers_may_overwrite_arrays_of_a_batch(few: int, directed: bool) -> None:
    graph = fg.DynamicGraph.from_edges(
        np.arange(60) % 20, np.arange(60) % 17, vertex_count=24, directed=directed,
        duplicates="last", target="cuda",
    )  # fmt: skip
    graph.neighbors(0)  # rows along "out" take the batch, too
    given = [arrays.upload(np.array(ends, np.int32)) for ends in ([20, 3], [5, 22])]
    assert graph.insert_edges(*given).inserted == 2
    for array in given:
        arrays.write(array, np.full(2, 23, np.int32))
    inserted = graph.changes(0).inserted
    assert [ends.tolist() for ends in inserted] == [[20, 3], [5, 22]]
    assert graph.contains([20, 3, 23], [5, 22, 23]).tolist() == [True, True, False]
    graph.audit()


@pytest.mark.parametrize("loops", ["keep", "drop", "error"])
def test_plans_find_what_the_host_must_refuse(gpu: Gpu, few: int, loops: str) -> None:
    """Batches of the GPU do not pass the host, unless some update is refused there."""
    spec = {"weight": (np.dtype(np.float32), None)}
    stores = stores_of(20, duplicates="last", loops=loops, columns=spec)
    graphs = [fg.DynamicGraph(store) for store in stores]
    for graph in graphs:
        graph.insert_edges([4, 0], [1, 9], weights=[1, 1])
        graph.delete_vertices([4, 9])
        graph.insert_vertices(1)  # vertex 4 comes back

    def insert(u: list[int], v: list[int], weights: list[float]) -> list[str]:
        found = []
        for graph, place in zip(graphs, (np.asarray, arrays.upload), strict=True):
            ends = [place(np.array(e, np.int32)) for e in (u, v)]
            gpu.downloads.clear()
            try:
                given = place(np.array(weights, np.float32))
                found.append(repr(graph.insert_edges(*ends, weights=given)))
            except fg.GraphInputError as error:
                found.append(str(error))
        return found

    for _ in range(2):  # the second one gives edges other weights
        found = insert([3, 4, 5], [6, 4 if loops == "keep" else 5, 2], [1, 2, 3])
        assert "inserted" in found[0]
        assert found[0] == found[1]
        assert 12 not in gpu.downloads, "the ends or the weights"
    for ends, weight, text in [
        (([3, 7], [9, 1]), 1.0, "dead"), (([9, 7], [3, 1]), 1.0, "dead"),
        (([3, 7], [20, 1]), 1.0, "vertex"), (([3, 7], [5, 1]), np.nan, "number"),
        (([3, 7], [3, 1]), 1.0, {"error": "a loop"}.get(loops, "inserted")),
    ]:  # fmt: skip
        found = insert(*ends, [1.0, weight])
        assert text in found[0]
        assert found[0] == found[1]
    for graph in graphs:
        graph.audit()
    assert graphs[0].digest == graphs[1].digest
    assert graphs[0].edges()[2]["weight"].tolist() == graphs[1].weights.tolist()


def test_small_batches_of_the_gpu_outgrow_a_pool(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a batch is planned twice, then for all rows."""
    set_shares(monkeypatch)
    both, rng = stores_of(9, duplicates="last"), np.random.default_rng(3)
    for number in range(12):
        ends = rng.integers(0, 9, (2, 12)).astype(np.int32)
        for store, place in zip(both, (np.asarray, arrays.upload), strict=True):
            kind = number % 4 < 3
            batch = store.checked(*map(place, ends), kind, {}, 9)
            assert store.target == "cpu" or not isinstance(batch.sources, np.ndarray)
            store.apply(batch)
    assert both[1].moves > 0
    require_same(both)


def test_a_small_batch_takes_few_calls(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of Python take most of its time; their number follows from no size."""
    set_shares(monkeypatch)
    have_blocks(monkeypatch, 4096, 2, 64)
    rng, launch = np.random.default_rng(5), gpu.launch

    def launched(*given: Any) -> None:
        note = sys.getprofile()
        sys.setprofile(None)
        launch(*given)
        sys.setprofile(note)

    monkeypatch.setattr(gpu, "launch", launched)
    graph = fg.DynamicGraph.from_edges(
        *rng.integers(0, 200, (2, 900)), vertex_count=200, duplicates="last",
        capacity=9000, target="cuda",
    )  # fmt: skip
    found: dict[str, list[int]] = {"insert": [], "delete": []}
    for size in (1, 200):
        for turn in range(2):  # the first one allocates
            ends = rng.integers(0, 200, (2, size)).astype(np.int32)
            ends[:, 0] = 7, 100 + len(found["insert"]) + turn
            given = list(map(arrays.upload, ends))
            gpu.by_driver.clear()
            counts = [
                len(calls_within(partial(update, *given)))
                for update in (graph.insert_edges, graph.delete_edges)
            ]
        assert gpu.by_driver == 2 * ["plan_batch", "apply_batch"]
        for calls, count in zip(found.values(), counts, strict=True):
            calls.append(count)
    assert max(found["insert"]) <= 90, found
    assert max(found["delete"]) <= 102, found


def test_rows_are_packed_without_another_pool(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that grow find the slots of rows that shrank; too many are refused."""
    have_blocks(monkeypatch, 4096, 1, 32)
    set_shares(monkeypatch)
    rng, count = np.random.default_rng(8), 20
    spec = {"weight": (np.dtype("f4"), None), "time": (np.dtype("i4"), 3)}
    both = stores_of(count, columns=spec)

    def apply(ends: Any, kind: bool) -> None:
        size = len(ends[0])
        values = {"weight": rng.random(size), "time": rng.integers(0, 9, (size, 3))}
        for store in both:
            update(store, *ends, kind, values if kind else {})

    ends = rng.integers(0, count, (2, 200))
    apply(ends, True)
    for store in both:
        store.pool("out")
        store.give_ids()
    both[1].pack()  # edges keep their ids
    audit(both[1])
    found = [store.pools["in"].on_host() for store in both]
    ids = [pool.ids[living_slots(pool, count)] for pool in found]
    np.testing.assert_array_equal(*ids)
    apply(ends[:, :160], False)
    slots, make = both[1].pools["in"].slots, gpu_pools.GpuRowPool.__init__

    def fail(self: Any, *given: Any) -> None:
        raise fg.DeviceMemoryError("there is no memory")

    monkeypatch.setattr(gpu_pools.GpuRowPool, "__init__", fail)
    moves = both[1].moves
    while both[1].moves == moves:
        apply(rng.integers(0, count, (2, 5)), True)
    assert both[1].pools["in"].slots == slots
    both[1].compact()
    np.testing.assert_equal(edges_in(both[1]), edges_in(both[0]))
    audit(both[1])
    version, more = both[1].version, rng.integers(0, count, (2, 300))
    weights = {"weight": np.zeros(300), "time": np.zeros((300, 3), int)}
    with pytest.raises(fg.DeviceMemoryError, match="there is no memory"):
        update(both[1], *more, True, weights)
    assert both[1].version == version
    audit(both[1])
    monkeypatch.setattr(gpu_pools.GpuRowPool, "__init__", make)
    for store in both:
        update(store, *more, True, weights)
    np.testing.assert_equal(edges_in(both[1]), edges_in(both[0]))


def test_allocations_of_a_batch_may_fail(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is as before then, and takes the same batch afterwards."""
    have_blocks(monkeypatch, 0, 2, 32)
    store = EdgeStore(20, duplicates="last", columns=SPEC, target="cuda")
    ends = np.random.default_rng(4).integers(0, 20, (3, 2, 30))
    values, make = {"weight": np.arange(30.0)}, arrays.empty
    update(store, *ends[0], True, values)
    batch, after = store.checked(*ends[1], ends[2, 0] < 12, values, 20), store.copy()
    after.apply(batch)
    for turn in range(0, 100, 6):
        tried, left = store.copy(), iter(range(turn))

        def fail(*given: Any, left: Iterator[int] = left) -> Any:
            if next(left, None) is None:
                raise fg.DeviceMemoryError("there is no memory")
            return make(*given)

        monkeypatch.setattr(arrays, "empty", fail)
        try:
            tried.apply(batch)
        except fg.DeviceMemoryError:
            require_same([store, tried])
        else:
            break
        finally:
            monkeypatch.setattr(arrays, "empty", make)
        tried.apply(batch)
        require_same([after, tried])
    assert turn > 12


@pytest.mark.parametrize("along", ["in", "out", "undirected"])
def test_edges_of_deleted_vertices_stay_on_the_gpu(
    gpu: Gpu, few: int, along: str
) -> None:
    """Rows along "in" alone are swept; more edges than there is room for come again."""
    rng, count = np.random.default_rng(6), 60
    ends = rng.integers(0, count, (2, 240))
    ends[1, :200] = 7
    both = stores_of(count, directed=along != "undirected")
    for store in both:
        update(store, *ends)
        if along == "out":
            store.pool("out")
    gpu.downloads.clear()
    found = [store.apply(Batch(deaths=np.array([3, 7, 9], np.int32))) for store in both]
    assert repr(found[0]) == repr(found[1])
    assert found[0].deleted > 200
    rounds = 1 + (few == 0)
    counts = [size for size in gpu.downloads if size == 8]
    assert len(counts) == rounds
    assert len(gpu.downloads) <= rounds + len(both[1].pools) + 1
    require_same(both)
    gpu.by_driver.clear()
    for store in both:
        store.apply(Batch(births=5))
    assert gpu.by_driver == ["mark_rows"], "there is no edge; three ids are given again"
    require_same(both)


@fg.edge
def double(f, u, v, e, d):  # type: ignore[no-untyped-def]
    d.kept[e, f] = 2 * d.kept[e, f]
    return False


def test_values_of_edges_are_read_in_the_order_of_insertion(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = fg.DynamicGraph.from_edges(
        [0, 4, 2, 2], [1, 2, 2, 0], directed=False, vertex_count=5, target="cuda"
    )
    graph.delete_edges([4], [2])
    graph.insert_edges([3, 1], [4, 1])
    given = np.arange(20).reshape(10, 2)  # rows 5 to 9 belong to the twins
    given[[6, 9]] = given[[1, 4]]  # a self-loop is one edge
    state = fg.State(graph, kept=fg.edge_property(given))
    fg.foldmap(double)(state)
    np.testing.assert_array_equal(state["kept"], 2 * given)
    order = property(lambda view: pytest.fail("an index of all edges was made"))
    monkeypatch.setattr(fg.View, "order", order)
    found = graph.collect_edge_values(state.view("kept"), per_direction=True)
    np.testing.assert_array_equal(found, 2 * given)


@fg.vertex
def keep(f, v, d):  # type: ignore[no-untyped-def]
    d.x[v, f] = d.x[v, f]
    return False


def test_a_memory_limit_is_refused(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = [
        fg.DynamicGraph.from_edges([0, 1], [1, 2], target=target)
        for target in ("cpu", "cuda")
    ]
    states = [fg.State(graph, x=fg.vertex_property([[0.0]] * 3)) for graph in graphs]
    monkeypatch.setattr(fg.config, "memory_limit", "1 GB")
    fg.vertexmap(keep)(states[0])  # the limit is one of GPUs
    with pytest.raises(fg.GraphInputError, match="freeze"):
        fg.vertexmap(keep)(states[1])


@pytest.mark.parametrize("k", [1, 3])
def test_single_entries_are_written(gpu: Gpu, k: int) -> None:
    """Rows of three features are padded; of repeated ids, the last value counts."""
    graph = fg.DynamicGraph.from_edges([0, 1], [1, 4], vertex_count=5, target="cuda")
    meant = np.arange(5 * k, dtype=np.float32).reshape(5, k)
    state = fg.State(graph, x=fg.vertex_property(meant))
    fg.vertexmap(keep)(state)
    ids, values = np.array([3, 0, 3]), -1 - meant[:3]
    state.put("x", ids, values)
    meant[ids] = values
    np.testing.assert_array_equal(state["x"], meant)


# -- dead vertices


@pytest.fixture
def dying(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    have_loops(monkeypatch)
    set_hub_degree(monkeypatch, 30)
    return gpu


def check_loops(gpu: Gpu) -> None:
    """All living vertices commit in each superstep: that is everything."""
    graph = path()
    for target in ("cuda", "cpu"):
        state = fg.State(graph, x=fg.vertex_property(np.zeros(70)))
        ran = fg.iterate(counted, state, target=target, max_supersteps=12)
        assert ran.active_counts == [6] * 12
        assert state["number"].tolist() == [6]
        np.testing.assert_array_equal(state["x"], np.where(graph.living, 670, 0))
        assert state["total"].tolist() == [6 * 670]
        # No vertex was excluded: all vertices are pending.
        assert all(left.words is None for left in state.left[1].values())
    assert sum(loop.ran for loop in gpu.loops) > 0


@pytest.mark.parametrize("is_faulty", [False, True])
def test_loops_of_the_living(
    dying: Gpu, monkeypatch: pytest.MonkeyPatch, is_faulty: bool
) -> None:
    """And ids that are counted as living are caught."""
    begin = ReplayReport.__init__

    def count_ids(self: ReplayReport, *given: Any) -> None:
        begin(self, *given)
        self._everything = 70

    if is_faulty:
        monkeypatch.setattr(ReplayReport, "__init__", count_ids)
    with pytest.raises(AssertionError) if is_faulty else nullcontext():
        check_loops(dying)


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    "name",
    ["pagerank", "connected_components link", "bfs", "clustering", "hits", "k_core"],
)
def test_algorithms_of_the_living(dying: Gpu, name: str) -> None:
    check_dead(name, "cuda")
