"""Ranks: which ones there are, and how they hand each other bytes.

It knows of no graph: what is sent, and when, is decided by those who call it.
"""

from featgraph.distributed.current import current_engine
from featgraph.distributed.engines.null import NullEngine
from featgraph.distributed.engines.protocol import Engine, Traffic
from featgraph.distributed.loopback import run_ranks
from featgraph.distributed.start import init, restart_count

__all__ = [
    "Engine",
    "NullEngine",
    "Traffic",
    "current_engine",
    "init",
    "restart_count",
    "run_ranks",
]
