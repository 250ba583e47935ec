"""What a phase calls gathered values, and what it hands of them to functions."""

from __future__ import annotations

from featgraph.fold.analysis.gathered_values import base_name
from featgraph.fold.codegen.functions.featurewise import Context, Printed
from featgraph.fold.codegen.kernels.accumulators import (
    Accumulator,
    accumulator_of,
    source_name,
)
from featgraph.fold.plan.plan import FoldPlan, Phase

__all__ = ["Temporaries"]


class Temporaries:
    """Names of the accumulators of one phase, and of single entries of them."""

    def __init__(
        self,
        context: Context,
        plan: FoldPlan,
        phase: Phase,
        printed: dict[str, Printed],
        library: str,
        edge_id: str,
    ) -> None:
        self.context = context
        self.writer = context.writer
        self.plan = plan
        self.phase = phase
        self.printed = printed
        self.library = library
        self.edge_id = edge_id
        self.loops = phase.mapping.loops
        self.copies = phase.width
        self.functions = plan.functions_of(phase)
        self.entries = plan.analysis.entries
        self.accumulators = {
            f.into: accumulator_of(f, plan.analysis)
            for f in plan.analysis.functions
            if f.kind in {"gather", "reduce"}
        }

    def index(self, *parts: str) -> str:
        """Return the text of an index; a signed one costs a wrap-around on CUDA."""
        if self.library == "warp":
            # Edge ids are unsigned from the start.
            parts = tuple(
                p if p.isdigit() or p == "e" else f"uint32({p})" for p in parts
            )
        return ", ".join(parts)

    def feature(self, f: str) -> str:
        """Return the text of feature `f`, a number of a copy or ``"f"``."""
        return f

    def held(self, accumulator: Accumulator, j: int) -> str:
        """Return the name of copy j of an accumulator (of its only one)."""
        if not accumulator.is_wide or self.loops:
            return accumulator.name
        return f"{accumulator.name}_{j}" if self.copies > 1 else accumulator.name

    def temporary(self, name: str, j: int) -> str:
        """Return the text of a temporary that a function takes, for copy j."""
        base = self.accumulators.get(name)
        if base is not None:
            return self.held(base, j)
        if name in self.entries:
            return self.entry(name)
        return source_name(
            self.held(self.accumulators[name.removesuffix("_source")], j)
        )

    def is_filled_here(self, name: str) -> bool:
        """Whether what an entry is one of is gathered by this phase."""
        base = base_name(self.entries[name].of, self.plan.analysis.temporaries)
        gathers = self.functions if self.phase.kind == "vertex" else []
        return any(f.into == base for f in gathers)

    def entry(self, name: str) -> str:
        """Return the text of an entry at a constant feature, the same for all."""
        entry = self.entries[name]
        if not self.is_filled_here(name):
            return name
        if self.loops:
            return f"{self.temporary(entry.of, 0)}[{entry.feature}]"
        return self.temporary(entry.of, entry.feature)

    def read_entries(self) -> tuple[str, ...]:
        """Return the entries that functions of the phase are given."""
        found = {
            t: None
            for f in self.functions
            for t in self.printed[f.name].temporaries
            if t in self.entries
        }
        return tuple(found)

    def is_wide(self, name: str) -> bool:
        """Whether a temporary has an entry for every feature."""
        if name in self.entries:
            return False
        base = (
            self.accumulators.get(name)
            or self.accumulators[name.removesuffix("_source")]
        )
        return base.is_wide

    def arguments(self, name: str) -> list[str]:
        """Return what stands for a temporary in the call of a collective function."""
        wide = self.is_wide(name) and not self.loops
        return [self.temporary(name, j) for j in range(self.copies if wide else 1)]
