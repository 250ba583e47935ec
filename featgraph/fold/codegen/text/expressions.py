"""Turns analysed statements back into text: the repository's one `ast.unparse`.

Every ``d.name[...]`` of a user function is printed here, through the layout of the
target. Nothing else knows how properties are reached.
"""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from featgraph.fold.analysis.gathered_values import INDEXED
from featgraph.fold.codegen.text.writer import Writer
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.syntax.names import EDGES
from featgraph.fold.syntax.nodes import (
    Access,
    Atomic,
    Cast,
    Helper,
    Identity,
    MathCall,
    Numeric,
    Operate,
    Scalar,
    Whole,
    is_reversed,
    narrowed,
)
from featgraph.program.combine import NO_SOURCE

__all__ = [
    "Guard",
    "Plain",
    "Style",
    "array_text",
    "identity_text",
    "print_element",
    "print_entity",
    "print_expression",
    "print_returned",
    "print_statements",
    "row_key",
]

_ATOMIC = {"add": "atomic_add", "min": "atomic_min", "max": "atomic_max"}


@dataclass(frozen=True)
class Guard:
    """Checked mode: gives each index a site number and prints the test."""

    sites: list[tuple[str, str, int, str, int]]
    function: str
    file: str
    vertex: str
    edge: str

    def site(self, line: int, name: str, axis: int) -> int:
        """Return the number of a guarded index; `sites` keeps what it stands for."""
        self.sites.append((self.function, self.file, line, name, axis))
        return len(self.sites) - 1


@dataclass(frozen=True)
class Style:
    """How a function body is printed.

    Attributes
    ----------
    cuda : bool
        Whether indices become unsigned (signed ones cost a wrap-around each) and
        atomics are a warp's.
    real : str
        Name of the storage type's constructor.
    names : mapping
        Local name -> text, for the names that are printed otherwise: ``p`` -> ``p_0``,
        ``f`` -> ``3``.
    temporaries : mapping
        Temporary name -> text of its value (or of its k x k array).
    identity : str
        What ``fg.nothing`` is.
    width : int
        K.
    guard : Guard or None
        Checked mode.
    wrap_return : callable or None
        Prints ``return value`` statements; None leaves them.
    write_mask : str
        Condition under which stores and atomics happen; "" always.
    key : str
        Type of the key of an argmin or argmax gather, which returns pairs (key,
        source); "" for other functions.
    rows : mapping
        (array, vertex or edge) -> name of the value that stands for the access of
        feature f, where it has been loaded before.
    row_feature : str
        The index whose features rows are loaded for: "f"; "i" of a matrix gather.
    seen : mapping
        Property -> the field that holds what it was, for a kept gather.
    held : frozenset of str
        Matrices whose elements have names: ``a_0_1``.
    indexed : mapping
        Temporaries in memory -> the form of an entry, ``{}`` for its indices.
    """

    cuda: bool
    real: str
    width: int
    names: Mapping[str, str] = field(default_factory=dict)
    temporaries: Mapping[str, str] = field(default_factory=dict)
    matrices: Mapping[str, str] = field(default_factory=dict)
    identity: str = "0"
    guard: Guard | None = None
    wrap_return: Callable[[str], list[str]] | None = None
    write_mask: str = ""
    key: str = ""
    row_feature: str = "f"
    rows: Mapping[tuple[str, str], str] = field(default_factory=dict)
    seen: Mapping[str, str] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    indexed: Mapping[str, str] = field(default_factory=dict)

    def with_names(self, **names: str) -> Style:
        """Return a style with further names."""
        return replace(self, names={**self.names, **names})

    def index(self, text: str) -> str:
        """Print an index of an array."""
        if self.cuda and not text.isdigit() and not text.startswith("uint32("):
            return f"uint32({text})"
        return text


def print_expression(node: ast.expr, style: Style) -> str:
    """Return `node` as Python text."""
    return Plain(style).text(node)


