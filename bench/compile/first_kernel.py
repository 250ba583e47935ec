"""How long the first kernel takes: cold, and from the disk store.

Label propagation is folded, compiled and launched in a fresh process with an empty
store ("cold"), then in a second one that finds the first one's store. Imports and the
making of graph and state are reported apart. "library cold" empties Numba's cache of
featgraph's own loops and device functions, too: the first run after an installation.
Without a GPU, ``--target cuda`` compiles to machine code and launches nothing.

``--algorithms NAME,NAME`` (or ``all``) calls functions of ``algorithms`` on a graph of
64 vertices instead, or an R-MAT graph of 2^S with ``--scale S``: the first call of a
process with an empty store, the first with a filled one, and the second of a process
("warm"). With stores of ``featgraph warm`` in ``FEATGRAPH_CACHE_PATH``, the first is
"after warm". ``--size V,E`` calls them on a uniform graph instead. With ``--lazy``, the
first call imports Numba, as a user's does; ``processor_s`` are the seconds of all
threads. The target must be there then. With ``--wait``, calls wait for all that they
want compiled. Each row has s of the compiler's parts and of kernels, behind calls, too,
in the last of its processes (`bench.compile.parts`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from bench.compile.child import CALLS
from bench.record import ROOT, Recorder

DEFAULTS = {
    "k": [8], "repeat": 5, "target": "cpu", "algorithms": "", "scale": None,
    "size": None, "lazy": False, "wait": False,
}  # fmt: skip
CALL_STAGES = ("import_featgraph_s", "import_compiler_s", "setup_s", "behind_s")
STAGES = (*CALL_STAGES[:3], "fold_s", "compile_and_first_run_s", "second_run_s")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Run pairs of fresh processes, each pair with a store of its own."""
    recorder.use(arguments.target)
    if arguments.algorithms:
        given = arguments.algorithms
        for name in sorted(CALLS) if given == "all" else given.split(","):
            _record_calls(recorder, arguments, name)
        return
    for k, is_kept in product(arguments.k, (True, False)):
        given = ["--target", arguments.target, "--k", str(k)]
        cold, stored = _pairs(arguments.repeat, given, is_kept)
        library = "library kept" if is_kept else "library cold"
        fields = {"k": k, "target": arguments.target, "launched": cold[0]["launched"]}
        # Without a launch, nothing is kept to be found again.
        for name, runs in (("cold", cold), ("from the store", stored)):
            if name == "cold" or stored[0]["launched"]:
                total = [r["fold_s"] + r["compile_and_first_run_s"] for r in runs]
                times, stages = [1e3 * s for s in total], _medians(runs, STAGES)
                recorder.add(f"{name}, {library}", times, stages=stages, **fields)


def _pairs(
    repeat: int, given: list[str], library_kept: bool, behind: str = "1"
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return seconds of processes with an empty store, and of others behind them."""
    cold, stored = [], []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            for runs in (cold, stored):
                runs.append(_child(Path(folder), given, library_kept, behind))
    return cold, stored


def _medians(runs: list[dict[str, Any]], stages: Sequence[str]) -> dict[str, float]:
    return {s: round(statistics.median(r[s] for r in runs), 4) for s in stages}


def _record_calls(recorder: Recorder, arguments: argparse.Namespace, name: str) -> None:
    """Run pairs of processes that call a function of `algorithms` twice."""
    given = ["--target", arguments.target, "--algorithm", name]
    if arguments.scale is not None:
        given += ["--scale", str(arguments.scale)]
    if arguments.size:
        given += ["--size", arguments.size]
    if arguments.lazy:
        given.append("--lazy")
    behind = "0" if arguments.wait else "1"
    cold, stored = _pairs(arguments.repeat, given, True, behind)
    is_warmed = bool(os.environ.get("FEATGRAPH_CACHE_PATH"))
    for contender, stage, runs in (
        ("after warm" if is_warmed else "cold", "first_call_s", cold),
        ("from the store", "first_call_s", stored),
        ("warm", "second_call_s", stored),
    ):
        times = [1e3 * r[stage] for r in runs]
        processor = [r[stage.removesuffix("s") + "processor_s"] for r in runs]
        recorder.add(
            f"{name}, {contender}", times, algorithm=name, target=arguments.target,
            stages=_medians(runs, CALL_STAGES), scale=arguments.scale,
            size=arguments.size, lazy=arguments.lazy, waits=arguments.wait,
            processor_s=[round(s, 4) for s in processor],
            parts_s=runs[-1]["parts_s"], kernels_s=runs[-1]["kernels_s"],
        )  # fmt: skip


def _child(
    folder: Path, given: list[str], library_kept: bool, behind: str = "1"
) -> dict[str, Any]:
    places = {
        "FEATGRAPH_CACHE_DIR": str(folder / "featgraph"),
        "FEATGRAPH_CACHE": "1",
        "FEATGRAPH_COMPILE_BEHIND": behind,
    }
    if not library_kept:
        places["NUMBA_CACHE_DIR"] = str(folder / "numba")
    done = subprocess.run(
        [sys.executable, "-m", "bench.compile.child", *given],
        capture_output=True, text=True, cwd=ROOT, env=os.environ | places, check=False,
        timeout=300,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout)  # type: ignore[no-any-return]
