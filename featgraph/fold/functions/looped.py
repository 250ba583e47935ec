"""Collective functions as loops over features, for one thread that owns many of them.

The body is cut at the collective calls. What varies and lives across a cut stands in a
small array, one element a feature; the statements between two cuts share one loop,
which also takes up the reduction that ends them.
"""

from __future__ import annotations

import ast

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.codegen.text.expressions import (
    loop_header,
    print_returned,
    print_statements,
)
from featgraph.fold.functions.featurewise import Context, Printed, print_rest
from featgraph.fold.functions.looped_calls import print_call
from featgraph.fold.functions.looped_names import LoopNames, Origin
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.syntax.nodes import (
    Atomic,
    Operate,
    assigned_names,
    names_read,
    narrowed,
)
from featgraph.fold.syntax.normal_form import has_collective, is_collective
from featgraph.fold.syntax.variance import loop_varies, returns_apart, varies

__all__ = ["print_loops"]


def print_loops(context: Context, function: Analysed) -> Printed:
    """Print a collective function as loops over features.

    Returns
    -------
    Printed
        Its parameters are ``u, v, e`` (those it has), ``d``, temporaries,
        ``contribution`` for a gather, ``rows`` (scratch, one row an array) and
        ``flags`` where it keeps integers, then work areas.
    """
    return _Loops(context, function).run()


class _Loops(LoopNames):
    """Prints one function: its header, its statements, what it returns."""

    def run(self) -> Printed:
        body = list(self.function.body)
        cut = next(
            (i for i, s in enumerate(body) if returns_apart(s, self.varying)), len(body)
        )
        head, rest = body[:cut], body[cut:]
        live = sorted(_read(rest) & _assigned(head)) if rest else []
        rest_name = f"{self.function.name}_rest"
        if rest:
            print_rest(self.context, self.function, rest_name, rest, live, self.style())
        self._assign_rows()
        place = self._open()
        self.writer.depth += 1
        self._block(head)
        if rest:
            self._call_rest(rest_name, live)
        self.writer.depth -= 1
        self._header(place)
        return Printed(
            self.function,
            self.function.name,
            True,
            self.temporaries,
            tuple(self.areas),
            dict(self.rows),
        )

    # -- rows and header

    def _assign_rows(self) -> None:
        """Give each varying local a row, one element a feature."""
        for name in sorted(self.varying - {"f"}):
            kind = "real" if self.function.variables.get(name) == "real" else "int64"
            holder = "rows" if kind == "real" else "flags"
            self.arrays[name] = f"{holder}[{self.rows[kind]}, f]"
            self.rows[kind] += 1

    def _open(self) -> int:
        for text in (
            "",
            "",
            f"# {self.source.file}:{self.source.line}",
            self.context.decorator,
        ):
            self.writer.line(text)
        place = len(self.writer.lines)
        self.writer.line("def", (self.source.file, self.source.line))
        return place

    def _header(self, place: int) -> None:
        roles = [r for r in self.function.declared.roles if r not in {"f", "i"}]
        parameters = [*roles, *self.temporaries]
        parameters += self._contributions()
        parameters += ["rows"] if self.rows["real"] else []
        parameters += ["flags"] if self.rows["int64"] else []
        parameters += [f"work_{n}" for n in range(len(self.areas))]
        self.writer.lines[place] = f"def {self.function.name}({', '.join(parameters)}):"

    # -- statements

    def _block(self, body: list[ast.stmt]) -> None:
        run: list[ast.stmt] = []
        for node in body:
            if self._is_featurewise(node):
                run.append(node)
                continue
            joins = self._joins(node, run)
            if not joins:
                self.over_features(run, None)
                run = []
            if isinstance(node, ast.Assign) and is_collective(node.value):
                print_call(self, node, run if joins else [])
                run = []
            else:
                self._structured(node)
        self.over_features(run, None)

    def _is_featurewise(self, node: ast.stmt) -> bool:
        """Whether a statement varies, holds no collective and does not return."""
        if has_collective(node) or any(
            isinstance(n, ast.Return) for n in ast.walk(node)
        ):
            return False
        if isinstance(node, ast.If) and not varies(node.test, self.varying):
            return False
        if isinstance(node, ast.For | ast.While) and not loop_varies(
            node, self.varying
        ):
            return False
        return varies(node, self.varying) or any(
            isinstance(n, Atomic) for n in ast.walk(node)
        )

    def _joins(self, node: ast.stmt, run: list[ast.stmt]) -> bool:
        """Whether an operation can end the loop of the statements in front of it."""
        return (
            bool(run)
            and isinstance(node, ast.Assign)
            and isinstance(node.value, Operate)
            and node.value.is_collective
            and primitive_of(node.value).ends_loop(node.value)
        )

    def _structured(self, node: ast.stmt) -> None:
        origin = (self.file, getattr(node, "lineno", 0))
        if isinstance(node, ast.If):
            with self.writer.block(f"if {self.text(node.test)}:", origin):
                self._block(node.body)
            if node.orelse:
                with self.writer.block("else:"):
                    self._block(node.orelse)
        elif isinstance(node, ast.For):
            with self.writer.block(loop_header(node, self.style()), origin):
                self._block(node.body)
        elif isinstance(node, ast.While):
            with self.writer.block(f"while {self.text(node.test)}:", origin):
                self._block(node.body)
        elif isinstance(node, ast.Return):
            self._return(node, origin)
        else:
            print_statements([node], self.writer, self.style(), self.file)

    def _return(self, node: ast.Return, origin: Origin) -> None:
        value = narrowed(node.value, ast.expr)
        text = print_returned(value, self.style())
        if self.is_gather:
            self._contribute(text, origin)
            self.line("return")
        elif varies(value, self.varying):
            self.line("result = False")
            with self.writer.block(f"for f in range({self.width}):"):
                self.line(f"result |= {text}", origin)
            self.line("return result")
        else:
            self.line(f"return {text}", origin)

    def _call_rest(self, name: str, live: list[str]) -> None:
        args = [*self.function.declared.roles]
        style = self.style()
        args += [style.temporaries[t] for t in self.temporaries]
        args += [style.names.get(x, x) for x in live]
        call = f"{name}({', '.join(args)})"
        if self.is_gather:
            self._contribute(call)
            return
        self.line("result = False")
        with self.writer.block(f"for f in range({self.width}):"):
            self.line(f"result |= {call}")
        self.line("return result")


def _read(body: list[ast.stmt]) -> set[str]:
    return set().union(*(names_read(s) for s in body))


def _assigned(body: list[ast.stmt]) -> set[str]:
    return set().union(*(assigned_names(s) for s in body)) if body else set()
