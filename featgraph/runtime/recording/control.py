"""What a loop on a GPU is told, and what it leaves.

Words of 64 bits, in one array: the header, how many vertices are pending for each
foldmap, what is known of each superstep of the cycle, handles of nodes, and the log.
The host writes all but the log before a loop is launched, and reads all behind it.
Meanwhile they belong to `featgraph.runtime.devices.cuda_arrays`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass, field

__all__ = [
    "ANY",
    "EVERYTHING",
    "WORDS",
    "At",
    "DeviceLoop",
    "LoopMemory",
    "Nodes",
    "Orders",
    "Report",
    "Shape",
    "pack",
]

__all__ += ["unpack"]

# The header: supersteps that have run, and may; whether no further cycle is begun; when
# the loop began, and when the last superstep ended; how long supersteps have been run
# otherwise than was decided, and may be; how long the loop may take; how many vertices
# there are; the handle of the conditional node. Times are in ns.
DONE, LIMIT, ENDS, BEGUN, LAST, LATE, MOST_LATE, MOST, VERTICES, NODE = range(10)
# On which side of what value, a float, a tested one ends the run.
SIDE, BOUND = 10, 11
HEADER = 12
BELOW, ABOVE = 1, 2
#: Of a superstep: the foldmap that runs, the least and largest count of vertices
#: pending for that with which it is run as it was recorded, and which of the values
#: that it hands over is tested: the first is 1, and 0 is none.
TURN, LEAST, LARGEST, TESTED = range(4)
OF_A_STEP = 4
#: Of the log: the count of committed vertices, and the time; behind them what a
#: superstep hands over.
OF_AN_ENTRY = 2
#: Stands for the count where all vertices are pending and there is no set.
EVERYTHING = -1
#: The counts with which anything is run alike.
ANY = EVERYTHING, (1 << 62)


class At(NamedTuple):
    """Where in a loop a superstep stands.

    Attributes
    ----------
    turns, length : int
        Foldmaps, and supersteps of the cycle.
    number, together : int
        Which of the supersteps that run together it is, and how many these are.
    seen : int
        How many values each superstep hands over.
    gates : int
        How many of those that run together have a node of their own: all, or none.
    """

    turns: int
    length: int
    number: int
    together: int
    seen: int
    gates: int


@dataclass(frozen=True)
class Shape:
    """What a loop is like, whatever it is told.

    Attributes
    ----------
    turns, length, together, seen : int
        See `At`.
    is_exact : bool
        Whether it ends behind any superstep, and not behind all that run together.
    """

    turns: int
    length: int
    together: int
    seen: int
    is_exact: bool

    def at(self, number: int) -> At:
        """Return where a superstep stands, by its number of those that run together."""
        whole = self.turns, self.length, number, self.together, self.seen
        return At(*whole, self.gates)

    @property
    def gates(self) -> int:
        """How many supersteps have a node of their own."""
        return self.together if self.is_exact else 0

    @property
    def entry(self) -> int:
        """How many words of the log a superstep takes."""
        return OF_AN_ENTRY + self.seen

    @property
    def log_begins(self) -> int:
        """At which word the log begins."""
        return HEADER + self.turns + OF_A_STEP * self.length + self.gates


@dataclass(frozen=True)
class Nodes:
    """Handles of the conditional nodes of a loop.

    Attributes
    ----------
    loop : int
        Whether supersteps run again.
    gates : tuple of int
        Whether each of those that run together runs; empty where all do.
    """

    loop: int
    gates: tuple[int, ...] = ()


@dataclass
class Orders:
    """What a loop is told.

    Attributes
    ----------
    limit : int
        Supersteps that may run, as many as may run together or a multiple of that.
    seconds, late_seconds : float
        How long it may take; how long supersteps may be run otherwise than is decided.
    vertices : int
        How many vertices are not dead; a number that no count equals where all are.
    pending : sequence of int
        How many vertices are pending for each foldmap; `EVERYTHING` for all.
    steps : sequence of (int, int, int, int)
        Of each superstep of the cycle: the foldmap, the least and largest count of
        vertices pending for that with which it is run so, and which of its values is
        tested, or 0.
    test : (int, float)
        `BELOW` or `ABOVE`, and the limit.
    """

    limit: int
    seconds: float
    late_seconds: float
    vertices: int
    pending: tuple[int, ...]
    steps: tuple[tuple[int, int, int, int], ...]
    test: tuple[int, float] = (BELOW, 0.0)


@dataclass
class Report:
    """What a loop has left.

    Attributes
    ----------
    counts : list of int
        Vertices committed by each superstep that has run.
    seconds : list of float
        The time of each but the first, of which it knows no beginning: 0.
    seen : list of list of float
        What each has handed over.
    """

    counts: list[int]
    seconds: list[float]
    seen: list[list[float]]


def pack(orders: Orders, nodes: Nodes, words: npt.NDArray[np.int64]) -> int:
    """Write orders to words; return how many they take."""
    head = [0] * HEADER
    # A limit of time that a float cannot hold is none.
    most = float(ANY[1])
    head[LIMIT], head[VERTICES] = orders.limit, orders.vertices
    head[NODE], (head[SIDE], bound) = nodes.loop, orders.test
    head[BOUND] = int(np.float64(bound).view(np.int64))
    head[MOST] = int(min(orders.seconds * 1e9, most))
    head[MOST_LATE] = int(min(orders.late_seconds * 1e9, most))
    steps = [word for step in orders.steps for word in step]
    told = [*head, *orders.pending, *steps, *nodes.gates]
    words[: len(told)] = told
    return len(told)


def unpack(words: npt.NDArray[np.int64], shape: Shape) -> Report:
    """Return what the log says."""
    first, entry = shape.log_begins, shape.entry
    log = words[first : first + entry * int(words[DONE])].reshape(-1, entry)
    seen = np.ascontiguousarray(log[:, OF_AN_ENTRY:]).view(np.float64)
    return Report(log[:, 0].tolist(), (log[:, 1] * 1e-9).tolist(), seen.tolist())


#: Words that loops of a thread share: the log of some sixteen thousand supersteps.
WORDS = 1 << 15


@dataclass(frozen=True, eq=False)
class LoopMemory:
    """What loops of one thread, which never run at a time, tell and are told.

    Attributes
    ----------
    words : array of int64
        On the device; see `featgraph.runtime.recording.control`.
    reals : array of float64
        The same memory.
    landing : ndarray of int64
        As many, page-locked.
    stop : array of int64, shape (1,)
        Memory of the host that the device reads: not 0 ends a loop.
    address : int
        Where `words` are.
    """

    words: Any
    reals: Any
    landing: npt.NDArray[np.int64]
    stop: Any
    address: int


class _Graph(Protocol):
    """What a loop is launched by."""

    nodes: Nodes

    def launch(self) -> None: ...

    def is_done(self) -> bool: ...


@dataclass(eq=False)
class DeviceLoop:
    """A cycle of supersteps that the device runs by itself.

    Attributes
    ----------
    driver : object
        Has `write` and `read`.
    graph : object
        The cycle in a conditional node.
    memory : LoopMemory
    shape : Shape
    decided : dict
        For the caller: what was found out of this cycle in earlier runs.
    """

    driver: Any
    graph: _Graph
    memory: LoopMemory
    shape: Shape
    decided: dict[Any, Any] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """Behind how many supersteps it may end, and behind multiples of that."""
        return 1 if self.shape.is_exact else self.shape.together

    @property
    def most(self) -> int:
        """How many supersteps the log has place for, at its full length."""
        place = (self.memory.landing.size - self.shape.log_begins) // self.shape.entry
        return place - place % self.step

    def launch(self, orders: Orders) -> None:
        """Have the device begin; the first `step` supersteps run in any case."""
        memory, self._limit = self.memory, orders.limit
        memory.stop[0] = 0
        size = 8 * pack(orders, self.graph.nodes, memory.landing)
        self.driver.write(memory.address, int(memory.landing.ctypes.data), size)
        self.graph.launch()

    def stop(self) -> None:
        """Have the device end when it may."""
        self.memory.stop[0] = 1

    def is_done(self) -> bool:
        """Whether the device has ended."""
        return self.graph.is_done()

    def read(self) -> Report:
        """Wait for the end; return what has run."""
        memory = self.memory
        size = 8 * (self.shape.log_begins + self.shape.entry * self._limit)
        self.driver.read(int(memory.landing.ctypes.data), memory.address, size)
        return unpack(memory.landing, self.shape)
