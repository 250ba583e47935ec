"""The table of combines: all that is known of each, so that nothing asks for a name.

A built-in one is an entry here, and what kernels call: atomics and shuffles of
`device/`. Of a combine of the user's, whatever its name, `CUSTOM` is known.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["CUSTOM", "RULES", "SELECTIVE", "Rules"]


@dataclass(frozen=True)
class Rules:
    """What is known of a combine.

    Attributes
    ----------
    pair : callable or None
        It, of two plain values; None for argmin, argmax and the user's.
    neutral : object
        Its identity; None where that is the last of a type by `order`.
    final : object
        A result that no contribution changes; None where there is none.
    order : str
        "min" or "max" where it compares what it is given, else "".
    is_arg : bool
        Whether it gives a key and its source.
    selects : bool
        Whether it gives one of its contributions, of which the same one again changes
        nothing; so in any order, and never rounded.
    in_blocks : bool
        Whether it may be a sum, which of many real numbers is taken in blocks.
    gives : str
        "bool" where it votes; "int64" where that is what integers come to; "" where it
        gives what it is given.
    update : str
        Statement that combines ``{1}`` into ``{0}``; "" for those with functions.
    atomic : str
        Atomic function of ``cpu`` and ``warp``, without its prefix.
    patch : str
        How a kept result takes the change of a contribution: by their "difference" or
        "quotient", or unless an "extremum" retreats; "" where it cannot.
    by_fours : bool
        Whether lanes combine four values with as many shuffles as two.
    """

    pair: Callable[[Any, Any], Any] | None = None
    neutral: Any = None
    final: Any = None
    order: str = ""
    is_arg: bool = False
    selects: bool = False
    in_blocks: bool = False
    gives: str = ""
    update: str = ""
    atomic: str = "combine"
    patch: str = ""
    by_fours: bool = False

    @property
    def is_sum(self) -> bool:
        """Whether it adds up."""
        return self.patch == "difference"

    @property
    def rounds(self) -> bool:
        """Whether a real result depends on the order of contributions."""
        return not self.selects


def _either(a: Any, b: Any) -> bool:
    return bool(a) or bool(b)


def _both(a: Any, b: Any) -> bool:
    return bool(a) and bool(b)


RULES = {
    "sum": Rules(
        operator.add,
        neutral=0,
        in_blocks=True,
        gives="int64",
        update="{0} += {1}",
        atomic="add",
        patch="difference",
        by_fours=True,
    ),
    "min": Rules(
        min,
        order="min",
        selects=True,
        update="{0} = min({0}, {1})",
        atomic="min",
        patch="extremum",
        by_fours=True,
    ),
    "max": Rules(
        max,
        order="max",
        selects=True,
        update="{0} = max({0}, {1})",
        atomic="max",
        patch="extremum",
        by_fours=True,
    ),
    "product": Rules(
        operator.mul,
        neutral=1,
        gives="int64",
        update="{0} *= {1}",
        atomic="product",
        patch="quotient",
        by_fours=True,
    ),
    "any": Rules(
        _either,
        neutral=False,
        final=True,
        selects=True,
        gives="bool",
        update="{0} |= {1}",
        atomic="or",
        patch="extremum",
    ),
    "all": Rules(
        _both,
        neutral=True,
        final=False,
        selects=True,
        gives="bool",
        update="{0} &= {1}",
        atomic="min",
    ),
    "argmin": Rules(order="min", is_arg=True, selects=True, atomic="min"),
    "argmax": Rules(order="max", is_arg=True, selects=True, atomic="min"),
}

#: Of the user's, which may be a sum.
CUSTOM = Rules(in_blocks=True)

#: Names of those whose result is one of the contributions.
SELECTIVE = tuple(name for name, rules in RULES.items() if rules.selects)
