"""Second and fourth pass: normal form, and values that differ between features.

In normal form each collaborative call is a statement: its `Operate` node is the whole
right-hand side of an assignment to a local. So ``return x - fg.feature_sum(x)`` becomes
``total = fg.feature_sum(x)`` and ``return x - total``. Helpers and user operations that
contain such calls are inlined.

`find_varying` runs behind the third pass, which is `types`. A value varies if it
depends on `f`, or was assigned under a condition that does. A collaborative call must
not be under such a condition, nor behind a return under one, since the lanes of a
vertex would diverge.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from typing import Any

from featgraph.fold.operations.products import is_outer
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.syntax.names import lettered
from featgraph.fold.syntax.resolve import Resolved
from featgraph.fold.tree.statements import (
    Access,
    Atomic,
    Helper,
    Operate,
    Whole,
    assigned_names,
    contains,
    copied,
    copy_location,
    every,
    name_of,
    narrowed,
    test_of,
)
from featgraph.program.operations import Collaborative, broadcast
from featgraph.program.source import FunctionSource

__all__ = [
    "find_varying", "has_collective", "is_collective", "loop_varies", "normal_form",
    "returns_apart", "returns_varying", "varies",
]  # fmt: skip


def is_collective(node: ast.AST) -> bool:
    """Return whether `node` is a call in which all lanes take part."""
    return isinstance(node, Operate) and node.is_collective


def has_collective(node: ast.AST) -> bool:
    """Return whether `node` contains a call in which all lanes take part."""
    return any(map(is_collective, every([node])))


def normal_form(
    function: Resolved,
    resolve_called: Callable[[Any], Resolved],
    taken: frozenset[str] = frozenset(),
) -> list[ast.stmt]:
    """Return the body of `function` in normal form.

    Parameters
    ----------
    function : Resolved
        The function; its tree is not changed.
    resolve_called : callable
        Returns the resolved form of a `Collaborative` or of a plain helper function.
    taken : frozenset of str, optional
        Names that new locals must not hide.

    Raises
    ------
    UserFunctionError
        For a collaborative call in a while loop, or in a helper that cannot be inlined.
    """
    lowering = _Lowering(function.source, function.tree, resolve_called, taken)
    return lowering.block([copied(s) for s in function.tree.body])


class _Expressions:
    """Moves collaborative calls out of expressions, to statements in front of them."""

    def __init__(
        self,
        source: FunctionSource,
        tree: ast.FunctionDef,
        resolve_called: Callable[[Any], Resolved],
        taken: frozenset[str],
    ) -> None:
        self.source = source
        self.resolve_called = resolve_called
        self.taken = assigned_names(tree) | {a.arg for a in tree.args.args} | taken
        #: Sources of the functions that are being inlined, outermost first.
        self.inlining: list[FunctionSource] = []
        #: Helper -> whether it makes collaborative calls, so that it must be inlined.
        self.helpers_inlined: dict[Any, bool] = {}
        #: Local -> number of statements that bind it.
        self.bindings = Counter(
            n.id
            for n in every([tree])
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        )
        #: Locals made by `_bind` that may still be replaced by the user's target.
        self.bound_here: set[str] = set()

    def fresh(self, stem: str) -> str:
        """Return a local name not in use: ``stem``, ``stem_b``, ``stem_c``, ..."""
        name = next(name for name in lettered(stem) if name not in self.taken)
        self.taken.add(name)
        return name

    def statement(self, node: ast.stmt, out: list[ast.stmt]) -> None:
        """Append a statement in normal form."""
        raise NotImplementedError

    def value(self, node: ast.expr, out: list[ast.stmt]) -> ast.expr:
        """Return `node` without collaborative calls; their statements go to `out`."""
        if not self._collective(node):
            return node
        if isinstance(node, Operate):
            return self._operation(node, out)
        if isinstance(node, Helper):
            return self._inline(
                node, self.resolve_called(node.function), node.args, {}, out
            )
        if isinstance(node, ast.IfExp):
            return self._conditional(node, out)
        if isinstance(node, ast.BoolOp):
            return self._short_circuit(node, out)
        if isinstance(node, ast.Subscript):
            return self._matrix_element(node, out)
        for name, field in ast.iter_fields(node):
            if isinstance(field, ast.expr):
                setattr(node, name, self.value(field, out))
            elif isinstance(field, list):
                setattr(
                    node,
                    name,
                    [
                        self.value(x, out) if isinstance(x, ast.expr) else x
                        for x in field
                    ],
                )
        return node

    def _collective(self, node: ast.AST) -> bool:
        return any(
            is_collective(inner)
            or (isinstance(inner, Helper) and self._helper_collective(inner))
            for inner in every([node])
        )

    def _helper_collective(self, node: Helper) -> bool:
        known = self.helpers_inlined.get(node.function)
        if known is None:
            self.helpers_inlined[node.function] = False  # ends a recursion
            known = self._collective(self.resolve_called(node.function).tree)
            self.helpers_inlined[node.function] = known
        return known

    def _operation(self, node: Operate, out: list[ast.stmt]) -> ast.expr:
        """Bind a collaborative call to a local; inline an operation of the user's."""
        if isinstance(node.operation, Collaborative):
            callee = self.resolve_called(node.operation)
            given: dict[str, ast.expr | None] = {
                name: node.option(name) for name in callee.source.parameters
            }
            return self._inline(node, callee, node.args, given, out)
        node.args = [self.value(argument, out) for argument in node.args]
        node.extra = [self.value(option, out) for option in node.extra]
        if not node.is_collective:
            return node
        primitive = primitive_of(node)
        return node if primitive.is_pattern else self._bind(primitive.stem, node, out)

    def _bind(self, stem: str, value: ast.expr, out: list[ast.stmt]) -> ast.Name:
        name = self.fresh(stem)
        self.bound_here.add(name)
        out.append(self._set(name, value))
        return copy_location(ast.Name(name, ast.Load()), value)

    def _conditional(self, node: ast.IfExp, out: list[ast.stmt]) -> ast.expr:
        """Turn ``a if c else b`` with a collaborative call inside into an ``if``.

        `_check` raises later if the condition varies.
        """
        test = self.value(node.test, out)
        name = self.fresh("chosen")
        branches = []
        for side in (node.body, node.orelse):
            inner: list[ast.stmt] = []
            value = self.value(side, inner)
            inner.append(self._set(name, value))
            branches.append(inner)
        out.append(ast.copy_location(ast.If(test, *branches), node))
        return copy_location(ast.Name(name, ast.Load()), node)

    def _short_circuit(self, node: ast.BoolOp, out: list[ast.stmt]) -> ast.expr:
        """Turn ``a and b`` into ``chosen = a`` and ``if chosen: chosen = b``."""
        name = self.fresh("chosen")
        out.append(self._set(name, self.value(node.values[0], out)))
        for operand in node.values[1:]:
            inner: list[ast.stmt] = []
            value = self.value(operand, inner)
            inner.append(self._set(name, value))
            test: ast.expr = copy_location(ast.Name(name, ast.Load()), node)
            if isinstance(node.op, ast.Or):
                test = copy_location(ast.UnaryOp(ast.Not(), test), node)
            out.append(ast.copy_location(ast.If(test, inner, []), node))
        return copy_location(ast.Name(name, ast.Load()), node)

    def _set(self, name: str, value: ast.expr) -> ast.stmt:
        target = copy_location(ast.Name(name, ast.Store()), value)
        return ast.copy_location(ast.Assign([target], value), value)

    def _matrix_element(self, node: ast.Subscript, out: list[ast.stmt]) -> ast.expr:
        """Return an element of a matrix that an operation makes.

        ``outer(x, y)[i, f]`` becomes x at feature i times y at feature f. The matrix of
        ``inverse(A)[i, f]`` becomes a local, which stays indexed.
        """
        elements = narrowed(node.slice, ast.Tuple).elts
        matrix = node.value
        if is_outer(matrix):
            i, f = elements
            x, y = narrowed(matrix, Operate).args
            left = self._element(x, i, out)
            right = self._element(y, f, out)
            return copy_location(ast.BinOp(left, ast.Mult(), right), node)
        if isinstance(matrix, Operate):
            node.value = self.value(matrix, out)
        return node

    def _element(
        self, vector: ast.expr, index: ast.expr, out: list[ast.stmt]
    ) -> ast.expr:
        """Return a vector at feature `index`: another access, or a broadcast."""
        if isinstance(vector, Access) and name_of(vector.indices[-1]) == "f":
            indices = [copied(i) for i in (*vector.indices[:-1], index)]
            return copy_location(Access(vector.name, vector.version, indices), vector)
        vector = self.value(copied(vector), out)
        if name_of(index) == "f":
            return vector
        call = copy_location(Operate(broadcast, [vector, copied(index)]), vector)
        return self._bind("shared", call, out)

    def _inline(
        self,
        call: ast.expr,
        callee: Resolved,
        args: list[ast.expr],
        options: dict[str, ast.expr | None],
        out: list[ast.stmt],
    ) -> ast.expr:
        """Inline a call: its assignments go to `out`, the returned value is returned.

        `options` has the parameters of a user's operation that are optional.
        """
        body = [copied(s) for s in callee.tree.body]
        *assignments, last = body
        straight = all(
            isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)
            for s in assignments
        )
        if not straight or not isinstance(last, ast.Return):
            raise self.source.error(
                f"{callee.source.name} makes collaborative calls and cannot be inlined",
                call,
                got=f"control flow at {callee.source.where()}",
                expected="assignments and one final return",
            )
        if callee.source in self.inlining:
            raise self.source.error(
                f"{callee.source.name} calls itself and cannot be inlined", call
            )
        if len(args) + len(options) < len(callee.parameters) or len(args) > len(
            callee.parameters
        ):
            raise self.source.error(
                f"wrong number of arguments for {callee.source.name}",
                call,
                got=len(args),
                expected=len(callee.parameters),
            )
        stem = callee.source.name
        assigned = {name for s in assignments for name in assigned_names(s)}
        values: dict[str, ast.expr | None] = dict(options)
        for parameter, argument in zip(callee.parameters, args, strict=False):
            value = self.value(argument, out)
            # A plain argument may be evaluated at each use of the parameter.
            plain = isinstance(value, ast.Name | ast.Constant | Whole | Access)
            if not plain or parameter in assigned:
                value = self._bind(f"{stem}_{parameter}", value, out)
                # A local with two bindings never is the target of a call itself.
                self.bindings[value.id] = 2 if parameter in assigned else 1
            values[parameter] = value
        for name in sorted(assigned - set(values)):
            fresh = self.fresh(f"{stem}_{name}")
            self.bindings[fresh] = 1
            values[name] = ast.Name(fresh, ast.Load())
        substitution = _Substitution(values, call)
        self.inlining.append(callee.source)
        for statement in assignments:
            self.statement(substitution.visit(statement), out)
        result = self.value(substitution.visit(narrowed(last.value, ast.expr)), out)
        self.inlining.pop()
        return result


