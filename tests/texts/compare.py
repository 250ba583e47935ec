"""Compares two archives of texts, kernel by kernel.

As bytes, or as trees: without comments, brackets and blank lines, and one level looser,
without the casts ``uint32(...)`` in indices.
"""

from __future__ import annotations

import ast
import difflib
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

__all__ = ["SAME", "Comparison", "category", "compare", "kernels"]

CAST = "uint32"
#: Results of `category` for two texts that count as one.
SAME = ("bytes", "tree", "tree but casts")


@dataclass
class Comparison:
    """Differences that were found.

    Attributes
    ----------
    counts : Counter
        How many kernels fell into each category.
    diffs : list of str
        Of the first that differ, each pair of texts once.
    """

    counts: Counter[str] = field(default_factory=Counter)
    diffs: list[str] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        """Whether all kernels are in both archives and equal."""
        return set(self.counts) <= set(SAME)


def compare(old: Path, new: Path, *, trees: bool, show: int) -> Comparison:
    """Compare two archives; keep the first `show` diffs."""
    found = Comparison()
    seen: set[tuple[str, str]] = set()
    for name, old_text, new_text in _pairs(old, new):
        before, after = kernels(old_text), kernels(new_text)
        for kernel in {**before, **after}:
            pair = before.get(kernel, ""), after.get(kernel, "")
            result = category(*pair, trees=trees)
            found.counts[result] += 1
            if result in SAME or pair in seen or len(found.diffs) >= show:
                continue
            seen.add(pair)
            found.diffs.append(_diff(*pair, f"{name}:{kernel}"))
    return found


def _pairs(old: Path, new: Path) -> Iterator[tuple[str, str, str]]:
    """Yield names and texts; one that an archive lacks is empty there."""
    with zipfile.ZipFile(old) as before, zipfile.ZipFile(new) as after:
        had, has = set(before.namelist()), set(after.namelist())
        for name in sorted(had | has):
            yield (
                name,
                before.read(name).decode() if name in had else "",
                after.read(name).decode() if name in has else "",
            )


def kernels(text: str) -> dict[str, str]:
    """Return the functions of a module by name, and all the rest as "module"."""
    lines = text.splitlines()
    found, rest, behind = {}, [], 0
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
            found[node.name] = "\n".join(lines[first : node.end_lineno])
            rest += lines[behind:first]
            behind = node.end_lineno or first
    rest += lines[behind:]
    module = "\n".join(rest).strip()
    return {"module": module, **found} if module else found


@cache
def category(old: str, new: str, *, trees: bool) -> str:
    """Return the category in which two kernels are equal, or that they differ."""
    if not old or not new:
        return "only new" if new else "only old"
    if old == new:
        return "bytes"
    if trees:
        before, after = ast.parse(old), ast.parse(new)
        if ast.dump(before) == ast.dump(after):
            return "tree"
        before, after = _Indices().visit(before), _Indices().visit(after)
        if ast.dump(before) == ast.dump(after):
            return "tree but casts"
    return "differs"


class _Indices(ast.NodeTransformer):
    """Takes the casts out of indices."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        node.slice = _Casts().visit(node.slice)
        return node


class _Casts(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        is_cast = isinstance(node.func, ast.Name) and node.func.id == CAST
        return node.args[0] if is_cast and len(node.args) == 1 else node


def _diff(old: str, new: str, name: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), f"old/{name}", f"new/{name}", lineterm=""
    )
    return "\n".join(lines)
