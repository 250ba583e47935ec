"""The exception tree.

Every class derives from `FeatGraphError` and from the builtin that users expect, so
that both ``except FeatGraphError`` and ``except ValueError`` work. A message has up to
five parts: the problem, its place, the value given, the value expected, and the fix.
"""

from __future__ import annotations

from typing import Any, Self

__all__ = [
    "ArgumentError",
    "CacheWarning",
    "CheckpointWarning",
    "CompilationWarning",
    "ConvergenceWarning",
    "DeviceError",
    "DeviceMemoryError",
    "DistributedError",
    "DistributedWarning",
    "DivergenceError",
    "FeatGraphError",
    "FileFormatError",
    "GraphInputError",
    "KernelFaultError",
    "PlanError",
    "RankMismatchError",
    "StaleSourcesWarning",
    "StateError",
    "UserFunctionError",
    "WorkerLostError",
]


class FeatGraphError(Exception):
    """Base of every error that featgraph raises.

    Parameters
    ----------
    what : str
        The problem, in one clause.
    where : str, optional
        File and line, vertex, edge, index, or name.
    got, expected : object, optional
        The value given, and a description of valid ones.
    fix : str, optional
        The smallest change that solves the problem.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        got: object = None,
        expected: object = None,
        fix: str | None = None,
    ) -> None:
        self.what = what
        self.where = where
        self.got = got
        self.expected = expected
        self.fix = fix
        super().__init__(self._message())

    def at(self, where: str) -> Self:
        """Return the same error with another place."""
        return type(self)(
            self.what, where=where, got=self.got, expected=self.expected, fix=self.fix
        )

    def _message(self) -> str:
        lines = [self.what if self.where is None else f"{self.where}: {self.what}"]
        if self.got is not None:
            lines.append(f"  got:      {self.got}")
        if self.expected is not None:
            lines.append(f"  expected: {self.expected}")
        if self.fix is not None:
            lines.append(f"  fix:      {self.fix}")
        return "\n".join(lines)


class ArgumentError(FeatGraphError, TypeError):
    """An argument of a type that the function does not accept."""


class GraphInputError(FeatGraphError, ValueError):
    """Edges, weights or vertex names that do not make a graph."""


class FileFormatError(FeatGraphError, ValueError):
    """A graph or label file that is malformed or truncated."""


class UserFunctionError(FeatGraphError, TypeError):
    """A user function that cannot be folded; names its file and line."""


class StateError(FeatGraphError, ValueError):
    """A property or scalar that is missing or has the wrong shape or dtype."""


class PlanError(FeatGraphError, ValueError):
    """Options with which a foldmap has no valid plan."""


class KernelFaultError(FeatGraphError, RuntimeError):
    """A generated kernel accessed an index out of range (checked mode), or deadlocked.

    A schedule of exclusive functions deadlocks if edges wait for each other.
    """


class DeviceError(FeatGraphError, RuntimeError):
    """The CUDA target was requested and is not available."""


class DeviceMemoryError(FeatGraphError, MemoryError):
    """The device, or the host, has not enough free memory."""


class DivergenceError(FeatGraphError, ArithmeticError):
    """A run whose values grew until they were no longer finite."""


class DistributedError(FeatGraphError, RuntimeError):
    """A run on several ranks that cannot continue."""


class RankMismatchError(DistributedError):
    """Ranks that made different collective calls; the message lists the calls.

    Attributes
    ----------
    rank : int or None
        The lowest rank whose call differs from that of most ranks; without a majority,
        the lowest one whose call differs from that of the lowest rank.
    """

    def __init__(self, what: str, *, rank: int | None = None, **parts: Any) -> None:
        super().__init__(what, **parts)
        self.rank = rank


class WorkerLostError(DistributedError):
    """A rank failed, ended or disconnected while other ranks waited for it.

    Attributes
    ----------
    rank : int or None
        Number of the rank; None if unknown.
    host : str or None
        Host of the rank. Like the following, known only under ``featgraph launch``.
    superstep : int or None
        The last superstep that the rank began.
    phase : str or None
        The last phase that it began.
    checkpoint : str or None
        Folder of the newest checkpoint; None without one.
    """

    def __init__(
        self,
        what: str,
        *,
        rank: int | None = None,
        host: str | None = None,
        superstep: int | None = None,
        phase: str | None = None,
        checkpoint: str | None = None,
        **parts: Any,
    ) -> None:
        super().__init__(what, **parts)
        self.rank, self.host = rank, host
        self.superstep, self.phase = superstep, phase
        self.checkpoint = checkpoint


class CacheWarning(UserWarning):
    """A cached kernel could not be read or written; it is compiled again."""


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written, or is damaged; the run continues anyway."""


class CompilationWarning(UserWarning):
    """A kernel could not be compiled in the background; runs continue without it."""


class DistributedWarning(UserWarning):
    """An operation that one rank performs alone, in a run on several ranks."""


class StaleSourcesWarning(UserWarning):
    """A run starts from values that depend on edges which have been deleted."""


class ConvergenceWarning(UserWarning):
    """A run ended at its superstep limit before it converged."""
