"""The small arrays that one chunk of the CPU target works in."""

from __future__ import annotations

from featgraph.fold.codegen.cpu.tiles import TiledBody
from featgraph.fold.codegen.functions.featurewise import Context, Printed
from featgraph.fold.codegen.kernels.accumulate import contribution_rows
from featgraph.fold.codegen.kernels.accumulators import Accumulator
from featgraph.fold.codegen.kernels.blocks import CPU_LEVELS
from featgraph.fold.lowering.areas import work_shape
from featgraph.fold.plan.plan import FoldPlan, Phase

__all__ = ["CpuArrays"]


class CpuArrays:
    """Prints what is allocated before the sweep of a chunk.

    Parameters
    ----------
    body : TiledBody
        Prints what is done for a vertex or an edge.
    """

    def __init__(
        self,
        context: Context,
        plan: FoldPlan,
        number: int,
        phase: Phase,
        printed: dict[str, Printed],
        body: TiledBody,
    ) -> None:
        self.context = context
        self.writer = context.writer
        self.plan = plan
        self.number = number
        self.phase = phase
        self.printed = printed
        self.body = body
        self.name = f"{phase.kind}_phase_{number}"

    def arrays(self) -> None:
        """Allocate the small arrays that one chunk works in."""
        real, k, line = self.context.real, self.phase.width, self.writer.line
        rows, flags = 0, 0
        for printed in self.printed.values():
            rows = max(rows, printed.arrays.get("real", 0))
            flags = max(flags, printed.arrays.get("int64", 0))
            for n, columns in enumerate(printed.areas):
                shape = work_shape(k, columns, real)
                text = f"np.empty({shape}, np.{real})"
                if columns == k + 1 and self.phase.mapping.loops:
                    text = f"tiles.zeros(*{shape}, np.empty(0, np.{real}))"
                line(f"{printed.name}_work_{n} = {text}")
        if rows:
            line(f"rows = np.empty(({rows}, {k}), np.{real})")
        if flags:
            line(f"flags = np.empty(({flags}, {k}), np.int64)")
        for accumulator in self._held():
            dtype = {"real": real, "bool": "bool_"}.get(
                accumulator.type, accumulator.type
            )
            loaded = accumulator.name in self.phase.loads
            if accumulator.name in self.phase.tiles:
                self.body.panels(accumulator)
            elif accumulator.is_matrix and not loaded:
                line(f"{accumulator.name} = np.empty(({k}, {k}), np.{dtype})")
            elif accumulator.is_wide and self.phase.mapping.loops:
                line(f"{accumulator.name} = np.empty({k}, np.{dtype})")
                if accumulator.is_arg:
                    line(f"{accumulator.name}_source = np.empty({k}, np.int32)")
                if accumulator.name in self.phase.keeps:
                    line(f"change_{accumulator.name} = np.empty({k}, np.{dtype})")
        summed = self.body.in_blocks(self.plan.functions_of(self.phase))
        for accumulator in summed:
            waits = (CPU_LEVELS, *(accumulator.shape or (1,)))
            line(f"{self.body.waiting(accumulator)} = np.empty({waits}, np.{real})")
        for name, dtype in contribution_rows(self.body).items():
            dtype = "bool_" if dtype == "bool" else dtype
            line(f"{name} = np.empty({k}, np.{dtype})")

    def _held(self) -> list[Accumulator]:
        """Return the accumulators that this phase keeps for a vertex."""
        names = {
            f.into for f in self.plan.functions_of(self.phase) if f.into is not None
        }
        if self.phase.kind == "push":
            names = set()
        return [
            self.body.accumulators[n] for n in sorted(names | set(self.phase.loads))
        ]
