"""Trees between passes as text, for inspection only: it is never executed."""

from __future__ import annotations

import ast
import difflib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, cast

from featgraph.base.dataclass import MISSING, dataclass, fields
from featgraph.fold.passes.bodies import nodes as functions
from featgraph.fold.passes.bodies.nodes import Define
from featgraph.fold.printing.writer import head_of, line_of
from featgraph.fold.tree import expressions
from featgraph.fold.tree.nodes import Comment
from featgraph.fold.tree.statements import (
    Body,
    Node,
    Rewriting,
    agrees,
    copied,
    note_of,
)

__all__ = ["Behind", "changed_lines", "changes_of", "print_nest", "shown"]

_INDENT = "    "
#: Lines around a change that are shown.
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

    Fields with default values are left out. ``#`` begins comments, and notes on which
    lanes enter a branch or a loop together.
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
    """Yield the lines of a node that is not Python."""
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


_VERSIONS = {"next": "_next", "seen": "_seen"}


def shown(node: ast.AST) -> str:
    """Return a statement or an expression as text."""
    return ast.unparse(ast.fix_missing_locations(_Shown().visit(copied(node))))


def _shown_body(body: Body) -> Body:
    """Return statements with expressions replaced by readable Python."""
    return [cast("ast.stmt", _Shown().visit(copied(node))) for node in body]


class _Shown(Rewriting):
    """Replace nodes that are not Python by names that `ast.unparse` prints."""

    def _name(self, form: str, *parts: Any) -> ast.Name:
        texts = (
            ", ".join(map(shown, part)) if isinstance(part, list) else shown(part)
            for part in parts
        )
        return ast.Name(form.format(*texts))

    def visit_Access(self, node: expressions.Access) -> ast.Name:
        """Show the element, or that of the loaded row."""
        if node.row:
            return ast.Name(f"{node.row}[f]")
        name = f"d.{node.name}{_VERSIONS.get(node.version, '')}"
        return self._name(f"{name}[{{}}]", node.indices)

    def visit_Whole(self, node: expressions.Whole) -> ast.Name:
        """Show the row or matrix."""
        form = f"d.{node.name}[{{}}]" if node.indices else f"d.{node.name}"
        return self._name(form, node.indices)

    def visit_Array(self, node: functions.Array) -> ast.Name:
        """Show the array."""
        return ast.Name(f"d.{node.name}{_VERSIONS.get(node.version, '')}")

    def visit_Scalar(self, node: expressions.Scalar) -> ast.Name:
        """Show the scalar."""
        return ast.Name(f"d.{node.name}")

    def visit_Operate(self, node: expressions.Operate) -> ast.Name:
        """Show the call; chosen variants are left out."""
        return self._name(f"fg.{node.name}({{}})", node.args)

    def visit_Atomic(self, node: expressions.Atomic) -> ast.Name:
        """Show the call."""
        form = f"fg.atomic.{node.op}(d.{node.name}[{{}}], {{}})"
        return self._name(form, node.indices, node.value)

    def visit_Helper(self, node: expressions.Helper) -> ast.Name:
        """Show the call."""
        return self._name(f"{node.emitted}({{}})", node.args)

    def visit_MathCall(self, node: expressions.MathCall) -> ast.Name:
        """Show the call."""
        return self._name(f"{node.name}({{}})", node.args)

    def visit_Numeric(self, node: expressions.Numeric) -> ast.Name:
        """Show the call."""
        return self._name(f"{node.name}({{}})", node.args)

    def visit_Cast(self, node: expressions.Cast) -> ast.Name:
        """Show the conversion."""
        return self._name(f"{node.to}({{}})", node.value)

    def visit_Identity(self, node: expressions.Identity) -> ast.Name:
        """Show ``fg.nothing``."""
        return ast.Name("fg.nothing")

    def visit_AnyFeature(self, node: functions.AnyFeature) -> ast.Name:
        """Show the condition over all features."""
        return self._name("any_feature({})", node.value)

    def visit_Place(self, node: functions.Place) -> ast.AST:
        """Show the index."""
        return cast("ast.AST", self.visit(node.value))

    def visit_Checked(self, node: functions.Checked) -> ast.Name:
        """Show that an index is checked."""
        return self._name("checked({})", node.value)
