"""Unroll features into variables: ``p`` becomes ``p_j`` for feature j of a lane.

A thread that owns all features (CPU, or one thread a vertex on CUDA) has one variable
for each feature and keeps the control flow of the user. Where lanes share features, a
lane has variables for its own features, and `predication` has replaced control flow by
predicates. Collaborative operations reduce over these variables.

`Copies` rewrites statements and expressions; `_UnrolledCall` is the context through
which operations add theirs, and chooses how they read matrices.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import cast

from featgraph.fold.analysis.gathers import is_real_matrix
from featgraph.fold.operations.primitive import Column
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.passes.bodies.facts import BodyFacts
from featgraph.fold.passes.bodies.forms import Call, Form, InForm, diverges
from featgraph.fold.passes.bodies.memory import STAGED_REGISTERS, Staged, has_pieces
from featgraph.fold.passes.bodies.nodes import (
    AnyFeature,
    Array,
    Collective,
    Define,
    GoOn,
    LoadRows,
    Masked,
    Row,
)
from featgraph.fold.passes.bodies.stores import can_store
from featgraph.fold.schedules.mapping import last_feature, stands_for
from featgraph.fold.schedules.table import SCHEDULES
from featgraph.fold.syntax.normal_form import is_collective, varies
from featgraph.fold.tree.statements import (
    Access,
    Atomic,
    Body,
    Operate,
    Whole,
    code,
    contains,
    copied,
    expression,
    is_same,
    narrowed,
    placed,
)

__all__ = ["Copies", "unrolled"]


def unrolled(facts: BodyFacts, node: Define) -> Define:
    """Write varying names and statements once for each feature of a lane."""
    copies = Copies(facts, node.varying)
    body = copies.body(node.body)
    node.body = _features(copies) + body
    node.areas = tuple(copies.areas)
    given: list[str] = []
    for name in facts.temporaries:
        if name in facts.context.solved:
            k = range(facts.width)
            given += [f"{name}_{i}_{f}" for i in k for f in k]
        else:
            given += copies.names(name) if facts.is_wide(name) else [name]
    lanes = ["lane", "writer"] if facts.predicated else []
    matrices = [n for s in facts.staged.values() for n in s.names]
    node.more = (*lanes, *given, *copies.area_names, *matrices)
    return node


def _features(copies: Copies) -> Body:
    """Return the statements that number the features of a lane, with masks."""
    facts, out = copies.facts, list[str]()
    for j in range(facts.count if facts.predicated else 0):
        name, more = copies.name("f", j), f" + {j}" if j else ""
        lane = f"lane * {facts.count}{more}" if facts.count > 1 else "lane"
        out.append(f"{name} = {lane}")
        if facts.padded:
            out.append(f"{copies.name('inside', j)} = {name} < {facts.width}")
            # Lanes beyond the row repeat its last load.
            last = last_feature(facts.width, facts.piece, j)
            out.append(f"{name} = min({name}, {last})")
    return code("\n".join(out))


class Copies(Form):
    """The unrolled form: a copy of each varying name and statement for each feature."""

    def __init__(self, facts: BodyFacts, varying: frozenset[str]) -> None:
        super().__init__(facts, varying)
        self.rows: dict[str, Row] = {}

    # -- names and expressions

    def name(self, name: str, j: int) -> str:
        """Return the name of copy j of a varying name."""
        return name if self.facts.count == 1 else f"{name}_{j}"

    def names(self, name: str) -> list[str]:
        """Return the names of all copies."""
        return [self.name(name, j) for j in range(self.facts.count)]

    def feature(self, j: int) -> ast.expr:
        """Return the feature of copy j."""
        if self.facts.predicated:
            return ast.Name(self.name("f", j), ast.Load())
        return ast.Constant(j)

    def value(self, node: ast.expr, j: int = 0) -> ast.expr:
        """Return an expression for the feature of copy j."""
        return cast("ast.expr", _Copied(self, j).visit(copied(node)))

    def values(self, node: ast.expr) -> list[ast.expr]:
        """Return an expression for each feature of a lane."""
        return [self.value(node, j) for j in range(self.facts.count)]

    # -- statements

    def body(self, body: Sequence[ast.stmt]) -> Body:
        """Return statements; varying ones once for each copy."""
        return [new for node in body for new in self._statement(node)]

    def _statement(self, node: ast.stmt) -> Body:
        """Return the copies of one statement, by its kind."""
        if isinstance(node, ast.Assign) and is_collective(node.value):
            return unrolled_call(self, Collective(node), node)
        if isinstance(node, Collective):
            return unrolled_call(self, node, node)
        if isinstance(node, LoadRows):
            return self._loads(node)
        if isinstance(node, ast.Return):
            return placed(self._return(narrowed(node.value, ast.expr)), node)
        if isinstance(node, GoOn):
            return self._go_on(node)
        if isinstance(node, ast.If | ast.For | ast.While) and not diverges(
            node, self.varying
        ):
            return [self.together(node)]
        tests = node.tests if isinstance(node, Masked) else []
        one = node.body[0] if isinstance(node, Masked) else node
        if can_store(self.facts, one):
            return self._row_store(narrowed(one, ast.Assign), tests)
        return self._each(node)

    def _each(self, node: ast.stmt) -> Body:
        """Return a statement once if it is uniform, else once for each copy."""
        if isinstance(node, ast.Assign) and isinstance(node.value, AnyFeature):
            node.value = self._any(node.value.value, node.value.is_masked)
            return [node]
        one = node.body[0] if isinstance(node, Masked) else node
        is_copied = varies(one, self.varying) or contains(one, Atomic)
        count = self.facts.count if is_copied else 1
        return [_Copied(self, j).visit(copied(node)) for j in range(count)]

    def _return(self, value: ast.expr) -> Body:
        """Return the values of all features, or their common verdict."""
        entries: list[ast.expr] = []
        # An edge function returns forwarded entries behind its verdict.
        if isinstance(value, ast.Tuple) and contains(value, ast.Starred):
            entries = [e for x in value.elts[1:] for e in self._all(x)]
            value = value.elts[0]
        if isinstance(value, ast.Starred):
            values = self._all(value)
        elif self.facts.returns_value and not self.facts.predicated:
            values = self.values(value)
        else:
            values = [self._any(value, False)]
        values += entries
        one = values[0] if len(values) == 1 else ast.Tuple(values, ast.Load())
        return [ast.Return(one)]

    def _all(self, node: ast.expr) -> list[ast.expr]:
        """Return all copies of ``*x``."""
        return self.values(narrowed(node, ast.Starred).value)

    def _any(self, value: ast.expr, is_masked: bool) -> ast.expr:
        """Return whether a condition holds for any feature of a lane."""
        count = self.facts.count if varies(value, self.varying) else 1
        values: list[ast.expr] = []
        for j in range(count):
            one = self.value(value, j)
            if is_masked:
                inside = ast.Name(self.name("inside", j), ast.Load())
                one = ast.BoolOp(ast.And(), [inside, one])
            values.append(one)
        if not self.facts.predicated:
            values = [part for one in _different(values) for part in _either(one)]
        return values[0] if len(values) == 1 else ast.BoolOp(ast.Or(), values)

    def _go_on(self, node: GoOn) -> Body:
        """Return the calls of the split-off rest, one for each feature."""
        calls = self.values(node.call)
        if self.facts.returns_value:
            one = calls[0] if len(calls) == 1 else ast.Tuple(calls, ast.Load())
            return [ast.Return(one)]
        out = code("result = False")
        for call in calls:
            out += code("result |= CALL", CALL=call)
        return out + code("return result")

    # -- rows

    def _loads(self, node: LoadRows) -> Body:
        """Return a load for each piece of the rows."""
        facts, out = self.facts, list[ast.stmt]()
        self.rows = {row.name: row for row in node.rows}
        for first in range(0, facts.count, facts.piece):
            for row in node.rows:
                name = row.piece_name(first, facts.mapping)
                place = f"{row.key[0]}, {row.index}, COLUMN, {facts.mapping.stride}"
                out += code(
                    f"{name} = warp.load_row({place}, {facts.piece})",
                    COLUMN=self.feature(first),
                )
        return out

    def _row_store(self, node: ast.Assign, tests: list[ast.expr]) -> Body:
        """Return an assignment to a row, a store for each piece."""
        facts, target = self.facts, narrowed(node.targets[0], Access)
        out: Body = []
        for first in range(0, facts.count, facts.piece):
            pieces = range(first, first + facts.piece)
            # The last store may extend into the padding of a row, which is not read.
            values = [self.value(node.value, min(j, facts.count - 1)) for j in pieces]
            store = code(
                f"warp.store_row(ARRAY, ENTITY, COLUMN, {facts.mapping.stride}, "
                f"{facts.piece}, VALUES)",
                ARRAY=Array(target.name, target.version),
                ENTITY=target.indices[0],
                COLUMN=self.feature(first),
                VALUES=ast.Tuple(values, ast.Load()),
            )
            masks = [self.value(test, first) for test in tests]
            store = placed(store, node)
            out += [Masked(masks, store)] if masks else store
        return out


class _Copied(InForm):
    """Rewrite a statement or an expression for the feature of one copy."""

    def __init__(self, copies: Copies, j: int) -> None:
        super().__init__(copies)
        self.copies, self.j = copies, j

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Name the copy."""
        if node.id == "f":
            return self.copies.feature(self.j)
        if node.id in self.copies.varying:
            node.id = self.copies.name(node.id, self.j)
        return node

    def visit_Access(self, node: Access) -> ast.AST:
        """Return an argument, or a loaded entry of a row, in place of an access."""
        if node.row:
            return self._of_row(self.copies.rows[node.row])
        if self.copies.is_argument(node):
            return ast.Name(self.copies.name(node.name, self.j), ast.Load())
        return self.generic_visit(node)

    def _of_row(self, row: Row) -> ast.expr:
        """Return the loaded entry of a row; copies past the row get its last entry."""
        facts, j = self.copies.facts, self.j
        own = row.copy(j, facts.mapping)
        other = stands_for(facts.width, facts.piece, j) if facts.padded else None
        if other is not None and not row.register:
            inside = self.copies.name("inside", j)
            own = f"warp.select({inside}, {own}, {row.copy(other, facts.mapping)})"
        return expression(own)