class _Lowering(_Expressions):
    """Moves collaborative calls out of statements."""

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for statement in body:
            self.statement(statement, out)
        return out

    def statement(self, node: ast.stmt, out: list[ast.stmt]) -> None:
        if isinstance(node, ast.While) and self._collective(node):
            raise self.source.error(
                "a collaborative call in a while loop",
                node,
                fix="use for over range with a bound",
            )
        if isinstance(node, ast.If):
            node.test = self.value(node.test, out)
            node.body = self.block(node.body)
            node.orelse = self.block(node.orelse)
        elif isinstance(node, ast.For):
            call = narrowed(node.iter, ast.Call)
            call.args = [self.value(a, out) for a in call.args]
            node.body = self.block(node.body)
        elif isinstance(node, ast.Assign):
            node.value = self._assigned(node, out)
            if isinstance(node.targets[0], Access):
                target = node.targets[0]
                target.indices = [self.value(index, out) for index in target.indices]
        elif isinstance(node, ast.Return | ast.Expr):
            node.value = self.value(narrowed(node.value, ast.expr), out)
        elif isinstance(node, ast.While):
            node.test = self.value(node.test, out)
            node.body = self.block(node.body)
        out.append(node)

    def _assigned(self, node: ast.Assign, out: list[ast.stmt]) -> ast.expr:
        """Return the right-hand side of an assignment.

        If it is just a collaborative call, and the target is bound nowhere else, the
        call is assigned to the target, without a further local.
        """
        value = self.value(node.value, out)
        target, last = node.targets[0], out[-1] if out else None
        if (
            isinstance(target, ast.Name)
            and isinstance(value, ast.Name)
            and self.bindings[target.id] == 1
            and isinstance(last, ast.Assign)
            and is_collective(last.value)
            and isinstance(last.targets[0], ast.Name)
            and last.targets[0].id == value.id
            and value.id in self.bound_here
        ):
            self.bound_here.discard(value.id)
            self.taken.discard(value.id)
            out.pop()
            return last.value
        return value


