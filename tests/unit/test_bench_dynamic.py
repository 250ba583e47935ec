"""The benches of graphs that change: every contender is right, and faults are seen."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench import run as runner
from bench.dynamic import batches, contenders, following, stream, tables
from bench.record import ROOT, Recorder, child_environment

BENCHES: dict[str, Any] = {
    "dynamic-batches": batches,
    "dynamic-following": following,
    "dynamic-stream": stream,
    "dynamic-tables": tables,
}


def run(name: str, **given: Any) -> Recorder:
    recorder = Recorder(name, [name], None)
    module = BENCHES[name]
    module.run(SimpleNamespace(**{**module.DEFAULTS, **given}), recorder)
    return recorder


@pytest.mark.parametrize("name", BENCHES)
def test_commands_of_kept_lines_can_be_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each option that a line was made with, and names of contenders."""
    kept = (ROOT / "bench/results").glob("dynamic-*.jsonl")
    texts = [text for path in kept for text in path.read_text().splitlines()]
    lines = [*map(json.loads, texts)]
    begin = f"python -m bench.run {name}"
    commands = {line["command"] for line in lines if line["bench"] == name}
    unnamed = [one["command"] for one in lines if not one["device"]]
    assert not [command for command in unnamed if "--target cuda" in command]
    monkeypatch.setattr(BENCHES[name], "run", lambda arguments, recorder: None)
    assert commands
    for command in commands:
        assert command.startswith(begin)
        assert runner.main([name, *shlex.split(command.removeprefix(begin))]) == 0


def test_batches_are_right_by_every_contender() -> None:
    recorder = run(
        "dynamic-batches",
        graph=["rmat-7-4"],
        sizes=[20],
        repeat=1,
        rounds=1,
        mixed=True,
    )
    assert not recorder.has_failures
    made = {(line["contender"], line["operation"]) for line in recorder.lines}
    operations = ["initialise", "insert", "delete", "protocol", "stacked"]
    kinds = {name: contenders.CONTENDERS[name] for name in contenders.USUAL}
    on_host = {name for name, kind in kinds.items() if not kind.is_there}
    assert made >= {(c, o) for c in on_host for o in operations}
    assert made >= {("dynamic", "mixed"), ("dynamic", "two batches")}


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_edges_and_drawn_ones_are_there_once(directed: bool, both: bool) -> None:
    ends = np.random.default_rng(0).integers(0, 9, (2, 60))
    graph = tables.fg.Graph.from_edges(*ends, vertex_count=9, directed=directed)
    pairs = set(zip(*ends.tolist(), strict=True))
    if not directed:
        pairs = {(u, v) for u, v in pairs | {(v, u) for u, v in pairs}
                 if both or u <= v}  # fmt: skip
    base = batches.edges_once(graph, both)
    assert [*zip(base.sources, base.targets, strict=True)] == sorted(
        pairs, key=lambda pair: pair[::-1]
    )
    one_way = not (both or directed)
    drawn = batches.draw_batch(base, 9, 5, "random", both=not one_way)
    found = {*zip(drawn.sources.tolist(), drawn.targets.tolist(), strict=True)}
    assert len(found) == 5
    assert not found & pairs
    assert all(u <= v for u, v in found) or not one_way


def test_a_contender_that_loses_edges_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    insert = contenders.Sorted.insert

    def losing(self: Any, batch: Any) -> None:
        insert(self, batch.split(2)[0] if self.keys.size else batch)

    monkeypatch.setattr(contenders.Sorted, "insert", losing)
    recorder = run(
        "dynamic-batches", graph=["rmat-7-4"], sizes=[20], repeat=1, only=["sort all"]
    )
    assert recorder.has_failures


def test_updates_and_streams_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = run(
        "dynamic-following", graph=["kron-7"], sizes=[1, 0.01], repeat=1,
        only=["pagerank", "triangle_count"], kinds=["both"],
    )  # fmt: skip
    assert not recorder.has_failures
    assert len(recorder.lines) == 8
    rng = np.random.default_rng(0)
    events = stream.fg.TemporalEdges(
        *rng.integers(0, 40, (2, 900)), rng.integers(0, 60 * stream.DAY, 900)
    )
    monkeypatch.setattr(stream, "read_events", lambda: (events, "drawn here"))
    recorder = run("dynamic-stream", days=[20, 2], skip=0, repeat=4)
    assert not recorder.has_failures
    parts = {(line["contender"], line["what"]) for line in recorder.lines}
    assert ("following", "step") in parts
    assert ("anew", "triangle_count") in parts
    recorder = run("dynamic-stream", days=[20, 2], skip=0, repeat=4, directed=True)
    assert not recorder.has_failures
    counted = {line["what"]: line for line in recorder.lines if "by_calls" in line}
    assert {*counted} == {*stream.RESULTS[True]}
    assert all(line["evaluated"] > 0 for line in counted.values())
    components = counted["connected_components"]  # anew, they pass over each edge once
    assert components["by_calls"] == pytest.approx(components["edges"], rel=0.2)


@pytest.mark.parametrize(
    "name", [n for n in contenders.CONTENDERS if n not in contenders.USUAL]
)
def test_columns_and_peers_are_right(name: str) -> None:
    package = contenders.CONTENDERS[name].package
    pytest.importorskip(package, reason=f"{package} is a peer")
    recorder = run(
        "dynamic-batches", graph=["kron-6"], sizes=[1, 9], repeat=1, only=[name]
    )
    assert not recorder.has_failures
    operations = {line["operation"] for line in recorder.lines}
    is_there = contenders.CONTENDERS[name].is_there
    assert operations == (set() if is_there else {"initialise", "insert", "delete"})


