"""Pickling by name: what a module holds is looked up there, as functions are."""

from __future__ import annotations

import importlib
import sys
from typing import Any

__all__ = ["find_named", "name_in", "named"]


def named(kind: type, module: str, name: str) -> Any:
    """Return what a module holds under a name; unpickling calls it.

    Raises
    ------
    AttributeError
        If there is nothing of that kind.
    """
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, kind):
        raise AttributeError(
            f"{module}.{name} is no {kind.__name__}, as it was when it was pickled"
        )
    return found


def find_named(module: str, name: str) -> Any:
    """Return what stands in an imported module under a dotted name, or None."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def name_in(module: str, wanted: object) -> str | None:
    """Return the name of a module that stands for an object, if one does."""
    held = vars(sys.modules[module]) if module in sys.modules else {}
    return next((name for name, value in held.items() if value is wanted), None)
