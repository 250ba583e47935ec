"""`cached_property` without a lock: attributes that are computed at the first access.

`functools.cached_property` of Python 3.11 holds one lock for all objects of a class
while it computes. If another thread holds it during a fork, the child waits for ever.
Without the lock, threads that access an attribute at the same time may compute it
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
