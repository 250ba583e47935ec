"""Entries without a feature index, in functions that run once for each feature.

All features of a vertex write such an entry, in no order, and none after another. So
one may not read what the others write; and what all of them write is one value.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from featgraph.base.dataclass import dataclass, field
from featgraph.fold.syntax.variance import loop_varies, returns_apart, varies
from featgraph.fold.tree.expressions import Access
from featgraph.program.source import FunctionSource

__all__ = ["check_shared_entries"]

Place = tuple[str, str, str]


@dataclass
class _Path:
    """What has been done to entries on the way here.

    Attributes
    ----------
    written : set of (name, version, indices)
        Entries that this feature has written itself, on every way.
    read : dict
        Entries that it has read before, to whether all features do.
    """

    written: set[Place] = field(default_factory=set)
    read: dict[Place, bool] = field(default_factory=dict)

    def copy(self) -> _Path:
        """Return where another branch begins."""
        return _Path(set(self.written), dict(self.read))


def check_shared_entries(
    source: FunctionSource,
    body: list[ast.stmt],
    width: int,
    varying: frozenset[str],
    *,
    reads_first: bool = False,
) -> None:
    """Refuse functions of several features that do not agree about an entry.

    A condition that differs between features may leave one of them, as ``if f == 0``
    does: what is read and written under such conditions is not looked at. With
    `reads_first`, all features have read what they read before one of them writes.

    Raises
    ------
    UserFunctionError
        If all features write an entry that one of them reads before, or a value that
        differs between them to one entry.
    """
    if width > 1 and reads_first:
        _check_places(source, body, varying)
    if width > 1:
        walk = _Walk(source, varying, reads_first)
        walk.block(body, _Path(), together=True)


def _check_places(
    source: FunctionSource, body: list[ast.stmt], varying: frozenset[str]
) -> None:
    """Refuse exclusive functions that features leave apart, and writes in loops."""
    for node in body:
        if returns_apart(node, varying):
            raise source.error(
                "features leave an exclusive function at different places",
                node,
                expected="a return under conditions that are the same for all features",
                fix="wrap the condition in any_feature or all_features",
            )
    loops = [n for s in body for n in ast.walk(s) if isinstance(n, ast.For | ast.While)]
    inside = [n for loop in loops for s in loop.body for n in ast.walk(s)]
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
    def __init__(
        self, source: FunctionSource, varying: frozenset[str], reads_first: bool
    ) -> None:
        self.source, self.varying, self.reads_first = source, varying, reads_first
        self.left: list[
            list[_Path]
        ] = []  # of each loop: where it is left or begun anew

    def block(
        self, body: list[ast.stmt], path: _Path | None, *, together: bool
    ) -> _Path | None:
        """Return the path behind some statements, None where none leads."""
        for node in body:
            if path is None:
                return None
            path = self._statement(node, path, together)
            together = together and not returns_apart(node, self.varying)
        return path

    def _statement(self, node: ast.stmt, path: _Path, together: bool) -> _Path | None:
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
        test = node.iter if isinstance(node, ast.For) else node.test
        inside = together and not loop_varies(node, self.varying)
        behind = path
        for _ in range(2):  # an iteration finds what the one before has read
            self._reads(test, behind, together)
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
        return all(
            isinstance(index, ast.Name | ast.Constant)
            and not varies(index, self.varying)
            for index in access.indices
        )


def _place(access: Access) -> Place:
    indices = ", ".join(ast.dump(i) for i in access.indices)
    return access.name, access.version, indices


def _joined(one: _Path | None, other: _Path | None) -> _Path | None:
    if one is None or other is None:
        return one or other
    read = dict(one.read)
    for place, by_all in other.read.items():
        read[place] = read.get(place, False) or by_all
    return _Path(one.written & other.written, read)
