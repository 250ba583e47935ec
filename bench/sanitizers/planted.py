"""Faults that the tools must find, or their silence means nothing.

Each tool gets small kernels with the faults that it is for, and kernels that featgraph
generates with one.

A barrier that threads do not reach because they have ended is no fault on sm_70 and
later: those that are left pass it, and synccheck reports nothing, so none is planted.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np

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
        "reads what was not written": None,
        "leaves new buffers as they are": {
            "program": "pagerank",
            "variant": "unfolded",
        },
    },
    "synccheck": {
        "names others than itself": None,
        "waits under a condition": None,
        # In most other programs the assembler proves that lanes are together, and drops
        # the instruction that has them wait.
        "leaves lanes out of syncs": {
            "program": "belief_propagation",
            "variant": "pull",
        },
        "leaves warps out of barriers": {"program": "weighted_sum", "variant": "hubs"},
    },
}

#: Faults in the text of generated kernels: a pattern, and its replacement.
_EDITS = {
    "drops the barriers of hubs": (r"cuda\.syncthreads\(\)", "pass"),
    "leaves lanes out of syncs": (r"warp\.sync\(\)", "cuda.syncwarp(0xFFFE)"),
    "leaves warps out of barriers": (
        r"cuda\.syncthreads\(\)",
        "if cuda.threadIdx.x < 40: cuda.syncthreads()",
    ),
}


def plant(name: str) -> Any:
    """Make a fault: change how kernels are generated, or return one to launch.

    Returns
    -------
    callable or None
        ``launch(device)`` launches a kernel that has the fault.
    """
    if name == "keeps warps without a vertex":
        from featgraph.fold.schedules import lanes

        lanes.leave_idle = lambda *_: []
        return None
    if name in _EDITS:
        from featgraph.fold.compiling import kernel

        load, edit = kernel.load_module, _EDITS[name]
        kernel.load_module = lambda source: load(  # type: ignore[assignment]
            replace(source, text=re.sub(*edit, source.text))
        )
        return None
    if name == "leaves new buffers as they are":
        from featgraph.runtime.devices.cuda_arrays import CudaArrays

        # Vertices that do not commit are not written, and are read when arrays swap.
        CudaArrays.copy = lambda *_: None  # type: ignore[method-assign]
        return None
    return _launches()[name]


def _launches() -> dict[str, Any]:
    from featgraph.cuda.dialect import cuda, kernel

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
    def others(turns):  # type: ignore[no-untyped-def]
        # Where lanes are not known to be together: elsewhere no instruction is left.
        thread = cuda.threadIdx.x
        named = cuda.ballot_sync(0xFFFFFFFF, thread < 16)
        for _ in range(turns[thread]):
            cuda.syncwarp(named)
            turns[thread] += turns[15 - (thread >> 1)]

    @kernel
    def some_wait(array):  # type: ignore[no-untyped-def]
        thread = cuda.threadIdx.x
        array[thread] = thread
        if thread < 40:
            cuda.syncthreads()
            array[thread] += array[63 - thread]
        cuda.syncthreads()
        array[thread] += array[63 - thread]

    def full(device: Any) -> Any:
        return device.upload(np.zeros(64, np.int32))

    def of(function: Any, *arguments: Any) -> Any:
        return lambda device: device.launches(
            function, 1, 64, tuple(make(device) for make in arguments)
        )

    return {
        "writes past the end": of(
            past_the_end, lambda device: device.upload(np.zeros(63, np.int32))
        ),
        "has no barrier": of(no_barrier, full),
        "reads what was not written": of(
            unwritten, lambda device: device.empty((64,), "int32"), full
        ),
        "names others than itself": of(
            others,
            lambda device: device.upload((np.arange(64) < 17).astype(np.int32) * 2),
        ),
        "waits under a condition": of(some_wait, full),
    }
