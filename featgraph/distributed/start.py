"""Joining the other processes of a run, as a launcher's variables say."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from types import TracebackType

from featgraph._activity import doing
from featgraph._arguments import require_real
from featgraph._version import VERSION
from featgraph.distributed.choice import engine_class, require_engine
from featgraph.distributed.current import engine_of_context, engine_of_process
from featgraph.distributed.engines.null import NullEngine
from featgraph.distributed.engines.protocol import Engine
from featgraph.distributed.engines.shared_memory import SharedEngine
from featgraph.distributed.engines.torch_engine import TorchEngine
from featgraph.distributed.watch import Watch, watch_of_process
from featgraph.errors import ArgumentError, DistributedError, FeatGraphError

__all__ = ["init", "restart_count"]

#: Which process called `init`.
_process: list[int] = []


def init(*, timeout: float = 30.0, engine: str = "auto") -> Engine:
    """Join the ranks that were started with this process, and return its engine.

    A launcher, ``featgraph launch`` or torchrun, says in variables which rank this is:
    ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` (127.0.0.1 if it is not there) and
    ``MASTER_PORT``. Without ``RANK`` and ``WORLD_SIZE``, and for a single rank, nothing
    is imported and nobody is looked for. From then on `current_engine` returns the
    engine; it is closed when the process ends.

    Parameters
    ----------
    timeout : float
        Seconds that ranks wait for each other, here and in each exchange. With
        ``featgraph launch``, a rank that compiles, loads or writes may take longer.
    engine : str
        "shared": memory that ranks of one host share, on Linux. "gloo": PyTorch's
        Gloo, which needs the extra ``distributed``. "auto": the first if all ranks are
        on one host, as ``LOCAL_WORLD_SIZE`` says, or else a loopback address in
        ``MASTER_ADDR``, unless ``fg.config.gpu_links`` asks for NCCL. The same on all
        ranks.

    Returns
    -------
    Engine

    Raises
    ------
    DistributedError
        Behind another `init`, in a forked child of a process that called it, on a
        loopback rank, where ranks do not find each other, where an engine is not there.
    WorkerLostError
        If a rank ends before it has come here, or does not come in time.
    RankMismatchError
        If ranks have different versions of featgraph.
    ArgumentError
        For variables, a timeout or the name of an engine that say nothing.

    Notes
    -----
    Memory is shared with processes of the same user alone, has no name, and is gone
    with the last of them, however they end. Over Gloo ranks talk at loopback addresses
    unless ``MASTER_ADDR`` is another one, or ``GLOO_SOCKET_IFNAME`` names an interface.
    Nothing is encrypted there, and whoever can reach the port is trusted: use it within
    a host or a private network.

    Examples
    --------
    >>> import featgraph as fg
    >>> engine = fg.distributed.init()  # doctest: +SKIP
    >>> engine.rank, engine.size  # doctest: +SKIP
    (0, 1)
    """
    if not 0 < require_real("timeout", timeout, error=ArgumentError) < 1e9:
        raise ArgumentError(
            "not a timeout",
            where="timeout=",
            got=timeout,
            expected="seconds, over 0",
        )
    size = _number("WORLD_SIZE", least=1) if _is_launched() else 1
    rank = _number("RANK", least=0, below=size) if _is_launched() else 0
    require_engine(engine)
    _require_first()
    made: Engine = NullEngine()
    if size > 1:
        watch = watch_of_process(rank, size, float(timeout))
        ending = _Ending(watch)
        if watch is not None:
            watch.start()
        with doing("loading", "the engine, and connecting"):
            joined = ending.engine = _engine_for(
                engine, rank, size, float(timeout), watch
            )
        joined.barrier(about=f"the start of featgraph {VERSION}")
        made = joined
    _process.append(os.getpid())
    engine_of_process.append(made)
    return made


def restart_count() -> int:
    """Return how often the launcher has started all ranks again: 0 at first.

    Examples
    --------
    >>> import featgraph as fg
    >>> fg.distributed.restart_count()
    0
    """
    for name in ("FEATGRAPH_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"):
        if name in os.environ:
            return _number(name, least=0)
    return 0


def _engine_for(
    name: str, rank: int, size: int, timeout: float, watch: Watch | None
) -> SharedEngine | TorchEngine:
    """Return the engine that joins the ranks of a launcher's variables."""
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = _number("MASTER_PORT", least=1, below=1 << 16)
    made = engine_class(name, size, address)
    return made(rank, size, address, port, timeout, watch)


def _require_first() -> None:
    if engine_of_context.get(None) is not None:
        raise DistributedError(
            "init() on a rank that run_ranks started",
            fix="fg.distributed.current_engine() is its engine",
        )
    if _process and _process[0] != os.getpid():
        raise DistributedError(
            "init() in a forked child of a process that called it",
            got=f"process {os.getpid()}, a child of {_process[0]}",
            fix="call it in each rank's own process, or start processes by 'spawn'",
        )
    if _process:
        raise DistributedError(
            "init() a second time",
            fix="call it once; fg.distributed.current_engine() returns its engine",
        )


def _is_launched() -> bool:
    return "RANK" in os.environ or "WORLD_SIZE" in os.environ


def _number(name: str, *, least: int, below: int | None = None) -> int:
    """Return a variable of the launcher."""
    text = os.environ.get(name)
    try:
        number = int(text or "")
    except ValueError:
        number = least - 1
    if number < least or (below is not None and number >= below):
        most = "" if below is None else f" to {below - 1}"
        raise ArgumentError(
            f"the variable {name} does not say which rank this is",
            got="nothing" if text is None else repr(text),
            expected=f"a number from {least}{most or ' on'}",
            fix="start the program by featgraph launch or torchrun, or unset RANK and "
            "WORLD_SIZE to run it on one rank",
        )
    return number


class _Ending:
    """Has the other ranks told when the process ends, and of what ends it.

    Parameters
    ----------
    watch : Watch or None

    Attributes
    ----------
    engine : SharedEngine, TorchEngine or None
        What is closed.
    """

    def __init__(self, watch: Watch | None) -> None:
        self.engine: SharedEngine | TorchEngine | None = None
        self._watch = watch
        self._error: BaseException | None = None
        self._show: Callable[..., object] = sys.excepthook
        sys.excepthook = self._note
        atexit.register(self._end)

    def _note(
        self,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        self._error = error
        self._show(kind, error, trace)

    def _end(self) -> None:
        error, watch = self._error, self._watch
        if watch is not None:
            if error is None:
                watch.end()
            else:
                # All ranks raise some errors, which name the rank that they are of.
                is_shared = isinstance(error, FeatGraphError | OSError)
                rank = getattr(error, "rank", None) if is_shared else None
                watch.fail(f"{type(error).__name__}: {error}", rank)
        if self.engine is None:
            return
        try:
            if error is None:
                self.engine.catch_up()
        finally:
            self.engine.close(error)
