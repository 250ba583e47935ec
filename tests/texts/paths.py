"""Paths in generated text as they are on every machine."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

__all__ = ["normalised"]

ROOT = Path(__file__).parents[2]


@cache
def _folders() -> list[tuple[str, str]]:
    # `algorithms/` may be found through the installed package, in whichever folder.
    found = importlib.util.find_spec("featgraph.algorithms")
    assert found is not None
    folders = found.submodule_search_locations or ()
    return [*((f"{folder}/", "algorithms/") for folder in folders), (f"{ROOT}/", "")]


def normalised(text: str) -> str:
    """Return generated text with paths relative to the repository."""
    for folder, name in _folders():
        text = text.replace(folder, name)
    return text
