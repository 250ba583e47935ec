"""The folder: from declared functions to kernels. Start reading here.

    Program --make_plan--> FoldPlan --emit--> KernelSource --Kernel--> launch

`make_plan` runs the middle end (`analyse`: resolve, lower, type, vary, access) and
decides everything; `emit` prints; `Kernel` compiles when first launched.
"""

from __future__ import annotations

from featgraph.fold.analysis.assumed_signature import assumed_signature
from featgraph.fold.codegen.emit import emit
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.plan.traits import GraphTraits
from featgraph.program.program import Program
from featgraph.program.signature import Signature

__all__ = ["fold", "fold_assumed"]


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


def fold_assumed(program: Program, k: int, dtype: str, options: Options) -> Kernel:
    """Fold a program for the types that its functions let one assume, to look at.

    Parameters
    ----------
    k : int
        Features of what is indexed with f.
    dtype : str
        Storage type of real numbers.
    """
    return fold(program, assumed_signature(program, k, dtype), options, GraphTraits())
