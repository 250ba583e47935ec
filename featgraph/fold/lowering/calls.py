"""How kernels call user functions: for one feature, or for all that a lane has."""

from __future__ import annotations

import ast

from featgraph.fold.analysis.gathers import is_matrix
from featgraph.fold.functions.facts import Printed
from featgraph.fold.lowering.facts import Facts
from featgraph.fold.tree.nodes import RowLoad
from featgraph.fold.tree.statements import expression

__all__ = [
    "call_for_all",
    "call_for_one",
    "call_of_part",
    "registers_of",
    "rows_of",
]


def call_for_one(facts: Facts, printed: Printed) -> ast.expr:
    """Return the call of a function for feature f."""
    declared = printed.function.declared.roles
    args = ["i"] * ("i" in declared)
    args += [] if printed.function.is_scalar else ["f"]
    args += _roles(printed)
    for name in printed.temporaries:
        wide = facts.is_wide(name)
        args.append(f"{name}[f]" if wide else _entry(facts, name))
    index = "i" if is_matrix(printed.function) else "f"
    args += [f"{row.held or row.name}[{index}]" for row in printed.rows]
    return expression(f"{printed.name}({', '.join(args)})")


def call_for_all(
    facts: Facts, printed: Printed, mask: str = "", stem: str = "contribution"
) -> ast.expr:
    """Return the call of a function that takes all features of a lane.

    Parameters
    ----------
    mask : str
        Where lanes make shuffles: whose call counts.
    stem : str
        What arrays are called in which loops leave contributions.
    """
    args = _roles(printed) + (["lane", mask] if mask else [])
    axis = facts.binding.features
    for name in printed.temporaries:
        if name in facts.phase.solved:
            args += [axis.element(name, i, j) for i, j in axis.elements()]
            continue
        args.append(f"*{name}" if facts.is_wide(name) else _entry(facts, name))
    if printed.arrays:
        own = printed.function.name
        if own in facts.rows_left:
            args.append(facts.row_left(own, stem))
            args += ["contribution_source"] * facts.filled(own).is_arg
        kinds = {"rows": "real", "flags": "int64"}
        args += [name for name, kind in kinds.items() if printed.arrays[kind]]
    args += printed.areas_and_matrices
    return expression(f"{printed.name}({', '.join(args)})")


def call_of_part(facts: Facts, printed: Printed, part: str, feature: str = "") -> str:
    """Return the text of a call: "row", "column" or "scale" of an outer product."""
    args = [feature] * bool(feature) + _roles(printed)
    args += [_entry(facts, name) for name in printed.temporaries]
    if part == "column":
        args += [f"{row.name}[f]" for row in printed.rows]
    return f"{printed.name}_{part}({', '.join(args)})"


def rows_of(printed: Printed) -> tuple[RowLoad, ...]:
    """Return the rows of which a function takes features behind the temporaries."""
    return tuple(
        RowLoad(row.held) if row.held else RowLoad(row.name, row.key[0], row.index)
        for row in printed.rows
    )


def registers_of(facts: Facts, name: str) -> list[str]:
    """Return the names under which a lane has a temporary of its vertex."""
    axis = facts.binding.features
    return axis.names(name) if facts.is_wide(name) else [_entry(facts, name)]


def _roles(printed: Printed) -> list[str]:
    """Return the vertices, edges and data that a function takes."""
    return [r for r in printed.function.declared.roles if r not in {"f", "i"}]


def _entry(facts: Facts, name: str) -> str:
    """Return a temporary that is the same for all features."""
    entry, axis = facts.plan.analysis.entries.get(name), facts.binding.features
    if entry is None or axis.lanes > 1 or not facts.is_filled_here(name):
        return name
    if axis.is_looped:
        return f"{entry.of}[{entry.feature}]"
    return axis.name(entry.of, entry.feature)
