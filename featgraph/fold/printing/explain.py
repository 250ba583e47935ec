"""Explanations: a plan in words, and trees between passes as text.

`explain_plan` describes phases and their schedules, and `explain_ranks` the messages
that ranks exchange for them. `print_nest` and `changes_of` show what each pass does.
All of that is for inspection only: it is never executed.
"""

from __future__ import annotations

import ast
import difflib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from featgraph.base.dataclass import MISSING, dataclass, fields
from featgraph.fold.analysis.changes import IncrementalGather, entry_bytes
from featgraph.fold.analysis.gathers import takes_active
from featgraph.fold.passes.bodies import nodes as functions
from featgraph.fold.passes.bodies.nodes import Define
from featgraph.fold.plan.halos import Halo
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.plan.schedules import explain_exclusive
from featgraph.fold.plan.traits import EDGES_ALONG
from featgraph.fold.printing.writer import head_of, line_of
from featgraph.fold.tree import statements
from featgraph.fold.tree.nodes import Comment
from featgraph.fold.tree.statements import (
    Body,
    Node,
    Rewriting,
    agrees,
    copied,
    note_of,
)

__all__ = [
    "Behind", "changed_lines", "changes_of", "explain_plan", "print_nest", "shown",
]  # fmt: skip


def explain_plan(plan: FoldPlan) -> str:
    """Return a description of a plan, for `FoldMap.explain` and the command line.

    It lists phases with the reasons of their boundaries, mappings, due vertices, the
    places of temporaries, strides of rows, and all accesses of each function.
    """
    lines = [str(plan), ""]
    due = (
        "A and every vertex that gathers from it"
        if plan.expands
        else "A, and the targets of edges that returned True"
    )
    if plan.expands and plan.expands != ("in",):
        along = "both" if len(plan.expands) > 1 else plan.expands[0]
        due += f", along {EDGES_ALONG[along]}"
    if any(p.kind.in_turns for p in plan.phases):
        due = "A, and both ends of edges that returned True"
        lines += explain_exclusive(plan)
    lines.append(f"due vertices: {due}")
    accesses = [a for f in plan.analysis.functions for a in f.accesses]
    if any(a.where == "foreign" and a.mode == "read" for a in accesses):
        lines.append(
            "  everywhere while anything is active, because a function reads at "
            "foreign vertices"
        )
    if plan.options.asynchronous:
        names = sorted({n for p in plan.phases for n in p.commits})
        lines.append(
            f"asynchronous: {', '.join(names) or 'nothing'} committed in the kernel, "
            "where others see it in the same superstep; only the fixpoint is promised"
        )
    lines += _explain_incremental(plan)
    why, loop = plan.facts.not_queued, "compiled loop"
    if plan.target == "cuda":
        loop = 'kernel, in_form("worklist")'
    lines.append(
        f"supersteps of few vertices: one by one, for {why}"
        if why
        else f"supersteps of few vertices: many in one {loop}"
    )
    in_memory = {n for p in plan.phases for n in (*p.loads, *p.indexes, *p.stores)}
    stored = {n for p in plan.phases for n in p.incremental}
    from_active = {
        f.into
        for p in plan.phases
        if plan.takes_active(p)
        for f in plan.functions_of(p)
        if takes_active(f)
    }
    for name, temporary in plan.analysis.temporaries.items():
        place = "in registers or local arrays, never in global memory"
        if name in stored:
            place = "kept in memory"
        elif name in in_memory:
            place = "in memory"
        active = ", of active sources" * (name in from_active)
        lines.append(
            f"temporary {temporary.into} {temporary.item_shape or ''}: "
            f"{temporary.combine.name}{active}, {place}"
        )
    lines += _explain_rows(plan)
    lines.append("")
    lines.append("accesses:")
    for function in plan.analysis.functions:
        lines.append(f"  {function.name} ({function.kind}, K = {function.width})")
        for a in function.accesses:
            name = plan.analysis.as_given(a.name)
            name += "_next" if a.version == "next" else ""
            lines.append(f"    {a.mode:6} {name:20} {a.where}")
    if plan.traits.renumbered:  # of a graph in parts
        lines += ["", *explain_ranks(plan)]
    return "\n".join(lines)


def _explain_rows(plan: FoldPlan) -> list[str]:
    """Describe the strides of rows of properties."""
    lines = []
    for name, stride in plan.strides.items():
        type_ = plan.analysis.signature[name]
        [width] = type_.item_shape
        size = stride * np.dtype(type_.dtype).itemsize
        padding = f", {stride - width} of them padding" if stride > width else ""
        lines.append(
            f"property {name}: a row of K = {width} every {stride} elements{padding}: "
            f"{size} bytes"
        )
    return lines


