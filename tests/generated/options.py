"""Option sets that programs are run under."""

from __future__ import annotations

from typing import Any

import featgraph as fg
from featgraph.fold.schedules.table import OWN_OPTIONS
from tests.generated.draw import Draw

__all__ = ["draw_sets", "draw_unordered", "for_target"]

#: Every value of every option; "checked" is the configuration's.
CHOICES: tuple[dict[str, Any], ...] = (
    {"direction": "push"},
    {"folding": False},
    {"direction": "pull", "feature_parallel": False},
    {"change_driven": True},
    {"change_driven": False},
    {"checked": True},
    {"deterministic": True},
    {"direction": "push", "folding": False},
    {"direction": "push", "feature_parallel": False},
    {"direction": "pull", "folding": False, "checked": True},
    {"change_driven": True, "folding": False},
    {"change_driven": True, "feature_parallel": False},
    {"schedule": "thread"},
    {"schedule": "lanes"},
    {"schedule": "virtual_warp", "lanes_per_vertex": 2},
    {"schedule": "virtual_warp", "lanes_per_vertex": 16},
    {"schedule": "block"},
    {"schedule": "warp_segmentation"},
    {"schedule": "warp_segmentation", "edges_at_a_time": 1},
    {"schedule": "warp_segmentation", "change_driven": True},
    {"schedule": "balanced_push", "direction": "push"},
    {"schedule": "balanced_push", "direction": "push", "change_driven": False},
)
#: Aggregates are kept, and patched with what has changed.
PATCHING: tuple[dict[str, Any], ...] = (
    {"change_driven": True},
    {"change_driven": True, "folding": False},
    {"change_driven": True, "feature_parallel": False},
)
TRIANGLES: tuple[dict[str, Any], ...] = (
    {"schedule": "mark"},
    {"schedule": "merge"},
    {"schedule": "search"},
)


#: Options beside runs in any order.
UNORDERED: tuple[dict[str, Any], ...] = (
    {"direction": "pull"},
    {"feature_parallel": False},
    {"checked": True},
    {"folding": False},
    {"schedule": "thread"},
    {"schedule": "lanes"},
    {"schedule": "virtual_warp", "lanes_per_vertex": 4},
    {"schedule": "block"},
    {"schedule": "warp_segmentation"},
)


def draw_sets(draw: Draw, has_triangles: bool) -> list[dict[str, Any]]:
    """Return one or two option sets, the first of them empty mostly."""
    sets: list[dict[str, Any]] = [{}] if draw.chance(70) else []
    for _ in range(draw.one((1, 1, 1, 2)) if not sets else draw.number(0, 1)):
        sets.append(draw.one(TRIANGLES if has_triangles else CHOICES))
    for chosen in sets:
        draw.use(*(f"{name}={value}" for name, value in chosen.items()))
    unique = []
    for chosen in sets:
        if chosen not in unique:
            unique.append(chosen)
    return unique


def draw_unordered(draw: Draw, key: str) -> list[dict[str, Any]]:
    """Return two option sets for a run whose fixpoint alone is promised.

    What tells near vertices from far ones is the key and a delta: see `for_target`.
    """
    sets = []
    for _ in range(2):
        chosen: dict[str, Any] = {}
        if draw.chance(60):
            chosen["asynchronous"] = True
        if draw.chance(50) or not chosen:
            chosen["near_far"] = (key, draw.one((1.0, 4.0, 20.0)))
        if draw.chance(40):
            chosen |= draw.one(UNORDERED)
        sets.append(chosen)
    for chosen in sets:
        draw.use(*(name for name in ("asynchronous", "near_far") if name in chosen))
    return sets


def for_target(options: dict[str, Any], target: str, is_run: bool) -> dict[str, Any]:
    """Return the options to pass: schedules on CUDA only, change_driven for runs."""
    given = {n: v for n, v in options.items() if n != "checked"}
    if "near_far" in given:
        key, delta = given["near_far"]
        given["near_far"] = fg.NearFar(key, delta)
    if target == "cpu" and given.get("schedule") not in {None, "mark", "merge"}:
        given = {n: v for n, v in given.items() if n not in {"schedule", *OWN_OPTIONS}}
    if target == "cuda" and given.get("schedule") == "merge":
        del given["schedule"]
    if not is_run:
        given.pop("change_driven", None)
    return given
