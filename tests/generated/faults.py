"""Plant faults in the middle end, one by one, and see whether programs find them.

``python -m tests.generated.faults [--count N] [--part 0/2] [FILE ...]`` copies the
checkout, changes one line of the copy and runs programs until one fails that agreed
before. It prints which. Exit status 1 where a fault was not found.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Where it runs, file, what stands there, what is planted.
FAULTS = (
    ("emulator", "fold/plan/fusion.py", "if not (a_changes or b_changes):",
     "if not a_changes:"),
    ("emulator", "fold/plan/fusion.py",
     'if a.where == b.where == "own":', "if True:"),
    ("emulator", "fold/plan/fusion.py",
     "updates(name)) == 1", "updates(name)) >= 1"),
    ("emulator", "fold/analysis/access.py", '"u": "neighbor"', '"u": "own"'),
    ("emulator", "device/ordering.py", "key == best_key and source < best_source",
     "key == best_key and source > best_source"),
    ("emulator", "fold/syntax/resolve.py", "ast.BinOp(read, node.op, node.value)",
     "ast.BinOp(node.value, node.op, read)"),
    ("emulator", "fold/syntax/normal_form.py", "isinstance(node.op, ast.Or)",
     "isinstance(node.op, ast.And)"),
    ("cpu", "fold/syntax/types.py", "node.operand = widened(node.operand, type_)",
     "pass"),
    ("emulator", "fold/syntax/normal_form.py",
     "under_varying or varies(node.value, names)",
     "varies(node.value, names)"),
    ("cpu", "fold/analysis/access.py", "dropped |= written", "pass"),
    ("emulator", "fold/plan/fusion.py", "if indexed:", "if False:"),
    ("emulator", "fold/plan/fusion.py", "if elsewhere is not None:", "if False:"),
    ("emulator", "fold/passes/bodies/predication.py", "masked = apart or varies(",
     "masked = varies("),
    ("emulator", "fold/analysis/access.py",
     "walk.written - missed - walk.read_early",
     "walk.written"),
    ("emulator", "fold/analysis/gathers.py",
     "contains(inner.value, Atomic)", "False"),
    ("emulator", "fold/passes/bodies/stores.py",
     "return not (reads & changed or names_read(statement)"
     " & bound)", "return True"),
    ("emulator", "fold/passes/bodies/stores.py",
     '(f"d.{node.name}_next", "e") for',
     "row_key(node, memory) for"),
    ("emulator", "fold/analysis/changes.py",
     'if record.where == "own":', "if False:"),
    ("emulator", "fold/analysis/changes.py",
     "if behind is not None:", "if False:"),
    ("emulator", "fold/passes/nests/accumulators.py", '"min": "<=", "max": ">="',
     '"min": ">=", "max": "<="'),
    ("emulator", "fold/passes/nests/accumulators.py",
     'f"{name} += {new} - {old}"', 'f"{name} += {new}"'),
    ("emulator", "fold/plan/fusion.py", 'ends = combine.rules.final is not None',
     'ends = combine.rules.selects'),
    ("emulator", "fold/schedules/mapping.py", "lanes = min(WARP, power_of_two(pieces))",
     "lanes = min(WARP, pieces)"),
    ("emulator", "fold/passes/bodies/predication.py",
     '_all(outer, expression(f"not {taken}"))', 'expression(f"not {taken}")'),
    ("emulator", "fold/passes/nests/diverge.py",
     'alive = f"is_due or (edge_passed and {allowed})"', 'alive = "is_due"'),
    ("emulator", "fold/passes/nests/converge.py",
     'tests = [self.masks[node.entity], "not alive"]',
     "tests = [self.masks[node.entity]]"),
    ("emulator", "fold/passes/nests/diverge.py",
     'return when(["not alive"], [Copy(node.names, node.entity)])', "return []"),
    ("cpu", "fold/passes/bodies/looped.py", "result |= X", "result = X"),
    ("cpu", "fold/passes/worklists/cpu.py",
     'when(["alive"], code(_PASSED), self.dropped())',
     'when(["alive"], code(_PASSED))'),
    ("emulator", "runtime/memory/buffers.py",
     "self.property(name))\n            self.stale[name] ="
     " ALL", "self.property(name))\n            self.stale[name] = None"),
    ("emulator", "runtime/memory/data.py", "None if reads else written", "written"),
    ("emulator", "runtime/memory/data.py", "dict.fromkeys(self._written, passed)",
     "dict.fromkeys(self._written)"),
    ("emulator", "runtime/superstep/frontier.py",
     "due = self._device.sets.without(words_of(due), frontier.stopped)", "pass"),
    ("emulator", "runtime/superstep/frontier.py",
     "due = self._device.sets.union(due, frontier.targets)", "pass"),
    ("emulator", "runtime/superstep/frontier.py",
     "self._full if count > 0 else active", "active"),
    ("emulator", "runtime/superstep/frontier.py",
     "self.all_due, self.base = True, None", "pass"),
    ("emulator", "reference/rules.py", "bool(source < best_source)", "True"),
    ("emulator", "reference/rules.py", "self.stopped[v] = not any(results)",
     "self.stopped[v] = not all(results)"),
)  # fmt: skip

_RUN = """
import json, random, sys, time
from contextlib import nullcontext
from tests.generated.check import check
from tests.generated.programs import generate
target, count, known, seconds = sys.argv[1:]
found, known, end, ran = [], json.loads(known), time.time() + float(seconds), 0
context = nullcontext()
if target == "emulator":
    from tests.simt import lanes
    from tests.simt.gpu import emulated_gpu
    context = emulated_gpu()
