"""Texts of modules stay what they are: every program in many plans.

A line of ``texts.txt`` is a program and width, and a digest of its text in each plan
that `drawn` has chosen. ``--update-golden`` writes the file anew. The texts in all
plans are compared between two commits, by ``python -m tests.texts``. A run of
everything draws a width of each program.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
from collections import Counter
from itertools import zip_longest
from pathlib import Path

import pytest

from featgraph.fold.schedules.exclusive import is_exclusive
from featgraph.fold.schedules.table import NAMES, SCHEDULES
from tests.programs.exclusive import LEARN, PROGRAMS
from tests.texts.paths import normalised
from tests.texts.plans import WIDTHS, Case, cases_by_name, drawn, texts

#: The same of each schedule of exclusive functions, on the CPU and on CUDA.
OF_SCHEDULES = Path(__file__).with_name("schedules.txt")
KEPT = Path(__file__).with_name("texts.txt")
CASES = cases_by_name()
COUNTS = Counter(name.rpartition("-k")[0] for name in CASES)
OF_ALL_WIDTHS = [n for n in CASES if COUNTS[n.rpartition("-k")[0]] == len(WIDTHS)]
OF_FEW = [name for name in CASES if name not in OF_ALL_WIDTHS]

HOW = """
To see what changed, here and in a worktree of the commit before:
    python -m tests.texts write FILE.zip --only {name}
    python -m tests.texts compare OLD.zip NEW.zip
If it is meant: pytest tests/golden --update-golden"""


def digest(text: str) -> str:
    """Return the first bytes of a sha256, as text."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:3]).decode()


def parsed(kept: str) -> dict[str, list[str]]:
    """Return the digests that are kept of each case."""
    lines = [line.split() for line in kept.splitlines()]
    return {name: digests for name, *digests in lines}


def check(case: Case, request: pytest.FixtureRequest) -> None:
    """Compare the texts of a case with those that are kept, or keep them."""
    made = {name: digest(text) for name, text in texts(case, drawn(case))}
    if request.config.getoption("--update-golden", default=False):
        keep(case.name, [*made.values()])
        return
    kept = parsed(KEPT.read_text()).get(case.name, [])
    pairs = zip_longest(made, kept, made.values())
    changed = [str(name) for name, old, new in pairs if old != new]
    assert not changed, (
        f"{case.name} in {', '.join(changed)}{HOW.format(name=case.name)}"
    )


@pytest.mark.drawn(len(WIDTHS))  # each program at one width
@pytest.mark.slow
@pytest.mark.parametrize("name", OF_ALL_WIDTHS)
def test_texts(name: str, request: pytest.FixtureRequest) -> None:
    check(CASES[name], request)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_FEW)
def test_texts_of_few_widths(name: str, request: pytest.FixtureRequest) -> None:
    check(CASES[name], request)


def test_texts_of_exclusive_schedules(request: pytest.FixtureRequest) -> None:
    made = {}
    for name in sorted(n for n in NAMES if is_exclusive(SCHEDULES.get(n))):
        step = PROGRAMS["mix_targets"] if name == "rows" else LEARN
        folded = [step.fold(k=16, target=t, schedule=name) for t in ("cpu", "cuda")]
        made[name] = [digest(normalised(kernel.source)) for kernel in folded]
    if request.config.getoption("--update-golden", default=False):
        lines = (f"{name} {' '.join(digests)}\n" for name, digests in made.items())
        OF_SCHEDULES.write_text("".join(lines))
    assert parsed(OF_SCHEDULES.read_text()) == made


def keep(name: str, digests: list[str]) -> None:
    """Write the line of a case; others may do so at the same time."""
    with open(KEPT, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        kept = parsed(file.read()) | {name: digests}
        file.truncate(0)
        file.writelines(
            f"{n} {' '.join(kept[n])}\n" for n in sorted(kept) if n in CASES
        )


def test_each_program_has_a_line(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden", default=False):
        pytest.skip("they are being written")
    assert set(parsed(KEPT.read_text())) == set(CASES)
