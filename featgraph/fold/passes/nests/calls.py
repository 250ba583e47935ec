"""How kernels call user functions: for one feature, or for all that a lane has."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from featgraph.fold.analysis.gathers import is_matrix
from featgraph.fold.passes.bodies.facts import Callee
from featgraph.fold.passes.nests.facts import Facts
from featgraph.fold.tree.nodes import RowLoad
from featgraph.fold.tree.statements import expression

__all__ = [
    "call_for_all",
    "call_for_one",
    "call_of_part",
    "registers_of",
    "rows_of",
]


def call_for_one(facts: Facts, callee: Callee) -> ast.expr:
    """Return the call of a function for feature f."""
    declared = callee.function.declared.roles
    args = ["i"] * ("i" in declared)
    args += [] if callee.function.is_scalar else ["f"]
    args += _roles(facts, callee)
    for name in callee.temporaries:
        wide = facts.is_wide(name)
        args.append(f"{name}[f]" if wide else _entry(facts, name))
    index = "i" if is_matrix(callee.function) else "f"
    args += [f"{row.register or row.name}[{index}]" for row in callee.rows]
    return expression(f"{callee.name}({', '.join(args)})")


def call_for_all(
    facts: Facts, callee: Callee, mask: str = "", left: Sequence[str] = ()
) -> ast.expr:
    """Return the call of a function that takes all features of a lane.

    Parameters
    ----------
    mask : str
        Where lanes make shuffles: whose call counts.
    left : sequence of str
        Arrays in which loops leave what is contributed.
    """
    args = _roles(facts, callee) + (["lane", mask] if mask else [])
    axis = facts.binding.features
    for name in callee.temporaries:
        if name in facts.phase.solved:
            args += [axis.element(name, i, j) for i, j in axis.elements()]
            continue
        args.append(f"*{name}" if facts.is_wide(name) else _entry(facts, name))
    args += left
    if callee.arrays:
        kinds = {"rows": "real", "flags": "int64"}
        args += [name for name, kind in kinds.items() if callee.arrays[kind]]
    args += callee.areas_and_matrices
    return expression(f"{callee.name}({', '.join(args)})")


def call_of_part(facts: Facts, callee: Callee, part: str, feature: str = "") -> str:
    """Return the text of a call: "row", "column" or "scale" of an outer product."""
    args = [feature] * bool(feature) + _roles(facts, callee)
    args += [_entry(facts, name) for name in callee.temporaries]
    if part == "column":
        args += [f"{row.name}[f]" for row in callee.rows]
    return f"{callee.name}_{part}({', '.join(args)})"


def rows_of(callee: Callee) -> tuple[RowLoad, ...]:
    """Return the rows of which a function takes features behind the temporaries."""
    return tuple(
        RowLoad(row.register)
        if row.register
        else RowLoad(row.name, row.key[0], row.index)
        for row in callee.rows
    )


def registers_of(facts: Facts, name: str) -> list[str]:
    """Return the names under which a lane has a temporary of its vertex."""
    axis = facts.binding.features
    return axis.names(name) if facts.is_wide(name) else [_entry(facts, name)]


def _roles(facts: Facts, callee: Callee) -> list[str]:
    """Return the vertices, edges and data that a function takes."""
    values = [f"{name}_e" for name in facts.phase.ordered]
    roles = [r for r in callee.function.declared.roles if r not in {"f", "i"}]
    return [r for role in roles for r in (values if values and role == "e" else [role])]


def _entry(facts: Facts, name: str) -> str:
    """Return a temporary that is the same for all features."""
    entry, axis = facts.plan.analysis.entries.get(name), facts.binding.features
    if entry is None or axis.lanes > 1 or not facts.is_filled_here(name):
        return name
    if axis.is_looped:
        return f"{entry.of}[{entry.feature}]"
    return axis.name(entry.of, entry.feature)
