"""Results of reduces stay on the GPU, and what they change is found there."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.fold.schedules import mapping as mappings
from featgraph.runtime.devices import cuda_loops
from featgraph.runtime.loops import replay
from tests.programs.waves import adopt, crest, lowest
from tests.simt.emulator import Emulator
from tests.simt.gpu import Gpu, emulated_gpu

VERTICES, WORD = 34, 8


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with emulated_gpu() as made:
        yield made


@fg.vertex
def adopt_quietly(f, v, d):  # type: ignore[no-untyped-def]
    d.label_next[v] = min(d.label[v], d.low[v])
    return d.low[v] < d.label[v] and v != d.wave[0]


@fg.reduce(into="residual", combine="sum")
def moved(f, v, d):  # type: ignore[no-untyped-def]
    return d.label[v] - d.label_next[v]


#: A vertex that the wave stands at waits until that moves, and then all are due.
counting = fg.foldmap(crest, lowest, adopt, moved)
quiet = fg.foldmap(crest, lowest, adopt_quietly, moved)


@fg.reduce(into="total", combine="sum")
def total(f, v, d):  # type: ignore[no-untyped-def]
    return d.x[v, f]


@fg.reduce(into="total", combine="sum")
def some(f, v, d):  # type: ignore[no-untyped-def]
    return d.x[v, f] if d.kept[v] else fg.nothing


@fg.reduce(into="most", combine="max")
def most(f, v, d):  # type: ignore[no-untyped-def]
    return d.x[v, f] - d.y[v, f]


@fg.reduce(into="spread", combine="sum")
def spread(f, v, d):  # type: ignore[no-untyped-def]
    return d.x[v, f] * fg.dot(d.x[v], d.y[v])


#: One sum or several; what meets, and so takes each vertex by itself, is the last.
SUMS = {"total": (total,), "some": (some, most), "spread": (spread, most)}


def path_state(height: int, dtype: Any = np.int64) -> fg.State:
    """Return labels of which the least goes along a path."""
    ends = np.arange(VERTICES - 1)
    graph = fg.Graph.from_edges(ends, ends + 1, vertex_count=VERTICES, directed=False)
    return fg.State(
        graph,
        label=fg.vertex_property(np.arange(VERTICES, dtype=dtype), iterated=True),
        runs=fg.vertex_property(np.zeros(VERTICES, np.int64)),
        height=height,
    )


def run(step: Any, state: fg.State, target: str, **options: Any) -> Any:
    """Return the record of a run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.ConvergenceWarning)
        done = fg.iterate(step, state, target=target, **options)
    return done.supersteps, done.converged, done.active_counts


@pytest.mark.drawn(6)
@pytest.mark.parametrize("step", [counting, quiet])
@pytest.mark.parametrize("height", [1, 5, 100])
def test_what_changes_makes_everything_due(step: Any, height: int, gpu: Gpu) -> None:
    """As the CPU has it: the vertices that run are counted in place."""
    found, meant = path_state(height), path_state(height)
    assert run(step, found, "cuda") == run(step, meant, "cpu")
    for name in meant:
        np.testing.assert_array_equal(found[name], meant[name], err_msg=name)
    if step is counting:
        assert meant["runs"].min() < meant["runs"].max() or height == 1


def test_a_superstep_waits_once(gpu: Gpu) -> None:
    """For the count of committed vertices: also where a result makes vertices due."""
    state = path_state(5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fg.config, "replay", False)
        supersteps, *_ = run(quiet, state, "cuda")
    assert gpu.downloads == [WORD] * supersteps


def test_a_result_is_copied_once_when_it_is_read(gpu: Gpu) -> None:
    state = path_state(5)
    run(quiet, state, "cuda", max_supersteps=3)
    before = len(gpu.downloads)
    first = state["residual"]
    assert len(gpu.downloads) == before + 1
    assert state["residual"] is not first
    assert np.asarray(state.view("residual")).tolist() == first.tolist()
    assert len(gpu.downloads) == before + 1
    assert state.copy()["residual"].tolist() == first.tolist()
    run(quiet, state, "cuda", max_supersteps=1)
    assert state["residual"].tolist() != first.tolist()
    state["residual"] = [7]
    assert state["residual"].tolist() == [7]
    run(quiet, state, "cuda", max_supersteps=1)
    assert state["residual"].tolist() != [7]


