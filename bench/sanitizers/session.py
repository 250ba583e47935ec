"""memcheck, racecheck, initcheck and synccheck over every generated variant.

Programs of the tests' bank run in all variants of kernels, on small graphs whose last
block has places without a vertex, several processes at a time. Everything is compiled
first without a tool. Then each tool has to find the faults of `planted`, and runs the
other cases: a line of the result for each. A tool fails if a fault that was planted
goes unseen, an error is found, a process leaves no summary, or no kernels ran.

Kernels without shared memory cannot race there: racecheck leaves those cases out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.record import Recorder, child_environment, gpu_name
from bench.sanitizers.cases import KINDS, make_cases
from bench.sanitizers.logs import Report, judge, parse_log
from bench.sanitizers.planted import FAULTS, cases_of

DEFAULTS = {
    "tools": "memcheck,initcheck,synccheck,racecheck",
    "processes": os.cpu_count() or 1,
    "budget": 420.0,
    "logs": "",
    "kinds": [*KINDS],
}
CHOICES = {"kinds": KINDS}
_PLACES = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer")
#: Of all tools. Errors of the driver's calls raise in the process that makes them.
_COMMON = (
    "--target-processes application-only",
    "--launch-timeout 120",
    "--print-limit 40",
    "--num-callers-host 1",
    "--num-callers-device 4",
)
_OWN = {
    "memcheck": ("--destroy-on-device-error kernel", "--report-api-errors no"),
    "racecheck": ("--racecheck-report all",),
    # The host copies whole blocks of a dynamic graph, with entries that nothing wrote.
    "initcheck": ("--check-api-memory-access no",),
    "synccheck": (),
}
#: Cases of one process: fewer while compiling, since some take long.
_COMPILED, _BATCH_SHARE = 6, 2


def printed(sanitizer: str, option: str) -> str:
    """Return the output of the tool with an option."""
    command = [sanitizer, option]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@dataclass
class Done:
    """A process that ended: its log and its output."""

    report: Report
    exit_code: int | None
    lines: list[dict[str, Any]]
    log: str

    @property
    def ran(self) -> list[dict[str, Any]]:
        """The lines of cases that ended."""
        return [line for line in self.lines if "case" in line]

    @property
    def launches(self) -> int:
        """How many kernels it has launched."""
        return sum(sum(line["kernels"].values()) for line in self.ran)

    @property
    def verdict(self) -> str:
        """The verdict on the log."""
        return judge(self.report, self.exit_code, self.launches)


@dataclass
class Session:
    """Processes under a tool, in a folder of their own."""

    sanitizer: str
    folder: Path
    processes: int
    stop_at: float
    known: str = ""
    started: int = field(default=0)

    def command(self, tool: str, log: Path) -> list[str]:
        """Return the command before the program's; only options of this version."""
        if not tool:
            return []
        if not self.known:
            self.known = printed(self.sanitizer, "--help")
        self.started += 1
        port = f"--port {49152 + 12 * (self.started % 1000)}"
        options = [*_COMMON, *_OWN[tool], port]
        known = [o for o in options if o.split()[0] in self.known]
        words = " ".join(known).split()
        return [self.sanitizer, "--tool", tool, *words, "--log-file", str(log)]

    def run(self, tool: str, task: dict[str, Any], name: str) -> Done:
        """Run a task in a process of its own."""
        given = self.folder / f"{tool or 'none'}-{name}.json"
        log = given.with_suffix(".log")
        given.write_text(json.dumps(task), encoding="utf-8")
        command = [*self.command(tool, log), sys.executable, "-m"]
        command += ["bench.sanitizers.child", str(given)]
        left = max(1.0, self.stop_at - time.perf_counter())
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=self.environment(),
                timeout=left, check=False,
            )  # fmt: skip
            output, code, errors = done.stdout, done.returncode, done.stderr
        except subprocess.TimeoutExpired as expired:
            kept = expired.stdout or b""
            output = kept.decode() if isinstance(kept, bytes) else kept
            code, errors = None, ""
        lines = [json.loads(x) for x in output.splitlines() if x.startswith("{")]
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        if code:
            text += f"\n{errors[-2000:]}"
        return Done(parse_log(text), code, lines, text)

    def environment(self) -> dict[str, str]:
        """Return the children's environment: nothing between kernels and the driver.

        A memory manager that keeps freed memory would hide reads of it.
        """
        store = os.environ.get("FEATGRAPH_CACHE_DIR") or str(self.folder / "store")
        settings = {"FEATGRAPH_CACHE_DIR": store, "NUMBA_CACHE_DIR": f"{store}/numba"}
        environment = child_environment(threads=1) | settings
        environment.pop("NUMBA_CUDA_MEMORY_MANAGER", None)
        return environment

    def map(
        self, tool: str, batches: list[list[dict[str, Any]]]
    ) -> list[tuple[list[dict[str, Any]], Done]]:
        """Run batches of cases, several at a time."""
        with ThreadPoolExecutor(self.processes) as pool:
            done = pool.map(
                lambda item: self.run(tool, {"cases": item[1]}, str(item[0])),
                enumerate(batches),
            )
            return list(zip(batches, done, strict=True))


