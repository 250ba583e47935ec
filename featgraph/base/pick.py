"""Several items at once, without a loop of Python: calls of a GPU are made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

__all__ = ["picker"]


def picker(keys: Sequence[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gives the items of some keys, in their order, as a tuple.

    It raises KeyError, or IndexError, where there is none.
    """
    if not keys:
        return _none
    if len(keys) == 1:
        [key] = keys
        return lambda items: (items[key],)
    return itemgetter(*keys)


def _none(items: Any) -> tuple[Any, ...]:
    return ()
