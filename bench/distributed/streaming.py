"""Processes of a bench that tell each result as soon as they have it."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.record import Recorder, child_environment

__all__ = ["Teller", "merged", "rows_told", "stream_from_ranks"]


class Teller:
    """Writes results of a rank for the process that has started it."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def __call__(self, **cell: Any) -> None:
        """Tell one, whole."""
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(cell, default=lambda value: value.item()) + "\n")


def stream_from_ranks(
    module: str,
    ranks: int,
    given: Mapping[str, Any],
    environment: Mapping[str, str],
    limit_s: float,
    first_gpu: int = 0,
) -> Iterator[dict[str, Any]]:
    """Run a module on ranks, and yield what they tell, as they tell it.

    Parameters
    ----------
    module : str
        Called with `given` as JSON, and the file that a `Teller` writes.
    ranks : int
        A GPU each, of those that this process sees, where ``given["target"]`` is
        "cuda", or that of the rank is, where it has one for each.
    environment : mapping of str
    limit_s : float
        They are killed then.
    first_gpu : int, optional
        The GPU of the first rank.

    Raises
    ------
    RuntimeError
        Behind all that was told, if a process failed or was killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told.jsonl"
        told.touch()
        command = [sys.executable, "-m", module, json.dumps(dict(given)), str(told)]
        begun = [
            subprocess.Popen(command, env=one)
            for one in _environments(ranks, given["target"], environment, first_gpu)
        ]
        ends = time.monotonic() + limit_s
        try:
            with open(told, encoding="utf-8") as lines:
                waiting = ""
                while True:
                    codes = [process.poll() for process in begun]
                    is_over = None not in codes or any(codes)
                    while line := lines.readline():
                        waiting += line
                        if waiting.endswith("\n"):
                            yield json.loads(waiting)
                            waiting = ""
                    if is_over or time.monotonic() > ends:
                        break
                    time.sleep(0.02)
            if any(codes):  # one that has failed says so to the others
                deadline = time.monotonic() + 10
                while None in codes and time.monotonic() < deadline:
                    time.sleep(0.05)
                    codes = [process.poll() for process in begun]
        finally:
            for process in begun:
                process.kill()
                process.wait()
        if codes != [0] * ranks:
            raise RuntimeError(f"ranks ended with {codes}")


def merged(streams: Sequence[Iterator[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield what several streams do, as they do it; raise what one of them raises."""
    told: queue.Queue[Any] = queue.Queue()

    def follow(stream: Iterator[dict[str, Any]]) -> None:
        try:
            for cell in stream:
                told.put(cell)
            told.put(None)
        except Exception as error:
            told.put(error)

    for stream in streams:
        threading.Thread(target=follow, args=(stream,), daemon=True).start()
    errors, going = [], len(streams)
    while going:
        cell = told.get()
        if isinstance(cell, dict):
            yield cell
            continue
        going -= 1
        errors += [cell] if cell is not None else []
    if errors:
        raise errors[0]


def rows_told(
    stream: Iterator[dict[str, Any]], recorder: Recorder, name: str
) -> Iterator[dict[str, Any]]:
    """Yield what ranks tell but notes, which are said; record where they fail."""
    try:
        for cell in stream:
            if "note" in cell:
                print(f"    {cell['note']}", flush=True)
            else:
                yield cell
    except RuntimeError as error:
        text = str(error)

        def fail() -> None:
            raise RuntimeError(text)

        recorder.attempt(name, fail)


def _environments(
    ranks: int,
    target: str | Sequence[str],
    environment: Mapping[str, str],
    first_gpu: int,
) -> list[dict[str, str]]:
    """Return what each rank finds in its environment."""
    targets = [target] * ranks if isinstance(target, str) else target
    cores = max((os.cpu_count() or 1) // ranks, 1)
    common = child_environment() | {"PYTHONWARNINGS": "ignore"}
    common |= {n: str(cores) for n in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS")}
    common |= dict(environment)
    if ranks > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common |= {"WORLD_SIZE": str(ranks), "MASTER_PORT": str(port)}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    count = first_gpu + ranks
    gpus = visible.split(",") if visible else [str(gpu) for gpu in range(count)]
    found = []
    for rank in range(ranks):
        own = {"RANK": str(rank)} if ranks > 1 else {}
        if targets[rank] == "cuda":
            own["CUDA_VISIBLE_DEVICES"] = gpus[first_gpu + rank]
        found.append(common | own)
    return found