def tables_of(**given: Any) -> Recorder:
    few = {"graph": ["kron-7"], "sizes": [9], "repeat": 1, "rounds": 12}
    return run("dynamic-tables", **few, only=["bfs", "k_truss"], **given)


def test_tables_are_right() -> None:
    recorder = tables_of()
    assert not recorder.has_failures
    rounds = {
        line["kind"]: (line["compactions"], line["most_used_per_edge"])
        for line in recorder.lines
        if line.get("operation") == "rounds"
    }
    for kind in ("uniform", "sweep", "random"):
        compactions, most = rounds[f"{kind}, no reuse"]
        assert compactions == 0
        assert most > rounds[kind][1]
    again = [line for line in recorder.lines if "names_ms" in line]
    assert len(again) == 4 * 3
    for line in again:
        stages = line["names_ms"], line["queue_ms"], line["rows_ms"]
        assert 0 < sum(stages) < 2 * line["processor_ms"]
        assert (line["names_ms"] > 0) == ("names" in line["kind"])
    means = [line for line in recorder.lines if line["contender"] == "geometric mean"]
    assert [line["operation"] for line in means] == ["fresh", "aged", "compacted"]
    used = {
        line["operation"]: line["used_per_edge"]
        for line in recorder.lines
        if line["contender"] == "bfs"
    }
    assert used["aged"] > used["compacted"]


def test_pagerank_and_triangles_of_both_graphs_are_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = tables_of(tables=["pages"])
    assert not recorder.has_failures
    assert len(recorder.lines) == 2 * 2 * 5
    drop = tables.fg.DynamicGraph.freeze

    def losing(graph: Any) -> Any:
        graph.delete_edges(*(ends[:1] for ends in graph.edges()[:2]))
        return drop(graph)

    monkeypatch.setattr(tables.fg.DynamicGraph, "freeze", losing)
    assert tables_of(tables=["pages"]).has_failures


def test_a_table_of_wrong_answers_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tables.algorithms.bfs

    def other(graph: Any, *given: Any, **options: Any) -> Any:
        is_changing = isinstance(graph, tables.fg.DynamicGraph)
        return plain(graph, *(g + is_changing for g in given), **options)

    monkeypatch.setattr(tables.algorithms, "bfs", other)
    assert tables_of(tables=["algorithms"]).has_failures


#: Runs under Numba's simulator of CUDA, which has to be chosen before it is imported.
ON_PAGES = """
import numpy as np
from numba import cuda
from bench.dynamic import contenders, pages

pages.cuda_array = lambda array: cuda.to_device(np.ascontiguousarray(array))
pages.THREADS = 32
keys = np.random.default_rng(0).permutation(12 * 40)[:200]

def edges(keys):
    ends = (keys % 40).astype(np.int32), (keys // 40).astype(np.int32)
    return pages.Pages.place(contenders.Edges(*ends, np.ones(keys.size)))

def check(holder, expected):
    arrays = [array.copy_to_host() for array in holder.arrays]
    (first, degree, locks), held, ring, (waiting, head, tail, made) = arrays
    found, used = [], set()
    for row in range(12):
        page = first[row]
        for k in range(degree[row]):
            page = held[page, 15] if k and k % 15 == 0 else page
            used.add(int(page))
            found.append(int(40 * row + held[page, k % 15]))
    free = [int(ring[(head + i) % ring.size]) for i in range(waiting)]
    assert sorted(found) == sorted(expected.tolist()) and not locks.any()
    assert sorted([*used, *free]) == list(range(made)), (used, free, made)

base, more = np.sort(keys[:120]), keys[100:]
holder = pages.Pages(edges(base), 12)
for _ in range(2):
    holder.insert(edges(more))
    check(holder, keys)
    holder.delete(edges(more))
    check(holder, keys[:100])
    holder.insert(edges(base))
    check(holder, base)

is_edge = np.random.default_rng(1).random((40, 40)) < 0.3
is_edge[:, 7] = is_edge[7] = True  # rows of one page to three, and one without edges
is_edge = np.triu(is_edge, 1) | np.triu(is_edge, 1).T
is_edge[5] = is_edge[:, 5] = False
matrix, expected = is_edge.astype(int), np.full(40, 1 / 40)
for _ in range(3):
    expected = 0.15 / 40 + 0.85 * matrix @ (expected / matrix.sum(0).clip(1))
corners = (matrix @ matrix * matrix).sum(0) // 2
keys = np.flatnonzero(is_edge)
for is_sorted in (True, False):
    keys = np.sort(keys) if is_sorted else np.random.default_rng(2).permutation(keys)
    holder = pages.Pages(edges(keys), 40)
    for how in pages.STRATEGIES:
        pieces = holder.pieces(how)
        np.testing.assert_allclose(holder.ranks(pieces, 3), expected, 1e-5)
        found = holder.triangles(pieces, is_sorted)
        np.testing.assert_array_equal(found, corners, how)
"""


#: Nothing, or text that makes the counters or the pieces wrong.
FAULTS = [
    "",
    "pages.TAIL = 1\n",
    "pages.NEXT = 0\n",
    "pages.STRATEGIES['page'] = 16, 1\n",
]


@pytest.mark.parametrize("fault", FAULTS)
def test_pages_and_locks(fault: str) -> None:
    script = ON_PAGES.replace("keys = ", f"{fault}keys = ", 1)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False,
        env=child_environment() | {"NUMBA_ENABLE_CUDASIM": "1"},
    )  # fmt: skip
    assert ("AssertionError" in done.stderr) == bool(fault), done.stderr
    assert (done.returncode == 0) == (not fault), done.stderr
