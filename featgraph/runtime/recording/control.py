"""Parameters and results of a loop that runs on the device (0039).

Both are one array of 64-bit words: the header, the number of pending vertices of each
foldmap, the conditions of each superstep of the cycle, handles of conditional nodes,
and the log. `pack` writes all but the log before a launch; after the loop `unpack`
reads the log, with an entry for each superstep. In between, the control kernel of
`featgraph.runtime.devices.cuda_arrays` reads and writes the array. `DeviceLoop` is a
loop that can be launched.
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
    "unpack",
]

# The header: supersteps that have run, and the limit; whether no further cycle begins;
# start of the loop, and end of the last superstep; time since the choices by the active
# count differ from the recorded ones, and its limit; limit of the loop's time; number
# of vertices; handle of the conditional node. Times are in ns.
DONE, LIMIT, ENDS, BEGUN, LAST, LATE, MOST_LATE, MOST, VERTICES, NODE = range(10)
# The side of the bound (a float64) on which a tested value ends the run.
SIDE, BOUND = 10, 11
#: Number of words of the header.
HEADER = 12
#: Values of the word `SIDE`.
BELOW, ABOVE = 1, 2
#: Words of a superstep: the foldmap that runs, the smallest and largest number of its
#: pending vertices that lead to the recorded choices, and the 1-based index of the
#: superstep's value that is tested, or 0.
TURN, LEAST, LARGEST, TESTED = range(4)
#: Number of words of a superstep.
OF_A_STEP = 4
#: Number of words of a log entry before the values of the superstep: the number of
#: committed vertices, and the time in ns.
OF_AN_ENTRY = 2
#: Number of pending vertices if all are pending, without a set.
EVERYTHING = -1
#: Range of counts of a superstep the choices of which do not depend on the count.
ANY = EVERYTHING, (1 << 62)


class At(NamedTuple):
    """The position of a superstep in a loop, as an argument of the control kernel.

    The values are constants of the CUDA graph: each superstep of the body has a launch
    of its own.

    Attributes
    ----------
    turns, length : int
        Number of foldmaps, and of supersteps of the cycle.
    number, together : int
        Index of the superstep within the body of the loop, and number of supersteps of
        the body.
    seen : int
        Number of watched values that each superstep returns.
    gates : int
        Number of supersteps with a conditional node of their own: all or none.
    """

    turns: int
    length: int
    number: int
    together: int
    seen: int
    gates: int


@dataclass(frozen=True)
class Shape:
    """The constants of a loop, which its CUDA graph contains.

    Attributes
    ----------
    turns, length, together, seen : int
        See `At`.
    is_exact : bool
        Whether the loop can end after any superstep, and not only after all supersteps
        of its body.
    """

    turns: int
    length: int
    together: int
    seen: int
    is_exact: bool

    def at(self, number: int) -> At:
        """Return the position of a superstep, by its index in the body of the loop."""
        whole = self.turns, self.length, number, self.together, self.seen
        return At(*whole, self.gates)

    @property
    def gates(self) -> int:
        """Number of supersteps with a conditional node of their own."""
        return self.together if self.is_exact else 0

    @property
    def entry(self) -> int:
        """Number of words of a log entry."""
        return OF_AN_ENTRY + self.seen

    @property
    def log_begins(self) -> int:
        """Index of the log's first word."""
        return HEADER + self.turns + OF_A_STEP * self.length + self.gates


@dataclass(frozen=True)
class Nodes:
    """Handles of the conditional nodes of a loop.

    Attributes
    ----------
    loop : int
        Handle of the while node that repeats the supersteps.
    gates : tuple of int
        Handles of the if nodes, one a superstep of the body; empty if each repetition
        runs the whole body.
    """

    loop: int
    gates: tuple[int, ...] = ()


