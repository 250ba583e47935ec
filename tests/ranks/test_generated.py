"""Generated programs on ranks: as the interpreter has them, or refused."""

from __future__ import annotations

import hypothesis
import pytest

from tests.generated.on_ranks import check_on_ranks, draw, minimised
from tests.generated.script import script

#: Seeds of the programs that always run.
SEEDS = (1, 3, 7)
#: Of the deep profile.
MANY = range(100, 400)


def is_deep() -> bool:
    return bool(hypothesis.settings.get_current_profile_name() == "deep")


@pytest.mark.drawn(3)
@pytest.mark.parametrize("seed", MANY if is_deep() else SEEDS)
def test_programs_agree_on_ranks(seed: int, target: str) -> None:
    case, division = draw(seed)
    report = check_on_ranks(case, division, target)
    if report.status == "failed":
        case = minimised(case, report, division, target)
        again = check_on_ranks(case, division, target)
        pytest.fail(f"{division}\n{script(case, again, target)}")