def _explain_incremental(plan: FoldPlan) -> list[str]:
    """Describe which gathers keep their aggregates, and why others do not."""
    found = plan.incremental
    if not found.gathers and not found.recomputed:
        return []
    lines = ["aggregates between the supersteps of a run, change_driven=True:"]
    if plan.is_incremental:
        lines = ["aggregates between the supersteps of the run:"]
    for name, temporary in plan.analysis.temporaries.items():
        how = (
            f"recomputed: {found.recomputed[name]}"
            if name in found.recomputed
            else _describe_incremental(plan, found.gathers[name])
        )
        lines.append(f"  {temporary.into}: {how}")
    return lines


def _describe_incremental(plan: FoldPlan, gather: IncrementalGather) -> str:
    analysis = plan.analysis
    temporary = analysis.temporaries[gather.into]
    size = entry_bytes(temporary.item_shape, temporary.type, analysis.real)
    if gather.is_constant:
        return f"constant: computed once a vertex and kept, {size} bytes"
    copies = []
    for name in gather.reads:
        type_ = analysis.signature[name]
        stride = plan.strides.get(name)
        shape = type_.item_shape if stride is None else (stride,)
        of_copy = entry_bytes(shape, type_.dtype, analysis.real)
        copies.append(f"{of_copy} for what {name} was")
    return f"kept and patched: {size} bytes a vertex, and {', '.join(copies)}"


#: Forms of a message of rows -> its contents.
_FORMS = {
    "all": "all rows of the owner, with a bit for each that changed",
    "ms": "all rows that the other rank has, with a bit for each that changed",
    "vr": "the rows that changed, with a bit for each that the other rank has",
    "vr-list": "the rows that changed, with the gaps between their numbers",
}


def explain_ranks(plan: FoldPlan) -> list[str]:
    """Return lines about the messages of each phase, or the reason against ranks."""
    refusal = plan.facts.not_shared
    if refusal is not None:
        return [
            f"on several ranks: refused ({refusal.where}): {refusal.why}; {refusal.fix}"
        ]
    lines = ["on several ranks:"]
    requested = plan.options.exchange
    if requested != "auto":
        lines.append(f"  rows of ghosts: {_FORMS[requested]} (exchange={requested!r})")
    wire = plan.options.wire_dtype
    if wire is not None:
        lines.append(f"  rows of ghosts: reals are rounded to {wire}, once")
    for number, (phase, halo) in enumerate(
        zip(plan.phases, plan.facts.halos, strict=True)
    ):
        messages = [*_explain_phase(plan, phase, halo)]
        lines += [f"  phase {number}: {one}" for one in messages or ["nothing is sent"]]
    if plan.facts.sent_rows or plan.options.overlap is True:
        lines.append(f"  overlap: {_explain_split(plan)}")
    lines.append("  behind the superstep: which vertices were committed, and how many")
    return lines


def _explain_split(plan: FoldPlan) -> str:
    """Describe which rows are sent while a phase sweeps others."""
    split = plan.facts.split
    if split.why_not:
        return f"none: {split.why_not}"
    if plan.options.overlap is False:
        return "none (overlap=False)"
    condition = (
        "" if plan.options.overlap is True else ", if that is measured to be faster"
    )
    rows = ", ".join(plan.facts.sent_rows)
    return (
        f"rows of {rows} go piece by piece while phase {split.phase} sweeps others"
        f"{condition}"
    )


