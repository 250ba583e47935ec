"""Arguments of one kind: flags, paths, bounds; refused by name, never guessed."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable

import numpy as np

from featgraph.errors import ArgumentError, FileFormatError, GraphInputError

__all__ = ["require_bound", "require_flag", "require_path", "require_real", "shown"]


def shown(value: object) -> str:
    """Return what an error says of a value that may be anything."""
    try:
        text = repr(value)
    except Exception:  # a foreign __repr__, or more digits than Python prints
        text = "a value without a short form"
    return f"{text[:60]} ({type(value).__name__})"


def require_flag(name: str, value: object) -> bool:
    """Return True or False; ArgumentError for what only has a truth value."""
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    raise ArgumentError(
        "not a truth value",
        where=f"{name}=",
        got=shown(value),
        expected="True or False",
    )


def require_path(path: object) -> str:
    """Return a path as text; ArgumentError where it is none."""
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(
            "not a path",
            where="path",
            got=shown(path),
            expected="a string or a pathlib.Path",
        )
    name = os.fspath(path)
    if not isinstance(name, str):
        name = os.fsdecode(name)
    if "\0" in name:
        raise FileFormatError(
            "a path has no NUL characters", where="path", got=shown(name)
        )
    return name


def require_bound(value: object) -> int | None:
    """Return max_bytes, None where none is given."""
    if value is None:
        return None
    try:
        if isinstance(value, bool | np.bool_ | np.ndarray):
            raise TypeError
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(
            "not a number of bytes",
            where="max_bytes=",
            got=shown(value),
            expected="an integer, 0 or more",
        ) from None
    if count < 0:
        raise GraphInputError(
            "not a number of bytes",
            where="max_bytes=",
            got=count,
            expected="an integer, 0 or more",
        )
    return count


def require_real(name: str, values: Iterable[object]) -> tuple[float, ...]:
    """Return finite numbers as floats."""
    given = tuple(values)
    for value in given:
        is_number = isinstance(value, int | float | np.integer | np.floating)
        try:
            if not is_number or not math.isfinite(value):  # type: ignore[arg-type]
                raise OverflowError
        except OverflowError:
            raise GraphInputError(
                "not a finite number", where=name, got=shown(value)
            ) from None
    return tuple(float(value) for value in given)  # type: ignore[arg-type]
