"""Which ``_next`` entries a function writes on every path that may commit.

Such a function needs no copy of the current entry first; for any other the kernel makes
one, because an entry that is not written keeps its value.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from featgraph.fold.tree.expressions import Access, Whole, narrowed

__all__ = ["next_dropped", "next_written_on_every_path"]


def next_written_on_every_path(
    body: list[ast.stmt], features_differ: bool
) -> frozenset[str]:
    """Return the properties whose entry every path that may commit writes first.

    A path that returns False commits nothing, unless `features_differ`: then another
    feature may return True.
    """
    walk = _Walk(features_differ)
    walk.block(body, frozenset())
    missed = {name for done in walk.returns for name in walk.written - done}
    return frozenset(walk.written - missed - walk.read_early)


def next_dropped(functions: Sequence[Sequence[ast.stmt]]) -> frozenset[str]:
    """Return the properties with a ``_next`` entry that may be written, and dropped.

    The functions run one behind the other, each behind True of the one before. Where
    none of them returns False behind a write, there is nothing to restore.
    """
    written: set[str] = set()
    dropped: set[str] = set()
    for body in functions:
        _find_dropped(body, written, dropped)
    return frozenset(dropped)


def _find_dropped(
    body: Sequence[ast.stmt], written: set[str], dropped: set[str]
) -> None:
    """Add what `body` may have written behind it, and what it may drop on the way."""
    for node in body:
        if isinstance(node, ast.Assign):
            target = node.targets[0]
            if isinstance(target, Access) and target.version == "next":
                written.add(target.name)
        elif isinstance(node, ast.Return):
            value = node.value
            if not (isinstance(value, ast.Constant) and value.value is True):
                dropped |= written
        elif isinstance(node, ast.If):
            before = set(written)
            _find_dropped(node.orelse, before, dropped)
            _find_dropped(node.body, written, dropped)
            written |= before
        elif isinstance(node, ast.For | ast.While):
            for _ in range(2):  # a turn runs behind the writes of those before it
                _find_dropped(node.body, written, dropped)


class _Walk:
    def __init__(self, features_differ: bool) -> None:
        self.features_differ = features_differ
        self.written: set[str] = set()
        self.read_early: set[str] = set()
        self.returns: list[frozenset[str]] = []

    def block(
        self, body: list[ast.stmt], done: frozenset[str]
    ) -> frozenset[str] | None:
        """Return entries written if `body` falls through; None if it never does."""
        current: frozenset[str] | None = done
        for node in body:
            if current is None:
                break
            current = self.statement(node, current)
        return current

    def statement(self, node: ast.stmt, done: frozenset[str]) -> frozenset[str] | None:
        if isinstance(node, ast.Assign):
            self._reads(node.value, done)
            target = node.targets[0]
            if isinstance(target, Access) and target.version == "next":
                self.written.add(target.name)
                if _covers_entry(target):
                    return done | {target.name}
            return done
        if isinstance(node, ast.Return):
            value = narrowed(node.value, ast.expr)
            self._reads(value, done)
            commits = not (isinstance(value, ast.Constant) and value.value is False)
            if commits or self.features_differ:
                self.returns.append(done)
            return None
        if isinstance(node, ast.If):
            self._reads(node.test, done)
            ends = [self.block(node.body, done), self.block(node.orelse, done)]
            open_ends = [end for end in ends if end is not None]
            return frozenset.intersection(*open_ends) if open_ends else None
        if isinstance(node, ast.For | ast.While):
            self._reads(node.iter if isinstance(node, ast.For) else node.test, done)
            self.block(
                node.body, done
            )  # may run no times: what it writes is not certain
            return done
        if isinstance(node, ast.Expr):
            self._reads(node.value, done)
        return done

    def _reads(self, node: ast.expr, done: frozenset[str]) -> None:
        for inner in ast.walk(node):
            if (
                isinstance(inner, Access | Whole)
                and inner.version == "next"
                and inner.name not in done
            ):
                self.read_early.add(inner.name)


def _covers_entry(target: Access) -> bool:
    """Whether the features together write the whole entry: ``[v]`` or ``[v, f]``."""
    if len(target.indices) == 1:
        return True
    last = target.indices[-1]
    return len(target.indices) == 2 and isinstance(last, ast.Name) and last.id == "f"
