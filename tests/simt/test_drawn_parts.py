"""Graphs that ranks draw on the emulated GPU: those of the host, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import featgraph as fg
from featgraph import algorithms as al
from featgraph.cuda import dialect
from featgraph.distributed import run_ranks
from featgraph.graph import generators, ratings, rmat, uniform
from featgraph.graph.building import edges as edge_lists
from featgraph.graph.formats.convert import write_graph

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the dialect", allow_module_level=True)

from featgraph.base.config import config
from featgraph.cuda import arrays, sorting
from featgraph.graph.building import drawn, gpu_part_edges
from featgraph.ranks.loading import cutting, on_gpu, public
from tests.altered import GRAPHS, require_refused, sign_again, write_sound
from tests.simt.foreign import Foreign
from tests.simt.gpu import emulated_gpu

ROWS = ("in_edges", "out_edges", "incident_edges")


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a few edges be several pieces and slabs, on an emulated GPU."""
    monkeypatch.setattr(gpu_part_edges, "LEAST_SLAB", 30)
    monkeypatch.setattr(gpu_part_edges, "SLABS", 2)
    monkeypatch.setattr(gpu_part_edges, "PIECE_EDGES", 50)
    monkeypatch.setattr(sorting, "RADIX_BITS", 4)
    with emulated_gpu():
        yield


