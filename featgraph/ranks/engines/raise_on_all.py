"""Raise an error found on one rank on all ranks, with its type and message."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from featgraph.base import errors
from featgraph.base.errors import DistributedError, FeatGraphError, GraphInputError
from featgraph.ranks.engines.protocol import Engine

__all__ = ["on_all", "require_same"]

_R = TypeVar("_R")

#: Attributes of a FeatGraphError that are sent to other ranks.
_PARTS = ("what", "where", "got", "expected", "fix")
#: Built-in errors that keep their type on other ranks.
_PLAIN = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


def on_all(engine: Engine, function: Callable[[], _R], about: str) -> _R:
    """Run a function on each rank; if any fails, raise the first rank's error on all.

    The function must not exchange anything. A FeatGraphError or OSError has the same
    type on every rank; any other error becomes a DistributedError on the other ranks.
    """
    error: Exception | None = None
    try:
        result = function()
    except Exception as found:
        error = found
    text = "" if error is None else _fields_of(error)
    messages = engine.all_gather(np.frombuffer(text.encode(), np.uint8), about=about)
    first = next((rank for rank, message in enumerate(messages) if message.size), None)
    if first is None:
        return result
    if first == engine.rank and error is not None:
        raise error
    raise _raised(json.loads(messages[first].tobytes()), first, about) from error


def require_same(
    engine: Engine,
    text: str,
    what: str,
    fix: str,
    about: str,
    error: type[FeatGraphError] = GraphInputError,
) -> None:
    """Raise an error on all ranks if `text` differs between ranks."""
    own = np.frombuffer(text.encode(), np.uint8)
    found = engine.all_gather(own, about=about)
    other = next((r for r, d in enumerate(found) if not np.array_equal(d, found[0])), 0)
    if other:
        raise error(
            what,
            got=f"{text} on rank {engine.rank}; ranks 0 and {other} differ",
            expected="the same on all ranks",
            fix=fix,
        )


def _fields_of(error: Exception) -> str:
    parts: dict[str, Any] = {"type": type(error).__name__, "text": str(error)}
    if isinstance(error, FeatGraphError):
        for name in _PARTS:
            value = getattr(error, name)
            parts[name] = None if value is None else str(value)
    elif isinstance(error, OSError):
        path = None if error.filename is None else str(error.filename)
        parts["system"] = [error.errno, error.strerror, path]
    return json.dumps(parts)


def _raised(fields: dict[str, Any], rank: int, about: str) -> Exception:
    kind = getattr(errors, fields["type"], None)
    made: Exception
    if "what" in fields and isinstance(kind, type):
        what = f"{fields['what']}, as rank {rank} found"
        made = kind(what, **{name: fields[name] for name in _PARTS[1:]})
    elif "system" in fields:
        plain = {kind.__name__: kind for kind in _PLAIN}.get(fields["type"], OSError)
        made = plain(*fields["system"])
    else:
        got = f"{fields['type']}: {fields['text']}"
        made = DistributedError(f"{about} failed on rank {rank}", got=got)
        vars(made)["rank"] = rank
        return made
    made.add_note(f"{about} failed on rank {rank}")
    vars(made)["rank"] = rank  # the launcher names it
    return made
