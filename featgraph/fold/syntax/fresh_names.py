"""Names that passes make up: no local of the user's has one of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator

from featgraph.fold.syntax.names import letters
from featgraph.fold.tree.statements import Body

__all__ = ["FreshNames"]

#: Stands in a name for letters to come, with a number. Names of users are ASCII.
_OPEN = re.compile(r"ø(\d+)")


class FreshNames:
    """Names that several passes make up; their letters follow the final text.

    What one statement needs is a group. Which group is first is known when all passes
    are through.
    """

    def __init__(self) -> None:
        self.stems: list[str] = []
        self.groups: list[list[int]] = []

    def begin(self) -> None:
        """Begin a group: that of a further statement."""
        self.groups.append([])

    def __call__(self, stem: str) -> str:
        """Return a name that nothing else has; ends may be put to it."""
        self.groups[-1].append(len(self.stems))
        self.stems.append(stem)
        return f"{stem}_ø{len(self.stems) - 1}"

    def settle(self, body: Body, taken: Collection[str]) -> None:
        """Put letters into the names in `body`, so that none of them is `taken`."""
        group_of = {n: group for group in self.groups for n in group}
        final: dict[int, str] = {}
        count = 0
        for name in _names(body):
            found = _OPEN.search(name.id)
            if found is None:
                continue
            number = int(found[1])
            for n in group_of[number] if number not in final else []:
                count += 1
                while f"{self.stems[n]}_{letters(count)}" in taken:
                    count += 1
                final[n] = letters(count)
            name.id = _OPEN.sub(final[number], name.id)


def _names(body: Iterable[ast.AST]) -> Iterator[ast.Name]:
    """Yield names in the order of the text."""
    for node in body:
        if isinstance(node, ast.Name):
            yield node
        yield from _names(ast.iter_child_nodes(node))
