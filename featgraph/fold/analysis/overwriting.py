"""Whether what a foldmap commits may be stored over what it reads.

Two buffers keep what a superstep reads apart from what it writes. One is enough where a
vertex writes behind all gathers of the superstep, or before none that reads it: then
the vertex alone could see its new entries for old ones, or lose its old ones.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.definite_assignment import next_dropped
from featgraph.fold.tree.expressions import Access, Whole

__all__ = ["may_overwrite"]


def may_overwrite(
    before: Sequence[Analysed], behind: Sequence[Analysed], width: int
) -> bool:
    """Return whether next entries of a vertex may be stored over its current ones.

    The functions `before` the gathers have run for all vertices when those `behind`
    begin, and these run for one vertex after the other. Then it is the same where no
    entry is written and then dropped, and none is read behind a write as it was.

    Parameters
    ----------
    before, behind : sequence of Analysed
        Vertex functions, in order.
    width : int
        Features that the functions are run for, one after the other.
    """
    early = [a for f in before for a in f.accesses if a.mode != "read"]
    if any(a.version == "next" for a in early):
        return False
    if next_dropped([f.body for f in (*before, *behind)]):
        return False
    written: set[str] = set()
    return all(_reads_old_first(f.body, written, width) for f in behind)


def _reads_old_first(body: Sequence[ast.stmt], written: set[str], width: int) -> bool:
    """Whether a function reads old entries before new ones are written, if at all.

    Another feature may have been written before, by the same statement even: each reads
    and writes entries of its own, then. What the function writes joins `written`.
    """
    nodes = [n for s in body for n in ast.walk(s) if isinstance(n, Access | Whole)]
    own = {n.name for n in nodes if n.version == "next"}
    touched = [n for n in nodes if n.name in own]
    if not all(_is_of_one_feature(n, width) for n in touched):
        return False
    return _in_order(body, written)


def _is_of_one_feature(node: Access | Whole, width: int) -> bool:
    """Whether no other feature accesses the same entry."""
    if not isinstance(node, Access):
        return False
    names = [i.id if isinstance(i, ast.Name) else None for i in node.indices]
    return names == ["v", "f"] or (names == ["v"] and width == 1)


def _in_order(body: Sequence[ast.stmt], written: set[str]) -> bool:
    """Whether no statement reads an old entry that one before it may have written."""
    for node in body:
        if isinstance(node, ast.If):
            other = set(written)
            if _reads(node.test, written) or not _in_order(node.body, written):
                return False
            if not _in_order(node.orelse, other):
                return False
            written |= other
        elif isinstance(node, ast.For | ast.While):
            head = node.iter if isinstance(node, ast.For) else node.test
            for _ in range(2):  # a turn runs behind the writes of those before it
                if _reads(head, written) or not _in_order(node.body, written):
                    return False
        elif _reads(node, written):
            return False
        elif isinstance(node, ast.Assign):
            written |= {
                t.name
                for t in node.targets
                if isinstance(t, Access) and t.version == "next"
            }
    return True


def _reads(node: ast.AST, written: set[str]) -> bool:
    """Whether a node reads the old entry of something that has been written."""
    return any(
        isinstance(n, Access | Whole) and n.version == "now" and n.name in written
        for n in ast.walk(node)
    )
