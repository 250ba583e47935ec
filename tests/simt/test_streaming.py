"""Edges that do not fit an emulated GPU: streamed, with the bits of those that do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from algorithms import bfs, connected_components, pagerank, sssp
from featgraph.base.config import config
from featgraph.base.errors import DeviceMemoryError
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.memory.buffers import buffers_of
from featgraph.runtime.memory.graph_arrays import graph_arrays
from featgraph.runtime.streaming import needs
from featgraph.runtime.streaming import slices as turns
from featgraph.runtime.streaming.placement import Placement
from featgraph.runtime.streaming.ring import Ring, pinned_of
from featgraph.runtime.streaming.slices import cut_rows
from tests.bank import BANK, BY_NAME
from tests.simt.emulator import MemoryFault, RaceError
from tests.simt.gpu import Gpu, emulated_gpu
from tests.strategies import graphs

#: Of the generated cases of a test, which all run kernels in the emulator.
FEW = settings(max_examples=max(settings.default.max_examples // 12, 1))
PROGRAMS = ("weighted_sum", "bfs", "active_sources", "by_best", "loose", "offers")


@contextmanager
def limited(
    limit: int | None, size: int = 1024, buffers: int = 2, *, in_place: bool = True
) -> Iterator[Gpu]:
    """An emulated GPU under a memory limit, and buffers of some bytes there.

    Without `in_place`, rows are read where they are only if there is no buffer.
    """
    with emulated_gpu() as gpu, pytest.MonkeyPatch.context() as patch:
        patch.setattr(needs, "LEAST_BUFFER", 256)
        patch.setattr(needs, "MOST_BUFFER", size)
        patch.setattr(needs, "MOST_BUFFERS", buffers)
        patch.setattr(needs, "ALIGNED", 16)
        if not in_place:
            patch.setattr(turns, "SECTOR", 1 << 20)
        patch.setattr(config, "memory_limit", limit)
        yield gpu


def place_of(graph: fg.Graph) -> Placement:
    found = graph_arrays(graph, choose_device("cuda")).placement
    assert found is not None
    return found


def stream(graph: fg.Graph) -> Placement:
    """Have a graph's edges streamed, as if a State had been too large for them."""
    place = place_of(graph)
    place.is_streamed = True
    return place


def bits(state: fg.State) -> dict[str, bytes]:
    return {name: np.asarray(state[name]).tobytes() for name in state}


