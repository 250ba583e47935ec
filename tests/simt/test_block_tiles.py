"""Matrices in the tiles of a block, lane by lane, against the interpreter and NumPy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.algorithms.als import cholesky_half
from featgraph.device import block_tiles
from featgraph.fold.plan import planner
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.schedules.block import SIDE
from tests.bank import BY_NAME
from tests.simt.emulator import Emulator
from tests.simt.lanes import EmulationError
from tests.simt.programs import BY_NAME as CASES
from tests.simt.test_kernels import Run

ASKED = {"schedule": "block_tiles"}
#: Vertices and edges: a row of two batches, some of few edges, empty ones.
SIZE = (12, 60)


class OfBank:
    """A program of the bank, as `Run` takes cases."""

    def __init__(self, name: str) -> None:
        self.of, self.undirected = BY_NAME[name], False

    def program(self) -> Any:
        return self.of.foldmaps[0].program

    def values(self, graph: Any, k: int, rng: Any, dtype: str = "float32") -> Any:
        """Return the values of a state, and their types."""
        state = fg.State(graph, **self.of.make_state(graph, k, rng))
        return {name: np.asarray(state[name]) for name in state}, state.signature


def run_of(name: str, k: int, **options: Any) -> Run:
    case: Any = CASES[name] if name in CASES else OfBank(name)
    return Run(case, k, **ASKED, size=SIZE, **options)


#: K that are and are no multiples of a tile, of a load, and of the lanes of a warp.
RUNS: list[tuple[str, int, dict[str, Any]]] = [
    ("least_squares", 2, {"form": "listed"}),
    ("least_squares", 3, {"hubs": True, "long_rows": True}),
    ("least_squares", 8, {"dtype": "float64"}),
    ("least_squares", 17, {}),
    ("implicit_least_squares", 12, {"long_rows": True}),
    ("implicit_least_squares", 16, {"hubs": True}),
]


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("name", "k", "options"), RUNS, ids=[f"{n}-{k}" for n, k, _ in RUNS]
)
def test_agrees_with_the_interpreter(
    name: str, k: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where rows are long, each batch but the last one is put by.
    monkeypatch.setattr(planner, "SUM_BLOCK", 1)
    run = run_of(name, k, **options)
    assert "block_tiles.add_products" in run.kernels.text
    run.check()


@fg.vertex
def solve_sum(f, v, d):
    shift = fg.feature_sum(d.A[v, f, f])
    d.y[v, f] = fg.solve(d.A[v] + d.gram, d.x[v, f], diagonal=shift, spd=True)
    return True


@fg.vertex
def solve_difference(f, v, d):
    d.y[v, f] = fg.solve(d.A[v] - d.gram, d.x[v, f], spd=True)
    return True


@fg.vertex
def solve_and_multiply(f, v, d):
    x = fg.solve(d.gram + d.A[v], d.x[v, f], spd=True)
    d.y[v, f] = fg.matvec(d.A[v], x)
    return True


@pytest.mark.parametrize(
    ("function", "k", "in_tiles", "in_bands", "mirrors"),
    [
        (solve_sum, 24, ["A", "d.gram"], False, False),
        (solve_sum, 20, ["A"], True, False),
        (solve_difference, 24, [], True, False),
        (solve_and_multiply, 24, ["d.gram", "A"], False, True),
    ],
)
def test_what_stands_in_whole_tiles_is_taken_there(
    function: Any, k: int, in_tiles: list[str], in_bands: bool, mirrors: bool
) -> None:
    kernel = fg.foldmap(squares, function).fold(k=k, target="cuda", **ASKED)
    text = " ".join(kernel.source.split())
    taken = re.findall(r"plus_matrix\(\w+, ([\w.]+)", text)
    assert taken == in_tiles
    assert ("block_tiles.plus_band(" in text) is in_bands
    assert f"tile_column_0, False, {mirrors})" in text


@pytest.mark.parametrize(
    ("k", "has_hubs", "threads"),
    [(32, True, 32), (64, True, 128), (64, False, 64), (128, False, 160)],
)
def test_threads_without_a_tile_are_for_hubs(
    k: int, has_hubs: bool, threads: int
) -> None:
    graph, case = fg.Graph.from_edges([0, 1], [1, 2]), OfBank("least_squares")
    _, types = case.values(graph, k, np.random.default_rng(0))
    options = Options(target="cuda", schedule="block_tiles")
    plan = planner.make_plan(case.program(), types, options, GraphTraits(16, has_hubs))
    assert plan.phases[-1].mapping.lanes_per_vertex == threads


# -- what it takes, and what it refuses


@pytest.mark.parametrize(("k", "tiled"), [(16, False), (17, True), (128, True)])
def test_auto_takes_it_where_columns_do_not_fit_a_lane(k: int, tiled: bool) -> None:
    text = str(cholesky_half.fold(k=k, target="cuda").plan)
    assert ("tiles of 8 x 8 in registers" in text) is tiled


@pytest.mark.parametrize(
    ("k", "dtype", "tiled"),
    [(248, "float32", True), (249, "float32", False), (177, "float64", False)],
)
def test_auto_leaves_what_no_block_has_registers_for(
    k: int, dtype: str, tiled: bool
) -> None:
    options: dict[str, Any] = {"k": k, "target": "cuda", "dtype": dtype}
    plan = cholesky_half.fold(**options).plan
    assert (plan.phases[-1].mapping.schedule == "block_tiles") is tiled
    if not tiled:
        with pytest.raises(fg.PlanError, match="more than the"):
            cholesky_half.fold(**options, **ASKED)


def test_what_is_no_product_is_refused() -> None:
    with pytest.raises(fg.PlanError, match="shifted_grams contributes others"):
        run_of("inverse", 8)


def test_a_system_that_is_solved_in_a_loop_is_refused() -> None:
    with pytest.raises(fg.PlanError, match="solves systems in a loop"):
        fg.foldmap(squares, refine).fold(k=24, target="cuda", **ASKED)


@fg.gather(into="A", combine="sum", matrix=True)
def squares(i, f, u, v, e, d):
    return d.x[u, i] * d.x[u, f]


@fg.vertex
def refine(f, v, d):
    x = d.x[v, f]
    for _ in range(0, int(d.rounds[v])):
        x = fg.solve(d.A[v], x, spd=True)
    d.y[v, f] = x
    return True


# -- the device library

KERNEL = """
from numba import float32, float64, int32
from featgraph.cuda.dialect import cuda, kernel
from featgraph.device import block_tiles


