"""Ranks: which ones there are, and how they hand each other bytes.

It knows of no graph: what is sent, and when, is decided by those who call it. What
users ask before there are ranks, `forecast` and `calibrate`, is the model's (0059), and
loaded when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featgraph.distributed.current import current_engine
from featgraph.distributed.engines.null import NullEngine
from featgraph.distributed.engines.protocol import Engine, Traffic
from featgraph.distributed.loopback import run_ranks
from featgraph.distributed.start import init, restart_count

if TYPE_CHECKING:
    from featgraph.model.calibrate import calibrate
    from featgraph.model.forecast import forecast

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
    """Load what the model has: it stands above the runtime."""
    if name == "calibrate":
        from featgraph.model.calibrate import calibrate

        return calibrate
    if name == "forecast":
        from featgraph.model.forecast import forecast

        return forecast
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
