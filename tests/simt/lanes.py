"""Lanes, warps and blocks of the emulator: which lane runs, which waits for which."""

from __future__ import annotations

import ast
import contextvars
import itertools
import random
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
from greenlet import getcurrent, greenlet

__all__ = [
    "ORDER",
    "WARP_SIZE",
    "Block",
    "CountTrips",
    "DivergenceError",
    "EmulationError",
    "Lane",
    "MemoryFault",
    "RaceError",
    "begin_trips",
    "current_lane",
    "meet_block",
    "meet_warp",
    "pause",
]

WARP_SIZE = 32
#: Seed of the order in which lanes run between barriers: none is promised.
ORDER = 0
_FULL_WARP = 0xFFFFFFFF

_TRIPS = "_trips_of_loops"

# Which code, which instruction, and the trip of each loop around it, of the kernel and
# its callees: what lanes that meet have in common.
Site = tuple[Any, ...]
# File, line, function, and these trips: a step of a site, for people.
Step = tuple[str, int, str, tuple[int, ...]]
# An operation: values that lanes bring -> the result of each lane.
Outcome = Callable[[dict[int, Any]], dict[int, Any]]


class EmulationError(Exception):
    """The kernel did what a GPU leaves undefined."""


class DivergenceError(EmulationError):
    """Lanes that must meet in an operation did not."""


class MemoryFault(EmulationError, IndexError):
    """An index out of range, negative, or no integer."""


class RaceError(EmulationError):
    """Two lanes touched an entry of shared memory with no barrier between."""


class Meeting(NamedTuple):
    """Where a lane waits; lanes meet if all of this is equal."""

    operation: str
    mask: int | None  # None: the whole block
    site: Site


class CountTrips(ast.NodeTransformer):
    """Number the iterations of every loop of a function in a list, 0 outside the loop.

    Without it, lanes that reach the same line in different iterations would meet.
    """

    def __init__(self) -> None:
        #: Loops of the function so far; None outside of functions.
        self.loops: int | None = None

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        outer, self.loops = self.loops, 0
        self.generic_visit(node)
        if self.loops:
            [begin] = ast.parse(f"{_TRIPS} = {begin_trips.__name__}({self.loops})").body
            node.body.insert(0, _placed(begin, node))
        self.loops = outer
        return node

    def _count(self, loop: Any) -> Any:
        if self.loops is None:
            return loop
        place = f"{_TRIPS}[{self.loops}]"
        self.loops += 1
        self.generic_visit(loop)
        step, leave = ast.parse(f"{place} += 1\n{place} = 0").body
        loop.body.insert(0, _placed(step, loop))
        return [loop, _placed(leave, loop)]

    visit_For = visit_While = _count


def _placed(statement: ast.stmt, at: ast.stmt) -> ast.stmt:
    for node in ast.walk(statement):
        ast.copy_location(node, at)
    return statement


def begin_trips(count: int) -> list[int]:
    """Return the trip counters of the caller's loops; it is a function of the kernel.

    A lane finds it by the frame: locals of a frame are slow to come by.
    """
    trips, lane = [0] * count, getcurrent()
    if isinstance(lane, Lane):
        lane.trips[id(sys._getframe(1))] = trips
    return trips


class Lane(greenlet):
    """A thread of a kernel, and of the next kernel once that has ended.

    A greenlet that begins takes 10 us more, for a stack of its own.
    """

    block: Block
    number: int
    thread: tuple[int, int, int]
    lane_id: int
    warp: int
    meeting: Meeting | None
    brought: Any
    outcome: Outcome | None
    #: Frame of a function with loops -> the trips of these.
    trips: dict[int, list[int]]
    #: Whether its thread has ended.
    has_left: bool

    def take(self, block: Block, number: int, thread: tuple[int, int, int]) -> None:
        """Have the next switch begin a thread."""
        self.block = block
        self.number = number
        self.thread = thread
        self.lane_id = number % WARP_SIZE
        self.warp = number // WARP_SIZE
        self.meeting = self.brought = self.outcome = None
        self.trips = {}
        self.has_left = False

    def run(self, _: Any = None) -> None:
        while True:
            try:
                self.block.function(*self.block.arguments)
            except Exception as error:
                error.add_note(f"block {self.block.index}, thread {self.thread}")
                raise
            self.has_left = True
            self.parent.switch()


