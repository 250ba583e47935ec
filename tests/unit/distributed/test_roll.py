"""Detection of the failed rank from messages and their times, on a simulated clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featgraph.ranks.launching.roll import BEAT_S, Loss, Roll

TIMEOUT = 30.0


class Ranks:
    """Three ranks and their roll, on a clock of their own."""

    def __init__(self, size: int = 3) -> None:
        self.now = 0.0
        self.roll = Roll([f"node{rank}" for rank in range(size)], self.now)
        self.does: dict[int, tuple[str, float]] = {}

    def join(self, *ranks: int) -> None:
        for rank in ranks:
            self.roll.receive(rank, {"is": "hello", "timeout": TIMEOUT}, self.now)
            self.do(rank, "meeting")
        if self.roll.are_present:
            for rank in self.does:
                self.do(rank, "computing")

    def do(self, rank: int, what: str) -> None:
        self.does[rank] = (what, self.now)

    def pass_time(self, seconds: float, silent: tuple[int, ...] = ()) -> None:
        """Have ranks speak as they do, and the launcher look."""
        until = self.now + seconds
        while self.now < until:
            self.now += BEAT_S
            for rank, (what, since) in self.does.items():
                if rank not in silent:
                    self.roll.receive(rank, beat(what, self.now - since), self.now)
            self.roll.look(self.now)

    @property
    def lost(self) -> Loss | None:
        return self.roll.lost


def beat(what: str, seconds: float) -> dict[str, Any]:
    return {
        "is": "beat", "doing": what, "for": seconds, "what": "", "call": "barrier()",
        "superstep": 4, "phase": "0 (vertex: mix)", "checkpoints": None,
    }  # fmt: skip


@pytest.fixture
def ranks() -> Ranks:
    made = Ranks()
    made.join(0, 1, 2)
    return made


@pytest.mark.parametrize("what", ["compiling", "loading", "writing"])
def test_a_rank_that_works_for_a_minute_is_no_failure(ranks: Ranks, what: str) -> None:
    ranks.do(1, what)
    ranks.do(0, "waiting")
    ranks.do(2, "waiting")
    ranks.pass_time(60)
    assert ranks.lost is None
    ranks.do(1, "computing")
    ranks.pass_time(TIMEOUT - 1)
    assert ranks.lost is None
    ranks.pass_time(1)
    assert ranks.lost is not None
    assert ranks.lost.rank == 1
    assert "has computed for" in ranks.lost.why
    assert "barrier()" in ranks.lost.why
    assert (ranks.lost.superstep, ranks.lost.phase) == (4, "0 (vertex: mix)")


def test_no_rank_waits_so_all_may_compute(ranks: Ranks) -> None:
    ranks.pass_time(10 * TIMEOUT)
    assert ranks.lost is None


@pytest.mark.parametrize("what", ["computing", "compiling", "waiting"])
def test_silence_is_a_failure(ranks: Ranks, what: str) -> None:
    ranks.do(2, what)
    ranks.pass_time(0 if what == "waiting" else 1)
    if what == "waiting":  # it had waited for longer than the others when it stopped
        ranks.pass_time(1)
    for rank in (0, 1):
        ranks.do(rank, "waiting")
    begun = ranks.now
    while ranks.lost is None:
        ranks.pass_time(BEAT_S, silent=(2,))
    assert ranks.lost.rank == 2
    assert ranks.lost.host == "node2"
    assert "has sent no message" in ranks.lost.why
    assert ranks.now - begun <= TIMEOUT


def test_a_silent_rank_with_a_pulse_is_alive(ranks: Ranks) -> None:
    for _ in range(100):
        ranks.pass_time(1, silent=(1,))
        ranks.roll.receive(1, {"is": "pulse"}, ranks.now)
    assert ranks.lost is None


def test_an_exchange_that_does_not_end_is_nobodys(ranks: Ranks) -> None:
    for rank in range(3):
        ranks.do(rank, "waiting")
    ranks.pass_time(TIMEOUT)
    assert ranks.lost is not None
    assert ranks.lost.rank is None
    assert "although all have come to it" in str(ranks.lost)


@pytest.mark.parametrize(
    ("status", "part"),
    [
        (-9, "SIGKILL"),
        (-11, "SIGSEGV"),
        (-77, "signal 77"),
        (137, "status 137"),
        (0, "without leaving the other ranks"),
    ],
)
def test_how_a_rank_ends(ranks: Ranks, status: int, part: str) -> None:
    ranks.roll.end(1, status, ranks.now)
    ranks.roll.place(1, (7, "1 (reduce: largest)"))
    assert ranks.lost is not None
    assert ranks.lost.rank == 1
    assert part in ranks.lost.why
    assert "superstep 7, phase 1 (reduce" in str(ranks.lost)
    assert Loss.of_message(ranks.lost.message()) == ranks.lost


@pytest.mark.parametrize(("of", "named"), [(2, 2), (0, 0), (7, 1), ("x", 1)])
def test_a_rank_names_another_of_which_its_error_is(
    ranks: Ranks, of: Any, named: int
) -> None:
    """All ranks raise that one went another way; the first report varies."""
    text = "RankMismatchError: rank 2 went another way"
    ranks.roll.receive(1, {"is": "failed", "text": text, "of": of}, ranks.now)
    assert ranks.lost is not None
    assert (ranks.lost.rank, ranks.lost.why) == (named, text)
    # It raises the same, and is not ended before it has shown it.
    assert not ranks.roll.is_stuck(named)


def test_the_first_reason_counts(ranks: Ranks) -> None:
    ranks.roll.receive(1, {"is": "failed", "text": "ValueError: row 7"}, ranks.now)
    ranks.roll.end(1, 1, ranks.now)
    ranks.roll.end(0, 1, ranks.now)
    assert ranks.lost is not None
    assert (ranks.lost.rank, ranks.lost.why) == (1, "ValueError: row 7")


def test_ranks_that_end_as_they_should(ranks: Ranks) -> None:
    for rank in range(3):
        ranks.roll.receive(rank, {"is": "ending"}, ranks.now)
        ranks.pass_time(2 * TIMEOUT)
        ranks.roll.end(rank, 0, ranks.now)
        del ranks.does[rank]
    assert ranks.lost is None
    assert ranks.roll.running == []


def test_a_rank_that_does_not_come() -> None:
    ranks = Ranks()
    ranks.join(0, 2)
    ranks.pass_time(TIMEOUT)
    assert ranks.lost is not None
    assert ranks.lost.rank == 1
    assert "has not called fg.distributed.init()" in ranks.lost.why
    assert "rank 0 has waited" in ranks.lost.why


def test_a_rank_that_ends_before_it_has_come() -> None:
    ranks = Ranks()
    ranks.roll.end(2, 0, ranks.now)  # no one waits for it: it may be right
    assert ranks.lost is None
    ranks = Ranks()
    ranks.join(0)
    ranks.roll.end(2, 0, ranks.now)
    assert ranks.lost is not None
    assert "while rank 0 waits in fg.distributed.init()" in ranks.lost.why


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["waiting", "computing", "compiling", "loading"]),
            st.floats(0, TIMEOUT - 2),
        ),
        max_size=20,
    )
)
def test_a_rank_that_reports_in_time_is_never_lost(
    steps: list[tuple[int, str, float]],
) -> None:
    ranks = Ranks()
    ranks.join(0, 1, 2)
    for rank, what, seconds in steps:
        for other in range(3):  # a new exchange: all have come to the one before
            ranks.do(other, "waiting")
        ranks.do(rank, what)
        ranks.pass_time(min(seconds, 5) if what != "waiting" else seconds)
    assert ranks.lost is None


def test_a_launcher_that_was_stopped_takes_no_rank_for_silent(ranks: Ranks) -> None:
    ranks.now += 4 * TIMEOUT
    ranks.roll.receive(0, beat("computing", 1.0), ranks.now)
    ranks.roll.look(ranks.now)
    assert ranks.lost is None
    ranks.pass_time(TIMEOUT + 1, silent=(2,))
    assert ranks.lost is not None
    assert ranks.lost.rank == 2
    assert "has sent no message" in ranks.lost.why


def test_what_a_silent_rank_was_at(ranks: Ranks) -> None:
    ranks.do(1, "waiting")
    ranks.pass_time(BEAT_S)
    ranks.pass_time(TIMEOUT, silent=(1,))
    assert ranks.lost is not None
    assert "was waiting at barrier() before" in ranks.lost.why
