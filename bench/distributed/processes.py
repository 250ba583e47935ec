"""Ranks that are processes of this host, started by a bench."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.record import child_environment

__all__ = ["LIMIT_S", "run_on_ranks"]

#: Longest that all ranks of one cell may take.
LIMIT_S = 900


def run_on_ranks(module: str, words: list[str], ranks: int, threads: int) -> Any:
    """Run a module on ranks; return what rank 0 has written, as JSON.

    Parameters
    ----------
    module : str
        Called with the words, and the file to write.
    words : list of str
    ranks, threads : int
        How many ranks, and threads of each.
    """
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        told = Path(folder) / "told.json"
        common = child_environment() | {
            "NUMBA_NUM_THREADS": str(threads),
            "OMP_NUM_THREADS": str(threads),
            "PYTHONWARNINGS": "ignore",  # runs end at a limit
        }
        if ranks > 1:
            common |= {
                "WORLD_SIZE": str(ranks),
                "MASTER_PORT": f"{free.getsockname()[1]}",
            }
        free.close()
        begun = [
            subprocess.Popen(
                [sys.executable, "-m", module, *words, str(told)],
                env=common | ({"RANK": str(rank)} if ranks > 1 else {}),
            )
            for rank in range(ranks)
        ]
        try:
            codes = [process.wait(LIMIT_S) for process in begun]
        finally:
            for process in begun:
                process.kill()
        if any(codes):
            raise RuntimeError(f"ranks ended with {codes}")
        return json.loads(told.read_text())
