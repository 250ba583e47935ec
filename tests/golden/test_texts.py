"""Texts of modules stay what they are: every program in many plans.

A line of ``texts.txt`` is a program and width, a digest of its texts in all plans, and
one of each plan that `drawn` has chosen. Those are compared here; all of them under
``--hypothesis-profile deep``. ``--update-golden`` writes the file anew; without the
deep profile, the digest of all plans is left open ("-") where a text has changed.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
from itertools import zip_longest
from pathlib import Path

import hypothesis
import pytest

from tests.texts.plans import VARIANTS, Case, cases_by_name, drawn, texts

KEPT = Path(__file__).with_name("texts.txt")
CASES = cases_by_name()
OPEN = "-"

HOW = """
To see what changed, here and in a worktree of the commit before:
    python -m tests.texts write FILE.zip --only {name}
    python -m tests.texts compare OLD.zip NEW.zip
If it is meant: pytest tests/golden --update-golden"""


def digest(text: str, size: int) -> str:
    """Return the first bytes of a sha256, as text."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:size]).decode()


def parsed(kept: str) -> dict[str, list[str]]:
    """Return what is kept of each case: the digest of all plans, those of the drawn."""
    lines = [line.split() for line in kept.splitlines()]
    return {name: digests for name, *digests in lines}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_texts(case: Case, request: pytest.FixtureRequest) -> None:
    is_deep = hypothesis.settings.get_current_profile_name() == "deep"
    names = [variant.name for variant in drawn(case)]
    made = dict(texts(case, VARIANTS if is_deep else drawn(case)))
    some = [digest(made[name], 3) for name in names]
    every = digest("".join(f"{n}\n{t}" for n, t in made.items()), 6) if is_deep else OPEN
    if request.config.getoption("--update-golden", default=False):
        keep(case.name, every, some)
        return
    kept_every, *kept = parsed(KEPT.read_text()).get(case.name, [OPEN])
    pairs = zip_longest(names, kept, some)
    changed = [str(name) for name, old, new in pairs if old != new]
    assert not changed, f"{case.name} in {', '.join(changed)}{HOW.format(name=case.name)}"
    if OPEN not in {every, kept_every}:
        assert every == kept_every, f"{case.name}{HOW.format(name=case.name)}"


def keep(name: str, every: str, some: list[str]) -> None:
    """Write the line of a case; others may do so at the same time."""
    with open(KEPT, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        kept = parsed(file.read())
        known, *before = kept.get(name, [OPEN])
        kept[name] = [known if every == OPEN and before == some else every, *some]
        file.truncate(0)
        file.writelines(f"{n} {' '.join(kept[n])}\n" for n in sorted(kept) if n in CASES)


def test_each_program_has_a_line(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden", default=False):
        pytest.skip("they are being written")
    assert set(parsed(KEPT.read_text())) == set(CASES)