def print_returned(node: ast.expr, style: Style) -> str:
    """Return the text of what a function returns.

    For argmin and argmax the pair (key, source).
    """
    if not style.key:
        return print_expression(node, style)
    inner = node.value if isinstance(node, Cast) else node
    if isinstance(inner, Identity):
        return f"({style.identity}, int32({NO_SOURCE}))"
    if isinstance(inner, ast.IfExp):
        texts = [print_returned(side, style) for side in (inner.body, inner.orelse)]
        test = print_expression(inner.test, style)
        return f"({texts[0]} if ({test}) else {texts[1]})"
    return f"({style.key}({print_expression(node, style)}), u)"


def print_element(matrix: Whole, row: str, column: str, style: Style) -> str:
    """Return the text of an element of a matrix given as a whole."""
    if matrix.name in style.held:
        return f"{matrix.name}_{row}_{column}"
    indices = f"{style.index(row)}, {style.index(column)}"
    if matrix.name in style.temporaries:
        return f"{style.temporaries[matrix.name]}[{indices}]"
    entity = f"{print_entity(matrix, style)}, " if matrix.indices else ""
    return f"{array_text(matrix, style)}[{entity}{indices}]"


def print_entity(matrix: Whole, style: Style) -> str:
    """Return the vertex or edge of a matrix given as a whole, as an index."""
    first = matrix.indices[0]
    text = print_expression(first, style)
    if style.guard is not None:
        text = Plain._guarded(style.guard, matrix, 0, text, array_text(matrix, style))
    return text if _is_edge(first) else style.index(text)


def print_statements(
    body: list[ast.stmt] | tuple[ast.stmt, ...], writer: Writer, style: Style, file: str
) -> None:
    """Write statements as they stand, with native control flow."""
    for node in body:
        _print_statement(node, writer, style, (file, getattr(node, "lineno", 0)))


def _print_statement(
    node: ast.stmt, writer: Writer, style: Style, origin: tuple[str, int]
) -> None:
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        value = print_expression(node.value, style)
        if isinstance(target, Access):
            print_store(target, value, writer, style, origin)
        else:
            writer.line(f"{print_expression(target, style)} = {value}", origin)
    elif isinstance(node, ast.Return):
        value = print_returned(narrowed(node.value, ast.expr), style)
        lines = style.wrap_return(value) if style.wrap_return else [f"return {value}"]
        for line in lines:
            writer.line(line, origin)
    elif isinstance(node, ast.If):
        with writer.block(f"if {print_expression(node.test, style)}:", origin):
            print_statements(node.body, writer, style, origin[0])
        if node.orelse:
            with writer.block("else:"):
                print_statements(node.orelse, writer, style, origin[0])
    elif isinstance(node, ast.While):
        with writer.block(f"while {print_expression(node.test, style)}:", origin):
            print_statements(node.body, writer, style, origin[0])
    elif isinstance(node, ast.For):
        with writer.block(loop_header(node, style), origin):
            print_statements(node.body, writer, style, origin[0])
    elif isinstance(node, ast.Expr):
        text = print_expression(node.value, style)
        if style.write_mask:
            with writer.block(f"if {style.write_mask}:"):
                writer.line(text, origin)
        else:
            writer.line(text, origin)
    else:  # pass, break, continue
        writer.line(type(node).__name__.lower(), origin)


def loop_header(node: ast.For, style: Style) -> str:
    """Return ``for i in range(...):``."""
    call = narrowed(node.iter, ast.Call)
    bounds = ", ".join(print_expression(a, style) for a in call.args)
    return f"for {print_expression(node.target, style)} in range({bounds}):"


def print_store(
    target: Access, value: str, writer: Writer, style: Style, origin: tuple[str, int]
) -> None:
    """Write ``d.name[...] = value`` under the mask; checked: if in range."""
    tests = [style.write_mask] if style.write_mask else []
    if style.guard is not None:
        tests += [
            _inside(target, axis, index, style, style.guard)
            for axis, index in enumerate(target.indices)
        ]
    plain = Style(**{**style.__dict__, "guard": None})
    text = f"{print_expression(target, plain)} = {value}"
    if tests:
        with writer.block(f"if {' and '.join(tests)}:"):
            writer.line(text, origin)
    else:
        writer.line(text, origin)