def hubs_and_loops(vertices: int = 97, edges: int = 260, **options: Any) -> fg.Graph:
    """Return a graph with a good part of its edges into few vertices, and loops."""
    rng = np.random.default_rng(3)
    u, v = rng.integers(0, vertices, (2, edges))
    v[: edges // 6] = rng.integers(0, 3, edges // 6)
    u[-3:] = v[-3:]
    return fg.Graph.from_edges(u, v, vertex_count=vertices, **options)


def both_ways(
    program: Any, make: Callable[[], fg.Graph], size: int, buffers: int, **options: Any
) -> list[int]:
    """Run a program in memory and streamed, compare; return what was copied."""
    found = []
    k = 3 if 3 in program.widths else program.widths[0]
    for limit in (None, 1 << 20):
        graph = make()
        made = program.make_state(graph, k, np.random.default_rng(1))
        state = fg.State(graph, **made)
        with limited(limit, size, buffers) as gpu:
            if limit is not None:
                stream(graph)
            for foldmap in program.foldmaps:
                for _ in range(2):
                    foldmap(state, target="cuda", **options)
            found.append(bits(state))
    for name, whole in found[0].items():
        assert found[1][name] == whole, name
    return gpu.streamed


@pytest.mark.drawn(26)
@pytest.mark.parametrize("program", BANK, ids=lambda p: p.name)
def test_programs_have_the_bits_of_graphs_that_fit(program: Any) -> None:
    both_ways(program, lambda: hubs_and_loops(directed=not program.undirected), 1024, 2)


@FEW
@given(
    graphs(max_edges=90),
    st.sampled_from(PROGRAMS),
    st.sampled_from([256, 512, 1024]),
    st.integers(2, 4),
    st.sampled_from([{}, {"direction": "push"}, {"folding": False}]),
)
def test_any_graph_has_the_bits_of_one_that_fits(
    graph: fg.Graph, name: str, size: int, buffers: int, options: dict[str, Any]
) -> None:
    program = BY_NAME[name]
    ends = graph.sources, graph.targets

    def make() -> fg.Graph:
        count, directed = graph.vertex_count, not program.undirected
        return fg.Graph.from_edges(*ends, vertex_count=count, directed=directed)

    both_ways(program, make, size, buffers, **options)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("seed", [0, 1])
def test_rows_that_share_a_warp_have_the_bits_of_those_in_memory(seed: int) -> None:
    """Long rows among short ones: windows have few vertices; then few are due."""
    rng = np.random.default_rng(seed)
    degree = (rng.pareto(1.0, 256) * 8).astype(int).clip(0, 480)
    targets = np.repeat(np.arange(256), degree)
    sources = rng.integers(0, 256, targets.size)
    found = []
    for limit in (None, 1 << 20):
        graph = fg.Graph.from_edges(sources, targets, vertex_count=256)
        x = np.random.default_rng(2).random((256, 1), np.float32)
        state = fg.State(graph, x=fg.vertex_property(x, iterated=True))
        with limited(limit, 4096, 3) as gpu:
            if limit is not None:
                stream(graph)
            for active in (None, np.arange(0, 256, 90)):
                options = {"target": "cuda", "schedule": "warp_segmentation"}
                step(state, active_in=active, **options)
        found.append(bits(state))
    assert found[0] == found[1]
    assert gpu.streamed


def weighted() -> fg.Graph:
    rng = np.random.default_rng(5)
    u, v = rng.integers(0, 97, (2, 220))
    weights = rng.integers(1, 9, 220).astype(np.float32)
    return fg.Graph.from_edges(u, v, vertex_count=97, weights=weights)


RUNS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "bfs": (lambda g: bfs(g, 0, target="cuda"), ("levels", "parents")),
    "pagerank": (lambda g: pagerank(g, max_supersteps=3, target="cuda"), ("ranks",)),
    "components": (lambda g: connected_components(g, target="cuda"), ("labels",)),
    "sssp": (lambda g: sssp(g, 0, target="cuda"), ("distances",)),
}


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.filterwarnings("ignore:not converged")
def test_algorithms_run_on_what_is_streamed(name: str) -> None:
    """They need no change but the setting."""
    run, names = RUNS[name]
    found = []
    for limit in (None, 1 << 20):
        graph = weighted()
        with limited(limit, in_place=False) as gpu:
            if limit is not None:
                stream(graph)
            result = run(graph)
            found.append([np.asarray(getattr(result, each)) for each in names])
    assert gpu.streamed
    for kept, streamed in zip(*found, strict=True):
        assert kept.tobytes() == streamed.tobytes()


# -- what fits, and what does not


@fg.gather(into="total", combine="sum")
def values_of_neighbors(f, u, v, e, d):
    return d.x[u, f]


@fg.vertex
def add_up(f, v, d):
    d.x_next[v, f] = d.total[v, f] + 1
    return True


step = fg.foldmap(values_of_neighbors, add_up)


def state_of(graph: fg.Graph, k: int = 1) -> fg.State:
    x = np.arange(graph.vertex_count * k, dtype=np.float32).reshape(-1, k)
    return fg.State(graph, x=fg.vertex_property(x, iterated=True))


