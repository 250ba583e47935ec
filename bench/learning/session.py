"""All GPU tables of the learning algorithms, within a time: most telling cells first.

Each stage is a process of its own, so that a fault or a hang costs one cell: the stage
is started again and goes on behind it. Every cell is in its file when it is measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.record import Recorder, child_environment

DEFAULTS = {
    "minutes": 9.0,
    "folder": "bench/results/learning",
    "target": "cuda",
    "small": False,
    "k": [4, 8, 32],
}
#: A stage that keeps dying is given up.
MOST_STARTS = 6


@dataclass(frozen=True)
class Stage:
    """One process: a bench, its arguments, and for how many s it may start cells."""

    bench: str
    arguments: tuple[str, ...]
    seconds: float


STAGES = (
    Stage("variants-gpu", ("--graph", "kron21"), 200),
    Stage("variants-gpu", ("--graph", "delaunay20"), 70),
    Stage("folding-gpu", ("--graph", "kron21,delaunay20"), 110),
    Stage("variants-gpu", ("--graph", "road770"), 90),
    Stage("features-gpu", ("--graph", "kron-19"), 150),
    Stage(
        "variants-gpu",
        ("--graph", "web-NotreDame,coAuthorsDBLP,soc-Epinions1,luxembourg_osm"),
        120,
    ),
    Stage("folding-gpu", ("--graph", "kron-19", "--k", "32"), 40),
    Stage("variants-gpu", ("--graph", "facebook_large"), 40),
    Stage("variants-gpu", ("--graph", "delaunay20,kron-19", "--programs", "BP-E"), 60),
)
#: The same on graphs that a CPU takes seconds for.
SMALL = (
    Stage("variants-gpu", ("--graph", "kron-7", "--programs", "LP"), 60),
    Stage("folding-gpu", ("--graph", "grid8", "--k", "4", "--programs", "LP"), 60),
    Stage("features-gpu", ("--graph", "kron-7", "--k", "4"), 60),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, help="of all stages together")
    parser.add_argument("--folder", help="for results: one file a bench")
    parser.add_argument("--target", choices=["cuda", "cpu"], help="cpu: a rehearsal")
    parser.add_argument("--small", action="store_true", help="on graphs of no size")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Run the stages in turn, each with what is left of the time."""
    end = time.perf_counter() + 60 * arguments.minutes
    folder = Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    stages = SMALL if arguments.small else STAGES
    for stage in stages:
        for _ in range(MOST_STARTS):
            left = end - time.perf_counter()
            if left < 10:
                print(f"no time left for {stage.bench} {' '.join(stage.arguments)}")
                break
            if _start(stage, folder, arguments.target, left):
                break
    for bench in dict.fromkeys(stage.bench for stage in stages):
        file = folder / f"{bench}.jsonl"
        if file.exists():
            lines = file.read_text(encoding="utf-8").splitlines()
            recorder.lines += [json.loads(line) for line in lines]


def _start(stage: Stage, folder: Path, target: str, left: float) -> bool:
    """Run a stage; False if its process died and another may go on."""
    budget = min(stage.seconds, max(left - 15, 5))
    command = [
        sys.executable, "-m", "bench.run", stage.bench, *stage.arguments,
        "--target", target, "--budget", f"{budget:.0f}",
        "--output", str(folder / f"{stage.bench}.jsonl"),
    ]  # fmt: skip
    print(f"-- {' '.join(command[2:])}", flush=True)
    environment = child_environment() | {"PYTHONUNBUFFERED": "1"}
    try:
        # A cell that began in time may end behind it, but not for ever.
        done = subprocess.run(
            command, cwd=Path.cwd(), env=environment, timeout=min(budget + 45, left),
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        print(f"-- {stage.bench}: stopped, it hung", flush=True)
        return False
    # 1 says that a cell failed or a check did: that is recorded.
    return done.returncode in {0, 1}