def _inside(
    access: Access | Atomic, axis: int, index: ast.expr, style: Style, guard: Guard
) -> str:
    site = guard.site(getattr(access, "lineno", 0), access.name, axis)
    array = array_text(access, style)
    shown = print_expression(index, style)
    library = "warp" if style.cuda else "cpu"
    return (
        f"{library}.checked({shown}, {array}.shape[{axis}], {site}, {guard.vertex}, "
        f"{guard.edge}, d.fault)"
    )


def array_text(access: Access | Whole | Atomic, style: Style) -> str:
    """Return the array that an access goes to."""
    version = "now" if isinstance(access, Atomic) else access.version
    if version == INDEXED:
        return style.indexed[access.name].partition("[")[0].rpartition("(")[2]
    if access.name in style.temporaries and isinstance(access, Access):
        return style.temporaries[access.name]
    if version == "seen":
        return f"d.{style.seen[access.name]}"
    return f"d.{access.name}{'_next' if version == 'next' else ''}"


def row_key(node: Access, style: Style) -> tuple[str, str] | None:
    """Return what tells this access's row from others; None if it is no ``[.., f]``."""
    if len(node.indices) != 2 or node.version == INDEXED:
        return None
    entity, feature = node.indices
    if not (isinstance(feature, ast.Name) and feature.id == style.row_feature):
        return None
    if is_reversed(entity):
        return array_text(node, style), "twin"
    if isinstance(entity, ast.Name) and entity.id in {"u", "v", "e"}:
        return array_text(node, style), entity.id
    return None


def identity_text(value: Any, type_: str, real: str) -> str:
    """Return the text of a combine's identity in the type of its accumulator."""
    if isinstance(value, float) and math.isinf(value):
        return f"{real}({'-' if value < 0 else ''}math.inf)"
    if type_ == "real":
        return f"{real}({float(value)!r})"
    return repr(int(value)) if type_ != "int32" else f"int32({int(value)})"


