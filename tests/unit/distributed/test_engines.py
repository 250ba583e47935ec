"""The five calls of engines, on loopback ranks and on one, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.distributed import Engine, NullEngine, run_ranks
from featgraph.ranks.engines import messages
from tests.strategies import seeds

DTYPES = ["?", "i1", "u4", "i8", "f4", "f8"]
sizes = st.integers(1, 5)


def drawn(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    return rng.integers(0, 100, shape).astype(dtype)


@given(sizes, seeds, st.sampled_from(DTYPES), st.integers(0, 9), st.booleans())
def test_reduces_are_those_of_numpy(
    size: int, seed: int, dtype: str, rows: int, by_pieces: bool
) -> None:
    rng = np.random.default_rng(seed)
    arrays = [drawn(rng, dtype, (rows, 3)) for _ in range(size)]
    kind = np.dtype(dtype).kind
    names = [n for n, (_, kinds) in messages.OPERATORS.items() if kind in kinds]

    def reduce_all(engine: Engine) -> list[Any]:
        return [engine.all_reduce(arrays[engine.rank], name) for name in names]

    with pytest.MonkeyPatch.context() as patch:
        if by_pieces:
            patch.setattr(messages, "WHOLE_BYTES", -1)
        results = run_ranks(size, reduce_all)
    for rank in range(size):
        for name, result in zip(names, results[rank], strict=True):
            expected = arrays[0]
            for other in arrays[1:]:
                expected = messages.OPERATORS[name][0](expected, other)
            assert result.dtype == expected.dtype
            assert result.shape == expected.shape
            assert result.tobytes() == expected.tobytes()


def test_sums_have_one_order_whatever_their_size() -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((3, 20_000)).astype(np.float32)
    assert values[0].nbytes > messages.WHOLE_BYTES
    wide = run_ranks(3, lambda e: e.all_reduce(values[e.rank], "sum"))
    narrow = run_ranks(3, lambda e: e.all_reduce(values[e.rank, :9], "sum"))
    for rank in range(3):
        assert wide[rank].tobytes() == wide[0].tobytes()
        assert wide[rank][:9].tobytes() == narrow[rank].tobytes()


@given(sizes, seeds, st.sampled_from(DTYPES), st.sampled_from([(), (1,), (2, 3)]))
def test_rows_go_where_they_were_sent(
    size: int, seed: int, dtype: str, row: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 4, (size, size))
    sent = [[drawn(rng, dtype, (n, *row)) for n in own] for own in counts]
    whole = [drawn(rng, dtype, row) for _ in range(size)]
    root = int(rng.integers(size))

    def program(engine: Engine) -> Any:
        r = engine.rank
        return (
            engine.all_to_allv(sent[r]),
            engine.all_gather(sent[r][0]),
            engine.broadcast(whole[r], root),
        )

    def same(found: Any, expected: Any) -> bool:
        return (
            found.dtype == expected.dtype
            and found.shape == expected.shape
            and found.tobytes() == expected.tobytes()
        )

    for r, (exchanged, gathered, received) in enumerate(run_ranks(size, program)):
        assert all(map(same, exchanged, [sent[by][r] for by in range(size)]))
        assert all(map(same, gathered, [sent[by][0] for by in range(size)]))
        assert same(received, whole[root])


def test_each_link_is_counted() -> None:
    def program(engine: Engine) -> Any:
        before = engine.traffic.copy()
        rows = [np.zeros((to, 2), np.float32) for to in range(engine.size)]
        engine.all_to_allv(rows)
        engine.barrier()
        return engine.traffic - before

    for rank, traffic in enumerate(run_ranks(3, program)):
        sent = np.arange(3) * 8
        sent[rank] = 0  # what stays is no traffic
        assert traffic.sent.tolist() == sent.tolist()
        received = np.full(3, rank * 8)
        received[rank] = 0
        assert traffic.received.tolist() == received.tolist()


def test_large_reduces_take_two_arrays_of_bytes() -> None:
    def program(engine: Engine) -> int:
        engine.all_reduce(np.zeros(30_000, np.float32), "max")
        return int(engine.traffic.received.sum())

    assert max(run_ranks(4, program)) <= 2 * 30_000 * 4


@pytest.mark.parametrize("size", [1, 2])
def test_results_are_the_callers_own(size: int) -> None:
    def program(engine: Engine) -> Any:
        mine = np.full(4, engine.rank)
        results = [
            engine.all_reduce(mine, "max"),
            *engine.all_gather(mine),
            *engine.all_to_allv([mine] * engine.size),
            engine.broadcast(mine, 0),
        ]
        kept = [array.copy() for array in results]
        mine[:] = -1
        engine.barrier()
        for array, before in zip(results, kept, strict=True):
            assert np.array_equal(array, before)
            array[:] = -2  # writable, and not shared
            assert not np.shares_memory(array, mine)
        engine.barrier()
        return mine.tolist()

    assert run_ranks(size, program) == [[-1] * 4] * size


def test_one_rank_alone() -> None:
    engine = NullEngine()
    array = np.arange(6.0)[::2]  # not contiguous
    assert (engine.rank, engine.size) == (0, 1)
    assert engine.all_reduce(array, "sum").tolist() == array.tolist()
    assert [a.tolist() for a in engine.all_gather(array)] == [array.tolist()]
    assert [a.tolist() for a in engine.all_to_allv([array])] == [array.tolist()]
    assert engine.broadcast(np.array(3), 0) == 3
    engine.barrier()
    assert engine.traffic.sent.tolist() == [0]


def test_arrays_of_other_byte_order_are_converted() -> None:
    given = np.array([1, 2, 3], ">i4")
    assert NullEngine().all_reduce(given, "sum").tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda e: e.all_reduce(np.ones(2), "average"), "unknown operator"),
        (lambda e: e.all_reduce(np.ones(2), "or"), "or is not defined for this dtype"),
        (lambda e: e.all_reduce(np.ones(2, bool), "sum"), r"array\.astype"),
        (lambda e: e.all_gather(np.array(["a"])), "dtype <U1"),
        (lambda e: e.all_gather(np.array([object()])), "dtype object"),
        (lambda e: e.all_gather(np.array(3)), r"shape \(\)"),
        (lambda e: e.all_gather(np.ones((3, 0))), r"shape \(3, 0\)"),
        (lambda e: e.all_to_allv([]), "got:      0 arrays"),
        (lambda e: e.all_to_allv([np.ones(1)] * 3), "expected: 2"),
        (lambda e: e.all_to_allv([np.ones(1), [1]]), r"float64\[\*\] and int64\[\*\]"),
        (lambda e: e.broadcast(np.ones(1), 2), "root=2"),
        (lambda e: e.broadcast(np.ones(1), -1), "root=-1"),
    ],
)
def test_arguments_that_no_rank_can_send(call: Any, text: str) -> None:
    with pytest.raises(fg.ArgumentError, match=text):
        run_ranks(2, call)
