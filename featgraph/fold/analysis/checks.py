"""Checks of a typed function: matrices, constant indices, widths, shared entries.

A *shared entry* has no feature index: ``d.x[v]`` in a function of K features. All
features of a vertex write it, in no defined order, on a GPU in different lanes. So a
function must not read such an entry after another feature may have written it, and all
features must write the same value.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping

from featgraph.base.dataclass import dataclass, field
from featgraph.fold.analysis.access import AccessRecord
from featgraph.fold.operations.products import is_outer
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.syntax.names import BUILTIN_ARRAYS
from featgraph.fold.syntax.normal_form import loop_varies, returns_apart, varies
from featgraph.fold.tree.statements import (
    Access,
    Atomic,
    Operate,
    Whole,
    every,
    is_matrix_sum,
    name_of,
    names_read,
    test_of,
)
from featgraph.program.functions import UserFunction
from featgraph.program.signature import PropertyKind, Signature
from featgraph.program.source import FunctionSource

__all__ = [
    "check_features",
    "check_groups",
    "check_matrices",
    "check_shared_entries",
    "matrix_names",
    "width_of",
    "with_filter",
]


def matrix_names(body: list[ast.stmt]) -> frozenset[str]:
    """Return the locals that hold a K x K matrix."""
    return frozenset(
        node.targets[0].id
        for node in every(body)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, Operate)
        and primitive_of(node.value).is_matrix
    )


def check_matrices(
    source: FunctionSource, body: list[ast.stmt], matrices: frozenset[str]
) -> None:
    """Raise if a matrix is used as a value, or if a value that is none is indexed."""
    good: set[int] = set()
    nodes = list(every(body))
    whole = {id(n) for n in nodes if isinstance(n, Whole)}
    for node in nodes:
        if isinstance(node, ast.Subscript):
            owner = node.value
            if not (isinstance(owner, ast.Name) and owner.id in matrices):
                raise source.error(
                    "only properties and matrices can be indexed",
                    node,
                    got=owner.id if isinstance(owner, ast.Name) else "a value",
                    expected="d.name[...], or what fg.outer and fg.inverse return",
                )
            good.add(id(owner))
        elif isinstance(node, Operate) and primitive_of(node).takes_matrix:
            good |= {id(argument) for argument in node.args}
            good |= {id(a) for a in node.args if isinstance(a, Operate)}
            if isinstance(node.args[0], Whole) or is_matrix_sum(node.args[0]):
                whole -= set(map(id, every([node.args[0]])))
    for node in nodes:
        is_matrix = (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)
            and node.id in matrices
        )
        is_bad = (is_matrix or is_outer(node)) and id(node) not in good
        if is_bad or id(node) in whole:
            raise source.error(
                "a matrix cannot be used as a value",
                node,
                expected="one of its elements, [i, f], or fg.matvec of it",
            )


def check_features(
    function: UserFunction, body: list[ast.stmt], collective: bool
) -> None:
    """Raise for ``f`` in a triangle function, and collaborative calls in a matrix one.

    A triangle function runs once a triangle; a matrix function runs for two features,
    row and column, at a time.
    """
    source = function.source
    has_rows = any("f" in names_read(s) for s in body)
    if function.kind.intersects and (collective or has_rows):
        raise source.error(
            "a triangle function runs once a triangle, not once a feature",
            expected="d.x[v], or a constant feature: d.x[v, 0]",
            fix="combine the features in a vertex function first",
        )
    if collective and getattr(function, "matrix", False):
        raise source.error(
            f"a matrix {function.kind} makes no collaborative calls but outer of "
            "whole rows",
            fix="return fg.outer(d.x[u], d.x[u])[i, f]",
        )


def with_filter(
    function: UserFunction, accesses: tuple[AccessRecord, ...], signature: Signature
) -> tuple[AccessRecord, ...]:
    """Return the access table, with the read of the property of `within=` added.

    Raises
    ------
    UserFunctionError
        If `within=` is no edge property with one entry an edge, or is updated by the
        function.
    """
    within: str | None = getattr(function, "within", None)
    if within is None:
        return accesses
    type_ = signature.get(within)
    if type_ is None or type_.kind is not PropertyKind.EDGE or type_.item_shape:
        raise function.source.error(
            "within= names no property of edges with one entry each",
            got=repr(within) if type_ is None else f"{within}: {type_.describe()}",
            fix=f"declare {within}=fg.edge_property(True)",
        )
    if any(a.name == within and a.mode == "atomic" for a in accesses):
        raise function.source.error(
            f"{within!r} selects the triangles, and is updated by the function"
        )
    read = AccessRecord(within, "now", "read", "own")
    return tuple(sorted({*accesses, read}))


def check_groups(source: FunctionSource, body: list[ast.stmt], width: int) -> None:
    """Raise if a ``group=`` does not divide the number of features."""
    for node in every(body):
        option = node.option("group") if isinstance(node, Operate) else None
        if option is None:
            continue
        size = option.value if isinstance(option, ast.Constant) else None
        if type(size) is not int or size < 1 or width % size:
            raise source.error(
                "group= must divide the number of features",
                node,
                got=f"group={ast.unparse(option)}, K = {width}",
                expected="a positive integer that divides K",
            )


def feature_indices(
    node: Access | Atomic, kinds: Mapping[str, str]
) -> list[tuple[int, ast.expr]]:
    """Return the feature indices of an access, each with its axis of `item_shape`."""
    if node.name in BUILTIN_ARRAYS:
        return []
    first = 0 if kinds.get(node.name) == "vector" else 1
    return list(enumerate(node.indices[first:]))


def width_of(
    source: FunctionSource,
    body: list[ast.stmt],
    kinds: Mapping[str, str],
    item_shape: Callable[[str], tuple[int, ...]],
) -> tuple[int, bool]:
    """Return K of the properties that a function indexes with f; (1, True) for none.

    Raises
    ------
    UserFunctionError
        If these properties have different K, if f indexes no property, or if a constant
        index is out of range.
    """
    widths: dict[int, str] = {}
    uses_f = False
    for node in every(body):
        if isinstance(node, Access | Atomic):
            for axis, index in feature_indices(node, kinds):
                size = item_shape(node.name)[axis]
                if name_of(index) in {"f", "i"}:
                    widths.setdefault(size, node.name)
                _check_constant(source, node, index, size)
        elif isinstance(node, Whole):
            widths.setdefault(item_shape(node.name)[-1], node.name)
        uses_f = uses_f or name_of(node) == "f"
    if len(widths) > 1:
        raise source.error(
            "properties of different width are indexed by f",
            got=", ".join(f"{name}: {k}" for k, name in widths.items()),
            expected="one K in a function",
            fix="split the function",
        )
    if not widths:
        if uses_f:
            raise source.error(
                "f is used but indexes no property, so its range is unknown",
                fix="index a property with f",
            )
        return 1, True
    return next(iter(widths)), False


def _check_constant(
    source: FunctionSource, node: Access | Atomic, index: ast.expr, size: int
) -> None:
    """Raise if a constant index of an entry is not in 0 to `size` - 1."""
    negative = isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub)
    plain = index.operand if isinstance(index, ast.UnaryOp) and negative else index
    if not isinstance(plain, ast.Constant) or not isinstance(plain.value, int):
        return
    if negative or plain.value >= size:
        raise source.error(
            f"an index of d.{node.name} is out of range",
            node,
            got=-plain.value if negative else plain.value,
            expected=f"0 <= index < {size}",
        )


#: Name, version and indices of an entry.
Place = tuple[str, str, str]


@dataclass
class _Path:
    """Reads and writes of entries on the path to a statement.

    Attributes
    ----------
    written : set of Place
        Shared entries that this feature has written on every path.
    read : dict
        Shared entry that it has read before writing it -> whether all features read it.
    """

    written: set[Place] = field(default_factory=set)
    read: dict[Place, bool] = field(default_factory=dict)

    def copy(self) -> _Path:
        """Return a copy, for another branch."""
        return _Path(set(self.written), dict(self.read))


def check_shared_entries(
    source: FunctionSource,
    body: list[ast.stmt],
    width: int,
    varying: frozenset[str],
    *,
    reads_first: bool = False,
) -> None:
    """Raise for functions whose features race for a shared entry.

    A condition that differs between features may select one of them, as ``if f == 0``
    does: accesses under such conditions are allowed. With `reads_first`, generated code
    runs all reads of all features before the first write.

    Raises
    ------
    UserFunctionError
        If all features write a shared entry that one of them reads before, or if they
        write different values to it.
    """
    if width > 1 and reads_first:
        _check_places(source, body, varying)
    if width > 1:
        walk = _Walk(source, varying, reads_first)
        walk.block(body, _Path(), together=True)


def _check_places(
    source: FunctionSource, body: list[ast.stmt], varying: frozenset[str]
) -> None:
    """Raise for exclusive functions with returns that differ between features.

    Raise also for writes of shared entries in loops.
    """
    for node in body:
        if returns_apart(node, varying):
            raise source.error(
                "features leave an exclusive function at different places",
                node,
                expected="a return under conditions that are the same for all features",
                fix="wrap the condition in any_feature or all_features",
            )
    # Such writes wait for the end of the function, which has one value for each.
    loops = [n for n in every(body) if isinstance(n, ast.For | ast.While)]
    inside = (n for loop in loops for n in every(loop.body))
    for write in (n for n in inside if isinstance(n, ast.Assign)):
        target = write.targets[0]
        if isinstance(target, Access) and not varies(target, varying):
            raise source.error(
                "an exclusive function writes an entry without f in a loop",
                write,
                got=f"d.{target.name}[{', '.join(map(ast.unparse, target.indices))}]",
                expected="an entry of feature f, or a write behind the loop",
                fix="keep the value in a local, and write it behind the loop",
            )


class _Walk:
    """A walk over the paths of a function, for `check_shared_entries`.

    `together` is True for statements that all features execute.
    """

    def __init__(
        self, source: FunctionSource, varying: frozenset[str], reads_first: bool
    ) -> None:
        self.source, self.varying, self.reads_first = source, varying, reads_first
        #: For each loop around: the paths to its `break` and `continue`.
        self.left: list[list[_Path]] = []

    def block(
        self, body: list[ast.stmt], path: _Path | None, *, together: bool
    ) -> _Path | None:
        """Return the path behind some statements; None if all paths leave."""
        for node in body:
            if path is None:
                return None
            path = self._statement(node, path, together)
            together = together and not returns_apart(node, self.varying)
        return path

    def _statement(self, node: ast.stmt, path: _Path, together: bool) -> _Path | None:
        """Return the path behind a statement; None if it leaves."""
        if isinstance(node, ast.If):
            self._reads(node.test, path, together)
            inside = together and not varies(node.test, self.varying)
            return _joined(
                self.block(node.body, path.copy(), together=inside),
                self.block(node.orelse, path.copy(), together=inside),
            )
        if isinstance(node, ast.For | ast.While):
            return self._loop(node, path, together)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], Access):
            target = node.targets[0]
            self._reads(node.value, path, together)
            for index in target.indices:
                self._reads(index, path, together)
            self._write(node, target, path, together)
            return path
        self._reads(node, path, together)
        if isinstance(node, ast.Break | ast.Continue):
            self.left[-1].append(path)
        ends = isinstance(node, ast.Return | ast.Break | ast.Continue)
        return None if ends else path

    def _loop(self, node: ast.For | ast.While, path: _Path, together: bool) -> _Path:
        """Return the path behind a loop, which may have no iteration."""
        inside = together and not loop_varies(node, self.varying)
        behind = path
        for _ in range(2):  # a second iteration writes behind reads of the first
            self._reads(test_of(node), behind, together)
            self.left.append([])
            ended = self.block(node.body, behind.copy(), together=inside)
            for one in (ended, *self.left.pop()):
                behind = _joined(behind, one) or behind
        return behind

    def _reads(self, node: ast.AST, path: _Path, together: bool) -> None:
        for access, by_all in self._accesses(node, together):
            place = _place(access)
            if place not in path.written:
                path.read[place] = path.read.get(place, False) or by_all

    def _accesses(self, node: ast.AST, together: bool) -> Iterator[tuple[Access, bool]]:
        """Yield accesses to shared entries, and whether all features execute them.

        Operands behind the first one of ``and``, ``or`` and ``if`` may be skipped.
        """
        if isinstance(node, Access) and self._is_shared(node):
            yield node, together
        parts = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.IfExp | ast.BoolOp):
            first, *later = (
                [node.test, node.body, node.orelse]
                if isinstance(node, ast.IfExp)
                else node.values
            )
            yield from self._accesses(first, together)
            parts = list(later)
            before = [first] if isinstance(node, ast.IfExp) else node.values[:-1]
            together = together and not any(varies(b, self.varying) for b in before)
        for part in parts:
            yield from self._accesses(part, together)

    def _write(
        self, node: ast.Assign, target: Access, path: _Path, together: bool
    ) -> None:
        """Record a write of a shared entry; raise if another feature may have read it.

        A write by one feature races with the reads of all, not with its own.
        """
        if not self._is_shared(target):
            return
        place, version = _place(target), "_next" if target.version == "next" else ""
        shown = (
            f"d.{target.name}{version}[{', '.join(map(ast.unparse, target.indices))}]"
        )
        if together and varies(node.value, self.varying):
            raise self.source.error(
                "features write different values to one entry",
                node,
                got=f"{shown} = ..., of which the value depends on f",
                expected="one value for all features of the vertex",
                fix="combine it first, as by fg.feature_sum, or index with f",
            )
        is_read = place in path.read and (together or path.read[place])
        if is_read and not self.reads_first:
            raise self.source.error(
                "a feature reads what another one writes",
                node,
                got=f"{shown}, read before it is written",
                expected="an entry of feature f, or of a function without features",
                fix="write it under `if f == 0:`, and read it there only, or declare "
                "the property iterated",
            )
        path.written.add(place)

    def _is_shared(self, access: Access) -> bool:
        """Return whether all features access the same entry."""
        return all(
            isinstance(index, ast.Name | ast.Constant)
            and not varies(index, self.varying)
            for index in access.indices
        )


def _place(access: Access) -> Place:
    indices = ", ".join(ast.dump(i) for i in access.indices)
    return access.name, access.version, indices


def _joined(one: _Path | None, other: _Path | None) -> _Path | None:
    """Return the path where two branches meet; None for a branch that leaves."""
    if one is None or other is None:
        return one or other
    read = dict(one.read)
    for place, by_all in other.read.items():
        read[place] = read.get(place, False) or by_all
    return _Path(one.written & other.written, read)
