"""The list of schedules, and checks of the options that name them.

`SCHEDULES` has them by name. `check_target` and `check_own` refuse schedules that the
target does not have, and options that belong to another schedule.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping as Dict
from typing import Any

from featgraph.base.errors import PlanError
from featgraph.fold.schedules.base import Schedule
from featgraph.fold.schedules.block import (
    BlockSchedule,
    BlockTileSchedule,
    ElementSchedule,
    JoinSchedule,
    PartSchedule,
    ShareTileSchedule,
    TileJoinSchedule,
)
from featgraph.fold.schedules.cpu import CpuSchedule
from featgraph.fold.schedules.exclusive_groups import (
    BlockDiagonalSchedule,
    BlocksSchedule,
    DiagonalSchedule,
    LevelSchedule,
    MatchingEdgeSchedule,
    MatchingNodeSchedule,
    RacySchedule,
    RowsSchedule,
    SerialSchedule,
    SubgraphMatchingSchedule,
)
from featgraph.fold.schedules.exclusive_locks import (
    EdgeLockedSchedule,
    HybridSchedule,
    NodeLockedSchedule,
    TicketedSchedule,
)
from featgraph.fold.schedules.intersect_edges import (
    ChangedWordSchedule,
    ChunkedEdgeSchedule,
    ListedEdgeSchedule,
    WarpEdgeSchedule,
)
from featgraph.fold.schedules.intersect_rows import (
    BitmapSchedule,
    MarkSchedule,
    MergeSchedule,
    SearchSchedule,
)
from featgraph.fold.schedules.lanes import LaneSchedule, VirtualWarpSchedule
from featgraph.fold.schedules.mapping import INTERSECTIONS, Mapping
from featgraph.fold.schedules.thread import EdgeWordSchedule, ThreadSchedule
from featgraph.fold.schedules.warp_segmentation import (
    BalancedPushSchedule,
    WarpSegmentationSchedule,
)
from featgraph.fold.schedules.words import WordElementSchedule, WordSchedule

__all__ = [
    "NAMES", "OWN_OPTIONS", "SCHEDULES", "check_own", "check_target", "describe",
    "names_for",
]  # fmt: skip

#: All schedules, in the order in which error messages list them.
_ALL: tuple[Schedule, ...] = (
    CpuSchedule(),
    ThreadSchedule(),
    LaneSchedule(),
    VirtualWarpSchedule(),
    BlockSchedule(),
    PartSchedule(),
    JoinSchedule(),
    BlockTileSchedule(),
    TileJoinSchedule(),
    ElementSchedule(),
    ShareTileSchedule(),
    WordSchedule(),
    WordElementSchedule(),
    WarpSegmentationSchedule(),
    BalancedPushSchedule(),
    MarkSchedule(),
    MergeSchedule(),
    SearchSchedule(),
    BitmapSchedule(),
    ChunkedEdgeSchedule(),
    WarpEdgeSchedule(),
    ChangedWordSchedule(),
    ListedEdgeSchedule(),
    EdgeWordSchedule(),
    SerialSchedule(),
    LevelSchedule(),
    BlocksSchedule(),
    RowsSchedule(),
    MatchingEdgeSchedule(),
    MatchingNodeSchedule(),
    SubgraphMatchingSchedule(),
    DiagonalSchedule(),
    BlockDiagonalSchedule(),
    EdgeLockedSchedule(),
    NodeLockedSchedule(),
    HybridSchedule(),
    TicketedSchedule(),
    RacySchedule(),
)
SCHEDULES = {schedule.name: schedule for schedule in _ALL}
#: Valid values of `schedule=`; the CPU has one only, except for triangles.
NAMES = ("auto", *(s.name for s in _ALL if s.is_selectable), *INTERSECTIONS)
#: Options that belong to schedules -> the values that they take.
OWN_OPTIONS = {name: values for s in _ALL for name, values in s.options.items()}


def names_for(target: str, functions: Iterable[Any]) -> str:
    """Return the schedules that options may name on a target, in words.

    Without `functions`, all of the target.
    """
    kinds = [f.kind for f in functions]
    runs = {n for n in ("exclusive", "intersects") if any(getattr(k, n) for k in kinds)}
    runs |= set() if "exclusive" in runs else {""}
    fit = [SCHEDULES[n] for n in NAMES[1:] if not kinds or SCHEDULES[n].runs in runs]
    names = [s.name for s in fit if target in (*s.targets, "auto")]
    return ", ".join(map(repr, ["auto", *names]))


def check_target(name: str, target: str, functions: Iterable[Any] = ()) -> None:
    """Raise if a target does not have the schedule `name`.

    Raises
    ------
    PlanError
        If it does not have it. The message lists the schedules of the target.
    """
    if name == "auto" or target in SCHEDULES[name].targets:
        return
    theirs = " and ".join(f"target={other!r}" for other in SCHEDULES[name].targets)
    raise PlanError(
        f"this schedule is for {theirs}",
        where="schedule=",
        got=f"schedule={name!r}, target={target!r}",
        expected=names_for(target, functions),
        fix="drop schedule=",
    )


def check_own(
    schedule_name: str, options: Dict[str, Any]
) -> tuple[tuple[str, int], ...]:
    """Check own options of a schedule; return those its mapping depends on.

    Raises
    ------
    PlanError
        For an option of another schedule, or a missing option.
    """
    own = {name: int(options[name]) for name in OWN_OPTIONS if name in options}
    schedule = SCHEDULES.get(schedule_name)
    for name, value in own.items():
        if schedule is None or name not in schedule.options:
            theirs = [s.name for s in _ALL if name in s.options]
            raise PlanError(
                f"{name} does not belong to this schedule",
                where="options",
                got=f"schedule={schedule_name!r}, {name}={value}",
                expected=" or ".join(f"schedule={other!r}" for other in theirs),
                fix=f"drop {name}, or use schedule={theirs[0]!r}",
            )
    if schedule is None:
        return ()
    schedule.check(own)
    return tuple(sorted((n, v) for n, v in own.items() if n not in schedule.integers))


def describe(mapping: Mapping, width: int) -> str:
    """Return a mapping of functions of `width` features in words."""
    return SCHEDULES[mapping.schedule].describe(mapping, width)
