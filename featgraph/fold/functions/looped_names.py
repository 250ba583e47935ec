"""Names and arrays of a function printed as loops over features."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathers import temporaries_of
from featgraph.fold.codegen.text.expressions import (
    Style,
    print_expression,
    print_statements,
)
from featgraph.fold.functions.featurewise import Context
from featgraph.fold.syntax.names import letters

__all__ = ["LoopNames", "Origin"]

Origin = tuple[str, int]


class LoopNames:
    """Where each local of the function stands, and how it is printed."""

    def __init__(self, context: Context, function: Analysed) -> None:
        self.context = context
        self.function = function
        self.writer = context.writer
        self.varying = function.varying
        self.width = context.width
        self.file = function.declared.source.file
        self.source = function.declared.source
        self.temporaries = temporaries_of(function, context.analysis)
        self.is_gather = function.kind in {"gather", "reduce"}
        self.areas: list[int] = []
        self.arrays: dict[str, str] = {}
        self.rows = {"real": 0, "int64": 0}
        self.matrices: dict[str, str] = {}
        self.fresh_count = 0

    def style(self) -> Style:
        """Return how expressions of the function are printed."""
        wide = {t: f"{t}[f]" if self._rank(t) == 1 else t for t in self.temporaries}
        return replace(
            self.context.style(self.function),
            names=dict(self.arrays),
            temporaries=wide,
            matrices=dict(self.matrices),
        )

    def _rank(self, temporary: str) -> int:
        known = self.context.analysis.temporaries
        if temporary in self.context.analysis.entries:
            return 0
        base = known.get(temporary) or known[temporary.removesuffix("_source")]
        return len(base.item_shape)

    def _contributions(self) -> list[str]:
        """Return the arrays of a contribution; argmin and argmax have a source, too."""
        if not self.is_gather:
            return []
        return ["contribution", *(["contribution_source"] if self.style().key else [])]

    def _contribute(self, value: str, origin: Origin | None = None) -> None:
        targets = ", ".join(f"{name}[f]" for name in self._contributions())
        with self.writer.block(f"for f in range({self.width}):"):
            self.line(f"{targets} = {value}", origin)

    def line(self, text: str, origin: Origin | None = None) -> None:
        """Print a line."""
        self.writer.line(text, origin)

    def fresh(self, stem: str) -> str:
        """Return a name that is no local of the user's."""
        while True:
            self.fresh_count += 1
            name = f"{stem}_{letters(self.fresh_count)}"
            if name not in {*self.function.variables, *self.temporaries}:
                return name

    def over_features(
        self, body: list[ast.stmt], last: Callable[[], None] | None
    ) -> None:
        """Print a loop over features with some statements, and `last` behind them."""
        if not body and last is None:
            return
        with self.writer.block(f"for f in range({self.width}):"):
            print_statements(body, self.writer, self.style(), self.file)
            if last is not None:
                last()

    def text(self, node: ast.expr) -> str:
        """Return the text of an expression for feature f."""
        return print_expression(node, self.style())