def batches_of(cases: list[Any], size: int) -> list[list[Any]]:
    """Deal cases out, so that those of one program are apart."""
    count = max(1, -(-len(cases) // max(size, 1)))
    return [cases[place::count] for place in range(count)] if cases else []


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Compile, then run each tool and record its findings."""
    sanitizer = next(filter(None, map(shutil.which, _PLACES)), None)
    recorder.device = gpu_name()
    if sanitizer is None or recorder.device is None:
        raise SystemExit("needs a GPU and compute-sanitizer on the PATH")
    stop_at = time.perf_counter() + arguments.budget
    with tempfile.TemporaryDirectory() as folder:
        session = Session(sanitizer, Path(folder), arguments.processes, stop_at)
        cases = [case for case in make_cases() if case["kind"] in arguments.kinds]
        cases = _compile(session, cases)
        for tool in arguments.tools.split(","):
            _record(recorder, arguments, tool, session, cases)


def _compile(session: Session, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run everything once without a tool, and return the cases that can run."""
    began = time.perf_counter()
    # Wide ones compile longest: they start first.
    ordered = sorted(cases, key=lambda case: -int(case["k"]))
    kept, outcomes = [], Counter()
    for batch, done in session.map("", batches_of(ordered, _COMPILED)):
        for line in done.ran:
            case = batch[line["case"]]
            outcomes[line["outcome"]] += 1
            if line["outcome"] == "raised":
                print("RAISED", case["program"], case["variant"], line["error"])
            if line["outcome"] != "refused":
                kept.append(case | {"shares": line["shares"]})
        lost = len(batch) - len(done.ran)
        if lost:
            outcomes["lost"] += lost
            print("LOST", lost, "cases", done.exit_code, done.log[-1500:])
            kept += batch[len(done.ran) :]
    seconds = time.perf_counter() - began
    print(f"[{seconds:.0f} s] compiled: {dict(outcomes)}", flush=True)
    return kept


def version_of(sanitizer: str) -> str:
    """Return the tool's version, as it prints it."""
    found = re.search(r"Version (\S+)", printed(sanitizer, "--version"))
    return found[1] if found else "unknown"


def _planted(session: Session, tool: str) -> dict[str, Any]:
    """Return the result of a tool for each fault that it must find."""

    def look(item: tuple[int, tuple[str, dict[str, Any] | None]]) -> dict[str, Any]:
        number, (name, of) = item
        task = {"cases": cases_of(of), "planted": name}
        done = session.run(tool, task, f"planted{number}")
        outcomes = [line["outcome"] for line in done.ran]
        found = bool(done.report.errors) and "not planted" not in outcomes
        result = {
            "found": found,
            "errors": done.report.errors,
            "verdict": done.verdict,
            "kinds": done.report.kinds,
        }
        if not found:
            raised = [line["error"] for line in done.ran if "error" in line]
            result |= {"outcomes": outcomes, "raised": raised, "log": done.log[-1500:]}
        return result

    with ThreadPoolExecutor(session.processes) as pool:
        found = pool.map(look, enumerate(FAULTS[tool].items()))
        return dict(zip(FAULTS[tool], found, strict=True))


def _record(
    recorder: Recorder,
    arguments: argparse.Namespace,
    tool: str,
    session: Session,
    cases: list[dict[str, Any]],
) -> None:
    """Run a tool and record its line."""
    began = time.perf_counter()
    planted = _planted(session, tool)
    mine = [c for c in cases if c.get("shares", True)] if tool == "racecheck" else cases
    size = -(-len(mine) // (_BATCH_SHARE * session.processes))
    results = session.map(tool, batches_of(mine, size))
    summary = summarise(results)
    for number, (_, done) in enumerate(results):
        if done.verdict != "clean":
            print(f"{tool}, process {number}: {done.verdict}\n{done.log[-2500:]}")
            _keep(arguments.logs, f"{tool}-{number}.log", done.log)
    found = sum(fault["found"] for fault in planted.values())
    is_well = (
        found == len(planted)
        and set(summary["processes"]) == {"clean"}
        and not summary["raised"]
        and not summary["not_run"]
    )
    recorder.add(
        tool,
        [],
        tool_version=version_of(session.sanitizer),
        tool_command=session.command(tool, Path("LOG")),
        left_out=len(cases) - len(mine),
        planted=planted,
        faults=f"{found} of {len(planted)} found",
        seconds=round(time.perf_counter() - began, 1),
        **summary,
        checks={
            "ok": is_well,
            "errors": summary["errors"],
            "planted_found": found,
            "planted": len(planted),
            "kernels": summary["kernels"],
            "launches": summary["launches"],
        },
    )


def _keep(folder: str, name: str, log: str) -> None:
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / name).write_text(log[-400_000:], encoding="utf-8")


def summarise(
    results: list[tuple[list[dict[str, Any]], Done]],
) -> dict[str, Any]:
    """Add up cases and findings of the processes of a tool."""
    kernels: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    places: Counter[str] = Counter()
    raised, not_run = [], 0
    for batch, done in results:
        for line in done.ran:
            kernels.update(line["kernels"])
            if line["outcome"] != "ran":
                case = batch[line["case"]]
                names = ("program", "variant", "k")
                raised.append([*(case[n] for n in names), line.get("error", "")])
        not_run += len(batch) - len(done.ran)
        kinds.update(done.report.kinds)
        places.update(done.report.kernels)
    return {
        "errors": sum(done.report.errors or 0 for _, done in results),
        "processes": dict(Counter(done.verdict for _, done in results)),
        "cases": sum(len(batch) for batch, _ in results),
        "kernels": len(kernels),
        "launches": sum(kernels.values()),
        "kinds": dict(kinds.most_common(20)),
        "places": dict(places.most_common(40)),
        "raised": raised,
        "not_run": not_run,
    }
