"""Combines of contributions into one value."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.program.combine import NO_SOURCE, identity_value
from featgraph.program.functions import GatherFunction, ReduceFunction
from featgraph.program.operations import Nothing
from featgraph.program.program import Program
from featgraph.reference.facts import Facts
from featgraph.reference.numbers import as_number, freeze, round_to

__all__ = ["Accumulator"]


class Accumulator:
    """The entries of one vertex while its contributions are combined.

    Sums and products are taken in float64 or int64. Values for min, max, argmin and
    argmax are rounded to the storage dtype first, so that ties are those of a kernel.

    Attributes
    ----------
    result : ndarray
        The combined value, one entry a feature (or a pair of them).
    sources : ndarray
        For argmin and argmax, the source of the best key.
    magnitude : ndarray
        Sum of the absolute contributions.
    """

    def __init__(
        self, program: Program, function: GatherFunction | ReduceFunction, facts: Facts
    ) -> None:
        self.combine = function.combine
        self.rules = function.combine.rules
        self.dtype = np.dtype(facts.names[function.into].dtype)
        self.wide = np.dtype(np.float64) if self.dtype.kind == "f" else self.dtype
        self.identity = identity_value(self.combine, self.dtype)
        self.custom: Any = None
        if self.combine.function is not None:
            self.custom = freeze(program, self.combine.function)
        self.result: npt.NDArray[Any] = np.zeros(0)
        self.sources: npt.NDArray[Any] = np.zeros(0)
        self.magnitude: npt.NDArray[np.float64] = np.zeros(0)

    def begin(self, shape: tuple[int, ...]) -> None:
        """Start with the identity in every entry."""
        self.result = np.full(shape, self.identity, self.wide)
        self.sources = np.full(shape, NO_SOURCE, np.int32)
        self.magnitude = np.zeros(shape)

    def add(self, place: tuple[int | None, int], value: Any, source: int) -> None:
        """Combine `value`, the contribution at ``place = (i, f)`` from `source`."""
        if isinstance(value, Nothing):
            return
        if self.rules.order and value != value:
            return  # NaN is neither less nor greater (S5)
        i, f = place
        entry = () if self.result.ndim == 0 else (f,) if i is None else (i, f)
        value = self._typed(value)
        if not self.rules.is_arg and self.rules.gives != "bool":
            self.magnitude[entry] += abs(float(value))
        if self.rules.is_arg:
            if self._is_better(value, source, entry):
                self.result[entry], self.sources[entry] = value, source
        else:
            self.result[entry] = self._typed(self._combined(self.result[entry], value))

    def _typed(self, value: Any) -> Any:
        """Return `value` in the type of the result; rounded if it is compared."""
        if self.rules.gives == "bool":
            return bool(value)
        if self.dtype.kind == "f":
            compared = self.rules.order
            return as_number(
                round_to(self.dtype.name, value) if compared else float(value)
            )
        return as_number(round_to(self.dtype.name, value))

    def _is_better(self, key: Any, source: int, entry: tuple[int, ...]) -> bool:
        best, best_source = self.result[entry], self.sources[entry]
        if best_source == NO_SOURCE:
            return True
        if key == best:
            return bool(source < best_source)
        return bool(key < best if self.rules.order == "min" else key > best)

    def _combined(self, a: Any, b: Any) -> Any:
        pair: Any = self.custom or self.combine.pair
        return pair(as_number(a), b)
