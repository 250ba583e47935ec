"""CUDA kernels in which a block shares a vertex of high degree."""

from __future__ import annotations

import math

import numpy as np

from featgraph.base.cached import cached_property
from featgraph.fold.passes.nests.areas import group_areas
from featgraph.fold.printing.cuda_phase import CudaPhase
from featgraph.fold.schedules.base import Schedule
from featgraph.fold.schedules.lanes import SHARED_BYTES
from featgraph.fold.schedules.mapping import BLOCK_THREADS, HUB_THREADS
from featgraph.fold.schedules.table import SCHEDULES

__all__ = ["HubPhase"]


class HubPhase(CudaPhase):
    """A block takes one vertex of high degree: all its lanes take edges of it."""

    role = "hubs"
    suffix = "_hubs"

    @property
    def schedule(self) -> Schedule:
        """The schedule to which that of the phase leaves hubs."""
        own = super().schedule
        if self.phase.kind.pushes:  # what is pushed meets in memory
            return SCHEDULES[own.parts]
        return SCHEDULES[own.joins if self.phase.mapping.in_parts else own.hubs]

    @cached_property
    def threads(self) -> int:
        """Threads of a block: as many as their areas leave room for."""
        mapping = self.phase.mapping
        own = self.schedule.threads(mapping)
        if own:
            return own
        threads, lanes = mapping.hub_threads or HUB_THREADS, mapping.lanes_per_edge
        areas = group_areas(self.facts(BLOCK_THREADS))
        size = sum(math.prod(a.shape) * np.dtype(a.dtype).itemsize for a in areas)
        while threads > BLOCK_THREADS and threads // lanes * size > SHARED_BYTES:
            threads //= 2
        return threads
