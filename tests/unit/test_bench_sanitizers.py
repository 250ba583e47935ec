"""The session under compute-sanitizer is green only where something was checked."""

from __future__ import annotations

import argparse
import json
import stat
import sys
import time
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.record import Recorder
from bench.report import print_report
from bench.sanitizers import child, planted, session
from bench.sanitizers.cases import BATCHES, KINDS, VARIANTS, make_cases
from bench.sanitizers.logs import Report, judge, parse_log
from bench.sanitizers.planted import FAULTS, Fault, cases_of, plant
from featgraph.base.errors import ConvergenceWarning
from featgraph.dynamic.kernels_cuda import LONG
from featgraph.dynamic.rows import HUB

LOGS = Path(__file__).parent / "sanitizer_logs"


def report_of(name: str) -> Report:
    return parse_log((LOGS / f"{name}.log").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "errors", "verdict"),
    [
        ("memcheck_found", 192, "found"),
        ("memcheck_clean", 0, "clean"),
        ("initcheck_found", 1, "found"),
        ("racecheck_found", 2, "found"),
        ("racecheck_clean", 0, "clean"),
        ("synccheck_found", 2, "found"),
        ("no_kernels", None, "no summary"),
        ("crash", 0, "crash"),
        ("cut", None, "no summary"),
    ],
)
def test_kept_logs(name: str, errors: int | None, verdict: str) -> None:
    report = report_of(name)
    assert report.errors == errors
    assert judge(report, 0, 12) == verdict


def test_what_makes_silence_worthless() -> None:
    clean = report_of("memcheck_clean")
    assert judge(clean, 0, 0) == "no kernels"
    assert judge(clean, None, 12) == "timeout"
    assert judge(clean, 255, 12) == "crash"
    assert judge(parse_log(""), 0, 12) == "no summary"
    # An application may write the same words: they are not the tool's.
    assert parse_log("ERROR SUMMARY: 0 errors").errors is None


def test_hazards_are_no_failures_of_the_tool() -> None:
    hazard = "Error: Potential RAW hazard detected at __shared__ 0x8 in block (0,0,0) :"
    summary = "RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"
    report = parse_log(f"========= {hazard}\n========= {summary}\n")
    assert judge(report, 0, 1) == "found"
    assert sum(report.kinds.values()) == 1


def test_kinds_and_kernels_are_reported() -> None:
    found = report_of("memcheck_found")
    assert found.kinds == {"Invalid __global__ read of size 4 bytes": 2}
    [(kernel, count)] = found.kernels.items()
    assert "push_phase_0" in kernel
    assert count == 2
    races = report_of("racecheck_found")
    assert sum(races.kinds.values()) == 2
    assert not races.problems
    assert report_of("synccheck_found").kernels == {"leaves": 2}


def test_every_program_and_variant_is_a_case() -> None:
    from tests.bank import BANK

    cases = make_cases()
    bank = {(c["program"], c["variant"]) for c in cases if c["kind"] == "bank"}
    assert bank == {(p.name, v) for p in BANK for v in VARIANTS}
    assert {c["kind"] for c in cases} == {*KINDS}
    assert {c["k"] for c in cases} >= {1, 3, 8, 17, 33, 64}
    # All widths meet all variants, not each the same ones.
    for variant in ("push", "pull NFA"):
        assert len({c["k"] for c in cases if c["variant"] == variant}) > 5


def test_several_warps_copy_long_rows() -> None:
    long = [of.long_rows for of in BATCHES.values() if of.long_rows]
    assert len(long) == 2
    for first, less, then in long:
        assert 0.7 * (first - less - then) > max(HUB, LONG)


@pytest.mark.slow
def test_kernels_of_the_runtime_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    from featgraph.cuda.launch import Launches
    from tests.simt.gpu import emulated_gpu

    monkeypatch.setattr(Launches, "__call__", Launches.__call__)  # and restored
    with emulated_gpu():
        launched = child.Launched()
        child.run_loops()
        kernels, _ = launched.take()
    assert any("first" in name for name in kernels)
    assert any("refresh" in name for name in kernels)


