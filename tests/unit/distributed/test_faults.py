"""Ranks of a launcher: the failed one is named, and runs resume."""

from __future__ import annotations

import importlib.util
import json
import random
import shlex
import sys
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from featgraph.ranks.launching.launcher import Host, Launch, command_on, run
from tests.unit.distributed import faulty

ROOT = Path(__file__).parents[3]
WARM = f"env {{host}}=1 PYTHONPATH={shlex.quote(str(ROOT))} {sys.executable} -m "
WARM += "tests.unit.distributed.warm_agent "

GLOO = pytest.param(
    "gloo",
    marks=pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="needs PyTorch: pip install 'featgraph[distributed]'",
    ),
)


def launched(
    engine: str,
    faults: list[dict[str, Any]],
    folder: Path,
    ranks: int,
    timeout: float,
) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit status of a launch, and the output of its ranks."""
    plan = {
        "engine": engine,
        "timeout": timeout,
        "faults": faults,
        "seed": 1,
        "folder": str(folder / "c"),
    }
    host = Host("127.0.3.1", ranks)
    launch = Launch(
        ["", json.dumps(plan)],
        [host],
        [command_on(host, WARM + engine, sys.executable)],
        restarts=len(faults),
        logs=folder / "logs",
    )
    status = run(launch)
    lines = [
        json.loads(line)
        for path in sorted((folder / "logs").glob("*.out"))
        for line in path.read_text().splitlines()
    ]
    return status, lines


def check(
    faults: list[dict[str, Any]], lines: list[dict[str, Any]], ranks: int, shown: str
) -> None:
    """See that survivors of each attempt name the rank that failed, and where."""
    for attempt, fault in enumerate(faults):
        here = [line for line in lines if line["attempt"] == attempt]
        failed = next(line for line in here if line["what"] == "fault")
        saw = {line["by"]: line for line in here if line["what"] == "saw"}
        assert saw.keys() == set(range(ranks)) - {fault["rank"]}, shown
        for line in saw.values():
            for name in ("rank", "superstep", "phase"):
                assert line[name] == failed[name]
            assert line["host"] == "127.0.3.1"
            if "bytes" in fault:
                continue
            # None is begun while another one is written.
            newest = -1 if line["checkpoint"] is None else Path(line["checkpoint"]).name
            assert -3 <= int(newest) - fault["superstep"] <= 1


def check_end(lines: list[dict[str, Any]], ranks: int) -> None:
    """See that ranks have come to their end, with the unbroken run's digest."""
    digests = [d for line in lines for d in line.get("digests", ())]
    assert len(digests) == 3 * ranks
    assert len(set(digests)) == 1


def test_ranks_that_share_memory_are_watched(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fault = {"kind": "kill", "rank": 0, "superstep": 3, "phase": 1, "place": "message"}
    status, lines = launched("auto", [fault], tmp_path, ranks=2, timeout=20.0)
    shown = capfd.readouterr().err
    assert status == 0, shown
    check([fault], lines, 2, shown)
    check_end(lines, 2)
    engines = {line["by_engine"] for line in lines if line["what"] == "digests"}
    assert engines == {"SharedEngine"}


@pytest.mark.parametrize("engine", [GLOO])
def test_ranks_that_fail_are_named_and_the_run_goes_on(
    engine: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    faults = [
        # Gloo waits for messages that others have begun to send, although it failed.
        {"kind": "kill", "rank": 1, "bytes": 1 << 25},
        {"kind": "stop", "rank": 2, "superstep": 5, "phase": 0, "place": "exchange"},
        {"kind": "raise", "rank": 0, "superstep": 7, "phase": 1, "place": "write"},
    ]
    status, lines = launched(engine, faults, tmp_path, ranks=3, timeout=3.0)
    shown = capfd.readouterr().err
    assert status == 0, shown
    check(faults, lines, 3, shown)
    check_end(lines, 3)
    assert "superstep 7, phase 1 (reduce: largest_value)" in shown
    assert "was ended by SIGKILL" in shown
    assert "has sent no message for" in shown
    assert "ValueError: row 7 is bad" in shown
    assert "(3 of 3)" in shown


def _deep() -> bool:
    return hypothesis.settings.get_current_profile_name() == "deep"


@pytest.mark.skipif("not _deep()", reason="thirty launches: in the deep profile")
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("engine", ["shared", GLOO])
def test_faults_that_are_drawn(
    engine: str, seed: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(seed)
    ranks = rng.choice([2, 3, 4])
    kinds = ["kill", "stop", "raise", "memory", "computes"]
    fault = {
        "kind": kinds[seed % len(kinds)],
        "rank": rng.randrange(ranks),
        "superstep": rng.randrange(1, faulty.SUPERSTEPS - 1),
        "phase": rng.randrange(2),
        "place": rng.choice(["phase", "exchange", "message"]),
    }
    if fault["kind"] == "computes":
        fault["place"] = "phase"
    status, lines = launched(engine, [fault], tmp_path, ranks, timeout=5.0)
    shown = capfd.readouterr().err
    assert status == 0, shown
    check([fault], lines, ranks, shown)
    check_end(lines, ranks)
