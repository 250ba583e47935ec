"""The two lists of passes, in order, and the functions that run them.

A pass is a function from tree to tree; its docstring has its effect and the reason.
`BODY_PASSES` turn a user function into functions of the generated module: their tree is
a list of `Define` nodes, because one user function may become several. `NEST_PASSES`
turn a phase of a plan into the statements of a kernel. Tests verify after each pass
which nodes its tree may contain (`featgraph.fold.tree.passes`).
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
    "stages_of",
]


def functions(facts: BodyFacts, tree: Body) -> Body:
    """Take the function as it was analysed.

    Control flow is the user's, for one feature; operations of all features together are
    statements of their own.
    """
    return [*tree, definitions.defined(facts)]


def outer_products(facts: BodyFacts, tree: Body) -> Body:
    """Make functions of the parts of an outer product that is summed.

    Factors of a row, of a column and of neither are then computed once each.
    """
    if facts.form not in {"parts", "columns"}:
        return tree
    return _several(definitions.parts_of, facts, tree, {facts.form})


def returned_sums(facts: BodyFacts, tree: Body) -> Body:
    """Have a triangle function return what it adds to its corners and sides.

    A kernel comes to many triangles of a vertex, and adds to memory once.
    """
    return _one(definitions.with_sums, facts, tree, {"triangle"})


def early_returns(facts: BodyFacts, tree: Body) -> Body:
    """Make a function of what features leave at different places.

    Nothing in it is done together, so that it is called feature by feature.
    """
    return _several(definitions.apart, facts, tree, {"unrolled", "looped"})


def keys(facts: BodyFacts, tree: Body) -> Body:
    """Have gathers of argmin and argmax return the source beside its key.

    They are combined as pairs.
    """
    if not facts.has_key:
        return tree
    return _one(definitions.with_keys, facts, tree, set(FORMS))


def returned_entries(facts: BodyFacts, tree: Body) -> Body:
    """Have an edge function return entries that go on to gathers in registers.

    The kernel takes the old ones where the verdict is False, and stores once.
    """
    return _one(stores.returning_entries, facts, tree, {"unrolled"})


def row_pieces(facts: BodyFacts, tree: Body) -> Body:
    """Load parts of rows that are read in any case, several features at once.

    A function for one feature is given what its caller has loaded.
    """
    return _one(stores.with_rows, facts, tree, {"feature", "unrolled"})


def store_sinking(facts: BodyFacts, tree: Body) -> Body:
    """Put stores of next entries behind the verdict.

    Where that is False the kernel puts the old entries back: what was stored before
    would be stored twice, and a load in front of it be made again.
    """
    return _one(stores.with_sunk_stores, facts, tree, {"unrolled"})


def predication(facts: BodyFacts, tree: Body) -> Body:
    """Make predicates of control flow where lanes share the features.

    All of them take part in a shuffle, so that none leaves before the end.
    """
    if not facts.predicated:
        return tree
    return _one(predicates.predicated, facts, tree, {"unrolled"})


def unrolled(facts: BodyFacts, tree: Body) -> Body:
    """Write what varies once for each feature that a lane has.

    Few features are variables, which stay in registers.
    """
    return _one(copies.unrolled, facts, tree, {"unrolled"})


def looped(facts: BodyFacts, tree: Body) -> Body:
    """Go over features in loops, between what they do together.

    Many features are elements of arrays.
    """
    return _one(loops.looped, facts, tree, {"looped"})


def vectorized(facts: BodyFacts, tree: Body) -> Body:
    """Write what varies once for each vector of features.

    A compiler makes no vectors of loops over arrays that may overlap.
    """
    return _one(vectors.vectorized, facts, tree, {"vectorized"})


def names(facts: BodyFacts, tree: Body) -> Body:
    """Put letters to the names that passes have made up, in the order of the text.

    Which of them there are is known behind all passes that make names up.
    """
    taken = {*facts.function.variables, *facts.temporaries}
    for node in tree:
        facts.fresh.settle(narrowed(node, Define).body, taken)
    return tree


def index_checks(facts: BodyFacts, tree: Body) -> Body:
    """Test each index that the user computes, in checked mode.

    An index out of range is reported with its place in the user's file.
    """
    sites, declared = facts.context.checked, facts.function.declared
    if sites is None:
        return tree
    for node in tree:
        one = narrowed(node, Define)
        checks = IndexChecks(facts.memory, declared.name, declared.source.file, sites)
        one.body = checks.over(one.body)
    return tree


def memory(facts: BodyFacts, tree: Body) -> Body:
    """Replace accesses to properties by their memory.

    The tree that is left is Python's alone, and can be printed.
    """
    return _in_memory(facts.memory, tree)


def indices(facts: BodyFacts, tree: Body) -> Body:
    """Make indices unsigned on CUDA.

    A signed one costs a wrap-around.
    """
    return _unsigned(tree) if facts.context.cuda else tree


#: Forms of the features of a function; "rest" and "helper" have them from a caller.
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
    """Return the functions of the module that a user function becomes."""
    return _last(run(BODY_PASSES, facts), facts.function.name, facts.context.watch)


def lower_helper(helper: HelperFunction, real: Real, cuda: bool) -> Body:
    """Return a plain function that user functions call."""
    body = [narrowed(copied(s), type(s)) for s in helper.body]
    decorator = definitions.decorator_of(cuda)
    tree = [Define(helper.name, "helper", helper.parameters, body, decorator=decorator)]
    made = _in_memory(Memory(cuda, real), list(tree))
    return _unsigned(made) if cuda else made


def callee_of(facts: BodyFacts, tree: Body) -> Callee:
    """Return how a kernel calls what a function has become."""
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


def _in_memory(given: Memory, tree: Body) -> Body:
    for node in tree:
        one = narrowed(node, Define)
        one.body = InMemory(given).over(one.body)
    return tree


def _unsigned(tree: Body) -> Body:
    for node in tree:
        one = narrowed(node, Define)
        one.body = unsigned_indices(one.body)
    return tree


def _one(
    change: Callable[[BodyFacts, Define], Define],
    facts: BodyFacts,
    tree: Body,
    forms: set[str],
) -> Body:
    """Change the functions of some forms."""
    made = (narrowed(node, Define) for node in tree)
    return [change(facts, one) if one.form in forms else one for one in made]


def _several(
    split: Callable[[BodyFacts, Define], list[Define]],
    facts: BodyFacts,
    tree: Body,
    forms: set[str],
) -> Body:
    """Split the functions of some forms into several."""
    out: Body = []
    for node in tree:
        one = narrowed(node, Define)
        out += split(facts, one) if one.form in forms else [one]
    return out


def stages(facts: NestFacts, tree: Body) -> Body:
    """Build the tree of the phase.

    It has no schedule or target yet, so that all schedules begin with one tree.
    """
    own = facts.phase.kind.nest(facts) if facts.nest is None else facts.nest()
    return tree + own


def pulled_edges(facts: NestFacts, tree: Body) -> Body:
    """Have edge functions run on the edges that gathers go over behind them.

    Their writes are then contiguous, and at hand where they are read.
    """
    return PulledEdges(facts).over(tree)


def store_forwarding(facts: NestFacts, tree: Body) -> Body:
    """Have what edge functions write reach gathers in registers, and be stored once.

    Where they are not the only ones to touch it, nothing is forwarded.
    """
    return StoreForwarding(facts).over(tree) if facts.context.forwarded else tree


def change_driven(facts: NestFacts, tree: Body) -> Body:
    """Have aggregates stay in memory, and take the change of changed sources.

    Near the end of a run few sources change, and a change costs less than all edges.
    """
    return ChangeDriven(facts).over(tree)


def active_sources(facts: NestFacts, tree: Body) -> Body:
    """Have gathers of active sources leave out the edges of other ones.

    Their contributions would be nothing; the test costs a bit and saves their values.
    """
    return ActiveSources(facts).over(tree)


def early_exit(facts: NestFacts, tree: Body) -> Body:
    """Have gathers leave their edges when nothing that follows can change them.

    Many a row is read to its first edge or two only.
    """
    return EarlyExit(facts).over(tree)


def leave_early(facts: NestFacts, tree: Body) -> Body:
    """Have a lane that is alone leave vertices for which nothing need be gathered.

    Vertices that their function refuses by its own values cost no edge then. Lanes
    that share a warp would wait for the others.
    """
    return LeaveEarly(facts).over(tree) if facts.binding.leaves_early else tree


def accumulators(facts: NestFacts, tree: Body) -> Body:
    """Start what gathers fill, and have lanes combine what each of them has.

    Lanes that share a vertex have a part of its edges each.
    """
    return Accumulators(facts).over(tree)


def intersections(facts: NestFacts, tree: Body) -> Body:
    """Have rows of neighbors intersected: a vertex in both closes a triangle.

    A schedule chooses the first corner, the search for members of the other two, and
    how long sums at each may wait.
    """
    return Intersections(facts).over(tree)


def sums(facts: NestFacts, tree: Body) -> Body:
    """Choose where triangle functions add their sums.

    Many triangles of a vertex or edge come one after the other: they add in registers,
    and to memory once.
    """
    return Sums(facts).over(tree)


def share(facts: NestFacts, tree: Body) -> Body:
    """Make tests branches for a lane that is alone, masks for lanes that meet.

    All lanes of a warp take part in a shuffle, so that none of them may be elsewhere.
    """
    one = Converge if facts.binding.meets else Diverge
    return one(facts).over(tree)


def sweep(facts: NestFacts, tree: Body) -> Body:
    """Put the loop over vertices around the work for one.

    A schedule chooses the lanes of each vertex, and how passed ones are marked.
    Statements before the loop come behind the names and areas that it works with.
    """
    sweeps = [node for node in tree if isinstance(node, nodes.Sweep)]
    if not sweeps:
        return tree  # it goes through vertices its own way
    [node] = sweeps
    place = tree.index(node)
    swept = facts.schedule.sweep(node, facts.binding, facts.shape)
    [areas] = [n for n, part in enumerate(swept, 1) if isinstance(part, nodes.Areas)]
    body = [*swept[:areas], *tree[:place], *swept[areas:], *tree[place + 1 :]]
    return facts.schedule.around(body, facts.shape)


def meets(facts: NestFacts, tree: Body) -> Body:
    """Choose how lanes combine their values.

    By their number, that takes shuffles, a barrier, or nothing at all.
    """
    return Meets(facts).over(tree)


def blocks(facts: NestFacts, tree: Body) -> Body:
    """Choose where the sums of blocks wait, and how they are added up.

    Sums of many terms, one after the other, lose a rounding with each: long rows are
    summed in blocks.
    """
    return Blocks(facts).over(tree)


def homes(facts: NestFacts, tree: Body) -> Body:
    """Lower the sums that are not with a lane's other values.

    Vectors, and rows that wait to be added to a matrix, take contributions their own
    way; behind the last one all functions find them alike.
    """
    return Homes(facts).over(tree)


def leaves(facts: NestFacts, tree: Body) -> Body:
    """Lower the statements on values, for one feature.

    Loads, calls and atomics are the same however features go to lanes.
    """
    return Leaves(facts).over(tree)


def areas(facts: NestFacts, tree: Body) -> Body:
    """Declare the memory that lanes work in.

    Only now is known what needs any; on CUDA a block shares it.
    """
    return DeclareAreas(facts).over(tree)


def features(facts: NestFacts, tree: Body) -> Body:
    """Give each lane its features.

    Few of them are variables, which stay in registers; many are loops over arrays.
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
    """Return the statements of a kernel."""
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
    """Yield each pass, and the tree behind it; the next pass goes on with that."""

    def stage_of(one: Pass[NestFacts]) -> Stage:
        given = _names_of(facts) if one is NEST_PASSES[-1] else None
        return Stage((), _companies(facts), given)

    return run(NEST_PASSES, facts, stage_of)


def _companies(facts: NestFacts) -> dict[str, str]:
    """Return which lanes have to come along where the lanes of a scope meet."""
    scopes = facts.binding.scopes.items()
    return {name: s.company if s.lanes > 1 else "" for name, s in scopes}


def _names_of(facts: NestFacts) -> set[str]:
    """Return the names that a kernel has from its arguments, and from its module."""
    functions = {p.name for p in facts.callees.values()}
    parts = ("row", "column", "scale")  # of outer products, functions of their own
    functions |= {f"{name}_{part}" for name in functions for part in parts}
    functions |= {helper.name for helper in facts.plan.analysis.helpers}
    return {*facts.arguments, *functions, *_MODULE, *dir(builtins)}


#: Names that modules import, for either target.
_MODULE = frozenset(
    {
        "block_tiles",
        "boolean",
        "cpu",
        "cuda",
        "float32",
        "float64",
        "int32",
        "int64",
        "math",
        "np",
        "queues",
        "segments",
        "tiles",
        "uint32",
        "uint64",
        "vectors",
        "warp",
    }
)
