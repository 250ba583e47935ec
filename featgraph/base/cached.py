"""Attributes that are computed where they are first asked for.

`functools.cached_property` of Python 3.11 holds a lock while it computes, one for all
objects of a class: another thread may hold it while the process is forked, and the
child would wait for it for ever. Without it, threads that ask at once may compute
twice, as in later versions of Python; the first value stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["cached_property"]

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:
        """A method whose value replaces it in the object, without a lock."""

        def __init__(self, compute) -> None:
            self.compute = compute
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, owned: Any, owner: type | None = None) -> Any:
            if owned is None:
                return self
            return owned.__dict__.setdefault(self.name, self.compute(owned))
