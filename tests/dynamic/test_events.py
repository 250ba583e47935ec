"""Windows over temporal edges: batches lead from each interval to the next."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import featgraph as fg

Edges = dict[Any, list[tuple[Any, Any]]]


def pair_of(u: Any, v: Any, directed: bool) -> Any:
    return (u, v) if directed else (min(u, v), max(u, v))


def in_interval(
    events: list[Any], begin: Any, end: Any, policy: tuple[bool, str, str]
) -> Edges:
    """Return copies of each pair in an interval, from the events alone."""
    directed, duplicates, loops = policy
    found: Edges = {}
    for u, v, time, weight in sorted(events, key=lambda event: event[2]):
        if begin <= time < end and (u != v or loops == "keep"):
            found.setdefault(pair_of(u, v, directed), []).append((time, weight))
    if duplicates == "last":
        found = {pair: copies[-1:] for pair, copies in found.items()}
    return found


def edges_of(graph: fg.DynamicGraph, directed: bool) -> Edges:
    """Return the copies of each pair, in the order of insertion."""
    names = graph.vertex_names
    sources, targets, columns = graph.edges()
    found: Edges = {}
    for i, (u, v) in enumerate(zip(sources.tolist(), targets.tolist(), strict=True)):
        pair = pair_of(*((u, v) if names is None else (names[u], names[v])), directed)
        values = columns["time"][i], columns["weight"][i]
        found.setdefault(pair, []).append(values)
    return found


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 80),
    length=st.integers(1, 20),
    step=st.sampled_from([1, 2, 5, 19, 21, 30]),
    start=st.none() | st.integers(-15, 5),
    directed=st.booleans(),
    duplicates=st.sampled_from(["last", "keep"]),
    loops=st.sampled_from(["keep", "drop"]),
    kind=st.sampled_from(
        [("i8", 0, 1), ("f8", 0, 0.25), ("i1", 77, 1), ("i1", -119, 1), ("u8", 9, 1),
         ("u8", 2**63 - 20, 1), ("i8", 2**60 + 1, 1)]
    ),
)  # fmt: skip
def test_batches_lead_from_each_interval_to_the_next(
    seed: int, count: int, length: int, step: int, start: Any, directed: bool,
    duplicates: str, loops: str, kind: Any,
) -> None:  # fmt: skip
    """Of times at the limits of their types, too."""
    dtype, origin, scale = kind
    policy, rng = (directed, duplicates, loops), np.random.default_rng(seed)
    ends = rng.integers(0, rng.integers(1, 5), (2, count))
    drawn = zip(*ends, rng.integers(-9, 50, count), range(count), strict=True)
    events = [(u, v, t.item() * scale + origin, w) for u, v, t, w in drawn]
    last = max(event[2] for event in events)
    start = None if start is None else min(start * scale + origin, last)
    u, v, times, weights = map(list, zip(*events, strict=True))
    stamps = np.array(times, dtype)
    window = fg.TemporalEdges(u, v, stamps, weights).window(
        length=length * scale, step=step * scale, start=start
    )
    graph = window.graph(
        directed=directed, duplicates=duplicates, loops=loops, target="cpu"
    )
    begin, known, came = min(times) if start is None else start, set(), []
    for batch in [None, *window]:
        if batch is not None:
            assert last >= begin + length * scale
            begin += step * scale
            assert (batch.begin, batch.end) == (begin, begin + length * scale)
            assert graph.update(batch).missing == 0
            came.append(batch.insert.tolist())
        expected = in_interval(events, begin, begin + length * scale, policy)
        assert edges_of(graph, directed) == expected
        known |= {end for pair in expected for end in pair}
        names = set(np.asarray(graph.vertex_names).tolist())
        assert known == names if loops == "keep" else known <= names
        if batch is not None and duplicates == "last":  # an edge keeps its place
            ends = zip(batch.sources, batch.targets, batch.insert, strict=True)
            gone = {pair_of(u, v, directed) for u, v, came in ends if not came}
            assert not gone & expected.keys()
    assert last < begin + length * scale or last < begin  # it may lie between two
    assert graph.version <= len(window) == len(came)
    assert [batch.insert.tolist() for batch in window] == came


def test_events_are_sorted_by_time_and_keep_names() -> None:
    events = fg.TemporalEdges(["b", "a", "c"], ["a", "c", "b"], [3, 1, 3], [1.5, 2, 3])
    assert events.sources.tolist() == ["a", "b", "c"]
    assert events.targets.tolist() == ["c", "a", "b"]
    assert events.times.tolist() == [1, 3, 3]
    assert events.weights is not None
    assert events.weights.tolist() == [2, 1.5, 3]
    assert len(events) == 3
    pairs = fg.TemporalEdges([10, 10], [-3, 10], [0.5, 0.25])
    assert pairs.targets.tolist() == [10, -3]
    assert pairs.weights is None
    tuples = np.empty(1, object)
    tuples[0] = (1, 2)
    assert fg.TemporalEdges(tuples, tuples, [1]).sources[0] == (1, 2)


EVENTS = fg.TemporalEdges([1], [2], [3], [4])
WINDOW = EVENTS.window(length=1, step=1)


@pytest.mark.parametrize(
    ("call", "given", "error", "text"),
    [
        *((fg.TemporalEdges, given, fg.GraphInputError, text) for given, text in [
            (([], [], []), "no events"),
            (([1], [1, 2], [1]), "1 sources and 2 targets"),
            (([1], [2], [1, 2]), "as many times"),
            (([1], [2], [np.inf]), r"times\[0\]"),
            (([1, 1], [2, 2], [1, np.nan]), r"times\[1\]"),
            (([1], [2], ["soon"]), "times"),
            (([1], [2], [1], [np.nan]), r"weights\[0\]"),
            (([1.5], [2], [1]), "integers, strings"),
        ]),
        *((EVENTS.window, given, fg.GraphInputError, text) for given, text in [
            ({"length": 0, "step": 1}, "length"), ({"length": 1, "step": -1}, "step"),
            ({"length": 1, "step": float("inf")}, "step"),
            ({"length": 1, "step": 1, "start": 4}, "start"),
        ]),
        (EVENTS.window, {"length": "a year", "step": 1}, fg.ArgumentError, "length"),
        (next, [iter(EVENTS.window(length=1, step=1))], fg.StateError, "no graph"),
        (WINDOW.graph, {"directed": False}, fg.StateError, "another window"),
        (WINDOW.graph, {"duplicates": "first"}, fg.ArgumentError, "duplicates"),
    ],
)  # fmt: skip
def test_events_and_windows_refuse_what_is_none(
    call: Any, given: Any, error: Any, text: str
) -> None:
    WINDOW.graph(target="cpu")
    with pytest.raises(error, match=text):
        call(**given) if isinstance(given, dict) else call(*given)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"# u v t\n5 9 30\n9 5 10 \n\n7 5 20\n",
         ([9, 7, 5], [5, 5, 9], [10, 20, 30], None)),
        (gzip.compress(b"5 9 30\n9 5 10\n"), ([9, 5], [5, 9], [10, 30], None)),
        (b"ann,bob,1.5,2\nbob,cid,0.5,-3\n",
         (["bob", "ann"], ["cid", "bob"], [0.5, 1.5], [-3, 2])),
    ],
)  # fmt: skip
def test_read_temporal(tmp_path: Path, text: bytes, expected: Any) -> None:
    path = tmp_path / "events.data"
    path.write_bytes(text)
    events = fg.read_temporal(path)
    names = "sources", "targets", "times", "weights"
    for name, values in zip(names, expected, strict=True):
        found = getattr(events, name)
        assert (found if found is None else found.tolist()) == values
    assert events.times.dtype == np.array(expected[2]).dtype


@pytest.mark.parametrize(
    "text",
    [
        "", "# nothing\n", "1 2\n3 4\n", "1 2 3\n1 2\n", "1 2 3\n1 2 soon\n",
        "1 2 nan\n", "1 2 inf\n", "1 2 3 4 5\n", "1 2 3 nan\n", "1 2 3\n1 2 3 4\n",
        "\x1f\x8b damaged",
    ],
)  # fmt: skip
def test_read_temporal_refuses_what_is_no_stream(tmp_path: Path, text: str) -> None:
    path = tmp_path / "events.txt"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(fg.FileFormatError) as error:
        fg.read_temporal(path)
    assert "events.txt" in str(error.value)


def test_a_batch_of_a_window_has_all_its_values() -> None:
    window = fg.TemporalEdges([0, 1], [1, 2], [0, 5]).window(length=2, step=5)
    graph = window.graph(directed=True, duplicates="last", loops="drop", target="cpu")
    [batch], before = window, graph.version
    for name, value in (("weights", [1.0]), ("insert", False), ("columns", {})):
        with pytest.raises(fg.GraphInputError, match="has all its values") as error:
            graph.update(batch, **{name: value})
        assert f"{name}=" in str(error.value)
    assert graph.version == before
    assert graph.update(batch, copies="all").inserted == 1  # the default
