"""Results: a JSON line each, with all that is needed to judge and repeat it."""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def child_environment(root: Path = ROOT, threads: int | None = None) -> dict[str, str]:
    """Return the environment in which a process finds the same packages and `bench`.

    `threads` are those of Numba, OpenMP and OpenBLAS; default all.
    """
    paths = [str(root), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    found = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if threads is not None:
        libraries = ("NUMBA", "OMP", "OPENBLAS")
        found |= {f"{name}_NUM_THREADS": str(threads) for name in libraries}
    return found


PACKAGES = ("featgraph", "numba", "numba-cuda", "numpy", "scipy", "torch", "cupy")
#: Where the distribution's name is not the package's.
OTHER_NAMES = {"cupy": ("cupy-cuda13x", "cupy-cuda12x")}


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments],  # noqa: S607
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@cache
def commit() -> str:
    """Return the commit, with "+" after it if the tree has changes outside bench/.

    ``FEATGRAPH_COMMIT`` has it for a checkout without its history.
    """
    given = os.environ.get("FEATGRAPH_COMMIT")
    if given:
        return given
    head = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--", ".", ":!bench", ":!tests")
    return (head or "unknown") + ("+" if changed else "")


@cache
def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        for name in (package, *OTHER_NAMES.get(package, ())):
            try:
                found[package] = metadata.version(name)
                break
            except metadata.PackageNotFoundError:
                continue
    return found


@cache
def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return models[0] if models else platform.processor()


def gpu_name() -> str | None:
    """Return the GPU's name as its driver gives it, or None without one."""
    from featgraph.cuda import dialect

    if not dialect.is_available():
        return None
    name = dialect.cuda.get_current_device().name
    return name.decode() if isinstance(name, bytes) else str(name)


def repeatable_command(argv: list[str]) -> str:
    """Return the command, as a shell takes it, without where its output went."""
    kept: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        name, has_value, _ = argument.partition("=")
        if not (name.startswith("--out") and "--output".startswith(name)):
            kept.append(argument)
        elif not has_value:
            next(arguments, None)
    return shlex.join(["python", "-m", "bench.run", *kept])


#: Returns trials in ms, and further fields of their line.
Measurement = Callable[..., tuple[list[float], dict[str, Any]]]


class Recorder:
    """Takes the results of one run: prints each as it comes, and appends it to a file.

    Attributes
    ----------
    lines : list of dict
        The lines of this run.
    """

    def __init__(self, bench: str, argv: list[str], output: str | None) -> None:
        self.bench = bench
        self.command = repeatable_command(argv)
        self.output = Path(output) if output else None
        self.lines: list[dict[str, Any]] = []
        self.device: str | None = None
        if self.output:
            self.output.parent.mkdir(parents=True, exist_ok=True)

    def use(self, target: str) -> None:
        """Record the GPU as the device, if that is the target."""
        self.device = gpu_name() if target == "cuda" else None

    def require_gpu(self) -> None:
        """Record the GPU as the device; end a bench that finds none."""
        self.use("cuda")
        if self.device is None:
            raise SystemExit(f"{self.bench} needs a GPU")

    @property
    def has_failures(self) -> bool:
        """If a contender raised or a check failed."""
        return any(
            "error" in line or not line.get("checks", {}).get("ok", True)
            for line in self.lines
        )

    def kept(self) -> list[dict[str, Any]]:
        """Return the lines of the output file, or of this run without one."""
        if self.output is None or not self.output.exists():
            return self.lines
        return [json.loads(line) for line in self.output.read_text().splitlines()]

    def found(self, **fields: Any) -> dict[str, Any] | None:
        """Return the last kept line with these fields, so that a run can go on."""
        lines = reversed(self.kept())
        return next((line for line in lines if fields.items() <= line.items()), None)

    def measure(
        self, contender: str, function: Measurement, *given: Any, **cell: Any
    ) -> dict[str, Any]:
        """Return the kept line of a cell; without one, that of a measurement.

        `function` returns the trials in ms, and further fields. An error is recorded;
        the line is empty then, and a later run measures the cell again.
        """
        kept = self.found(contender=contender, **cell)
        if kept is not None and "error" not in kept:
            return kept
        return self.record(contender, function, *given, **cell)

    def record(
        self, contender: str, function: Measurement, *given: Any, **cell: Any
    ) -> dict[str, Any]:
        """Return the line of a measurement, as `measure` does without a kept line."""
        made = self.attempt(contender, function, *given, **cell)
        if made is None:
            return {}
        trials, fields = made
        self.add(contender, trials, **cell, **fields)
        return self.lines[-1]

    def add(
        self,
        contender: str,
        trials_ms: list[float],
        *,
        graph: dict[str, Any] | None = None,
        checks: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Record every trial's time of one contender, with further fields."""
        line: dict[str, Any] = {
            "bench": self.bench,
            "contender": contender,
            **fields,
            "trials_ms": [round(trial, 6) for trial in trials_ms],
        }
        if trials_ms:
            line["median_ms"] = statistics.median(line["trials_ms"])
        if checks is not None:
            line["checks"] = checks
        if graph is not None:
            line["graph"] = graph
        self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        line |= {
            "command": self.command,
            "commit": commit(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "device": self.device,
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "versions": versions(),
        }
        self.lines.append(line)
        print(_short(line), flush=True)
        if self.output:
            with open(self.output, "a", encoding="utf-8") as file:
                file.write(json.dumps(line, default=_plain) + "\n")

    def attempt(
        self, contender: str, function: Callable[..., Any], *given: Any, **fields: Any
    ) -> Any:
        """Return the result of a call, or None; an error is recorded."""
        try:
            return function(*given)
        except Exception as error:
            traceback.print_exc(file=sys.stdout)
            text = f"{type(error).__name__}: {error}"[:2000]
            line = {"bench": self.bench, "contender": contender, **fields}
            # featgraph's errors have the driver's as their cause.
            is_cuda = "CudaAPIError" in traceback.format_exc()
            self._write(line | {"error": text, "is_cuda_error": is_cuda})
            return None


def _plain(value: Any) -> Any:
    """Return a NumPy scalar as a Python one."""
    return value.item()


def _short(line: dict[str, Any]) -> str:
    graph = line.get("graph", {}).get("name", "")
    parts = [graph, f"k={line['k']}" if "k" in line else "", line["contender"]]
    if "error" in line:
        parts.append(f"RAISED {line['error'].splitlines()[0]}")
    elif "median_ms" in line:
        parts.append(f"{line['median_ms']:.4g} ms, {len(line['trials_ms'])} trials")
    checks = line.get("checks")
    if checks is not None:
        shown = ", ".join(f"{n} {v:.3g}" for n, v in checks.items() if n != "ok")
        parts.append(f"{'right' if checks['ok'] else 'WRONG'} ({shown})")
    return "  ".join(part for part in parts if part)
