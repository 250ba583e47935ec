"""Prints collaborative operations as loops over features."""

from __future__ import annotations

import ast
from collections.abc import Callable

from featgraph.fold.analysis.operand_type import operand_type
from featgraph.fold.codegen.functions.looped_names import Origin
from featgraph.fold.codegen.functions.looped_products import LoopProducts
from featgraph.fold.syntax.nodes import Operate, narrowed
from featgraph.fold.syntax.variance import varies

__all__ = ["UPDATES", "LoopOperations"]

UPDATES = {
    "feature_sum": "{t} += {x}",
    "feature_max": "{t} = max({t}, {x})",
    "feature_min": "{t} = min({t}, {x})",
    "any_feature": "{t} |= {x}",
    "all_features": "{t} &= {x}",
}


class LoopOperations(LoopProducts):
    """The operations of one collective function."""

    def _collective(self, node: ast.Assign, run: list[ast.stmt]) -> None:
        origin = (self.file, node.lineno)
        call = narrowed(node.value, Operate)
        target = narrowed(node.targets[0], ast.Name).id
        handlers: dict[str, Callable[[str, Operate, Origin], None]] = {
            "argmax": self._argmax,
            "broadcast": self._broadcast,
            "matvec": self._matvec,
            "solve": self._solve,
            "inverse": self._inverse,
        }
        if call.name in handlers:
            handlers[call.name](target, call, origin)
        elif call.constant("group") is not None:
            self._segments(target, call, origin)
        else:
            self._reduction(target, call, run, origin)

    def _reduction(
        self, target: str, call: Operate, run: list[ast.stmt], origin: Origin
    ) -> None:
        self._line(f"{target} = {self._identity(call)}", origin)
        update = UPDATES[call.name].format(t=target, x=self._text(call.args[0]))
        self._run(run, lambda: self._line(update, origin))

    def _segments(self, target: str, call: Operate, origin: Origin) -> None:
        group = call.constant("group")
        if self.width % group:
            raise self.source.error(
                "group= must divide the number of features",
                call,
                got=f"group={group}, K={self.width}",
            )
        held = self._fresh("held")
        with self.writer.block(f"for start in range(0, {self.width}, {group}):"):
            self._line(f"{held} = {self._identity(call)}", origin)
            update = UPDATES[call.name].format(t=held, x=self._text(call.args[0]))
            with self.writer.block(f"for f in range(start, start + {group}):"):
                self._line(update, origin)
            with self.writer.block(f"for f in range(start, start + {group}):"):
                self._line(f"{self.arrays[target]} = {held}", origin)

    def _argmax(self, target: str, call: Operate, origin: Origin) -> None:
        group = call.constant("group")
        x, top, best = (
            self._text(call.args[0]),
            self._fresh("top"),
            self._fresh("best"),
        )
        size = group or self.width
        if self.width % size:
            raise self.source.error(
                "group= must divide the number of features", call, got=f"group={group}"
            )
        with self.writer.block(f"for start in range(0, {self.width}, {size}):"):
            self._line(f"{best} = start")
            self._line("f = start")
            self._line(f"{top} = {x}", origin)
            with self.writer.block(f"for f in range(start + 1, start + {size}):"):
                self._line(f"value = {x}", origin)
                with self.writer.block(
                    f"if value > {top} or ({top} != {top} and value == value):"
                ):
                    self._line(f"{top} = value")
                    self._line(f"{best} = f")
            if group is None:
                self._line(f"{target} = {best}", origin)
            else:
                with self.writer.block(f"for f in range(start, start + {size}):"):
                    self._line(f"{self.arrays[target]} = {best}", origin)

    def _broadcast(self, target: str, call: Operate, origin: Origin) -> None:
        """Store the operand first: only an array can be read at another feature."""
        x, index = call.args
        kind = operand_type(x, self.function, self.context.analysis)
        holder = "rows" if kind == "real" else "flags"
        row = self.rows["real" if kind == "real" else "int64"]
        self.rows["real" if kind == "real" else "int64"] += 1
        with self.writer.block(f"for f in range({self.width}):"):
            self._line(f"{holder}[{row}, f] = {self._text(x)}", origin)
        text = f"{holder}[{row}, {self._text(index)}]"
        if varies(index, self.varying):
            with self.writer.block(f"for f in range({self.width}):"):
                self._line(f"{self.arrays[target]} = {text}", origin)
        else:
            self._line(f"{target} = {text}", origin)

    def _fill(self, matrix: ast.expr, columns: int, origin: Origin) -> str:
        work = f"work_{len(self.areas)}"
        self.areas.append(columns)
        with (
            self.writer.block(f"for f in range({self.width}):"),
            self.writer.block(f"for i in range({self.width}):"),
        ):
            self._line(f"{work}[f, i] = {self._element(matrix, 'f', 'i')}", origin)
        return work

    def _solve(self, target: str, call: Operate, origin: Origin) -> None:
        work = self._fill(call.args[0], self.width + 1, origin)
        with self.writer.block(f"for f in range({self.width}):"):
            self._line(f"{work}[f, {self.width}] = {self._text(call.args[1])}", origin)
        self._linalg(
            "solve_spd" if call.constant("spd") else "solve_general", work, call, origin
        )
        with self.writer.block(f"for f in range({self.width}):"):
            self._line(f"{self.arrays[target]} = {work}[f, {self.width}]", origin)

    def _inverse(self, target: str, call: Operate, origin: Origin) -> None:
        work = self._fill(call.args[0], 2 * self.width, origin)
        self._linalg(
            "inverse_spd" if call.constant("spd") else "inverse_general",
            work,
            call,
            origin,
        )
        self.matrices[target] = work

    def _linalg(self, name: str, work: str, call: Operate, origin: Origin) -> None:
        given = call.option("diagonal")
        diagonal = f"{self.context.real}(0.0)" if given is None else self._text(given)
        if name == "solve_spd" and not self.context.cuda:
            self._line(f"cholesky.{name}({work}, {self.width}, {diagonal})", origin)
            return
        library = "linalg_thread" if self.context.cuda else "linalg"
        self._line(f"{library}.{name}({work}, {self.width}, {diagonal}, 0, 1)", origin)
