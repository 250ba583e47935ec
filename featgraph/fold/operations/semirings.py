"""How a product of a matrix and a vector combines its terms, in each semiring.

``plus_times`` adds up A[f, i] * x[i]. The terms of the others are A[f, i] + x[i]:
``max_plus`` takes the largest, ``log_plus`` adds up exp(term - largest) and takes the
logarithm, so that nothing overflows.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import reduce

from featgraph.fold.operations.contexts import Column, Looped, Unrolled
from featgraph.fold.tree.statements import expression
from featgraph.program.signature import Real

__all__ = ["add_each_term", "add_terms", "looped_entry"]

#: Adds a loop over the entries of a vector, with what is done for each: the entries of
#: the matrix, one for each copy, and that of the vector.
Terms = Callable[[Callable[[list[ast.expr], ast.expr], None]], None]


def finite(top: str, real: Real) -> str:
    """Return what to subtract: the largest term, 0 where that is infinite or nan.

    inf - inf is nan: terms that are all -inf have the logarithm of the sum 0, -inf.
    """
    return f"{top} if abs({top}) < {real}(math.inf) else {real}(0.0)"


def logarithm(top: str, total: str, real: Real) -> str:
    """Return the logarithm of a sum of exp(term), given that of exp(term - top).

    One of those is exp(0), so their sum is at least 1. Where the terms are huge it is
    not, once the compiler has reordered what they are made of.
    """
    one = f"{real}(1.0)"
    is_off = f"{total} < {one} or {total} == {real}(math.inf)"
    return f"{top} + math.log({one} if {is_off} else {total})"


# -- named copies


def add_terms(
    semiring: str, names: list[str], for_each: Terms, copies: Unrolled
) -> None:
    """Combine terms one after the other into `names`; ``log_plus`` computes them twice.

    With ``plus_times``, the names are zero before.

    Parameters
    ----------
    for_each : callable
        ``for_each(body)`` adds what goes over the terms.
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
    """Combine a few terms into `names`; each is computed once, and has a name."""
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
