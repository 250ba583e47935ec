"""Ranks and their engines, which exchange arrays of bytes and numbers.

Nothing here depends on graphs: callers decide which data is sent, and when. The cost
model's `forecast`, `calibrate`, `Machine` and `H200` (0059) are public names here, too;
they are imported at the first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from featgraph.ranks.engines.loopback import NullEngine, current_engine, run_ranks
from featgraph.ranks.engines.protocol import Engine, Traffic
from featgraph.ranks.launching.start import init, restart_count

if TYPE_CHECKING:
    from featgraph.ranks.cost.calibrate import calibrate
    from featgraph.ranks.cost.forecast import forecast
    from featgraph.ranks.cost.machine import H200, Machine

__all__ = [
    "H200",
    "Engine",
    "Machine",
    "NullEngine",
    "Traffic",
    "calibrate",
    "current_engine",
    "forecast",
    "init",
    "restart_count",
    "run_ranks",
]


#: Public names of the cost model -> their modules.
_OF_MODEL = {
    "calibrate": "calibrate", "forecast": "forecast",
    "H200": "machine", "Machine": "machine",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import names of the cost model at the first use: it needs the whole runtime."""
    if name in _OF_MODEL:
        module = importlib.import_module(f"featgraph.ranks.cost.{_OF_MODEL[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
