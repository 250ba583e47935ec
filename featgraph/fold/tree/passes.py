"""What a pass is: a function from tree to tree, and what its docstring says of it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from featgraph.base.dataclass import dataclass
from featgraph.fold.tree.statements import Body
from featgraph.fold.tree.verify import Stage, verify

__all__ = ["Pass", "run"]

#: Whether trees are verified behind each pass; tests set it.
verifying = False

Facts = TypeVar("Facts")


@dataclass(frozen=True)
class Pass(Generic[Facts]):
    """A pass, and the nodes that none behind it will meet."""

    run: Callable[[Facts, Body], Body]
    rewrites: tuple[type[ast.AST], ...] = ()

    @property
    def name(self) -> str:
        """What it is called."""
        return self.run.__name__

    @property
    def does(self) -> str:
        """What it does, in a sentence; the docstring says why behind that."""
        return str(self.run.__doc__).partition("\n")[0]


def run(
    passes: Sequence[Pass[Facts]],
    facts: Facts,
    stage_of: Callable[[Pass[Facts]], Stage] = lambda _: Stage(),
) -> Iterator[tuple[Pass[Facts], Body]]:
    """Yield each pass, and the tree behind it; the next pass goes on with that.

    Parameters
    ----------
    stage_of : callable
        What is known behind a pass, beside which nodes are gone.
    """
    tree: Body = []
    gone: tuple[type[ast.AST], ...] = ()
    for one in passes:
        tree = one.run(facts, tree)
        gone += one.rewrites
        if verifying:
            verify(tree, stage_of(one).without(gone))
        yield one, tree