def test_what_fits_is_as_without_a_limit() -> None:
    launched = []
    for limit in (None, 1 << 20):
        state = state_of(hubs_and_loops())
        with limited(limit) as gpu:
            step(state, target="cuda")
            launched.append([*gpu.by_dialect, *gpu.by_driver])
            assert not gpu.streamed
            if limit is not None:
                arrays = graph_arrays(state.graph, choose_device("cuda"))
                assert not any(pinned_of(array) for array in arrays.values())
    assert launched[0] == launched[1]


def test_values_that_do_not_fit_are_refused_with_both_sizes() -> None:
    state = state_of(hubs_and_loops(), k=8)
    with limited(5000):
        with pytest.raises(DeviceMemoryError) as raised:
            step(state, target="cuda")
        message = str(raised.value)
    assert "fg.config.memory_limit" in message
    assert "got:      6.86 KB for them and 768 bytes for buffers" in message
    assert "at most 5 KB" in message
    np.testing.assert_array_equal(state["x"], state_of(state.graph, k=8)["x"])


def test_edges_make_room_for_a_state_that_comes_later() -> None:
    """And the one that was there before goes on."""
    graph = hubs_and_loops(edges=600)
    early, late = state_of(graph), state_of(graph, k=4)
    for state in (early, late, early):
        step(state, target="cpu")
    meant = bits(early), bits(late)
    early, late = state_of(graph), state_of(graph, k=4)
    with limited(7000):
        step(early, target="cuda")
        assert not place_of(graph).is_streamed
        step(late, target="cuda")
        assert place_of(graph).is_streamed
        step(early, target="cuda")
        assert (bits(early), bits(late)) == meant


def test_other_graphs_count() -> None:
    first, second = (state_of(hubs_and_loops(edges=600)) for _ in range(2))
    with limited(7000):
        step(first, target="cuda")
        assert not place_of(first.graph).is_streamed
        step(second, target="cuda")
        assert place_of(second.graph).is_streamed
        taken = place_of(first.graph).taken + place_of(second.graph).taken
        assert taken <= 7000


# -- buffers


def test_a_sweep_begins_with_what_is_there() -> None:
    """Two slices from the last sweep, and those that have a buffer of their own."""
    copied = {}
    for buffers in (2, 4):
        state = state_of(hubs_and_loops())
        with limited(1 << 20, 512, buffers) as gpu:
            stream(state.graph)
            counts = []
            for _ in range(3):
                step(state, target="cuda")
                counts.append(len(gpu.streamed))
            copied[buffers] = np.diff([0, *counts]).tolist()
    assert copied == {2: [3, 1, 1], 4: [3, 0, 0]}


@fg.edge
def halve(f, u, v, e, d):
    d.w[e] = d.w[e] * 0.5
    return True


@fg.gather(into="total", combine="sum")
def weights_at(f, u, v, e, d):
    return d.w[e] * d.x[u, f]


written = [fg.foldmap(weights_at, add_up), fg.edgemap(halve)]


def states_with_weights(graph: fg.Graph) -> fg.State:
    state = state_of(graph)
    w = np.arange(1, graph.given_edge_count + 1, dtype=np.float32)
    x = np.array(state["x"])
    return fg.State(
        graph, x=fg.vertex_property(x, iterated=True), w=fg.edge_property(w)
    )


def test_properties_that_were_written_are_copied_again() -> None:
    found = []
    for limit in (None, 1 << 20):
        state = states_with_weights(hubs_and_loops())
        with limited(limit, buffers=8):
            if limit is not None:
                stream(state.graph)
            for foldmap in written * 2:
                foldmap(state, target="cuda")
            w = buffers_of(state, choose_device("cuda")).current["w"]
            assert (pinned_of(w) is not None) == (limit is not None)
            found.append(bits(state))
            state["w"] = np.ones(state.graph.given_edge_count, np.float32)
            written[0](state, target="cuda")
            found[-1] |= {"behind": bits(state)}
    assert found[0] == found[1]


# -- faults that are planted


def swept(**options: Any) -> dict[str, bytes]:
    state = states_with_weights(hubs_and_loops())
    with limited(1 << 20, 1024, **options):
        stream(state.graph)
        for foldmap in [*written, written[0]]:
            foldmap(state, target="cuda")
        return bits(state)


