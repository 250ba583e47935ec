"""Processes: the bits of loopback ranks, and ranks that end between pieces."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from featgraph.distributed import run_ranks
from tests.ranks.process_calls import answer_all, names_called, prepare

ROOT = Path(__file__).parents[2]


def run_processes(ranks: int, *module: str) -> tuple[list[str], list[int]]:
    """Return the output and the exit code of a module on each rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launched = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    begun = [
        subprocess.Popen(
            [sys.executable, "-m", *module],
            cwd=ROOT,
            env=os.environ | launched | {"MASTER_PORT": port, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in begun]
    finally:
        for process in begun:
            process.kill()
    return outputs, [process.returncode for process in begun]


@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
def test_processes_answer_as_loopback_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    names = names_called()
    assert names
    prepare(monkeypatch.setattr)
    expected = run_ranks(2, lambda engine: answer_all(names))
    # Behind them: both find in the store what one process has compiled.
    outputs, codes = run_processes(2, "tests.ranks.process_calls", *names)
    assert codes == [0, 0]
    assert [json.loads(text) for text in outputs] == expected


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="needs PyTorch: pip install 'featgraph[distributed]'",
)
def test_a_rank_killed_between_pieces_is_named(tmp_path: Path) -> None:
    time_file = str(tmp_path / "time_file")
    [text, _], codes = run_processes(2, "tests.ranks.process_pieces", time_file)
    assert codes[1] == -signal.SIGKILL
    found = json.loads(text)
    assert found["rank"] == 1
    assert "rows of ghosts, piece 3 of" in found["text"]
    assert found["seconds"] < 5  # of the 20 for which a rank is waited for