class _Idle(threading.local):
    """Lanes, of one thread of the host, whose kernels have ended."""

    def __init__(self) -> None:
        self.lanes: list[Lane] = []

    def take(self, block: Block, number: int, thread: tuple[int, int, int]) -> Lane:
        if self.lanes:
            lane = self.lanes.pop()
            lane.parent = getcurrent()
        else:
            lane = Lane()
            lane.gr_context = _QUIET
        lane.take(block, number, thread)
        return lane

    def give_back(self, lane: Lane) -> None:
        vars(lane).clear()  # the block holds the memory that the kernel was given
        self.lanes.append(lane)


_idle = _Idle()


def _quiet() -> contextvars.Context:
    """Return a context in which NumPy ignores overflows."""
    context = contextvars.Context()
    context.run(np.seterr, all="ignore")
    return context


#: NumPy's error state belongs to the context of a greenlet: one for all lanes.
_QUIET = _quiet()


def current_lane() -> Lane:
    """Return the lane that runs."""
    lane = getcurrent()
    if not isinstance(lane, Lane):
        raise EmulationError("the dialect works only inside a launched kernel")
    return lane


class _Code(NamedTuple):
    """Cached facts about the code of a frame."""

    code: CodeType  # kept, so that its id stays its own
    is_emulated: bool
    has_loops: bool


_codes: dict[int, _Code] = {}


def _code_of(frame: FrameType) -> _Code:
    code = frame.f_code
    # Codes compare, and are hashed, by all that is in them: too slow for every meeting.
    known = _codes.get(id(code))
    if known is None:
        # Only emulated modules carry their own builtins; these modules are left out.
        name = frame.f_globals.get("__name__", "")
        is_emulated = name.partition(".")[0] != "tests"
        known = _Code(code, is_emulated, _TRIPS in code.co_varnames)
        _codes[id(code)] = known
    return known


def _site(lane: Lane) -> Site:
    """Return the call path of a lane, comparable between lanes."""
    path: list[Any] = []
    known, trips = _codes, lane.trips
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code is _RUN:
            break
        place = id(code)
        _, is_emulated, has_loops = known.get(place) or _code_of(frame)
        if is_emulated:
            path += place, frame.f_lasti
            if has_loops:
                path.append(tuple(trips[id(frame)]))
        frame = frame.f_back
    return tuple(path)


def call_path(lane: Lane, frame: FrameType | None = None) -> tuple[Step, ...]:
    """Return the lines of the kernel module and its callees that lead to a frame.

    To the caller, which the lane runs, if none is given.
    """
    path: list[Step] = []
    frame = frame or sys._getframe(1)
    while frame is not None and frame.f_code is not _RUN:
        code, is_emulated, has_loops = _code_of(frame)
        if is_emulated:
            trips = tuple(filter(None, lane.trips[id(frame)])) if has_loops else ()
            path.append((code.co_filename, frame.f_lineno, code.co_name, trips))
        frame = frame.f_back
    return tuple(path)


_RUN = Lane.run.__code__


def _meet(
    lane: Lane, operation: str, mask: int | None, brought: Any, outcome: Outcome
) -> Any:
    lane.meeting = Meeting(operation, mask, _site(lane))
    lane.brought, lane.outcome = brought, outcome
    return lane.parent.switch()


def meet_warp(operation: str, mask: int, brought: Any, outcome: Outcome) -> Any:
    """Wait for the lanes of the mask.

    Parameters
    ----------
    operation : str
        Its name.
    mask : int
        The lanes that take part.
    brought : object
        What this lane contributes.
    outcome : callable
        From what each lane brought to what each lane gets, by lane number in the warp.

    Returns
    -------
    object
        What this lane gets.
    """
    mask = int(mask) & _FULL_WARP
    lane = current_lane()
    if not mask >> lane.lane_id & 1:
        raise DivergenceError(
            f"lane {lane.lane_id} calls {operation} with mask {mask:#x}, without itself"
        )
    return _meet(lane, operation, mask, brought, outcome)


def meet_block(operation: str, brought: Any, outcome: Outcome) -> Any:
    """Wait for all threads of the block; see `meet_warp`."""
    return _meet(current_lane(), operation, None, brought, outcome)