def test_a_view_of_a_result_ends_and_may_be_written(gpu: Gpu) -> None:
    state = path_state(5)
    run(quiet, state, "cuda", max_supersteps=3)
    view = state.view("wave")
    np.asarray(view)[0] = -1
    state.touch("wave")
    assert state["wave"].tolist() == [-1]
    run(quiet, state, "cuda", max_supersteps=1)
    with pytest.raises(fg.StateError):
        np.asarray(view)
    assert state["wave"][0] >= 0


def test_results_move_with_their_state(gpu: Gpu) -> None:
    state, meant = path_state(5), path_state(5)
    for target in ("cuda", "cpu", "cuda", "cuda"):
        record = run(quiet, state, target, max_supersteps=4)
        assert record == run(quiet, meant, "cpu", max_supersteps=4)
        assert state["residual"].tolist() == meant["residual"].tolist()
        state, meant = state.copy(), meant.copy()


def test_replayed_supersteps_leave_their_results(gpu: Gpu) -> None:
    """One that was read before is out of date then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "_MOST_SECONDS", np.inf)
        state, meant = path_state(5), path_state(5)
        for limit in (12, 7, 100):
            record = run(quiet, state, "cuda", max_supersteps=limit)
            assert record == run(quiet, meant, "cpu", max_supersteps=limit)
            assert state["residual"].tolist() == meant["residual"].tolist()
            assert state["wave"].tolist() == meant["wave"].tolist()
    assert sum(r.launched for r in gpu.recordings) > 4


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, np.nan, np.inf]), max_size=70),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_results_differ_where_values_do(
    values: list[float], changes: int, random: Any
) -> None:
    """NaN is the same as NaN, and zero as -0.0."""
    last, now = np.array(values, np.float64), np.array(values, np.float64)
    for _ in range(changes if values else 0):
        now[random.randrange(now.size)] = random.choice([0.0, -0.0, 1.0, np.nan])
    flag = np.full(1, 9, np.int32)
    module = Emulator().load(inspect.getsource(cuda_loops), "cuda_loops")
    Emulator().launch(module, "differ", 1, 32, (last, now, flag))
    assert bool(flag[0]) == (not np.array_equal(last, now, equal_nan=True))


def reduced(name: str, k: int, count: int, seed: int, **options: Any) -> Any:
    """Return the sum over the vertices, to which a foldmap may be restricted."""
    rng = np.random.default_rng(seed)
    x, y = (rng.standard_normal((count, k)).astype(np.float32) for _ in range(2))
    state = fg.State(
        fg.Graph.from_edges([0], [0], vertex_count=count),
        x=fg.vertex_property(x),
        y=fg.vertex_property(y),
        kept=fg.vertex_property(rng.random(count) < 0.9),
    )
    step = fg.foldmap(*SUMS[name])  # of its own, for it keeps its kernels
    step(state, **options)
    return {f.into: np.asarray(state[f.into]) for f in SUMS[name]}


@pytest.mark.drawn(16)
@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("feature_parallel", [True, False])
def test_vertices_together_have_the_bits_of_one_by_one(
    name: str, k: int, feature_parallel: bool, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lanes have up to nine vertices each, and the last ones fewer."""
    how: dict[str, Any] = {"feature_parallel": feature_parallel, "target": "cuda"}
    for seed, count in enumerate((1, 33, 255, 257, 546)):
        meant = reduced(name, k, count, seed, target="cpu")
        found = reduced(name, k, count, seed, **how)
        with monkeypatch.context() as patch:
            patch.setattr(mappings, "REDUCED_TOGETHER", 0)
            alone = reduced(name, k, count, seed, **how)
        for result, values in meant.items():
            np.testing.assert_allclose(found[result], values, rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(found[result], alone[result])