@pytest.mark.slow
def test_kernels_of_batches_are_launched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from featgraph.cuda.launch import Launches
    from tests.simt.gpu import emulated_gpu

    monkeypatch.setattr(Launches, "__call__", Launches.__call__)  # and restored
    found = {}
    with emulated_gpu():
        launched = child.Launched()
        for variant in ("one block", "many blocks"):
            few = replace(BATCHES[variant], blocks=1)  # lanes take their time
            monkeypatch.setitem(BATCHES, variant, few)
            child.run_case({"kind": "batches", "variant": variant, "seed": 2})
            found[variant], _ = launched.take()
    assert all("kernels_cuda.find_runs" in " ".join(names) for names in found.values())
    assert found["one block"].keys() != found["many blocks"].keys()
    assert not capsys.readouterr().out


#: Fault of a generated program -> the error of the emulator that finds it.
FOUND = {
    "reads rows past the last one": "MemoryFault",
    "drops the barriers of hubs": "RaceError",
    "leaves new buffers as they are": "MemoryFault: what is read here has never been",
    "leaves lanes out of syncs": "DivergenceError",
    "leaves warps out of barriers": "RaceError",  # of those that do not wait
}


@pytest.mark.parametrize("name", FOUND)
def test_a_program_runs_with_its_fault(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The emulator finds it where the tool has to, without a GPU."""
    [case] = cases_of(next(found[name] for found in FAULTS.values() if name in found))
    line = run_planted(case, plant(name, monkeypatch.setattr), monkeypatch, capsys)
    assert line["outcome"] == "raised"
    assert FOUND[name] in line["error"]


def test_a_fault_that_nothing_has_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = {n for found in FAULTS.values() for n, of in found.items() if of}
    assert programs == {*FOUND}
    monkeypatch.setitem(planted._EDITS, "edits nothing", (r"no such text\(\)", "pass"))
    fault = plant("edits nothing", monkeypatch.setattr)
    [case] = cases_of(FAULTS["memcheck"]["reads rows past the last one"])
    line = run_planted(case, fault, monkeypatch, capsys)
    assert line["outcome"] == "not planted"
    assert line["kernels"]


def run_planted(
    case: dict[str, Any],
    fault: Fault,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> dict[str, Any]:
    """Run a case on the emulator, with kernels of its own; return its outcome."""
    from featgraph.cuda.launch import Launches
    from featgraph.fold import folder
    from featgraph.runtime.superstep.foldmap import FoldMap
    from tests.simt.gpu import emulated_gpu

    program = child._program(case)
    own = replace(program, foldmaps=[FoldMap(s.program) for s in program.foldmaps])
    monkeypatch.setattr(child, "_program", lambda case: own)
    monkeypatch.setattr(folder, "_due_set", folder._due_set.__wrapped__)
    monkeypatch.setattr(Launches, "__call__", Launches.__call__)  # and restored
    with emulated_gpu(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        child.use_small_bounds(monkeypatch.setattr)
        run = partial(child.run_case, case)
        is_met = child.run_and_print(child.Launched(), 0, run, fault)
    line: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert is_met == (line["outcome"] != "not planted")
    return line


#: Stands in for the tool: runs the program, and writes the log that it is told to.
FAKE = """#!{python}
import os, subprocess, sys
arguments = sys.argv[1:]
if "--help" in arguments:
    print("--print-limit --log-file")
elif "--version" in arguments:
    print("Version 1.2.3")
else:
    tool = arguments[arguments.index("--tool") + 1]
    log = arguments[arguments.index("--log-file") + 1]
    assert "--port" not in arguments  # unknown to this one
    program = arguments[arguments.index("-m"):]
    code = subprocess.call([sys.executable, *program])
    planted = "planted" in log
    name = "memcheck_found" if planted != {swaps} else "memcheck_clean"
    if {writes}:
        open(log, "w").write(open({logs!r} + "/" + name + ".log").read())
    sys.exit(code)
"""

#: Stands in for the child: prints that its cases ran, and OUTCOME for planted faults.
CHILD = """
import json, sys
task = json.loads(open(sys.argv[1]).read())
for place, case in enumerate(task["cases"] or [{}]):
    outcome = OUTCOME if "planted" in task else "ran"
    print(json.dumps({"case": place, "outcome": outcome, "kernels": KERNELS,
                      "shares": False, "seconds": 0}))
"""


@pytest.mark.parametrize(
    ("writes", "swaps", "kernels", "outcome", "verdict", "ok"),
    [
        (True, False, {"a.push": 3}, "raised", "clean", True),
        (True, False, {"a.push": 3}, "not planted", "clean", False),
        (True, True, {"a.push": 3}, "ran", "found", False),  # and no planted fault
        (False, False, {"a.push": 3}, "ran", "no summary", False),
        (True, False, {}, "ran", "no kernels", False),
    ],
)
def test_a_session(
    writes: bool,
    swaps: bool,
    kernels: dict[str, int],
    outcome: str,
    verdict: str,
    ok: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(
        FAKE.format(python=sys.executable, swaps=swaps, writes=writes, logs=str(LOGS))
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    package = tmp_path / "bench" / "sanitizers"
    package.mkdir(parents=True)
    for folder in (package, package.parent):  # before an installed bench
        (folder / "__init__.py").touch()
    (package / "child.py").write_text(
        f"KERNELS, OUTCOME = {kernels}, {outcome!r}\n{CHILD}"
    )
    monkeypatch.setattr(session, "_PLACES", (str(tool),))
    monkeypatch.setattr(session, "gpu_name", lambda: "a GPU")
    environment = {"PYTHONPATH": str(tmp_path)}
    monkeypatch.setattr(session, "child_environment", lambda threads: environment)
    monkeypatch.setattr(session, "make_cases", lambda: make_cases()[:3])
    monkeypatch.chdir(tmp_path)
    arguments = argparse.Namespace(
        **{**session.DEFAULTS, "tools": "memcheck", "processes": 2}
    )
    recorder = Recorder("sanitizers-gpu", ["sanitizers-gpu"], "kept.jsonl")
    began = time.perf_counter()
    session.run(arguments, recorder)
    assert time.perf_counter() - began < arguments.budget
    [line] = [json.loads(x) for x in Path("kept.jsonl").read_text().splitlines()]
    assert set(line["processes"]) == {verdict}
    assert line["checks"]["ok"] == ok
    assert recorder.has_failures == (not ok)
    assert line["tool_version"] == "1.2.3"
    assert line["kernels"] == len(kernels)
    assert "--print-limit" in line["tool_command"]
    print_report(recorder.lines)
    is_lost = swaps or not writes or outcome == "not planted"
    assert f"{0 if is_lost else 2} of 2 found" in capsys.readouterr().out


def test_what_is_cut_off_is_reported() -> None:
    cases: list[Any] = [{"program": "a", "variant": "push", "k": 3}] * 3
    lines: list[dict[str, Any]] = [
        {"begun": 0},
        {"case": 0, "outcome": "ran", "kernels": {"a": 1}},
        {"begun": 1},
        {"case": 1, "outcome": "raised", "kernels": {"a": 2}, "error": "why"},
    ]
    done = session.Done(report_of("memcheck_clean"), None, lines, "")
    summary = session.summarise([(cases, done)])
    assert summary["processes"] == {"timeout": 1}
    assert summary["not_run"] == 1
    assert summary["raised"] == [["a", "push", 3, "why"]]
    assert summary["launches"] == 3
