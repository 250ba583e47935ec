"""Kernels of the CUDA target: where the emitter begins.

Words that a kernel sets bits in (`passed`, `targets`) are zero before.
"""

from __future__ import annotations

from featgraph.cuda.dialect import import_of_numbers
from featgraph.fold.plan.plan import WORKLIST, FoldPlan, Phase
from featgraph.fold.printing.cuda_hubs import HubPhase
from featgraph.fold.printing.cuda_phase import CudaPhase
from featgraph.fold.printing.cuda_queue import print_queue
from featgraph.fold.printing.module import Entry
from featgraph.fold.printing.phase import PhaseToPrint

__all__ = ["DECORATOR", "constants", "imports", "print_phase", "print_queue"]

DECORATOR = "device_function"


def imports(plan: FoldPlan) -> list[str]:
    """Return the import statements of the module."""
    solving = [
        p
        for p in plan.phases
        if any(f.operations & {"solve", "inverse"} for f in plan.functions_of(p))
    ]
    areas = (p.mapping.lanes_per_edge > 1 and not p.mapping.tile for p in solving)
    alone = [p for p in solving if p.mapping.lanes_per_edge == 1]
    modules = {
        "warp": True,
        "linalg_cuda as linalg": any(areas),
        "linalg_thread": any(not _in_registers(plan, p) for p in alone),
    }
    for phase in plan.phases:
        modules |= dict.fromkeys(phase.schedule.modules, True)
    if plan.form == WORKLIST:
        modules["queue_cuda as queues"] = True
    modules["numbers_cuda as numbers"] = plan.analysis.uses_numbers(cuda=True)
    numbers = "boolean", "float32", "float64", "int32", "int64", "uint32", "uint64"
    lines = ["import math", "from collections import namedtuple", ""]
    lines += [import_of_numbers(*numbers), ""]
    lines += ["from featgraph.cuda.dialect import cuda, device_function, kernel"]
    lines += [
        f"from featgraph.device import {n}" for n, used in modules.items() if used
    ]
    return lines


def _in_registers(plan: FoldPlan, phase: Phase) -> bool:
    """Whether a thread solves the systems of a phase in its registers."""
    inverts = any("inverse" in f.operations for f in plan.functions_of(phase))
    return phase.width <= phase.schedule.most_held and not inverts


def constants(plan: FoldPlan) -> list[str]:
    """Return the module's constants."""
    return []


def print_phase(one: PhaseToPrint) -> list[Entry]:
    """Print the kernels of a phase: two for a reduce, and for one that has hubs."""
    entries = CudaPhase(one).run()
    # Launched first, for they take longest.
    if one.phase.mapping.hubs and one.plan.form == "plain":
        entries = HubPhase(one).run() + entries
    return entries
