"""Take an array as a caller gives it: on the host, or on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.arrays.values import is_on_gpu
from featgraph.graph.inputs.base import GivenArray
from featgraph.graph.inputs.host import HostArray
from featgraph.graph.inputs.numbers import number_array

__all__ = ["given_array"]


def given_array(
    values: Any, dtype: npt.DTypeLike | None = None, where: str = "values"
) -> GivenArray:
    """Take an array as a caller gives it, and leave it where it is.

    Parameters
    ----------
    values : array_like
        Of the host, or with ``__cuda_array_interface__`` or ``__dlpack__`` in the
        memory of the GPU that kernels run on. What no kernel can read there is copied
        to the host: arrays without an axis, without elements, or of float16.
    dtype : dtype, optional
        The type that it gets, if that holds its values; by default it keeps its own.
        Floats are rounded.
    where : str, optional
        The argument that it is; errors name it.

    Returns
    -------
    GivenArray

    Raises
    ------
    GraphInputError
        If it is not an array of bools, integers or floats: text, dates, complex
        numbers, objects, or rows of different lengths. If entries are masked or
        missing. If `dtype` turns a value into another one: a finite number becomes
        infinite, another one zero, or a fraction an integer; it names the first one.
    StateError
        If it lies on another GPU, or its library does not give it away.

    Examples
    --------
    >>> import featgraph as fg
    >>> weights = fg.given_array([1.0, -2.0, float("nan")])
    >>> weights.first_row_outside(0, weights.greatest), weights.row(1).item()
    (1, -2.0)
    """
    found: GivenArray
    if isinstance(values, GivenArray):
        kind: Any = type(values)
        found = kind(values.values)  # which may have changed since
    elif is_on_gpu(values):
        found = _on_gpu(values, where)
    else:
        found = HostArray(number_array(values, where))
    return found if dtype is None else found.astype(np.dtype(dtype), where)


def _on_gpu(values: Any, where: str) -> GivenArray:
    # Both import the dialect.
    from featgraph.arrays.foreign import foreign_array
    from featgraph.graph.inputs.device import DeviceArray

    foreign = foreign_array(values, where)
    if foreign is None:
        return HostArray(number_array(values, where))
    return DeviceArray(foreign.array)
