"""Options of a foldmap call, checked where the user's call enters the folder.

`OPTIONS` lists the names and values, and `parse_options` makes an `Options` of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from featgraph.base.arguments import near_name, shown
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import PlanError
from featgraph.fold.analysis.changes import Changes, join_changes
from featgraph.fold.schedules.base import AnyInteger
from featgraph.fold.schedules.exclusive import ORDER
from featgraph.fold.schedules.table import (
    NAMES,
    OWN_OPTIONS,
    SCHEDULES,
    check_own,
    check_target,
    names_for,
)

__all__ = [
    "IN_PLACE",
    "OPTIONS",
    "Changes",
    "Options",
    "join_changes",
    "parse_change_driven",
    "parse_options",
]

#: Values of `target=`.
TARGETS = ("auto", "cpu", "cuda")
#: Forms in which rows of vertices and edges are sent to other ranks: see `Sending`.
EXCHANGES = ("auto", "all", "ms", "vr", "vr-list")
#: Whether rows are sent to other ranks while further vertices are swept.
OVERLAP = ("auto", True, False)
#: Dtypes to which real numbers may be rounded between ranks.
WIRE_DTYPES = (None, "float16", "bfloat16")
DIRECTIONS = ("auto", "push", "pull")
CHANGE_DRIVEN = (True, False, "auto")
#: Options -> the values that they take.
OPTIONS: dict[str, tuple[Any, ...] | AnyInteger] = {
    "direction": DIRECTIONS,
    "feature_parallel": (True, False, "auto"),
    "folding": (True, False, "auto"),
    "deterministic": (True, False),
    "schedule": NAMES,
    **OWN_OPTIONS,
    "change_driven": CHANGE_DRIVEN,
    "asynchronous": (True, False),
    "exchange": EXCHANGES,
    "overlap": OVERLAP,
    "wire_dtype": WIRE_DTYPES,
    "racy": (True, False),
}
#: Options of exclusive functions that all schedules take.
_OF_ORDERS = ("record_order", "shuffle")
#: The option to commit in the kernel, in messages.
IN_PLACE = "asynchronous=True"


@dataclass(frozen=True)
class Options:
    """Options of a fold, checked and resolved.

    No option changes results (S8), except `asynchronous`, `racy`, `wire_dtype`, and
    those that set the order in which exclusive functions run.

    Attributes
    ----------
    target : str
        "cpu" or "cuda".
    direction : str
        "pull" (targets read along in-edges) or "push" (sources write along out-edges);
        "auto" pulls, and lets `iterate` push a superstep if the result is the same.
    feature_parallel : bool
        Whether consecutive lanes take consecutive features (FA). Else one thread has
        all features of a vertex (NFA), as always on the CPU.
    folding : bool
        Whether functions may share a kernel.
    deterministic : bool
        Whether programs that are not bitwise repeatable raise.
    schedule : str
        A name in `fold.schedules.table`, or "auto"; "mark", "merge" or "search" for
        triangle functions.
    checked : bool
        Whether kernels check every index.
    asynchronous : bool
        Whether kernels commit, so that others read new values in the same superstep.
    mapping : tuple of (str, int)
        For benches, given as the dict ``_mapping``: fields of `Mapping` to use instead
        of the chosen ones, in every phase in which lanes share a vertex. Not public.
    of_schedule : tuple of (str, int)
        Options that the schedule defines, without those that its kernels take as
        arguments.
    racy : bool
        Whether exclusive functions run without exclusion.
    record_order : str
        The edge property that gets the turns of each edge; "" for none.
    is_shuffled : bool
        Whether ``shuffle=`` was given, a seed or None.
    exchange : str
        The form in which rows are sent to other ranks; "auto" takes the fewest bytes.
    overlap : str or bool
        Whether rows are sent while further vertices are swept; "auto" measures which is
        faster.
    wire_dtype : str or None
        Dtype to which real numbers of vertices are rounded between ranks.
    incremental : Changes or None
        Changes of the run, if the aggregates of gathers stay in memory and are patched
        where these changes allow it; None if they do not.
    """

    target: str = "cpu"
    direction: str = "auto"
    feature_parallel: bool = True
    folding: bool = True
    deterministic: bool = False
    schedule: str = "auto"
    checked: bool = False
    asynchronous: bool = False
    exchange: str = "auto"
    overlap: str | bool = "auto"
    wire_dtype: str | None = None
    mapping: tuple[tuple[str, int], ...] = ()
    of_schedule: tuple[tuple[str, int], ...] = ()
    racy: bool = False
    record_order: str = ""
    is_shuffled: bool = False
    incremental: Changes | None = None


def parse_options(
    target: str, checked: bool, given: dict[str, Any], functions: Sequence[Any] = ()
) -> Options:
    """Return the `Options` of a call, checked.

    Raises
    ------
    PlanError
        For an unknown option or value.
    """
    if not isinstance(target, str) or target not in TARGETS:
        raise PlanError(
            "unknown target",
            where="target=",
            got=shown(target),
            expected="auto, cpu or cuda",
        )
    given = dict(given)
    mapping = tuple(sorted(given.pop("_mapping", {}).items()))
    is_shuffled, seed = "shuffle" in given, given.pop("shuffle", None)
    if seed is not None and seed not in ORDER:
        raise PlanError(
            f"shuffle cannot be {shown(seed)}",
            where="options",
            expected=f"{ORDER}, or None",
        )
    recorded = given.pop("record_order", "")
    if not isinstance(recorded, str):
        raise PlanError(
            "the order is recorded in a property, which is given by its name",
            where="record_order=",
            got=shown(recorded),
            expected="the name of an edge property",
        )
    for name, value in given.items():
        if name not in OPTIONS:
            raise PlanError(
                f"there is no option {name!r}",
                where="options",
                expected=", ".join(["target", *OPTIONS, *_OF_ORDERS]),
                fix=near_name(name, ["target", *OPTIONS, *_OF_ORDERS]),
            )
        kinds = int if name in OWN_OPTIONS else str | bool | None
        is_one = isinstance(value, kinds) and value in OPTIONS[name]
        if not is_one or (name in OWN_OPTIONS and isinstance(value, bool)):
            words = _expected(OPTIONS[name])
            if name == "schedule":
                words = names_for(target, functions)
            raise PlanError(
                f"{name} cannot be {shown(value)}",
                where="options",
                expected=words,
            )
    chosen = {k: v for k, v in given.items() if k != "change_driven"}
    for name in ("feature_parallel", "folding"):
        if chosen.get(name) == "auto":
            chosen[name] = True
    requested = chosen.get("schedule", "auto")
    of_schedule = check_own(requested, chosen)
    chosen = {k: v for k, v in chosen.items() if k not in OWN_OPTIONS}
    shares = SCHEDULES[requested].shares_features if requested in SCHEDULES else None
    if shares is not None:
        if chosen.get("feature_parallel", shares) is not shares:
            owner = "lanes" if shares else "one thread"
            raise PlanError(
                f"the {requested} schedule gives all features of a vertex to {owner}",
                where="options",
                got=f"schedule={requested!r}, feature_parallel={not shares}",
                fix="drop one of them",
            )
        chosen["feature_parallel"] = shares
    if target != "auto":
        check_target(requested, target, functions)
    options = Options(
        target=target, checked=checked, mapping=mapping, of_schedule=of_schedule,
        record_order=recorded, is_shuffled=is_shuffled, **chosen,
    )  # fmt: skip
    _check_racy(options)
    return options


def _check_racy(options: Options) -> None:
    """Raise for ``racy=True`` together with an option that needs exclusion."""
    excluded = {
        "schedule": options.schedule if options.schedule != "auto" else None,
        "deterministic": options.deterministic or None,
        "record_order": options.record_order or None,
    }
    for name, value in excluded.items() if options.racy else ():
        if value is not None:
            raise PlanError(
                "without exclusion no order holds",
                where="racy=True",
                got=f"racy=True, {name}={value!r}",
                fix="drop one of the two",
            )


def _expected(values: tuple[Any, ...] | AnyInteger) -> str:
    """Return the values of an option in words."""
    if isinstance(values, AnyInteger):
        return str(values)
    return ", ".join(map(repr, values))


def parse_change_driven(given: dict[str, Any]) -> bool | str:
    """Return the checked option `change_driven`: True, False or "auto"."""
    value: bool | str = given.get("change_driven", "auto")
    return value
