"""What a triangle function adds to, returned for the kernel to add up.

A function adds to properties of three vertices and three edges. A kernel comes to many
triangles of one vertex or edge after the other, and what is added there goes to memory
once. `find_sums` reads off the function which of its atomics can wait, and
`print_triangle` prints it so that it returns what it would have added.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass, replace

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.codegen.text.expressions import print_statements
from featgraph.fold.functions.featurewise import Context, Printed
from featgraph.fold.syntax.nodes import Atomic
from featgraph.program.signature import Signature

__all__ = ["ROLES", "Sum", "find_sums", "print_triangle"]

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
        added = _added(node, signature)
        if added is not None:
            found[added] = None
    return tuple(replace(s, number=n) for n, s in enumerate(found))


def _added(node: ast.AST, signature: Signature) -> Sum | None:
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


def print_triangle(context: Context, function: Analysed) -> Printed:
    """Print a triangle function that returns its sums."""
    signature, writer = context.analysis.signature, context.writer
    sums = find_sums(function, signature)
    body = _with_sums(copy.deepcopy(list(function.body)), sums, signature)
    source = function.declared.source
    writer.line()
    writer.line()
    writer.line(f"# {source.file}:{source.line}")
    writer.line(context.decorator)
    writer.line(
        f"def {function.name}({', '.join((*ROLES, 'd'))}):", (source.file, source.line)
    )
    returned = ", ".join(s.name for s in sums)
    style = context.style(function)
    style = type(style)(
        **{**style.__dict__, "wrap_return": lambda _: [f"return {returned}".rstrip()]}
    )
    writer.depth += 1
    for each in sums:
        writer.line(f"{each.name} = {each.zero}  # into d.{each.into}[{each.role}]")
    print_statements(body, writer, style, source.file)
    writer.depth -= 1
    return Printed(function, function.name, False, ())


def _with_sums(
    body: list[ast.stmt], sums: tuple[Sum, ...], signature: Signature
) -> list[ast.stmt]:
    """Replace additions to memory by additions to the locals that are returned."""
    made: list[ast.stmt] = []
    numbered = {replace(s, number=0): s for s in sums}
    for node in body:
        found = _added(node, signature)
        added = None if found is None else numbered.get(found)
        for field in ("body", "orelse"):
            if getattr(node, field, None):
                inner = _with_sums(getattr(node, field), sums, signature)
                setattr(node, field, inner)
        if added is None:
            made.append(node)
            continue
        value = node.value.value  # type: ignore[attr-defined]
        total = ast.BinOp(ast.Name(added.name, ast.Load()), ast.Add(), value)
        cast = ast.Call(ast.Name(added.dtype, ast.Load()), [total], [])
        target = ast.Name(added.name, ast.Store())
        made.append(ast.copy_location(ast.Assign([target], cast), node))
    return made
