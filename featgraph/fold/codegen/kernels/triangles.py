"""What the kernels of triangle functions have in common on both targets.

A function adds to properties of three vertices and three edges. A kernel goes over the
rows of the oriented graph, so that of three vertices one is the same for all triangles
of a row: what is added there goes to memory once. `find_sums` reads off the function
which of its atomics can wait, and `print_triangle` prints it so that it returns what it
would have added.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass, replace

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.codegen.text.expressions import print_statements
from featgraph.fold.functions.featurewise import Context, Printed
from featgraph.fold.plan.plan import Phase
from featgraph.fold.syntax.nodes import Atomic
from featgraph.program.signature import Signature

__all__ = ["ROLES", "Sum", "Triangles", "find_sums", "print_found", "print_triangle"]

ROLES = ("u", "v", "w", "e_uv", "e_uw", "e_vw")
#: Where sums wait in a sweep over rows `v`: while the row is worked on, while one `u`
#: below it is, and at the place of `w` in the row. The edge `e_uw` is met once.
_OF_ROW, _OF_LOWER, _OF_PLACE = ("v",), ("u", "e_uv"), ("w", "e_vw")
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


class Triangles:
    """Prints what both targets' kernels do for one triangle.

    Parameters
    ----------
    library : str
        "cpu" or "warp".
    """

    def __init__(
        self, context: Context, phase: Phase, function: Analysed, library: str
    ) -> None:
        self.context = context
        self.writer = context.writer
        self.phase = phase
        self.function = function
        self.library = library
        self.signature = context.analysis.signature
        self.sums = find_sums(function, self.signature)
        self.of_row = [s for s in self.sums if s.role in _OF_ROW]
        self.of_lower = [s for s in self.sums if s.role in _OF_LOWER]
        self.of_place = [s for s in self.sums if s.role in _OF_PLACE]
        self.of_once = [s for s in self.sums if s.role == "e_uw"]
        self.within: str | None = getattr(function.declared, "within", None)
        #: Whether the two directions of an edge may differ in `within`.
        self.by_direction = (
            self.within is not None and not self.signature[self.within].shared
        )

    def index(self, text: str) -> str:
        """Return the text of an index; a signed one costs a wrap-around on CUDA."""
        return f"uint32({text})" if self.library == "warp" else text

    def edge_id(self, text: str) -> str:
        """Return the text of an edge id, or of a place in a row of edges."""
        return text

    def is_within(self, edge: str) -> str:
        """Return the test whether an edge is one of `within`."""
        property_ = f"d.{self.within}"
        is_bool = self.signature[str(self.within)].dtype == "bool"
        test = "" if is_bool else " != 0"
        text = f"{property_}[{edge}]{test}"
        if self.by_direction:
            twin = self.edge_id(f"edge_twin[{edge}]")
            text = f"{text} and {property_}[{twin}]{test}"
        return text

    def skip_unless_within(self, edge: str, leave: str = "continue") -> None:
        """Print that the loop goes on where an edge is not one of `within`."""
        if self.within is not None:
            with self.writer.block(f"if not ({self.is_within(edge)}):"):
                self.writer.line(leave)

    def call(self) -> None:
        """Print the call."""
        names = ", ".join(s.more for s in self.sums)
        call = f"{self.function.name}({', '.join((*ROLES, 'd'))})"
        self.writer.line(f"{names} = {call}" if names else call)

    def start(self, sums: list[Sum]) -> None:
        """Print that sums begin with nothing."""
        for each in sums:
            self.writer.line(f"{each.name} = {each.zero}")

    def take(self, sums: list[Sum]) -> None:
        """Print that sums take what one triangle adds."""
        for each in sums:
            self.writer.line(each.plus(each.more))

    def settle(self, each: Sum, value: str = "") -> None:
        """Print that memory takes a sum, if there is one."""
        value = value or each.name
        place = each.role if each.role.startswith("e_") else self.index(each.role)
        with self.writer.block(f"if {value} != 0:"):
            self.writer.line(
                f"{self.library}.atomic_add(d.{each.into}, {place}, {value})"
            )

    @property
    def row_arguments(self) -> list[str]:
        """Names of the graph's arrays that a sweep over rows takes."""
        names = ["rank_vertex", "upper_offsets", "upper_ranks", "upper_edges"]
        names += ["lower_offsets", "lower_ranks", "lower_slots"]
        return [*names, *(["edge_twin"] if self.by_direction else [])]

    @property
    def edge_arguments(self) -> list[str]:
        """Names of the arrays that a sweep over the edges that passed takes."""
        names = ["edge_state", "edge_twin", "in_sources", "vertex_rank"]
        return [*names, "rank_vertex", "both_offsets", "both_ranks", "both_edges"]


def print_found(triangles: Triangles, library: str) -> None:
    """Print what is done for a third vertex of an edge that passed."""
    line, block = triangles.writer.line, triangles.writer.block
    line("# The first of a triangle's edges that passed takes it.")
    for name in ("to_low", "to_high"):
        twin = triangles.edge_id(f"edge_twin[{name}]")
        passed = f"edge_state[{name}] == 2 or edge_state[{twin}] == 2"
        with block(f"if {name} < edge and ({passed}):"):
            line("continue")
    for name in ("to_low", "to_high"):
        triangles.skip_unless_within(name)
    line(
        f"u, v, w, e_uv, e_uw, e_vw = {library}.sort_triangle(low, high, third, edge, "
        "to_low, to_high)"
    )
    for role in ("u", "v", "w"):
        line(f"{role} = rank_vertex[{triangles.index(role)}]")
    triangles.call()
    for each in triangles.sums:
        triangles.settle(each, each.more)
