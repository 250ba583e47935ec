"""Schedules chosen by option, lane by lane, against the interpreter."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import featgraph as fg
from featgraph.base import padding
from featgraph.device import segments
from featgraph.fold.plan.options import parse_options
from featgraph.fold.tree import layout
from tests.simt import superstep
from tests.simt.case import Case
from tests.simt.emulator import Emulator
from tests.simt.lanes import EmulationError
from tests.simt.programs import BY_NAME, CASES
from tests.simt.test_kernels import Run

WIDTHS = (1, 2, 3, 4, 7, 8, 10, 33)
KINDS: dict[str, dict[str, Any]] = {
    "pull": {},
    "hubs": {"hubs": True},
    "packed": {"form": "packed"},
    "listed": {"form": "listed"},
    "push": {"direction": "push"},
}
SCHEDULES: dict[str, dict[str, Any]] = {
    f"{schedule}-{value}": {"schedule": schedule, option: value}
    for schedule, option, values in (
        ("virtual_warp", "lanes_per_vertex", (2, 4, 8, 16, 32)),
        ("warp_segmentation", "edges_at_a_time", (1, 2, 4)),
    )
    for value in values
}
SCHEDULES["balanced_push"] = {"schedule": "balanced_push"}
#: Option sets; `hubs` and `form` are of the run.
VARIANTS: dict[str, dict[str, Any]] = {
    f"{schedule}-{kind}": {**options, **more}
    for schedule, options in SCHEDULES.items()
    for kind, more in KINDS.items()
    if kind == "push" or schedule != "balanced_push"
}
#: Errors of schedules at phases that they have no mapping for.
REFUSED = {
    "lanes cannot share the edges of a vertex here: no shuffle combines their results",
    "too few lanes for so many features",
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


@pytest.mark.drawn(12)
@pytest.mark.parametrize(("case", "k", "options"), list(_in_turn()))
def test_agrees_with_the_interpreter(
    case: Case, k: int, options: dict[str, Any]
) -> None:
    run_options = {n: v for n, v in options.items() if n in {"hubs", "form"}}
    plan_options = {n: v for n, v in options.items() if n not in run_options}
    parsed = parse_options("cuda", False, plan_options)
    own = dict(parsed.of_schedule)
    given = {n: v for n, v in plan_options.items() if n not in own}
    try:
        run = Run(case, k, **run_options, **given, of_schedule=parsed.of_schedule)
    except fg.PlanError as error:
        if error.what not in REFUSED:
            raise
        pytest.skip(error.what)
    run.check()


@pytest.mark.drawn(6)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rows_one_after_the_other(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = CASES.index(case)
    monkeypatch.setattr(layout, "LONG_ROW", (0, 1)[turn % 2])  # all, and some
    widths = [k for k in WIDTHS if k <= case.widest]
    k = widths[turn % len(widths)] + (case.name == "pairs" and widths[0] % 2)
    names = [n for n in VARIANTS if n.startswith("warp_segmentation")]
    options = VARIANTS[names[turn % len(names)]]
    if options.get("direction") == "push" and not case.pushes:
        options = VARIANTS["warp_segmentation-2-hubs"]
    test_agrees_with_the_interpreter(case, k, options)


# -- faults

#: Where an edge's row is looked up, and where kernels use that.
LIBRARY = Path(segments.__file__).read_text(encoding="utf-8")
#: Name, program, K, options, text, what stands in its place.
FAULTS = [
    ("bits", "label_propagation", 1, {}, "(passed, first_vertex", "(passed, window"),
    (
        "first",
        "label_propagation",
        3,
        {},
        "first_vertex + edge_lane",
        "first_vertex + lane",
    ),
    ("boundary", "label_propagation", 3, {}, "<= place:", "< place:"),
    ("row", "label_propagation", 8, {}, "(row + step) * width", "(row + step)"),
    ("begin", "label_propagation", 3, {}, "int32(total - own)", "int32(total)"),
    ("run", "label_propagation", 3, {}, "if run_0 >> row_hop != 0:", "if True:"),
    (
        "short",
        "label_propagation",
        3,
        {},
        "= min(place, int32(edge_lane",
        "= min(0, (edge_lane",
    ),
    ("last", "label_propagation", 3, {}, "8) - 1", "8) - 2"),
    ("round", "label_propagation", 3, {}, "if in_round:", "if True:"),
    ("own", "label_propagation", 3, {}, "v, start = (own_v", "v, start = (v"),
    ("lent", "combines", 3, {}, "v = segments.of_row(own_v, row, 4)", "v = own_v"),
    (
        "tail",
        "label_propagation",
        3,
        {"direction": "push"},
        "inside_edge = place < row_places",
        "inside_edge = True",
    ),
]


#: The same where rows are taken one after the other.
ROW_FAULTS = [
    ("turn", "label_propagation", 3, {}, "if edge_lane == row:", "if True:"),
    ("merge", "label_propagation", 3, {}, "round_0_aggr += round_1_aggr", "pass"),
    ("length", "label_propagation", 3, {}, "int32(row_end - row_begin)", "row_end"),
    ("next", "label_propagation", 3, {}, "uint32(bits - uint32(1))", "uint32(0)"),
    ("last", "custom", 3, {}, ", 7, 4)", ", 0, 4)"),
    ("leader", "weighted_sum", 8, {}, "is_first and count > 0", "count > 0"),
]


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("long_row", "name", "k", "options", "text", "instead"),
    [
        pytest.param(long_row, *fault[1:], id=fault[0])
        for long_row, faults in ((layout.LONG_ROW, FAULTS), (0, ROW_FAULTS))
        for fault in faults
    ],
)
def test_a_planted_fault_is_caught(
    long_row: int,
    name: str,
    k: int,
    options: dict[str, Any],
    text: str,
    instead: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layout, "LONG_ROW", long_row)
    # With one feature a lane at K = 3, which is what the texts are of.
    monkeypatch.setattr(padding, "MULTIPLES", (1,))
    run = Run(BY_NAME[name], k, schedule="warp_segmentation", **options)
    kernel = run.kernels.text.replace(text, instead)
    library = LIBRARY.replace(text, instead)
    assert (kernel, library) != (run.kernels.text, LIBRARY)
    planted = partial(Emulator, {segments.__name__: library})
    monkeypatch.setattr(superstep, "Emulator", planted)
    with pytest.raises((AssertionError, IndexError, EmulationError)):
        run.check(kernel)
