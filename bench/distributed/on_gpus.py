"""Processes with a GPU each, as a bench starts them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.record import child_environment

__all__ = ["LIMIT_S", "run_on_gpus"]

#: Longest that the processes of one run may take.
LIMIT_S = 80


def run_on_gpus(
    module: str, ranks: int, given: Sequence[str], environment: Mapping[str, str]
) -> Any:
    """Run a module on ranks; return what rank 0 has written as JSON.

    It is given the arguments, and the file behind them.

    Raises
    ------
    RuntimeError
        If a process failed, or took too long.
    """
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        told, port = Path(folder) / "told.json", free.getsockname()[1]
        free.close()
        common = child_environment() | dict(environment)
        common |= {"WORLD_SIZE": str(ranks), "MASTER_PORT": str(port)}
        command = [sys.executable, "-m", module, *given, str(told)]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        gpus = visible.split(",") if visible else [str(rank) for rank in range(ranks)]
        begun = [
            subprocess.Popen(
                command,
                env=common | {"RANK": str(rank), "CUDA_VISIBLE_DEVICES": gpus[rank]},
            )
            for rank in range(ranks)
        ]
        codes = _wait(begun)
        if any(codes):
            raise RuntimeError(f"ranks ended with {codes}")
        return json.loads(told.read_text())


def _wait(begun: list[subprocess.Popen[bytes]]) -> list[int]:
    """Return how processes have ended; behind one that fails, no other goes on."""
    ends = time.monotonic() + LIMIT_S
    codes: list[int | None] = [None]
    while None in codes and not any(codes) and time.monotonic() < ends:
        time.sleep(0.05)
        codes = [process.poll() for process in begun]
    for process in begun:  # one that has failed says so to the others
        try:
            process.wait(10 if any(codes) else 0.1)
        except subprocess.TimeoutExpired:
            process.kill()
    return [process.wait() for process in begun]
