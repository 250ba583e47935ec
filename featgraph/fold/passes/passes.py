"""The two lists of passes, in order, and the functions that run them.

A pass is a function from tree to tree; its docstring has its effect and the reason.
`BODY_PASSES` turn a user function into functions of the generated module: their tree is
a list of `Define` nodes, because one user function may become several. `NEST_PASSES`
turn a phase of a plan into the statements of a kernel. Tests verify after each pass
which nodes its tree may contain (`featgraph.fold.tree.passes`). Begin with the two
lists; `lower_function` and `lower` run them.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from featgraph.fold.analysis.analyse import HelperFunction
from featgraph.fold.passes.bodies import definitions, stores
from featgraph.fold.passes.bodies import looped as loops
from featgraph.fold.passes.bodies import predication as predicates
from featgraph.fold.passes.bodies import unrolled as copies
from featgraph.fold.passes.bodies import vectorized as vectors
from featgraph.fold.passes.bodies.facts import BodyFacts, Callee
from featgraph.fold.passes.bodies.memory import IndexChecks, InMemory, Memory
from featgraph.fold.passes.bodies.nodes import (
    AnyFeature,
    Array,
    Checked,
    Collective,
    Define,
    GoOn,
    LoadRows,
    Masked,
    Place,
)
from featgraph.fold.passes.nests.blocks import Blocks
from featgraph.fold.passes.nests.converge import Converge
from featgraph.fold.passes.nests.diverge import Diverge, PulledEdges, StoreForwarding
from featgraph.fold.passes.nests.facts import NestFacts
from featgraph.fold.passes.nests.features import Unrolled
from featgraph.fold.passes.nests.gathers import (
    Accumulators,
    ActiveSources,
    ChangeDriven,
    EarlyExit,
    LeaveEarly,
)
from featgraph.fold.passes.nests.homes import Homes
from featgraph.fold.passes.nests.leaves import Intersections, Leaves, Sums
from featgraph.fold.passes.nests.meets import DeclareAreas, Meets
from featgraph.fold.syntax.arithmetic import unsigned_indices
from featgraph.fold.tree import nodes
from featgraph.fold.tree.passes import Pass, Stage, run
from featgraph.fold.tree.statements import (
    Access,
    Atomic,
    Body,
    Cast,
    Helper,
    Identity,
    MathCall,
    Numeric,
    Operate,
    Scalar,
    Whole,
    copied,
    narrowed,
)
from featgraph.program.signature import Real

__all__ = [
    "BODY_PASSES",
    "NEST_PASSES",
    "callee_of",
    "lower",
    "lower_function",
    "lower_helper",
]


def functions(facts: BodyFacts, tree: Body) -> Body:
    """Begin with the user function as the analysis left it.

    It has the user's control flow, for one feature; collaborative calls are statements
    of their own.
    """
    return [*tree, definitions.defined(facts)]


def outer_products(facts: BodyFacts, tree: Body) -> Body:
    """Split a function that returns an outer product into functions of its factors.

    Kernels then evaluate the row, the column and the scale once for an edge, not once
    for each of the K x K elements.
    """
    if facts.form not in {"parts", "columns"}:
        return tree
    return _changed(definitions.parts_of, facts, tree, facts.form)


def returned_sums(facts: BodyFacts, tree: Body) -> Body:
    """Make a triangle function return the values that it adds to corners and sides.

    A kernel visits many triangles of one vertex in a row, and adds their sum to memory
    once.
    """
    return _changed(definitions.with_sums, facts, tree, "triangle")


def early_returns(facts: BodyFacts, tree: Body) -> Body:
    """Split off the statements behind a return that only some features take.

    They have no collaborative call, so they become a function that is called once for
    each feature.
    """
    return _changed(definitions.apart, facts, tree, "unrolled", "looped")


def keys(facts: BodyFacts, tree: Body) -> Body:
    """Make gathers of argmin and argmax return pairs (key, source).

    Kernels combine the pairs, so that the source of the winning key is kept.
    """
    if not facts.has_key:
        return tree
    return _changed(definitions.with_keys, facts, tree, *FORMS)


def returned_entries(facts: BodyFacts, tree: Body) -> Body:
    """Make an edge function return the next entries that gathers read in registers.

    The kernel selects the old entries where the verdict is False, and stores once.
    """
    return _changed(stores.returning_entries, facts, tree, "unrolled")


def row_pieces(facts: BodyFacts, tree: Body) -> Body:
    """Load rows that a function reads on every path, several features at once.

    A function for one feature takes the entry as an argument; its caller loads the row.
    """
    return _changed(stores.with_rows, facts, tree, "feature", "unrolled")


def store_sinking(facts: BodyFacts, tree: Body) -> Body:
    """Move stores of next entries behind the verdict.

    Where the verdict is False the kernel restores the old entries, so an earlier store
    would write each entry twice.
    """
    return _changed(stores.with_sunk_stores, facts, tree, "unrolled")


def predication(facts: BodyFacts, tree: Body) -> Body:
    """Turn control flow into predicates where lanes share the features of a vertex.

    All lanes of a warp must take part in a shuffle, so none returns before the end.
    """
    if not facts.predicated:
        return tree
    return _changed(predicates.predicated, facts, tree, "unrolled")


def unrolled(facts: BodyFacts, tree: Body) -> Body:
    """Repeat varying statements for each feature of a lane, with variables of its own.

    For few features: the variables stay in registers.
    """
    return _changed(copies.unrolled, facts, tree, "unrolled")


def looped(facts: BodyFacts, tree: Body) -> Body:
    """Put loops over features between collaborative calls.

    For many features: a varying local is an array with an element for each feature.
    """
    return _changed(loops.looped, facts, tree, "looped")


def vectorized(facts: BodyFacts, tree: Body) -> Body:
    """Repeat varying statements for each SIMD vector of features (CPU).

    LLVM does not vectorize loops over arrays that may overlap.
    """
    return _changed(vectors.vectorized, facts, tree, "vectorized")


def names(facts: BodyFacts, tree: Body) -> Body:
    """Give generated names their letters, in the order of the text.

    Earlier passes leave placeholders, because a later pass may move or drop a name.
    """
    taken = {*facts.function.variables, *facts.temporaries}
    for node in tree:
        facts.fresh.settle(narrowed(node, Define).body, taken)
    return tree


def index_checks(facts: BodyFacts, tree: Body) -> Body:
    """Compare each index that the user computes with its bound, in checked mode.

    An index out of range is reported with the line in the user's file.
    """
    sites, declared = facts.context.checked, facts.function.declared
    if sites is None:
        return tree
    checks = IndexChecks(facts.memory, declared.name, declared.source.file, sites)
    return _bodies(checks.over, tree)


def memory(facts: BodyFacts, tree: Body) -> Body:
    """Replace accesses to properties by indices into arrays.

    The resulting tree is plain Python, and can be printed.
    """
    return _bodies(InMemory(facts.memory).over, tree)


def indices(facts: BodyFacts, tree: Body) -> Body:
    """Make indices unsigned (CUDA).

    For a signed index, Numba compiles a test for negative values (wrap-around).
    """
    return _bodies(unsigned_indices, tree) if facts.context.cuda else tree


#: Forms of functions that have features; "triangle" and "helper" have none.
FORMS = ("feature", "rest", "unrolled", "looped", "vectorized", "parts", "columns")

BODY_PASSES = (
    Pass(functions),
    Pass(outer_products),
    Pass(returned_sums),
    Pass(early_returns),
    Pass(keys),
    Pass(returned_entries),
    Pass(row_pieces),
    Pass(store_sinking),
    Pass(predication),
    Pass(unrolled, (AnyFeature, Collective, LoadRows)),
    Pass(looped, (GoOn,)),
    Pass(vectorized),
    Pass(names),
    Pass(index_checks),
    Pass(
        memory,
        (
            Access,
            Array,
            Atomic,
            Cast,
            Checked,
            Helper,
            Identity,
            Place,
            Masked,
            MathCall,
            Numeric,
            Operate,
            Scalar,
            Whole,
        ),
    ),
    Pass(indices),
)


def lower_function(facts: BodyFacts) -> Body:
    """Run `BODY_PASSES`; return the generated functions of one user function."""
    return _last(run(BODY_PASSES, facts), facts.function.name, facts.context.watch)


def lower_helper(helper: HelperFunction, real: Real, cuda: bool) -> Body:
    """Return the generated function of a helper that user functions call."""
    body = [narrowed(copied(s), type(s)) for s in helper.body]
    decorator = definitions.decorator_of(cuda)
    tree = [Define(helper.name, "helper", helper.parameters, body, decorator=decorator)]
    made = _bodies(InMemory(Memory(cuda, real)).over, list(tree))
    return _bodies(unsigned_indices, made) if cuda else made


def callee_of(facts: BodyFacts, tree: Body) -> Callee:
    """Return the signature by which kernels call a lowered function."""
    made = [narrowed(node, Define) for node in tree]
    last, function = made[-1], facts.function
    return Callee(
        function,
        function.name,
        facts.form not in {"feature", "parts", "triangle"},
        facts.temporaries,
        last.areas,
        last.arrays,
        tuple(row for one in made for row in one.rows),
        tuple(n for s in facts.staged.values() for n in s.names),
        facts.form in {"vectorized", "columns"},
        last.waits,
    )


def _bodies(change: Callable[[Body], Body], tree: Body) -> Body:
    """Change the body of each function."""
    for node in tree:
        one = narrowed(node, Define)
        one.body = change(one.body)
    return tree


def _changed(
    change: Callable[[BodyFacts, Define], Define | list[Define]],
    facts: BodyFacts,
    tree: Body,
    *forms: str,
) -> Body:
    """Change the functions of some forms, or split them into several."""
    out: Body = []
    for node in tree:
        one = narrowed(node, Define)
        made = change(facts, one) if one.form in forms else one
        out += made if isinstance(made, list) else [made]
    return out


def stages(facts: NestFacts, tree: Body) -> Body:
    """Build the loop nest of the phase, by its kind.

    It has no schedule and no target yet: all schedules begin with the same tree.
    """
    nest = facts.phase.kind.nest(facts) if facts.nest is None else facts.nest()
    return tree + nest


def pulled_edges(facts: NestFacts, tree: Body) -> Body:
    """Run pulled edge functions in the walk over in-edges, in front of the gathers.

    Edge ids follow the rows of in-edges, so the functions write contiguous entries,
    which the gathers behind them read from registers or the cache.
    """
    return PulledEdges(facts).over(tree)


def store_forwarding(facts: NestFacts, tree: Body) -> Body:
    """Pass entries that an edge function writes to gathers in registers; store once.

    An entry is forwarded if the function writes it once, and gathers read it at its own
    edge and feature only.
    """
    return StoreForwarding(facts).over(tree) if facts.context.forwarded else tree


def change_driven(facts: NestFacts, tree: Body) -> Body:
    """Keep aggregates in memory, and patch them with the changes of changed sources.

    Near the end of a run few sources change, so patching costs less than combining over
    all edges.
    """
    return ChangeDriven(facts).over(tree)


def active_sources(facts: NestFacts, tree: Body) -> Body:
    """Restrict gathers with ``sources="active"`` to edges from active vertices.

    The test loads one bit, and saves the loads of inactive sources.
    """
    return ActiveSources(facts).over(tree)


def early_exit(facts: NestFacts, tree: Body) -> Body:
    """End a walk over edges when no further edge can change the result.

    Of many rows, only the first edges are read then.
    """
    return EarlyExit(facts).over(tree)


def leave_early(facts: NestFacts, tree: Body) -> Body:
    """Test an early return in front of the gathers, where lanes are independent.

    A vertex whose function returns False by its own values then reads no edges.
    """
    return LeaveEarly(facts).over(tree) if facts.binding.leaves_early else tree


def accumulators(facts: NestFacts, tree: Body) -> Body:
    """Initialize accumulators in front of a walk, and combine those of lanes behind it.

    Lanes that share a vertex each walk a part of its edges.
    """
    return Accumulators(facts).over(tree)


def intersections(facts: NestFacts, tree: Body) -> Body:
    """Find triangles by intersecting the rows of two neighbors.

    The schedule chooses the first corner, the search for members of both rows, and how
    long sums at each corner stay in registers.
    """
    return Intersections(facts).over(tree)


def sums(facts: NestFacts, tree: Body) -> Body:
    """Choose where triangle functions accumulate their sums.

    Successive triangles share a vertex or an edge: their sum stays in registers, and is
    added to memory once.
    """
    return Sums(facts).over(tree)


def share(facts: NestFacts, tree: Body) -> Body:
    """Lower tests to branches for independent lanes, to masks for lanes of a group.

    All lanes of a warp must take part in a shuffle, so none may be in another branch.
    """
    one = Converge if facts.binding.meets else Diverge
    return one(facts).over(tree)


def sweep(facts: NestFacts, tree: Body) -> Body:
    """Put the loop over vertices around the statements for one vertex.

    The schedule assigns lanes to vertices, and marks those that passed. Statements in
    front of the sweep move behind `Areas`, whose arrays they may use.
    """
    sweeps = [node for node in tree if isinstance(node, nodes.Sweep)]
    if not sweeps:
        return tree  # a worklist has its own loops
    [node] = sweeps
    place = tree.index(node)
    swept = facts.schedule.sweep(node, facts.binding, facts.shape)
    [areas] = [n for n, part in enumerate(swept, 1) if isinstance(part, nodes.Areas)]
    body = [*swept[:areas], *tree[:place], *swept[areas:], *tree[place + 1 :]]
    return facts.schedule.around(body, facts.shape)


def meets(facts: NestFacts, tree: Body) -> Body:
    """Lower synchronizations of lanes: to shuffles, a barrier, or nothing.

    That depends on the number of lanes that share a vertex, an edge or a row.
    """
    return Meets(facts).over(tree)


def blocks(facts: NestFacts, tree: Body) -> Body:
    """Choose where the sums of blocks of terms are stored, and how they are added.

    A sequential sum rounds at each term, so long rows are summed in blocks.
    """
    return Blocks(facts).over(tree)


def homes(facts: NestFacts, tree: Body) -> Body:
    """Lower statements on accumulators that are not plain variables of a lane.

    SIMD vectors, rows in memory and staged rows of a matrix take contributions in their
    own way; functions read all of them in the same form.
    """
    return Homes(facts).over(tree)


def leaves(facts: NestFacts, tree: Body) -> Body:
    """Lower loads, calls, combines and atomics to statements for one feature.

    They do not depend on the assignment of features to lanes.
    """
    return Leaves(facts).over(tree)


def areas(facts: NestFacts, tree: Body) -> Body:
    """Declare the shared, local and global arrays of a kernel.

    Behind the passes above it is known which of them the kernel uses.
    """
    return DeclareAreas(facts).over(tree)


def features(facts: NestFacts, tree: Body) -> Body:
    """Repeat statements for each feature of a lane, or put them in a loop.

    Few features are variables, which stay in registers; many are elements of arrays.
    """
    return Unrolled(facts.binding.features).over(tree)


NEST_PASSES = (
    Pass(stages),
    Pass(pulled_edges, (nodes.Pull,)),
    Pass(store_forwarding),
    Pass(change_driven),
    Pass(active_sources),
    Pass(early_exit),
    Pass(leave_early),
    Pass(accumulators, (nodes.Gathers,)),
    Pass(intersections, (nodes.Intersect,)),
    Pass(sums, (nodes.FromPlace, nodes.Places, nodes.Triangle, nodes.Waits)),
    Pass(
        share,
        (
            nodes.Ahead,
            nodes.Begin,
            nodes.FindDue,
            nodes.ForEdges,
            nodes.Incremental,
            nodes.Mark,
            nodes.Only,
            nodes.Ordered,
            nodes.Passed,
            nodes.Reached,
            nodes.Restore,
            nodes.Run,
            nodes.Then,
        ),
    ),
    Pass(sweep, (nodes.Sweep,)),
    Pass(meets, (nodes.Meet,)),
    Pass(blocks, (nodes.PutBy, nodes.AddUp)),
    Pass(homes, (nodes.AddStaged, nodes.Finish, nodes.Settle, nodes.Stage)),
    Pass(
        leaves,
        (
            nodes.BeginPatch,
            nodes.Called,
            nodes.Contribute,
            nodes.Copy,
            nodes.FinishPatch,
            nodes.FromMemory,
            nodes.Patch,
            nodes.Push,
            nodes.Select,
            nodes.Share,
            nodes.Start,
            nodes.Stop,
            nodes.ToMemory,
            nodes.Verdict,
        ),
    ),
    Pass(areas, (nodes.Areas,)),
    Pass(
        features,
        (
            nodes.AllFound,
            nodes.AnyFeature,
            nodes.Features,
            nodes.FromRow,
            nodes.Returned,
            nodes.ToRow,
        ),
    ),
)


def lower(facts: NestFacts) -> Body:
    """Run `NEST_PASSES`; return the statements of a kernel."""
    return _last(stages_of(facts), facts.title, facts.context.watch)


def _last(
    steps: Iterable[tuple[Pass[Any], Body]],
    name: str,
    watch: Callable[[str, Pass[Any], Body], None] | None,
) -> Body:
    """Return the tree after all passes; call `watch` after each of them."""
    tree: Body = []
    for one, tree in steps:
        if watch is not None:
            watch(name, one, tree)
    return tree


def stages_of(facts: NestFacts) -> Iterator[tuple[Pass[NestFacts], Body]]:
    """Yield each pass of `NEST_PASSES` with its result, the input of the next one."""

    def stage_of(one: Pass[NestFacts]) -> Stage:
        given = _names_of(facts) if one is NEST_PASSES[-1] else None
        return Stage((), _companies(facts), given)

    return run(NEST_PASSES, facts, stage_of)


def _companies(facts: NestFacts) -> dict[str, str]:
    """Map each scope to the lanes that must reach its synchronizations together."""
    scopes = facts.binding.scopes.items()
    return {name: s.company if s.lanes > 1 else "" for name, s in scopes}


def _names_of(facts: NestFacts) -> set[str]:
    """Return the names that the arguments and the module of a kernel bind."""
    functions = {p.name for p in facts.callees.values()}
    parts = ("row", "column", "scale")  # of outer products, functions of their own
    functions |= {f"{name}_{part}" for name in functions for part in parts}
    functions |= {helper.name for helper in facts.plan.analysis.helpers}
    return {*facts.arguments, *functions, *_MODULE, *dir(builtins)}


#: Names that generated modules import, for either target.
_MODULE = frozenset((
    "block_tiles", "boolean", "cpu", "cuda", "float32", "float64", "int32", "int64",
    "math", "np", "queues", "segments", "tiles", "uint32", "uint64", "vectors", "warp",
))  # fmt: skip
