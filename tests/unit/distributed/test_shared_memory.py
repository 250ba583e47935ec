"""Ranks that share memory, each a thread here: calls against loopback, and meeting.

Engines are made once for each number of ranks; generated calls go through them all.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featgraph as fg
from featgraph.distributed import Engine, run_ranks
from featgraph.ranks.engines import meeting, messages
from featgraph.ranks.engines.failures import timeout_of
from featgraph.ranks.engines.processes import INLINE_BYTES
from featgraph.ranks.engines.shared_memory import SharedEngine
from tests.strategies import seeds

DTYPES = ["?", "i1", "u4", "i8", "f4", "f8"]
#: Where memory with a name would be left over.
SHARED_FILES = Path("/dev") / "shm"
#: Each start has a port of its own.
ports = count(40_000)


class Launcher:
    """The state that the watches of all ranks share."""

    def __init__(self) -> None:
        self.offers: dict[str, str] = {}
        self.changed = threading.Condition()
        self.lost: fg.WorkerLostError | None = None
        self.wakes: list[Callable[[], None]] = []
        #: Ranks that wait in an exchange; they are counted as they ask, too.
        self.waits = 0

    def lose(self, rank: int) -> None:
        """Notify all ranks that one of them is lost."""
        with self.changed:
            self.lost = fg.WorkerLostError(f"rank {rank} was ended", rank=rank)
            self.changed.notify_all()
        for wake in self.wakes:
            wake()

    def until_waiting(self, count: int) -> None:
        """Return when so many ranks wait."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.waits == count, 20)

    # -- as `Watching` has it

    @contextmanager
    def waiting(self, call: object) -> Iterator[None]:
        with self.changed:
            self.waits += 1
            self.changed.notify_all()
        yield

    def when_lost(self, wake: Callable[[], None]) -> None:
        self.wakes.append(wake)

    def raise_lost(self) -> None:
        if self.lost is not None:
            raise self.lost

    def find_loss(self) -> fg.WorkerLostError | None:
        with self.changed:
            self.changed.wait_for(lambda: self.lost, 20)
        return self.lost

    def offer(self, name: str, text: str) -> None:
        with self.changed:
            self.offers[name] = text
            self.changed.notify_all()

    def await_offer(self, name: str) -> str:
        with self.changed:
            assert self.changed.wait_for(lambda: name in self.offers, 20)
            self.waits += 1
            self.changed.notify_all()
        return self.offers[name]


def start(
    size: int,
    timeout: float = 20.0,
    watch: Launcher | None = None,
    ranks: Sequence[int] = (),
) -> list[Any]:
    """Return the engines of so many ranks, or of some of them what they raise."""
    port = next(ports)
    with ThreadPoolExecutor(size) as pool:
        place = f"test {os.getpid()}", port
        made = [
            pool.submit(SharedEngine, rank, size, *place, timeout, watch)
            for rank in ranks or range(size)
        ]
        if watch is not None and ranks:
            watch.until_waiting(len(ranks))
            watch.lose(size - 1)
        return [one.exception() if ranks else one.result() for one in made]


def on_all(engines: list[SharedEngine], function: Callable[[Engine], Any]) -> list[Any]:
    """Return the results or exceptions of a function on all ranks."""
    found: list[Any] = [None] * len(engines)

    def run(engine: SharedEngine) -> None:
        try:
            found[engine.rank] = function(engine)
        except BaseException as error:
            found[engine.rank] = error

    threads = [threading.Thread(target=run, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.fixture(scope="module")
def teams() -> Iterator[dict[int, list[SharedEngine]]]:
    made = {size: start(size) for size in (2, 3)}
    yield made
    for engines in made.values():
        for engine in engines:
            engine.close()


@given(st.sampled_from([2, 3]), seeds, st.sampled_from(DTYPES), st.booleans())
def test_calls_give_the_bits_and_bytes_of_loopback(
    teams: dict[int, list[SharedEngine]],
    size: int,
    seed: int,
    dtype: str,
    has_few: bool,
) -> None:
    rng = np.random.default_rng(seed)
    most = 2 * INLINE_BYTES if has_few else messages.WHOLE_BYTES
    counts = rng.integers(0, most, (size, size)) // rng.choice([1, 8, 1000])
    rows = int(counts.max())
    sent = [[rng.integers(0, 9, n).astype(dtype) for n in own] for own in counts]
    whole = rng.integers(0, 9, (size, rows, 2)).astype(dtype)

    def program(engine: Engine) -> Any:
        r, read = engine.rank, []

        def write(to: int, out: Any) -> None:
            out[:] = sent[r][to].view(np.uint8)

        def take(by: int, message: Any) -> None:
            read.append((by, message.tobytes()))

        before = engine.traffic.copy()
        results = [
            *engine.all_to_allv(sent[r], about="all"),
            *engine.all_gather(sent[r][0]),
            engine.all_reduce(whole[r], "max"),
            engine.broadcast(whole[r], seed % size),
        ]
        sizes = [one.nbytes for one in sent[r]]
        engine.hand_bytes(sizes, write, take, about="bytes")
        engine.hand_to_all(sizes[0], lambda out: write(0, out), take, about="all")
        for about in ("first", "second"):  # which finishes the first
            last = engine.begin_bytes(sizes, write, take, about=about)
        engine.barrier()
        last.finish()
        received = [(x.dtype, x.shape, x.tobytes()) for x in results]
        assert all(x.flags.writeable for x in results)
        traffic = engine.traffic - before
        return received, read, traffic.sent.tolist(), traffic.received.tolist()

    found = on_all(teams[size], program)
    assert found == run_ranks(size, program)


@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 1))
def test_ranks_that_went_different_ways(first: int, second: int, other: int) -> None:
    calls: list[Callable[[Engine], Any]] = [
        lambda e: e.barrier(),
        lambda e: e.barrier(about="x" * 400),
        lambda e: e.all_reduce(np.ones(50_000), "sum"),
        lambda e: e.hand_bytes([9] * e.size, lambda r, m: None, lambda r, m: None),
        lambda e: e.hand_to_all(9, lambda m: None, lambda r, m: None),
    ]
    engines = start(2)
    found = on_all(engines, lambda e: calls[second if e.rank == other else first](e))
    if first != second:
        assert all(isinstance(one, fg.RankMismatchError) for one in found)
        assert str(found[0]) == str(found[1])
    else:
        assert not any(isinstance(one, Exception) for one in found)
    for engine in engines:
        engine.close()