def pause() -> None:
    """Let the other lanes go first."""
    lane = current_lane()
    lane.meeting = None
    lane.parent.switch()


class Block:
    """One block of threads, run to its end."""

    def __init__(
        self,
        function: Callable[..., None],
        arguments: Sequence[Any],
        index: tuple[int, int, int],
        grid: tuple[int, int, int],
        shape: tuple[int, int, int],
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.index = index
        self.grid = grid
        self.shape = shape
        self.shared: dict[tuple[tuple[str, int, str], ...], Any] = {}
        # Barriers passed so far: what orders accesses to shared memory.
        self.barriers = 0
        self.warp_barriers: Counter[int] = Counter()
        #: Whether a lane has looked for what other blocks write.
        self.looks = False
        threads = itertools.product(*map(range, reversed(shape)))
        self.lanes = [
            _idle.take(self, number, (x, y, z))
            for number, (z, y, x) in enumerate(threads)
        ]
        if len(self.lanes) % WARP_SIZE:
            raise EmulationError(f"{len(self.lanes)} threads are no whole warps")

    def turns(self) -> Iterator[None]:
        """Run all lanes to their end; yield where one looks for other blocks."""
        try:
            ready: list[tuple[Lane, Any]] = [(lane, None) for lane in self.lanes]
            order = random.Random(ORDER + self.index[0])
            while ready:
                backwards = order.random() < 0.5
                for lane, outcome in reversed(ready) if backwards else ready:
                    lane.switch(outcome)
                ready = self._resolve()
                if self.looks:
                    self.looks = False
                    yield
            if not all(lane.has_left for lane in self.lanes):
                raise DivergenceError(self._waiting_lanes())
        finally:
            for lane in self.lanes:
                if lane.has_left:
                    _idle.give_back(lane)
                elif not lane.dead:
                    lane.throw()
            # Records refer to their block: without this, the garbage collector would
            # decide when the memory of its arguments is free.
            self.shared.clear()

    def _resolve(self) -> list[tuple[Lane, Any]]:
        waiting: dict[tuple[int | None, Meeting], list[Lane]] = defaultdict(list)
        ready: list[tuple[Lane, Any]] = []
        for lane in self.lanes:
            if lane.has_left:
                continue
            if lane.meeting is None:
                ready.append((lane, None))
            else:
                warp = None if lane.meeting.mask is None else lane.warp
                waiting[warp, lane.meeting].append(lane)
        for (warp, meeting), lanes in waiting.items():
            if warp is None or meeting.mask is None:
                if len(lanes) == len(self.lanes):
                    self.barriers += 1
                    ready += _finish(lanes, lambda lane: lane.number)
            elif len(lanes) == meeting.mask.bit_count():
                self.warp_barriers[warp] += meeting.operation == "syncwarp"
                ready += _finish(lanes, lambda lane: lane.lane_id)
        return ready

    def _waiting_lanes(self) -> str:
        groups: dict[str, list[int]] = defaultdict(list)
        for lane in self.lanes:
            groups["left the kernel" if lane.has_left else _where(lane)].append(
                lane.number
            )
        lines = [f"block {self.index}: lanes that must meet wait apart"]
        lines += [f"  {_ranges(waiting)}: {where}" for where, waiting in groups.items()]
        return "\n".join(lines)


def _where(lane: Lane) -> str:
    """Return where a lane waits, and in which operation."""
    if lane.meeting is None:
        return "about to go on"
    steps = []
    for file, line, function, trips in call_path(lane, lane.gr_frame):
        loops = f" (trip {', '.join(map(str, trips))})" if trips else ""
        steps.append(f"{file}:{line} in {function}{loops}")
    return f"{lane.meeting.operation} at {' < '.join(steps)}"


def _finish(
    lanes: Iterable[Lane], key: Callable[[Lane], int]
) -> list[tuple[Lane, Any]]:
    lanes = list(lanes)
    assert lanes[0].outcome is not None
    gets = lanes[0].outcome({key(lane): lane.brought for lane in lanes})
    return [(lane, gets[key(lane)]) for lane in lanes]


def _ranges(numbers: Sequence[int]) -> str:
    """Write 0, 1, 2, 5 as "threads 0-2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = (f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
    return "threads " + ", ".join(text)
