"""Edges drawn on a target."""

from __future__ import annotations

from typing import Any

import numpy as np

from featgraph.arrays.values import DeviceValues

__all__ = ["drawn"]


def drawn(target: str, name: str, count: int, *parameters: Any) -> tuple[Any, Any]:
    """Return sources and targets of edges, int32, where they were drawn.

    Parameters
    ----------
    target : {"cpu", "cuda"}
    name : str
        A function of `featgraph.arrays.drawing_cpu`, and of the kernels.
    count : int
        How many edges.
    *parameters
        What the function takes before the arrays.
    """
    if target == "cpu":
        from featgraph.arrays import drawing_cpu  # loads Numba

        u, v = np.empty(count, np.int32), np.empty(count, np.int32)
        getattr(drawing_cpu, name)(*parameters, u, v)
        return u, v
    from featgraph.arrays import drawing_cuda, memory  # imports the dialect

    ends = memory.empty((count,), np.int32), memory.empty((count,), np.int32)
    memory.launch_over(getattr(drawing_cuda, name), count, *parameters, *ends)
    return DeviceValues(ends[0]), DeviceValues(ends[1])