def test_what_a_callback_raises_is_raised_on_all() -> None:
    engines = start(3)

    def program(engine: Engine) -> None:
        def write(rank: int, out: Any) -> None:
            raise ValueError("row 7")

        if engine.rank == 1:
            engine.hand_bytes([400] * 3, write, lambda r, m: None)
        engine.hand_bytes([400] * 3, lambda r, m: None, lambda r, m: None)

    found = on_all(engines, program)
    assert isinstance(found[1], ValueError)
    for rank in (0, 2):
        assert isinstance(found[rank], fg.WorkerLostError)
        assert found[rank].rank == 1
        assert "ValueError: row 7" in str(found[rank])
    with pytest.raises(fg.DistributedError, match="rank 1 was interrupted"):
        engines[1].barrier()
    for engine in engines:
        engine.close()


def test_what_is_handed_over_has_no_name_and_no_other_owner() -> None:
    before = set(os.listdir(SHARED_FILES)), len(os.listdir("/proc/self/fd"))
    engines = start(3)
    on_all(engines, lambda e: e.all_reduce(np.ones(1 << 20), "sum"))
    assert set(os.listdir(SHARED_FILES)) == before[0]
    for engine in engines:
        for file in engine._own.files:
            assert os.fstat(file).st_nlink == 0
            assert os.fstat(file).st_mode & 0o777 == 0o600
        for memory in engine._peers._memory.values():
            assert not memory.control.flags.writeable
        engine.close()
        engine.close()
    assert len(os.listdir("/proc/self/fd")) == before[1]
    names = Path("/proc/net/unix").read_text()
    assert (
        meeting._name_of(f"test {os.getpid()}, port {next(ports) - 1}")[1:] not in names
    )


def test_ranks_that_wait_leave_when_a_watch_reports_a_loss() -> None:
    watch = Launcher()
    # Of the timeout of an exchange nothing is seen: the watch says when to leave.
    engines = start(3, timeout=0.001, watch=watch)
    assert [timeout_of(engine) for engine in engines] == [0.001] * 3
    watch.waits = 0
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(engine.barrier) for engine in engines[:2]]
        watch.until_waiting(2)
        assert not any(one.done() for one in waits)
        watch.lose(2)
        found = [one.exception(20) for one in waits]
    assert found == [watch.lost] * 2
    for engine in engines:
        with pytest.raises(fg.WorkerLostError):
            engine.barrier()
        engine.close()
    watch.lose(2)  # which wakes no one, and nothing that has been closed


def test_of_a_rank_that_has_gone_the_watch_reports_more() -> None:
    watch = Launcher()
    engines = start(3, watch=watch)
    watch.waits = 0
    engines[2].let_go()
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(engine.barrier) for engine in engines[:2]]
        watch.until_waiting(2)
        watch.lose(2)
        assert [one.exception(20) for one in waits] == [watch.lost] * 2
    for engine in engines[:2]:
        engine.close()


def test_a_rank_that_is_lost_before_all_have_met() -> None:
    watch = Launcher()
    assert start(3, watch=watch, ranks=[0, 1]) == [watch.lost] * 2


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ([(1, 3)], "WORLD_SIZE is 2 on rank 0, and 3 on rank 1"),
        ([], "no connection from rank 1"),
    ],
)
def test_ranks_that_do_not_meet(others: list[tuple[int, int]], text: str) -> None:
    place, errors = ("nobody", next(ports)), []

    def join(rank: int, size: int) -> None:
        try:
            SharedEngine(rank, size, *place, 0.3)
        except fg.DistributedError as error:
            errors.append(str(error))

    ranks = [(0, 2), *others]
    threads = [threading.Thread(target=join, args=one) for one in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == len(ranks)
    assert all(text in error for error in errors), errors


def test_processes_of_others_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_other_end", lambda bell: (1, os.getuid() + 1))
    place = ("strangers", next(ports))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(meeting._name_of(f"{place[0]}, port {place[1]}"))
        listener.listen(1)
        with pytest.raises(fg.DistributedError, match="listens in the place of rank 0"):
            SharedEngine(1, 2, *place, 1.0)


def test_a_start_that_is_begun_again_has_another_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = meeting._name_of("127.0.0.1, port 1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert meeting._name_of("127.0.0.1, port 1") != first
