"""Names of vertices in a folder of slices: integers, or text.

Text is one array of bytes: the UTF-8 text of each name, followed by a zero byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from featgraph.base.errors import FileFormatError, GraphInputError
from featgraph.graph.building.names import VertexNames
from featgraph.graph.slices.checks import require_names
from featgraph.graph.slices.files import Slices

__all__ = ["arrays_of_names", "read_names", "stored_names"]

Array = NDArray[Any]


def stored_names(names: VertexNames | None) -> Array | None:
    """Return names as slices store them: integers, or letters (uint8).

    Raises
    ------
    GraphInputError
        If names are neither integers nor text.
    """
    if names is None or isinstance(names, np.ndarray):
        return names
    for name in names:
        if not isinstance(name, str) or "\0" in name:
            raise GraphInputError(
                "a vertex name that slices cannot store",
                got=f"{name!r:.60} ({type(name).__name__})",
                expected="integers, or text without NUL characters",
                fix="name the vertices by text",
            )
    text = "".join(f"{name}\0" for name in names)
    try:
        return np.frombuffer(text.encode(), np.uint8)
    except UnicodeEncodeError as error:
        raise GraphInputError(
            "a vertex name that UTF-8 cannot store", got=str(error)[:200]
        ) from None


def arrays_of_names(names: Array | None) -> dict[str, Array]:
    """Return stored names as a dict with the name of their array."""
    if names is None:
        return {}
    return {"letters" if names.dtype == np.uint8 else "names": names}


def read_names(slices: Slices, *, maps: bool = False) -> VertexNames | None:
    """Return the names of all vertices; None if there are none.

    Parameters
    ----------
    slices : Slices
    maps : bool, optional
        Whether to memory-map integers.

    Raises
    ------
    FileFormatError
        If integers do not ascend, or letters are not V different names.
    """
    arrays = slices.manifest.arrays
    if "names" in arrays:
        numbers = slices.mapped("names") if maps else slices.read("names")
        require_names(slices, numbers)
        return numbers
    if "letters" not in arrays:
        return None
    try:
        *names, rest = slices.read("letters").tobytes().decode().split("\0")
    except UnicodeDecodeError as error:
        names, rest = [], str(error)
    count = slices.manifest.vertex_count
    if rest or len(names) != count or len(set(names)) != count:
        raise FileFormatError(
            "letters that are not the names of vertices",
            where=str(slices.folder / "letters.bin"),
            got=rest or f"{len(set(names))} different names",
            expected=f"{count}",
            fix="make the folder again: featgraph convert",
        )
    return tuple(names)
