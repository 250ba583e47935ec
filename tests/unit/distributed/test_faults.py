"""Ranks over Gloo that a launcher started: who fails is named, and runs go on."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from featgraph.distributed.launching.hosts import Host, command_on
from featgraph.distributed.launching.launcher import Launch, Launcher

ROOT = Path(__file__).parents[3]
WARM = f"env {{host}}=1 PYTHONPATH={shlex.quote(str(ROOT))} {sys.executable} -m "
WARM += "tests.unit.distributed.warm_agent"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="needs PyTorch: pip install 'featgraph[distributed]'",
)


def launched(
    faults: list[dict[str, Any]], folder: Path, ranks: int, timeout: float
) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit status of a launch, and what its ranks said."""
    plan = {
        "timeout": timeout,
        "faults": faults,
        "seed": 1,
        "folder": str(folder / "c"),
    }
    host = Host("127.0.3.1", ranks)
    launch = Launch(
        ["", json.dumps(plan)],
        [host],
        [command_on(host, WARM, sys.executable)],
        restarts=len(faults),
        logs=folder / "logs",
    )
    status = Launcher(launch).run()
    lines = [
        json.loads(line)
        for path in sorted((folder / "logs").glob("*.out"))
        for line in path.read_text().splitlines()
    ]
    return status, lines


def test_ranks_that_fail_are_named_and_the_run_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    faults = [
        {"kind": "kill", "rank": 0, "superstep": 3, "phase": 1, "place": "phase"},
        {"kind": "stop", "rank": 2, "superstep": 5, "phase": 0, "place": "exchange"},
        {"kind": "raise", "rank": 1, "superstep": 7, "phase": 1, "place": "phase"},
        {"kind": "memory", "rank": 0, "superstep": 9, "phase": 0, "place": "write"},
    ]
    status, lines = launched(faults, tmp_path, ranks=3, timeout=3.0)
    shown = capfd.readouterr().err
    assert status == 0, shown
    for attempt, fault in enumerate(faults):
        here = [line for line in lines if line["attempt"] == attempt]
        failed = next(line for line in here if line["what"] == "fault")
        saw = {line["by"]: line for line in here if line["what"] == "saw"}
        assert saw.keys() == {0, 1, 2} - {fault["rank"]}, shown
        for line in saw.values():
            for name in ("rank", "superstep", "phase"):
                assert line[name] == failed[name]
            assert line["host"] == "127.0.3.1"
            # That of the superstep before, or of the one before that.
            number = int(Path(line["checkpoint"]).name)
            assert number <= fault["superstep"] + 1
    digests = [line["digests"] for line in lines if line["what"] == "digests"]
    assert len(digests) == 3
    assert len({digest for pair in digests for digest in pair}) == 1
    assert "superstep 3, phase 1 (reduce: largest_value)" in shown
    assert "was ended by SIGKILL" in shown
    assert "has said nothing for" in shown
    assert "ValueError: row 7 is bad" in shown
    assert "has ended with status 137" in shown
    assert "(4 of 4)" in shown