def _explain_phase(plan: FoldPlan, phase: Phase, halo: Halo) -> Iterator[str]:
    """Yield lines about the messages before and after a phase."""
    ahead = {name for one in plan.facts.halos for name in one.reads_next}
    in_place = {name for one in plan.facts.halos for name in one.writes}
    committed = set(plan.facts.writes_next) - ahead
    with_bits = [n for n in halo.reads if n in committed and n not in in_place]
    waiting = [n for n in halo.reads if n in in_place or n in ahead]
    constant = [n for n in halo.reads if n not in {*with_bits, *waiting}]
    edges = halo.edges
    yield from _listed(
        (with_bits, "rows that were committed go with the bits that say which"),
        (waiting, "rows that changed go before the phase"),
        (constant, "never written here: rows go when they are first read, and if they "
                   "are written from outside"),
        (_next(halo.reads_next), "rows of all ghosts go before the phase"),
        ((of for _, of in halo.mirrors), "rows of all vertices, on each rank"),
        (_next(of for _, of in halo.mirrors_next), "rows of all vertices, on each "
                                                   "rank"),
        ((of for _, of, _ in halo.outboxes), "combined on each rank, then at the "
                                             "owners behind the phase"),
        (edges.reads, "entries of cut edges that changed go before the phase"),
        (_next(edges.reads_next), "entries of all cut edges go before the phase"),
        ((of for _, of, _ in edges.outboxes), "combined on each rank, then at the "
                                              "owners of edges behind the phase"),
    )  # fmt: skip
    triangles = halo.triangles
    if triangles is not None:
        yield "rows of neighbors that others own: fetched once, a batch at a time"
        read = *triangles.reads, *_next(triangles.reads_next)
        names = (name for name, _ in triangles.updates)
        yield from _listed(
            (read, "entries of edges that changed go before each"),
            (names, "combined on each rank, then at the owners behind the phase"),
        )
    if phase.kind.reduces:
        names = (f.into for f in plan.functions_of(phase) if f.into)
        yield from _listed((names, "combined over the ranks behind the phase"))


def _listed(*found: tuple[Iterable[str], str]) -> Iterator[str]:
    """Yield ``names: description`` for each pair whose names are not empty."""
    for names, what in found:
        joined = ", ".join(dict.fromkeys(names))
        if joined:
            yield f"{joined}: {what}"


def _next(names: Iterable[str]) -> Iterator[str]:
    return (f"{name}_next" for name in names)


_INDENT = "    "
#: Unchanged lines of a tree that a diff shows around a change.
_CONTEXT = 3


@dataclass(frozen=True)
class Behind:
    """The tree of a kernel or user function after a pass.

    Attributes
    ----------
    kernel : str
        Name of the kernel or function.
    name, does : str
        Name of the pass, and its description.
    text : str
        The tree, printed.
    is_function : bool
        Whether it is the tree of a user function.
    """

    kernel: str
    name: str
    does: str
    text: str
    is_function: bool = False


def print_nest(body: Body) -> str:
    """Return a tree as lines: nodes by name, with their bodies indented below.

    Fields with default values are left out. ``#`` begins comments and notes: "warp
    agrees" behind a branch or a loop means that all lanes of a warp enter it together.
    """
    return "\n".join(_lines(_shown_body(body)))


def changes_of(behind: Sequence[Behind], name: str = "") -> str:
    """Return the trees before and after a pass, or the changes of all passes.

    For all passes, the first tree is complete; for each pass follows a diff: removed
    lines begin with ``-``, added ones with ``+``, with some lines of context.
    """
    out: list[str] = []
    for kernel, stages in itertools.groupby(behind, lambda one: one.kernel):
        lines, before = list[str](), ""
        for one in stages:
            if not name:
                changed = changed_lines(before, one.text) if before else one.text
                lines += [f"## {one.name}: {one.does}", changed or "  (as it was)", ""]
            elif one.name == name:
                lines += [f"## before {name}: {one.does}", before, ""]
                lines += [f"## behind {name}", one.text, ""]
            before = one.text
        out += [f"# {kernel}", "", *lines] if lines else []
    return "\n".join(out)


def changed_lines(old: str, new: str) -> str:
    """Return the diff of two trees: lines marked ``-`` or ``+``, with context.

    It is "" for equal trees. A change of indentation alone is no change.
    """
    if old == new:
        return ""
    before, after = old.splitlines(), new.splitlines()
    old_texts, new_texts = (list(map(str.strip, lines)) for lines in (before, after))
    matcher = difflib.SequenceMatcher(None, old_texts, new_texts, autojunk=False)
    out: list[str] = []
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        out += ["..."] if out or group[0][3] else []
        for what, first, last, start, end in group:
            if what == "equal":
                out += [f"  {line}" for line in after[start:end]]
                continue
            out += [f"- {line}" for line in before[first:last]]
            out += [f"+ {line}" for line in after[start:end]]
    return "\n".join(out)


