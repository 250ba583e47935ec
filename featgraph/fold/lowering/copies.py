"""Copies of entries from one buffer of a property to the other."""

from __future__ import annotations

from featgraph.fold.functions.vector_access import copied, is_piecewise
from featgraph.fold.lowering.facts import Facts
from featgraph.fold.tree.statements import Body, code, when

__all__ = ["copied_entry"]


def copied_entry(facts: Facts, name: str, entity: str, commits: bool) -> Body:
    """Return the copy of an entry by the lanes that share it, whatever its width is."""
    item = facts.plan.analysis.signature[name].item_shape
    axis, (to, from_) = facts.binding.features, copied(name, commits)
    lanes, piece = axis.lanes, axis.vector_width
    if item and is_piecewise(facts.plan.analysis, name, item[0], piece):
        place = f"{entity}, {{}}, {item[0]}, {piece}"
        move = f"warp.store_row({to}, {place}, warp.load_row({from_}, {place}))"
        if not facts.binding.meets:
            firsts = range(0, item[0], piece)
            return [s for n in firsts for s in code(move.format(n, n))]
        first = f"lane * {piece}" if lanes > 1 else "0"
        each = code(move.format("j", "j"))
        return _strided(first, item[0], lanes * piece, each)
    letters = ["i", "j"][2 - len(item) :]
    index = ", ".join([entity, *letters])
    out = code(f"{to}[{index}] = {from_}[{index}]")
    if not item:
        return when(facts.binding.one("edge"), out)
    if lanes > 1:
        out = _strided("lane", item[-1], lanes, out)
    else:
        out = code(f"for j in range({item[-1]}):\n    BODY", BODY=out)
    if len(item) == 2:
        out = code(f"for i in range({item[0]}):\n    BODY", BODY=out)
    return out


def _strided(first: str, stop: int, step: int, body: Body) -> Body:
    """Return a loop over `j`; none where a lane goes through it once.

    The compiler unrolls loops of which it does not know that.
    """
    if step < stop:
        loop = f"for j in range({first}, {stop}, {step}):\n    BODY"
        return code(loop, BODY=body)
    return code(f"j = {first}") + when([f"j < {stop}" if step > stop else ""], body)
