"""Rows of hubs that several blocks take, and the last one goes on with."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.cuda import dialect

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.fold.printing import cuda
from featgraph.program import functions as fn
from featgraph.runtime.devices import gpu_arrays
from tests.simt.along_programs import along_state
from tests.simt.case import Case
from tests.simt.emulator import MemoryFault
from tests.simt.gpu import Gpu
from tests.simt.programs import BY_NAME
from tests.simt.test_kernels import Run

SMALL = (17, 40)


@fg.gather(into="total", combine="sum")
def add_sources(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.x[u, f]


@fg.vertex
def average(f, v, d):  # type: ignore[no-untyped-def]
    d.x_next[v, f] = (d.x[v, f] + d.total[v, f]) / (1 + d.in_degree[v])
    return True


averaged = fg.foldmap(add_sources, average)


@pytest.fixture(autouse=True)
def two_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have blocks of hubs no more lanes than it takes for warps to meet."""
    monkeypatch.setattr(cuda, "HUB_THREADS", 64)


@given(st.lists(st.integers(1, 40), max_size=9), st.integers(1, 12))
def test_parts_are_rows_cut_evenly(lengths: list[int], size: int) -> None:
    rows, length = np.arange(len(lengths)) * 3, np.array(lengths, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_arrays, "JOINED_PART", size)
        parts = gpu_arrays.joined_parts(rows, length).reshape(-1, 5)
    order = list(dict.fromkeys(parts[:, 0].tolist()))
    assert order == gpu_arrays.longest_first(rows, length).tolist()
    for row in order:
        [places] = np.nonzero(parts[:, 0] == row)
        own, first = parts[places], places[0]
        assert (own[:, 3:] == [first, len(own)]).all()
        assert (np.diff(places) == 1).all()
        assert own[0, 1] == 0
        assert own[-1, 2] == length[row // 3]
        assert (own[1:, 1] == own[:-1, 2]).all()
        sizes = own[:, 2] - own[:, 1]
        assert np.ptp(sizes) <= 1
        assert len(own) == 1 or 2 * size / 3 <= sizes.mean() <= 3 * size / 2


@fn.gather(into="least", combine="min", along="out")
def least_of_targets(f, u, v, e, d):
    return d.i[u, f]


@fn.gather(into="most", combine="max", along="out")
def most_of_targets(f, u, v, e, d):
    return d.weight[e] * d.x[u, f]


@fn.gather(into="held", combine="sum", along="out")
def count_targets(f, u, v, e, d):
    return d.i[u, 0]


@fn.gather(into="turned", combine="product", along="out")
def turn_by_targets(f, u, v, e, d):
    return 1 if d.i[u, f] > 0 else -1


@fn.vertex
def keep_of_targets(f, v, d):
    d.x_next[v, f] = d.most[v, f] * d.turned[v, f]
    d.first[v, f] = d.least[v, f] + d.held[v]
    return d.held[v] % 3 != 1


COMBINED = Case(
    "combined",
    (
        least_of_targets,
        most_of_targets,
        count_targets,
        turn_by_targets,
        keep_of_targets,
    ),
    along_state,
)
WITH_PARTS = [
    (BY_NAME["label_propagation"], 3),
    (BY_NAME["label_propagation"], 33),
    (BY_NAME["least_squares"], 3),
    (BY_NAME["least_squares"], 20),
    (COMBINED, 3),
]


def run_of(case: Case, k: int, **options: Any) -> Run:
    run = Run(case, k, hubs=True, long_rows=True, size=SMALL, **options)
    assert any(entry.parts for entry in run.kernels.entries)
    return run


@pytest.mark.parametrize(("case", "k"), WITH_PARTS)
def test_a_row_in_parts_is_as_a_whole_one(case: Case, k: int) -> None:
    run_of(case, k).check()


def test_parts_have_doubles_and_wide_offsets() -> None:
    run = run_of(BY_NAME["label_propagation"], 2, dtype="float64", wide=True)
    assert "float32(" not in run.kernels.text
    run.check()


@pytest.mark.parametrize(
    ("case", "k", "text", "instead"),
    [
        (COMBINED, 1, "range(joined_first + ", "range(joined_first + 1 + "),
        (COMBINED, 1, "joined_first, int32(1))", "joined_first, int32(2))"),
        (COMBINED, 1, "joined_met[uint32(joined_first)] = 0", "pass"),
        (
            BY_NAME["least_squares"],
            20,
            "range(joined_first, ",
            "range(joined_first + 1, ",
        ),
    ],
)
def test_a_part_that_is_missed_is_found(
    case: Case, k: int, text: str, instead: str
) -> None:
    run = run_of(case, k)
    planted = run.kernels.text.replace(text, instead)
    assert planted != run.kernels.text
    with pytest.raises((AssertionError, MemoryFault)):
        run.check(planted)


@pytest.mark.parametrize("name", ["bfs", "custom", "say", "notes"])
def test_rows_stay_whole_where_parts_cannot_be_joined(name: str) -> None:
    kernels = Run(BY_NAME[name], 3, hubs=True, long_rows=True, size=SMALL).kernels
    assert not any(entry.parts for entry in kernels.entries)


def test_a_run_joins_parts_in_each_superstep(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_arrays, "JOINED_PART", 700)
    count = 2100
    rng = np.random.default_rng(3)
    ends = rng.integers(0, 40, count), np.append(np.zeros(count - 40, int), range(40))
    graph = fg.Graph.from_edges(*ends, vertex_count=40)
    given, found = rng.random((40, 2), np.float32), []
    for target in ("cuda", "cpu"):
        state = fg.State(graph, x=fg.vertex_property(given, iterated=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fg.ConvergenceWarning)
            fg.iterate(averaged, state, max_supersteps=3, target=target)
        found.append(state["x"])
    np.testing.assert_allclose(*found, rtol=1e-4)
    assert any(name.endswith("_hubs") for name in gpu.by_dialect)
