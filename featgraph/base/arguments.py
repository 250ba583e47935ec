"""Checks of single arguments: kind, then range; errors have the parameter's name.

A value of the wrong kind raises ArgumentError, which is a TypeError; a number out of
range raises GraphInputError, which is a ValueError, unless the caller passes another
class. Kinds are strict: a bool is not a number, and text is not a flag.
`checked_arguments` checks the kinds of all arguments of a function by its annotations.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar

import numpy as np

from featgraph.base.errors import (
    ArgumentError,
    FeatGraphError,
    FileFormatError,
    GraphInputError,
)

__all__ = [
    "checked_arguments",
    "near_name",
    "require_callable",
    "require_choice",
    "require_dtype",
    "require_flag",
    "require_integer",
    "require_path",
    "require_real",
    "require_text",
    "shown",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def shown(value: object) -> str:
    """Return a value of any type as one short line of text for an error."""
    try:
        text = repr(value)
    except Exception:  # a foreign __repr__, or more digits than Python prints
        text = "a value without a short form"
    return f"{text[:60]} ({type(value).__name__})"


def near_name(name: str, known: Iterable[str]) -> str | None:
    """Return a suggestion for an unknown name; None if no known name is similar."""
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else None


def _refuse(what: str, name: str, value: object, expected: str) -> ArgumentError:
    return ArgumentError(what, where=f"{name}=", got=shown(value), expected=expected)


def require_flag(name: str, value: object) -> bool:
    """Return a bool; ArgumentError for values that are only truthy or falsy."""
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    raise _refuse("not a truth value", name, value, "True or False")


def require_text(name: str, value: object) -> str:
    """Return a string; ArgumentError for any other type."""
    if isinstance(value, str):
        return value
    raise _refuse("not a string", name, value, "a string")


def require_choice(name: str, value: Any, choices: Iterable[Any]) -> Any:
    """Return one of some values; ArgumentError for any other."""
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return value
    known = list(choices)
    texts = [choice for choice in known if isinstance(choice, str)]
    raise ArgumentError(
        "not one of the valid values",
        where=f"{name}=",
        got=shown(value),
        expected=", ".join(map(repr, known)),
        fix=near_name(value, texts) if isinstance(value, str) else None,
    )


def require_callable(name: str, value: Any, expected: str) -> Any:
    """Return a function or None; ArgumentError for classes and uncallable values."""
    if value is None or (callable(value) and not isinstance(value, type)):
        return value
    raise _refuse("not a function", name, value, expected)


def require_integer(
    name: str,
    value: Any,
    least: int | None = None,
    most: int | None = None,
    *,
    what: str = "not an integer",
    error: type[FeatGraphError] = GraphInputError,
) -> int:
    """Return an integer in a range; bools and arrays are refused.

    Parameters
    ----------
    name : str
        Name of the parameter.
    value : object
        The caller's argument.
    least, most : int, optional
        The range, both ends included.
    what : str, optional
        Message for a value that is not an integer.
    error : type, optional
        Class of the error for a number out of range.
    """
    try:
        if isinstance(value, bool | np.bool_ | np.ndarray):
            raise TypeError
        number = operator.index(value)
    except Exception:  # a foreign __index__ may raise anything
        expected = f"an integer{_range(least, most)}"
        raise _refuse(what, name, value, expected) from None
    if (least is not None and number < least) or (most is not None and number > most):
        expected = f"an integer{_range(least, most)}"
        raise _out_of_range(error, name, number, expected)
    return number


def _out_of_range(
    error: type[FeatGraphError], name: str, value: object, expected: str
) -> FeatGraphError:
    got = shown(value).rpartition(" (")[0]
    what = f"{name} out of range"
    return error(what, where=f"{name}=", got=got, expected=expected)


def _range(least: float | None, most: float | None) -> str:
    if least is None:
        return "" if most is None else f", {most} or less"
    return f", {least} or more" if most is None else f" from {least} to {most}"


def require_real(
    name: str,
    value: Any,
    least: float | None = None,
    most: float | None = None,
    *,
    is_finite: bool = True,
    error: type[FeatGraphError] = GraphInputError,
) -> float:
    """Return a number in a range as a float; never NaN.

    Parameters
    ----------
    name : str
        Name of the parameter.
    value : object
        The caller's argument.
    least, most : float, optional
        The range, both ends included.
    is_finite : bool, optional
        Whether infinity is refused.
    error : type, optional
        Class of the error for a number out of range.
    """
    kind = "a finite number" if is_finite else "a number"
    expected = f"{kind}{_range(least, most)}"
    is_number = isinstance(value, int | float | np.integer | np.floating)
    if not is_number or isinstance(value, bool):
        raise _refuse("not a number", name, value, expected)
    try:
        number = float(value)
    except OverflowError:
        number = math.nan  # an integer that no float holds
    is_right = not (math.isnan(number) or (is_finite and math.isinf(number)))
    if least is not None:
        is_right = is_right and number >= least
    if most is not None:
        is_right = is_right and number <= most
    if not is_right:
        raise _out_of_range(error, name, value, expected)
    return number


def require_path(path: object, name: str = "path") -> str:
    """Return a path as text; ArgumentError for any other type."""
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(
            "not a path",
            where=name,
            got=shown(path),
            expected="a string or a pathlib.Path",
        )
    text = os.fspath(path)
    if not isinstance(text, str):
        text = os.fsdecode(text)
    if "\0" in text:
        raise FileFormatError(
            "a path has no NUL characters", where=name, got=shown(text)
        )
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise FileFormatError(
            "a path that the file system cannot have", where=name, got=shown(text)
        ) from None
    return text


def require_dtype(name: str, value: Any) -> np.dtype[Any]:
    """Return a NumPy dtype; ArgumentError for a value that is not one."""
    try:
        if value is None:
            raise TypeError
        found: np.dtype[Any] = np.dtype(value)
    except Exception:  # NumPy raises TypeError, ValueError, SyntaxError, ...
        raise _refuse(
            "not a type of numbers", name, value, "np.float32, np.float64, ..."
        ) from None
    return found


def _as_given(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """Return a check that returns the value unchanged."""

    def checked(name: str, value: Any) -> Any:
        check(name, value)
        return value

    return checked


#: Annotation -> the check of its kind.
_KINDS: dict[str, Callable[[str, Any], Any]] = {
    "bool": require_flag,
    "int": require_integer,
    "float": functools.partial(require_real, is_finite=False),
    "str": require_text,
    "npt.DTypeLike": _as_given(require_dtype),
    "str | os.PathLike[str]": _as_given(lambda name, path: require_path(path, name)),
}


def checked_arguments(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Check the kinds of arguments by their annotations before a function runs.

    Parameters that are annotated as ``bool``, ``int``, ``float``, ``str``,
    ``str | os.PathLike[str]`` or ``npt.DTypeLike`` are checked; other annotations are
    ignored. ``| None`` accepts None as well.
    The function receives plain Python values: ``np.float32(0.5)`` as 0.5.

    Parameters
    ----------
    function : callable
        A function with annotated parameters.

    Returns
    -------
    callable
        The function with checks. It raises an ArgumentError for an argument of the
        wrong kind, and a GraphInputError for NaN where a number is expected.

    Examples
    --------
    >>> import featgraph as fg
    >>> @fg.checked_arguments
    ... def scaled(x, factor: float = 1.0):
    ...     return x * factor
    >>> scaled(3, 2)
    6.0
    >>> scaled(3, factor="2")
    Traceback (most recent call last):
    ...
    featgraph.base.errors.ArgumentError: factor=: not a number
      got:      '2' (str)
      expected: a number
    """
    signature = inspect.signature(function)
    checks = {
        name: found
        for name, parameter in signature.parameters.items()
        if (found := _check_of(parameter.annotation)) is not None
    }

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # Python's error lists missing arguments
        for name, value in given.arguments.items():
            if name in checks:
                given.arguments[name] = checks[name](name, value)
        return function(*given.args, **given.kwargs)

    return call


def _check_of(annotation: Any) -> Callable[[str, Any], Any] | None:
    """Return the check for an annotation, a type or its text; None if it has none."""
    is_type = isinstance(annotation, type)
    text = annotation.__name__ if is_type else str(annotation)
    kind = text.removesuffix(" | None")
    if kind not in _KINDS:
        return None
    check = _KINDS[kind]
    if kind == text:
        return check
    return lambda name, value: None if value is None else check(name, value)
