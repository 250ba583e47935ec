"""Collective functions as named copies: ``p`` of feature j is ``p_j``.

One thread that owns all features (CPU; NFA) has a copy of each and control flow stays
as the user wrote it. On CUDA with features over lanes, a lane has the copies of its own
features; every lane of the warp takes part in every shuffle, so control flow around
collectives becomes predicates.
"""

from __future__ import annotations

import ast
import itertools

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.codegen.text.expressions import (
    Style,
    loop_header,
    print_expression,
    print_statements,
)
from featgraph.fold.functions.featurewise import Context, Printed, print_rest
from featgraph.fold.functions.predication import zero_text
from featgraph.fold.functions.store_sinking import (
    all_wait,
    reads_what_it_changes,
    sink_stores,
)
from featgraph.fold.functions.unrolled_calls import print_call
from featgraph.fold.functions.unrolled_names import CopyNames
from featgraph.fold.functions.vector_access import can_store
from featgraph.fold.syntax.nodes import (
    Access,
    Atomic,
    Operate,
    assigned_names,
    names_read,
    narrowed,
)
from featgraph.fold.syntax.normal_form import has_collective, is_collective
from featgraph.fold.syntax.variance import loop_varies, returns_apart, varies

__all__ = ["print_copies"]


def print_copies(context: Context, function: Analysed) -> Printed:
    """Print a collective function with named copies of what varies.

    Returns
    -------
    Printed
        Its parameters are, in this order: ``u, v, e`` (those it has), ``d``; on CUDA
        ``lane`` and ``writer``; temporaries, wide ones once per copy; work areas.
    """
    return _Copies(context, function).run()


