"""Which engine ranks that are processes take; all of them come to the same one."""

from __future__ import annotations

import os
from ipaddress import ip_address

from featgraph.config import config
from featgraph.distributed.engines.meeting import is_possible
from featgraph.distributed.engines.shared_memory import SharedEngine
from featgraph.distributed.engines.torch_engine import TorchEngine
from featgraph.errors import ArgumentError

__all__ = ["ENGINES", "engine_class", "require_engine"]

#: What `init` takes.
ENGINES = ("auto", "shared", "gloo")


def require_engine(name: str) -> None:
    """Raise where no engine has this name, on one rank, too."""
    if name not in ENGINES:
        raise ArgumentError(
            "no engine of this name", got=repr(name), expected=", ".join(ENGINES)
        )


def engine_class(
    name: str, size: int, address: str
) -> type[SharedEngine | TorchEngine]:
    """Return the engine for so many ranks, of which the first one is at an address.

    "auto" shares memory where all ranks are on this host: where the launcher says that
    it has started all of them here, or, if it says nothing, where ranks meet at a
    loopback address. Each rank finds the same, without asking. Where rows are to go
    over NCCL (`config.gpu_links`), only the engine of PyTorch hands them over.
    """
    if name == "auto":
        here = os.environ.get("LOCAL_WORLD_SIZE")
        are_here = _is_loopback(address) if here is None else here == str(size)
        has_memory = are_here and is_possible() and config.gpu_links != "engine"
        name = "shared" if has_memory else "gloo"
    return SharedEngine if name == "shared" else TorchEngine


def _is_loopback(address: str) -> bool:
    try:
        return address == "localhost" or ip_address(address).is_loopback
    except ValueError:
        return False