class Plain(ast.NodeTransformer):
    """Replaces the middle end's nodes by Python's."""

    def __init__(self, style: Style) -> None:
        self.style = style

    def text(self, node: ast.expr) -> str:
        """Return `node` as Python text."""
        plain = self.visit(copy.deepcopy(node))
        return ast.unparse(ast.fix_missing_locations(plain))

    def parse(self, text: str) -> ast.expr:
        """Return text as a node."""
        return ast.parse(text, mode="eval").body

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Name a local as the style says."""
        text = self.style.names.get(node.id)
        return node if text is None else self.parse(text)

    def visit_Scalar(self, node: Scalar) -> ast.expr:
        """Read a scalar of the State, or K."""
        if node.name == "feature_count":
            return ast.Constant(self.style.width)
        return self.parse(f"d.{node.name}")

    def visit_Access(self, node: Access) -> ast.expr:
        """Read an element through the layout."""
        style = self.style
        loaded = style.rows.get(row_key(node, style) or ("", ""))
        if loaded is not None:
            return self.parse(loaded)
        is_indexed = node.version == INDEXED
        is_temporary = node.name in style.temporaries and not is_indexed
        indices = node.indices[1:] if is_temporary else node.indices
        array = array_text(node, style)
        if is_temporary and len(node.indices) < 3:
            return self.parse(array)
        texts = []
        for axis, index in enumerate(indices):
            text = self.text(index)
            if style.guard is not None and not text.isdigit():
                text = self._guarded(style.guard, node, axis, text, array)
            texts.append(style.index(text) if not _is_edge(index) else text)
        form = style.indexed[node.name] if is_indexed else f"{array}[{{}}]"
        return self.parse(form.format(", ".join(texts)))

    @staticmethod
    def _guarded(
        guard: Guard, node: Access | Whole, axis: int, text: str, array: str
    ) -> str:
        site = guard.site(getattr(node, "lineno", 0), node.name, axis)
        return (
            f"guarded({text}, {array}.shape[{axis}], {site}, {guard.vertex}, "
            f"{guard.edge}, d.fault)"
        )

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Print an element of an inverse: it is in the right half of its work area."""
        indices = narrowed(node.slice, ast.Tuple).elts
        row, column = (self.style.index(self.text(i)) for i in indices)
        work = self.style.matrices[narrowed(node.value, ast.Name).id]
        return self.parse(f"{work}[{row}, {self.style.width} + {column}]")

    def visit_Operate(self, node: Operate) -> ast.expr:
        """Read what is known of twins."""
        text = f"d.{primitive_of(node).edge_array}[{self.text(node.args[0])}]"
        is_id = self.style.cuda and is_reversed(node)
        return self.parse(f"uint64({text})" if is_id else text)

    def visit_Atomic(self, node: Atomic) -> ast.expr:
        """Call an atomic."""
        style = self.style
        library = "warp" if style.cuda else "cpu"
        texts = [self.text(i) for i in node.indices]
        shown = [
            style.index(t) if not _is_edge(i) else t
            for t, i in zip(texts, node.indices, strict=True)
        ]
        index = shown[0] if len(shown) == 1 else f"({', '.join(shown)})"
        call = (
            f"{library}.{_ATOMIC[node.op]}(d.{node.name}, {index}, "
            f"{self.text(node.value)})"
        )
        if style.guard is not None:
            tests = " and ".join(
                _inside(node, a, i, style, style.guard)
                for a, i in enumerate(node.indices)
            )
            call = (
                f"({call} if {tests} else d.{node.name}[{', '.join('0' * len(shown))}])"
            )
        return self.parse(call)

    def visit_Helper(self, node: Helper) -> ast.expr:
        """Call a helper by its emitted name."""
        args = ", ".join(self.text(a) for a in node.args)
        return self.parse(f"{node.emitted}({args})")

    def visit_MathCall(self, node: MathCall) -> ast.expr:
        """Call a function of `math`, or a builtin."""
        texts = [self.text(a) for a in node.args]
        if node.of_real and self.style.cuda:  # min and max there let NaN lose
            name = {"min": "lesser", "max": "greater"}[node.name]
            text = texts[0]
            for other in texts[1:]:
                text = f"numbers.{name}({text}, {other})"
            return self.parse(text)
        args = ", ".join(texts)
        module = "" if node.name in {"abs", "min", "max"} else "math."
        if node.name in {"floor", "ceil"} and not self.style.cuda:
            module = "np."  # of `math`, it is an integer there
        return self.parse(f"{module}{node.name}({args})")

    def visit_Numeric(self, node: Numeric) -> ast.expr:
        """Call the library of numbers."""
        args = ", ".join(self.text(a) for a in node.args)
        suffix = f"_{self.style.real}" if node.of_real else ""
        return self.parse(f"numbers.{node.name}{suffix}({args})")

    def visit_Cast(self, node: Cast) -> ast.expr:
        """Convert to the storage type, or to int64."""
        inner = self.text(node.value)
        if node.to != "real":
            return self.parse(f"{'int64' if node.to == 'int' else node.to}({inner})")
        if isinstance(node.value, ast.Constant):
            value = float(node.value.value)  # type: ignore[arg-type]
            if math.isinf(value):
                return self.parse(f"{self.style.real}(math.inf)")
            if math.isnan(value):
                return self.parse(f"{self.style.real}(math.nan)")
            inner = repr(value)
        return self.parse(f"{self.style.real}({inner})")

    def visit_Identity(self, node: Identity) -> ast.expr:
        """Put the identity of the combine."""
        return self.parse(self.style.identity)


def _is_edge(node: ast.expr) -> bool:
    """Edge ids are unsigned from the start."""
    return (isinstance(node, ast.Name) and node.id in EDGES) or is_reversed(node)
