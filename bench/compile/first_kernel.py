"""How long the first kernel takes: cold, and from the disk store.

Label propagation is folded, compiled and launched in a fresh process with an empty
store ("cold"), then in a second one that finds the first one's store. Imports and the
making of graph and state are reported apart. "library cold" empties Numba's cache of
featgraph's own loops and device functions, too: the first run after an installation.
Without a GPU, ``--target cuda`` compiles to machine code and launches nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.record import ROOT, Recorder, gpu_name

DEFAULTS = {"k": [8], "repeat": 5, "target": "cpu"}
STAGES = (
    "import_featgraph_s",
    "import_compiler_s",
    "setup_s",
    "fold_s",
    "compile_and_first_run_s",
    "second_run_s",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", choices=["cpu", "cuda"])


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Run pairs of fresh processes, each pair with a store of its own."""
    if arguments.target == "cuda":
        recorder.device = gpu_name()
    for k in arguments.k:
        for library in ("library kept", "library cold"):
            cold, stored = [], []
            for _ in range(arguments.repeat):
                with tempfile.TemporaryDirectory() as folder:
                    kept = library == "library kept"
                    cold.append(_child(Path(folder), arguments.target, k, kept))
                    stored.append(_child(Path(folder), arguments.target, k, kept))
            _record(recorder, f"cold, {library}", arguments.target, k, cold)
            if stored[0]["launched"]:  # else nothing is kept to be found again
                _record(
                    recorder, f"from the store, {library}", arguments.target, k, stored
                )


def _child(folder: Path, target: str, k: int, library_kept: bool) -> dict[str, Any]:
    places = {"FEATGRAPH_CACHE_DIR": str(folder / "featgraph"), "FEATGRAPH_CACHE": "1"}
    if not library_kept:
        places["NUMBA_CACHE_DIR"] = str(folder / "numba")
    command = [sys.executable, "-m", "bench.compile.child", "--target", target]
    done = subprocess.run(
        [*command, "--k", str(k)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | places,
        check=False,
        timeout=300,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def _record(
    recorder: Recorder, contender: str, target: str, k: int, runs: list[dict[str, Any]]
) -> None:
    total = [1e3 * (r["fold_s"] + r["compile_and_first_run_s"]) for r in runs]
    stages = {
        stage: round(statistics.median(r[stage] for r in runs), 4) for stage in STAGES
    }
    recorder.add(
        contender,
        total,
        k=k,
        target=target,
        launched=runs[0]["launched"],
        stages=stages,
    )
