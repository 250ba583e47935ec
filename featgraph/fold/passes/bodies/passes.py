"""The passes from a user function to functions of the module, in order.

Each goes from tree to tree, as those over nests do (`lowering.passes`). A tree is a
list of functions, `Define`, since what the user wrote may become several.

A triangle function adds to properties of three vertices and three edges. A kernel comes
to many triangles of one vertex or edge after the other, and what is added there goes to
memory once: `with_sums` has a function return what it would have added.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from featgraph.base.dataclass import replace
from featgraph.fold.analysis.analyse import HelperFunction
from featgraph.fold.analysis.gathers import Sum, added_by, find_sums
from featgraph.fold.passes.bodies import definitions
from featgraph.fold.passes.bodies import looped as loops
from featgraph.fold.passes.bodies import predication as predicates
from featgraph.fold.passes.bodies import store_forwarding as forwarding
from featgraph.fold.passes.bodies import store_sinking as sinking
from featgraph.fold.passes.bodies import unrolled as copies
from featgraph.fold.passes.bodies import vector_access as rows
from featgraph.fold.passes.bodies import vectorized as vectors
from featgraph.fold.passes.bodies.facts import Callee, FunctionFacts
from featgraph.fold.passes.bodies.index_checks import IndexChecks
from featgraph.fold.passes.bodies.memory import InMemory, Memory
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
from featgraph.fold.syntax.unsigned_indices import unsigned_indices
from featgraph.fold.tree.expressions import (
    Access,
    Atomic,
    Cast,
    Helper,
    Identity,
    MathCall,
    Numeric,
    Operate,
    Scalar,
    Whole,
    narrowed,
)
from featgraph.fold.tree.passes import Pass, run
from featgraph.fold.tree.statements import Body, Rewriting, code, copied, noted, placed
from featgraph.program.signature import Real, Signature

__all__ = ["PASSES", "callee_of", "lower_function", "lower_helper"]


def with_sums(facts: FunctionFacts, node: Define) -> Define:
    """Return a function that adds to locals, and returns these."""
    sums = find_sums(facts.function, facts.analysis.signature)
    starts: Body = []
    for each in sums:
        start = code(f"{each.name} = {each.zero}")
        starts += noted(start, f"into d.{each.into}[{each.role}]")
    node.body = starts + _Added(sums, facts.analysis.signature).over(node.body)
    return node


class _Added(Rewriting):
    """Replaces additions to memory by additions to the locals that are returned."""

    def __init__(self, sums: tuple[Sum, ...], signature: Signature) -> None:
        self.sums, self.signature = sums, signature
        self.numbered = {replace(s, number=0): s for s in sums}

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        """Add to a local."""
        found = added_by(node, self.signature)
        added = None if found is None else self.numbered.get(found)
        if added is None or not isinstance(node.value, Atomic):
            return node
        [more] = code(added.plus("MORE"), MORE=node.value.value)
        return ast.copy_location(more, node)

    def visit_Return(self, node: ast.Return) -> Body:
        """Return the locals."""
        returned = ", ".join(each.name for each in self.sums)
        return placed(code(f"return {returned}"), node)


def functions(facts: FunctionFacts, tree: Body) -> Body:
    """Take the function as it was analysed.

    Control flow is the user's, for one feature; operations of all features together are
    statements of their own.
    """
    return [*tree, definitions.defined(facts)]


def outer_products(facts: FunctionFacts, tree: Body) -> Body:
    """Make functions of the parts of an outer product that is summed.

    What depends on a row, on a column and on neither is then computed once each.
    """
    if facts.form not in {"parts", "columns"}:
        return tree
    return _several(definitions.parts_of, facts, tree, {facts.form})


def returned_sums(facts: FunctionFacts, tree: Body) -> Body:
    """Have a triangle function return what it adds to its corners and sides.

    A kernel comes to many triangles of a vertex, and adds to memory once.
    """
    return _one(with_sums, facts, tree, {"triangle"})


def early_returns(facts: FunctionFacts, tree: Body) -> Body:
    """Make a function of what features leave at different places.

    Nothing in it is done together, so that it is called feature by feature.
    """
    return _several(definitions.apart, facts, tree, {"unrolled", "looped"})


def keys(facts: FunctionFacts, tree: Body) -> Body:
    """Have gathers of argmin and argmax return the source beside its key.

    They are combined as pairs.
    """
    if not facts.has_key:
        return tree
    return _one(definitions.with_keys, facts, tree, set(FORMS))


def returned_entries(facts: FunctionFacts, tree: Body) -> Body:
    """Have an edge function return entries that go on to gathers in registers.

    The kernel takes the old ones where the verdict is False, and stores once.
    """
    return _one(forwarding.returning_entries, facts, tree, {"unrolled"})


def row_pieces(facts: FunctionFacts, tree: Body) -> Body:
    """Load what is read of rows in any case, several features at once.

    A function for one feature is given what its caller has loaded.
    """
    return _one(rows.with_rows, facts, tree, {"feature", "unrolled"})


def store_sinking(facts: FunctionFacts, tree: Body) -> Body:
    """Put stores of next entries behind the verdict.

    Where that is False the kernel puts the old entries back: what was stored before
    would be stored twice, and a load in front of it be made again.
    """
    return _one(sinking.with_sunk_stores, facts, tree, {"unrolled"})


def predication(facts: FunctionFacts, tree: Body) -> Body:
    """Make predicates of control flow where lanes share the features.

    All of them take part in a shuffle, so that none leaves before the end.
    """
    if not facts.predicated:
        return tree
    return _one(predicates.predicated, facts, tree, {"unrolled"})


def unrolled(facts: FunctionFacts, tree: Body) -> Body:
    """Write what varies once for each feature that a lane has.

    Few features are variables, which stay in registers.
    """
    return _one(copies.unrolled, facts, tree, {"unrolled"})


def looped(facts: FunctionFacts, tree: Body) -> Body:
    """Go over features in loops, between what they do together.

    Many features are elements of arrays.
    """
    return _one(loops.looped, facts, tree, {"looped"})


def vectorized(facts: FunctionFacts, tree: Body) -> Body:
    """Write what varies once for each vector of features.

    A compiler would make vectors of loops, if it knew that arrays do not overlap.
    """
    return _one(vectors.vectorized, facts, tree, {"vectorized"})


def names(facts: FunctionFacts, tree: Body) -> Body:
    """Put letters to the names that passes have made up, in the order of the text.

    Which of them there are is known behind all passes that make names up.
    """
    taken = {*facts.function.variables, *facts.temporaries}
    for node in tree:
        facts.fresh.settle(narrowed(node, Define).body, taken)
    return tree


def index_checks(facts: FunctionFacts, tree: Body) -> Body:
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


def memory(facts: FunctionFacts, tree: Body) -> Body:
    """Say where values are.

    What is Python's alone can be printed.
    """
    return _in_memory(facts.memory, tree)


def indices(facts: FunctionFacts, tree: Body) -> Body:
    """Make indices unsigned on CUDA.

    A signed one costs a wrap-around.
    """
    return _unsigned(tree) if facts.context.cuda else tree


#: What becomes of the features of a function; those of "rest" and "helper" are given.
FORMS = ("feature", "rest", "unrolled", "looped", "vectorized", "parts", "columns")

PASSES = (
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


def lower_function(facts: FunctionFacts) -> Body:
    """Return the functions of the module that a user function becomes."""
    tree: Body = []
    for one, tree in run(PASSES, facts):
        if facts.context.watch is not None:
            facts.context.watch(facts.function.name, one, tree)
    return tree


def lower_helper(helper: HelperFunction, real: Real, cuda: bool) -> Body:
    """Return a plain function that user functions call."""
    body = [narrowed(copied(s), type(s)) for s in helper.body]
    decorator = definitions.decorator_of(cuda)
    tree = [Define(helper.name, "helper", helper.parameters, body, decorator=decorator)]
    made = _in_memory(Memory(cuda, real), list(tree))
    return _unsigned(made) if cuda else made


def callee_of(facts: FunctionFacts, tree: Body) -> Callee:
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
    change: Callable[[FunctionFacts, Define], Define],
    facts: FunctionFacts,
    tree: Body,
    forms: set[str],
) -> Body:
    """Change the functions of some forms."""
    made = (narrowed(node, Define) for node in tree)
    return [change(facts, one) if one.form in forms else one for one in made]


def _several(
    split: Callable[[FunctionFacts, Define], list[Define]],
    facts: FunctionFacts,
    tree: Body,
    forms: set[str],
) -> Body:
    """Split the functions of some forms into several."""
    out: Body = []
    for node in tree:
        one = narrowed(node, Define)
        out += split(facts, one) if one.form in forms else [one]
    return out
