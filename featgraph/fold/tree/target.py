"""The targets that kernels are generated for."""

from __future__ import annotations

from enum import Enum

__all__ = ["Target"]


class Target(Enum):
    """Where a kernel runs."""

    CPU = "cpu"
    CUDA = "cuda"

    @property
    def intrinsics(self) -> str:
        """Module of `featgraph.device` that atomics, bits and shuffles come from."""
        return "warp" if self is Target.CUDA else "cpu"