def _lines(body: Body, depth: int = 0) -> Iterator[str]:
    """Yield the lines of statements; `depth` is the level of indentation."""
    indent = _INDENT * depth
    for node in body:
        remarks = [note_of(node), f"{agrees(node)} agrees" if agrees(node) else ""]
        behind = ", ".join(filter(None, remarks))
        behind = f"  # {behind}" if behind else ""
        if isinstance(node, Comment):
            yield f"{indent}# {node.text}"
        elif isinstance(node, Define):
            head = f"def {node.name}({', '.join((*node.roles, *node.more))})"
            yield f"{indent}{head}:  # {node.form}"
            yield from _lines(node.body, depth + 1)
        elif isinstance(node, Node):
            yield from _node(node, behind, depth)
        elif isinstance(node, ast.If | ast.While | ast.For):
            yield f"{indent}{head_of(node)}:{behind}"
            yield from _lines(node.body, depth + 1)
            if node.orelse:
                yield f"{indent}else:"
                yield from _lines(node.orelse, depth + 1)
        else:
            yield f"{indent}{line_of(node)}{behind}"


def _node(node: Node, behind: str, depth: int) -> Iterator[str]:
    """Yield the lines of a node of the nest, which is no Python statement."""
    parts, bodies = [], {}
    for part in fields(node):  # type: ignore[arg-type]
        value = getattr(node, part.name)
        is_body = part.type == "Body" or isinstance(value, Node)
        if is_body:
            bodies[part.name] = value if isinstance(value, list) else [value]
        elif part.default is MISSING:
            parts.append(_part(value))
        elif value != part.default:
            parts.append(f"{part.name}={_part(value)}")
    bodies = {name: body for name, body in bodies.items() if body}
    indent = _INDENT * depth
    head = f"{indent}{type(node).__name__}({', '.join(filter(None, parts))})"
    yield f"{head}:{behind}" if bodies else f"{head}{behind}"
    for name, body in bodies.items():
        if len(bodies) > 1 and name != "body":
            yield f"{indent}  {name}:"
        yield from _lines(body, depth + 1)


def _part(value: Any) -> str:
    """Return a field of a node as text: names unquoted, lists in brackets."""
    if isinstance(value, ast.AST):
        return ast.unparse(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(filter(None, map(_part, value)))}]" if value else ""
    if hasattr(value, "array"):  # a row that is loaded
        return f"{value.array}[{value.index}]" if value.array else str(value.name)
    return str(value)


#: Version of an access -> suffix of the property.
_VERSIONS = {"next": "_next", "seen": "_seen"}


def shown(node: ast.AST) -> str:
    """Return a statement or an expression as text."""
    return ast.unparse(ast.fix_missing_locations(_Shown().visit(copied(node))))


def _shown_body(body: Body) -> Body:
    """Return statements with expressions replaced by readable Python."""
    return [cast("ast.stmt", _Shown().visit(copied(node))) for node in body]


#: Expression that is not Python -> the text of it; {0} is the node, the others are its
#: parts. Options of operations are left out.
_TEXTS: dict[type[ast.AST], str] = {
    statements.Scalar: "d.{0.name}",
    statements.Operate: "fg.{0.name}({args})",
    statements.Atomic: "fg.atomic.{0.op}(d.{0.name}[{indices}], {value})",
    statements.Helper: "{0.emitted}({args})",
    statements.MathCall: "{0.name}({args})",
    statements.Numeric: "{0.name}({args})",
    statements.Cast: "{0.to}({value})",
    statements.Identity: "fg.nothing",
    functions.AnyFeature: "any_feature({value})",
    functions.Checked: "checked({value})",
}


class _Shown(Rewriting):
    """Replace nodes that are not Python by names that `ast.unparse` prints."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Show an expression by its text in `_TEXTS`."""
        text = _TEXTS.get(type(node))
        return super().generic_visit(node) if text is None else self._name(node, text)

    def _name(self, node: ast.AST, text: str) -> ast.Name:
        parts = {}
        for name in node._fields:
            part = getattr(node, name)
            several = part if isinstance(part, list) else [part]
            parts[name] = ", ".join(map(shown, several))
        return ast.Name(text.format(node, **parts))

    def visit_Access(self, node: statements.Access) -> ast.Name:
        """Show the entry of a property, or of a loaded row."""
        if node.row:
            return ast.Name(f"{node.row}[f]")
        suffix = _VERSIONS.get(node.version, "")
        return self._name(node, f"d.{{0.name}}{suffix}[{{indices}}]")

    def visit_Whole(self, node: statements.Whole) -> ast.Name:
        """Show the row or matrix."""
        return self._name(node, "d.{0.name}" + "[{indices}]" * bool(node.indices))

    def visit_Place(self, node: functions.Place) -> ast.AST:
        """Show the index."""
        return cast("ast.AST", self.visit(node.value))

    def visit_Array(self, node: functions.Array) -> ast.Name:
        """Show the array."""
        return ast.Name(f"d.{node.name}{_VERSIONS.get(node.version, '')}")
