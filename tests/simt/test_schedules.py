"""Schedules that are asked for, lane by lane, against the interpreter."""

from __future__ import annotations

from typing import Any

import pytest

import featgraph as fg
from featgraph.fold.plan.options import parse_options
from tests.simt.case import Case
from tests.simt.programs import CASES
from tests.simt.test_kernels import Run

WIDTHS = (1, 2, 3, 4, 7, 8, 10, 33)
#: Option sets; `hubs` and `form` are of the run.
VARIANTS: dict[str, dict[str, Any]] = {
    f"virtual_warp-{lanes}-{kind}": {
        "schedule": "virtual_warp",
        "lanes_per_vertex": lanes,
        **more,
    }
    for lanes in (2, 4, 8, 16, 32)
    for kind, more in {
        "pull": {},
        "hubs": {"hubs": True},
        "packed": {"form": "packed"},
        "listed": {"form": "listed"},
        "push": {"direction": "push"},
    }.items()
}


#: Of the variants, each case runs in so many, in turn.
EACH = 2


def _in_turn() -> Any:
    """Every case in some variants, each time with another width."""
    names, turn = list(VARIANTS), 0
    for case in CASES:
        for _ in range(EACH):
            name, turn = names[turn % len(names)], turn + 1
            if VARIANTS[name].get("direction") == "push" and not case.pushes:
                continue
            widths = [k for k in WIDTHS if k <= case.widest]
            k = widths[turn % len(widths)]
            k += case.name == "pairs" and k % 2
            yield pytest.param(case, k, VARIANTS[name], id=f"{case.name}-{name}-{k}")


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("case", "k", "options"), list(_in_turn()))
def test_agrees_with_the_interpreter(
    case: Case, k: int, options: dict[str, Any]
) -> None:
    run_options = {n: v for n, v in options.items() if n in {"hubs", "form"}}
    asked = {n: v for n, v in options.items() if n not in run_options}
    parsed = parse_options("cuda", False, asked)
    given = {**asked, "of_schedule": parsed.of_schedule}
    given.pop("lanes_per_vertex", None)
    try:
        run = Run(case, k, **run_options, **given)
    except fg.PlanError:
        return  # some phases have no such mapping, and say so
    run.check()