class _Substitution(ast.NodeTransformer):
    """Replaces parameters by values and locals by new names in an inlined function."""

    def __init__(self, values: dict[str, ast.expr | None], call: ast.expr) -> None:
        self.values = values
        self.call = call

    def visit(self, node: ast.AST) -> Any:
        if hasattr(node, "lineno"):
            ast.copy_location(node, self.call)  # errors point at the user's line
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self.values.get(node.id)
        if value is None:
            return node
        if isinstance(node.ctx, ast.Store):
            name = narrowed(value, ast.Name).id
            return copy_location(ast.Name(name, ast.Store()), self.call)
        return copied(value)

    def visit_Operate(self, node: Operate) -> ast.expr:
        """Substitute in a call; options that are absent parameters are dropped."""
        left = {}
        extra: list[ast.expr] = []
        for name in node.options:
            option = node.option(name)
            absent = (
                isinstance(option, ast.Name)
                and option.id in self.values
                and self.values[option.id] is None
            )
            if option is not None and not absent:
                left[name] = len(extra)
                extra.append(self.visit(option))
        node.options, node.extra = left, extra
        node.args = [self.visit(argument) for argument in node.args]
        return node


def find_varying(source: FunctionSource, body: list[ast.stmt]) -> frozenset[str]:
    """Return the locals whose values differ between features; `f` is one of them.

    Raises
    ------
    UserFunctionError
        For a collaborative call under a varying condition, or behind a return under
        one.
    """
    names: set[str] = {"f"}
    while True:  # loops carry values backwards
        before = len(names)
        _mark(body, names, under_varying=False)
        if len(names) == before:
            break
    _check(source, body, names)
    return frozenset(names)


