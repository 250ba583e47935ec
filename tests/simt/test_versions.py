"""One graph object with other edges on a GPU: recordings and loops follow stamps."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.algorithms import triangle_count
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.cuda import foreign
from featgraph.fold.plan import traits
from featgraph.graph.views.view import Stamps, prefix
from featgraph.runtime.devices import cuda_device, cuda_sets, protocol
from featgraph.runtime.devices.cuda_device import CudaRows
from featgraph.runtime.memory import graph_arrays as kept
from featgraph.runtime.memory.graph_arrays import GraphArrays
from featgraph.runtime.superstep.bound import BoundState
from tests.bank import BY_NAME
from tests.simt.emulator import MemoryFault
from tests.simt.gpu import Gpu, emulated_gpu
from tests.simt.test_watched_loops import have_loops
from tests.versions import HOW, VERTICES, change, changeable, roomy, versions

CHANGES = pytest.mark.parametrize("how", HOW)
#: Rows from which on a block takes one.
HUB_DEGREE = 30


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    with emulated_gpu() as made:
        have_loops(monkeypatch)
        for module in (protocol, cuda_device, cuda_sets, traits):
            monkeypatch.setattr(module, "HUB_DEGREE", HUB_DEGREE)
        yield made


@fg.gather(into="mean", combine="sum")
def weigh(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.share[u] + d.weight[e]


@fg.gather(into="mean", combine="sum")
def add_up(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.share[u]


@fg.vertex
def settle(f, v, d):  # type: ignore[no-untyped-def]
    d.share_next[v] = d.mean[v] % 1000
    return True


@fg.gather(into="low", combine="min")
def lowest(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.label[u]


@fg.vertex
def adopt(f, v, d):  # type: ignore[no-untyped-def]
    d.label_next[v] = min(d.label[v], d.low[v])
    return d.low[v] < d.label[v]


weighed, plain = fg.foldmap(weigh, settle), fg.foldmap(add_up, settle)
labels = fg.foldmap(lowest, adopt)
WEIGHTS = np.arange(500, dtype=np.int32)


def shared(graph: fg.Graph, most: int, steps: fg.FoldMap = weighed) -> Any:
    """Run supersteps that are all alike: they are recorded, and then loops."""
    share = np.arange(graph.vertex_count, dtype=np.int32)
    values = {"share": fg.vertex_property(share, iterated=True)}
    if steps is weighed:
        values["weight"] = fg.edge_property(WEIGHTS[: graph.given_edge_count])
    state = fg.State(graph, **values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        fg.iterate(steps, state, target="cuda", max_supersteps=most)
    return state["share"]


def wanted_shares(edges: fg.Graph, most: int, weight: int = 1) -> Any:
    """Return the same, found by NumPy."""
    share = np.arange(edges.vertex_count)
    for _ in range(most):
        contributed = share[edges.sources] + weight * WEIGHTS[: edges.given_edge_count]
        share = np.bincount(edges.targets, contributed, len(share)).astype(int) % 1000
    return share


def looped(gpu: Gpu) -> int:
    return sum(loop.ran for loop in gpu.loops)


def check_loops(gpu: Gpu, how: str) -> None:
    first, second = versions(np.random.default_rng(8), how)
    graph = changeable(copy.deepcopy(first), "cuda", how)
    for edges in (first, second):
        if edges is second:
            change(graph, second, "cuda", how)
        for most in (12, 13):
            before, found = looped(gpu), shared(graph, most)
            assert looped(gpu) > before
            np.testing.assert_array_equal(found, wanted_shares(edges, most))


@pytest.mark.drawn(2)
@CHANGES
def test_loops_follow(gpu: Gpu, how: str) -> None:
    check_loops(gpu, how)


@pytest.mark.parametrize("how", ["in place", "grown"])
def test_what_was_recorded_runs_on_new_edges_in_old_arrays(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    check_recorded(gpu, monkeypatch, how)


def check_recorded(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Nothing is bound or recorded anew: all supersteps are those of a known loop."""
    first, second = versions(np.random.default_rng(8), how)
    graph = changeable(copy.deepcopy(first), "cuda", how)
    for _ in range(3):
        shared(graph, 12, plain)
    made: list[Any] = []
    begin = BoundState.__init__

    def note(self: BoundState, *given: Any) -> None:
        made.append(given)
        begin(self, *given)

    monkeypatch.setattr(BoundState, "__init__", note)
    for change_it in (False, True):
        if change_it:
            change(graph, second, "cuda", how)
        recordings, before = len(gpu.recordings), looped(gpu)
        found = shared(graph, 12, plain)
        assert not made
        ran = len(gpu.recordings) - recordings, looped(gpu) - before
        assert ran == (0, 12), f"with other edges: {change_it}"
    np.testing.assert_array_equal(found, wanted_shares(second, 12, 0))


