"""The host of each rank."""

from __future__ import annotations

import os
import socket

import numpy as np
import numpy.typing as npt

from featgraph.ranks.engines.protocol import Engine

__all__ = ["host_of_process", "hosts_of"]


def host_of_process() -> str:
    """Return the name of the host on which the launcher has started this process.

    With `featgraph launch` it is the name in the hosts file, with torchrun the number
    of the node, else the system's host name. Several nodes of torchrun on one machine
    count as several hosts.
    """
    if "FEATGRAPH_HOST" in os.environ:
        return os.environ["FEATGRAPH_HOST"]
    if "GROUP_RANK" in os.environ:
        return f"node {os.environ['GROUP_RANK']}"
    return socket.gethostname()


def hosts_of(engine: Engine) -> npt.NDArray[np.int64]:
    """Return the number of each rank's host: int64, shape (P,); all ranks call it.

    Hosts are numbered in the order of their first ranks.
    """
    told = np.frombuffer(engine.host.encode(), np.uint8)
    names = [bytes(one) for one in engine.all_gather(told, about="hosts of ranks")]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], np.int64)
