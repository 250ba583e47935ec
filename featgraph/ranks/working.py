"""The number of ranks that get vertices, and cuts that leave the others without any."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph._arguments import shown
from featgraph.distributed.engines.protocol import Engine
from featgraph.errors import GraphInputError
from featgraph.ranks.agreed import require_same

__all__ = ["with_idle", "working_ranks"]

Cuts = npt.NDArray[np.int64]


def working_ranks(engine: Engine, asked: Any) -> int:
    """Return how many ranks get vertices; all ranks call it.

    Parameters
    ----------
    engine : Engine
    asked : None or int
        None: all ranks. A single rank takes any number.

    Raises
    ------
    GraphInputError
        On all ranks, if `asked` is invalid, or differs between ranks.
    """
    if asked is None:
        return engine.size
    about = "how many ranks work"
    what, fix = "ranks are to work in different numbers", "one ranks= on all of them"
    require_same(engine, f"ranks={asked!r}", what, fix, about)
    is_number = isinstance(asked, int | np.integer) and not isinstance(asked, bool)
    if not is_number or asked < 1 or asked > engine.size > 1:
        raise GraphInputError(
            "not how many ranks may work",
            where="ranks=",
            got=shown(asked),
            expected=f"a number from 1 to {engine.size}",
            fix="ranks=1 for a small graph; leave ranks out for all of them",
        )
    return min(int(asked), engine.size)


def with_idle(cuts: npt.ArrayLike, size: int) -> Cuts:
    """Return cuts for `size` ranks, of which the last ones have no vertices."""
    given = np.asarray(cuts, np.int64)
    return np.pad(given, (0, size + 1 - given.size), mode="edge")