@kernel
def solve(matrix, right, count, k):
    panel = cuda.shared.array({shape}, {real}, alignment=16)
    thread = int32(cuda.threadIdx.x)
    _, row, column = block_tiles.lower_place(thread, count, 1)
    tile = block_tiles.zeros({real}(0.0))
    for band in range(count):
        for place in range(thread, 8 * 8 * count, {threads}):
            panel[place // (8 * count), place % (8 * count)] = (
                matrix[band * 8 + place // (8 * count), place % (8 * count)]
            )
        cuda.syncthreads()
        tile = block_tiles.plus_band(tile, panel, band, row, column)
        cuda.syncthreads()
    tile = block_tiles.plus_diagonal(tile, {real}(0.0), {real}(1.0), row, column, k)
    for place in range(thread, 8 * count, {threads}):
        panel[16, place] = right[place]
    block_tiles.solve_spd(tile, panel, count, row, column)
    for place in range(thread, 8 * count, {threads}):
        right[place] = panel[16, place]
"""


def solved(
    matrix: np.ndarray, right: np.ndarray, sources: dict[str, str] | None = None
) -> np.ndarray:
    """Return the solutions of a block; entries outside the matrix are unmapped."""
    k, real = len(right), right.dtype
    count = -(-k // SIDE)
    whole, found = np.zeros((count * SIDE,) * 2, real), np.zeros(count * SIDE, real)
    whole[:k, :k], found[:k] = matrix, right
    threads = -(-(count * (count + 1) // 2) // 32) * 32
    text = KERNEL.format(shape=(2 * SIDE + 1, count * SIDE), real=real, threads=threads)
    emulator = Emulator(sources)
    emulator.launch(emulator.load(text), "solve", 1, threads, (whole, found, count, k))
    return found[:k]


@settings(max_examples=5)
@given(
    k=st.integers(1, 41),
    seed=st.integers(0, 2**32 - 1),
    real=st.sampled_from(["float32", "float64"]),
)
def test_systems_are_solved(k: int, seed: int, real: str) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((2 * k, k)).astype(real)
    matrix = rows.T @ rows + np.eye(k, dtype=real)
    right = rng.standard_normal(k).astype(real)
    left = matrix.astype(np.float64) @ solved(matrix, right)
    # A backward stable solution leaves k roundings of what is multiplied.
    size = np.abs(matrix).sum(axis=1).max() * np.abs(solved(matrix, right)).max()
    bound = 4 * k * np.finfo(real).eps * float(size)
    assert np.abs(left - right).max() <= bound


def test_what_is_not_definite_gives_nan() -> None:
    matrix = np.eye(12, dtype=np.float32)
    matrix[9, 9] = -1
    assert np.isnan(solved(matrix, np.ones(12, np.float32))).any()


#: Text of the library, and what stands in its place.
FAULTS = [
    ("if column > step:", "if column >= step:"),
    ("place + SIDE + thread, size + 1", "place + SIDE + thread, size"),
    ("half, place = (step & 1) * SIDE", "half, place = 0 * SIDE"),
    ("0 <= column < step", "0 < column < step"),
    ("shift if left > 6 else one", "shift"),
]


@pytest.mark.parametrize(("text", "other"), FAULTS)
def test_planted_faults_are_found(text: str, other: str) -> None:
    name = "featgraph.device.block_tiles"
    source = Path(block_tiles.__file__).read_text(encoding="utf-8")
    assert text in source
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((60, 30)).astype(np.float32)
    matrix, right = rows.T @ rows, rng.standard_normal(30).astype(np.float32)
    wanted = np.linalg.solve(matrix.astype(np.float64), right)
    try:
        found = solved(matrix, right, {name: source.replace(text, other)})
    except EmulationError:
        return
    assert not np.allclose(found, wanted, 1e-3, 1e-4)
