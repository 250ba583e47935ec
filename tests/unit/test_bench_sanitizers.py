"""The session under compute-sanitizer is green only where something was checked."""

from __future__ import annotations

import argparse
import ast
import json
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.record import Recorder
from bench.report import print_report
from bench.sanitizers import child, session
from bench.sanitizers.cases import KINDS, VARIANTS, make_cases
from bench.sanitizers.logs import Report, judge, parse_log
from bench.sanitizers.planted import FAULTS, plant
from featgraph.fold.schedules import lanes

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
    for tool in FAULTS.values():
        for of in tool.values():
            if of is not None:
                assert any({n: c[n] for n in of} == of for c in cases)


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
            child.run_case({"kind": "batches", "variant": variant, "seed": 2})
            found[variant], _ = launched.take()
    assert all("kernels_cuda.find_runs" in " ".join(names) for names in found.values())
    assert found["one block"].keys() != found["many blocks"].keys()
    assert not capsys.readouterr().out


def test_a_fault_is_planted_in_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "leave_idle", lanes.leave_idle)  # and restored
    assert plant("keeps warps without a vertex") is None
    assert lanes.leave_idle(ast.parse(""), "return") == []  # type: ignore[arg-type]


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

#: Stands in for the child: says that it ran its cases.
CHILD = """
import json, sys
task = json.loads(open(sys.argv[1]).read())
for place, case in enumerate(task["cases"] or [{}]):
    print(json.dumps({"case": place, "outcome": "ran", "kernels": KERNELS,
                      "shares": False, "seconds": 0}))
"""


@pytest.mark.parametrize(
    ("writes", "swaps", "kernels", "verdict", "ok"),
    [
        (True, False, {"a.push": 3}, "clean", True),
        (True, True, {"a.push": 3}, "found", False),  # and nothing that was planted
        (False, False, {"a.push": 3}, "no summary", False),
        (True, False, {}, "no kernels", False),
    ],
)
def test_a_session(
    writes: bool,
    swaps: bool,
    kernels: dict[str, int],
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
    (package / "child.py").write_text(f"KERNELS = {kernels}\n{CHILD}")
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
    assert f"{0 if swaps or not writes else 2} of 2 found" in capsys.readouterr().out


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