with context:
    for seed in range(int(count)):
        if time.time() > end:
            break
        if target == "emulator":
            lanes.ORDER = seed
        case = generate(random.Random(seed), work=300)
        report = check(case, "cpu" if target == "cpu" else "cuda")
        ran = seed + 1
        if report.status == "failed" and seed not in (known or []):
            found.append(seed)
            if known is not None:
                break
print(json.dumps([found, ran]))
"""


def _run(
    root: Path, target: str, count: int, known: list[int] | None, seconds: float
) -> tuple[list[int], int]:
    """Return the programs that fail, one at most where `known` is given; all run."""
    command = [sys.executable, "-W", "ignore", "-c", _RUN, target, str(count)]
    command += [json.dumps(known), str(seconds)]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"FEATGRAPH_CACHE": "0", "PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode > 0:
        raise RuntimeError(done.stderr)
    if done.returncode:  # a signal: what kills the interpreter is found, too
        return [-1], 0
    found, ran = json.loads(done.stdout.splitlines()[-1])
    return found, ran


def main() -> int:
    """Plant all; return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=600.0, help="of one fault")
    parser.add_argument("--known", help="seeds that fail in any case: [6, 32]")
    parser.add_argument("--part", default="0/1", help="every n-th fault: 0/2, 1/2")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("featgraph", "tests"):
            shutil.copytree(ROOT / name, root / name)
        known: dict[str, list[int]] = {}
        for target, file, old, new in FAULTS[part::parts]:
            if options.files and file not in options.files:
                continue
            if target not in known:
                given = json.loads(options.known) if options.known else None
                known[target] = (
                    given
                    if given is not None
                    else _run(root, target, options.count, None, options.seconds)[0]
                )
                print(f"{target}, without a fault: {known[target]} fail", flush=True)
            path = root / "featgraph" / file
            text = path.read_text()
            assert old in text, f"{file}: no {old!r}"
            path.write_text(text.replace(old, new, 1))
            found, ran = _run(
                root, target, options.count, known[target], options.seconds
            )
            path.write_text(text)
            missed += not found
            verdict = f"found by program {found[0]}" if found else f"MISSED by {ran}"
            print(f"{target}: {file}: {new!r}: {verdict}", flush=True)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
