"""The last pass: copies of statements for the features of a lane, or loops.

Up to here, ``x[f]`` is feature f of a value of a lane, and ``*x`` all of its features.
`Unrolled` replaces them by the variables of the lane, or by elements of small arrays.
"""

from __future__ import annotations

import ast
from typing import Any

from featgraph.fold.schedules.base import FeatureAxis
from featgraph.fold.tree.nodes import (
    AllFound,
    AnyFeature,
    Features,
    FromRow,
    Returned,
    RowLoad,
    ToRow,
)
from featgraph.fold.tree.statements import (
    Body,
    Rewriting,
    code,
    copied,
    every,
    expression,
    name_of,
    when,
)

__all__ = ["Unrolled"]


class Unrolled(Rewriting):
    """Expand `Features` and ``*x`` for the features of a lane."""

    def __init__(self, axis: FeatureAxis) -> None:
        self.axis = axis

    def visit_Features(self, node: Features) -> Body:
        """Return the body for each feature of the lane."""
        axis = self.axis
        if node.shape == "one":
            lane = "lane == 0" if node.guarded and axis.lanes > 1 else ""
            return self._loads(node, 0) + when([lane], self._copy(node, 0))
        if node.shape == "matrix":
            return self._matrix(node)
        if node.shape == "element":
            return self._copy(node, 0)
        if node.shape in {"elements", "lower"}:
            return self._elements(node)
        if axis.is_looped:
            named = _Renamed()
            return _loop("f", axis.count, self.over(map(named.visit, node.body)))
        out: Body = []
        for j in range(axis.per_lane):
            inside = axis.inside(j) if node.guarded else ""
            out += self._loads(node, j) + when([inside], self._copy(node, j))
        return out

    def _matrix(self, node: Features) -> Body:
        """Return the body for each element of a matrix in memory."""
        axis = self.axis
        if axis.lanes == 1 and axis.per_lane == axis.width:
            named = _Renamed()
            body = _loop("f", axis.count, self.over(map(named.visit, node.body)))
        else:
            body = []
            for j in range(axis.per_lane):
                body += when([axis.inside(j)], self._copy(node, j))
        return _loop("i", axis.count, body)

    def _elements(self, node: Features) -> Body:
        """Return the body for each element in registers of the lane."""
        axis, out = self.axis, code("")
        for i, j in axis.elements(node.shape == "lower"):
            if j == 0:
                out += self._loads(node, i, axis.along_column)
            out += self._copy(node, j, i)
        return out

    def _copy(self, node: Features, j: int, i: int | None = None) -> Body:
        """Return the body of `node` for feature j of the lane, in row i of a matrix."""
        ignores = node.guarded or node.drops
        feature = _Feature(self.axis, node.rows, j, i, ignores_padding=ignores)
        return self.over(feature.visit(copied(s)) for s in node.body)

    def _loads(self, node: Features, j: int, along: FeatureAxis | None = None) -> Body:
        """Return the loads of pieces of rows that begin with feature j."""
        axis, out = along or self.axis, code("")
        if j % axis.vector_width:  # loaded with the first feature of the piece
            return out
        for row in (r for r in node.rows if r.array):
            place = (
                f"{row.index}, {axis.feature(j)}, {axis.stride}, {axis.vector_width}"
            )
            name = _piece_name(axis, row, j)
            out += code(f"{name} = warp.load_row({row.array}, {place})")
        return out

    def visit_Returned(self, node: Returned) -> Body:
        """Return the assignments of a row from the result of a function."""
        names, out = self.axis.names(node.name), code("")
        for place, name in enumerate(names, 1 + node.number * len(names)):
            out += code(f"{name} = result[{place}]")
        return out

    def visit_FromRow(self, node: FromRow) -> Body:
        """Return the loads of the part of a row that belongs to the lane."""
        axis, out = self.axis, code("")
        for j in range(0, axis.per_lane, node.at_once):
            names, place = self._of_row(node, j)
            if node.at_once == 1:
                out += code(f"{names[0]} = {node.array}[{place}]")
                continue
            part = f"[:{len(names)}]" if len(names) < node.at_once else ""
            part = "[0]" if len(names) == 1 else part
            loaded = f"warp.load_row({node.array}, {place}){part}"
            out += code(f"{', '.join(names)} = {loaded}")
            for i, name in enumerate(names, j):
                other = axis.instead(i)
                if other is not None:
                    # Past the end of a row there is padding, which has any value.
                    instead = f"{name}, {axis.name(node.name, other)}"
                    out += code(f"{name} = warp.select({axis.inside(i)}, {instead})")
        return out

    def visit_ToRow(self, node: ToRow) -> Body:
        """Return the stores of the part of a row that belongs to the lane."""
        axis, out = self.axis, code("")
        for j in range(0, axis.per_lane, node.at_once):
            names, place = self._of_row(node, j)
            store = f"{node.array}[{place}] = {names[0]}"
            if node.at_once > 1:  # the last store may extend into the padding of a row
                names += names[-1:] * (node.at_once - len(names))
                store = f"warp.store_row({node.array}, {place}, ({', '.join(names)}))"
            out += when([axis.inside(j)], code(store))
        return out

    def _of_row(self, node: FromRow | ToRow, j: int) -> tuple[list[str], str]:
        """Return variables of one vector access from feature j on, and its index."""
        axis, count = self.axis, node.at_once
        last = min(j + count, axis.per_lane)
        place = f"{node.index}, {axis.feature(j)}"
        place += f", {axis.stride}, {count}" if count > 1 else ""
        return [axis.name(node.name, i) for i in range(j, last)], place

    def visit_AnyFeature(self, node: AnyFeature) -> Body:
        """Return the disjunction of a condition over the features."""
        axis, target = self.axis, node.target
        if axis.is_looped:
            line = ast.AugAssign(ast.Name(target), ast.BitOr(), node.value)
            return code(f"{target} = False") + _loop("f", axis.count, [line])
        apart = bool(axis.inside(0)) and axis.per_lane > 1
        # Features of one load are inside the row together, or none of them is. Only the
        # last load of a row may extend into its padding.
        together = axis.vector_width if node.rows else 1
        out: Body = []
        for first in range(0, axis.per_lane, together):
            part = self._loads(Features("wide", [], node.rows), first)
            for j in range(first, min(first + together, axis.per_lane)):
                feature = _Feature(axis, node.rows, j, ignores_padding=True)
                value = feature.visit(copied(node.value))
                if j or apart:
                    one = ast.AugAssign(ast.Name(target), ast.BitOr(), value)
                    behind = together > 1 and axis.instead(j) is not None
                    part += when([axis.inside(j)] * behind, [one])
                else:
                    part.append(ast.Assign([ast.Name(target)], value))
            out += when([node.mask, axis.inside(first)] * apart, part)
        if not (node.mask or apart):
            return out
        tests = [] if apart else [node.mask, axis.inside(0)]
        return code(f"{target} = False") + when(tests, out)

    def visit_AllFound(self, node: AllFound) -> Body:
        """Return the conjunction of conditions over all gathered features."""
        axis = self.axis
        wide = [t for t in node.tests if _is_wide(t)]
        if axis.is_looped and wide:
            lines = [
                ast.AugAssign(ast.Name("all_found"), ast.BitAnd(), t) for t in wide
            ]
            return code("all_found = True") + _loop("f", axis.count, list(lines))
        values: list[ast.expr] = []
        for test in node.tests:
            for j in range(axis.per_lane if _is_wide(test) else 1):
                values.append(_Feature(axis, (), j).visit(copied(test)))
        test = values[0] if len(values) == 1 else ast.BoolOp(ast.And(), values)
        return [ast.Assign([ast.Name("all_found")], test)]

    # -- expansions to all features of a lane

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Expand an argument ``*x`` to all features."""
        self.generic_visit(node)
        node.args = self._spread(node.args)
        return node

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        """Expand ``*x`` in a tuple to all features."""
        self.generic_visit(node)
        node.elts = self._spread(node.elts)
        return node.elts[0] if len(node.elts) == 1 else node

    def _spread(self, parts: list[ast.expr]) -> list[ast.expr]:
        out: list[ast.expr] = []
        for part in parts:
            if isinstance(part, ast.Starred) and isinstance(part.value, ast.Name):
                out += [ast.Name(n) for n in self.axis.names(part.value.id)]
            else:
                out.append(part)
        return out


class _Feature(ast.NodeTransformer):
    """Substitute feature j of a lane for ``f``."""

    def __init__(
        self,
        axis: FeatureAxis,
        rows: tuple[RowLoad, ...],
        j: int,
        i: int | None = None,
        *,
        ignores_padding: bool = False,
    ) -> None:
        self.axis, self.rows = axis, {r.name: r for r in rows}
        self.j, self.i = j, i
        #: Whether lanes without that feature are masked, or may compute on padding.
        self.ignores_padding = ignores_padding

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Return the variable of feature j, or its index in memory."""
        if isinstance(node.value, ast.Name):
            name, index = node.value.id, ast.unparse(node.slice)
            if index == "f":
                return self._own(name, self.axis, self.j)
            if index == "i" and self.i is not None:
                return self._own(name, self.axis.along_column, self.i)
            if index == "(i, f)" and self.axis.is_element:
                return ast.Name(name)
            if index == "(i, f)" and self.i is not None:
                return ast.Name(self.axis.element(name, self.i, self.j))
        self.visit(node.value)
        node.slice = self._index(node.slice)
        return node

    def _own(self, name: str, axis: FeatureAxis, j: int) -> ast.expr:
        """Return feature j of a value of the lane, or of a loaded row."""
        row = self.rows.get(name)
        if row is None or not row.array:
            return ast.Name(axis.name(name, j))
        other = axis.instead(j)
        if other is None or self.ignores_padding:
            return _loaded(axis, row, j)
        return expression(
            f"warp.select({axis.inside(j)}, OWN, OTHER)",
            OWN=_loaded(axis, row, j),
            OTHER=_loaded(axis, row, other),
        )

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Substitute the row of a matrix for ``i``."""
        return node if node.id != "i" or self.i is None else ast.Constant(self.i)

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Substitute the feature in the arguments of a call."""
        argument = expression(self.axis.argument(self.j))
        node.args = [
            argument if name_of(given) == "f" else self._place(given)
            for given in node.args
        ]
        return node

    def _place(self, node: ast.expr) -> Any:
        """Return an argument; a tuple is an index in memory."""
        return self._index(node) if isinstance(node, ast.Tuple) else self.visit(node)

    def _index(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Tuple):
            node.elts = [self._index(part) for part in node.elts]
            return node
        if name_of(node) == "j":
            return ast.Constant(self.j)
        feature = expression(self.axis.feature(self.j))
        return feature if name_of(node) == "f" else self.visit(node)


class _Renamed(ast.NodeTransformer):
    """Rename ``j`` to ``f`` in a lane that loops over all features."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Rename ``j`` to ``f``."""
        return ast.Name("f") if node.id == "j" else node


def _is_wide(test: ast.expr) -> bool:
    """Whether a test depends on the feature."""
    return any(name_of(node) == "f" for node in every([test]))


def _loaded(axis: FeatureAxis, row: RowLoad, j: int) -> ast.expr:
    """Return feature j of a lane from a vector load."""
    piece = ast.Name(_piece_name(axis, row, j))
    return ast.Subscript(piece, ast.Constant(j % axis.vector_width))


def _piece_name(axis: FeatureAxis, row: RowLoad, j: int) -> str:
    """Return the name of the piece of a row with feature j of the lane."""
    if axis.per_lane == axis.vector_width:
        return row.name
    return f"{row.name}_{j - j % axis.vector_width}"


def _loop(name: str, size: str, body: Body) -> Body:
    return code(f"for {name} in range({size}):\n    BODY", BODY=body)
