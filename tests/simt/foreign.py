"""Arrays of another library in the memory of the emulated GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Foreign"]


class Foreign:
    """Presents a NumPy array as one on the GPU; the host must not touch it.

    With `stream`, work of that stream may write it until it is waited for.
    """

    def __init__(self, data: Any, stream: int | None = None) -> None:
        self.data, self.stream = np.asarray(data), stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        found = self.data.__array_interface__
        return {
            "data": found["data"], "shape": found["shape"], "typestr": found["typestr"],
            "strides": self.data.strides, "version": 3, "owner": self.data,
            "stream": self.stream,
        }  # fmt: skip

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("an array of the GPU was taken for one of the host")
