"""The constants of this machine, measured once and kept in the user's cache directory.

Supersteps are timed on random graphs of two sizes; rows of the small one fit in a
cache. An edge takes the slope of a superstep's time in the number of edges; vertices
take the rest. The least of a few trials counts, since the machine may be shared.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from featgraph.base.config import VERSION, config
from featgraph.base.errors import CacheWarning
from featgraph.base.files import (
    DistrustedError,
    make_private,
    read_private,
    replace_private,
    why_distrusted,
)
from featgraph.base.interrupts import import_whole
from featgraph.graph import Graph
from featgraph.graph.generators import uniform
from featgraph.program.functions import gather, vertex
from featgraph.program.state import State, vertex_property
from featgraph.ranks.cost.machine import H200, Curve, Machine
from featgraph.ranks.engines.links import Link
from featgraph.ranks.engines.messages import gather_texts, reduce_number
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.exchange.row_messages import (
    SendList,
    choose,
    decode,
    encode,
    packing_of,
    store,
)
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.superstep.foldmap import foldmap

__all__ = ["calibrate"]

#: By target: (vertices, edges per vertex) of the small graph, and of large ones by
#: width. A large graph is compared with one of as many vertices and an edge each.
#: Pushes have a quarter of its edges: on a CPU, atomics of 32 features take 300 ns an
#: edge. On a GPU a superstep of fewer edges takes as long as an empty one.
SMALL = {"cpu": (1 << 12, 16), "cuda": (1 << 16, 64)}
LARGE = {
    "cpu": {1: (1 << 18, 16), 8: (1 << 16, 16), 32: (1 << 15, 16)},
    "cuda": {1: (1 << 21, 16), 8: (1 << 21, 16), 32: (1 << 20, 16)},
}
#: Least time of an edge with rows in a cache, relative to that with rows in memory.
LEAST = 0.3
#: Most trials of each kernel, and the limit of all measurements in seconds.
TRIALS, BUDGET_S = 3, 2.0
#: After this fraction of the limit, kernels have only two trials.
IN_TIME = 0.4
#: Bytes of messages; the first one measures the latency.
MESSAGES = (0, 1 << 12, 1 << 16, 1 << 20, 1 << 23)
MESSAGE_TRIALS = 7
#: Most bytes of a file of constants.
_MOST_BYTES = 1 << 20
#: Bytes by which the link between a GPU and its host is measured.
STREAMED = 1 << 26


@gather(into="total", combine="sum")
def shares(f, u, v, e, d):  # type: ignore[no-untyped-def]
    return d.x[u, f] * d.scale[u]


@vertex
def mix(f, v, d):  # type: ignore[no-untyped-def]
    d.x_next[v, f] = 0.5 * d.x[v, f] + 0.5 * d.total[v, f]
    return True


#: The superstep that is timed: a gather of sums, and a vertex function.
spread = foldmap(shares, mix)


def calibrate(
    target: str = "auto", *, engine: Engine | None = None, again: bool = False
) -> Machine:
    """Return the constants of this machine, for `forecast`.

    They are measured once, in two seconds plus compilation, and kept in the user's
    cache directory, by machine, target, threads, engine and version.

    Parameters
    ----------
    target : {"auto", "cpu", "cuda"}, optional
    engine : Engine, optional
        All of its ranks call it: the link between them is measured, too, and all get
        the constants of the slowest rank.
    again : bool, optional
        Whether to measure even if there are constants of an earlier call.

    Returns
    -------
    Machine
        For a GPU, with the present ``fg.config.memory_limit``.

    Examples
    --------
    >>> import featgraph as fg
    >>> machine = fg.distributed.calibrate("cpu")
    >>> machine.pull.at(k=8) > 0
    True
    """
    device = choose_device(target).name
    name, path = _place(device, engine)
    found = None if again else _kept(path)
    shared = engine is not None and engine.size > 1
    if engine is not None and shared:
        about = "whether there are constants"
        if not reduce_number(engine, found is not None, "min", about):
            found = None
    if found is None:
        found = _measure_whole(name, device)
        if engine is not None and shared:
            found = found.with_link(measure_link(engine))
        _keep(path, found)
    if device == "cuda":
        found = found.under(config.memory_limit_bytes)
    if engine is not None and shared:
        texts = gather_texts(engine, found.to_json(), "the constants of machines")
        of_ranks = list(map(Machine.from_json, texts))
        found = max(of_ranks, key=lambda machine: machine.pull.at(1))
    return found


def measure_link(engine: Engine) -> Link:
    """Measure the time of an exchange of two ranks or more by its bytes; all call it.

    The link has the name of the engine.
    """
    points = []
    for size in MESSAGES:
        message = np.zeros(size // max(engine.size - 1, 1), np.uint8)
        mine = [message] * engine.size
        mine[engine.rank] = message[:0]
        taken = []
        for _ in range(MESSAGE_TRIALS):
            begun = time.perf_counter()
            engine.all_to_allv(mine, about="measuring a link")
            taken.append(time.perf_counter() - begun)
        least = engine.all_reduce(np.array([min(taken)]), "max", about="the slowest")
        points.append((float(size), float(least[0])))
    rising = np.maximum.accumulate([seconds for _, seconds in points]).tolist()
    sizes = [size for size, _ in points]
    return Link(_engine_name(engine), tuple(zip(sizes, rising, strict=True)))


def _place(device: str, engine: Engine | None) -> tuple[str, Path]:
    """Return the name of a machine, and the file of its constants."""
    threads = int(import_whole("numba").get_num_threads())
    name = f"{_processor()}, {threads} threads" if device == "cpu" else device
    key = (
        name, platform.node(), device, _engine_name(engine), VERSION,
        "1" if engine is None else str(engine.size), str(LARGE[device]),
    )  # fmt: skip
    digest = blake2b(repr(key).encode(), digest_size=8).hexdigest()
    folder = Path(os.path.realpath(config.cache_dir)) / "model"
    return name, folder / f"{digest}.json"


def _engine_name(engine: Engine | None) -> str:
    if engine is None:
        return "none"
    names = {"TorchEngine": "gloo", "_LoopbackEngine": "loopback", "NullEngine": "none"}
    kind = type(engine).__name__
    return names.get(kind, kind.removesuffix("Engine").lower())


def _processor() -> str:
    """Return the name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _kept(path: Path) -> Machine | None:
    """Return the constants in a file; None if it is missing, invalid or distrusted."""
    try:
        problem = why_distrusted(path.parent, own=2)
        if problem:
            raise DistrustedError(f"is not to be trusted: {problem}")
        return Machine.from_json(read_private(path, _MOST_BYTES).decode())
    except DistrustedError as error:
        warnings.warn(
            f"{path} {error}; the machine is measured again", CacheWarning, stacklevel=3
        )
    except (OSError, ValueError):
        pass
    return None


