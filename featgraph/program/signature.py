"""Types of properties and scalars: all that planning knows of a State."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np

__all__ = ["PropertyKind", "PropertyType", "Signature"]


class PropertyKind(Enum):
    """What a property has one entry for; a VECTOR, of K or K x K, for nothing."""

    VERTEX = "vertex"
    EDGE = "edge"
    VECTOR = "vector"
    SCALAR = "scalar"

    # By identity, without a call of Python: each call of a foldmap looks up types.
    __hash__ = object.__hash__


class PropertyType(NamedTuple):
    """Type of one property.

    Attributes
    ----------
    kind : PropertyKind
        What it has one entry for.
    dtype : str
        NumPy name of its storage type. Scalars: ``"bool"``, ``"int64"`` or ``"real"``
        (the foldmap's storage type).
    item_shape : tuple of int
        Shape of one entry: ``()``, ``(K,)`` or ``(K, K)``; the whole shape of a vector
        or matrix that belongs to no vertex.
    iterated : bool
        Whether ``name_next`` comes with it.
    shared : bool
        Edge properties of undirected graphs: one row for both directions, so that no
        function may write it.
    """

    kind: PropertyKind
    dtype: str
    item_shape: tuple[int, ...] = ()
    iterated: bool = False
    shared: bool = False

    @property
    def is_real(self) -> bool:
        """Whether it holds real numbers."""
        return self.dtype == "real" or np.dtype(self.dtype).kind == "f"

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
