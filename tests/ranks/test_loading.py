"""Graphs made in parts: what `distribute` makes of the whole, and named errors."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph import algorithms as al
from featgraph.base.activity import ACTIVITY
from featgraph.cuda import values
from featgraph.distributed import run_ranks
from featgraph.fold.plan.traits import graph_traits
from featgraph.graph.formats import layout
from featgraph.graph.formats.convert import convert, write_graph
from featgraph.graph.slices import write
from featgraph.ranks.loading import build, chunks, public, rows
from tests.altered import GRAPHS, require_refused, write_sound


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a few edges be many rounds, blocks of text, and blocks with checksums."""
    monkeypatch.setattr(chunks, "ROUND_EDGES", 40)
    monkeypatch.setattr(rows.HostRows, "round_edges", 40)
    monkeypatch.setattr(build, "ROUND_EDGES", 40)
    monkeypatch.setattr(layout, "BLOCK_BYTES", 200)
    monkeypatch.setattr("featgraph.graph.slices.files.BLOCK_BYTES", 64)
    monkeypatch.setattr(write, "_MOST_FILES", 3)


@st.composite
def edge_lists(draw: st.DrawFn) -> dict[str, Any]:
    """Draw edges with hubs, loops, parallel ones, and vertices without any."""
    count = draw(st.sampled_from([1, 2, 31, 32, 33, 64, 65, 97]))
    size = draw(st.sampled_from([0, 1, 7, 100, 300]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    u, v = rng.integers(0, max(count - draw(st.integers(0, 3)), 1), (2, size))
    v = np.where(rng.random(size) < draw(st.sampled_from([0, 0.4])), count // 2, v)
    v = np.where(rng.random(size) < 0.1, u, v)
    if size > 6:
        u[3:6], v[3:6] = u[0], v[0]
    kinds = {"none": None, "real": rng.random(size).astype(np.float32),
             "integer": rng.integers(-9, 9, size)}  # fmt: skip
    weights = kinds[draw(st.sampled_from(sorted(kinds)))]
    return {"sources": u, "targets": v, "weights": weights, "vertex_count": count,
            "directed": draw(st.booleans())}  # fmt: skip


def require_equal(made: Any, wanted: Any) -> None:
    """Hold a graph in parts to one that was distributed: structure, every bit."""
    assert repr(made) == repr(wanted)
    assert made.digest == wanted.digest
    assert made.weights_digest == wanted.weights_digest
    one, other = made.shard, wanted.shard
    assert np.array_equal(one.partition.cuts, other.partition.cuts)
    assert (one.own, one.edge_count) == (other.own, other.edge_count)
    for name in ("numbers", "ghosts"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    for mine, theirs in zip(one.send_lists, other.send_lists, strict=True):
        assert np.array_equal(mine, theirs)
    for name in ("sources", "targets", "in_degree", "out_degree", "weights"):
        mine, theirs = getattr(one.local, name), getattr(other.local, name)
        assert np.array_equal(mine, theirs), name
        assert getattr(mine, "dtype", None) == getattr(theirs, "dtype", None), name
    assert graph_traits(one.local) == graph_traits(other.local)
    assert np.array_equal(made.given_index, wanted.given_index)
    assert np.array_equal(made.edges.starts, wanted.edges.starts)
    for row in made.given_index[: made.edges.own][:5].tolist():
        assert made.edges.id_of_given(row) == wanted.edges.id_of_given(row)


@given(edge_lists(), st.integers(2, 4), st.sampled_from(["both", "in"]), st.data())
def test_edges_on_any_rank(
    edges: dict[str, Any], ranks: int, along: str, data: st.DataObject
) -> None:
    whole, size = fg.Graph.from_edges(**edges), edges["sources"].size
    cuts = [data.draw(st.integers(0, size)) for _ in range(ranks - 1)]
    cuts = [0, *sorted(cuts), size]

    def on_a_rank(engine: Any) -> None:
        here = slice(*cuts[engine.rank : engine.rank + 2])
        mine = {n: a[here] for n, a in edges.items() if isinstance(a, np.ndarray)}
        made = fg.Graph.from_edges(**{**edges, **mine}, partition="edges", along=along)
        require_equal(made, fg.distribute(whole, along=along))
        if edges["weights"] is not None:
            assert np.array_equal(made.weights, whole.weights)
        assert np.array_equal(made.self_loops, whole.self_loops)

    run_ranks(ranks, on_a_rank)


@settings(max_examples=15)
@given(edge_lists(), st.integers(1, 4), st.sampled_from(["given", "locality"]),
       st.sampled_from(["both", "in"]))  # fmt: skip
def test_slices(
    tmp_path_factory: pytest.TempPathFactory, edges: dict[str, Any], ranks: int,
    order: str, along: str,
) -> None:  # fmt: skip
    whole = fg.Graph.from_edges(**edges)
    path = tmp_path_factory.mktemp("slices") / "graph.fgs"
    write_graph(whole, path, order=order)
    again = fg.read_graph(path)
    for name in ("sources", "targets", "weights"):
        assert np.array_equal(getattr(again, name), getattr(whole, name))
    assert (again.digest, again.directed) == (whole.digest, whole.directed)

    def on_a_rank(engine: Any) -> None:
        made = fg.read_graph(path, partition="edges", along=along)
        if engine.size == 1:
            assert made.digest == whole.digest
            assert made.ranks is None
        else:
            require_equal(made, fg.distribute(whole, along=along, order=order))

    run_ranks(ranks, on_a_rank)


@pytest.mark.parametrize("directed", [True, False])
def test_threads_go_through_pieces(
    directed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "_FEW_BYTES", 1)
    edges = make_edges(directed)
    whole, size = fg.Graph.from_edges(**edges), edges["sources"].size
    write_graph(whole, tmp_path / "graph.fgs")

    def on_a_rank(engine: Any) -> None:
        meant = fg.distribute(whole)
        read = fg.read_graph(tmp_path / "graph.fgs", partition="edges")
        require_equal(read, meant)
        here = slice(size * engine.rank // 3, size * (engine.rank + 1) // 3)
        mine = {n: a[here] for n, a in edges.items() if isinstance(a, np.ndarray)}
        made = fg.Graph.from_edges(**{**edges, **mine}, partition="edges")
        require_equal(made, meant)

    run_ranks(3, on_a_rank)


def write_text(path: Path, edges: dict[str, Any], suffix: str) -> Path:
    """Write edges as text, with comments, empty lines and a last line without end."""
    path = path.with_suffix(suffix)
    u, v, weights = edges["sources"], edges["targets"], edges["weights"]
    if suffix == ".mtx":
        kind = {"i": "integer", "f": "real"}["f" if weights is None
                                             else weights.dtype.kind]  # fmt: skip
        kind = "pattern" if weights is None else kind
        sym = "general" if edges["directed"] else "symmetric"
        if sym == "symmetric":
            u, v = np.maximum(u, v), np.minimum(u, v)
        head = f"%%MatrixMarket matrix coordinate {kind} {sym}\n% {'x' * 90}\n"
        lines = [f"{edges['vertex_count']} {edges['vertex_count']} {u.size}"]
        base = 1
    else:
        head, lines, base = "# edges\n\n", ["from,to,w" if weights is not None
                                            else "from,to"], 0  # fmt: skip
    for i in range(u.size):
        fields = [u[i] + base, v[i] + base]
        fields += [] if weights is None else [weights[i]]
        lines.append(("," if base == 0 else " ").join(map(str, fields)))
        if i % 17 == 3:
            lines.append("# aside" if base == 0 else "% aside")
    path.write_text(head + "\n".join(lines), encoding="utf-8")
    return path


@given(edge_lists(), st.integers(2, 4), st.sampled_from([".csv", ".mtx"]),
       st.booleans())  # fmt: skip
def test_text(
    tmp_path_factory: pytest.TempPathFactory, edges: dict[str, Any], ranks: int,
    suffix: str, is_mixed: bool,
) -> None:  # fmt: skip
    if edges["weights"] is not None and edges["weights"].dtype.kind == "i" and is_mixed:
        weights = edges["weights"].astype(object)
        weights[weights.size * 2 // 3 :] = [0.5] * (
            weights.size - weights.size * 2 // 3
        )
        edges = {**edges, "weights": weights}
        if suffix == ".mtx":
            edges["weights"] = weights.astype(np.float64)
    folder = tmp_path_factory.mktemp("text")
    path = write_text(folder / "graph", edges, suffix)
    options: dict[str, Any] = {}
    if suffix == ".csv":
        options = {"vertex_count": edges["vertex_count"],
                   "directed": edges["directed"]}  # fmt: skip
        if edges["weights"] is not None:
            options["weights"] = "w"
    whole = fg.read_graph(path, **options)
    convert(path, folder / "graph.fgs", **options)
    again = fg.read_graph(folder / "graph.fgs")
    assert (again.digest, again.weights_digest) == (whole.digest, whole.weights_digest)

    def on_a_rank(engine: Any) -> None:
        made = fg.read_graph(path, partition="edges", **options)
        require_equal(made, fg.distribute(whole))

    run_ranks(ranks, on_a_rank)


@pytest.mark.parametrize("word", ["", "no. "])
def test_converted_names(word: str, tmp_path: Path) -> None:
    path, called = tmp_path / "named.txt", word + "14" if word else 14
    pairs = ((7 * i, 7 * (i * i % 90)) for i in range(90))
    path.write_text("".join(f"{word}{u}\t{word}{v}\n" for u, v in pairs))
    convert(path, tmp_path / "named.fgs")
    whole = fg.read_graph(path)

    def on_a_rank(engine: Any) -> Any:
        made = fg.read_graph(tmp_path / "named.fgs", partition="edges")
        require_equal(made, fg.distribute(whole))
        return made.vertex_index(called), np.array(made.vertex_names)

    for index, names in run_ranks(2, on_a_rank):
        assert index == whole.vertex_index(called)
        assert np.array_equal(names, whole.vertex_names)
    assert np.array_equal(
        fg.read_graph(tmp_path / "named.fgs").vertex_names, whole.vertex_names
    )


def make_edges(directed: bool) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    u, v = rng.integers(0, 90, (2, 400))
    v = np.where(rng.random(400) < 0.2, 5, v)
    weights = rng.random(400) + 0.125
    return {"sources": u, "targets": v, "weights": weights, "vertex_count": 97,
            "directed": directed}  # fmt: skip


RUNS: dict[str, tuple[Callable[[Any, str], Any], tuple[bool, ...]]] = {
    "bfs": (lambda g, target: al.bfs(g, [3], target=target).levels, (True, False)),
    "pagerank": (lambda g, target: al.pagerank(g, target=target).ranks, (True, False)),
    "hits": (lambda g, target: al.hits(g, target=target).hubs, (True,)),
    "components": (
        lambda g, target: (
            al.connected_components(g, method="propagate", target=target).labels
        ),
        (True, False),
    ),
    "belief": (
        lambda g, target: (
            al.belief_propagation(
                g,
                np.eye(2)[np.arange(97) % 2] * 0.5 + 0.25,
                np.eye(2) + 0.5,
                max_supersteps=6,
                target=target,
            ).marginals
        ),
        (False,),
    ),
}


#: Programs without results of reduces in their values, and of these the ones whose sums
#: are in one order on a GPU, too.
EXACT = {"bfs", "pagerank", "components", "belief"}
EXACT_ON_GPUS = {"bfs", "components"}


@pytest.mark.filterwarnings("ignore::featgraph.ConvergenceWarning")
@pytest.mark.drawn(8)
@pytest.mark.parametrize(
    ("name", "directed"),
    [(name, d) for name, (_, kinds) in RUNS.items() for d in kinds],
)
def test_programs_have_the_bits_of_one_rank(
    tmp_path: Path, name: str, directed: bool, target: str
) -> None:
    run, _ = RUNS[name]
    whole = fg.Graph.from_edges(**make_edges(directed))
    write_graph(whole, tmp_path / "graph.fgs", order="locality")
    alone = run(whole, target)

    def on_a_rank(engine: Any) -> Any:
        made = fg.read_graph(tmp_path / "graph.fgs", partition="edges")
        return run(made, target), run(fg.distribute(whole, order="locality"), target)

    is_exact = name in (EXACT if target == "cpu" else EXACT_ON_GPUS)
    for found, distributed in run_ranks(3, on_a_rank):
        assert np.array_equal(found, distributed)
        if is_exact:
            assert np.array_equal(found, alone)
        np.testing.assert_allclose(found, alone, rtol=1e-5)


def errors_of(ranks: int, call: Callable[[], Any]) -> list[fg.FeatGraphError]:
    """Return the error of each rank."""

    def on_a_rank(engine: Any) -> fg.FeatGraphError:
        with pytest.raises(fg.FeatGraphError) as caught:
            call()
        return caught.value

    return run_ranks(ranks, on_a_rank)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_graph(fg.Graph.from_edges(**make_edges(True)), tmp_path / "graph.fgs")
    return tmp_path / "graph.fgs"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda f: (f / "sources.bin").unlink(), "a slice is missing"),
    "truncated": (
        lambda f: (f / "weights.bin").write_bytes(
            (f / "weights.bin").read_bytes()[:-8]
        ),
        "a slice is truncated",
    ),
    "longer": (
        lambda f: (f / "rows.bin").write_bytes((f / "rows.bin").read_bytes() + b"x"),
        "too long",
    ),
    "the last byte": (lambda f: flip(f / "sources.bin", -1), "altered"),
    "the first byte": (lambda f: flip(f / "rows.bin", 0), "altered"),
    "offsets": (lambda f: flip(f / "offsets.bin", 16), "altered"),
    "words": (lambda f: flip(f / "words.bin", 0), "altered"),
    "manifest": (lambda f: flip(f / "manifest.json", 60), "manifest"),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "not a folder of slices"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_slices_are_named_on_all_ranks(folder: Path, kind: str) -> None:
    damage, text = DAMAGE[kind]
    damage(folder)
    for error in errors_of(3, lambda: fg.read_graph(folder, partition="edges")):
        assert isinstance(error, fg.FileFormatError)
        assert text in str(error)
        assert str(folder) in str(error)
    with pytest.raises(fg.FileFormatError):
        fg.read_graph(folder)


def test_slices_of_another_graph(folder: Path, tmp_path: Path) -> None:
    edges = make_edges(True)
    edges["sources"] = edges["sources"][::-1]
    write_graph(fg.Graph.from_edges(**edges), tmp_path / "other.fgs")
    for name in ("sources.bin",):
        shutil.copy(tmp_path / "other.fgs" / name, folder / name)
    for error in errors_of(2, lambda: fg.read_graph(folder, partition="edges")):
        assert "altered, or is of another graph" in str(error)


@pytest.mark.drawn(4)
@pytest.mark.parametrize(("kind", "order"), GRAPHS)
@pytest.mark.parametrize(("along", "ranks"), [("both", 2), ("in", 3)])
def test_arrays_that_were_altered_and_signed_again(
    along: str, ranks: int, kind: str, order: str, tmp_path: Path
) -> None:
    """All ranks raise what one finds; a graph with sides is not cut by its words."""
    write_sound(tmp_path / "graph.fgs", kind, order)

    def read(path: Path) -> None:
        errors = []

        def on_a_rank(engine: Any) -> None:
            try:
                fg.read_graph(path, partition="edges", along=along)
            except fg.FileFormatError as error:
                errors.append(error)

        run_ranks(ranks, on_a_rank)
        assert len(errors) in {0, ranks}
        for error in errors:
            raise error

    not_read = {"words"} if kind == "sides" else set()
    require_refused(tmp_path / "graph.fgs", read, frozenset(not_read))


BAD_LINES: dict[str, tuple[str, str]] = {
    ".csv": ("5,x7", "not an integer"),
    ".mtx": ("5 6 7 8", "fields"),
}


@pytest.mark.parametrize("suffix", BAD_LINES)
@pytest.mark.parametrize("place", [0.02, 0.97])
def test_a_garbled_line_is_named_on_all_ranks(
    tmp_path: Path, suffix: str, place: float
) -> None:
    edges = {**make_edges(True), "weights": None}
    path = write_text(tmp_path / "graph", edges, suffix)
    lines = path.read_text().split("\n")
    number = max(int(place * len(lines)), 6)
    lines[number] = BAD_LINES[suffix][0]
    path.write_text("\n".join(lines))
    options = {"names": False} if suffix == ".csv" else {}
    found = errors_of(3, lambda: fg.read_graph(path, partition="edges", **options))
    for error in found:
        assert isinstance(error, fg.FileFormatError)
        assert f"{path}:{number + 1}" in str(error)
        assert BAD_LINES[suffix][1] in str(error)
    with pytest.raises(fg.FileFormatError, match=f":{number + 1}:"):
        fg.read_graph(path, **options)
    with pytest.raises(fg.FileFormatError, match=f":{number + 1}:"):
        convert(path, tmp_path / "graph.fgs", **options)
    assert not (tmp_path / "graph.fgs").exists()


@pytest.mark.parametrize(
    ("claimed", "symmetric", "text"),
    [
        (401, False, "fewer entries than in the header"),
        (399, False, "more entries than in the header"),
        (400, True, "both triangles"),
    ],
)
def test_what_only_all_ranges_show(
    tmp_path: Path, claimed: int, symmetric: bool, text: str
) -> None:
    edges = {**make_edges(True), "weights": None}
    path = write_text(tmp_path / "graph", edges, ".mtx")
    body = path.read_text().replace("97 97 400", f"97 97 {claimed}")
    if symmetric:
        body = body.replace("general", "symmetric")
    path.write_text(body)
    with pytest.raises(fg.FileFormatError) as alone:
        fg.read_graph(path)
    where = str(alone.value).partition(": ")[0]
    for error in errors_of(3, lambda: fg.read_graph(path, partition="edges")):
        assert text in str(error)
        if claimed != 401:  # no line is to blame for those that lack
            assert where in str(error)


def test_parts_take_ranks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public, "is_begun", lambda: False)  # whatever ran before
    with pytest.raises(fg.DistributedError, match=r"init\(\)"):
        fg.Graph.from_edges([0, 1], [1, 2], partition="edges")
    with pytest.raises(fg.DistributedError, match=r"init\(\)"):
        fg.read_graph(folder, partition="edges")


def test_refusals_name_a_fix(folder: Path, tmp_path: Path) -> None:
    ends = [0, 1], [1, 2]
    gaps = tmp_path / "gaps.txt"
    gaps.write_text("0 5\n5 9\n9 0\n")
    words, decimals = tmp_path / "words.csv", tmp_path / "decimals.csv"
    words.write_text("ann,bob\nbob,cid\n")
    decimals.write_text("source;target;weight\n" + "0;1;2,5\n" * 40)
    wide = tmp_path / "wide.txt"
    wide.write_text("source target\n" + "7 0 1\n" * 40)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: fg.read_graph(folder, partition="edges", order="locality"),
         "featgraph convert --order locality"),
        (lambda: fg.read_graph(folder, partition="edges", order="shuffled"), "given"),
        (lambda: fg.read_graph(folder, partition="blocks"), "'edges'"),
        (lambda: fg.read_graph(folder, along="in"), 'partition="edges"'),
        (lambda: fg.read_graph(folder, partition="edges", weights=2), "convert"),
        (lambda: fg.read_graph(folder, partition="edges", directed=False), "directed"),
        (lambda: fg.read_graph(gaps, partition="edges"), "names=False"),
        (lambda: fg.read_graph(words, partition="edges"), "fix:      make slices"),
        (lambda: fg.read_graph(decimals, partition="edges", weights="auto"),
         ":2: not a weight"),
        (lambda: fg.read_graph(wide, partition="edges"), ":1: the header is not as"),
        (lambda: fg.read_graph(gaps, partition="edges", duplicates="sum"), "convert"),
        (lambda: fg.read_graph(tmp_path / "a.zip", partition="edges"), "suffix"),
        (lambda: fg.read_graph(gaps, partition="edges", sep=","), "no such option"),
        (lambda: fg.read_graph(gaps, partition="edges", vertex_count=2**40), "count"),
        (lambda: fg.read_graph(gaps, partition="edges", names=False, comments="…"),
         "ASCII"),
        (lambda: fg.Graph.from_edges(*ends, partition="edges", names=True), "names="),
        (lambda: fg.Graph.from_edges([], [], partition="edges"), "vertex_count"),
        (lambda: fg.Graph.from_edges([0], [-1], partition="edges"), "out of range"),
    ]  # fmt: skip
    for call, text in calls:
        for error in errors_of(2, call):
            assert text in str(error), str(error)
    old = tmp_path / "old.txt"
    old.write_bytes(b"0 1\r1 2\r2 0\r")
    for call in (
        lambda: fg.read_graph(old),
        lambda: convert(old, tmp_path / "old.fgs"),
    ):
        with pytest.raises(fg.FileFormatError, match="carriage return"):
            call()


@pytest.mark.parametrize("dtype", ["u1", "i2", ">i4", ">u4", "u8"])
def test_ids_of_any_integer_type(dtype: str) -> None:
    u, v = np.array([0, 1, 2, 40], dtype), np.array([1, 2, 0, 40], dtype)
    whole = fg.Graph.from_edges([0, 1, 2, 40] * 2, [1, 2, 0, 40] * 2)

    def on_a_rank(engine: Any) -> None:
        made = fg.Graph.from_edges(u, v, partition="edges")
        require_equal(made, fg.distribute(whole))

    run_ranks(2, on_a_rank)


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    def on_a_rank(engine: Any) -> None:
        with pytest.raises(FileNotFoundError, match=r"no\.fgs"):
            fg.read_graph(tmp_path / "no.fgs", partition="edges")

    run_ranks(2, on_a_rank)


@pytest.mark.parametrize("line", ["# " + "7 8 " * 100, "0 1" + " " * 300])
def test_lines_that_are_longer_than_blocks(tmp_path: Path, line: str) -> None:
    path = tmp_path / "long.txt"
    path.write_text(f"0 1\n1 2\n{line}\n2 0\n{line}\n")
    whole = fg.read_graph(path)
    convert(path, tmp_path / "long.fgs")
    assert fg.read_graph(tmp_path / "long.fgs").digest == whole.digest

    def on_a_rank(engine: Any) -> None:
        require_equal(fg.read_graph(path, partition="edges"), fg.distribute(whole))

    run_ranks(3, on_a_rank)


def test_a_count_of_vertices_beside_names(tmp_path: Path) -> None:
    path = tmp_path / "plain.txt"
    path.write_text("0 1\n1 2\n2 0\n")
    options: dict[str, Any] = {"names": True, "vertex_count": 40}
    whole = fg.read_graph(path, **options)
    assert whole.vertex_count == 40
    convert(path, tmp_path / "plain.fgs", **options)
    assert fg.read_graph(tmp_path / "plain.fgs").digest == whole.digest

    def on_a_rank(engine: Any) -> None:
        made = fg.read_graph(path, partition="edges", **options)
        require_equal(made, fg.distribute(whole))

    run_ranks(2, on_a_rank)
    options["vertex_count"] = 2
    for error in errors_of(
        2, lambda: fg.read_graph(path, partition="edges", **options)
    ):
        assert "contradicts" in str(error)
    with pytest.raises(fg.GraphInputError, match="contradicts"):
        convert(path, tmp_path / "two.fgs", **options)


def test_ranks_that_make_different_graphs() -> None:
    def made(**others: Any) -> Callable[[], Any]:
        def call() -> Any:
            rank = fg.distributed.current_engine().rank
            mine = {name: values[rank] for name, values in others.items()}
            return fg.Graph.from_edges([0, 1], [1, 2], partition="edges", **mine)

        return call

    for call in (
        made(vertex_count=[3, 4]),
        made(weights=[None, [1, 2]]),
        made(weights=[[1, 2], [0.5, 2]]),
        made(directed=[True, False]),
    ):
        for error in errors_of(2, call):
            assert isinstance(error, fg.GraphInputError)
    for error in errors_of(
        2,
        lambda: fg.Graph.from_edges(
            [0, 7 if fg.distributed.current_engine().rank else 1], [1, 2],
            vertex_count=3, partition="edges",
        ),
    ):  # fmt: skip
        assert "sources[1]" in str(error)


def test_a_negative_weight_on_one_rank_is_raised_on_all() -> None:
    edges = make_edges(True)
    edges["weights"][399] = -1

    def call() -> Any:
        rank = fg.distributed.current_engine().rank
        here = slice(200 * rank, 200 * rank + 200)
        mine = {n: a[here] for n, a in edges.items() if isinstance(a, np.ndarray)}
        graph = fg.Graph.from_edges(**{**edges, **mine}, partition="edges")
        return al.pagerank(graph)

    for error in errors_of(2, call):
        assert "edge 399" in str(error)


def test_ranks_that_make_a_graph_of_edges_load(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def seen(*given: Any) -> Any:
        found.append(ACTIVITY.kind)
        return build.build(*given)

    monkeypatch.setattr(public, "build", seen)
    ends = [0, 1], [1, 2]
    run_ranks(2, lambda engine: fg.Graph.from_edges(*ends, partition="edges"))
    assert found == ["loading"] * 2
    assert ACTIVITY.kind == "computing"


def test_a_graph_of_one_rank_alone_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class OfTwo(fg.distributed.NullEngine):
        def __init__(self) -> None:
            super().__init__()
            self.size = 2

    monkeypatch.setattr(public, "_has_warned", [])
    monkeypatch.setattr(public, "engine_of_process", [OfTwo()])
    monkeypatch.setattr(public, "current_engine", lambda: public.engine_of_process[0])
    graph = fg.Graph.from_edges([0], [1])
    with pytest.warns(fg.DistributedWarning, match="belongs to this rank alone"):
        fg.State(graph, x=fg.vertex_property(0))
    fg.State(graph, x=fg.vertex_property(0))