def _keep(path: Path, machine: Machine) -> None:
    """Write a file atomically, if possible; otherwise the next call measures again."""
    if not config.cache:
        return
    with contextlib.suppress(OSError):
        make_private(path.parent)
        if not why_distrusted(path.parent, own=2):
            replace_private(path, [machine.to_json().encode()])


def _measure_whole(name: str, device: str) -> Machine:
    """Measure all constants but links, without the limit of a GPU's memory."""
    limit, config.memory_limit = config.memory_limit, None
    try:
        return _measure(name, device)
    finally:
        config.memory_limit = limit


def _measure(name: str, device: str) -> Machine:
    """Measure all constants but those of links."""
    clock = _Clock()
    near, far, pushed, swept, rows = {}, {}, {}, {}, {}
    draw = partial(uniform, target=device)
    fixed = clock.least(_superstep(draw(64, 64, seed=1), 1, device, "pull"))
    few, large = draw(*_size(SMALL[device]), seed=2), LARGE[device]
    for k, size in large.items():
        many = draw(*_size(size), seed=3)
        # Edges are generated by index, so these have the first edges of `many`.
        some, sparse = (draw(size[0], size[0] * d, seed=3) for d in (size[1] // 4, 1))
        times = [
            clock.least(_superstep(graph, k, device, "pull"))
            for graph in (sparse, many)
        ]
        far[k] = _slope(times, (sparse.edge_count, many.edge_count))
        swept[k] = max(times[0] - fixed - far[k] * sparse.edge_count, 0.0) / size[0]
        small = clock.least(_superstep(few, k, device, "pull")) - fixed
        small -= swept[k] * few.vertex_count
        near[k] = min(max(small / few.edge_count, LEAST * far[k]), far[k])
        took = clock.least(_superstep(some, k, device, "push")) - fixed
        pushed[k] = max((took - swept[k] * size[0]) / some.edge_count, near[k])
        # Kernels that store rows into other GPUs take time on the link only.
        rows[k] = _row_seconds(clock, k) if device == "cpu" else H200.row.at(k)
    widths = tuple(map(float, large))
    reads = [4.0 * k * size for k, (size, _) in large.items()]
    return Machine(
        name,
        pull=Curve(
            widths, _rising(near), _rising(far),
            4.0 * max(large) * SMALL[device][0], max(reads),
        ),
        push=Curve(widths, _rising(pushed), _rising(pushed)),
        vertex=Curve(widths, _rising(swept), _rising(swept)),
        row=Curve(widths, _rising(rows), _rising(rows)),
        fixed_s=fixed,
        stream_s=_stream_seconds(clock) if device == "cuda" else 0.0,
    )  # fmt: skip


def _size(size: tuple[int, int]) -> tuple[int, int]:
    """Return the numbers of vertices and edges for V and edges per vertex."""
    return size[0], size[0] * size[1]


def _slope(times: list[float], edges: tuple[int, int]) -> float:
    """Return the seconds of an edge: the slope, at least half of the mean."""
    rise = (times[1] - times[0]) / (edges[1] - edges[0])
    return max(rise, 0.5 * times[1] / edges[1])


def _rising(seconds: dict[int, float]) -> tuple[float, ...]:
    """Return seconds by width, made nondecreasing against disturbed measurements."""
    rising: list[float] = np.maximum.accumulate(list(seconds.values())).tolist()
    return tuple(rising)


class _Clock:
    """A timer of calls, with fewer trials once the limit is near."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()

    def least(self, call: Callable[[], None]) -> float:
        """Return the least seconds of a warm call."""
        call()  # compiles, and allocates
        return min(self._trials(call))

    def _trials(self, call: Callable[[], None]) -> Iterator[float]:
        for trial in range(TRIALS):
            begun = time.perf_counter()
            if trial > 1 and begun - self._begun > BUDGET_S * IN_TIME:
                break
            call()
            yield time.perf_counter() - begun


def _superstep(graph: Graph, k: int, device: str, direction: str) -> Callable[[], None]:
    """Return a function that runs a superstep of all vertices."""
    count = graph.vertex_count
    values = np.ones((count, k), np.float32)
    state = State(
        graph,
        x=vertex_property(values, iterated=True),
        scale=vertex_property(np.full(count, 0.5, np.float32)),
    )

    wait = choose_device(device).synchronize

    def call() -> None:
        spread(state, target=device, direction=direction)
        wait()

    return call


def _stream_seconds(clock: _Clock) -> float:
    """Return the seconds per byte from page-locked memory to the GPU."""
    device: Any = choose_device("cuda")
    source = import_whole("featgraph.runtime.streaming.ring").PinnedArray(
        (STREAMED,), np.uint8
    )
    target = device.empty((STREAMED,), "uint8")
    address = int(target.device_ctypes_pointer.value)

    def call() -> None:
        device.driver.streams.start_write(address, source.address, STREAMED, 0)
        device.synchronize()

    return clock.least(call) / STREAMED


def _row_seconds(clock: _Clock, k: int) -> float:
    """Return the seconds to pack, decode and store a row of a message."""
    count = 1 << 15
    values = [np.zeros((2 * count, k), np.float32)]
    link = SendList(np.arange(0, 2 * count, 2, dtype=np.int32), 2 * count)
    changed = np.full(2 * count // 32, 0xFFFFFFFF, np.uint32)
    packing = packing_of(values)

    def call() -> None:
        chosen = choose(link, link.changed(changed), packing.row)
        message = encode(link, chosen, packing, values)
        store(decode(link, message, packing), values, 0)

    return clock.least(call) / count
