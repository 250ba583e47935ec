"""The folder: from declared functions to kernels. Start reading here.

    Program --make_plan--> FoldPlan --emit--> KernelSource --Kernel--> launch

`make_plan` runs the middle end (`analyse`: resolve, lower, type, vary, access) and
decides everything; `emit` prints; `Kernel` compiles when first launched.
"""

from __future__ import annotations

from featgraph.fold.codegen.emit import emit
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.plan.schedules import GraphTraits
from featgraph.program.program import Program
from featgraph.program.signature import Signature

__all__ = ["fold"]


def fold(
    program: Program, signature: Signature, options: Options, traits: GraphTraits
) -> Kernel:
    """Fold a program into kernels.

    Parameters
    ----------
    program : Program
        The user functions, in order.
    signature : Signature
        Types of the properties and scalars they name.
    options : Options
        Target and choices; none changes a result.
    traits : GraphTraits
        What mappings depend on of the graph.

    Raises
    ------
    UserFunctionError
        If a function does not fit the model; names its file and line.
    PlanError
        If the options cannot be honoured.
    """
    plan = make_plan(program, signature, options, traits)
    source = emit(plan)
    return Kernel(source)