@pytest.mark.parametrize(
    ("owner", "name", "fault", "message"),
    [
        (Ring, "await_filled", lambda ring, b: None, "a kernel reads what a copy"),
        (Ring, "note_swept", lambda ring, b: None, "a copy overwrites what a kernel"),
        (Ring, "begin", lambda ring, *, waits: None, "a copy overwrites what a fill"),
    ],
)
def test_a_missing_wait_is_found(
    owner: Any, name: str, fault: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(RaceError, match=message):
        swept()


def test_copies_wait_for_kernels_that_write_edges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = Ring.begin
    made: list[Ring] = []

    def once(ring: Ring, *, waits: bool) -> None:
        if ring not in made:  # when it is made
            made.append(ring)
            begin(ring, waits=waits)

    monkeypatch.setattr(Ring, "begin", once)
    with pytest.raises(RaceError, match="a copy reads what a kernel"):
        swept()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("fault", ["begin", "first"])
def test_wrong_bounds_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    meant = swept()

    def cut(*given: Any) -> Any:
        found = cut_rows(*given)
        last = found[-1]
        if fault == "begin":
            wrong = replace(last, begin=last.begin - 1)
        else:
            wrong = replace(last, first=last.first + 32)
        return [*found[:-1], wrong]

    monkeypatch.setattr(turns, "cut_rows", cut)
    with suppress(MemoryFault):
        assert swept() != meant


@settings(max_examples=max(settings.default.max_examples // 3, 1))
@given(
    st.lists(st.integers(0, 40), max_size=130),
    st.integers(1, 400),
    st.integers(1, 100),
)
def test_slices_have_all_rows_once(
    degrees: list[int], capacity: int, most_rows: int
) -> None:
    offsets = np.append(0, np.cumsum(np.array(degrees, np.int64))).astype(np.int64)
    slices = cut_rows(offsets, capacity, most_rows)
    assert [s.number for s in slices] == list(range(len(slices)))
    ends = [0, *(s.last for s in slices)]
    assert [s.first for s in slices] == ends[:-1]
    assert ends[-1] == len(degrees)
    for s in slices:
        assert s.first % 32 == 0
        assert (s.begin, s.end) == (offsets[s.first], offsets[s.last])
        assert s.fits == (s.edge_count <= capacity)
        assert s.fits or s.last - s.first <= 32
        assert s.last - s.first <= max(most_rows, 32)


# -- ranks


@fg.edge
def shrink(f, u, v, e, d):
    d.w_next[e] = 0.5 * d.w[e] + 0.25 * d.x[u, f]
    return True


shrinking = fg.foldmap(shrink, weights_at, add_up)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("foldmap", [step, shrinking], ids=["vertices", "edges"])
def test_each_rank_streams_its_part(foldmap: fg.FoldMap) -> None:
    graph = hubs_and_loops(edges=200)

    def state_on(given: Any) -> fg.State:
        x = np.arange(97, dtype=np.float32).reshape(-1, 1)
        w = np.arange(1, 201, dtype=np.float32)
        properties = {"x": fg.vertex_property(x, iterated=True)}
        if foldmap is shrinking:
            properties["w"] = fg.edge_property(w, iterated=True)
        return fg.State(given, **properties)

    def on_rank(engine: Any) -> dict[str, bytes]:
        part = fg.distribute(graph)
        stream(part.part)
        state = state_on(part)
        for _ in range(2):
            foldmap(state, target="cuda")
        return bits(state)

    meant = state_on(graph)
    with limited(None):
        for _ in range(2):
            foldmap(meant, target="cuda")
        whole = bits(meant)
    with limited(1 << 20, in_place=False) as gpu:
        found = fg.distributed.run_ranks(2, on_rank)
    assert found == [whole, whole]
    assert gpu.streamed
