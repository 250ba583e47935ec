"""Ranks that are processes: as loopback ranks, and never left waiting.

Each case of `process_ranks` runs on three processes, over shared memory and over Gloo;
all cases of an engine in one run of it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from featgraph.distributed import run_ranks
from tests.unit.distributed import process_ranks

ROOT = Path(__file__).parents[3]
Reports = dict[str, list[dict[str, Any]]]

ENGINES = [
    "shared",
    pytest.param(
        "gloo",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("torch") is None,
            reason="needs PyTorch: pip install 'featgraph[distributed]'",
        ),
    ),
]


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def reports(engine: str) -> Reports:
    command = [sys.executable, "-m", "tests.unit.distributed.process_ranks", engine]
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environment = {n: text for n, text in os.environ.items() if n not in names}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: Reports = json.loads(done.stdout)
    return found


def texts(reports: Reports, name: str, ranks: list[int], error: str) -> set[str]:
    """Return the errors that ranks raised."""
    for rank in ranks:
        assert reports[name][rank].get("error") == error, reports[name]
        assert reports[name][rank]["ended"] == 1
    return {reports[name][rank]["text"] for rank in ranks}


def test_calls_give_the_bits_and_bytes_of_loopback(reports: Reports) -> None:
    expected = [list(result) for result in run_ranks(3, process_ranks.every_call)]
    assert [r.get("result") for r in reports["every_call"]] == expected
    assert [r["ended"] for r in reports["every_call"]] == [0] * 3


@pytest.mark.drawn(6)
@pytest.mark.parametrize(
    ("name", "ranks", "parts"),
    [
        (
            "another_call",
            [0, 1, 2],
            [
                "rank 2 went another way than ranks 0 and 1",
                "ranks 0 and 1 call all_reduce(sum of float64[3])",
                "for superstep 4",
                "rank 2 calls all_gather(float64[*])",
                "for degrees",
            ],
        ),
        (
            "another_call_meanwhile",
            [0, 1, 2],
            ["ranks 0 and 2 call begin_bytes()", "rank 1 calls hand_bytes()"],
        ),
        ("other_sizes", [0, 1, 2], ["sum of float64[1000]", "sum of float64[1001]"]),
        ("long_purposes", [0, 1, 2], ["went another way than", "xxx... "]),
        (
            "early_end",
            [0, 2],
            ["for the second one", "rank 1 has come to its end, after 2 exchanges"],
        ),
        ("versions", [0, 1, 2], ["the start of featgraph 0.0.9"]),
    ],
)
def test_ranks_that_went_different_ways_are_named(
    reports: Reports, name: str, ranks: list[int], parts: list[str]
) -> None:
    (text,) = texts(reports, name, ranks, "RankMismatchError")
    for part in parts:
        assert part in text


@pytest.mark.parametrize(
    ("name", "lost", "ended", "parts"),
    [
        ("an_exception", 1, 1, ["rank 1 of 3 failed", "ValueError: row 7 is bad"]),
        ("killed", 1, -9, ["rank 1 of 3 was lost", "barrier(), its exchange 3"]),
        (
            "an_exception_meanwhile",
            1,
            1,
            ["rank 1 of 3 failed", "ValueError: row 7 is bad"],
        ),
        ("killed_meanwhile", 1, -9, ["rank 1 of 3"]),
        ("killed_in_a_transfer", 2, -9, ["rank 2 of 3"]),
        ("stopped", 2, "stopped", ["rank 2 of 3 was lost", "timeout=)"]),
    ],
)
def test_a_rank_that_is_lost_is_named(
    reports: Reports, name: str, lost: int, ended: Any, parts: list[str]
) -> None:
    others = [rank for rank in range(3) if rank != lost]
    for text in texts(reports, name, others, "WorkerLostError"):
        for part in parts:
            assert part in text
    assert [reports[name][rank]["rank"] for rank in others] == [lost] * 2
    assert reports[name][lost]["ended"] == ended
    # None of them waits as long as one that hung would.
    assert all(reports[name][rank]["seconds"] < 20 for rank in others)


def test_an_engine_that_failed_stays_so(reports: Reports) -> None:
    assert [r.get("result") for r in reports["caught"]] == [3] * 3


def test_one_engine_a_process(reports: Reports) -> None:
    for rank, report in enumerate(reports["used_twice"]):
        (again, in_child, used), is_current = report["result"]
        assert "init() a second time" in again
        assert "current_engine()" in again
        assert "init() in a forked child" in in_child
        assert f"a forked child uses the engine of rank {rank}" in used
        assert "'spawn'" in used
        assert is_current
        assert report["ended"] == 0


def test_messages_are_read_where_they_pass(reports: Reports) -> None:
    assert [r.get("result") for r in reports["grown"]] == [0] * 3


def test_ranks_that_follow_receive_all(reports: Reports) -> None:
    numbers = [[number, 0] for number in range(50)]
    expected = [*numbers[:26], [75, 3], *numbers[26:], [[0.5, 0.5]] * 2]
    for rank, report in enumerate(reports["followed"]):
        found, exchanges = report["result"]
        assert (found, report["ended"]) == (expected, 0)
        # Seven at once; those that are left are told at the end.
        assert exchanges == 8 + (rank > 0)


def test_pytorch_is_for_gloo_alone(engine: str, reports: Reports) -> None:
    found = [r.get("result") for r in reports["torch_is_there"]]
    assert found == [engine == "gloo"] * 3


def test_a_process_that_dies_is_found_at_once(engine: str, reports: Reports) -> None:
    if engine == "gloo":
        pytest.skip("which waits for ranks in turn")
    for name, lost in (
        ("killed", 1),
        ("killed_in_a_transfer", 2),
        ("killed_with_a_child", 1),
    ):
        others = [rank for rank in range(3) if rank != lost]
        found = texts(reports, name, others, "WorkerLostError")
        assert all("has ended" in text for text in found)
        assert [reports[name][rank]["rank"] for rank in others] == [lost] * 2
        # Of which most is the start; the timeout is 20.
        assert all(reports[name][rank]["seconds"] < 10 for rank in others)
    found = texts(reports, "stopped", [0, 1], "WorkerLostError")
    assert all("nothing within 3 s" in text for text in found)
    assert all("which is stopped" in text for text in found)


def test_an_interrupted_rank_is_named(engine: str, reports: Reports) -> None:
    name = "interrupted" if engine == "shared" else "interrupted_within_gloo"
    for text in texts(reports, name, [0, 2], "WorkerLostError"):
        # Over Gloo nothing more is said behind an exchange that did not end.
        parts = ["failed", "KeyboardInterrupt"] if engine == "shared" else ["was lost"]
        assert all(part in text for part in ["rank 1 of 3", *parts])
    (text,) = texts(reports, name, [1], "DistributedError")
    assert "an exchange of rank 1 was interrupted" in text
    assert "KeyboardInterrupt" in text


def test_a_group_of_the_program_stays_its_own(engine: str, reports: Reports) -> None:
    if engine != "gloo":
        pytest.skip("which has none")
    assert [r.get("result") for r in reports["beside_the_programs_own"]] == [
        [[3], 3]
    ] * 3


def test_arrays_are_handed_over_in_a_group_beside(
    engine: str, reports: Reports
) -> None:
    if engine != "gloo":
        pytest.skip("which has none")
    for rank, report in enumerate(reports["arrays_of_gpus"]):
        shared, reaches, came, sent, received = report["result"]
        assert (shared, reaches) == (False, True)
        counts = [(2 * r + rank) % 4 for r in range(3)]
        assert came == [[10 * r + rank] * n or None for r, n in enumerate(counts)]
        assert received == [8 * n * (r != rank) for r, n in enumerate(counts)]
        assert sent == [8 * ((2 * rank + to) % 4) * (to != rank) for to in range(3)]
        assert report["ended"] == 0
