"""Plant faults in the middle end, one by one, and see whether programs find them.

``python -m tests.generated.faults [--count N] [FILE ...]`` copies the checkout, changes
one line of the copy and runs programs on the emulator until one fails that agreed
before. It prints after how many. Exit status 1 where a fault was not found.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: File, what stands there, what is planted.
FAULTS = (
    ("fold/pulled.py", "if not (a_changes or b_changes):", "if not a_changes:"),
    ("fold/pulled.py", 'if a.where == b.where == "own":', "if True:"),
    ("fold/pulled.py", "updates(name)) == 1", "updates(name)) >= 1"),
    ("fold/access.py", 'return AccessClass.NEIGHBOR if name == "u"', 'return '
     'AccessClass.OWN if name == "u"'),
    ("runtime/superstep.py", "due = self.device.words_without(due, sets.stopped)",
     "pass"),
    ("runtime/superstep.py", "due = self.device.words_or(due, sets.targets)", "pass"),
    ("runtime/superstep.py", "sets.base = self.full if anything else sets.active",
     "sets.base = sets.active"),
    ("runtime/launcher.py", "sets.all_due, sets.base = True, None", "pass"),
    ("reference/combining.py", "return bool(source < best_source)", "return False"),
    ("reference/rules.py", "self.stopped[v] = not any(results)",
     "self.stopped[v] = not all(results)"),
)  # fmt: skip

_RUN = """
import json, random, sys
from tests.generated.check import check
from tests.generated.programs import generate
from tests.simt.gpu import emulated_gpu
bad = []
with emulated_gpu():
    for seed in range(int(sys.argv[1])):
        if check(generate(random.Random(seed), work=300), "cuda").status == "failed":
            bad.append(seed)
            if seed not in json.loads(sys.argv[2]) and sys.argv[3] == "stop":
                break
print(json.dumps(bad))
"""


def _failing(root: Path, count: int, known: list[int], stop: bool) -> list[int]:
    command = [sys.executable, "-W", "ignore", "-c", _RUN, str(count)]
    command += [json.dumps(known), "stop" if stop else "all"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def main() -> int:
    """Plant all; return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("featgraph", "tests"):
            shutil.copytree(ROOT / name, root / name)
        known = _failing(root, options.count, [], stop=False)
        print(f"without a fault: {known} fail", flush=True)
        for file, old, new in FAULTS:
            if options.files and file not in options.files:
                continue
            path = root / "featgraph" / file
            text = path.read_text()
            assert old in text, f"{file}: no {old!r}"
            path.write_text(text.replace(old, new, 1))
            found = set(_failing(root, options.count, known, stop=True)) - set(known)
            path.write_text(text)
            missed += not found
            said = f"found by program {min(found)}" if found else "MISSED"
            print(f"{file}: {new!r}: {said}", flush=True)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
