"""Counters of kernels, by Nsight Compute on a process that launches markers.

The process launches a kernel whose name is known in front of each case, so that one
profiled process gives the counters of all cases.
"""

from __future__ import annotations

import csv
import io
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.record import ROOT, child_environment


def bench_marker(array):  # type: ignore[no-untyped-def]
    """Do next to nothing, as a kernel."""
    array[0] += 1


def make_marker(device: Any) -> Callable[[], Any]:
    """Return a function that launches the kernel in front of a case."""
    import numpy as np

    from featgraph.cuda import dialect

    launch = dialect.launcher(dialect.kernel(bench_marker), 1, 1)
    return partial(launch, device.upload(np.zeros(1, np.int32)))


def ncu_command(metrics: tuple[str, ...], module: str, *arguments: str) -> list[str]:
    """Return the command line that has a module run under ncu."""
    return [
        "ncu", "--clock-control", "none", "--csv", "--page", "raw",
        "--print-units", "base", "--metrics", ",".join(metrics),
        sys.executable, "-m", module, *arguments,
    ]  # fmt: skip


def shown(command: list[str]) -> str:
    """Return a command line as it is recorded: an interpreter's path is not."""
    return shlex.join(["python" if a == sys.executable else a for a in command])


def profile(command: list[str], limit: float) -> str:
    """Return the output of ncu; "" where it failed to profile.

    Raises
    ------
    RuntimeError
        If ncu is not there, or takes longer than `limit` seconds.
    """
    if shutil.which("ncu") is None:
        raise RuntimeError("Nsight Compute's ncu is not on PATH")
    with tempfile.TemporaryFile("w+") as out:
        try:
            done = subprocess.run(
                command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
                timeout=limit, check=False, env=child_environment(),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"ncu took over {limit:.0f} s") from None
        out.seek(0)
        printed = out.read()
    if done.returncode or '"ID"' not in printed:
        print(f"ncu failed: {printed[-1500:]}", flush=True)
        return ""
    return printed


def behind_markers(output: str) -> list[list[dict[str, str]]]:
    """Return the rows of ncu's output, those behind each marker together."""
    lines = output.splitlines()
    begin = next(i for i, text in enumerate(lines) if text.startswith('"ID"'))
    table = [text for text in lines[begin:] if text.startswith('"')]
    found: list[list[dict[str, str]]] = []
    for row in csv.DictReader(io.StringIO("\n".join(table))):
        if not row["ID"]:  # the row of units
            continue
        if bench_marker.__name__ in row["Kernel Name"]:
            found.append([])
        elif found:
            found[-1].append(row)
    return found
