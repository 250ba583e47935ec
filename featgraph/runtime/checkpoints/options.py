"""Checks of the options of `iterate`, for it and for functions that pass them on."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from featgraph.base.arguments import (
    near_name,
    require_callable,
    require_flag,
    require_integer,
    require_path,
    require_real,
    require_text,
    shown,
)
from featgraph.base.errors import ArgumentError, FileFormatError, PlanError, StateError
from featgraph.fold.plan.options import OPTIONS, parse_options
from featgraph.program.active import ActiveSet
from featgraph.runtime.loops.moves import checked_repartition
from featgraph.runtime.loops.near_far import checked_near_far

__all__ = [
    "EVERY",
    "NAMES",
    "check_names",
    "checked_options",
    "require_count",
    "require_every",
    "require_folder",
]


#: Loops count supersteps in 64 bits.
_MOST = (1 << 63) - 1


def require_folder(given: Any) -> Path:
    """Return the path of a folder that exists, or can be created.

    Raises
    ------
    ArgumentError
        With the part of the path that is wrong.
    """
    expected = "the path of a folder, which may be a new one"
    try:
        path = Path(require_path(given, "checkpoint="))
        part = Path(os.path.abspath(path))
        while not _is_there(part):
            part = part.parent
        is_there = part.is_dir()
    except (ArgumentError, FileFormatError) as error:
        raise ArgumentError(
            "not a folder", where="checkpoint=", got=error.got, expected=expected
        ) from None
    except (OSError, ValueError) as error:
        raise ArgumentError(
            "not a folder", where="checkpoint=", got=error, expected=expected
        ) from None
    if not is_there:
        raise ArgumentError(
            "not a folder",
            where="checkpoint=",
            got=f"{os.fspath(part)}, which is a file",
            expected=expected,
        )
    if not os.access(part, os.W_OK | os.X_OK):
        raise ArgumentError(
            "the folder cannot be written",
            where="checkpoint=",
            got=os.fspath(part),
            expected="a folder that this user may write to",
        )
    return path


def _is_there(path: Path) -> bool:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def require_every(given: Any) -> float:
    """Return the time between checkpoints, in s."""
    return require_real("every", given, 0, error=ArgumentError)


def _optional(check: Callable[..., Any], name: str, value: Any) -> Any:
    return None if value is None else check(name, value)


def require_count(name: str, value: Any, least: int = 0) -> int:
    """Return a number of supersteps."""
    what = "not a number of supersteps"
    return require_integer(name, value, least, _MOST, what=what, error=StateError)


def require_sets(name: str, value: Any) -> list[ActiveSet]:
    """Return the vertex sets of supersteps."""
    given = [*value] if isinstance(value, Sequence) else []
    if not isinstance(value, Sequence) or not all(
        isinstance(one, ActiveSet) for one in given
    ):
        raise ArgumentError(
            "not sets of vertices",
            where=f"{name}=",
            got=shown(value),
            expected="a list of fg.ActiveSet, one for each superstep",
        )
    return given


_BEHIND = "a function that is called after each superstep"
_THEN = "a foldmap, or a function that is called when nothing is due"
#: Default of ``every=``.
EVERY = 60.0
#: Option of `iterate` -> its default, which needs no check, and a function that checks
#: the name and another value.
_CHECKS: dict[str, tuple[Any, Callable[[str, Any], Any]]] = {
    "max_supersteps": (None, require_count),
    "supersteps": (None, require_count),
    "until": (None, partial(require_callable, expected=_BEHIND)),
    "callback": (None, partial(require_callable, expected=_BEHIND)),
    "then": (None, partial(require_callable, expected=_THEN)),
    "progress": (False, require_flag),
    "record_active": (False, require_flag),
    "due": (None, require_sets),
    "watch": (None, require_text),
    "recompute_every": (64, partial(_optional, partial(require_count, least=1))),
    "near_far": (None, lambda name, value: checked_near_far(value)),
    "checkpoint": (None, lambda name, value: require_folder(value)),
    "every": (EVERY, lambda name, value: require_every(value)),
    "repartition": (None, lambda name, value: checked_repartition(value)),
}
#: All options of `iterate`.
NAMES = ("active", "target", *_CHECKS, *OPTIONS)


def checked_options(
    given: Mapping[str, Any], functions: Sequence[Any] = ()
) -> dict[str, Any]:
    """Return the options of `iterate` in the form in which they are used.

    Raises
    ------
    ArgumentError, StateError, PlanError
        For an unknown option, and for a wrong value.
    """
    made, folds = dict[str, Any](), dict[str, Any]()
    for name, value in given.items():
        made[name] = value
        if name in _CHECKS:
            default, check = _CHECKS[name]
            if value is not default:
                made[name] = check(name, value)
        elif name != "active":
            folds[name] = value
    if given.get("supersteps") is not None and given.get("max_supersteps") is not None:
        raise PlanError(
            "supersteps is a number of supersteps, and max_supersteps a limit",
            where="options",
            got=f"supersteps={given['supersteps']}, "
            f"max_supersteps={given['max_supersteps']}",
            fix="drop one of the two",
        )
    if folds:
        parse_options(folds.pop("target", "auto"), False, folds, functions)
    return made


def check_names(
    given: Mapping[str, Any],
    own: Collection[str],
    where: str,
    without: Collection[str] = (),
) -> None:
    """Refuse options that neither a function nor `iterate` has.

    Parameters
    ----------
    given : mapping
    own : collection of str
        Parameters of the function.
    where : str
        The function, for errors.
    without : collection of str
        Options of `iterate` that the function does not take.

    Raises
    ------
    ArgumentError
        With the nearest name.
    """
    for name in given:
        is_known = name in own or (name in NAMES and name not in without)
        if not is_known and not name.startswith("_"):
            known = [*own, *(n for n in NAMES if n not in without)]
            raise ArgumentError(
                f"there is no option {name!r}",
                where=where,
                expected=", ".join(known),
                fix=near_name(name, known),
            )
