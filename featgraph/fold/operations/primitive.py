"""What the folder knows of an operation beside its declaration."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import ClassVar

from featgraph.base.dataclass import dataclass
from featgraph.fold.operations.contexts import (
    Looped,
    Types,
    Unrolled,
    VectorFacts,
    Vectorized,
)
from featgraph.fold.tree.expressions import Operate
from featgraph.program.operations import Operation

__all__ = ["Primitive"]


@dataclass(frozen=True)
class Primitive:
    """One operation; families derive from it.

    An operation whose lanes take part together has `unroll` and `loop`. One that can be
    done with vectors has `fits_vectors` and `vectorize`, too.

    Attributes
    ----------
    operation : Operation
        Its declaration.
    stem : str
        What its results are called in generated functions.
    edge_array : str
        The array of the graph that says it of an edge; "" for what lanes do together.
    """

    operation: Operation
    stem: str = ""
    edge_array: str = ""
    #: Whether it gives a k x k matrix.
    is_matrix: ClassVar[bool] = False
    #: Whether it stands for its operands only: what takes it reads them.
    is_pattern: ClassVar[bool] = False
    #: Whether it works in a k x k area of memory where registers do not suffice.
    takes_area: ClassVar[bool] = False
    #: Whether it multiplies by a matrix, entry by entry.
    multiplies: ClassVar[bool] = False
    #: Whether it compares features one by one: named copies take long to compile.
    compares: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Name of the operation."""
        return self.operation.name

    @property
    def takes_matrix(self) -> bool:
        """Whether its first operand is a k x k matrix."""
        return bool(self.operation.matrix)

    @property
    def is_exact(self) -> bool:
        """Whether its bits do not depend on the order in which features come."""
        return self.compares

    def typed(self, call: Operate, types: Types) -> str:
        """Type the operands of a call, which it changes; return the type it gives.

        If nothing else is said: real numbers, and what is given as a whole.
        """
        call.args = [types.matrix_or_row(x) for x in call.args]
        return "real"

    def varies(self, call: Operate, varies: Callable[[ast.AST], bool]) -> bool:
        """Return whether the result differs between features, given what else does.

        If nothing else is said, it has an entry for each feature.
        """
        return True

    def unroll(self, call: Operate, target: str, copies: Unrolled) -> None:
        """Add ``target = operation(...)`` over named copies, and over lanes."""
        raise NotImplementedError

    def loop(self, call: Operate, target: str, loops: Looped) -> None:
        """Add ``target = operation(...)`` as loops over features."""
        raise NotImplementedError

    def ends_loop(self, call: Operate) -> bool:
        """Return whether it can end the loop of the statements in front of it."""
        return False

    def fits_vectors(self, call: Operate, facts: VectorFacts) -> bool:
        """Return whether it can be made over vectors of features."""
        return False

    def vectorize(self, call: Operate, target: str, vectors: Vectorized) -> None:
        """Add ``target = operation(...)`` over vectors of features."""
        raise NotImplementedError
