"""A property's values: the one place that has them, until a runtime takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.arrays.values import DeviceValues, Reordered, host_values
from featgraph.program.signature import PropertyType

__all__ = ["Column"]


class Column:
    """One property: its type and its values, in kernel order.

    Attributes
    ----------
    type : PropertyType
    values : ndarray, Filled, Reordered, DeviceValues, scalar, or None
        While a runtime has the values, its `Residency` knows them: an array of the host
        may be out of date then, and is kept for as long as the State lives, since to
        free it early costs the next ones their pages; what is no array is None.
    per_direction : bool
        Whether it is read back with a row for each direction of an edge.
    borrowed : ndarray or None
        The caller's own array, as long as it has the values: nothing writes them.
    """

    def __init__(self, type_: PropertyType, values: Any, per_direction: bool) -> None:
        self.type = type_
        self.values = values
        self.per_direction = per_direction
        self.borrowed: npt.NDArray[Any] | None = None

    def on_host(self) -> Any:
        """Return the values as an array of the host, or the scalar."""
        return host_values(self.values)

    def in_an_array(self) -> Any:
        """Return an array or `DeviceValues`; what is filled, is made."""
        if isinstance(self.values, DeviceValues):
            return self.values
        self.values = host_values(self.values)
        return self.values

    def copy(self, values: Any) -> Column:
        """Return one of the same type with a copy of some values, where they are."""
        return Column(self.type, _copied(values), self.per_direction)


def _copied(values: Any) -> Any:
    if isinstance(values, DeviceValues):
        from featgraph.arrays.memory import copy_of  # imports the dialect

        return DeviceValues(copy_of(values.array), values.width)
    if isinstance(values, Reordered):
        return values.on_host()
    return np.array(values, order="C") if isinstance(values, np.ndarray) else values
