"""Turn control flow around collective operations into predicates.

All lanes of a warp must take part in a shuffle. So lanes whose vertex is not due, or
whose function has returned, execute the function to its end, without side effects:
stores are masked, operands of collaborative calls are the identity, and expressions
that idle lanes must not evaluate (`needs_guard`) stand under a test.

`_Predication` rewrites control flow, `_Stores` masks stores and atomics, and
`_LateStores` moves some stores of exclusive functions to the end.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence

from featgraph.fold.operations.table import primitive_of
from featgraph.fold.passes.bodies.facts import BodyFacts
from featgraph.fold.passes.bodies.nodes import (
    AnyFeature,
    Collective,
    Define,
    GoOn,
    Masked,
)
from featgraph.fold.passes.bodies.stores import reads_what_it_changes
from featgraph.fold.syntax.normal_form import has_collective, loop_varies, varies
from featgraph.fold.tree.statements import (
    Access,
    Atomic,
    Body,
    Cast,
    Identity,
    Operate,
    Rewriting,
    assigned_names,
    code,
    contains,
    expression,
    narrowed,
)

__all__ = ["predicated"]


def predicated(facts: BodyFacts, node: Define) -> Define:
    """Return a function that all lanes execute to its end."""
    starts = code("result = False")
    if facts.returns_value:
        node.varying |= {"result"}
        starts = code("result = NOTHING", NOTHING=facts.returned(Identity()))
    if facts.leaves_early:
        # The argument `writer` is False in lanes whose call has no effect.
        starts += code("live = writer")
    if facts.padded:
        node.varying |= {"inside"}
    late = _LateStores(facts, node)
    given = late.over(node.body) if facts.function.kind.exclusive else node.body
    body = _Predication(facts, node).block(given, "")
    body = starts + late.starts + _Stores(facts).over(body)
    node.body = body + late.stores() + _finish(facts, node)
    return node


def _placed(body: Body, node: ast.stmt) -> Body:
    """Give statements the source line of `node`."""
    for one in body:
        ast.copy_location(one, node)
    return body


def _finish(facts: BodyFacts, node: Define) -> Body:
    """Return the end of a function, which returns the results of lanes."""
    if facts.returns_value:
        return code("return (*result,)")
    last = node.body[-1]
    value = last.value if isinstance(last, ast.Return) else None
    if not isinstance(value, ast.Tuple):
        return code("return result")
    _, *entries = value.elts
    return [ast.Return(ast.Tuple([ast.Name("result", ast.Load()), *entries]))]


class _Predication:
    """Rewrite a function, keeping the predicate of each statement."""

    def __init__(self, facts: BodyFacts, node: Define) -> None:
        self.facts, self.varying = facts, node.varying
        self.live = facts.live
        #: Locals that have a value on all lanes.
        self.bound: set[str] = set()
        #: Predicates that hold only where the function still runs.
        self.running: set[str] = set()
        #: Whether the statement is in a loop whose rounds not all groups need.
        self.in_rounds = False

    def where(self, predicate: str, guarded: bool) -> list[str]:
        """Return the tests of a predicate; if `guarded`, also that a lane is live."""
        tests = [predicate] if predicate else []
        return tests + ([self.live] * (guarded and predicate not in self.running))

    def block(self, body: Sequence[ast.stmt], predicate: str) -> Body:
        """Return statements executed under a predicate."""
        out: Body = []
        run: Body = []
        for node in body:
            if _is_local(node):
                run.append(node)
                continue
            out += self._locals(run, predicate)
            run = []
            out += self._together(node, predicate)
        return out + self._locals(run, predicate)

    def _together(self, node: ast.stmt, predicate: str) -> Body:
        """Return a statement that all lanes execute."""
        if isinstance(node, ast.Assign):
            primitive = primitive_of(narrowed(node.value, Operate))
            runs = predicate in self.running
            is_masked = self.in_rounds and bool(predicate) and not primitive.is_matrix
            return _placed([Collective(node, predicate, runs, is_masked)], node)
        if isinstance(node, ast.Return):
            return self._return(node, predicate)
        if isinstance(node, GoOn):
            return self._go_on(node)
        if isinstance(node, ast.If):
            return self._branch(node, predicate)
        return self._loop(narrowed(node, ast.For), predicate)

    # -- statements of single lanes

    def _locals(self, run: Body, predicate: str) -> Body:
        """Return statements of single lanes, with one branch for equal conditions."""

        def tests(node: ast.stmt) -> list[str]:
            return self.where(predicate, self.facts.needs_guard(node))

        out: Body = []
        for names, group in itertools.groupby(run, tests):
            nodes = list(group)
            if not names:
                out += self._each(nodes)
                continue
            out += self._declared(nodes)
            branch = ast.If(_all(names), self._each(nodes), [])
            out += [branch]
        return out

    def _declared(self, nodes: Sequence[ast.stmt]) -> Body:
        """Initialize local variables that are bound under a condition."""
        assigned = set().union(*(assigned_names(s) for s in nodes))
        out: Body = []
        for name in sorted(assigned - self.bound):
            type_ = self.facts.function.variables.get(name, "int64")
            zero: ast.expr = ast.Constant(False)
            if type_ != "bool":
                zero = Cast(type_, ast.Constant(0))
            out += code(f"{name} = ZERO", ZERO=zero)
            self.bound.add(name)
        return out

    def _each(self, nodes: Body) -> Body:
        out: Body = []
        for node in nodes:
            out += self._local(node)
            self.bound |= assigned_names(node)
        return out

    def _local(self, node: ast.stmt) -> Body:
        """Return a statement without collaborative calls, for a lane that executes it.

        Uniform branches and loops stay; the statements in them are rewritten.
        """
        if contains(node, ast.Return):
            raise self.facts.function.declared.source.error(
                "a return inside a loop, in a function with collaborative calls",
                node,
                fix="set a local and break",
            )
        if not (varies(node, self.varying) or contains(node, Atomic)):
            return [node]
        if isinstance(node, ast.If) and not varies(node.test, self.varying):
            node.body = self.block(node.body, "")
            node.orelse = self.block(node.orelse, "")
            return [node]
        if isinstance(node, ast.For | ast.While) and not loop_varies(
            node, self.varying
        ):
            node.body = self.block(node.body, "")
            return [node]
        takes_old = isinstance(node, ast.Assign) and contains(node.value, Atomic)
        if self.facts.padded and takes_old:
            return [ast.If(ast.Name("inside", ast.Load()), [node], [])]
        return [node]

    # -- control flow

    def _branch(self, node: ast.If, predicate: str) -> Body:
        """Return both branches, each with its own predicate."""
        fresh = self.facts.fresh
        fresh.begin()
        out = self._declared([node])
        taken = fresh("taken")
        guarded = self.facts.leaves_early or self.facts.needs_guard(node.test)
        runs = guarded or predicate in self.running
        outer = self.where(predicate, guarded)
        out += _placed(_bound(taken, _all(outer, node.test)), node)
        branches = [(taken, node.body)]
        if node.orelse:
            other = fresh("taken")
            out += _placed(_bound(other, _all(outer, expression(f"not {taken}"))), node)
            branches.append((other, node.orelse))
        for name, body in branches:  # a return in one does not affect the other's lanes
            if runs:
                self.running.add(name)
            out += self.block(body, name)
        return out

    def _loop(self, node: ast.For, predicate: str) -> Body:
        """Return a loop with collectives; all groups run equally many iterations."""
        bounds = narrowed(node.iter, ast.Call).args
        if all(map(_same_for_all, bounds)):
            node.body = self.block(node.body, predicate)
            return [node]
        if len(bounds) > 2:
            raise self.facts.function.declared.source.error(
                "a step needs the same bounds for all vertices in a loop with "
                "collaborative calls",
                node,
            )
        fresh = self.facts.fresh
        fresh.begin()
        inside, rounds = fresh("inside"), fresh("rounds")
        first, last = fresh("first"), fresh("last")
        start, stop = [ast.Constant(0), *bounds] if len(bounds) == 1 else bounds
        runs = _all(self.where(predicate, True))
        # Lanes for which the function does not run have no iterations of their own.
        form = "int64(BOUND) if RUNS else int64(0)"
        out = _bound(first, expression(form, BOUND=start, RUNS=runs))
        out += _bound(last, expression(form, BOUND=stop, RUNS=runs))
        out += self._declared(node.body)
        # Shuffles in the body need the whole warp: all groups run as many rounds as the
        # longest loop has iterations.
        out += code(f"{rounds} = warp.group_max({last} - {first}, 32)")
        step, name = fresh("step"), narrowed(node.target, ast.Name).id
        body = code(f"{name} = {first} + {step}\n{inside} = {name} < {last}")
        self.running.add(inside)
        outside, self.in_rounds = self.in_rounds, True
        body = body + self.block(node.body, inside)
        self.in_rounds = outside
        out += code(f"for {step} in range({rounds}):\n    BODY", BODY=body)
        return _placed(out, node)

    def _return(self, node: ast.Return, predicate: str) -> Body:
        """Set the result of lanes, and clear their predicate."""
        value = narrowed(node.value, ast.expr)
        early = self.facts.leaves_early
        conditions = self.where(predicate, early or self.facts.needs_guard(value))
        if not self.facts.returns_value:
            verdict = value.elts[0] if isinstance(value, ast.Tuple) else value
            # A lane without features may read an entry before another lane writes it,
            # so its verdict must not count.
            apart = reads_what_it_changes(self.facts.function)
            masked = apart or varies(verdict, self.varying)
            value = AnyFeature(verdict, masked and self.facts.padded)
        lines = _bound("result", value)
        if predicate and early:
            lines += code("live = False")
            # Some lanes have returned: no predicate implies any more that one runs.
            self.running.clear()
        _placed(lines, node)
        if not conditions:
            return lines
        return [ast.If(_all(conditions), lines, [])]

    def _go_on(self, node: GoOn) -> Body:
        """Return the calls of the split-off rest, by lanes that still run."""
        if self.facts.returns_value:
            found = ast.If(_all([self.live]), _bound("result", node.call), [])
            return [found]
        tests = _tests(self.facts)
        return [Masked(tests, code("result |= CALL", CALL=node.call))]


class _LateStores(Rewriting):
    """Move stores to entries without a feature behind all reads of them.

    All lanes of an edge read such an entry, but not at the same time: a store of one
    lane must not precede the load of another (exclusive functions).
    """

    def __init__(self, facts: BodyFacts, node: Define) -> None:
        self.facts, self.define = facts, node
        #: Statements that initialize the variables below.
        self.starts: Body = []
        #: Target of a store, and the variables of its value and of its condition.
        self.kept: list[tuple[ast.expr, str, str]] = []
        #: Whether the statement is in a branch that differs between features.
        self.varies = False

    def visit_If(self, node: ast.If) -> ast.If:
        """Note whether the branch differs between features."""
        outside = self.varies
        self.varies = outside or varies(node.test, self.define.varying)
        node.body, node.orelse = self.over(node.body), self.over(node.orelse)
        self.varies = outside
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | Body:
        """Bind the value to store, and whether to store it, to variables."""
        [target] = node.targets
        if not isinstance(target, Access) or varies(target, self.define.varying):
            return node
        fresh, signature = self.facts.fresh, self.facts.analysis.signature
        fresh.begin()
        value, stores = fresh("stored"), fresh("stores")
        self.kept.append((target, value, stores))
        if self.varies or varies(node.value, self.define.varying):
            self.define.varying |= {value, stores}
        zero = Cast(signature[target.name].dtype, ast.Constant(0))
        self.starts += [*_bound(value, zero), *_bound(stores, ast.Constant(False))]
        kept = Cast(signature[target.name].dtype, node.value)
        live = ast.Name(self.facts.live, ast.Load())
        return _placed([*_bound(value, kept), *_bound(stores, live)], node)

    def stores(self) -> Body:
        """Return the stores of these values, behind a synchronization of the lanes."""
        out: Body = code("warp.sync()") if self.kept else []
        for target, value, stores in self.kept:
            name = ast.Name(value, ast.Load())
            one = ast.copy_location(ast.Assign([target], name), target)
            out.append(Masked([ast.Name(stores, ast.Load())], [one]))
        return out


class _Stores(Rewriting):
    """Mask side effects on memory."""

    def __init__(self, facts: BodyFacts) -> None:
        self.facts = facts

    def _masked(self, node: ast.stmt) -> Masked:
        return ast.copy_location(Masked(_tests(self.facts), [node]), node)

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        """Restrict a store to existing features, and to lanes that still run."""
        return self._masked(node) if isinstance(node.targets[0], Access) else node

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        """Restrict an atomic to existing features, and to lanes that still run."""
        return self._masked(node)


def _tests(facts: BodyFacts) -> list[ast.expr]:
    """Return the tests under which a feature of a lane may change memory."""
    names = [facts.live, *(["inside"] if facts.padded else [])]
    return [ast.Name(name, ast.Load()) for name in names]


def _all(names: Sequence[str], *more: ast.expr) -> ast.expr:
    """Return the conjunction of tests."""
    tests = [*(ast.Name(name, ast.Load()) for name in names), *more]
    return tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)


def _bound(name: str, value: ast.expr) -> Body:
    return [ast.Assign([ast.Name(name, ast.Store())], value)]


def _is_local(node: ast.stmt) -> bool:
    """Return whether a statement has neither collective calls nor returns."""
    leaves = isinstance(node, ast.If) and contains(node, ast.Return)
    return not (has_collective(node) or leaves or isinstance(node, ast.Return | GoOn))


def _same_for_all(node: ast.expr) -> bool:
    """Return whether an expression has only constants and scalars."""
    return not contains(node, ast.Name | Access | Operate)
