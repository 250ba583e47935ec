"""Products of a K x K matrix and a vector with one entry a feature; outer products.

A product ``fg.matvec(A, x)`` combines K terms for each feature f, in a semiring.
``plus_times`` adds up A[f, i] * x[i] over i. In the other two a term is A[f, i] + x[i]:
``max_plus`` takes the largest term, and ``log_plus`` the logarithm of the sum of
exp(term), computed as largest + log(sum of exp(term - largest)) so that nothing
overflows.

`find_outer_product` finds the pattern ``x[i] * y[f] * c`` in matrix gathers, written
element by element or as ``fg.outer(x, y)[i, f]``. The factor that depends on i is then
computed once a row, the factor that depends on f once a column, and the rest once an
edge.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import reduce

from featgraph.base.dataclass import dataclass
from featgraph.fold.operations.primitive import (
    Column,
    Looped,
    Primitive,
    Types,
    Unrolled,
    VectorFacts,
    Vectorized,
    in_registers,
    named,
)
from featgraph.fold.tree.statements import (
    Cast,
    Operate,
    copied,
    copy_location,
    expression,
    is_same,
    names_read,
    narrowed,
)
from featgraph.program.operations import matvec, outer
from featgraph.program.signature import Real

__all__ = ["PRIMITIVES", "OuterProduct", "find_outer_product", "is_outer"]

#: ``for_each(body)`` adds a loop over i. Its body is added by ``body(column, x)`` for
#: column i of the matrix, an element for each copy, and entry i of the vector.
Terms = Callable[[Callable[[list[ast.expr], ast.expr], None]], None]


def finite(top: str, real: Real) -> str:
    """Return the text of the shift: the largest term, or 0 if that is not finite.

    A shift of -inf would make nan of -inf - -inf. With 0, terms that are all -inf sum
    to 0, of which the logarithm is -inf.
    """
    return f"{top} if abs({top}) < {real}(math.inf) else {real}(0.0)"


def logarithm(top: str, total: str, real: Real) -> str:
    """Return the text of log(sum of exp(term)), from `total`: that of exp(term - top).

    One term is `top` itself, so `total` is at least exp(0) = 1. A compiler that
    reorders the additions of huge terms may break that: `total` is then taken as 1.
    """
    one = f"{real}(1.0)"
    is_off = f"{total} < {one} or {total} == {real}(math.inf)"
    return f"{top} + math.log({one} if {is_off} else {total})"


# -- named copies


def add_terms(
    semiring: str, names: list[str], for_each: Terms, copies: Unrolled
) -> None:
    """Combine the terms of all i into the variables `names`, one for each copy.

    ``log_plus`` loops twice, for the largest term and for the sum. For ``plus_times``
    the variables must be zero.

    Parameters
    ----------
    for_each : callable
        Adds a loop over i: see `Terms`.
    """
    real, line = copies.real, copies.line
    if semiring == "plus_times":

        def add_product(entries: list[ast.expr], x: ast.expr) -> None:
            for name, entry in zip(names, entries, strict=True):
                line(f"{name} += A * X", A=entry, X=x)

        for_each(add_product)
        return
    is_max = semiring == "max_plus"
    tops = names if is_max else [copies.fresh("top") for _ in names]

    def raise_top(entries: list[ast.expr], x: ast.expr) -> None:
        for top, entry in zip(tops, entries, strict=True):
            line(f"{top} = max({top}, A + X)", A=entry, X=x)

    for top in tops:
        line(f"{top} = {real}(-math.inf)")
    for_each(raise_top)
    if is_max:
        return
    shifts = [copies.fresh("shift") for _ in names]

    def add_raised(entries: list[ast.expr], x: ast.expr) -> None:
        for name, entry, shift in zip(names, entries, shifts, strict=True):
            line(f"{name} += math.exp(A + X - {shift})", A=entry, X=x)

    for name, top, shift in zip(names, tops, shifts, strict=True):
        line(f"{shift} = {finite(top, real)}")
        line(f"{name} = {real}(0.0)")
    for_each(add_raised)
    for name, top in zip(names, tops, strict=True):
        line(f"{name} = {logarithm(top, name, real)}")


def add_each_term(
    semiring: str,
    names: list[str],
    column: Column,
    entries: list[ast.expr],
    copies: Unrolled,
) -> None:
    """Combine a few terms into `names`; each term is computed once, into a variable."""
    real, line = copies.real, copies.line
    terms = [copies.fresh("term") for _ in entries]
    top, shift = copies.fresh("top"), copies.fresh("shift")
    largest = reduce("max({}, {})".format, terms)
    columns = [column(ast.Constant(i)) for i in range(copies.width)]
    for j, name in enumerate(names):
        for term, elements, x in zip(terms, columns, entries, strict=True):
            line(f"{term} = A + X", A=elements[j], X=x)
        if semiring == "max_plus":
            line(f"{name} = {largest}")
            continue
        line(f"{top} = {largest}")
        line(f"{shift} = {finite(top, real)}")
        line(f"{name} = {' + '.join(f'math.exp({term} - {shift})' for term in terms)}")
        line(f"{name} = {logarithm(top, name, real)}")


# -- loops over features


def looped_entry(
    semiring: str, element: ast.expr, x: ast.expr, loops: Looped
) -> ast.expr:
    """Add loops over the terms of one entry of the product; return its value.

    Parameters
    ----------
    element, x : ast.expr
        A[f, i] and x[i].
    """
    real, each_i = loops.real, f"for i in range({loops.width}):"
    if semiring == "plus_times":
        product = loops.fresh("product")
        loops.line(f"{product} = {real}(0.0)")
        with loops.block(each_i):
            loops.line(f"{product} += A * X", A=element, X=x)
        return expression(product)
    top = loops.fresh("top")
    loops.line(f"{top} = {real}(-math.inf)")
    with loops.block(each_i):
        loops.line(f"{top} = max({top}, A + X)", A=element, X=x)
    if semiring == "max_plus":
        return expression(top)
    shift, total = loops.fresh("shift"), loops.fresh("total")
    loops.line(f"{shift} = {finite(top, real)}")
    loops.line(f"{total} = {real}(0.0)")
    with loops.block(each_i):
        loops.line(f"{total} += math.exp(A + X - {shift})", A=element, X=x)
    return expression(logarithm(top, total, real))


#: Most terms of a thread that are kept in variables, and so in registers. More terms
#: are computed twice, for the largest and for the sum.
MOST_TERMS = 16


@dataclass(frozen=True)
class Outer(Primitive):
    """The matrix of products a[i] * b[f]; it is never stored, elements are computed."""

    is_pattern = True


def is_outer(node: ast.AST) -> bool:
    """Return whether an expression is a call of `fg.outer`."""
    return isinstance(node, Operate) and node.operation is outer


@dataclass(frozen=True)
class MatrixVector(Primitive):
    """``A @ x``, ``A.T @ x``, and the same in other semirings."""

    multiplies = True

    def typed(self, call: Operate, types: Types) -> str:
        """Return "real"; raise for options that an outer product does not allow."""
        if is_outer(call.args[0]):
            _check_outer(call, types)
        return super().typed(call, types)

    # -- named copies

    def unroll(self, call: Operate, target: str, copies: Unrolled) -> None:
        """Loop over the entries of the vector, which lanes broadcast by shuffles."""
        matrix, x = call.args
        names, semiring = copies.names(target), _semiring(call)
        if is_outer(matrix):
            _unroll_outer(call, names, copies)
            return
        column = copies.column(call)
        values = copies.operands(x, expression(f"{copies.real}(0.0)"))
        if semiring != "plus_times" and copies.width * copies.count <= MOST_TERMS:
            entries = _all_entries(in_registers(copies, values), copies)
            add_each_term(semiring, names, column, entries, copies)
            return
        if semiring == "plus_times":
            for name in names:
                copies.line(f"{name} = {copies.real}(0.0)")
        is_indexed = copies.predicated or copies.is_at_hand(matrix)
        whole: list[ast.expr] = [ast.Tuple(values, ast.Load())]
        registers = in_registers(copies, values if is_indexed else whole)
        add_terms(
            semiring,
            names,
            lambda body: _for_each(registers, column, body, copies),
            copies,
        )

    # -- loops over features

    def loop(self, call: Operate, target: str, loops: Looped) -> None:
        """Store the vector in an array, since every feature needs all its entries."""
        matrix, x = call.args
        if is_outer(matrix):
            _loop_outer(call, target, loops)
            return
        element = _turned_element(call, loops)
        row = loops.new_row("real")
        with loops.all_features():
            loops.line(f"{row} = X", PLACE=named("f"), X=loops.value(x))
        with loops.all_features():
            entry = expression(row, PLACE=named("i"))
            value = looped_entry(_semiring(call), element, entry, loops)
            loops.line(f"{loops.element_of(target)} = X", X=value)

    # -- vectors

    def fits_vectors(self, call: Operate, facts: VectorFacts) -> bool:
        """Return whether it is a ``plus_times`` product of a real matrix."""
        matrix, x = call.args
        is_known = isinstance(call.option("transpose"), ast.Constant | None)
        is_plain = is_known and _semiring(call) == "plus_times"
        return is_plain and facts.is_real_matrix(matrix) and facts.fits_real(x)

    def vectorize(self, call: Operate, target: str, vectors: Vectorized) -> None:
        """Store the vector in one row of memory, and load the product from another."""
        matrix, x = call.args
        source, product = vectors.new_row(), vectors.new_row()
        for first, size in vectors.pieces:
            store = f"vectors.store_{size}(rows, ({source}, {first}), X)"
            vectors.line(store, X=vectors.vector(x, (first, size)))
        turned = "_turned" if call.constant("transpose") else ""
        vectors.line(
            f"vectors.multiply{turned}(ARRAY, rows, {source}, {product}, "
            f"{vectors.width})",
            ARRAY=vectors.array_of(matrix),
        )
        for first, size in vectors.pieces:
            loaded = f"vectors.load_{size}(rows, ({product}, {first}))"
            vectors.line(f"{target}_{first} = {loaded}")


def _semiring(call: Operate) -> str:
    return str(call.constant("semiring") or "plus_times")


def _check_outer(call: Operate, types: Types) -> None:
    """Raise for options with which ``outer(a, b) @ x`` is not ``a * dot(b, x)``."""
    if not isinstance(call.option("transpose"), ast.Constant | None):
        raise types.error("transpose= of an outer product must be a constant", call)
    if _semiring(call) != "plus_times":
        raise types.error(
            "an outer product has no other semiring",
            call,
            got=f"semiring={_semiring(call)!r}",
            expected="semiring='plus_times'",
            fix="keep the matrix in a property",
        )


def _factors(call: Operate) -> tuple[ast.expr, ast.expr]:
    """Return a and b of ``outer(a, b) @ x``, which is ``a * dot(b, x)``."""
    a, b = narrowed(call.args[0], Operate).args
    return (b, a) if call.constant("transpose") else (a, b)


def _unroll_outer(call: Operate, names: list[str], copies: Unrolled) -> None:
    """Add ``a * dot(b, x)`` over named copies; lanes sum the product by shuffles."""
    a, b = _factors(call)
    zero = expression(f"{copies.real}(0.0)")
    left, right = copies.operands(b, zero), copies.operands(call.args[1], zero)
    dot = copies.fresh("dot")
    pairs = zip(left, right, strict=True)
    terms = [expression("P * Q", P=p, Q=q) for p, q in pairs]
    total = reduce(lambda p, q: expression("P + Q", P=p, Q=q), terms)
    if copies.predicated:
        total = expression(f"warp.group_sum(X, {copies.lanes})", X=total)
    copies.line(f"{dot} = X", X=total)
    for j, name in enumerate(names):
        copies.line(f"{name} = A * {dot}", A=copies.value(a, j))


def _loop_outer(call: Operate, target: str, loops: Looped) -> None:
    """Add ``a * dot(b, x)`` as two loops over features."""
    a, b = _factors(call)
    dot = loops.fresh("dot")
    loops.line(f"{dot} = {loops.real}(0.0)")
    with loops.all_features():
        x = loops.value(call.args[1])
        loops.line(f"{dot} += B * X", B=loops.value(b), X=x)
    with loops.all_features():
        loops.line(f"{loops.element_of(target)} = A * {dot}", A=loops.value(a))


def _all_entries(registers: list[ast.expr], copies: Unrolled) -> list[ast.expr]:
    """Return all entries of a vector, those of other lanes by broadcasts."""
    if not copies.predicated:
        return registers
    entries = []
    for i in range(copies.width):
        lane, j = divmod(i, copies.count)
        entries.append(copies.fresh("x"))
        sent = f"warp.broadcast(X, int32({lane}), {copies.lanes})"
        copies.line(f"{entries[i]} = {sent}", X=registers[j])
    return list(map(named, entries))


def _for_each(
    registers: list[ast.expr],
    column: Column,
    body: Callable[[list[ast.expr], ast.expr], None],
    copies: Unrolled,
) -> None:
    """Add a loop over the entries of a vector: ``body(column i, x[i])``."""
    if not copies.predicated:
        if len(registers) > 1:
            for i, one in enumerate(registers):
                body(column(ast.Constant(i)), one)
            return
        with copies.block(f"for i in range({copies.width}):"):
            body(column(named("i")), expression("X[i]", X=registers[0]))
        return
    x, count = copies.fresh("x"), copies.count
    # Lanes whose copy j is a feature. If all copies have equally many, one loop over
    # lanes serves all copies, else each copy has a loop.
    members = [-(-(copies.width - j) // count) for j in range(count)]
    is_even = len(set(members)) == 1
    for some in [range(count)] if is_even else [[j] for j in range(count)]:
        with copies.block(f"for member in range({members[some[0]]}):"):
            for j in some:
                copies.line(f"i = member * {count} + {j}")
                sent = f"warp.broadcast(X, int32(member), {copies.lanes})"
                copies.line(f"{x} = {sent}", X=registers[j])
                body(column(named("i")), named(x))


def _turned_element(call: Operate, loops: Looped) -> ast.expr:
    """Return A[f, i], or A[i, f] of a transposed matrix."""
    matrix, transpose = call.args[0], call.option("transpose")
    f, i = named("f"), named("i")
    if transpose is None:
        return loops.element(matrix, f, i)
    if isinstance(transpose, ast.Constant):
        return loops.element(matrix, *((i, f) if transpose.value else (f, i)))
    turned = loops.fresh("turned")
    loops.line(f"{turned} = X", X=loops.value(transpose))
    row, column = f"i if {turned} else f", f"f if {turned} else i"
    return loops.element(matrix, expression(row), expression(column))


PRIMITIVES = (Outer(outer), MatrixVector(matvec, "product"))


@dataclass(frozen=True, eq=False)
class OuterProduct:
    """A contribution that is ``scale * row * column``.

    Attributes
    ----------
    row : ast.expr
        Product of the factors that depend on i.
    column : ast.expr
        Product of the factors that depend on f.
    scale : ast.expr or None
        Product of the factors that depend on neither.
    symmetric : bool
        Whether `row` is `column` with i in place of f.
    """

    row: ast.expr
    column: ast.expr
    scale: ast.expr | None
    symmetric: bool

    @property
    def is_square(self) -> bool:
        """Whether it is the product of one vector with itself, without a scale."""
        return self.symmetric and self.scale is None


def find_outer_product(body: list[ast.stmt]) -> OuterProduct | None:
    """Return the factors of the typed body of a matrix gather or reduce, or None.

    The body must consist of assignments to different locals, which are substituted,
    and one return.
    """
    value = _returned(body)
    if value is None:
        return None
    groups: dict[str, list[tuple[ast.expr, bool]]] = {"row": [], "column": [], "": []}
    for factor, divides in _factors_of(value, False):
        reads = names_read(factor) & {"i", "f"}
        if len(reads) == 2 or (reads and divides):
            return None
        groups[{"i": "row", "f": "column"}.get("".join(reads), "")].append(
            (factor, divides)
        )
    if not groups["row"] or not groups["column"]:
        return None
    row, column = _product(groups["row"]), _product(groups["column"])
    as_column = _Renamed().visit(copied(row))
    scale = _product(groups[""]) if groups[""] else None
    return OuterProduct(row, column, scale, is_same(as_column, column))


def _returned(body: list[ast.stmt]) -> ast.expr | None:
    """Return the returned expression with locals substituted, or None."""
    *assignments, last = body
    values: dict[str, ast.expr] = {}
    for statement in assignments:
        if not isinstance(statement, ast.Assign):
            return None
        target = statement.targets[0]
        if not isinstance(target, ast.Name) or target.id in values:
            return None
        values[target.id] = _Inlined(values).visit(copied(statement.value))
    if not isinstance(last, ast.Return) or last.value is None:
        return None
    found: ast.expr = _Inlined(values).visit(copied(last.value))
    return found


def _factors_of(node: ast.expr, divides: bool) -> list[tuple[ast.expr, bool]]:
    """Return the factors of a product, each with whether it is a divisor."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        turned = divides != isinstance(node.op, ast.Div)
        return _factors_of(node.left, divides) + _factors_of(node.right, turned)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        minus = copy_location(
            Cast("real", copy_location(ast.Constant(-1.0), node)), node
        )
        return [(minus, False), *_factors_of(node.operand, divides)]
    return [(node, divides)]


def _product(factors: list[tuple[ast.expr, bool]]) -> ast.expr:
    """Return the product of factors; ``1.0 / x`` if all are divisors."""
    ordered = sorted(factors, key=lambda factor: factor[1])
    first, divides = ordered[0]
    product = first
    if divides:
        one = copy_location(ast.Constant(1.0), first)
        whole = copy_location(Cast("real", one), first)
        product = copy_location(ast.BinOp(whole, ast.Div(), first), first)
    for factor, divides in ordered[1:]:
        operator: ast.operator = ast.Div() if divides else ast.Mult()
        product = copy_location(ast.BinOp(product, operator, factor), factor)
    return product


class _Renamed(ast.NodeTransformer):
    """Replace i by f."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id == "i":
            return copy_location(ast.Name("f", node.ctx), node)
        return node


class _Inlined(ast.NodeTransformer):
    """Replace locals by the expressions assigned to them."""

    def __init__(self, values: dict[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self.values.get(node.id)
        return node if value is None else copied(value)