def _different(values: list[ast.expr]) -> list[ast.expr]:
    """Return the distinct values, in order."""
    found: list[ast.expr] = []
    for value in values:
        if not any(is_same(value, other) for other in found):
            found.append(value)
    return found


def _either(node: ast.expr) -> list[ast.expr]:
    """Return the operands of a disjunction."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        return node.values
    return [node]


def unrolled_call(copies: Copies, node: Collective, at: ast.stmt) -> Body:
    """Return the statements of ``target = operation(...)``, of the line of `at`."""
    assigned = narrowed(node.call, ast.Assign)
    target = narrowed(assigned.targets[0], ast.Name).id
    operate = narrowed(assigned.value, Operate)
    copies.facts.fresh.begin()
    call = _UnrolledCall(copies, node, at)
    if not node.is_masked:
        primitive_of(operate).unroll(operate, target, call)
        return call.body
    # All groups of a warp run as many iterations as the longest loop. A group whose own
    # loop has ended keeps the result of its last iteration.
    found = call.fresh("found")
    primitive_of(operate).unroll(operate, found, call)
    with call.block(f"if {node.predicate}:"):
        names, new = [target], [found]
        if target in copies.varying:
            names, new = copies.names(target), copies.names(found)
        for name, value in zip(names, new, strict=True):
            call.line(f"{name} = {value}")
    return call.body


class _UnrolledCall(Call):
    """Context of an operation: see `operations.primitive.Unrolled`.

    Matrices are in global memory, shared memory or registers. A product reads a matrix
    column by column, one entry for each feature of a lane.
    """

    def __init__(self, copies: Copies, call: Collective, node: ast.stmt) -> None:
        super().__init__(copies, node)
        facts = copies.facts
        self.copies, self.call = copies, call
        self.count, self.lanes = facts.count, facts.mapping.lanes_per_edge
        self.predicated, self.padded = facts.predicated, facts.padded
        schedule = SCHEDULES[facts.mapping.schedule]
        self.in_registers = facts.width <= schedule.most_held
        self.tile = facts.mapping.tile
        self.threads = facts.mapping.lanes_per_vertex if self.tile else 0
        self.names, self.feature = copies.names, copies.feature

    def inside(self, j: int) -> str:
        return self.copies.name("inside", j)

    def operands(
        self, node: ast.expr, identity: ast.expr, masked: bool = True
    ) -> list[ast.expr]:
        guarded = self.facts.needs_guard(node)
        predicate = self.call.predicate if masked and self.predicated else ""
        runs = bool(predicate) and self.call.runs
        tests = [predicate] if predicate else []
        tests += [self.facts.live] * (guarded and not runs)
        values = []
        for j in range(self.count):
            value = self.value(node, j)
            every = tests + ([self.inside(j)] if self.padded else [])
            if every:
                form = f"X if {' and '.join(every)} else NOTHING"
                value = expression(form, X=value, NOTHING=identity)
            values.append(value)
        return values

    def is_guarded(self, node: ast.expr) -> bool:
        return self.facts.needs_guard(node)

    def is_at_hand(self, matrix: ast.expr) -> bool:
        in_registers = bool(self.facts.staged) or self.takes_rows(matrix)
        return in_registers and self.width > 1

    def in_whole_tiles(self, matrix: ast.expr) -> str:
        """Return the array of a matrix made of whole tiles; else "".

        Matrices that a block sums are padded to tiles; those of the whole graph are
        not.
        """
        facts = self.facts
        if not isinstance(matrix, Whole) or facts.needs_guard(matrix):
            return ""
        if matrix.name in facts.temporaries:
            return matrix.name
        is_whole = not matrix.indices and facts.width % facts.mapping.tile == 0
        if not is_whole or not is_real_matrix(matrix, facts.function, facts.analysis):
            return ""
        return f"d.{matrix.name}"

    def column(self, node: Operate) -> Column:
        """Return the entries A[f, i] for column i, one for each copy.

        For a transposed matrix, these are A[i, f]. Loads that all columns share are
        added here, in front of the product.
        """
        matrix, transpose = node.args[0], node.option("transpose")
        turned: bool | str
        if isinstance(transpose, ast.Constant) or transpose is None:
            turned = transpose is not None and bool(transpose.value)
        else:
            # Choose the indices, not the element: one load and no branch.
            turned = self.facts.fresh("turned")
            value = self.copies.value(transpose)
            if self.facts.needs_guard(transpose):
                value = expression(f"{self.facts.live} and X", X=value)
            self.line(f"{turned} = X", X=value)
        if isinstance(matrix, Whole) and not matrix.indices:
            staged = self.facts.staged.get(matrix.name)
            if staged is not None and staged.in_registers:
                return lambda i: self._column_of_registers(
                    staged.names, turned, _number(i)
                )
            if staged is not None:
                first = self._first_row(staged, turned)
                return lambda i: self._staged_column(staged, first, i)
            if turned is True and self._has_pieces(matrix):
                return lambda i: self._pieces(Array(matrix.name), i, self.facts.piece)

        if self.takes_rows(matrix):
            rows = self._load_rows(narrowed(matrix, Whole))
            return lambda i: self._column_of_registers(rows, turned, _number(i))

        def element(j: int, i: ast.expr) -> ast.expr:
            f = self.copies.feature(j)
            if isinstance(turned, bool):
                row, column = (i, f) if turned else (f, i)
            else:
                row = expression(f"I if {turned} else F", I=i, F=f)
                column = expression(f"F if {turned} else I", I=i, F=f)
            return self.element(matrix, row, column, j)

        return lambda i: [element(j, i) for j in range(self.facts.count)]

    def takes_rows(self, matrix: ast.expr) -> bool:
        """Whether a lane loads a small matrix of a vertex or edge into registers.

        A thread that has all features does, with one vector load for each row.
        """
        facts, context = self.facts, self.facts.context
        if not isinstance(matrix, Whole) or not matrix.indices:
            return False
        if context.checked is not None or facts.predicated:
            return False
        if not facts.count == facts.width == facts.piece > 1:
            return False
        is_stored = matrix.name not in {*context.solved, *facts.temporaries}
        type_ = facts.analysis.signature.get(matrix.name)
        is_real = type_ is not None and type_.dtype in {"real", context.real}
        return is_stored and is_real and facts.width**2 <= STAGED_REGISTERS

    def _has_pieces(self, matrix: Whole) -> bool:
        """Whether rows of a matrix of the whole graph can be loaded in pieces.

        These rows are not padded, so K must be a multiple of the piece.
        """
        facts = self.facts
        if facts.context.checked is not None or facts.needs_guard(matrix):
            return False
        is_real = is_real_matrix(matrix, facts.function, facts.analysis)
        is_stored = matrix.name in facts.analysis.signature
        divides = facts.count > 1 and has_pieces(facts.mapping, facts.width)
        return is_real and is_stored and divides

    def _load_rows(self, matrix: Whole) -> tuple[str, ...]:
        """Add a load for each row of a matrix; return the names of the rows."""
        k, names = self.facts.width, []
        entity = self.copies.value(matrix.indices[0])
        for i in range(k):
            names.append(self.facts.fresh("row"))
            self.line(
                f"{names[i]} = warp.load_row(ARRAY, ENTITY, {i * k}, {k * k}, {k})",
                ARRAY=Array(matrix.name),
                ENTITY=entity,
            )
        return tuple(names)

    def _column_of_registers(
        self, rows: tuple[str, ...], turned: bool | str, i: int
    ) -> list[ast.expr]:
        """Return column i of a matrix whose rows are in registers."""
        found = []
        for f in range(self.facts.count):
            plain, other = f"{rows[f]}[{i}]", f"{rows[i]}[{f}]"
            if isinstance(turned, bool):
                found.append(expression(other if turned else plain))
            else:
                found.append(expression(f"{other} if {turned} else {plain}"))
        return found

    def _first_row(self, staged: Staged, turned: bool | str) -> str:
        """Bind the offset of the staged copy to multiply by; return its name.

        `warp.anew` hides the constant from the compiler, which would otherwise keep the
        whole matrix in registers: belief propagation with 8 x 8 entries took 132
        registers in place of 104.
        """
        first = self.facts.fresh("first")
        if isinstance(turned, bool):
            place = str(staged.turns.index(turned) * staged.width)
        else:
            plain, other = (
                staged.turns.index(way) * staged.width for way in (False, True)
            )
            place = f"{other} if {turned} else {plain}"
        self.line(f"{first} = warp.anew(uint32({place}))")
        return first

    def _staged_column(self, staged: Staged, first: str, i: ast.expr) -> list[ast.expr]:
        """Return column i of a matrix in shared memory, in neighboring entries."""
        [name] = staged.names
        row = expression(f"{first} + I", I=i)
        if staged.piece > 1:
            return self._pieces(ast.Name(name, ast.Load()), row, staged.piece)
        features = [self.copies.feature(j) for j in range(self.facts.count)]
        return [expression(f"{name}[ROW, F]", ROW=row, F=f) for f in features]

    def _pieces(self, array: ast.expr, row: ast.expr, size: int) -> list[ast.expr]:
        """Add the loads of a lane's features of a row; return the values."""
        found = []
        for j in range(0, self.facts.count, size):
            piece = self.facts.fresh("column")
            self.line(
                f"{piece} = warp.load_row(ARRAY, ROW, F, {self.facts.width}, {size})",
                ARRAY=array,
                ROW=row,
                F=self.copies.feature(j),
            )
            found += [expression(f"{piece}[{n}]") for n in range(size)]
        return found


def _number(node: ast.expr) -> int:
    """Return the number of a column that is a constant."""
    return int(ast.literal_eval(node))
