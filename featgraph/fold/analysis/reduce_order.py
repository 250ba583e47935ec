"""Which reduces run in front of all other functions, and which have to wait (S7).

A changed result makes every vertex due in the superstep that reads it. That has to be
known before the first function runs on due vertices: so a reduce that asks for nothing
of what functions in front of it write is moved there. Where one does ask for that,
every vertex is due.
"""

from __future__ import annotations

from collections.abc import Sequence

from featgraph.fold.analysis.analyse import Analysed

__all__ = ["late_reduces", "order_of_reduces", "read_where_due"]


def late_reduces(functions: Sequence[Analysed]) -> frozenset[str]:
    """Return the results that due vertices read, and that functions in front change."""
    late = {str(functions[place].into) for place in _late(functions)}
    return frozenset(late & read_where_due(functions))


def order_of_reduces(functions: Sequence[Analysed]) -> list[int]:
    """Return the places of functions, those of reduces in front where it matters.

    One stays where it is if its result makes no vertex due.
    """
    late, wanted = _late(functions), read_where_due(functions)
    first = next((n for n, f in enumerate(functions) if not f.kind.reduces), 0)
    moved = list[int]()
    for place in range(len(functions) - 1, first, -1):
        function = functions[place]
        if function.kind.reduces and place not in late and function.into in wanted:
            moved.insert(0, place)
            wanted |= {a.name for a in function.accesses}
    others = [n for n in range(first, len(functions)) if n not in moved]
    return [*range(first), *moved, *others]


def read_where_due(functions: Sequence[Analysed]) -> set[str]:
    """Return what functions read that run on due vertices, or from them."""
    return {a.name for f in functions if not f.kind.reduces for a in f.accesses}


def _late(functions: Sequence[Analysed]) -> set[int]:
    """Return the places of reduces that read what functions in front of them write."""
    changed, late = set[tuple[str, str]](), set[int]()
    for place, function in enumerate(functions):
        if not function.kind.reduces:
            accesses = (a for a in function.accesses if a.mode != "read")
            changed |= {(a.name, a.version) for a in accesses}
        elif changed & {(a.name, a.version) for a in function.accesses}:
            late.add(place)
            changed.add((str(function.into), "now"))
    return late
