"""The exception tree.

Every class derives from `FeatGraphError` and from the builtin that users expect, so
that both ``except FeatGraphError`` and ``except ValueError`` work. A message says what
is wrong, where, what was given, what is expected, and the fix.
"""

from __future__ import annotations

from typing import Any

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
        What is wrong, in one clause.
    where : str, optional
        File and line, vertex, edge, index, or name.
    got, expected : object, optional
        What was given, and what would have been right.
    fix : str, optional
        The smallest change that helps.
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
    """An argument of a type that a call cannot take."""


class GraphInputError(FeatGraphError, ValueError):
    """Edges, weights or vertex names that do not make a graph."""


class FileFormatError(FeatGraphError, ValueError):
    """A graph or label file that is malformed or truncated."""


class UserFunctionError(FeatGraphError, TypeError):
    """A user function that cannot be folded; names its file and line."""


class StateError(FeatGraphError, ValueError):
    """A property or scalar that is missing or has the wrong shape or dtype."""


class PlanError(FeatGraphError, ValueError):
    """Options that this foldmap cannot be planned with."""


class KernelFaultError(FeatGraphError, RuntimeError):
    """A generated kernel touched an index out of range (checked mode), or stalled.

    A schedule of exclusive functions stalls if edges wait for each other forever.
    """


class DeviceError(FeatGraphError, RuntimeError):
    """The CUDA target is asked for and cannot be used here."""


class DeviceMemoryError(FeatGraphError, MemoryError):
    """The device, or the host, has not enough free memory."""


class DivergenceError(FeatGraphError, ArithmeticError):
    """A run whose values grew until they were not finite any more."""


class DistributedError(FeatGraphError, RuntimeError):
    """Several ranks cannot go on together."""


class RankMismatchError(DistributedError):
    """Ranks that went different ways; names them by what they called.

    Attributes
    ----------
    rank : int or None
        The lowest one that did not do what most ranks did, or, where as many did
        another thing, not what the lowest rank did.
    """

    def __init__(self, what: str, *, rank: int | None = None, **parts: Any) -> None:
        super().__init__(what, **parts)
        self.rank = rank


class WorkerLostError(DistributedError):
    """A rank that failed, ended or was lost while others waited for it.

    Attributes
    ----------
    rank : int or None
        Its number, where it is known.
    host : str or None
        Where it ran. This and what follows are known with ``featgraph launch``.
    superstep : int or None
        The last one that it has begun.
    phase : str or None
        The phase of it.
    checkpoint : str or None
        The folder of the newest checkpoint, where there is one.
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
    """A stored kernel could not be read or written; it is compiled again."""


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written, or is damaged; the run goes on without it."""


class CompilationWarning(UserWarning):
    """A kernel could not be compiled behind a run; runs go on without it."""


class DistributedWarning(UserWarning):
    """Something that one rank does by itself, where there are several."""


class StaleSourcesWarning(UserWarning):
    """A run goes on with values that came along edges which are gone."""


class ConvergenceWarning(UserWarning):
    """A run ended at its superstep limit before it converged."""
