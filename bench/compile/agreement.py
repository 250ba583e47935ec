"""Every option combination of every program of the tests' bank against the interpreter.

Push and pull, feature-parallel (FA) and not (NFA), folded and unfolded, on random
graphs, by the agreement test's own check (S9). Each graph runs under all combinations;
the graphs of a program take different k. A program's graphs come in pairs that share
their kernels. Each pair is a process of its own, so that neither a hang nor a dead CUDA
context takes the rest along: what it had not done is done by another one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.compile.agreement_task import import_tests
from bench.record import ROOT, Recorder, gpu_name

DEFAULTS = {
    "target": "cpu",
    "graphs": 208,
    "processes": 12,
    "budget": 300.0,
    "timeout": 180.0,
    "supersteps": 2,
}
GRAPHS_A_KERNEL = 2
COMBINATIONS: dict[str, dict[str, Any]] = {
    f"{direction} {form} {folded}": {
        "direction": direction,
        "feature_parallel": form == "FA",
        "folding": folded == "folded",
    }
    for direction in ("pull", "push")
    for form in ("FA", "NFA")
    for folded in ("folded", "unfolded")
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", choices=["cpu", "cuda"])
    parser.add_argument("--programs", help="names, by commas; default all")
    parser.add_argument("--graphs", type=int, help="random graphs in total")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--supersteps", type=int, help="compared one after another")
    parser.add_argument("--budget", type=float, help="s after which no process starts")
    parser.add_argument("--timeout", type=float, help="s that one process may take")


def make_tasks(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Share the graphs out to programs, and each program's to pairs of one k."""
    bank = import_tests()[0]
    names = arguments.programs.split(",") if arguments.programs else list(bank.BY_NAME)
    tasks: dict[tuple[str, int], dict[str, Any]] = {}
    for number in range(arguments.graphs):
        place, turn = number % len(names), number // len(names)
        pair = turn // GRAPHS_A_KERNEL
        program = bank.BY_NAME[names[place]]
        # Steps of 3 through ten widths meet them all; programs begin at different ones.
        widths = arguments.k or program.widths
        k = widths[(place + 3 * pair) % len(widths)]
        task = tasks.setdefault(
            (program.name, pair),
            {
                "program": program.name,
                "k": k,
                "traits": place + pair,
                "seeds": [],
                "target": arguments.target,
                "supersteps": arguments.supersteps,
                "combinations": COMBINATIONS,
            },
        )
        task["seeds"].append(number)
    # Wide ones compile longest: they start first.
    return sorted(tasks.values(), key=lambda task: -int(task["k"]))


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Run all tasks in a pool of processes and record each program's table."""
    if arguments.target == "cuda":
        recorder.device = gpu_name()
        if recorder.device is None:
            raise SystemExit("no GPU; --target cpu runs anywhere")
    tasks = make_tasks(arguments)
    begun = time.perf_counter()
    stop_at = begun + arguments.budget
    found: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as store,
        ThreadPoolExecutor(arguments.processes) as pool,
    ):
        futures = [
            pool.submit(_finish, task, store, arguments.timeout, stop_at)
            for task in tasks
        ]
        for done, future in enumerate(futures, 1):
            results = future.result()
            found += results
            for result in results:
                if result["failures"]:
                    names = "program", "k", "combination"
                    print("FAILED", *(result[name] for name in names), flush=True)
            if done % 10 == 0 or done == len(tasks):
                elapsed = time.perf_counter() - begun
                print(f"[{elapsed:6.1f} s] {done} of {len(tasks)} tasks", flush=True)
    _record(recorder, arguments, found)


def _finish(
    task: dict[str, Any], store: str, timeout: float, stop_at: float
) -> list[dict[str, Any]]:
    """Run a task; after a hang or a crash, what is left of it in another process."""
    results: list[dict[str, Any]] = []
    left = dict(task["combinations"])
    while left:
        if time.perf_counter() > stop_at:
            results += [_result(task, name, not_run=True) for name in left]
            break
        lines, problem = _run_process(task | {"combinations": left}, store, timeout)
        for line in lines:
            if "combination" in line:
                name = line.pop("combination")
                results.append(_result(task, name, **line))
                del left[name]
        if problem:
            begun = [line["begun"] for line in lines if "begun" in line]
            stuck = next(
                (name for name in reversed(begun) if name in left),
                next(iter(left), None),
            )
            if stuck is not None:
                failure = {"kind": "process", "where": "", "error": problem}
                results.append(_result(task, stuck, failures=[failure]))
                del left[stuck]
    return results


def _run_process(
    task: dict[str, Any], store: str, timeout: float
) -> tuple[list[dict[str, Any]], str]:
    """Return the JSON lines of a process, and what went wrong with it, if anything."""
    import os

    # A thread each: many processes share the cores.
    settings = {"FEATGRAPH_CACHE_DIR": store, "NUMBA_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "bench.compile.agreement_task", json.dumps(task)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ | settings,
            timeout=timeout,
            check=False,
        )
        output = done.stdout
        problem = (
            f"exit {done.returncode}: {done.stderr[-1200:]}" if done.returncode else ""
        )
    except subprocess.TimeoutExpired as expired:
        kept = expired.stdout or b""
        output = kept.decode() if isinstance(kept, bytes) else kept
        problem = f"hung: more than {timeout} s"
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if not problem and not lines:
        problem = "no output"
    return lines, problem


def _result(task: dict[str, Any], combination: str, **fields: Any) -> dict[str, Any]:
    return {
        "program": task["program"],
        "k": task["k"],
        "seeds": task["seeds"],
        "combination": combination,
        "graphs": fields.get("graphs", 0),
        "supersteps": fields.get("supersteps", 0),
        "failures": fields.get("failures", []),
        "not_run": fields.get("not_run", False),
        "seconds": fields.get("seconds", 0.0),
    }


def _record(
    recorder: Recorder, arguments: argparse.Namespace, found: list[dict[str, Any]]
) -> None:
    """Record a line a program: graphs, failures, what was not run."""
    programs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in found:
        programs[result["program"]].append(result)
    for program, results in sorted(programs.items()):
        table = {
            name: {
                "graphs": sum(r["graphs"] for r in of),
                "failures": sum(len(r["failures"]) for r in of),
                "not_run": sum(r["not_run"] for r in of),
            }
            for name in COMBINATIONS
            if (of := [r for r in results if r["combination"] == name])
        }
        failures = [
            {"combination": r["combination"], "k": r["k"], **failure}
            for r in results
            for failure in r["failures"]
        ]
        for failure in failures[:3]:
            print(f"\n{program}, k={failure['k']}, {failure['combination']}, "
                  f"{failure['where']}\n{failure['error']}")  # fmt: skip
        not_run = sum(r["not_run"] for r in results)
        recorder.add(
            program,
            [1e3 * r["seconds"] for r in results if r["seconds"]],
            target=arguments.target,
            table=table,
            widths=sorted({r["k"] for r in results}),
            supersteps=sum(r["supersteps"] for r in results),
            failures=failures,
            checks={
                "ok": not failures and not not_run,
                "failures": len(failures),
                "not_run": not_run,
            },
        )
