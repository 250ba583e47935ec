"""Algorithms on two processes that share memory: the bits of two loopback ranks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from featgraph.distributed import run_ranks
from tests.ranks.process_calls import answer_all, names_called, prepare

ROOT = Path(__file__).parents[2]


@pytest.mark.filterwarnings("ignore:not converged:featgraph.ConvergenceWarning")
def test_processes_answer_as_loopback_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    names = names_called()
    assert names
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launched = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    begun = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.ranks.process_calls", *names],
            cwd=ROOT,
            env=os.environ | launched | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        told = [process.communicate(timeout=300)[0] for process in begun]
    finally:
        for process in begun:
            process.kill()
    assert [process.returncode for process in begun] == [0, 0]
    prepare(monkeypatch.setattr)
    expected = run_ranks(2, lambda engine: answer_all(names))
    assert [json.loads(text) for text in told] == expected
