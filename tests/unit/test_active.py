"""Active sets: bitvectors of every length, and what is no set of vertices."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import featgraph as fg
from featgraph.program.active import word_count
from featgraph.runtime.devices.choose import choose_device


@pytest.mark.parametrize("count", range(261))
def test_every_length(count: int) -> None:
    full, empty = fg.ActiveSet(count, "all"), fg.ActiveSet(count)
    assert len(full) == count
    assert len(empty) == 0
    assert full.words.size == word_count(count) == -(-count // 32)
    assert full.vertices.tolist() == list(range(count))
    assert full.mask.all()
    assert full.mask.size == count
    assert not empty.mask.any()
    tail = count % 32
    if tail:
        assert int(full.words[-1]) == (1 << tail) - 1, "tail bits are zero"
    assert count not in full
    assert -1 not in full
    if count:
        last = fg.ActiveSet(count, [count - 1])
        assert last.vertices.tolist() == [count - 1]
        assert count - 1 in last
        assert last.words.dtype == np.uint32
    again = fg.ActiveSet(count, full.mask)
    assert again == full
    assert (full == empty) == (count == 0)


def test_ids_and_masks(rng: np.random.Generator) -> None:
    for count, share in itertools.product((1, 31, 32, 33, 100, 3000), (0.5, 0.01)):
        mask = rng.random(count) < share
        by_mask = fg.ActiveSet(count, mask)
        by_ids = fg.ActiveSet(count, np.flatnonzero(mask))
        shuffled = rng.permutation(np.repeat(np.flatnonzero(mask), 2))
        assert by_mask == by_ids == fg.ActiveSet(count, shuffled)
        np.testing.assert_array_equal(by_ids.mask, mask)
        small = (np.int8, np.uint8) if count <= 128 else (np.int16,)
        for dtype in (*small, np.int64, np.uint64):
            assert fg.ActiveSet(count, np.flatnonzero(mask).astype(dtype)) == by_mask


@pytest.mark.parametrize("ids", [[0, 31, 32, 4063], [4095], range(5, 4000, 9)])
def test_some_vertices_of_many_are_listed(ids: Sequence[int]) -> None:
    assert fg.ActiveSet(4096, ids).vertices.tolist() == list(ids)


@pytest.mark.parametrize("ids", [[], [33], [33, 0, 33], [1, 0, 32, 39]], ids=str)
def test_few_vertices_are_set_where_they_are_read(ids: list[int]) -> None:
    device, expected = choose_device("cpu"), sorted(set(ids))
    few = fg.ActiveSet(40, ids)
    assert few._few is not None
    assert len(few) == len(expected)
    there = np.array(few.on(device))
    there[:] ^= few.on(device)
    assert not there.any(), "each is another array"
    assert few._few is not None
    assert fg.ActiveSet.from_words(40, few.on(device)).vertices.tolist() == expected
    assert few.copy().vertices.tolist() == expected
    few.words[0] |= 4  # from here on the words are the set
    assert few.vertices.tolist() == sorted({2, *expected})
    assert np.array_equal(few.on(device), few.words)
    assert len(few) == len({2, *expected})
    pickled = pickle.loads(pickle.dumps(fg.ActiveSet(40, ids)))
    assert pickled.vertices.tolist() == expected


def test_copies() -> None:
    mask = np.ones(40, np.bool_)
    made = fg.ActiveSet(40, mask)
    mask[:] = False
    assert len(made) == 40
    other = made.copy()
    other.words = np.zeros(2, np.uint32)
    assert len(made) == 40
    assert len(other) == 0
    with pytest.raises(TypeError, match="unhashable"):
        hash(made)


BAD = {
    "out of range": ([0, 40], "vertex id out of range", "active set[1]", "40"),
    "negative": ([-1], "vertex id out of range", "active set[0]", "-1"),
    "huge": ([2**62], "vertex id out of range", "active set[0]", str(2**62)),
    "unsigned": (
        np.array([2**63], np.uint64),
        "out of range",
        "active set[0]",
        str(2**63),
    ),
    "floats": ([0.0, 1.0], "integer ids or a boolean mask", "active set", "float64"),
    "nan": ([np.nan], "integer ids or a boolean mask", "active set", "float64"),
    "strings": (["a"], "not an array of numbers", "active set", "<U1"),
    "objects": ([object()], "not an array of numbers", "active set", "object"),
    "masked": (
        np.ma.array([0, 1], mask=[True, False]),
        "masked entries",
        "active set",
        "1 masked of 2",
    ),
    "ragged": ([[0], [0, 1]], "different lengths", "row 1", "[0, 1]"),
    "a number": (3, "integer ids or a boolean mask", "active set", "shape ()"),
    "a string": ("some", "not an array of numbers", "active set", "<U4"),
    "two dimensions": (
        [[0, 1]],
        "integer ids or a boolean mask",
        "active set",
        "(1, 2)",
    ),
    "short mask": ([True] * 39, "one entry per vertex", "active set", "(39,)"),
    "long mask": ([True] * 41, "one entry per vertex", "active set", "(41,)"),
    "flat mask": ([[True] * 40], "one entry per vertex", "active set", "(1, 40)"),
}


@pytest.mark.parametrize(("given", "what", "where", "got"), BAD.values(), ids=BAD)
def test_no_set(given: Any, what: str, where: str, got: str) -> None:
    with pytest.raises(fg.GraphInputError) as caught:
        fg.ActiveSet(40, given)
    error = caught.value
    assert isinstance(error, ValueError)
    assert what in error.what
    assert where in str(error.where)
    assert got in str(error.got)
    assert error.expected


def test_empty_lists_of_any_type() -> None:
    for given in ([], np.zeros(0), np.zeros(0, np.int8), ()):
        assert len(fg.ActiveSet(40, given)) == 0


def test_graphs_give_the_count() -> None:
    graph = fg.Graph.from_edges([0, 1], [1, 2])
    assert fg.ActiveSet(graph, "all").vertex_count == 3
    assert repr(fg.ActiveSet(graph, [1])) == "ActiveSet(1 of 3 vertices)"


@fg.vertex
def count_up(f, v, d):
    d.x_next[v] = d.x[v] + 1
    return d.x[v] < 1


STEP = fg.vertexmap(count_up)


@pytest.mark.parametrize("name", ["active_in", "on", "active", "then"])
def test_masked_out_vertices_never_run(name: str) -> None:
    graph = fg.Graph.from_edges([0, 1], [1, 2])
    state = fg.State(graph, x=fg.vertex_property([0.0, 0.0, 0.0], iterated=True))
    given = np.ma.array([0, 1], mask=[False, True])
    calls = {
        "active_in": lambda: STEP(state, active_in=given, target="cpu"),
        "on": lambda: STEP.on(given)(state, target="cpu"),
        "active": lambda: fg.iterate(STEP, state, active=given, target="cpu"),
        "then": lambda: fg.iterate(
            STEP, state, active=[0], then=lambda *_: given, target="cpu"
        ),
    }
    with pytest.raises(fg.GraphInputError, match="masked entries"):
        calls[name]()
    assert state["x"].tolist() == [1 if name == "then" else 0, 0, 0]
