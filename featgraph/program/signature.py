"""Types of properties and scalars: the part of a State that planning depends on."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, StrEnum
from typing import NamedTuple

import numpy as np

from featgraph.base.errors import StateError

__all__ = ["PropertyKind", "PropertyType", "Real", "Signature", "widest_real"]


class Real(StrEnum):
    """A type of real numbers; as text, its name in NumPy and in kernels."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"

    def __repr__(self) -> str:
        return repr(self.value)

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return np.dtype(self.value).itemsize

    def is_wider(self, dtype: str) -> bool:
        """Return whether a number of `dtype` is a narrower real one."""
        return dtype in set(Real) and Real(dtype).itemsize < self.itemsize


class PropertyKind(Enum):
    """The owner of the entries of a property.

    A VECTOR, of shape (K,) or (K, K), and a SCALAR belong to no vertex or edge.
    """

    VERTEX = "vertex"
    EDGE = "edge"
    VECTOR = "vector"
    SCALAR = "scalar"

    # By identity, without a Python call: each call of a foldmap looks up types.
    __hash__ = object.__hash__


class PropertyType(NamedTuple):
    """Type of one property.

    Attributes
    ----------
    kind : PropertyKind
        The owner of its entries.
    dtype : str
        NumPy name of its storage type. Scalars: ``"bool"``, ``"int64"`` or ``"real"``
        (the foldmap's type of real numbers).
    item_shape : tuple of int
        Shape of one entry: ``()``, ``(K,)`` or ``(K, K)``; the whole shape of a vector
        or matrix that belongs to no vertex.
    iterated : bool
        Whether it has a next buffer, ``name_next``.
    shared : bool
        Edge properties of undirected graphs: one row for both directions, so that no
        function may write it.
    computed_as : str or None
        NumPy name of its arithmetic type, if that is another one (`arithmetic`).
    column : str
        The name of the graph's column that it refers to, in every version; "" for
        values of a State.
    """

    kind: PropertyKind
    dtype: str
    item_shape: tuple[int, ...] = ()
    iterated: bool = False
    shared: bool = False
    computed_as: str | None = None
    column: str = ""

    @property
    def arithmetic(self) -> str:
        """The type in which functions compute with its values."""
        return self.computed_as or self.dtype

    @property
    def is_real(self) -> bool:
        """Whether functions compute real numbers with it."""
        return self.arithmetic == "real" or np.dtype(self.arithmetic).kind == "f"

    def require_one_type(self, name: str) -> None:
        """Refuse a storage type that is not the arithmetic type.

        Raises
        ------
        StateError
            If they differ: no target converts at loads and stores yet.
        """
        if self.arithmetic != self.dtype:
            raise StateError(
                "a property is stored in the type that functions compute in",
                where=f"property {name!r}",
                got=f"stored as {self.dtype}, computed as {self.arithmetic}",
                expected="one type",
                fix=f"store it as {self.arithmetic}",
            )

    def describe(self) -> str:
        """Return, e.g., ``vertex float32 (V, 8), iterated``."""
        first = {PropertyKind.VERTEX: ("V",), PropertyKind.EDGE: ("E",)}.get(
            self.kind, ()
        )
        shape = (*first, *map(str, self.item_shape))
        inside = ", ".join(shape) + ("," if len(shape) == 1 else "")
        shown = f" ({inside})" if shape else ""
        is_matrix = self.kind is PropertyKind.VECTOR and len(self.item_shape) == 2
        return (
            f"{'matrix' if is_matrix else self.kind.value} "
            f"{self.dtype}{shown}{', iterated' if self.iterated else ''}"
        )


#: Property name -> type.
Signature = dict[str, PropertyType]


def widest_real(types: Iterable[PropertyType]) -> Real:
    """Return the widest arithmetic type of real numbers; float32 if there is none."""
    found = [Real(t.arithmetic) for t in types if t.arithmetic in set(Real)]
    return max(found, key=lambda real: real.itemsize, default=Real.FLOAT32)
