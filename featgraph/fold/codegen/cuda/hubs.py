"""CUDA kernels in which a block shares a vertex of high degree."""

from __future__ import annotations

import math

import numpy as np

from featgraph.fold.codegen.cuda.phase import CudaPhase
from featgraph.fold.functions.featurewise import Context, Printed
from featgraph.fold.lowering.areas import group_areas
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.plan.schedules import BLOCK_THREADS, HUB_THREADS, SHARED_BYTES

__all__ = ["HubPhase"]


class HubPhase(CudaPhase):
    """A block takes one vertex of high degree: all its slots take edges of it."""

    role = "hubs"
    other_schedule = "block"

    def __init__(
        self,
        context: Context,
        plan: FoldPlan,
        number: int,
        phase: Phase,
        printed: dict[str, Printed],
    ) -> None:
        super().__init__(context, plan, number, phase, printed)
        self.name += "_hubs"
        threads, lanes = HUB_THREADS, phase.mapping.lanes
        areas = self._area_bytes()
        while threads > BLOCK_THREADS and threads // lanes * areas > SHARED_BYTES:
            threads //= 2
        self.threads = threads

    def _area_bytes(self) -> int:
        """Return what the areas of a group take."""
        areas = group_areas(self.facts())
        return sum(math.prod(a.shape) * np.dtype(a.dtype).itemsize for a in areas)
