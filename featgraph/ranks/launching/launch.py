"""The options of ``featgraph launch``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from featgraph.base.dataclass import dataclass
from featgraph.ranks.launching.hosts import Host

__all__ = ["Launch"]


@dataclass(frozen=True)
class Launch:
    """A program to be launched on ranks.

    Attributes
    ----------
    command : sequence of str
        The program of each rank.
    hosts : sequence of Host
    agents : sequence of list of str
        The command that runs the agent of each host.
    restarts : int
        Most restarts of all ranks after failures.
    grace : float
        Seconds that other ranks have to end by themselves after a failure.
    gpus : str
        "own": each rank needs a GPU of its own; "auto": ranks share the GPUs of their
        host, if there are any.
    logs : Path or None
        See `Output`.
    """

    command: Sequence[str]
    hosts: Sequence[Host]
    agents: Sequence[list[str]]
    restarts: int = 0
    grace: float = 5.0
    gpus: str = "auto"
    logs: Path | None = None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(host.ranks for host in self.hosts)
