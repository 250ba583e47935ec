"""Names and results of a function printed as named copies."""

from __future__ import annotations

import ast
from dataclasses import replace

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathers import temporaries_of
from featgraph.fold.codegen.text.expressions import (
    Style,
    print_expression,
    print_returned,
)
from featgraph.fold.functions.featurewise import Context
from featgraph.fold.functions.predication import needs_guard
from featgraph.fold.functions.returned_entries import SentEntries
from featgraph.fold.functions.staging import shared_matrices_of
from featgraph.fold.functions.store_sinking import reads_what_it_changes
from featgraph.fold.functions.vector_access import (
    Row,
    find_rows,
    load_lines,
    store_line,
)
from featgraph.fold.syntax.names import letters
from featgraph.fold.syntax.nodes import Access, Identity, narrowed
from featgraph.fold.syntax.variance import varies

__all__ = ["CopyNames"]


class CopyNames(SentEntries):
    """Which copy of a name belongs to which feature, and what the function returns."""

    def __init__(self, context: Context, function: Analysed) -> None:
        self.context = context
        self.function = function
        self.writer = context.writer
        self.varying = function.varying
        self.mapping = context.mapping
        self.count = 1 if function.is_scalar else context.mapping.copies
        self.width = 1 if function.is_scalar else context.width
        self.lanes = context.mapping.lanes
        self.predicated = context.cuda and context.mapping.lanes > 1
        self.file = function.declared.source.file
        self.temporaries = temporaries_of(function, context.analysis)
        self.areas: list[int] = []
        used = shared_matrices_of(function, context.analysis)
        self.staged = {n: s for n, s in context.staged.items() if n in used}
        self.matrices = tuple(n for s in self.staged.values() for n in s.names)
        self.returns_value = function.kind in {"gather", "reduce"}
        self.padded = self.predicated and self.lanes * self.count != self.width
        self.piece = 1 if function.is_scalar else context.mapping.piece
        self.rows: tuple[Row, ...] = ()
        self._name_sent()
        self.has_left = self.predicated and any(
            isinstance(n, ast.Return) for s in function.body[:-1] for n in ast.walk(s)
        )
        #: Where the function runs, for predicates: lanes of other groups go along.
        self.live = "live" if self.has_left else "writer"
        self.styles = [self._style(j) for j in range(self.count)]
        self.helpers = {h.name: h for h in context.analysis.helpers}
        self.bound: set[str] = set()
        #: Predicates that hold only where the function still runs.
        self.running: set[str] = set()
        self.in_rounds = False
        self.fresh_count = 0

    def copy_name(self, name: str, j: int) -> str:
        """Return the name of copy j of a varying name."""
        return name if self.count == 1 else f"{name}_{j}"

    def feature(self, j: int) -> str:
        """Return the text of copy j's feature."""
        return self.copy_name("f", j) if self.predicated else str(j)

    def is_wide(self, temporary: str) -> bool:
        """Whether a temporary has an entry for every feature."""
        base = self.context.analysis.temporaries.get(temporary.removesuffix("_source"))
        base = self.context.analysis.temporaries.get(temporary, base)
        return base is not None and len(base.item_shape) == 1

    def _style(self, j: int) -> Style:
        names = {x: self.copy_name(x, j) for x in self.varying if x != "f"}
        names["f"] = self.feature(j)
        temporaries = {
            t: self.copy_name(t, j) if self.is_wide(t) else t for t in self.temporaries
        }
        mask = ""
        if self.predicated:
            mask = (
                self.live
                if not self.padded
                else f"{self.live} and {self.copy_name('inside', j)}"
            )
        return replace(
            self.context.style(self.function),
            names=names,
            temporaries=temporaries,
            write_mask=mask,
        )

    def _load_rows(self, body: list[ast.stmt]) -> None:
        """Load what `body` reads of rows in any case; the copies stand for it."""
        self.rows = find_rows(
            self.context.analysis,
            self.function,
            self.mapping,
            self.styles[0],
            body,
            self.predicated,
        )
        for first in range(0, self.count, self.piece):
            for line in load_lines(
                self.rows, first, self.feature(first), self.width, self.mapping
            ):
                self.writer.line(line)
        self.styles = [
            replace(style, rows={r.key: r.copy(j, self.mapping) for r in self.rows})
            for j, style in enumerate(self.styles)
        ]

    def _store_row(self, node: ast.Assign, origin: tuple[str, int]) -> None:
        """Print an assignment to a row, a store for each piece."""
        target = narrowed(node.targets[0], Access)
        for first in range(0, self.count, self.piece):
            styles = self.styles[first : first + self.piece]
            values = [print_expression(node.value, style) for style in styles]
            line = store_line(
                target, values, self.feature(first), styles[0], self.piece
            )
            if styles[0].write_mask:
                with self.writer.block(f"if {styles[0].write_mask}:"):
                    self.writer.line(line, origin)
            else:
                self.writer.line(line, origin)

    def _nothing(self) -> str:
        return print_returned(Identity(), self.styles[0])

    def fresh(self, stem: str) -> str:
        """Return a name that is no local of the user's."""
        while True:
            self.fresh_count += 1
            name = f"{stem}_{letters(self.fresh_count)}"
            if name not in {*self.function.variables, *self.temporaries}:
                return name

    def where(self, predicate: str, guarded: bool) -> list[str]:
        """Return the tests of a predicate, and where `guarded` of a live lane."""
        tests = [predicate] if predicate else []
        return tests + ([self.live] * (guarded and predicate not in self.running))

    def _condition(self, node: ast.AST, predicate: str) -> str:
        """Return what must hold for `node` to run; stores have masks of their own."""
        return " and ".join(self.where(predicate, self.needs_guard(node)))

    def _return(
        self, node: ast.Return, predicate: str, origin: tuple[str, int]
    ) -> None:
        value = narrowed(node.value, ast.expr)
        values = [print_returned(value, style) for style in self.styles]
        varying = varies(value, self.varying)
        if not self.predicated:
            if self.returns_value:
                self.writer.line(f"return {', '.join(values)}", origin)
            else:
                form = "({})" if isinstance(value, ast.IfExp) else "{}"
                terms = [form.format(v) for v in dict.fromkeys(values)]
                joined = " or ".join(terms) if varying else values[0]
                self.writer.line(f"return {self._with_sent(joined)}", origin)
            return
        conditions = self.where(predicate, self.has_left or self.needs_guard(value))
        lines = [f"{self.copy_name('result', j)} = {v}" for j, v in enumerate(values)]
        if not self.returns_value:
            # A lane without features may have read before another one has written.
            masked = varying or reads_what_it_changes(self.function)
            if self.padded and masked:
                values = [
                    f"{self.copy_name('inside', j)} and ({v})"
                    for j, v in enumerate(values)
                ]
            parts = [f"({v})" for v in values] if varying else values[:1]
            lines = [f"result = {' or '.join(parts)}"]
        if predicate and self.has_left:
            lines.append("live = False")
            self.running.clear()
        if conditions:
            with self.writer.block(f"if {' and '.join(conditions)}:"):
                for line in lines:
                    self.writer.line(line, origin)
        else:
            for line in lines:
                self.writer.line(line, origin)

    def _finish(self) -> None:
        if self.returns_value:
            results = ", ".join(self.copy_name("result", j) for j in range(self.count))
            self.writer.line(f"return {results}")
        else:
            self.writer.line(f"return {self._with_sent('result')}")

    def _call_rest(self, name: str, live: list[str]) -> None:
        calls = []
        for style in self.styles:
            args = [
                style.names["f"] if r == "f" else r
                for r in self.function.declared.roles
            ]
            args += [
                style.temporaries[t]
                for t in self.temporaries
                if t not in self.context.solved
            ]
            args += [style.names.get(x, x) for x in live]
            calls.append(f"{name}({', '.join(args)})")
        if self.returns_value:
            self._return_rest_values(calls)
            return
        if not self.predicated:
            self.writer.line("result = False")
            for call in calls:
                self.writer.line(f"result |= {call}")
        else:
            for j, call in enumerate(calls):
                tests = [self.live]
                tests += [self.copy_name("inside", j)] if self.padded else []
                with self.writer.block(f"if {' and '.join(tests)}:"):
                    self.writer.line(f"result |= {call}")
        self.writer.line("return result")

    def _return_rest_values(self, calls: list[str]) -> None:
        if not self.predicated:
            self.writer.line(f"return {', '.join(calls)}")
            return
        with self.writer.block(f"if {self.live}:"):
            for j, call in enumerate(calls):
                self.writer.line(f"{self.copy_name('result', j)} = {call}")
        self._finish()

    def _returns_copies(self, node: ast.stmt) -> bool:
        """Whether a return in `node` gives what stands for all copies, or sends."""
        returns = any(isinstance(n, ast.Return) for n in ast.walk(node))
        return returns and bool(self.sent or self.returns_value)

    def needs_guard(self, node: ast.AST) -> bool:
        """Whether lanes without work must stay away from `node`."""
        return self.predicated and needs_guard(node, self.helpers)

    def _open(self) -> int:
        source = self.function.declared.source
        self.writer.line()
        self.writer.line()
        self.writer.line(f"# {source.file}:{source.line}")
        self.writer.line(self.context.decorator)
        place = len(self.writer.lines)
        self.writer.line("def", (source.file, source.line))
        return place

    def _add_areas(self, place: int) -> None:
        """Print the header once the work areas are known; it stays one line."""
        roles = [r for r in self.function.declared.roles if r not in {"f", "i"}]
        parameters = [*roles, *(["lane", "writer"] if self.predicated else [])]
        for name in self.temporaries:
            wide = self.is_wide(name)
            if name in self.context.solved:
                k = range(self.width)
                parameters += [f"{name}_{i}_{f}" for i in k for f in k]
                continue
            parameters += (
                [self.copy_name(name, j) for j in range(self.count)] if wide else [name]
            )
        parameters += [f"work_{n}" for n in range(len(self.areas))]
        parameters += self.matrices
        self.writer.lines[place] = f"def {self.function.name}({', '.join(parameters)}):"