def require_equal_rows(one: Any, other: Any) -> None:
    """Hold all rows, edge ids and degrees of a graph to those of another one."""
    for name in ROWS:
        mine, theirs = getattr(one, name), getattr(other, name)
        assert np.array_equal(mine.row_offsets, theirs.row_offsets), name
        assert np.array_equal(mine.column_indices, theirs.column_indices), name
        if name != "in_edges":  # where None is what edge ids are anyway
            ids = [np.arange(0) if r.edge_ids is None else r.edge_ids
                   for r in (mine, theirs)]  # fmt: skip
            assert np.array_equal(*ids), name
    for name in ("in_degree", "out_degree"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    if other.weights is not None:
        weights = [g.expand_edge_values(g.weights) for g in (one, other)]
        assert np.array_equal(*weights)


def require_same_parts(made: Any, meant: Any) -> None:
    """Hold a graph in parts to another one."""
    assert (made.digest, made.weights_digest) == (meant.digest, meant.weights_digest)
    one, other = made.shard, meant.shard
    assert repr(one) == repr(other)
    assert np.array_equal(one.partition.cuts, other.partition.cuts)
    for name in ("numbers", "ghosts"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    for mine, theirs in zip(one.send_lists, other.send_lists, strict=True):
        assert np.array_equal(mine, theirs)
    require_equal_rows(made.part, meant.part)
    assert np.array_equal(made.given_index, meant.given_index)
    assert made.given_index.dtype == meant.given_index.dtype


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("directed", "along", "weighted", "ranks"),
    [
        (True, "both", True, 2),
        (True, "in", False, 3),
        (False, "both", True, 2),
        (False, "in", True, 2),
    ],
)
def test_parts_are_those_of_the_whole(
    directed: bool, along: str, weighted: bool, ranks: int
) -> None:
    draw = partial(rmat, 6, 1, seed=5, directed=directed, weighted=weighted)
    whole = draw(target="cpu")

    def on_a_rank(engine: Any) -> None:
        made: Any = draw(target="cuda", partition="edges", along=along)
        require_same_parts(made, fg.distribute(whole, along=along))
        if weighted:
            assert np.array_equal(made.weights, whole.weights)

    run_ranks(ranks, on_a_rank)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("directed", [True, False])
def test_a_gpu_that_draws_many_edges_has_rows_at_once(
    directed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generators, "MANY_DRAWN", 0)
    monkeypatch.setattr(drawn, "_PIECE", 20)
    draw = partial(rmat, 4, 3, seed=7, directed=directed, weighted=True)
    made, meant = draw(target="cuda"), draw(target="cpu")
    assert (made.digest, made.weights_digest) == (meant.digest, meant.weights_digest)
    for name in ("sources", "targets", "weights", "given_index"):
        assert np.array_equal(getattr(made, name), getattr(meant, name)), name
    require_equal_rows(made, meant)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("along", ["both", "in"])
def test_parts_of_slices_are_uploaded_as_rows(
    directed: bool, along: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_lists, "MANY_EDGES", 0)
    whole = rmat(4, 2, seed=2, directed=directed, weighted=True, target="cpu")
    write_graph(whole, tmp_path / "graph.fgs", order="given")

    def on_a_rank(engine: Any) -> None:
        path = tmp_path / "graph.fgs"
        read: Any = fg.read_graph(path, partition="edges", along=along)
        part = read.part
        there = part._edges.on_gpu
        for way, name in zip(("in", "out", "both"), ROWS, strict=True):
            rows, meant = there.rows(way), getattr(part, name)
            assert np.array_equal(arrays.read(rows.offsets), meant.row_offsets)
            assert np.array_equal(arrays.read(rows.ends), meant.column_indices)
            if way != "in" and (part.directed or way == "out"):
                assert np.array_equal(arrays.read(there.edge_ids(way)), meant.edge_ids)
        assert np.array_equal(arrays.read(there.given_index), part.given_index)
        assert there.given_count == part.given_edge_count

    run_ranks(2, on_a_rank)


def test_edges_drawn_by_ranks_of_the_cpu() -> None:
    draw = partial(uniform, 100, 300, seed=3, weighted=True, target="cpu")
    whole = draw()

    def on_a_rank(engine: Any) -> None:
        made, meant = draw(partition="edges"), fg.distribute(whole)
        assert (made.digest, made.weights_digest) == (
            meant.digest,
            meant.weights_digest,
        )
        require_equal_rows(made.part, meant.part)

    run_ranks(3, on_a_rank)


@pytest.mark.drawn(8)
@pytest.mark.parametrize(
    ("directed", "along", "dtype", "ranks"),
    [
        (True, "both", None, 3),
        (True, "in", "int64", 2),
        (False, "both", "float32", 2),
        (False, "in", None, 2),
    ],
)
@pytest.mark.parametrize("is_of_host", [False, True])
def test_edges_that_ranks_have_on_gpus(
    directed: bool, along: str, dtype: str | None, ranks: int, is_of_host: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(on_gpu, "ROUND_EDGES", 24)
    monkeypatch.setattr(on_gpu, "PIECE_EDGES", 50)
    monkeypatch.setattr(config, "gpu_links", "host" if is_of_host else "auto")
    rng = np.random.default_rng(0)
    u, v = rng.integers(0, 70, (2, 60))
    v[::9] = u[::9]
    weights = None if dtype is None else rng.integers(1, 9, 60).astype(dtype)
    options: dict[str, Any] = {"vertex_count": 70, "directed": directed}
    whole = fg.Graph.from_edges(u, v, weights=weights, **options)
    cuts = [0, 0, 40, 60] if ranks == 3 else [0, 35, 60]

    def on_a_rank(engine: Any) -> None:
        mine = slice(*cuts[engine.rank : engine.rank + 2])
        here = [None if a is None else a[mine] for a in (u, v, weights)]
        given = [None if a is None else Foreign(a) for a in here]
        if ranks == 3 and engine.rank == 0:  # without edges
            given = list(here)
        made: Any = fg.Graph.from_edges(
            *given[:2], weights=given[2], **options, partition="edges", along=along
        )
        require_same_parts(made, fg.distribute(whole, along=along))
        is_there = made.part._edges.is_given_on_gpu
        assert is_there == (ranks == 2)

    run_ranks(ranks, on_a_rank)


@pytest.mark.drawn(16)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("along", "ranks"), [("both", 2), ("in", 3)])
def test_ratings_that_ranks_draw(along: str, ranks: int, seed: int) -> None:
    draw = partial(ratings, 13, 6, 9, seed=seed)
    whole = draw(target="cpu")

    def on_a_rank(engine: Any) -> None:
        made: Any = draw(target="cuda", partition="edges", along=along)
        require_same_parts(made, fg.distribute(whole, along=along))
        assert np.array_equal(made.weights, whole.weights)
        assert np.array_equal(made.edges.starts, starts_of(made, whole))
        assert made.part._edges.is_given_on_gpu

    run_ranks(ranks, on_a_rank)


def starts_of(made: Any, whole: fg.Graph) -> Any:
    return whole.in_edges.row_offsets[made.own_vertices]


@pytest.mark.drawn(8)
@pytest.mark.parametrize("kind", ["matrix", "there", "host", "auto"])
@pytest.mark.parametrize(("directed", "along"), [(False, "both"), (True, "in")])
def test_edges_with_sides_that_go_to_gpus(
    kind: str, directed: bool, along: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_gpu, "ROUND_EDGES", 24)
    monkeypatch.setattr(on_gpu, "PIECE_EDGES", 50)
    monkeypatch.setattr(cutting, "MANY_EDGES", 30)
    rng, sides = np.random.default_rng(0), (30, 9)
    u = rng.integers(0, 30, 31)
    v = (9 * rng.random(31) ** 3).astype(np.int64)
    weights = rng.random(31).astype(np.float32)
    if kind == "matrix":
        directed, along = False, "both"
    options: dict[str, Any] = {"directed": directed, "sides": sides}
    whole = fg.Graph.from_edges(u, 30 + v, weights=weights, **options)

    def on_a_rank(engine: Any) -> None:
        mine = slice(10) if engine.rank == 0 else slice(10, 31)
        here = [a[mine] for a in (u, 30 + v, weights)]
        if kind == "matrix":
            entries = sparse.coo_matrix((weights[mine], (u[mine], v[mine])), sides)
            made: Any = fg.Graph.from_biadjacency(
                entries, target="cuda", partition="edges"
            )
        else:
            target = {"host": "cuda", "auto": "auto", "there": None}[kind]
            if kind == "there":
                here = [Foreign(a) for a in here]
            made = fg.Graph.from_edges(
                *here[:2], weights=here[2], target=target, along=along,
                partition="edges", **options,
            )  # fmt: skip
        require_same_parts(made, fg.distribute(whole, along=along))
        assert np.array_equal(made.edges.starts, starts_of(made, whole))
        assert made.sides == sides
        assert made.part._edges.is_given_on_gpu

    run_ranks(2, on_a_rank)


@pytest.mark.drawn(8)
@pytest.mark.parametrize("order", ["given", "spread"])
@pytest.mark.parametrize(("directed", "along"), [(False, "both"), (True, "in")])
@pytest.mark.parametrize("has_sides", [False, True])
def test_a_whole_graph_on_the_gpu_is_cut_there(
    order: str, directed: bool, along: str, has_sides: bool
) -> None:
    rng = np.random.default_rng(2)
    u, v = rng.integers(0, 40, (2, 24))
    v[::9] = u[::9]
    weights = rng.integers(1, 9, 24)
    options: dict[str, Any] = {"directed": directed, "vertex_count": 40}
    if has_sides:
        options["sides"] = (25, 15)
        u, v = u % 25, 25 + v % 15
    host = fg.Graph.from_edges(u, v, weights=weights, **options)

    def on_a_rank(engine: Any) -> None:
        there = [Foreign(a) for a in (u, v, weights)]
        whole = fg.Graph.from_edges(*there[:2], weights=there[2], **options)
        made: Any = fg.distribute(whole, order=order, along=along)
        assert made.part._edges.is_given_on_gpu
        require_same_parts(made, fg.distribute(host, order=order, along=along))
        assert np.array_equal(made.edges.starts, starts_of(made, host))

    run_ranks(2, on_a_rank)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
def test_factors_of_ratings_that_ranks_draw() -> None:
    draw = partial(ratings, 20, 8, 60, seed=4)
    options: dict[str, Any] = {
        "factors": 2,
        "iterations": 1,
        "target": "cuda",
        "deterministic": True,
    }
    meant = al.als(draw(target="cpu"), **options)

    def on_a_rank(engine: Any) -> None:
        made = draw(target="cuda", partition="edges")
        found = al.als(made, **options)
        assert np.array_equal(found.factors, meant.factors)

    run_ranks(2, on_a_rank)


def test_programs_run_on_drawn_parts() -> None:
    draw = partial(rmat, 6, 1, seed=1, weighted=True)
    whole = draw(target="cpu")
    meant = al.sssp(whole, 0, target="cpu").distances

    def on_a_rank(engine: Any) -> None:
        graph = draw(target="cuda", partition="edges")
        paths = al.sssp(graph, 0, target="cuda")
        assert np.array_equal(paths.distances, meant)

    run_ranks(2, on_a_rank)


def test_parts_take_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public, "is_begun", lambda: False)  # whatever ran before
    with pytest.raises(fg.DistributedError, match="none have been started"):
        rmat(4, 2, seed=1, partition="edges")


