"""What every algorithm returns: the run, and how it settled, superstep by superstep.

An algorithm that records its residual has a foldmap that ends in a reduce, which
compares what the superstep has written with what it began from. A reduce comes behind
the vertex functions, so entries that they dropped count as no change (S3)::

    @fg.reduce(into="residual", combine="max")
    def largest_change(f, v, d):
        return abs(d.x_next[v, f] - d.x[v, f])

`iterate_recorded` reads it after every superstep. A foldmap without the reduce costs
nothing. The reduce makes no vertex due: no function of the foldmap reads the residual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import featgraph as fg

__all__ = ["Result", "iterate_recorded", "joined", "require_finite"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Result:
    """Base of the results of all algorithms.

    Attributes
    ----------
    run : featgraph.Run
        Active counts, times, directions, target.
    residuals : ndarray of float64, shape (S,)
        How much each of the S supersteps changed, in the measure that `residual_name`
        names; entries that a superstep dropped count as unchanged. Empty without
        ``history=True``.
    vertex_names : ndarray, tuple or None
        Name of each vertex, in the order of all arrays of the result; None where the
        names are 0..V-1. `dict(zip(result.vertex_names, result.ranks))` is by name.
    residual_name : str
        What `residuals` measure; of the class.
    """

    run: fg.Run
    residuals: npt.NDArray[np.float64]
    vertex_names: Any = field(default=None, repr=False)

    residual_name: ClassVar[str] = "largest change"

    @property
    def converged(self) -> bool:
        """Whether the run ended because it had converged, not at a limit."""
        return self.run.converged

    @property
    def supersteps(self) -> int:
        """How many supersteps ran."""
        return self.run.supersteps

    def plot(self, ax: Any = None) -> Any:
        """Draw the residual of each superstep, on a logarithmic scale.

        Supersteps that changed nothing have no place on that scale and are left out.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw. Default: new axes of a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            Where it was drawn. Nothing is shown or saved.

        Raises
        ------
        FeatGraphError
            If nothing was recorded, or matplotlib is not installed.
        """
        if not self.residuals.size:
            raise fg.FeatGraphError(
                "there is no residual to draw",
                got=f"{self.supersteps} supersteps, none recorded",
                fix="run with history=True" if self.supersteps else None,
            )
        if ax is None:
            ax = _new_axes()
        supersteps = np.arange(1, self.residuals.size + 1)
        changed = self.residuals > 0
        ax.semilogy(supersteps[changed], self.residuals[changed], marker=".")
        ax.set_xlabel("superstep")
        ax.set_ylabel(self.residual_name)
        return ax


def _new_axes() -> Any:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise fg.FeatGraphError(
            "a plot needs matplotlib", fix='pip install "featgraph[plot]"'
        ) from error
    return pyplot.subplots()[1]


def iterate_recorded(
    steps: fg.FoldMap | Sequence[fg.FoldMap],
    state: fg.State,
    *,
    history: bool = True,
    callback: Callable[[fg.Run, fg.State], Any] | None = None,
    growth: str | None = None,
    **options: Any,
) -> tuple[fg.Run, npt.NDArray[np.float64]]:
    """Run `featgraph.iterate` and record the residual after every superstep.

    Parameters
    ----------
    steps, state, callback, **options
        As for `featgraph.iterate`.
    history : bool, optional
        Record the largest over the features of ``residual``, which a reduce of the
        foldmaps fills. False records nothing.
    growth : str, optional
        How to keep the recurrence from diverging. If given, a residual that is not
        finite ends the run.

    Returns
    -------
    run : featgraph.Run
        The record.
    residuals : ndarray of float64, shape (S,)
        One for each superstep; empty if nothing was to be recorded.

    Raises
    ------
    DivergenceError
        If a residual is not finite and `growth` is given.
    """
    if not history:
        return fg.iterate(steps, state, callback=callback, **options), np.empty(0)
    residuals: list[float] = []

    def record(run: fg.Run, state: fg.State) -> Any:
        residuals.append(float(np.max(state["residual"])))
        if growth is not None:
            require_finite(residuals[-1], run, growth)
        return callback is not None and callback(run, state)

    run = fg.iterate(steps, state, callback=record, **options)
    return run, np.array(residuals, np.float64)


def joined(runs: Sequence[fg.Run]) -> fg.Run:
    """Return the record of several runs, one at least, as one."""
    made = fg.Run(runs[0].target, runs[0].kernels, converged=True)
    for run in runs:
        made.supersteps += run.supersteps
        for name in ("active_counts", "directions", "aggregates", "seconds"):
            getattr(made, name).extend(getattr(run, name))
    return made


def require_finite(values: npt.ArrayLike, run: fg.Run, fix: str) -> None:
    """Raise DivergenceError if a run has left values that are not finite."""
    if not np.isfinite(values).all():
        raise fg.DivergenceError(
            "the values grow without bounds",
            where=f"superstep {run.supersteps}",
            expected="a recurrence that contracts",
            fix=fix,
        )
