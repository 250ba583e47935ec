"""Links between ranks: the time of an exchange by its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import ArgumentError

__all__ = ["LINKS", "Link", "named_link"]


@dataclass(frozen=True)
class Link:
    """The time of one exchange of all ranks.

    Attributes
    ----------
    name : str
    points : tuple of (bytes, seconds)
        Ascending bytes that a rank sends or receives, whichever are more, from 0 on,
        and the seconds. Times are interpolated between points, and extrapolated from
        the last two.
    peer_s : float
        Additional seconds for each peer but the first.

    Raises
    ------
    ArgumentError
        If points do not ascend from 0 bytes, or have invalid seconds.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    peer_s: float = 0.0

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        rises = all(a < b for a, b in pairwise(sizes))
        is_number = all(np.isfinite(p).all() and min(p) >= 0 for p in self.points)
        if len(sizes) < 2 or sizes[0] != 0 or not rises or not is_number:
            raise ArgumentError(
                f"link {self.name!r} has invalid times",
                where="points",
                got=f"{self.points!r:.80}",
                expected="two or more pairs of bytes, ascending from 0, and seconds",
            )

    @classmethod
    def of(cls, name: str, latency_s: float, bytes_a_second: float) -> Link:
        """Return a link of a latency and a bandwidth."""
        return cls(name, ((0.0, latency_s), (1e9, latency_s + 1e9 / bytes_a_second)))

    @property
    def bytes_a_second(self) -> float:
        """Bandwidth of the largest messages, in bytes per second."""
        (size, seconds), (larger, longer) = self.points[-2:]
        # Measured times of two sizes may be equal.
        return (larger - size) / max(longer - seconds, 1e-15)

    def seconds(self, nbytes: float, ranks: int) -> float:
        """Return the seconds of an exchange in which a rank sends or receives `nbytes`.

        Zero on one rank.
        """
        if ranks < 2:
            return 0.0
        sizes, times = (np.array(of) for of in zip(*self.points, strict=True))
        beyond = max(nbytes - sizes[-1], 0.0) / self.bytes_a_second
        return float(
            np.interp(nbytes, sizes, times) + beyond + self.peer_s * (ranks - 2)
        )


#: NVLink: 18 links between two NVIDIA H200, measured 2026-11-22 with NCCL: 25 us an
#: exchange of few bytes, 332 GB/s each way. All others are assumed: networks have 35 us
#: and 90 % of their line rate; "shared" (memory that processes share) and "gloo" (over
#: the loopback address) serve where `calibrate` has not measured the engine.
LINKS = {
    "nvlink": Link.of("nvlink", 25e-6, 332e9),
    "400g": Link.of("400g", 35e-6, 45e9),
    "100g": Link.of("100g", 35e-6, 11.25e9),
    "shared": Link.of("shared", 30e-6, 3e9),
    "gloo": Link.of("gloo", 400e-6, 0.8e9),
}


def named_link(name: str, known: Sequence[Link] = ()) -> Link:
    """Return a link by its name: one of `known`, or else of `LINKS`.

    Raises
    ------
    ArgumentError
        If there is no such link.
    """
    found = {**LINKS, **{link.name: link for link in known}}
    if name not in found:
        raise ArgumentError(
            "there is no such link",
            where="links",
            got=repr(name),
            expected=", ".join(found),
        )
    return found[name]