def varies(node: ast.AST, names: set[str] | frozenset[str]) -> bool:
    """Return whether `node` differs between features, if just the locals `names` do."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, Atomic):
        return True  # features run their atomics one by one, with different old values
    if isinstance(node, Operate) and node.is_collective:
        return primitive_of(node).varies(node, lambda operand: varies(operand, names))
    return any(varies(child, names) for child in ast.iter_child_nodes(node))


def loop_varies(node: ast.For | ast.While, names: set[str] | frozenset[str]) -> bool:
    """Return whether features may leave a loop or iteration at different times."""
    return varies(test_of(node), names) or any(
        isinstance(inner, ast.If)
        and varies(inner.test, names)
        and contains(inner, ast.Break | ast.Continue)
        for inner in every([node])
    )


def _mark(body: list[ast.stmt], names: set[str], under_varying: bool) -> None:
    """Add to `names` the locals that statements assign varying values."""
    for node in body:
        if isinstance(node, ast.Assign):
            target = node.targets[0]
            if isinstance(target, ast.Name) and (
                under_varying or varies(node.value, names)
            ):
                names.add(target.id)
        elif isinstance(node, ast.If):
            inside = under_varying or varies(node.test, names)
            _mark(node.body, names, inside)
            _mark(node.orelse, names, inside)
        elif isinstance(node, ast.While):
            inside = under_varying or loop_varies(node, names)
            _mark(node.body, names, inside)
        elif isinstance(node, ast.For):
            inside = under_varying or loop_varies(node, names)
            if inside:
                names |= assigned_names(node.target)
            _mark(node.body, names, inside)


def _check(source: FunctionSource, body: list[ast.stmt], names: set[str]) -> None:
    """Raise for collaborative calls that not all lanes of a vertex reach."""
    parted: ast.stmt | None = None
    for node in body:
        if not has_collective(node):
            if returns_apart(node, names):
                parted = node
            continue
        if parted is not None:
            raise source.error(
                "a collaborative call behind a return that only some features take",
                node,
                got=f"return at line {parted.lineno}",
                fix=(
                    "compute the call first, or make the condition the same for all "
                    "features (any_feature, all_features)"
                ),
            )
        if isinstance(node, ast.If | ast.For):
            if varies(test_of(node), names):
                raise source.error(
                    "a collaborative call under a condition that is not uniform",
                    node,
                    got="a condition that depends on f",
                    expected=(
                        "a condition that is the same for all features of the vertex"
                    ),
                    fix=(
                        "wrap the condition in any_feature or all_features, or move "
                        "the call out"
                    ),
                )
            leaves = ast.Break | ast.Continue | ast.Return
            if isinstance(node, ast.For) and contains(node, leaves):
                raise source.error(
                    "break, continue and return cannot be used in a loop with "
                    "collaborative calls",
                    node,
                )
            _check(source, node.body, names)
            _check(source, node.orelse, names)


def returns_apart(node: ast.stmt, names: set[str] | frozenset[str]) -> bool:
    """Return whether `node` has a return that only some features take."""
    if isinstance(node, ast.If | ast.While | ast.For):
        if contains(node, ast.Return) and varies(test_of(node), names):
            return True
        children = [*node.body, *node.orelse]
        return any(returns_apart(child, names) for child in children)
    return False


def returns_varying(body: list[ast.stmt], varying: frozenset[str]) -> bool:
    """Return whether the value of a function differs between features."""
    returns = [n for n in every(body) if isinstance(n, ast.Return)]
    if any(r.value is not None and varies(r.value, varying) for r in returns):
        return True
    return any(returns_apart(node, varying) for node in body)
