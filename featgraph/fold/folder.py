"""The folder: from declared functions to kernels. Start reading here.

    Program --make_plan--> FoldPlan --emit--> KernelSource --Kernel--> launch

`make_plan` runs the middle end (`analyse`: resolve, lower, type, vary, access) and
makes all decisions; `emit` prints the module; `Kernel` compiles it at the first launch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from featgraph.fold.analysis.assumed_signature import assumed_signature
from featgraph.fold.compiling.kernel import DueSetKernel, Kernel
from featgraph.fold.passes.nests.due_sets import KERNELS, SetFacts
from featgraph.fold.passes.nests.facts import LAYOUTS
from featgraph.fold.plan.options import Options
from featgraph.fold.plan.planner import make_plan
from featgraph.fold.plan.traits import GraphTraits
from featgraph.fold.printing.emit import emit
from featgraph.program.program import Program
from featgraph.program.signature import Signature

__all__ = ["fold", "fold_assumed", "fold_due_set"]


def fold(
    program: Program, signature: Signature, options: Options, traits: GraphTraits
) -> Kernel:
    """Fold a program into kernels.

    Parameters
    ----------
    program : Program
        The user functions, in order.
    signature : Signature
        Types of the properties and scalars in these functions.
    options : Options
        Target and choices; none changes results.
    traits : GraphTraits
        Facts about the graph that mappings depend on.

    Raises
    ------
    UserFunctionError
        If a function violates the model; the message has file and line.
    PlanError
        If the options cannot be honoured.
    """
    plan = make_plan(program, signature, options, traits)
    source = emit(plan)
    return Kernel(source)


def fold_due_set(
    name: str, traits: GraphTraits, target: str, along: str
) -> DueSetKernel:
    """Return a kernel over vertex sets, by name, that walks one kind of edges.

    One kernel serves all programs and all graphs of a layout.
    """
    wide = traits.wide_offsets or (along == "both" and traits.wide_both)
    layout = traits.layout
    has_twins = traits.undirected and layout == "runs"
    return _due_set(name, layout, LAYOUTS[layout], target, wide, has_twins)


@cache
def _due_set(
    name: str, layout: str, make: Any, target: str, wide: bool, has_twins: bool
) -> DueSetKernel:
    """Return the kernel of a layout; `make` keeps the cache apart if it is replaced."""
    traits = GraphTraits(layout=layout, wide_offsets=wide, undirected=has_twins)
    return DueSetKernel(SetFacts(KERNELS[target][name], traits, target))


def fold_assumed(program: Program, k: int, dtype: str, options: Options) -> Kernel:
    """Fold a program for types inferred from its functions, for inspection.

    Parameters
    ----------
    k : int
        Features of properties indexed with f.
    dtype : str
        Storage type of real numbers.
    """
    return fold(program, assumed_signature(program, k, dtype), options, GraphTraits())
