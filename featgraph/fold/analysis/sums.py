"""What a triangle function adds to entries of its vertices and edges.

`find_sums` reads off the function which of its atomics are such additions: they can
wait until a kernel has come to many triangles of one vertex or edge.
"""

from __future__ import annotations

import ast

from featgraph.base.dataclass import dataclass, replace
from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.tree.expressions import Atomic
from featgraph.program.signature import Signature

__all__ = ["ROLES", "Sum", "added_by", "find_sums"]

ROLES = ("u", "v", "w", "e_uv", "e_uw", "e_vw")
#: Types that sums can have.
_SUMMED = ("int32", "int64", "uint32", "float32", "float64")


@dataclass(frozen=True)
class Sum:
    """What a function adds to ``d.name[role]``, in the type of its entries."""

    into: str
    role: str
    dtype: str
    number: int = 0

    @property
    def name(self) -> str:
        """Its name in generated code."""
        return f"sum_{self.number}"

    @property
    def more(self) -> str:
        """The name of what one triangle adds."""
        return f"more_{self.number}"

    @property
    def zero(self) -> str:
        """Return the text of nothing."""
        return f"{self.dtype}({'0.0' if self.dtype.startswith('float') else '0'})"

    def plus(self, value: str) -> str:
        """Return the statement that adds `value`."""
        return f"{self.name} = {self.dtype}({self.name} + {value})"


def find_sums(function: Analysed, signature: Signature) -> tuple[Sum, ...]:
    """Return the atomic additions that wait outside of memory.

    They are statements, whose old value is not used, and their index is one of the
    triangle's vertices and edges alone.
    """
    found: dict[Sum, None] = {}
    for node in (n for s in function.body for n in ast.walk(s)):
        added = added_by(node, signature)
        if added is not None:
            found[added] = None
    return tuple(replace(s, number=n) for n, s in enumerate(found))


def added_by(node: ast.AST, signature: Signature) -> Sum | None:
    """Return what a statement adds to, None if it is no such addition."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, Atomic):
        return None
    atomic = node.value
    first = atomic.indices[0]
    dtype = signature[atomic.name].dtype
    alone = len(atomic.indices) == 1 and isinstance(first, ast.Name)
    if atomic.op != "add" or not alone or dtype not in _SUMMED:
        return None
    role = first.id if isinstance(first, ast.Name) else ""
    return Sum(atomic.name, role, dtype) if role in ROLES else None
