"""Where a generated program takes its choices from, and what it remembers of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["Draw"]

T = TypeVar("T")


class Draw:
    """Choices from a seeded generator, or from hypothesis, which can make them simpler.

    Parameters
    ----------
    random : random.Random
        Hypothesis's own (``st.randoms``) or a seeded one.

    Attributes
    ----------
    features : set of str
        What of the programming model the program uses.
    """

    def __init__(self, random: random.Random) -> None:
        self.random = random
        self.features: set[str] = set()

    def one(self, options: Sequence[T]) -> T:
        """Return one of several; the simplest stands first."""
        return options[self.random.randrange(len(options))]

    def number(self, low: int, high: int) -> int:
        """Return low <= n <= high."""
        return self.random.randint(low, high)

    def chance(self, percent: int) -> bool:
        """Return True in so many of a hundred cases."""
        return self.random.randrange(100) >= 100 - percent

    def use(self, *features: str) -> None:
        """Note what the program uses."""
        self.features.update(features)
