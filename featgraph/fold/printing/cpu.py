"""What only the CPU wants of the text of a kernel."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from featgraph.fold.plan.plan import FoldPlan
from featgraph.fold.tree.statements import Body, Rewriting, code

__all__ = ["compiled", "in_parallel", "unsigned_vertices"]


def compiled(flags: str, body: Body, plan: FoldPlan) -> str:
    """Return the decorator of a function, which counts references if it makes arrays.

    Calls that count references to arrays stand in loops over vertices: they took 9 of
    10 ns of a vertex function that returns False. Modules with reals keep them: without
    them, other multiplications and additions are rounded together.
    """
    calls = (n for s in body for n in ast.walk(s) if isinstance(n, ast.Call))
    made = {"np.empty", "np.zeros", "tiles.zeros"}
    if plan.analysis.has_reals or made.isdisjoint(
        ast.unparse(call.func) for call in calls
    ):
        return f"njit(**{flags})"
    return f'njit(**{{**{flags}, "_nrt": True}})'


def in_parallel(sweep: str, arguments: Iterable[str], in_turns: bool = False) -> Body:
    """Call the sweep of a chunk for every chunk, on all threads; turn by turn or not.

    A turn of one chunk runs on this thread.
    """
    given = ", ".join(arguments)
    if not in_turns:
        return code(f"cpu.in_parallel({sweep}, chunks, ({given},))")
    return code(
        "for turn in range(turns.shape[0] - 1):\n"
        "    first, last = turns[turn], turns[turn + 1]\n"
        "    if last - first == 1:\n"
        f"        {sweep}(first, chunks[first], chunks[last], {given})\n"
        "    else:\n"
        f"        cpu.in_parallel({sweep}, chunks[first:last + 1], ({given},))"
    )


def unsigned_vertices(body: Body, wide_offsets: bool) -> Body:
    """Read vertices and places of rows as unsigned.

    Indices that may be negative, and count from an array's end then, cost a test each.
    """
    return _Unsigned(wide_offsets).over(body)


class _Unsigned(Rewriting):
    """Casts what is bound to ``u`` or ``v``, and to ``start`` and ``stop``."""

    def __init__(self, wide_offsets: bool) -> None:
        self.wide_offsets = wide_offsets

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        """Cast what stands in memory."""
        [target] = node.targets
        if isinstance(target, ast.Name) and target.id in {"u", "v"}:
            node.value = _unsigned(node.value)
        elif isinstance(target, ast.Tuple) and not self.wide_offsets:
            value, names = node.value, [ast.unparse(name) for name in target.elts]
            if isinstance(value, ast.Tuple) and names == ["start", "stop"]:
                value.elts = [_unsigned(part) for part in value.elts]
        return node


def _unsigned(node: ast.expr) -> ast.expr:
    return ast.Call(ast.Name("int64"), [ast.Call(ast.Name("uint32"), [node], [])], [])
