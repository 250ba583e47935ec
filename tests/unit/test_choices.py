"""Which mapping each program gets, over a grid of widths, traits and options.

`choices.json` has what was chosen when it was recorded. Where a choice is to change,
with a measurement, it is recorded anew::

    python -m tests.unit.test_choices
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from featgraph.base.errors import PlanError, UserFunctionError
from featgraph.fold.analysis.changes import Changes
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.schedules import thread
from featgraph.fold.schedules.mapping import Mapping
from tests.texts.plans import Case, cases_by_name

KEPT = Path(__file__).with_name("choices.json")
#: Of the grid, each program at each width takes so many points; those with matrices,
#: for which there are more schedules, the second number.
DRAWN, DRAWN_OF_MATRICES = 8, 40
MATRICES = {"_ratings", "als", "matrices", "least_squares", "implicit_least_squares"}

DEGREES = (1, 2, 4, 8, 16, 32, 64)
LONG: tuple[dict[str, Any], ...] = (
    {},
    {"long_rows": True},
    {"has_hubs": True},
    {"has_hubs": True, "long_rows": True},
    {"has_hubs": True, "long_rows": True, "has_giant": True},
)
ROWS = (0, 32, 256, 512, 1024)
OTHERS: tuple[dict[str, Any], ...] = (
    {}, {"undirected": True}, {"wide_offsets": True, "wide_both": True},
    {"renumbered": True},
)  # fmt: skip
TRAITS = [
    GraphTraits(typical_degree=degree, rows_of_longest=rows, **long, **more)
    for degree, long, rows, more in itertools.product(DEGREES, LONG, ROWS, OTHERS)
]
OPTIONS: list[dict[str, Any]] = [
    {}, {}, {}, {}, {"direction": "pull"}, {"direction": "push"},
    {"feature_parallel": False}, {"feature_parallel": False, "direction": "push"},
    {"incremental": Changes()}, {"asynchronous": True}, {"deterministic": True},
    {"folding": False}, {"checked": True}, {"schedule": "lanes"},
    {"schedule": "thread", "feature_parallel": False}, {"schedule": "block"},
    {"schedule": "block_tiles"}, {"schedule": "mark"}, {"schedule": "merge"},
    {"schedule": "search"}, {"schedule": "warp_segmentation"},
    {"schedule": "warp_segmentation", "of_schedule": (("edges_at_a_time", 2),)},
    {"schedule": "virtual_warp", "of_schedule": (("lanes_per_vertex", 4),)},
    {"schedule": "balanced_push", "direction": "push"}, {"schedule": "balanced_push"},
    {"mapping": (("lanes_per_vertex", 16),)}, {"mapping": (("unroll", 2),)},
    {"target": "cpu"}, {"target": "cpu", "schedule": "merge"},
]  # fmt: skip


def group_of(name: str) -> str:
    """Return the file of a program, by the name of its case."""
    return name.split(".")[0]


def points(case: Case) -> Iterator[tuple[Options, GraphTraits]]:
    """Generate the points of the grid that a program takes, always the same."""
    for n in range(DRAWN_OF_MATRICES if group_of(case.name) in MATRICES else DRAWN):
        number = zlib.crc32(f"{case.name} {n}".encode())
        traits = TRAITS[number // len(OPTIONS) % len(TRAITS)]
        if case.needs_twins:
            traits = replace(traits, undirected=True, wide_both=False)
        yield Options(**{"target": "cuda"} | OPTIONS[number % len(OPTIONS)]), traits


def words_of(mapping: Mapping) -> str:
    """Return a mapping in short: its schedule, and fields that are not defaults."""
    usual = Mapping(1, 1, 1, False, "")
    parts = [
        f"{name}={value}"
        for name, value in dataclasses.asdict(mapping).items()
        if value != getattr(usual, name) and name != "schedule"
    ]
    return " ".join([mapping.schedule, *parts])


def chosen(case: Case, options: Options, traits: GraphTraits) -> str:
    """Return the mappings of the phases of a program, or how it is refused."""
    try:
        plan = make_plan(case.foldmap.program, case.signature, options, traits)
    except (PlanError, UserFunctionError) as error:
        return type(error).__name__
    return "; ".join(f"{p.kind}: {words_of(p.mapping)}" for p in plan.phases)


def digest(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


@cache
def kept() -> dict[str, list[str]]:
    """Return the digests that were recorded, by the names of cases."""
    found: dict[str, str] = json.loads(KEPT.read_text("utf-8"))
    return {name: digests.split() for name, digests in found.items()}


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the constant that tests set otherwise."""
    monkeypatch.setattr(thread, "FEW_EDGES", 16)


@pytest.mark.parametrize("group", sorted(set(map(group_of, cases_by_name()))))
def test_choices_are_as_recorded(group: str) -> None:
    for case in cases_by_name().values():
        if group_of(case.name) != group:
            continue
        pairs = zip(points(case), kept()[case.name], strict=True)
        for point, known in pairs:
            found = chosen(case, *point)
            assert digest(found) == known, (case.name, point, found)


def test_choices_of_all_programs_are_recorded() -> None:
    """A new program is recorded by the command above."""
    assert set(kept()) == set(cases_by_name())


def record() -> None:
    """Record what is chosen now."""
    found = {
        case.name: " ".join(digest(chosen(case, *point)) for point in points(case))
        for case in cases_by_name().values()
    }
    KEPT.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    record()