def test_what_cannot_be_drawn_in_parts_is_refused() -> None:
    def on_a_rank(engine: Any) -> None:
        with pytest.raises(fg.GraphInputError, match="repeated edges"):
            rmat(4, 2, seed=1, partition="edges", duplicates="first")
        with pytest.raises(fg.FeatGraphError, match="differs between ranks"):
            rmat(4, 2, seed=engine.rank, partition="edges")

    run_ranks(2, on_a_rank)


@pytest.mark.drawn(16)
@pytest.mark.parametrize("order", ["given", "locality"])
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize(("along", "ranks"), [("both", 3), ("in", 2)])
@pytest.mark.parametrize("is_of_host", [False, True])
def test_slices_that_gpus_read(
    order: str, directed: bool, along: str, ranks: int, is_of_host: bool,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(on_gpu.GpuRows, "round_edges", 24)
    monkeypatch.setattr(config, "gpu_links", "host" if is_of_host else "auto")
    monkeypatch.setattr("featgraph.graph.slices.files.BLOCK_BYTES", 64)
    is_weighted = is_of_host
    whole = rmat(6, 1, seed=3, directed=directed, weighted=is_weighted, target="cpu")
    path = tmp_path / "graph.fgs"
    write_graph(whole, path, order=order)
    read = partial(fg.read_graph, path, target="cuda")

    def on_a_rank(engine: Any) -> None:
        made: Any = read(partition="edges", along=along)
        require_same_parts(made, fg.distribute(whole, along=along, order=order))
        assert made.part._edges.is_given_on_gpu
        if is_weighted:
            assert np.array_equal(made.weights, whole.weights)

    run_ranks(ranks, on_a_rank)
    if ranks == 2:
        alone = read()
        assert alone._edges.is_given_on_gpu == (order == "given")
        assert alone.digest == whole.digest
        for name in ("sources", "targets", "weights", "given_index"):
            assert np.array_equal(getattr(alone, name), getattr(whole, name)), name
        require_equal_rows(alone, whole)


@pytest.mark.parametrize("is_sorted", [True, False])
def test_a_gpu_has_numbers_of_edges_that_are_not_given_by_row(
    is_sorted: bool, tmp_path: Path
) -> None:
    u, v = np.array([[3, 0, 1, 2], [0, 1, 1, 3]])
    v = v if is_sorted else v[::-1]
    whole = fg.Graph.from_edges(u, v, vertex_count=4)
    write_graph(whole, tmp_path / "graph.fgs")
    made = fg.read_graph(tmp_path / "graph.fgs", target="cuda")
    there: Any = made._edges
    assert (there.on_gpu._numbers is None) == is_sorted
    for name in ("sources", "targets", "given_index"):
        assert np.array_equal(getattr(made, name), getattr(whole, name)), name
    require_equal_rows(made, whole)


def test_edges_within_a_side_are_found_on_a_gpu(tmp_path: Path) -> None:
    forged = fg.Graph.from_edges([0, 1, 3], [2, 4, 4], directed=False)
    forged._edges.sides = (2, 3)
    write_graph(forged, tmp_path / "sides.fgs")
    with pytest.raises(fg.FileFormatError, match="an edge within a side"):
        fg.read_graph(tmp_path / "sides.fgs", target="cuda")


WRONG: dict[str, tuple[str, Any, str]] = {
    "offsets": ("offsets", [0, 3, 2, 4, 4], "do not follow each other"),
    "sources": ("sources", [0, 4, 1, 2], "out of range"),
    "rows": ("rows", [0, 1, -1, 2], "out of range"),
    "altered": ("sources", None, "altered"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_slices_are_named_on_all_ranks(kind: str, tmp_path: Path) -> None:
    name, values, text = WRONG[kind]
    folder = tmp_path / "graph.fgs"
    write_graph(fg.Graph.from_edges([3, 0, 1, 2], [0, 1, 1, 3]), folder)
    if values is None:
        data = bytearray((folder / f"{name}.bin").read_bytes())
        data[5] ^= 1
        (folder / f"{name}.bin").write_bytes(data)
    else:
        sign_again(folder, name, values)

    def on_a_rank(engine: Any) -> None:
        with pytest.raises(fg.FileFormatError, match=text):
            fg.read_graph(folder, partition="edges", target="cuda")

    run_ranks(2, on_a_rank)
    with pytest.raises(fg.FileFormatError, match=text):
        fg.read_graph(folder, target="cuda")


@pytest.mark.drawn(24)
@pytest.mark.parametrize(("kind", "order"), GRAPHS)
@pytest.mark.parametrize("along", ["whole", "both", "in"])
def test_arrays_that_were_altered_and_signed_again(
    along: str, kind: str, order: str, tmp_path: Path
) -> None:
    write_sound(tmp_path / "graph.fgs", kind, order)

    def read(path: Path) -> None:
        if along == "whole":
            fg.read_graph(path, target="cuda")
        else:
            of_part = {"partition": "edges", "along": along, "target": "cuda"}
            run_ranks(2, lambda engine: fg.read_graph(path, **of_part))

    not_read = {"words"} if kind == "sides" and along != "whole" else set()
    kinds = frozenset({"raised", "exchanged"})
    require_refused(tmp_path / "graph.fgs", read, frozenset(not_read), kinds)


def test_only_slices_are_read_to_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "edges.txt").write_text("0 1\n")
    with pytest.raises(fg.ArgumentError, match="featgraph convert"):
        fg.read_graph(tmp_path / "edges.txt", target="cuda")