def check_program(name: str, how: str) -> None:
    program = BY_NAME[name]
    drawn = np.random.default_rng(8)
    first, second = versions(drawn, how, directed=not program.undirected)
    graph = changeable(copy.deepcopy(first), "cuda", how)
    for edges in (first, second):
        if edges is second:
            change(graph, second, "cuda", how)
        values = program.make_state(edges, program.widths[0], np.random.default_rng(3))
        found = []
        for each, target in ((graph, "cuda"), (copy.deepcopy(edges), "cpu")):
            state = fg.State(each, **copy.deepcopy(values))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", fg.ConvergenceWarning)
                ran = fg.iterate(
                    program.foldmaps, state, target=target, max_supersteps=3,
                    active=np.arange(0, VERTICES, 7),
                )  # fmt: skip
            found.append((state, ran.active_counts))
        (ours, counts), (theirs, wanted) = found
        assert counts == wanted
        for value in ours:
            np.testing.assert_array_equal(ours[value], theirs[value], err_msg=value)


@pytest.mark.drawn(2)
@CHANGES
@pytest.mark.parametrize("name", ["bfs", "along_out"])
def test_programs(gpu: Gpu, name: str, how: str) -> None:
    check_program(name, how)


#: Programs with reduces, edge functions, twins and rows of both directions.
WITH_ROOM = (
    "unanimous", "edge_atomics", "notes", "components", "widened", "along_both",
    "active_sources", "dropped_twins",
)  # fmt: skip


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", WITH_ROOM)
def test_programs_have_room(gpu: Gpu, name: str) -> None:
    check_program(name, "grown")


def test_triangles_have_room(gpu: Gpu) -> None:
    ends = np.random.default_rng(8).integers(0, VERTICES, (2, 300))
    first = fg.Graph.from_edges(*ends, directed=False, duplicates="first")
    for target in ("cpu", "cuda"):
        graph = roomy(copy.deepcopy(first), target)
        found = triangle_count(graph, target=target)
        wanted = triangle_count(copy.deepcopy(first), target="cpu")
        np.testing.assert_array_equal(found.triangles, wanted.triangles)


def check_state(how: str) -> None:
    """One State goes on with what it has, from version to version."""
    first, second = versions(np.random.default_rng(9), how)
    graph = changeable(copy.deepcopy(first), "cuda", how)
    label = np.arange(VERTICES, dtype=np.int32)
    state = fg.State(graph, label=fg.vertex_property(label, iterated=True))
    fg.iterate(labels, state, target="cuda")
    change(graph, second, "cuda", how)
    label = state["label"].copy()
    other = fg.State(
        copy.deepcopy(second), label=fg.vertex_property(label, iterated=True)
    )
    ours = fg.iterate(labels, state, target="cuda")
    theirs = fg.iterate(labels, other, target="cpu")
    assert ours.active_counts == theirs.active_counts
    np.testing.assert_array_equal(state["label"], other["label"])


@pytest.mark.parametrize("how", [how for how in HOW if how != "grown"])
def test_a_state_goes_on(gpu: Gpu, how: str) -> None:
    check_state(how)


# -- faults


def _never(aspect: str) -> Callable[..., Stamps]:
    """Return `Stamps.after` of stamps of which one never changes."""
    after = Stamps.after

    def without(self: Stamps, *changed: str) -> Stamps:
        return after(self, *(c for c in changed if c != aspect))  # type: ignore[arg-type]

    return without


def _one_order() -> Callable[[Any], Any]:
    """Return an order of edge values that is found once, whatever the version."""
    find, known = foreign._order, []

    def order(rows: Any) -> Any:
        known.append(known[0] if known else find(rows))
        return known[0]

    return order


#: Caches that are kept too long, and the change that shows it.
FAULTS: dict[str, tuple[Any, str, Any, str]] = {
    "no version": (Stamps, "after", _never("version"), "in place"),
    "no moves": (Stamps, "after", _never("moves"), "moved"),
    "no shape": (Stamps, "after", _never("shape"), "relisted"),
    "order of edge values": (foreign, "_order", _one_order(), "in place"),
    "arrays": (GraphArrays, "forget", lambda self, then, now: None, "moved"),
    "lists of hubs": (GraphArrays, "forget", lambda self, then, now: None, "relisted"),
    "words": (kept, "prefix", lambda count, _: prefix(count, count), "grown"),
    "values": (CudaRows, "extended", lambda self, a, *_: self.upload(a), "grown"),
    "bound states": (BoundState, "fits", lambda self, buffers: True, "moved"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(
    fault: str, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, planted, how = FAULTS[fault]
    monkeypatch.setattr(owner, name, planted)
    check = partial(check_loops, gpu)
    if fault == "bound states":  # a State that stays has something bound
        check = check_state
    if how == "grown":
        check = partial(check_recorded, gpu, monkeypatch)
    with pytest.raises((AssertionError, IndexError, MemoryFault)):
        check(how)