class _Copies(CopyNames):
    """Prints one function: its header, then its statements once per copy."""

    # -- the function

    def run(self) -> Printed:
        body = list(self.function.body)
        cut = next(
            (i for i, s in enumerate(body) if returns_apart(s, self.varying)), len(body)
        )
        head, rest = body[:cut], body[cut:]
        live = sorted(_names_read_in(rest) & _assigned_in(head)) if rest else []
        rest_name = f"{self.function.name}_rest"
        if rest:
            style = self.styles[0]
            print_rest(self.context, self.function, rest_name, rest, live, style)
        place = self._open()
        self.writer.depth += 1
        self._prologue()
        self._load_rows(head)
        self._start_sent()
        # Lanes must find the same verdict.
        split = self.predicated and reads_what_it_changes(self.function)
        waits = False
        if self.context.cuda and not (self.context.checked or rest or split):
            restored = [n for n in self.context.restored if n not in self.sent]
            head = sink_stores(head, restored, self.varying)
            waits = not self.sent and all_wait(head)
        self._block(head, "")
        if rest:
            self._call_rest(rest_name, live)
        elif self.predicated:
            self._finish()
        self.writer.depth -= 1
        self._add_areas(place)
        return Printed(
            self.function,
            self.function.name,
            True,
            self.temporaries,
            tuple(self.areas),
            matrices=self.matrices,
            waits=waits,
        )

    def _prologue(self) -> None:
        if not self.predicated:
            return
        for j in range(self.count):
            feature = (
                f"lane * {self.count}{f' + {j}' if j else ''}"
                if self.count > 1
                else "lane"
            )
            self.writer.line(f"{self.feature(j)} = {feature}")
            if self.padded:
                inside = self.copy_name("inside", j)
                self.writer.line(f"{inside} = {self.feature(j)} < {self.width}")
                # Whole pieces stay in the row.
                last = self.width - self.piece + j % self.piece
                self.writer.line(f"{self.feature(j)} = min({self.feature(j)}, {last})")
        if self.returns_value:
            for j in range(self.count):
                self.writer.line(f"{self.copy_name('result', j)} = {self._nothing()}")
        else:
            self.writer.line("result = False")
        if self.has_left:
            self.writer.line("live = writer")

    # -- statements

    def _block(self, body: list[ast.stmt], predicate: str) -> None:
        run: list[ast.stmt] = []
        for node in body:
            if self._is_local(node):
                run.append(node)
                continue
            self._locals(run, predicate)
            run = []
            self._statement(node, predicate)
        self._locals(run, predicate)

    def _is_local(self, node: ast.stmt) -> bool:
        """Whether a statement makes no collaborative call and does not return."""
        return not (
            has_collective(node)
            or isinstance(node, ast.Return)
            or (isinstance(node, ast.If) and self._leaves(node))
        )

    def _statement(self, node: ast.stmt, predicate: str) -> None:
        origin = (self.file, getattr(node, "lineno", 0))
        if isinstance(node, ast.Assign) and is_collective(node.value):
            target, call = narrowed(node.targets[0], ast.Name), node.value
            print_call(self, target.id, narrowed(call, Operate), predicate, origin)
        elif isinstance(node, ast.Return):
            self._return(node, predicate, origin)
        elif isinstance(node, ast.If):
            self._branch(node, predicate, origin)
        else:
            self._loop(narrowed(node, ast.For), predicate, origin)

    def _leaves(self, node: ast.stmt) -> bool:
        return self.predicated and any(
            isinstance(n, ast.Return) for n in ast.walk(node)
        )

    def _locals(self, run: list[ast.stmt], predicate: str) -> None:
        """Print statements without collectives; those under one condition share it."""
        for condition, group in itertools.groupby(
            run, lambda n: self._condition(n, predicate)
        ):
            nodes = list(group)
            if condition:
                self._declare(nodes)
                with self.writer.block(f"if {condition}:"):
                    self._each(nodes)
            else:
                self._each(nodes)

    def _declare(self, nodes: list[ast.stmt]) -> None:
        """Give the locals that are bound under a condition a value everywhere."""
        if not self.predicated:
            return
        for name in sorted(_assigned_in(nodes) - self.bound):
            zero = zero_text(
                self.function.variables.get(name, "int64"), self.context.real
            )
            for j in range(self.count if name in self.varying else 1):
                self.writer.line(
                    f"{self.copy_name(name, j) if name in self.varying else name}"
                    f" = {zero}"
                )
            self.bound.add(name)

    def _each(self, nodes: list[ast.stmt]) -> None:
        for node in nodes:
            self._copies(node, (self.file, getattr(node, "lineno", 0)))
            self.bound |= assigned_names(node)

    def _copies(self, node: ast.stmt, origin: tuple[str, int]) -> None:
        """Print a statement once if nothing in it varies, else once per copy."""
        if self.predicated and any(isinstance(n, ast.Return) for n in ast.walk(node)):
            raise self.function.declared.source.error(
                "a return inside a loop, in a function with collaborative calls",
                node,
                fix="set a local and break",
            )
        if isinstance(node, ast.Assign) and self._is_sent(node):
            self._send(node, origin)
            return
        test = getattr(node, "test", None)
        loop = isinstance(node, ast.For | ast.While)
        uniform = not varies(node, self.varying) and not any(
            isinstance(n, Atomic) for n in ast.walk(node)
        )
        if uniform and not self._returns_copies(node):
            self._print([node], self.styles[0])
        elif isinstance(node, ast.If) and not varies(test, self.varying):  # type: ignore[arg-type]
            self._branch_together(node, origin)
        elif loop and not loop_varies(node, self.varying):  # type: ignore[arg-type]
            header = (
                loop_header(node, self.styles[0])
                if isinstance(node, ast.For)
                else f"while {print_expression(node.test, self.styles[0])}:"  # type: ignore[attr-defined]
            )
            with self.writer.block(header, origin):
                self._block(node.body, "")  # type: ignore[attr-defined]
        else:
            old_value = isinstance(node, ast.Assign) and any(
                isinstance(n, Atomic) for n in ast.walk(node.value)
            )
            if can_store(self.context.analysis, node, self.styles[0], self.piece):
                self._store_row(narrowed(node, ast.Assign), origin)
                return
            for j, style in enumerate(self.styles):
                if self.padded and old_value:
                    with self.writer.block(f"if {self.copy_name('inside', j)}:"):
                        self._print([node], style)
                else:
                    self._print([node], style)

    def _print(self, nodes: list[ast.stmt], style: Style) -> None:
        print_statements(nodes, self.writer, style, self.file)

    def _branch_together(self, node: ast.If, origin: tuple[str, int]) -> None:
        """Print a branch that all lanes of a vertex take, or none."""
        test = print_expression(node.test, self.styles[0])
        with self.writer.block(f"if {test}:", origin):
            self._block(node.body, "")
        if node.orelse:
            with self.writer.block("else:"):
                self._block(node.orelse, "")

    def _branch(self, node: ast.If, predicate: str, origin: tuple[str, int]) -> None:
        if not self.predicated:
            self._branch_together(node, origin)
            return
        self._declare([node])
        name, test = self.fresh("taken"), print_expression(node.test, self.styles[0])
        guarded = self.has_left or self.needs_guard(node.test)
        runs = guarded or predicate in self.running
        outer = " and ".join(self.where(predicate, guarded))
        self.writer.line(
            f"{name} = {f'{outer} and ({test})' if outer else test}", origin
        )
        if node.orelse:
            other = self.fresh("taken")
            self.writer.line(
                f"{other} = {f'{outer} and ' if outer else ''}not {name}", origin
            )
        branches = [(name, node.body)]
        if node.orelse:
            branches.append((other, node.orelse))
        for taken, body in branches:  # what returns in one leaves the other's lanes
            if runs:
                self.running.add(taken)
            self._block(body, taken)

    def _loop(self, node: ast.For, predicate: str, origin: tuple[str, int]) -> None:
        """Print a loop that holds collectives; all groups go round equally often."""
        name = narrowed(node.target, ast.Name).id
        bounds = narrowed(node.iter, ast.Call).args
        if not self.predicated or all(_same_for_all(a) for a in bounds):
            with self.writer.block(loop_header(node, self.styles[0]), origin):
                self._block(node.body, predicate)
            return
        texts = [print_expression(a, self.styles[0]) for a in bounds]
        if len(texts) > 2:
            raise self.function.declared.source.error(
                "a step needs the same bounds for all vertices in a loop with "
                "collaborative calls",
                node,
            )
        inside, rounds = self.fresh("inside"), self.fresh("rounds")
        first, last = self.fresh("first"), self.fresh("last")
        start, stop = ("0", texts[0]) if len(texts) == 1 else texts
        outer = " and ".join(self.where(predicate, True))
        # Lanes for which the function does not run have no iterations of their own.
        self.writer.line(f"{first} = int64({start}) if {outer} else int64(0)", origin)
        self.writer.line(f"{last} = int64({stop}) if {outer} else int64(0)", origin)
        self._declare(node.body)
        self.writer.line(f"{rounds} = warp.group_max({last} - {first}, 32)", origin)
        step = self.fresh("step")
        with self.writer.block(f"for {step} in range({rounds}):", origin):
            self.writer.line(f"{name} = {first} + {step}")
            self.writer.line(f"{inside} = {name} < {last}")
            self.running.add(inside)
            outside, self.in_rounds = self.in_rounds, True
            self._block(node.body, inside)
            self.in_rounds = outside


def _same_for_all(node: ast.expr) -> bool:
    """Whether an expression of constants and scalars is the same for all vertices."""
    return not any(isinstance(n, ast.Name | Access | Operate) for n in ast.walk(node))


def _names_read_in(body: list[ast.stmt]) -> set[str]:
    """Return the local names that statements read."""
    return set().union(*(names_read(s) for s in body))


def _assigned_in(body: list[ast.stmt]) -> set[str]:
    """Return the local names that statements bind."""
    return set().union(*(assigned_names(s) for s in body)) if body else set()
