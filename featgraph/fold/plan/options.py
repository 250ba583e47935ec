"""Options of a foldmap call, checked once at the border."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from featgraph.errors import PlanError
from featgraph.fold.analysis.change_driven import Changes, join_changes

__all__ = [
    "INTERSECTIONS",
    "IN_PLACE",
    "Changes",
    "Options",
    "join_changes",
    "parse_change_driven",
    "parse_options",
]

TARGETS = ("auto", "cpu", "cuda")
DIRECTIONS = ("auto", "push", "pull")
#: How the neighbors of two vertices are intersected.
INTERSECTIONS = ("mark", "merge", "search")
SCHEDULES = ("auto", "thread", "virtual_warp", "block", *INTERSECTIONS)
CHANGE_DRIVEN = (True, False, "auto")
#: How the option to commit in the kernel is called in messages.
IN_PLACE = "asynchronous=True"


@dataclass(frozen=True)
class Options:
    """What the caller asked for; none but `asynchronous` changes a result (S8).

    Attributes
    ----------
    target : str
        "cpu" or "cuda".
    direction : str
        "pull" (targets read along in-edges) or "push" (sources write along out-edges);
        "auto" pulls, and lets `iterate` push a superstep where that gives the same.
    feature_parallel : bool
        Consecutive lanes take consecutive features (FA); else one thread owns all
        features of a vertex (NFA). The CPU target is of the second form always.
    folding : bool
        Whether functions may share a kernel.
    deterministic : bool
        Refuse what is not bitwise repeatable.
    schedule : str
        "thread", "virtual_warp", "block" or "auto"; "mark", "merge" or "search" for
        triangle functions.
    checked : bool
        Guard every index.
    asynchronous : bool
        Commit inside of the kernel, where others see it in the same superstep.
    mapping : tuple of (str, int)
        For benches, given as the dict ``_mapping``: fields of `Mapping` to use instead
        of the chosen ones, in every phase in which lanes share a vertex. Not public.
    keep : Changes or None
        Keep the aggregates that can be kept and patch them, in a run whose foldmaps
        change this; None keeps nothing.
    """

    target: str = "cpu"
    direction: str = "auto"
    feature_parallel: bool = True
    folding: bool = True
    deterministic: bool = False
    schedule: str = "auto"
    checked: bool = False
    asynchronous: bool = False
    mapping: tuple[tuple[str, int], ...] = ()
    keep: Changes | None = None


def parse_options(target: str, checked: bool, given: dict[str, Any]) -> Options:
    """Return `Options`, or say which one is wrong.

    Raises
    ------
    PlanError
        For an unknown option or value.
    """
    allowed: dict[str, tuple[Any, ...]] = {
        "direction": DIRECTIONS,
        "feature_parallel": (True, False, "auto"),
        "folding": (True, False, "auto"),
        "deterministic": (True, False),
        "schedule": SCHEDULES,
        "change_driven": CHANGE_DRIVEN,
        "asynchronous": (True, False),
    }
    if target not in TARGETS:
        raise PlanError(
            "unknown target",
            where="target=",
            got=repr(target),
            expected="auto, cpu or cuda",
        )
    given = dict(given)
    mapping = tuple(sorted(given.pop("_mapping", {}).items()))
    for name, value in given.items():
        if name not in allowed:
            raise PlanError(
                f"there is no option {name!r}",
                where="options",
                expected=", ".join(["target", *allowed]),
            )
        if not isinstance(value, str | bool) or value not in allowed[name]:
            raise PlanError(
                f"{name} cannot be {value!r}",
                where="options",
                expected=", ".join(map(repr, allowed[name])),
            )
    chosen = {k: v for k, v in given.items() if k != "change_driven"}
    for name in ("feature_parallel", "folding"):
        if chosen.get(name) == "auto":
            chosen[name] = True
    schedule = chosen.get("schedule", "auto")
    if schedule == "thread" and chosen.get("feature_parallel") is True:
        raise PlanError(
            "the thread schedule gives all features of a vertex to one thread",
            where="options",
            got="schedule='thread', feature_parallel=True",
            fix="drop one of them",
        )
    if schedule == "thread":
        chosen["feature_parallel"] = False
    return Options(target=target, checked=checked, mapping=mapping, **chosen)


def parse_change_driven(given: dict[str, Any]) -> bool | str:
    """Return what checked options say of `change_driven`: True, False or "auto"."""
    value: bool | str = given.get("change_driven", "auto")
    return value