@dataclass
class Orders:
    """Parameters of one launch of a loop.

    Attributes
    ----------
    limit : int
        Most supersteps: a multiple of `DeviceLoop.step`.
    seconds, late_seconds : float
        Time limits, in s: of the loop, and of supersteps with other choices than their
        active counts lead to.
    vertices : int
        Number of vertices that are not dead; -1 if all are dead.
    pending : sequence of int
        Number of pending vertices of each foldmap; `EVERYTHING` for all.
    steps : sequence of (int, int, int, int)
        For each superstep of the cycle: the foldmap, the smallest and largest number of
        its pending vertices that lead to the recorded choices, and the 1-based index of
        the tested value, or 0.
    test : (int, float)
        `BELOW` or `ABOVE`, and the bound.
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
    """Results of one launch of a loop.

    Attributes
    ----------
    counts : list of int
        Vertices committed by each superstep that has run.
    seconds : list of float
        The time of each superstep; 0 for the first, whose start is not measured.
    seen : list of list of float
        The watched values of each superstep.
    """

    counts: list[int]
    seconds: list[float]
    seen: list[list[float]]


def pack(orders: Orders, nodes: Nodes, words: npt.NDArray[np.int64]) -> int:
    """Write the parameters of a launch to words; return the number of words."""
    head = [0] * HEADER
    # A limit beyond int64 is no limit.
    most = float(ANY[1])
    head[LIMIT], head[VERTICES] = orders.limit, orders.vertices
    head[NODE], (head[SIDE], bound) = nodes.loop, orders.test
    head[BOUND] = int(np.float64(bound).view(np.int64))
    head[MOST] = int(min(orders.seconds * 1e9, most))
    head[MOST_LATE] = int(min(orders.late_seconds * 1e9, most))
    steps = [word for step in orders.steps for word in step]
    values = [*head, *orders.pending, *steps, *nodes.gates]
    words[: len(values)] = values
    return len(values)


def unpack(words: npt.NDArray[np.int64], shape: Shape) -> Report:
    """Return the results of a loop from its log."""
    first, entry = shape.log_begins, shape.entry
    log = words[first : first + entry * int(words[DONE])].reshape(-1, entry)
    seen = np.ascontiguousarray(log[:, OF_AN_ENTRY:]).view(np.float64)
    return Report(log[:, 0].tolist(), (log[:, 1] * 1e-9).tolist(), seen.tolist())


#: Number of words of a thread's loop memory: room for a log of about 16,000 supersteps.
WORDS = 1 << 15


@dataclass(frozen=True, eq=False)
class LoopMemory:
    """Parameters and results of the loops of one thread, which never run concurrently.

    Attributes
    ----------
    words : array of int64
        Device memory; the docstring of this module describes the words.
    reals : array of float64
        A view of the same memory.
    landing : ndarray of int64
        Page-locked memory of the same size.
    stop : array of int64, shape (1,)
        Host memory that the device reads: a nonzero value ends a loop.
    address : int
        Device address of `words`.
    """

    words: Any
    reals: Any
    landing: npt.NDArray[np.int64]
    stop: Any
    address: int


class _Graph(Protocol):
    """The CUDA graph of a loop."""

    nodes: Nodes

    def launch(self) -> None: ...

    def is_done(self) -> bool: ...


@dataclass(eq=False)
class DeviceLoop:
    """A cycle of supersteps that the device repeats without the host.

    Attributes
    ----------
    driver : object
        Has `write` and `read`.
    graph : object
        The cycle in a conditional node.
    memory : LoopMemory
    shape : Shape
    decided : dict
        Cache for the caller: ranges of active counts that it has found for this cycle.
    """

    driver: Any
    graph: _Graph
    memory: LoopMemory
    shape: Shape
    decided: dict[Any, Any] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """Number of supersteps after which, or after multiples of which, it can end."""
        return 1 if self.shape.is_exact else self.shape.together

    @property
    def most(self) -> int:
        """Largest number of supersteps that fit the log."""
        place = (self.memory.landing.size - self.shape.log_begins) // self.shape.entry
        return place - place % self.step

    def launch(self, orders: Orders) -> None:
        """Start the loop; its first `step` supersteps run in any case."""
        memory, self._limit = self.memory, orders.limit
        memory.stop[0] = 0
        size = 8 * pack(orders, self.graph.nodes, memory.landing)
        self.driver.write(memory.address, int(memory.landing.ctypes.data), size)
        self.graph.launch()

    def stop(self) -> None:
        """Make the loop end after the next multiple of `step` supersteps."""
        self.memory.stop[0] = 1

    def is_done(self) -> bool:
        """Whether the device has left the loop."""
        return self.graph.is_done()

    def read(self) -> Report:
        """Wait for the end of the loop; return its results."""
        memory = self.memory
        size = 8 * (self.shape.log_begins + self.shape.entry * self._limit)
        self.driver.read(int(memory.landing.ctypes.data), memory.address, size)
        return unpack(memory.landing, self.shape)
