"""The CUDA runtime on an emulated GPU: what it launches, and with which arguments."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.fold.schedules import mapping as mappings
from featgraph.fold.schedules.lanes import ALONE
from featgraph.program.active import ActiveSet
from featgraph.runtime.devices import cuda_device, cuda_sets, gpu_arrays
from featgraph.runtime.loops import foldmap_run as steps
from featgraph.runtime.memory.graph_arrays import graph_arrays
from featgraph.runtime.superstep import kinds
from featgraph.runtime.superstep.bound import BoundState
from tests.bank import BY_NAME
from tests.simt.gpu import Gpu, emulated_gpu

K = 3
#: Programs of the bank that read what others, and they themselves, may drop.
DROPPING = ("dropped", "dropped_twins")


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with emulated_gpu() as made:
        yield made


def tiny_graph(directed: bool = True, seed: int = 0) -> fg.Graph:
    rng = np.random.default_rng(seed)
    source, target = rng.integers(0, 9, (2, 20))
    return fg.Graph.from_edges(source, target, vertex_count=10, directed=directed)


def make_states(name: str, count: int = 2) -> list[fg.State]:
    """Return equal states of a program of the bank."""
    program = BY_NAME[name]
    graph = tiny_graph(not program.undirected)
    return [
        fg.State(graph, **program.make_state(graph, K, np.random.default_rng(1)))
        for _ in range(count)
    ]


def assert_same(emulated: fg.State, meant: fg.State) -> None:
    for name in meant:
        got, wanted = emulated[name], meant[name]
        if np.asarray(wanted).dtype.kind == "f":
            np.testing.assert_allclose(got, wanted, 1e-4, 1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(got, wanted, err_msg=name)


RUNS = [
    ("label_propagation", {}),
    ("label_propagation", {"direction": "push"}),
    ("label_propagation", {"feature_parallel": False, "folding": False}),
    ("label_propagation", {"change_driven": True}),
    ("extremes_int32", {"change_driven": True}),
    ("label_propagation", {"change_driven": False}),
    ("bfs", {}),
    ("pagerank", {}),
    ("belief_propagation", {}),
]


@pytest.mark.drawn(6)
@pytest.mark.parametrize(("name", "options"), RUNS)
def test_supersteps_agree_with_the_cpu(
    name: str, options: dict[str, Any], gpu: Gpu
) -> None:
    """Buffers swap, sets change, scalars change from superstep to superstep."""
    emulated, meant = make_states(name)
    foldmap = BY_NAME[name].foldmaps[0]
    runs = []
    for state, target in ((emulated, "cuda"), (meant, "cpu")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fg.ConvergenceWarning)
            runs.append(
                fg.iterate(foldmap, state, max_supersteps=3, target=target, **options)
            )
    assert_same(emulated, meant)
    assert runs[0].active_counts == runs[1].active_counts
    assert runs[0].supersteps > 1
    # Each kernel once, to be compiled; all later launches go to the driver.
    assert len(set(gpu.by_dialect)) <= len(gpu.by_dialect) <= len(gpu.by_driver) + 9
    assert set(gpu.by_driver) <= set(gpu.by_dialect)


DROPPED = [(name, n) for name in DROPPING for n in range(len(BY_NAME[name].foldmaps))]


@pytest.mark.parametrize(("name", "number"), DROPPED)
def test_entries_are_put_back_behind_kernels(name: str, number: int, gpu: Gpu) -> None:
    """Where others may read them until then."""
    emulated, meant = make_states(name)
    foldmap = BY_NAME[name].foldmaps[number]
    for active in (None, [1, 2, 5]):
        out = [
            foldmap(state, active_in=active, target=target)
            for state, target in ((emulated, "cuda"), (meant, "cpu"))
        ]
        assert_same(emulated, meant)
        np.testing.assert_array_equal(out[0].mask, out[1].mask)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("feature_parallel", [True, False])
@pytest.mark.parametrize(
    ("name", "keeps"),
    [("label_propagation", False), ("label_propagation", True), ("bfs", False)],
)
def test_few_warps_look_at_several_words(
    name: str,
    keeps: bool,
    feature_parallel: bool,
    gpu: Gpu,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Few warps for all words, in sweeps and in what finds and copies rows."""
    monkeypatch.setattr(mappings, "PACKING_BLOCKS", 1)
    monkeypatch.setattr(cuda_sets, "_SCAN_BLOCKS", 1)
    for one_in in ("_PACKED_ALONE", "_PACKED_SHARED"):
        monkeypatch.setattr(cuda_device, one_in, 0)
    monkeypatch.setattr(cuda_sets, "is_dense", lambda *_: False)
    rng = np.random.default_rng(2)
    count = 5000  # 157 words: a warp looks at 32, and then at others
    graph = fg.Graph.from_edges(*rng.integers(0, count, (2, 5000)), vertex_count=count)
    program, states = BY_NAME[name], []
    for target in ("cuda", "cpu"):
        made = program.make_state(graph, 4, np.random.default_rng(1))
        states.append(fg.State(graph, **made))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fg.ConvergenceWarning)
            fg.iterate(
                program.foldmaps[0], states[-1], max_supersteps=3, target=target,
                active=[3, 700, 2190, 4999], feature_parallel=feature_parallel,
                change_driven=keeps or "auto",
            )  # fmt: skip
    assert any(name.startswith("packed_") for name in gpu.by_dialect)
    assert_same(*states)


