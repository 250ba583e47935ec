"""Ranks as processes of this host: started, and followed row by row.

`stream_from_ranks` starts a module on ranks and yields the rows that its first rank
writes, as they come. On a rank, `run_rank` calls the function that the module gives
it, with the arguments of the bench and a `Sender` that writes rows.
"""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.record import Recorder, child_environment

__all__ = ["Sender", "merged", "rows_of", "run_rank", "stream_from_ranks"]


class Sender:
    """Writes rows of a rank for the process that has started it."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def __call__(self, **row: Any) -> None:
        """Write a whole row."""
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, default=lambda value: value.item()) + "\n")


def run_rank(be_a_rank: Callable[[dict[str, Any], Sender], Any]) -> None:
    """Call a function with the arguments that `stream_from_ranks` has passed."""
    be_a_rank(json.loads(sys.argv[1]), Sender(sys.argv[2]))


def stream_from_ranks(
    module: str,
    ranks: int,
    given: Mapping[str, Any],
    environment: Mapping[str, str],
    limit_s: float,
    first_gpu: int = 0,
) -> Iterator[dict[str, Any]]:
    """Run a module on ranks, and yield its rows as they are written.

    Parameters
    ----------
    module : str
        It calls `run_rank`, which passes `given` on.
    ranks : int
        With ``given["target"]`` "cuda" each has one of the GPUs that this process sees.
    environment : mapping of str
    limit_s : float
        Ranks are killed then.
    first_gpu : int, optional
        The GPU of the first rank.

    Raises
    ------
    RuntimeError
        Behind all rows, if a process failed or was killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "rows.jsonl"
        written.touch()
        command = [sys.executable, "-m", module, json.dumps(dict(given)), str(written)]
        on_gpus = given.get("target") == "cuda"
        begun = [
            subprocess.Popen(command, env=one)
            for one in _environments(ranks, on_gpus, environment, first_gpu)
        ]
        ends = time.monotonic() + limit_s
        try:
            with open(written, encoding="utf-8") as lines:
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
            if any(codes):  # the error of one rank reaches the others
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
    """Yield rows of several streams as they come; raise the first of their errors."""
    found: queue.Queue[Any] = queue.Queue()

    def follow(stream: Iterator[dict[str, Any]]) -> None:
        try:
            for row in stream:
                found.put(row)
            found.put(None)
        except Exception as error:
            found.put(error)

    for stream in streams:
        threading.Thread(target=follow, args=(stream,), daemon=True).start()
    errors, going = [], len(streams)
    while going:
        row = found.get()
        if isinstance(row, dict):
            yield row
            continue
        going -= 1
        errors += [row] if row is not None else []
    if errors:
        raise errors[0]


def rows_of(
    stream: Iterator[dict[str, Any]], recorder: Recorder, name: str
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a stream, print its notes, and record its error."""
    try:
        for row in stream:
            if "note" in row:
                print(f"    {row['note']}", flush=True)
            else:
                yield row
    except RuntimeError as error:
        text = str(error)

        def fail() -> None:
            raise RuntimeError(text)

        recorder.attempt(name, fail)


def _environments(
    ranks: int, on_gpus: bool, environment: Mapping[str, str], first_gpu: int
) -> list[dict[str, str]]:
    """Return the environment of each rank."""
    common = child_environment() | {"PYTHONWARNINGS": "ignore"}  # runs end at a limit
    threads = str(max((os.cpu_count() or 1) // ranks, 1))
    common |= dict.fromkeys(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"), threads)
    common |= environment
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
        if on_gpus:
            own["CUDA_VISIBLE_DEVICES"] = gpus[first_gpu + rank]
        found.append(common | own)
    return found
