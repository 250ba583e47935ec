"""Faults that the tools must find, or their silence means nothing.

Each tool gets a small kernel with the fault that it is for; three get one in a kernel
that featgraph generates, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

__all__ = ["FAULTS", "plant"]

#: Tool -> names of its faults. Those of generated kernels are cases of `cases`.
FAULTS: dict[str, dict[str, dict[str, Any] | None]] = {
    "memcheck": {
        "writes past the end": None,
        "keeps warps without a vertex": {"program": "weighted_sum", "variant": "push"},
    },
    "racecheck": {
        "has no barrier": None,
        "drops the barriers of hubs": {"program": "weighted_sum", "variant": "hubs"},
    },
    "initcheck": {
        "reads what nobody wrote": None,
        "begins with any contents": {"program": "weighted_sum", "variant": "unfolded"},
    },
    "synccheck": {"leaves before the barrier": None},
}


def plant(name: str) -> Any:
    """Make a fault: change how kernels are generated, or return one to launch.

    Returns
    -------
    callable or None
        ``launch(device)`` launches a kernel that has the fault.
    """
    if name == "keeps warps without a vertex":
        from featgraph.fold.cuda_lanes import WarpPhase

        WarpPhase._leave = lambda *_: None  # type: ignore[method-assign]
        return None
    if name == "drops the barriers of hubs":
        from featgraph.fold import kernel

        load = kernel.load_module
        old, new = "cuda.syncthreads()", "pass"
        kernel.load_module = lambda source: load(  # type: ignore[assignment]
            replace(source, text=source.text.replace(old, new))
        )
        return None
    if name == "begins with any contents":
        from featgraph.runtime.cuda_arrays import CudaArrays

        CudaArrays.working_memory = CudaArrays.empty  # type: ignore[method-assign]
        return None
    return _launches()[name]


def _launches() -> dict[str, Any]:
    from featgraph._cuda import cuda, kernel

    @kernel
    def past_the_end(array):  # type: ignore[no-untyped-def]
        array[cuda.grid(1)] = 1

    @kernel
    def no_barrier(array):  # type: ignore[no-untyped-def]
        own = cuda.shared.array(64, np.int32)
        thread = cuda.threadIdx.x
        own[thread] = array[thread]
        array[thread] = own[63 - thread]

    @kernel
    def unwritten(source, array):  # type: ignore[no-untyped-def]
        thread = cuda.threadIdx.x
        array[thread] = source[thread] + 1

    @kernel
    def leaves(array):  # type: ignore[no-untyped-def]
        thread = cuda.threadIdx.x
        if thread >= 40:
            return
        cuda.syncthreads()
        array[thread] = thread

    def full(device: Any) -> Any:
        return device.upload(np.zeros(64, np.int32))

    def of(function: Any, *arguments: Any) -> Any:
        return lambda device: device._launch(
            function, 1, 64, tuple(make(device) for make in arguments)
        )

    return {
        "writes past the end": of(
            past_the_end, lambda device: device.upload(np.zeros(63, np.int32))
        ),
        "has no barrier": of(no_barrier, full),
        "reads what nobody wrote": of(
            unwritten, lambda device: device.empty((64,), "int32"), full
        ),
        "leaves before the barrier": of(leaves, full),
    }
