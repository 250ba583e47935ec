"""Collective functions as loops over features, for one thread that owns many of them (CPU; NFA on CUDA).

The body is cut at the collective calls. What varies and lives across a cut stands in a small array, one element a feature; the
statements between two cuts share one loop, which also takes up the reduction that ends them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace

from featgraph.fold.analyse import Analysed
from featgraph.fold.functions import Context, Printed, print_rest, temporaries_of
from featgraph.fold.lower import has_collective, is_collective
from featgraph.fold.nodes import Access, Atomic, Operate, Whole, assigned_names, names_read
from featgraph.fold.operand import operand_type
from featgraph.fold.printer import Style, loop_header, print_expression, print_returned, print_statements
from featgraph.fold.variance import loop_varies, returns_apart, varies

__all__ = ["print_loops"]

Origin = tuple[str, int]
_UPDATES = {
    "feature_sum": "{t} += {x}",
    "feature_max": "{t} = max({t}, {x})",
    "feature_min": "{t} = min({t}, {x})",
    "any_feature": "{t} |= {x}",
    "all_features": "{t} &= {x}",
}


def print_loops(context: Context, function: Analysed) -> Printed:
    """Print a collective function as loops over features.

    Returns
    -------
    Printed
        Its parameters are ``u, v, e`` (those it has), ``d``, temporaries, ``contribution`` for a gather, ``rows`` (scratch, one row
        an array) and ``flags`` where it keeps integers, then work areas.
    """
    return _Loops(context, function).run()


class _Loops:
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

    def run(self) -> Printed:
        body = list(self.function.body)
        cut = next((i for i, s in enumerate(body) if returns_apart(s, self.varying)), len(body))
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
            self.function, self.function.name, True, self.temporaries, tuple(self.areas), dict(self.rows)
        )

    # -- arrays and names

    def _assign_rows(self) -> None:
        """Give every varying local an element a feature; LLVM keeps those that do not live long in registers."""
        for name in sorted(self.varying - {"f"}):
            kind = "real" if self.function.variables.get(name) == "real" else "int64"
            holder = "rows" if kind == "real" else "flags"
            self.arrays[name] = f"{holder}[{self.rows[kind]}, f]"
            self.rows[kind] += 1

    def style(self) -> Style:
        wide = {
            t: f"{t}[f]" if self._rank(t) == 1 else t for t in self.temporaries
        }
        return replace(
            self.context.style(self.function),
            names=dict(self.arrays),
            temporaries=wide,
            matrices=dict(self.matrices),
        )

    def _rank(self, temporary: str) -> int:
        known = self.context.analysis.temporaries
        base = known.get(temporary) or known[temporary.removesuffix("_source")]
        return len(base.item_shape)

    def _open(self) -> int:
        for text in ("", "", f"# {self.source.file}:{self.source.line}", self.context.decorator):
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

    def _contributions(self) -> list[str]:
        """Return the arrays that a gather leaves its contribution in; argmin and argmax have a source, too."""
        if not self.is_gather:
            return []
        return ["contribution", *(["contribution_source"] if self.style().key else [])]

    def _contribute(self, value: str, origin: Origin | None = None) -> None:
        targets = ", ".join(f"{name}[f]" for name in self._contributions())
        with self.writer.block(f"for f in range({self.width}):"):
            self._line(f"{targets} = {value}", origin)

    def _line(self, text: str, origin: Origin | None = None) -> None:
        self.writer.line(text, origin)

    def _fresh(self, stem: str) -> str:
        self.fresh_count += 1
        return f"{stem}_{'abcdefghijklmnopqrstuvwxyz'[self.fresh_count - 1]}"

    # -- statements

    def _block(self, body: list[ast.stmt]) -> None:
        run: list[ast.stmt] = []
        for node in body:
            if self._is_featurewise(node):
                run.append(node)
                continue
            joins = self._joins(node, run)
            if not joins:
                self._run(run, None)
                run = []
            if isinstance(node, ast.Assign) and is_collective(node.value):
                self._collective(node, run if joins else [])
                run = []
            else:
                self._structured(node)
        self._run(run, None)

    def _is_featurewise(self, node: ast.stmt) -> bool:
        """Whether a statement varies, holds no collective and does not return."""
        if has_collective(node) or any(isinstance(n, ast.Return) for n in ast.walk(node)):
            return False
        if isinstance(node, ast.If) and not varies(node.test, self.varying):
            return False
        if isinstance(node, ast.For | ast.While) and not loop_varies(node, self.varying):
            return False
        return varies(node, self.varying) or any(isinstance(n, Atomic) for n in ast.walk(node))

    def _joins(self, node: ast.stmt, run: list[ast.stmt]) -> bool:
        """Whether a reduction can end the loop of the statements in front of it."""
        return (
            bool(run)
            and isinstance(node, ast.Assign)
            and isinstance(node.value, Operate)
            and node.value.name in _UPDATES
            and node.value.constant("group") is None
        )

    def _run(self, run: list[ast.stmt], last: Callable[[], None] | None) -> None:
        if not run and last is None:
            return
        with self.writer.block(f"for f in range({self.width}):"):
            print_statements(run, self.writer, self.style(), self.file)
            if last is not None:
                last()

    def _structured(self, node: ast.stmt) -> None:
        origin = (self.file, getattr(node, "lineno", 0))
        if isinstance(node, ast.If):
            with self.writer.block(f"if {self._text(node.test)}:", origin):
                self._block(node.body)
            if node.orelse:
                with self.writer.block("else:"):
                    self._block(node.orelse)
        elif isinstance(node, ast.For):
            with self.writer.block(loop_header(node, self.style()), origin):
                self._block(node.body)
        elif isinstance(node, ast.While):
            with self.writer.block(f"while {self._text(node.test)}:", origin):
                self._block(node.body)
        elif isinstance(node, ast.Return):
            self._return(node, origin)
        else:
            print_statements([node], self.writer, self.style(), self.file)

    def _return(self, node: ast.Return, origin: Origin) -> None:
        assert node.value is not None
        text = print_returned(node.value, self.style())
        if self.is_gather:
            self._contribute(text, origin)
            self._line("return")
        elif varies(node.value, self.varying):
            self._line("result = False")
            with self.writer.block(f"for f in range({self.width}):"):
                self._line(f"result |= {text}", origin)
            self._line("return result")
        else:
            self._line(f"return {text}", origin)

    def _call_rest(self, name: str, live: list[str]) -> None:
        args = [*self.function.declared.roles]
        style = self.style()
        args += [style.temporaries[t] for t in self.temporaries]
        args += [style.names.get(x, x) for x in live]
        call = f"{name}({', '.join(args)})"
        if self.is_gather:
            self._contribute(call)
            return
        self._line("result = False")
        with self.writer.block(f"for f in range({self.width}):"):
            self._line(f"result |= {call}")
        self._line("return result")

    def _text(self, node: ast.expr) -> str:
        return print_expression(node, self.style())

    # -- collectives

    def _collective(self, node: ast.Assign, run: list[ast.stmt]) -> None:
        assert isinstance(node.targets[0], ast.Name) and isinstance(node.value, Operate)
        origin = (self.file, node.lineno)
        call, target = node.value, node.targets[0].id
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

    def _identity(self, call: Operate) -> str:
        if call.name in {"any_feature", "all_features"}:
            return str(call.name == "all_features")
        real = operand_type(call.args[0], self.function, self.context.analysis) == "real"
        kind = self.context.real if real else "int64"
        if call.name == "feature_sum":
            return f"{kind}(0)"
        sign = "" if call.name == "feature_min" else "-"
        return f"{kind}({sign}math.inf)" if real else f"int64({sign}{2**62})"

    def _reduction(self, target: str, call: Operate, run: list[ast.stmt], origin: Origin) -> None:
        self._line(f"{target} = {self._identity(call)}", origin)
        update = _UPDATES[call.name].format(t=target, x=self._vector(call.args[0]))
        self._run(run, lambda: self._line(update, origin))

    def _vector(self, node: ast.expr) -> str:
        """Print a per-feature operand; a whole row stands for its element f."""
        if isinstance(node, Whole):
            element = Access(node.name, node.version, [*node.indices, ast.Name("f", ast.Load())])
            node = ast.copy_location(element, node)
        return self._text(node)

    def _segments(self, target: str, call: Operate, origin: Origin) -> None:
        group = call.constant("group")
        if self.width % group:
            raise self.source.error(
                "group= must divide the number of features", call, got=f"group={group}, K={self.width}"
            )
        held = self._fresh("held")
        with self.writer.block(f"for start in range(0, {self.width}, {group}):"):
            self._line(f"{held} = {self._identity(call)}", origin)
            update = _UPDATES[call.name].format(t=held, x=self._vector(call.args[0]))
            with self.writer.block(f"for f in range(start, start + {group}):"):
                self._line(update, origin)
            with self.writer.block(f"for f in range(start, start + {group}):"):
                self._line(f"{self.arrays[target]} = {held}", origin)

    def _argmax(self, target: str, call: Operate, origin: Origin) -> None:
        group = call.constant("group")
        x, top, best = self._vector(call.args[0]), self._fresh("top"), self._fresh("best")
        size = group or self.width
        if self.width % size:
            raise self.source.error("group= must divide the number of features", call, got=f"group={group}")
        with self.writer.block(f"for start in range(0, {self.width}, {size}):"):
            self._line(f"{best} = start")
            self._line("f = start")
            self._line(f"{top} = {x}", origin)
            with self.writer.block(f"for f in range(start + 1, start + {size}):"):
                self._line(f"value = {x}", origin)
                with self.writer.block(f"if value > {top} or ({top} != {top} and value == value):"):
                    self._line(f"{top} = value")
                    self._line(f"{best} = f")
            if group is None:
                self._line(f"{target} = {best}", origin)
            else:
                with self.writer.block(f"for f in range(start, start + {size}):"):
                    self._line(f"{self.arrays[target]} = {best}", origin)

    def _broadcast(self, target: str, call: Operate, origin: Origin) -> None:
        """Only an array can be read at another feature, so other operands are stored in one first."""
        x, index = call.args
        kind = operand_type(x, self.function, self.context.analysis)
        holder = "rows" if kind == "real" else "flags"
        row = self.rows["real" if kind == "real" else "int64"]
        self.rows["real" if kind == "real" else "int64"] += 1
        with self.writer.block(f"for f in range({self.width}):"):
            self._line(f"{holder}[{row}, f] = {self._vector(x)}", origin)
        text = f"{holder}[{row}, {self._text(index)}]"
        if varies(index, self.varying):
            with self.writer.block(f"for f in range({self.width}):"):
                self._line(f"{self.arrays[target]} = {text}", origin)
        else:
            self._line(f"{target} = {text}", origin)

    # -- matrices

    def _element(self, matrix: ast.expr, row: str, column: str) -> str:
        style = self.style()
        if isinstance(matrix, Whole):
            if matrix.name in style.temporaries:
                return f"{style.temporaries[matrix.name]}[{row}, {column}]"
            return f"d.{matrix.name}[{self._text(matrix.indices[0])}, {row}, {column}]"
        if isinstance(matrix, ast.Name) and matrix.id in self.function.matrices:
            return f"{self.matrices[matrix.id]}[{row}, {self.width} + {column}]"
        raise self.source.error(
            "not a matrix",
            matrix,
            expected="d.name[v] of a k x k property or temporary, outer(x, y), inverse(A)",
        )

    def _matvec(self, target: str, call: Operate, origin: Origin) -> None:
        matrix, x = call.args
        transpose = call.option("transpose")
        if isinstance(matrix, Operate) and matrix.name == "outer":
            self._outer_times(target, matrix, x, transpose, origin)
            return
        plain, turned = self._element(matrix, "f", "i"), self._element(matrix, "i", "f")
        row = self.rows["real"]
        self.rows["real"] += 1
        with self.writer.block(f"for f in range({self.width}):"):
            self._line(f"rows[{row}, f] = {self._vector(x)}", origin)
        text = plain
        if isinstance(transpose, ast.Constant):
            text = turned if transpose.value else plain
        elif transpose is not None:
            text = f"({turned} if {self._text(transpose)} else {plain})"
        with self.writer.block(f"for f in range({self.width}):"):
            self._line(f"product = {self.context.real}(0.0)")
            with self.writer.block(f"for i in range({self.width}):"):
                self._line(f"product += {text} * rows[{row}, i]", origin)
            self._line(f"{self.arrays[target]} = product")

    def _outer_times(
        self, target: str, matrix: Operate, x: ast.expr, transpose: ast.expr | None, origin: Origin
    ) -> None:
        a, b = matrix.args
        if transpose is not None and not isinstance(transpose, ast.Constant):
            raise self.source.error("transpose= of an outer product must be a constant", matrix)
        if transpose is not None and transpose.value:
            a, b = b, a
        dot = self._fresh("dot")
        self._line(f"{dot} = {self.context.real}(0.0)")
        with self.writer.block(f"for f in range({self.width}):"):
            self._line(f"{dot} += {self._vector(b)} * {self._vector(x)}", origin)
        with self.writer.block(f"for f in range({self.width}):"):
            self._line(f"{self.arrays[target]} = {self._vector(a)} * {dot}", origin)

    def _fill(self, matrix: ast.expr, columns: int, origin: Origin) -> str:
        work = f"work_{len(self.areas)}"
        self.areas.append(columns)
        with self.writer.block(f"for f in range({self.width}):"):
            with self.writer.block(f"for i in range({self.width}):"):
                self._line(f"{work}[f, i] = {self._element(matrix, 'f', 'i')}", origin)
        return work

    def _solve(self, target: str, call: Operate, origin: Origin) -> None:
        work = self._fill(call.args[0], self.width + 1, origin)
        with self.writer.block(f"for f in range({self.width}):"):
            self._line(f"{work}[f, {self.width}] = {self._vector(call.args[1])}", origin)
        self._linalg("solve_spd" if call.constant("spd") else "solve_general", work, call, origin)
        with self.writer.block(f"for f in range({self.width}):"):
            self._line(f"{self.arrays[target]} = {work}[f, {self.width}]", origin)

    def _inverse(self, target: str, call: Operate, origin: Origin) -> None:
        work = self._fill(call.args[0], 2 * self.width, origin)
        self._linalg("inverse_spd" if call.constant("spd") else "inverse_general", work, call, origin)
        self.matrices[target] = work

    def _linalg(self, name: str, work: str, call: Operate, origin: Origin) -> None:
        given = call.option("diagonal")
        diagonal = f"{self.context.real}(0.0)" if given is None else self._text(given)
        library = "linalg_thread" if self.context.cuda else "linalg"
        self._line(f"{library}.{name}({work}, {self.width}, {diagonal}, 0, 1)", origin)


def _read(body: list[ast.stmt]) -> set[str]:
    return set().union(*(names_read(s) for s in body))


def _assigned(body: list[ast.stmt]) -> set[str]:
    return set().union(*(assigned_names(s) for s in body)) if body else set()
