"""Prints each user function in the form that its phase's mapping needs.

Feature-wise: as the user wrote it, called once per feature. Collective: all features of
one vertex or edge together, as named copies (`copies.py`) or as loops over small arrays
(`loops.py`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from featgraph.fold.analysis.analyse import Analysed, Analysis, HelperFunction
from featgraph.fold.analysis.gathers import combine_of, is_matrix, temporaries_of
from featgraph.fold.codegen.text.expressions import (
    Guard,
    Style,
    identity_text,
    print_statements,
)
from featgraph.fold.codegen.text.writer import Writer
from featgraph.fold.functions.staging import Staged
from featgraph.fold.functions.vector_access import (
    Row,
    can_store,
    find_rows,
    with_forwarded,
)
from featgraph.fold.schedules.mapping import Mapping
from featgraph.fold.tree.statements import Body
from featgraph.program.combine import identity_value

__all__ = [
    "Context",
    "Printed",
    "gather_identity",
    "print_featurewise",
    "print_helper",
    "print_rank_one",
]


@dataclass
class Context:
    """What printing the functions of one phase needs to know.

    Attributes
    ----------
    checked : list or None
        Sites of guarded indices; None where the mode is off.
    seen : dict
        Property -> the field that holds what it was, for kept gathers.
    staged : dict
        Matrices of no vertex that the kernel keeps at hand, by name.
    forwarded : dict
        Edge properties whose next entries go to gathers in registers -> their name.
    solved : tuple of str
        Matrices whose elements have names.
    restored : tuple of str
        Properties whose next entries are put back where a function returns False.
    indexed : dict
        Temporaries in memory -> the form of an entry, ``{}`` for its indices.
    watch : callable or None
        Told the kernel, the pass and the tree behind each pass, if given.
    """

    writer: Writer
    analysis: Analysis
    mapping: Mapping
    width: int
    cuda: bool
    checked: list[tuple[str, str, int, str, int]] | None = None
    seen: dict[str, str] = field(default_factory=dict)
    staged: dict[str, Staged] = field(default_factory=dict)
    forwarded: dict[str, str] = field(default_factory=dict)
    solved: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    indexed: dict[str, str] = field(default_factory=dict)
    watch: Callable[[str, Any, Body], None] | None = None

    @property
    def real(self) -> str:
        """Storage type of real numbers."""
        return self.analysis.real

    @property
    def decorator(self) -> str:
        """Decorator of the module's own functions."""
        return "@device_function" if self.cuda else "@njit(**INLINE)"

    def style(self, function: Analysed) -> Style:
        """Return the style that is common to all copies of a function."""
        guard = None
        if self.checked is not None:
            is_edge = function.kind in {"edge", "gather"}
            guard = Guard(
                self.checked,
                function.declared.name,
                function.declared.source.file,
                "v",
                "e" if is_edge else "-1",
            )
        return Style(
            cuda=self.cuda,
            real=self.real,
            width=self.width if not function.is_scalar else 1,
            identity=gather_identity(function, self.analysis),
            guard=guard,
            key=key_type(function, self.analysis),
            seen=self.seen,
            held=frozenset(self.solved),
            indexed=self.indexed,
        )


@dataclass
class Printed:
    """How the kernel calls a printed function.

    Attributes
    ----------
    name : str
        Name in the generated module.
    is_collective : bool
        Called once for all features, not once per feature.
    temporaries : tuple of str
        Temporaries it takes, in order; ``best_source`` is one of its own.
    areas : tuple of int
        Columns of the k x k work areas it takes.
    arrays : dict
        Loops form: scratch rows it takes, by type.
    rows : tuple of Row
        Values of rows it takes behind the temporaries, loaded by the caller.
    matrices : tuple of str
        Names of the matrices at hand that it takes last.
    vectors : bool
        Whether it is printed as vectors; a gather returns its contributions then.
    waits : bool
        Whether it stores next entries only where its verdict is True.
    """

    function: Analysed
    name: str
    is_collective: bool
    temporaries: tuple[str, ...]
    areas: tuple[int, ...] = ()
    arrays: dict[str, int] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    matrices: tuple[str, ...] = ()
    vectors: bool = False
    waits: bool = False

    @property
    def areas_and_matrices(self) -> list[str]:
        """The last of its arguments, as the kernel names them."""
        areas = [f"{self.name}_work_{n}" for n in range(len(self.areas))]
        return [*areas, *self.matrices]


def gather_identity(function: Analysed, analysis: Analysis) -> str:
    """Return the text of what a gather or reduce contributes with ``fg.nothing``."""
    if function.kind not in {"gather", "reduce"}:
        return "0"
    operator = combine_of(function)
    temporary = analysis.temporaries.get(function.into or "")
    type_ = temporary.type if temporary is not None else function.returns
    # Truth values are combined as integers; their least and largest are 0 and 1. A key
    # is an integer among others.
    truths = function.returns == "bool" and not (operator.is_custom or operator.is_arg)
    value = identity_value(
        operator, dtype_of("bool" if truths else type_, analysis.real)
    )
    return identity_text(value, "int32" if type_ == "bool" else type_, analysis.real)


