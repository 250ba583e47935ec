"""Ranks and their engines, which exchange arrays of bytes and numbers.

Nothing here depends on graphs: callers decide which data is sent, and when. The cost
model's `forecast` and `calibrate` (0059) are public names here, too; they are imported
at the first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featgraph.ranks.engines.current import NullEngine, current_engine
from featgraph.ranks.engines.loopback import run_ranks
from featgraph.ranks.engines.protocol import Engine, Traffic
from featgraph.ranks.launching.start import init, restart_count

if TYPE_CHECKING:
    from featgraph.ranks.cost.calibrate import calibrate
    from featgraph.ranks.cost.forecast import forecast

__all__ = [
    "Engine",
    "NullEngine",
    "Traffic",
    "calibrate",
    "current_engine",
    "forecast",
    "init",
    "restart_count",
    "run_ranks",
]


def __getattr__(name: str) -> Any:
    """Import names of the cost model at the first use: it stands above the runtime."""
    if name == "calibrate":
        from featgraph.ranks.cost.calibrate import calibrate

        return calibrate
    if name == "forecast":
        from featgraph.ranks.cost.forecast import forecast

        return forecast
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