def test_sources_of_a_push_are_packed_next_to_hubs(gpu: Gpu) -> None:
    """It is known how many they are. A hub has a block of its own, and goes once."""

    @fg.gather(into="told", combine="sum", sources="active")
    def tell(f, u, v, e, d):  # type: ignore[no-untyped-def]
        return d.age[u]

    @fg.vertex
    def hear(f, v, d):  # type: ignore[no-untyped-def]
        if d.told[v] == 0:
            return False
        d.age_next[v] = d.age[v] + d.told[v]
        return True

    count = 2100
    ends = [0] * count + [1, 7, 7, 9], [*range(count), 0, 1, 9, 1]
    graph = fg.Graph.from_edges(*ends, vertex_count=count)
    begun, ages = np.arange(1, count + 1), []
    for target in ("cuda", "cpu"):
        state = fg.State(graph, age=fg.vertex_property(begun, iterated=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fg.ConvergenceWarning)
            fg.iterate(
                fg.foldmap(tell, hear), state, active=[0, 1, 7], max_supersteps=1,
                direction="push", target=target,
            )  # fmt: skip
        ages.append(state["age"])
    np.testing.assert_array_equal(*ages)
    launched = " ".join(gpu.by_dialect)
    assert "packed_push_phase" in launched
    assert "_hubs" in launched


@pytest.mark.parametrize("has_hub", [False, True])
def test_no_vertex_is_packed_where_there_are_hubs(
    has_hub: bool, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one_in in ("_PACKED_ALONE", "_PACKED_SHARED"):
        monkeypatch.setattr(cuda_device, one_in, 0)
    count = 2100
    sources = np.arange(count)
    targets = np.zeros(count, int) if has_hub else sources[::-1]
    graph = fg.Graph.from_edges(sources, targets, vertex_count=count)
    program = BY_NAME["label_propagation"]
    state = fg.State(graph, **program.make_state(graph, 4, np.random.default_rng(1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        fg.iterate(
            program.foldmaps[0], state, max_supersteps=2, target="cuda", active=[5]
        )
    assert any(name.startswith("packed_") for name in gpu.by_dialect) != has_hub


@pytest.mark.drawn(4)
@pytest.mark.parametrize("feature_parallel", [True, False])
@pytest.mark.parametrize("name", ["label_propagation", "least_squares"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_restricted_vertices_are_listed(
    name: str, feature_parallel: bool, share: float, gpu: Gpu
) -> None:
    """Few are listed; of none there is no list, and of nearly all it would not pay."""
    on = np.random.default_rng(7).random(10) < share
    emulated, meant = make_states(name)
    foldmap = BY_NAME[name].foldmaps[0].on(np.flatnonzero(on))
    for active in (None, [3], None):
        outs = []
        for state, target in ((emulated, "cuda"), (meant, "cpu")):
            options = {"target": target, "feature_parallel": feature_parallel}
            outs.append(foldmap(state, active_in=active, **options))
        np.testing.assert_array_equal(outs[0].words, outs[1].words)
        assert_same(emulated, meant)
    listed = any(name.startswith("listed_") for name in gpu.by_dialect)
    assert listed == (share == 0.3)


def test_no_list_is_made_that_no_kernel_takes(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists: list[int] = []
    monkeypatch.setattr(
        cuda_device.CudaDevice, "list_vertices", lambda self, *given: lists.append(1)
    )
    for name in ("belief_propagation", "label_propagation"):
        [state] = make_states(name, 1)
        foldmap = BY_NAME[name].foldmaps[0].on([1, 2])
        for _ in range(2):
            foldmap(state, target="cuda")
        assert len(lists) == (name == "label_propagation")


@pytest.mark.drawn(8)
@pytest.mark.parametrize("feature_parallel", [True, False])
@pytest.mark.parametrize(
    ("turns", "k"),
    [((True,), 3), ((False,), 3), ((True, False), 3), ((True, False), 20)],
    ids=str,
)
def test_pulled_edges_sweep_all_or_some(
    turns: tuple[bool, ...],
    k: int,
    feature_parallel: bool,
    gpu: Gpu,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Entries of edges from others than the active ones are right either way."""
    made: list[BoundState] = []

    def pulls_all(bound: BoundState, active_count: int | None) -> bool:
        made.append(bound)
        return turns[bound.state.superstep % len(turns)]

    for module in (kinds, steps):
        monkeypatch.setattr(module, "pulls_all", pulls_all)
    rng = np.random.default_rng(4)
    graph = fg.Graph.from_edges(
        *rng.integers(0, 40, (2, 60)), vertex_count=40, directed=False
    )
    program, states, counts = BY_NAME["belief_propagation"], [], []
    for target in ("cuda", "cpu"):
        counts.append([])
        values = program.make_state(graph, k, np.random.default_rng(1))
        states.append(fg.State(graph, **values))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fg.ConvergenceWarning)
            for first in (3, 30, 11, 12, 26, 5):  # others are active each time
                run = fg.iterate(
                    program.foldmaps[0], states[-1], max_supersteps=1, target=target,
                    active=[first, first + 1], feature_parallel=feature_parallel,
                )  # fmt: skip
                counts[-1] += run.active_counts
    forwards = bool(made[0].kernel.kernel_source.forwarded)
    assert forwards == (feature_parallel or k == 3)
    assert counts[0] == counts[1]
    assert_same(*states)


@fg.edge
def send(f, u, v, e, d):
    new = fg.normalize(d.x[u, f] + d.msg[e, f])
    d.msg_next[e, f] = new
    return True


@fg.gather(into="total", combine="sum")
def of_all(f, u, v, e, d):
    return d.msg_next[e, f]


@fg.gather(into="recent", combine="sum", sources="active")
def of_active(f, u, v, e, d):
    return 2 * d.msg_next[e, f]


@fg.vertex
def add_both(f, v, d):
    d.x_next[v, f] = d.total[v, f] + d.recent[v, f]
    return True


@pytest.mark.parametrize("feature_parallel", [True, False])
@pytest.mark.parametrize("gathers", [(of_all, of_active), (of_active, of_all)])
def test_gathers_in_loops_of_their_own_read_what_edges_were_sent(
    gathers: tuple[Any, Any], feature_parallel: bool, gpu: Gpu
) -> None:
    foldmap, rng = fg.foldmap(send, *gathers, add_both), np.random.default_rng(1)
    graph = fg.Graph.from_edges(*rng.integers(0, 12, (2, 40)), vertex_count=12)
    x, msg = rng.random((12, 4), np.float32), rng.random((40, 4), np.float32)
    states = []
    for target in ("cuda", "cpu"):
        state = fg.State(
            graph,
            x=fg.vertex_property(x, iterated=True),
            msg=fg.edge_property(msg, iterated=True),
        )
        with pytest.warns(fg.ConvergenceWarning):
            fg.iterate(
                foldmap, state, active=[1, 2, 3], max_supersteps=2, target=target,
                feature_parallel=feature_parallel,
            )  # fmt: skip
        states.append(state)
    assert_same(*states)


@fg.reduce(into="most", combine="max")
def largest(f, v, d):
    return d.weights[v, d.first[v]]


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):
    return d.x[u, f]


@fg.vertex
def astray(f, v, d):
    d.x_next[v, f] = d.table[v, d.place[v]]
    return fg.any_feature(d.low[v, f] < 0.0)


@pytest.mark.parametrize("active", [None, [0]], ids=["all", "few"])
@pytest.mark.parametrize("feature_parallel", [True, False])
def test_checked_mode_names_the_place_whatever_kernel_runs(
    feature_parallel: bool, active: Any, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fg.config, "checked", True)
    ends = np.arange(63)
    state = fg.State(
        fg.Graph.from_edges(ends, ends + 1),
        x=fg.vertex_property(np.ones((64, 4), np.float32), iterated=True),
        table=fg.vertex_property(np.zeros((64, 3), np.float32)),
        place=fg.vertex_property(np.full(64, 99, np.int32)),
        weights=fg.vertex_property(np.zeros((64, 2), np.float32)),
        first=fg.vertex_property(np.zeros(64, np.int32)),
    )
    with pytest.raises(fg.KernelFaultError, match=r"d\.table") as caught:
        fg.iterate(
            fg.foldmap(largest, lowest, astray), state, active=active, target="cuda",
            feature_parallel=feature_parallel,
        )  # fmt: skip
    assert caught.value.index == 99  # of a store that no verdict asks for


def test_changes_between_supersteps_arrive(gpu: Gpu) -> None:
    """A scalar, a property written from outside, another state, another graph."""
    foldmap = BY_NAME["label_propagation"].foldmaps[0]
    emulated, meant = make_states("label_propagation")

    def step() -> None:
        before = len(gpu.by_dialect)
        active = [foldmap(s, target=t) for s, t in ((emulated, "cuda"), (meant, "cpu"))]
        assert active[0] == active[1]
        assert_same(emulated, meant)
        # Values of edges are put in order by a kernel that is no superstep's.
        later.append(set(gpu.by_dialect[before:]) - {"place_rows"})

    later: list[set[str]] = []
    step()
    step()
    for state in (emulated, meant):
        state["alpha"] = 0.25
    step()
    for state in (emulated, meant):
        state["label"] = np.full((10, K), 1 / K, np.float32)
    gc.collect()  # the old buffers are gone
    step()
    for state in (emulated, meant):
        state["weight"] = np.linspace(1, 2, 20, dtype=np.float32)
        state["clamped"] = np.arange(10) == 3
    step()
    emulated, meant = make_states("label_propagation")
    gc.collect()
    step()
    assert not any(later[2:])


def test_two_states_take_turns(gpu: Gpu) -> None:
    """One kernel, two states: its arguments change at every launch."""
    foldmap = BY_NAME["label_propagation"].foldmaps[0]
    first, first_meant = make_states("label_propagation")
    graph = tiny_graph(seed=5)
    make = BY_NAME["label_propagation"].make_state
    second, second_meant = (
        fg.State(graph, **make(graph, K, np.random.default_rng(8))) for _ in range(2)
    )
    for _ in range(3):
        for emulated, meant in ((first, first_meant), (second, second_meant)):
            foldmap(emulated, target="cuda")
            foldmap(meant, target="cpu")
            assert_same(emulated, meant)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("uint8", 0), ("uint8", 7), ("bool", True), ("int16", 3), ("int16", -1),
        ("uint32", 0xFFFFFFFF), ("float32", np.inf), ("int64", -1), ("int64", 1 << 40),
        ("float64", -np.inf), ("float64", 0.0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(0,), (1,), (3,), (8, 2)])
def test_fill(gpu: Gpu, dtype: str, value: Any, shape: tuple[int, ...]) -> None:
    from featgraph.runtime.devices.cuda_device import cuda_device

    device = cuda_device()
    array = device.empty(shape, dtype)
    device.fill(array, value)
    np.testing.assert_array_equal(device.download(array), np.full(shape, value, dtype))


def test_sets(gpu: Gpu) -> None:
    from featgraph.runtime.devices.cuda_device import cuda_device

    device, rng = cuda_device(), np.random.default_rng(3)
    for _ in range(2):  # by the dialect, and by the driver
        a, b = rng.integers(0, 2**32, (2, 70), np.uint32)
        on_device = device.upload(a), device.upload(b)
        for name, wanted in (
            ("union", a | b),
            ("intersection", a & b),
            ("without", a & ~b),
        ):
            got = getattr(device.sets, name)(*on_device)
            np.testing.assert_array_equal(device.download(got), wanted)
        left = device.upload(c := rng.integers(0, 2**32, 70, np.uint32))
        got = device.sets.leave_out(*on_device, left)
        np.testing.assert_array_equal(device.download(got), a & b)
        np.testing.assert_array_equal(device.download(left), c | (a & ~b))
        assert device.sets.count(on_device[0]) == int(np.bitwise_count(a).sum())
        degrees = rng.integers(0, 9, 70 * 32)
        sources = np.repeat(np.arange(70 * 32), degrees)
        graph = fg.Graph.from_edges(sources, 0 * sources, vertex_count=70 * 32)
        bits = np.unpackbits(a.view(np.uint8), bitorder="little").astype(bool)
        arrays = graph_arrays(graph, device)
        counted = device.sets.edges_of(on_device[0], arrays, "out")
        assert counted == degrees[bits].sum()
        again = device.sets.upload(a)
        assert again is not on_device[0]
        np.testing.assert_array_equal(device.download(again), a)
    large = rng.random(40_000)  # more than fits the page-locked memory
    np.testing.assert_array_equal(device.download(device.upload(large)), large)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("along", ["in", "out", "both"])
@pytest.mark.parametrize("count", [None, 300], ids=["few", "many"])
@pytest.mark.parametrize("share", [0.02, 0.6])
def test_hubs_and_others_find_what_is_due(
    along: str,
    count: int | None,
    share: float,
    gpu: Gpu,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (cuda_device, cuda_sets):
        monkeypatch.setattr(module, "HUB_DEGREE", 30)
    monkeypatch.setattr(gpu_arrays, "HUB_PART", 25)
    rng = np.random.default_rng(5)
    sources, targets = rng.integers(0, 300, (2, 3000))
    sources[:60], targets[60:120] = 3, 11
    graph = fg.Graph.from_edges(sources, targets, vertex_count=300)
    assert graph.in_degree.max() > 40 < graph.out_degree.max()
    active = rng.random(300) < share
    active[3] = True
    degree = graph.out_degree[active]
    assert ((degree > ALONE) & (degree < 30)).any()  # a warp for all
    device = cuda_device.cuda_device()
    words = device.upload(ActiveSet(300, active).words)
    arrays = graph_arrays(graph, device)
    due = active.copy()
    if along != "out":
        due[targets[active[sources]]] = True
    if along != "in":
        due[sources[active[targets]]] = True
    for known in (None, 0, 1 << 20):  # edges, whatever they are
        found = device.sets.expand(words, arrays, count, along, known)
        np.testing.assert_array_equal(
            ActiveSet.from_words(300, device.download(found)).mask, due
        )


@pytest.mark.parametrize(("edges", "known", "looks"), [
    (5000, None, True), (500, None, False), (5000, 100, False), (500, 600, True),
])  # fmt: skip
def test_a_part_is_as_dense_as_the_whole(
    edges: int, known: int | None, looks: bool, gpu: Gpu
) -> None:
    """It has a share of the edges, and more vertices, which look for no source."""
    rng, device = np.random.default_rng(6), cuda_device.cuda_device()
    whole = fg.Graph.from_edges(*rng.integers(0, 100, (2, edges)), vertex_count=100)
    part = fg.Graph.from_edges(*rng.integers(0, 100, (2, 2000)), vertex_count=300)
    words = device.upload(ActiveSet(300, np.arange(20)).words)
    device.sets.expand(words, graph_arrays(part, device, whole), 20, "in", known)
    launched = {*gpu.by_dialect, *gpu.by_driver}
    assert launched & {"find", "reach"} == {"find" if looks else "reach"}


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_rows_are_refreshed(share: float, gpu: Gpu) -> None:
    rng = np.random.default_rng(7)
    device = cuda_device.cuda_device()
    marked, without = rng.random(70) < share, rng.random(70) < 0.5
    words, others = (device.upload(ActiveSet(70, m).words) for m in (marked, without))
    rows = np.arange(70 * 3.0).reshape(70, 3)
    for given, changes in (((words,), marked), ((words, others), marked & ~without)):
        next_, current = device.upload(-rows), device.upload(rows)
        device.sets.refresh_vertices(given[0], next_, current, *given[1:])
        wanted = np.where(changes[:, None], rows, -rows)
        np.testing.assert_array_equal(device.download(next_), wanted)


@pytest.mark.parametrize("width", [1, 3, 40])
@pytest.mark.parametrize("share", [0.1, 1.0])
@pytest.mark.parametrize("hub_degree", [50, 2048])
def test_edges_are_refreshed(
    hub_degree: int,
    share: float,
    width: int,
    gpu: Gpu,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (cuda_device, cuda_sets):
        monkeypatch.setattr(module, "HUB_DEGREE", hub_degree)
    monkeypatch.setattr(cuda_sets, "_SCAN_BLOCKS", 1)  # warps go round
    rng = np.random.default_rng(7)
    graph = fg.Graph.from_edges(*rng.integers(0, 70, (2, 3000)), vertex_count=70)
    device = cuda_device.cuda_device()
    arrays = graph_arrays(graph, device)
    assert (arrays["out_hubs"].size > 0) == (hub_degree == 50)
    marked = rng.random(70) < share
    entries = np.arange(3000.0 * width).reshape(3000, width)
    next_, current = device.upload(-entries), device.upload(entries)
    words = device.upload(ActiveSet(70, marked).words)
    device.sets.refresh_edges(words, next_, current, arrays)
    ins = graph.in_edges.column_indices  # edge properties stand in this order
    wanted = np.where(marked[ins][:, None], entries, -entries)
    np.testing.assert_array_equal(device.download(next_), wanted)