def key_type(function: Analysed, analysis: Analysis) -> str:
    """Return the type of an argmin's or argmax's key, "" for other functions."""
    temporary = analysis.temporaries.get(function.into or "")
    if function.kind != "gather" or temporary is None or not temporary.combine.is_arg:
        return ""
    return analysis.real if temporary.type == "real" else temporary.type


def dtype_of(type_: str, real: str):  # type: ignore[no-untyped-def]
    """Return the NumPy dtype of values of a type."""
    import numpy as np

    return np.dtype({"real": real}.get(type_, type_))


def print_featurewise(context: Context, function: Analysed) -> Printed:
    """Print a function that makes no collaborative calls."""
    temporaries = temporaries_of(function, context.analysis)
    style = context.style(function)
    style = replace(style, temporaries={t: t for t in temporaries})
    body, mapping = list(function.body), context.mapping
    if is_matrix(function):  # called for each element
        mapping = mapping.of_column(context.width)
        style = replace(style, row_feature="i")
    rows = find_rows(context.analysis, function, mapping, style, body, False)
    if function.kind == "gather" and context.forwarded:
        rows = with_forwarded(rows, function, context.forwarded)
    parameters = [*function.declared.roles, *temporaries, *(r.name for r in rows)]
    if function.is_scalar:
        parameters.remove("f")
    _open(context, function, function.name, parameters, body)
    style = replace(style, rows={row.key: row.name for row in rows})
    _print_body(context, function, body, style)
    return Printed(function, function.name, False, temporaries, rows=rows)


def stores_rows(context: Context, function: Analysed) -> bool:
    """Return whether a function without collaborative calls is printed as copies.

    So it is where it goes straight on and a lane can store what it assigns in pieces.
    """
    body, style = function.body, context.style(function)
    if function.kind not in {"vertex", "edge"} or function.is_scalar:
        return False
    straight = all(isinstance(s, ast.Assign) for s in body[:-1])
    return straight and any(
        can_store(context.analysis, s, style, context.mapping.piece) for s in body
    )


def print_rank_one(context: Context, function: Analysed) -> Printed:
    """Print the parts of a function whose contribution is an outer product."""
    parts = function.rank_one
    if parts is None:
        raise TypeError(f"{function.name} is no outer product")
    temporaries = temporaries_of(function, context.analysis)
    others = [r for r in function.declared.roles if r not in {"i", "f"}]
    style = replace(context.style(function), temporaries={t: t for t in temporaries})
    printed: list[tuple[str, list[str], ast.expr | None]] = [
        ("column", ["f"], parts.column),
        ("row", ["i"], None if parts.symmetric else parts.row),
        ("scale", [], parts.scale),
    ]
    columns: tuple[Row, ...] = ()
    for part, first, value in printed:
        if value is not None:
            body: list[ast.stmt] = [ast.copy_location(ast.Return(value), value)]
            parameters, own = [*first, *others, *temporaries], style
            if part == "column":
                columns = find_rows(
                    context.analysis, function, context.mapping, style, body, False
                )
                parameters += [row.name for row in columns]
                own = replace(style, rows={row.key: row.name for row in columns})
            _open(context, function, f"{function.name}_{part}", parameters, body)
            _print_body(context, function, body, own)
    return Printed(function, function.name, False, temporaries, rows=columns)


def _open(
    context: Context,
    function: Analysed,
    name: str,
    parameters: list[str],
    body: list[ast.stmt],
) -> None:
    writer = context.writer
    writer.line()
    writer.line()
    source = function.declared.source
    writer.line(f"# {source.file}:{source.line}")
    writer.line(context.decorator)
    writer.line(f"def {name}({', '.join(parameters)}):", (source.file, source.line))


def _print_body(
    context: Context, function: Analysed, body: list[ast.stmt], style: Style
) -> None:
    writer = context.writer
    writer.depth += 1
    print_statements(body, writer, style, function.declared.source.file)
    writer.depth -= 1


def print_rest(
    context: Context,
    function: Analysed,
    name: str,
    body: list[ast.stmt],
    live: list[str],
    style: Style,
) -> None:
    """Print, feature-wise, what follows a function's last collaborative call.

    Features leave it at different places.
    """
    temporaries = [
        t for t in temporaries_of(function, context.analysis) if t not in context.solved
    ]
    roles = list(function.declared.roles)
    _open(context, function, name, [*roles, *temporaries, *live], body)
    plain = Style(
        **{
            **style.__dict__,
            "temporaries": {t: t for t in temporaries},
            "names": {},
            "rows": {},
            "write_mask": "",
        }
    )
    _print_body(context, function, body, plain)


def print_helper(
    writer: Writer, helper: HelperFunction, real: str, decorator: str, cuda: bool
) -> None:
    """Print a plain function that user functions call."""
    writer.line()
    writer.line()
    writer.line(f"# {helper.source.file}:{helper.source.line}")
    writer.line(decorator)
    writer.line(
        f"def {helper.name}({', '.join(helper.parameters)}):",
        (helper.source.file, helper.source.line),
    )
    writer.depth += 1
    print_statements(
        helper.body, writer, Style(cuda=cuda, real=real, width=0), helper.source.file
    )
    writer.depth -= 1
