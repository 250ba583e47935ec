"""Constants of a machine: seconds of edges, vertices and rows of a superstep.

A `Machine` has a `Curve` for each kind of work. `H200` has assumed and measured
constants of that GPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from featgraph.base.dataclass import asdict, dataclass, replace
from featgraph.base.errors import ArgumentError, FileFormatError
from featgraph.base.files import load_json
from featgraph.ranks.engines.links import Link
from featgraph.runtime.streaming.needs import MOVING, buffers_in

__all__ = ["H200", "Curve", "Machine"]


@dataclass(frozen=True)
class Curve:
    """Seconds of one item by the width k of its rows and the bytes read at random.

    Attributes
    ----------
    widths : tuple of float
        Ascending.
    near, far : tuple of float
        Seconds at each width if all rows that are read at random have `near_bytes`
        (which fit in a cache) or `far_bytes`.
    near_bytes, far_bytes : float
    """

    widths: tuple[float, ...]
    near: tuple[float, ...]
    far: tuple[float, ...]
    near_bytes: float = 1.0
    far_bytes: float = 2.0

    def __post_init__(self) -> None:
        columns = self.widths, self.near, self.far
        sizes = self.near_bytes, self.far_bytes
        is_sound = bool(self.widths) and len({len(of) for of in columns}) == 1
        is_sound = is_sound and all(map(_is_count, (*sum(columns, ()), *sizes)))
        is_sound = is_sound and all(a < b for a, b in pairwise((0, *self.widths)))
        if not is_sound or not 0 < self.near_bytes <= self.far_bytes:
            raise ArgumentError(
                "a curve with invalid times",
                got=f"{self!r:.160}",
                expected="ascending widths, and as many numbers of seconds for both",
            )

    @classmethod
    def flat(cls, by_width: Mapping[float, float]) -> Curve:
        """Return a curve that does not depend on the bytes read."""
        seconds = tuple(by_width.values())
        return cls(tuple(by_width), seconds, seconds)

    def at(self, width: float, nbytes: float = 1.0) -> float:
        """Return the seconds of one item, with `nbytes` read at random.

        Seconds are interpolated linearly between widths, and proportional to the width
        beyond the last one; between sizes, they are interpolated in the logarithm.
        """
        share = float(
            np.interp(
                np.log(max(nbytes, 1.0)),
                np.log([self.near_bytes, self.far_bytes]),
                [0.0, 1.0],
            )
        )
        near, far = (np.interp(width, self.widths, of) for of in (self.near, self.far))
        beyond = max(width / self.widths[-1], 1.0)
        return float(((1 - share) * near + share * far) * beyond)


@dataclass(frozen=True)
class Machine:
    """The constants of a machine; in Lux's model these are slopes.

    Attributes
    ----------
    name : str
        The name of the machine.
    pull, push : Curve
        Seconds of an edge.
    vertex : Curve
        Seconds of a swept vertex: its function and its commit.
    row : Curve
        Seconds to pack and store a row of a message, half at either end.
    fixed_s : float
        Seconds of a superstep without due vertices.
    exchanges : int
        Number of exchanges of a superstep.
    overlap : float
        The fraction of the shorter of work and transfer that the longer one hides.
    links : tuple of Link
        Measured links.
    stream_s : float
        For a GPU, seconds per byte of edges streamed from the host's memory.
    memory_bytes : int or None
        Limit of its memory; edges that do not fit are streamed. None: no limit.

    Raises
    ------
    ArgumentError
        If a constant is negative or not finite, or `overlap` exceeds 1.
    """

    name: str
    pull: Curve
    push: Curve
    vertex: Curve
    row: Curve
    fixed_s: float
    exchanges: int = 2
    overlap: float = 0.0
    links: tuple[Link, ...] = ()
    stream_s: float = 0.0
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        names = "fixed_s", "exchanges", "overlap", "stream_s"
        constants = {name: getattr(self, name) for name in names}
        constants["memory_bytes"] = self.memory_bytes or 0
        if not all(map(_is_count, constants.values())) or self.overlap > 1:
            raise ArgumentError(
                f"machine {self.name!r} has invalid constants",
                got=f"{constants!r:.160}",
                expected="seconds, a number of exchanges, and a share of 0 to 1",
            )

    def streamed_s(self, edges: float, stays: float) -> float:
        """Return the seconds to stream the edges that do not fit in memory.

        Parameters
        ----------
        edges, stays : float
            Bytes of edges, and of all other data on the GPU.
        """
        if self.memory_bytes is None or edges + stays <= self.memory_bytes:
            return 0.0
        size, count = buffers_in(max(int(self.memory_bytes - stays), 0))
        return max(edges - (count - MOVING) * size, 0.0) * self.stream_s

    def under(self, memory_bytes: int | None) -> Machine:
        """Return the machine with a limit of its memory; None: no limit."""
        return replace(self, memory_bytes=memory_bytes)

    def with_link(self, link: Link) -> Machine:
        """Return the machine with a link added, or replaced by name."""
        others = tuple(known for known in self.links if known.name != link.name)
        return replace(self, links=(*others, link))

    def to_json(self) -> str:
        """Return the constants as JSON text, for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Machine:
        """Return the machine of a JSON text.

        Raises
        ------
        FileFormatError
            If the text has no constants of a machine.
        """
        try:
            constants: dict[str, Any] = load_json(text)
            curves: dict[str, Any] = {
                name: Curve(**{k: _tupled(v) for k, v in constants.pop(name).items()})
                for name in ("pull", "push", "vertex", "row")
            }
            links = tuple(Link(**{k: _tupled(v) for k, v in one.items()})
                          for one in constants.pop("links"))  # fmt: skip
            return cls(**constants, **curves, links=links)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileFormatError(
                "not the constants of a machine", got=f"{error!r:.80}"
            ) from error


def _is_count(value: object) -> bool:
    """Whether a value is a finite number, 0 or more."""
    return isinstance(value, int | float) and 0 <= value < float("inf")


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


#: Pulled edges: supersteps of bench/results/widths-gpu.jsonl (uniform-21-16: 33.6M
#: edges, 2.1M vertices), less vertices; pushed edges: superstep-gpu-kron21.jsonl.
#: Assumed: a vertex reads and writes its rows at about 4 TB/s; a superstep takes 20 us;
#: a row takes the sum of packing and the stores of a peer, at 205 to 370 GB/s. The link
#: to the host's memory is that of an H100 (0063).
H200 = Machine(
    "NVIDIA H200",
    pull=Curve.flat({1: 7.4e-12, 4: 1.3e-11, 8: 1.8e-11, 16: 2.3e-11, 32: 3.2e-11,
                     64: 6.2e-11, 128: 1.2e-10}),
    push=Curve.flat({4: 4.1e-11, 8: 5.3e-11, 32: 1.27e-10}),
    vertex=Curve.flat({1: 8e-12, 4: 1.2e-11, 32: 9.6e-11, 128: 3.8e-10}),
    row=Curve.flat({1: 3e-11, 4: 7.8e-11, 32: 3.5e-10, 128: 1.4e-9}),
    fixed_s=20e-6,
    stream_s=1 / 54e9,
)  # fmt: skip
