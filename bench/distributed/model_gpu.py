"""Supersteps as the model foretells them, beside measured ones, on GPUs.

The ranks of `lux-gpu` run its programs, which gives its rows, and run each once more
with the sets of active vertices recorded: each rank counts the work of its own part, so
that no rank has the whole graph. Measured is the median over the trials of `lux-gpu`,
of the slowest rank in each; constants are those of `calibrate("cuda")`, and the link
has the rate that `lux-gpu` measures.

A row for each program and number of ranks: errors of supersteps that are foretold from
those before them of their direction and turn (`median_error`, `p90_error`), those of
the constants alone (`uncorrected`), and `from_one`, where the constants are corrected
by the run on one rank, before any run on several. Rows ``pull`` and ``push`` have
the errors of all programs. Supersteps of less than `FLOOR_S` are not counted.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import numpy as np

from bench.distributed import lux_gpu
from bench.distributed.model_cpu import errors_of
from bench.distributed.streaming import Sender, run_rank
from bench.record import Recorder

DEFAULTS = lux_gpu.DEFAULTS | {
    "graph": ["rmat-22-16"],
    "repeat": 5,
    "budget": 60.0,
    "programs": "PR,CC,SSSP,BFS,LP",
}
MODULE = "bench.distributed.model_gpu"
#: Supersteps of less are not counted: some 20 us of each are not modelled.
FLOOR_S = 1e-4
#: An exchange between kernels, through windows: 25 us with NCCL are the most.
LATENCY_S = 1e-5
add_arguments = lux_gpu.add_arguments


def run(arguments: argparse.Namespace, recorder: Recorder) -> None:
    """Foretell every program on one rank, and on several."""
    recorder.use(arguments.target)
    begun, alone, taught = time.time(), {}, {}
    every: dict[tuple[str, int], list[float]] = {}
    counts = list(dict.fromkeys((1, arguments.gpus)))
    for number, ranks in enumerate(counts):
        until = begun + arguments.budget * (number + 1) / len(counts)
        given = arguments, ranks, until, recorder, MODULE
        for cell in lux_gpu.cells(*given, taught=taught):
            key = cell["of"], cell["program"], cell["k"]
            if "errors" in cell:
                if ranks == 1:
                    taught["/".join(map(str, key))] = cell["factors"]
                _record(recorder, cell, ranks, every)
                continue
            if ranks == 1:
                alone[key] = cell
            lux_gpu.record_cell(recorder, cell, alone.get(key), ranks)
    for (way, ranks), errors in sorted(every.items()):
        found = _quantiles(errors)
        count = len(errors)
        recorder.add(f"{way}, {ranks} ranks", [], ranks=ranks, foretold=count, **found)
        shown = (
            f"median {found['median_error']:.3f}, nine in ten {found['p90_error']:.3f}"
        )
        print(f"    {way}, {ranks} ranks: {shown}, of {count} supersteps", flush=True)


def _record(
    recorder: Recorder,
    cell: dict[str, Any],
    ranks: int,
    every: dict[tuple[str, int], list[float]],
) -> None:
    """Record a row, and keep its errors by direction."""
    errors = cell["errors"]
    for way, error in zip(cell["ways"], errors, strict=True):
        every.setdefault(("push" if way == "push" else "pull", ranks), []).append(error)
    more = {}
    for name in ("uncorrected", "from_one"):
        values = cell[name]
        more[name] = round(float(np.median(values)), 3) if values else None
    recorder.add(
        f"model {cell['program']}, {ranks} {'rank' if ranks == 1 else 'ranks'}",
        [1000 * s for s in cell["seconds"]],
        graph={"name": cell["graph"]},
        k=cell["k"],
        ranks=ranks,
        machine=cell["machine"],
        foretold=len(errors),
        total_error=cell["total_error"],
        directions=cell["directions"],
        predicted_ms=cell["predicted_ms"],
        checks={"ok": True},
        **_quantiles(errors),
        **more,
    )
    print(f"    foretold {len(errors)}: {_quantiles(errors)}, {more}", flush=True)


def _quantiles(errors: list[float]) -> dict[str, float | None]:
    """Return the error of half of the supersteps, and that of nine in ten."""
    found = np.quantile(errors, [0.5, 0.9]).round(3).tolist() if errors else [None] * 2
    return {"median_error": found[0], "p90_error": found[1]}


# -- on a rank


class Rank(lux_gpu.Rank):
    """A rank that sends the times of the model for each program, too."""

    def __init__(self, given: dict[str, Any], send: Sender) -> None:
        import featgraph as fg

        super().__init__(given, send)
        begun = time.perf_counter()
        engine = None if self.engine.size == 1 else self.engine
        self.machine = fg.distributed.calibrate(given["target"], engine=engine)
        self._iterate, self._is_recording = fg.iterate, False
        self._kept: list[tuple[Any, Any]] = []
        fg.iterate = self._recorded
        self.note(f"calibrated, {time.perf_counter() - begun:.1f} s")

    def _recorded(self, steps: Any, state: Any, **options: Any) -> Any:
        more = {"record_active": True} if self._is_recording else {}
        run = self._iterate(steps, state, **options | more)
        if self._is_recording:
            self._kept.append((run, options.get("active")))
        return run

    def run(
        self,
        of: str,
        name: str,
        graph: Any,
        program: str,
        how: lux_gpu.Program,
        k: int,
    ) -> list[Any] | None:
        """Run a program, and send its times and those of the model."""
        trials = super().run(of, name, graph, program, how, k)
        if trials is None or not self.is_time():
            return trials
        self._kept.clear()
        self._is_recording = True
        try:
            how.call()
        finally:
            self._is_recording = False
        self.wait()
        (run, active), *more = self._kept
        if more or run.supersteps != trials[0].supersteps:
            self.note(f"{program}, k = {k}: recorded other supersteps")
            return trials
        one = self._foretold(graph, run, active, trials, k)
        key = f"{of}/{program}/{k}"
        row = errors_of(one, k, FLOOR_S)
        row["from_one"] = self._from_one(one, self.given["taught"].get(key))
        row["predicted_ms"] = [
            None if np.isnan(s) else round(1000 * s, 4) for s in one.predicted()
        ]
        factors = {str(k): c.factors.tolist() for k, c in one.taught().items()}
        about = {"of": of, "program": program, "graph": name}
        self.send(**row, **about, machine=self.machine.name, factors=factors)
        return trials

    def _foretold(
        self, graph: Any, run: Any, active: Any, trials: list[Any], k: int
    ) -> Any:
        """Return the supersteps of a run, as measured and as the model has them."""
        from dataclasses import replace

        import featgraph as fg
        from bench.distributed.worked import works_here
        from featgraph.ranks.cost.foretold import foretell_works
        from featgraph.ranks.engines.links import Link

        first = None
        if active is not None:
            is_set = isinstance(active, fg.ActiveSet)
            first = (active if is_set else fg.ActiveSet(graph, active)).mask
        works = works_here(graph, run, first)
        link = Link.of("link", LATENCY_S, self.link or 1e12)
        # Directions are those of the trials; sets are the same.
        found = foretell_works(works, trials[-1], (self.machine, link), k=k)
        own = np.array([trial.seconds for trial in trials])
        slowest = self.engine.all_reduce(own, "max", about="supersteps")
        return replace(found, measured=np.median(slowest, axis=0))

    def _from_one(
        self, one: Any, factors: dict[str, list[float]] | None
    ) -> list[float]:
        """Return errors of the constants that a run on one rank has corrected."""
        from featgraph.ranks.cost.correction import elsewhere

        if factors is None:
            return []
        guess = np.array([
            elsewhere(factors[str(kind)], times, has_wire=False)
            if str(kind) in factors else np.nan
            for kind, times in zip(one.kinds, one.times, strict=True)
        ])  # fmt: skip
        known = np.isfinite(guess) & (one.measured >= FLOOR_S)
        apart = np.abs(guess - one.measured) / one.measured
        return apart[known].tolist()  # type: ignore[no-any-return]


if __name__ == "__main__":
    run_rank(partial(lux_gpu.be_a_rank, kind=Rank))
