"""Faults of ranks under ``featgraph launch``, on any engine: names and times.

In each launch a rank that is drawn fails in a superstep and phase that are drawn: it is
killed, stopped, raises, ends as it would for want of memory, or computes for ever; in a
phase, before an exchange, within one, or before a checkpoint is written. Every third
one goes on from its checkpoint, on 1 to 4 ranks in turn. "ms" is the time from the
fault to the error on each survivor; checked is that all of them name the rank, its
superstep and its phase, that nothing is left, and that a run gone on with has the
unbroken run's digest.

In some more launches the launcher is killed, or interrupted: "ms" is then the time
until no process of the launch is left, and checked is that it is below 5 s. Memory that
ranks share, and where they meet, has no name in a folder; that there is none in
/dev/shm is checked, too. And in some a rank compiles for longer than others wait: no
rank is lost, and "ms" is how long the others have waited for it, at least.

Of a launch that fails a check, `ends` has the lines of the ranks, by the seconds since
the fault, the last lines of each one's errors, with the stack of one that had to be
ended, and the launcher's.

With the target "cuda" ranks have a GPU each, and send rows by ``FEATGRAPH_GPU_LINKS``.
No rank fails within a message then: kernels store rows.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import featgraph as fg
from bench.distributed import faulty
from bench.record import Recorder, child_environment

DEFAULTS = {
    "repeat": 30, "seed": 1, "timeout": 5.0, "engine": "shared", "ends": 6,
    "slow": 2, "target": "cpu", "most": 4, "together": 1,
}  # fmt: skip
KINDS = ("kill", "stop", "raise", "memory", "computes")
PLACES = ("phase", "exchange", "message", "write")
#: The times of a launch in ms, and the fields of its record.
Found = tuple[list[float], dict[str, Any]]
#: Faults of the launcher.
ENDS = ("killed launcher", "Ctrl-C")
#: Seconds in which nothing of a launch may be left behind that.
GONE_S = 5.0
#: Longest that a launch may take.
LIMIT_S = 240
#: Lines of each rank's errors that are kept.
TAIL = 20


class Launched(NamedTuple):
    """Output of a launch.

    Attributes
    ----------
    lines : list of dict
        Of the ranks.
    errors : dict of str to str
        The last lines of each rank's, and the launcher's.
    ended : float
        When it had ended.
    """

    lines: list[dict[str, Any]]
    errors: dict[str, str]
    ended: float

    def ends(self) -> dict[str, Any]:
        """Return the ends of ranks, by the seconds since the fault."""
        faults = [line["at"] for line in self.lines if line["what"] == "fault"]
        since = faults[0] if faults else self.ended
        shown = [
            {"s": round(line["at"] - since, 3), "by": line["by"]}
            | {
                n: line[n]
                for n in ("what", "rank", "superstep", "phase", "text")
                if n in line
            }
            for line in sorted(self.lines, key=lambda line: line["at"])
        ]
        return {"said": shown, "s": round(self.ended - since, 3)} | self.errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, help="of what is drawn")
    parser.add_argument("--timeout", type=float, help="of ranks, in seconds")
    parser.add_argument("--engine", choices=("shared", "gloo"), help="of ranks")
    parser.add_argument("--ends", type=int, help="launches whose launcher is ended")
    parser.add_argument("--slow", type=int, help="launches with a rank that compiles")
    parser.add_argument("--most", type=int, help="ranks of a launch")
    parser.add_argument("--together", type=int, help="launches at a time")


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Launch ranks again and again, one of which fails."""
    rng = random.Random(arguments.seed)  # noqa: S311
    most, on_gpus = arguments.most, arguments.target == "cuda"
    places = [p for p in PLACES if p != "message" or not on_gpus]
    recorder.use(arguments.target)
    launches: list[tuple[str, Callable[[], Found]]] = []

    def draw(kind: str, rank: int, places: Sequence[str]) -> dict[str, Any]:
        place = {
            "superstep": rng.randrange(1, faulty.SUPERSTEPS - 1),
            "phase": rng.randrange(2),
            "place": rng.choice(places),
        }
        return {"kind": kind, "rank": rank, **place}

    for number in range(arguments.repeat):
        kind = KINDS[number % len(KINDS)]
        ranks = rng.choice(range(2, most + 1))
        # Rank 0 in the first ones.
        fault = draw(kind, number // len(KINDS) % ranks, places)
        if kind == "computes":  # a write or a wait that never ends is no fault
            fault["place"] = "phase"
        if fault["place"] == "write":
            fault["rank"] = 0  # it writes
        again = number // 3 % most + 1 if number % 3 == 0 else None
        # A killed rank is to be known in 2 s, any in the timeout.
        limit_s = arguments.timeout if kind in ("stop", "computes") else 2.0
        launches.append(
            (kind, partial(fail, arguments, fault, (ranks, again), limit_s))
        )
    for number in range(arguments.ends):
        kind, ranks = ENDS[number % len(ENDS)], min(2 + number % 3, most)
        fault = draw(kind, rng.randrange(ranks), PLACES[:2])
        launches.append((kind, partial(end, arguments, fault, ranks)))
    for number in range(arguments.slow):
        ranks = rng.choice(range(2, most + 1))
        fault = draw("compiles", number % ranks, ["phase"])
        launches.append(("compiles", partial(wait, arguments, fault, ranks)))
    with ThreadPoolExecutor(arguments.together) as threads:
        futures = [(kind, threads.submit(launched)) for kind, launched in launches]
        for kind, future in futures:
            recorder.attempt(kind, partial(record, recorder, kind, future.result))


def record(recorder: Recorder, kind: str, result: Callable[[], Found]) -> None:
    """Record the findings of a launch."""
    trials, fields = result()
    recorder.add(kind, trials, **fields)
    for name, told in fields.get("ends", {}).items():
        print(f"    {name}:", *str(told).splitlines(), sep="\n        ", flush=True)


def fail(
    arguments: argparse.Namespace,
    fault: dict[str, Any],
    ranks: tuple[int, int | None],
    limit_s: float,
) -> Found:
    """Launch ranks, one of which fails, and those that go on."""
    with tempfile.TemporaryDirectory() as name:
        plan = plan_of(arguments, fault, name)
        launched = launch(plan, ranks[0], status=1)
        lines = launched.lines
        failed = next(line for line in lines if line["what"] == "fault")
        saw = [line for line in lines if line["what"] == "saw"]
        waits_s = [line["at"] - failed["at"] for line in saw]
        are_named = len(saw) == ranks[0] - 1 and all(
            line[part] == failed[part]
            for line in saw
            for part in ("rank", "superstep", "phase")
        )
        checks = {
            "named": are_named,
            "in time": max(waits_s, default=limit_s) < limit_s,
            "nothing left": not left_of(name),
        }
        if ranks[1] is not None:
            found = launch(plan | {"before": 1}, ranks[1], status=0).lines
            digests = {d for line in found for d in line.get("digests", ())}
            checks["digest"] = len(digests) == 1
            folder = Path(plan["folder"])
            checks["nothing left"] &= all(p.name.isdecimal() for p in folder.iterdir())
    is_right = all(checks.values())
    return [1000 * seconds for seconds in waits_s], {
        **_options(arguments),
        "ranks": ranks[0],
        "again": ranks[1],
        "fault": fault,
        "checks": checks | {"ok": is_right},
        **({} if is_right else {"ends": launched.ends()}),
    }


def end(arguments: argparse.Namespace, fault: dict[str, Any], ranks: int) -> Found:
    """Launch ranks, one of which ends the launcher."""
    with tempfile.TemporaryDirectory() as name:
        plan = plan_of(arguments, fault, name)
        status = -signal.SIGKILL if fault["kind"] == ENDS[0] else 128 + signal.SIGINT
        launch(plan, ranks, status)
        ended = json.loads(Path(plan["folder"] + ".ended").read_text())
        until = ended + 2 * GONE_S
        while (left := left_of(name)) and time.time() < until:
            time.sleep(0.01)
        took_s = time.time() - ended
    return [1000 * took_s], {
        **_options(arguments),
        "ranks": ranks,
        "fault": fault,
        "checks": {"nothing left": not left, "ok": not left and took_s < GONE_S},
    }


def wait(arguments: argparse.Namespace, fault: dict[str, Any], ranks: int) -> Found:
    """Launch ranks, one of which compiles for longer than others wait."""
    with tempfile.TemporaryDirectory() as name:
        lines = launch(plan_of(arguments, fault, name), ranks, status=0).lines
        begun = next(line["at"] for line in lines if line["what"] == "fault")
        told = [line for line in lines if line["what"] == "digests"]
        same = len({d for line in told for d in line["digests"]}) == 1
        has_waited = all(line["at"] - begun > arguments.timeout for line in told)
    return [1000 * (line["at"] - begun) for line in told], {
        **_options(arguments),
        "ranks": ranks,
        "fault": fault,
        "checks": {
            "digest": same, "has waited": has_waited,
            "ok": same and has_waited and len(told) == ranks,
        },
    }  # fmt: skip


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.target == "cpu":
        return {"engine": arguments.engine}
    return {"engine": arguments.engine, "links": fg.config.gpu_links}


def plan_of(
    arguments: argparse.Namespace, fault: dict[str, Any], folder: str
) -> dict[str, Any]:
    return {
        "engine": arguments.engine,
        "timeout": arguments.timeout,
        "faults": [fault],
        "seed": arguments.seed,
        "folder": str(Path(folder) / "checkpoints"),
        "target": arguments.target,
    }


def launch(plan: dict[str, Any], ranks: int, status: int) -> Launched:
    """Launch ranks, and return their output; the launch has to end with a status."""
    command = [sys.executable, "-m", "featgraph", "launch", "-n", str(ranks)]
    with tempfile.TemporaryDirectory() as logs:
        done = subprocess.run(
            [*command, "--logs", logs, faulty.__file__, json.dumps(plan)],
            env=child_environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        ended = time.time()
        errors = {"launcher": _tail(done.stderr)} | {
            path.stem: _tail(path.read_text()) for path in Path(logs).glob("*.err")
        }
        if done.returncode != status:
            raise RuntimeError(f"status {done.returncode}\n{errors}")
        lines = [
            json.loads(line)
            for path in Path(logs).glob("*.out")
            for line in path.read_text().splitlines()
        ]
        return Launched(lines, errors, ended)


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-TAIL:])


def left_of(text: str) -> list[str]:
    """Return the processes that were started with some text, and memory with a name."""
    found = [path.name for path in Path("/dev/shm").glob("*featgraph*")]  # noqa: S108
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in path.read_text(errors="replace"):
                found.append(path.parent.name)
        except OSError:
            continue
    return found
