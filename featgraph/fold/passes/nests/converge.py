"""Control flow where lanes share a vertex: tests become masks around warp operations.

All lanes of a warp must execute shuffles and votes. So idle lanes execute the same
statements on a valid vertex and edge, and masks exclude their values from results.
Walks over edges without warp operations need no masks: `Diverge` lowers their bodies.
`Converge` lowers the nests of phases, and `ConvergeRows` those of set kernels.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from featgraph.base.dataclass import replace
from featgraph.fold.passes.bodies.stores import reads_what_it_changes
from featgraph.fold.passes.nests.accumulators import Patch as PatchText
from featgraph.fold.passes.nests.blocks import in_blocks_of
from featgraph.fold.passes.nests.diverge import Diverge, DivergeRows, found_due, passed
from featgraph.fold.passes.nests.facts import NestFacts, RowFacts, registers_of
from featgraph.fold.passes.nests.gathers import announced
from featgraph.fold.passes.nests.homes import home_of
from featgraph.fold.schedules.mapping import WARP
from featgraph.fold.tree.layout import OneRow, Together, Walk
from featgraph.fold.tree.nodes import (
    AddStaged,
    Ahead,
    Begin,
    BeginPatch,
    Called,
    Contribute,
    Copy,
    Degree,
    FindDue,
    FinishPatch,
    ForEdges,
    FromMemory,
    Gathers,
    Incremental,
    Mark,
    Meet,
    Only,
    Ordered,
    Passed,
    Patch,
    Push,
    Reached,
    Restore,
    Run,
    Select,
    Stage,
    Start,
    Stop,
    Sweep,
    Then,
    ToMemory,
    ToRow,
    Verdict,
    is_seldom,
)
from featgraph.fold.tree.statements import (
    Body,
    Rewriting,
    agreed,
    code,
    contains,
    copied,
    every,
    noted,
    when,
)

__all__ = ["Converge", "ConvergeRows"]

#: Nodes that combine the contribution of an edge or a vertex.
TAKES = (Contribute, Patch, Push)
#: An accumulator into which an edge is combined: its name, and its prefix.
Filled = tuple[str, str]
#: Vertex or edge of a node -> the scope of the lanes that share it.
SCOPES = {"v": "vertex", "e": "edge"}


class ConvergeRows(Rewriting):
    """Lower sweeps whose walks over edges have no warp operations."""

    def __init__(self, facts: RowFacts) -> None:
        self.layout, self.binding = facts.layout, facts.binding
        self.edge = DivergeRows(facts)

    def visit_Sweep(self, node: Sweep) -> Sweep:
        """Bind the row of the vertex of each lane; idle lanes get an empty row."""
        out = code("")
        together = self.binding.together
        finds_rows = together is not None and together.is_shared
        if not finds_rows and contains(node, Degree | ForEdges):
            out += self.layout.row(node.vertex)
            if self.binding.part:
                out += self.layout.cut(*self.binding.part)
            if self.binding.own:
                own = self.binding.own.format(self.layout.degree)
                if self.binding.has_idle_lanes:
                    out += code(f"{node.wanted} = {node.wanted} and {own}")
                else:
                    leave = noted([ast.Continue()], "the whole block")
                    out += agreed(when([f"not {own}"], leave), "block")
            if self.binding.has_idle_lanes:
                out += self.layout.narrowed(node.wanted)
            if node.begins:
                # Vertices of that set are marked in any case: they search no edges.
                passed_over = f"warp.test_bit({node.begins}, {node.vertex})"
                out += self.layout.narrowed(f"not {passed_over}")
        node.body = out + self.over(node.body)
        return node

    def visit_Then(self, node: Then) -> Body:
        """Keep the body; lanes whose vertex is not alive get no edges."""
        out: Body = []
        if any(isinstance(n, ForEdges | Incremental) for n in node.body):
            out += self.layout.narrowed("alive")
        return out + self.over(node.body)

    def visit_ForEdges(self, node: ForEdges) -> Body:
        """Let lanes walk independently."""
        body = self.edge.over(node.body)
        return self.layout.edges(node.vertex, self.binding.walk, node.part, body)


class Converge(ConvergeRows):
    """Lower tests to masks for lanes that share a vertex."""

    def __init__(self, facts: NestFacts) -> None:
        super().__init__(facts)
        self.facts, self.wanted = facts, ""
        #: "v" or "e" -> the test that the vertex or edge of a lane is swept.
        self.masks = {"e": "inside_edge"}

    def visit_Sweep(self, node: Sweep) -> Sweep:
        """Bind the row of the vertex of a lane; in a reduce, all lanes contribute."""
        self.wanted = self.masks["v"] = node.wanted
        if self.binding.turns:
            self.masks["e"] = node.wanted
            node.body = self._masked(node.body, node.wanted)
            return node
        takes = [n for n in node.body if isinstance(n, Contribute)]
        if any(_is_staged(self.facts, n) for n in takes):
            node.body = [p for n in takes for p in _brought(n.function)]
            return node
        if not any(isinstance(n, TAKES) for n in node.body):
            return super().visit_Sweep(node)
        node.body = self._masked(node.body, node.wanted)
        return node

    # -- functions

    def visit_Then(self, node: Then) -> Body:
        """Keep the body; skip gathers if no lane of the warp or block is alive.

        In a sweep over all vertices, many have nothing to gather.
        """
        out = super().visit_Then(node)
        gathers = any(isinstance(n, Gathers | ForEdges) for n in node.body)
        if not (self.facts.finds_due and gathers):
            return out
        company = self.binding.scopes["vertex"].company
        test = {"block": "alive", "warp": f"warp.group_any(alive, {WARP})"}[company]
        return agreed(when([test], out), company)

    def visit_Begin(self, node: Begin) -> Body:
        """Copy entries by one group of lanes; swept vertices start alive."""
        out = code(f"alive = {self.masks[node.entity]}")
        if node.names:
            copies: Body = [Copy(node.names, node.entity)]
            out += self._one(["alive"], copies, node.entity)
            # Other lanes read the copies.
            out.append(Meet("sync", SCOPES[node.entity]))
        return out

    def visit_Run(self, node: Run) -> Body:
        """Broadcast the verdict of a function from one group of lanes to all."""
        if self.facts.functions[node.function].kind.writes_edges:
            verdict: Body = [Verdict("moved", node.function, "alive")]
            if _agrees(self.facts, node.function):
                return verdict + code("alive = moved")
            return [*verdict, Meet("any", "edge", ("moved", "alive"))]
        writer = " and ".join(["alive", *self.binding.one("vertex")])
        out = code(f"writer = {writer}")
        run: Body = [Verdict("moved", node.function, "writer")]
        if self.binding.runs:
            out += code("moved = False")
            run = agreed(when([self.binding.runs], run), "warp")
        return [*out, *run, Meet("any", "vertex", ("moved", "alive"))]

    def visit_Passed(self, node: Passed) -> Body:
        """Mark an edge as passed; its lanes have agreed on the verdict."""
        return passed(node)

    def visit_FindDue(self, node: FindDue) -> Body:
        """Test whether the vertex is due by itself, or by an edge of some lane."""
        flag = "edge_passed"
        shared = self.binding.walk.lanes > 1
        votes: Body = [Meet("any", "vertex", (flag, flag))] if shared else []
        return votes + found_due(self.facts, self.wanted)

    def visit_Ordered(self, node: Ordered) -> Meet:
        """Order writes of lanes of a vertex or edge before reads by the others."""
        return Meet("sync", SCOPES[node.entity])

    def visit_Copy(self, node: Copy) -> Body:
        """Commit the vertex; its lanes have synchronized behind the verdict."""
        return [Meet("sync", "vertex"), *self._one(["alive"], [node])]

    def visit_Mark(self, node: Mark) -> Body:
        """Store the state of the edge by one lane."""
        only = self.binding.one("edge")
        stopped = [self.masks["e"], "not alive", *only]
        return when(["alive", *only], node.passed) + when(stopped, node.stopped)

    def visit_Restore(self, node: Restore) -> Body:
        """Restore entries where the verdict is False."""
        tests = [self.masks[node.entity], "not alive"]
        copies: Body = [Copy(node.names, node.entity)]
        restored = self._one(tests, copies, node.entity)
        return [Meet("sync", SCOPES[node.entity]), *restored]

    def visit_ToMemory(self, node: ToMemory) -> Body:
        """Store gathered values by one group of lanes."""
        return self._one(["alive"], [node])

    def _one(self, tests: list[str], body: Body, entity: str = "v") -> Body:
        """Return statements for one group of the lanes of a vertex; an edge has one."""
        own = self.binding.one("vertex") if entity == "v" else []
        return when([*tests, *own], body)

    # -- edges

    def visit_ForEdges(self, node: ForEdges) -> Body:
        """Walk in lockstep, independently, or in rounds with warp operations."""
        if self.binding.together is not None:
            return self._together(node, self.binding.together)
        return self._edges(node, self.binding.walk)

    def _edges(self, node: ForEdges, walk: Walk) -> Body:
        """Return the walk of the lanes of a vertex over its edges, in a form that fits.

        In batches, if the block adds staged factors; in rounds that all lanes begin
        together, if functions have warp operations; else each lane for itself.
        """
        takes = [n for n in every(node.body) if isinstance(n, Contribute)]
        staged = [n.function for n in takes if _is_staged(self.facts, n)]
        if staged:
            return self._in_batches(node, walk, staged)
        if _meets(self.facts, node.body):
            # A lane that left the walk would be missing in shuffles of other lanes.
            body = self._masked(_Endless().over(node.body), "inside_edge")
            walk = replace(walk, form="rounds")
            lanes = self.binding.scopes["vertex"].lanes
            runs = _runs(node.body)
            if walk.at_a_time > 1 and lanes % WARP == 0 and not runs:
                more = walk.at_a_time - 1
                rounds = [body, *([copied(n) for n in body] for _ in range(more))]
                does = Together(rounds, [], {})
                return in_blocks_of(self.facts, node, walk, does)
        else:
            walk = replace(walk, numbers_late=is_seldom(node))
            body = Diverge(self.facts).over(node.body)
            for stop in (n for n in every(body) if isinstance(n, Stop)):
                # A walk over several edges at a time has a second loop for the rest: a
                # break would leave the first loop, and enter that one.
                walk = replace(walk, at_a_time=1)
                # Lanes that share features test their own features only, so each leaves
                # for itself.
                alone = self.binding.features.lanes == 1 and walk.lanes > 1
                alone = alone and not node.summed
                walk = replace(walk, ends_together=alone)
                stop.leaves = not alone
        return in_blocks_of(self.facts, node, walk, body)

    def _in_batches(self, node: ForEdges, walk: Walk, staged: list[str]) -> Body:
        """Stage the factors of a batch of edges, which the whole block then adds.

        A lane stages `walk.at_a_time` edges. All loads of a batch are issued before the
        first store to shared memory. Other contributions of these edges follow behind.
        """
        walk = replace(walk, form="batches")
        does = Together([], [], {})
        edge = ", ".join([*_ends(node.vertex), "inside_edge"])
        for n in range(walk.at_a_time):
            brought, others = _Parted(self.facts, n), _Parted(self.facts)
            body = brought.over(copied(part) for part in node.body)
            body = self._masked(body, "inside_edge")
            rest = others.over(copied(part) for part in node.body)
            if others.found:
                body += code(f"edge_{n} = ({edge})")
                does.behind.extend(code(f"{edge} = edge_{n}"))
                does.behind.extend(self._masked(rest, "inside_edge"))
            does.takes.append(body)
        does.behind.extend(AddStaged(function) for function in staged)
        return in_blocks_of(self.facts, node, walk, does)

    def _together(self, node: ForEdges, walk: Walk) -> Body:
        """Walk all rows of a warp together, and combine row by row.

        A lane may process an edge of the row of another lane. The walk has no early
        exit: it ends when all rows have ended.
        """
        one_row = None if walk.is_shared else self._one_row(node, walk)
        does = Together([], [], _lent(self.facts, node), one_row)
        for n in range(walk.at_a_time):
            starts, body, filled = _taken(self.facts, node, n)
            does.takes.append(starts + self._masked(body, "inside_edge"))
            for name, own in filled:
                names = (name, own, f"round_{n}_{own}", str(n))
                does.behind.append(Meet("rows", "row", names))
        return in_blocks_of(self.facts, node, walk, does)

    def _one_row(self, node: ForEdges, walk: Walk) -> OneRow:
        """Walk one row with all lanes, and combine behind its last edge."""
        does = OneRow([], [], [])
        for n in range(walk.at_a_time):
            starts, body, filled = _taken(self.facts, node, n)
            does.starts.extend(starts)
            does.takes.append(self._masked(body, "inside_edge"))
        for name, own in filled:
            taken = (f"round_{n}_{own}" for n in range(walk.at_a_time))
            does.behind.append(Meet("row", "row", (name, own, *taken)))
        return does

    def _masked(self, body: Body, mask: str) -> Body:
        """Return a body that all lanes execute; those of `mask` have side effects."""
        out: Body = []
        takes: Body = []
        for node in body:
            if isinstance(node, Only) and _runs(node.body):
                out += self._entered(node, mask)
            elif isinstance(node, Only):
                out += code(f"{mask} = {mask} and ({ast.unparse(node.test)})")
                out += self._masked(node.body, mask)
            elif isinstance(node, Ahead):
                out += self._entered(node.pulled, mask, node.loads)
            elif isinstance(node, ToRow):
                out += when([mask], [node])
            elif isinstance(node, Reached):
                out += code(f"is_reached = is_reached or {mask}")
            elif isinstance(node, Stage):
                node.mask = mask
                out.append(node)
            elif isinstance(node, TAKES):
                # All lanes execute shuffles in the call; only the combine is masked.
                out += _called(self.facts, node, mask)
                takes.append(node)
            else:
                out += self.over([node])
        return out + when([mask], takes)

    def _entered(self, node: Only, mask: str, loads: Sequence[ast.stmt] = ()) -> Body:
        """Return calls for lanes of `mask`; a warp without such lanes skips them.

        `loads` stand behind the test: in front of it, `messages` took 40 registers in
        place of 38 (K = 3, sm_90).
        """
        runs = self.masks["e"] = "runs_edge"
        test = f"{mask} and ({ast.unparse(node.test)})"
        some = f"warp.group_any({runs}, {WARP})"
        found = code(f"{runs} = {test}")
        if self.binding.turns and not self.binding.holds:
            # If all sources are active, no warp is without such lanes: none votes.
            few = code(f"{runs} = {test}\nsome_run = {some}")
            found = code(f"{runs}, some_run = {mask}, True")
            found += agreed(when(["not all_sources"], few), "block")
            some = "some_run"
        body = when([some], self.over(node.body))
        self.masks["e"] = mask
        return [*found, *loads, *agreed(body, "warp")]

    # -- aggregates that stay in memory

    def visit_Incremental(self, node: Incremental) -> Body:
        """Patch aggregates; where that is too inexact, all lanes recompute them."""
        facts, out = self.facts, list[ast.stmt]()
        out += [announced(facts, f) for f in node.functions]
        out += code("is_patched = is_due and not warp.test_bit(stale, v)")
        out += [BeginPatch(f) for f in node.functions]
        if node.patched:
            out += self._patches(node)
        out += self._renewed(node)
        for function in node.functions:
            renewed = "" if function in node.patched else "not is_patched"
            store = ToMemory(facts.filled(function).name)
            out += self._one([self.wanted, renewed], [store])
        return out

    def _patches(self, node: Incremental) -> Body:
        """Patch with edges from changed sources; lanes vote whether it is exact."""
        facts = self.facts
        node.patch.part = "part"
        out = self.layout.narrowed("is_patched", "part")
        out += self._edges(node.patch, self.binding.walk)
        for function in node.patched:
            accumulator = facts.filled(function)
            measures = PatchText(accumulator, "warp", facts.context.real).measures
            for prefix in ["", *["change_"] * measures]:
                if self.binding.walk.lanes > 1:
                    names = (accumulator.name, prefix)
                    out.append(Meet("combine", "vertex", names))
            out.append(FinishPatch(function))
        out.append(Meet("all", "vertex", ("is_patched",)))
        return out

    def _renewed(self, node: Incremental) -> Body:
        """Recompute aggregates: in a branch, or by the whole warp if lanes disagree."""
        facts = self.facts
        if not facts.renews_aside(node.functions):
            alone = self.binding.scopes["vertex"].company == "warp"
            tests = [self.wanted, "not is_patched"] if alone else ["not is_patched"]
            anew = when(tests, self.over(node.anew))
            return anew if alone else agreed(anew, "block")
        for edges in (n for n in node.anew if isinstance(n, ForEdges)):
            edges.part = "part"
        body = self.layout.narrowed("not is_patched", "part") + self.over(node.anew)
        body += [Select(facts.filled(f).name, "all_") for f in node.functions]
        test = f"warp.group_any({self.wanted} and not is_patched, {WARP})"
        return agreed(noted(when([test], body), "the whole warp"), "warp")


class _Parted(Rewriting):
    """Keep the staged contributions of edge `number` of a lane, or all others."""

    def __init__(self, facts: NestFacts, number: int | None = None) -> None:
        self.facts, self.number, self.found = facts, number, False

    def visit_Contribute(self, node: Contribute) -> ast.AST | Body:
        """Keep or drop the contribution."""
        if _is_staged(self.facts, node) != (self.number is not None):
            return []
        self.found = True
        return node if self.number is None else Stage(node.function, self.number)

    def visit_Stop(self, node: Stop) -> Body:
        """Drop the early exit: lanes of a batch stay together."""
        return []


def _called(facts: NestFacts, node: Contribute | Patch | Push, mask: str) -> Body:
    """Return the calls of a function with shuffles, which all lanes execute."""
    if not facts.shuffles(node.function):
        return []
    name = facts.filled(node.function).name
    prefix = node.prefix if isinstance(node, Contribute) else ""
    out: Body = [Called(node.function, mask, f"new_{prefix}{name}")]
    if isinstance(node, Patch):
        out.append(Called(node.function, mask, f"old_{name}", True))
    return out


def _agrees(facts: NestFacts, function: str) -> bool:
    """Whether each lane of an edge computes the same verdict, for all features.

    It does not where a lane may read an entry that another lane writes.
    """
    own = facts.functions[function]
    apart = own.returns_varying or reads_what_it_changes(own)
    return facts.phase.passes_all or (facts.shuffles(function) and not apart)


def _is_staged(facts: NestFacts, node: Contribute) -> bool:
    """Whether lanes stage the factors of a contribution, which the block adds."""
    return home_of(facts, facts.filled(node.function).name).is_staged


def _brought(function: str) -> Body:
    """Return statements that stage the product of a vertex, and add each batch."""
    return [Stage(function, 0), AddStaged(function)]


def _ends(vertex: str) -> tuple[str, str]:
    """Return the variables of an edge of a row: its other end and its number."""
    return ("u" if vertex == "v" else "v"), "e"


class _Endless(Rewriting):
    """Remove early exits of a walk."""

    def visit_Stop(self, node: Stop) -> Body:
        """Drop the early exit."""
        return []


def _meets(facts: NestFacts, body: Body) -> bool:
    """Whether lanes of an edge execute warp operations in a body."""
    takes = [n for n in every(body) if isinstance(n, TAKES)]
    shuffles = any(facts.shuffles(n.function) for n in takes)
    return facts.binding.scopes["edge"].lanes > 1 and (shuffles or _runs(body))


def _runs(body: Body) -> bool:
    """Whether a body runs functions with a verdict."""
    return any(contains(node, Run) for node in body)


def _taken(facts: NestFacts, node: ForEdges, n: int) -> tuple[Body, Body, list[Filled]]:
    """Return starts, contributions and accumulators of a lane's n-th edge in flight.

    The edge has accumulators of its own, whose names have the prefix ``round_n_``: its
    row may be that of another lane.
    """
    body = _Endless().over(copied(part) for part in node.body)
    starts: Body = []
    filled: list[Filled] = []
    for take in (t for t in every(body) if isinstance(t, Contribute)):
        filled.append((facts.filled(take.function).name, take.prefix))
        take.prefix = f"round_{n}_{take.prefix}"
        starts.append(Start(filled[-1][0], take.prefix))
    for part in (p for p in every(body) if isinstance(p, Passed)):
        filled.append(("edge_passed", ""))
        part.prefix = f"round_{n}_"
        starts += code(f"{part.prefix}edge_passed = False")
    return starts, body, filled


def _lent(facts: NestFacts, node: ForEdges) -> dict[str, bool]:
    """Map gathered values that functions read at edges to whether they are booleans.

    A lane reads the values of the vertex of its edge from another lane, by a shuffle.
    """
    lent = dict[str, bool]()
    loaded = {n.of for n in every(node.body) if isinstance(n, FromMemory)}
    takes = [n for n in every(node.body) if isinstance(n, TAKES)]
    for name in (t for n in takes for t in facts.callees[n.function].temporaries):
        base = str(facts.base(name))
        if not loaded & {name, base}:
            is_bool = facts.accumulators[base].type == "bool"
            for own in registers_of(facts, name):
                lent[own] = is_bool and not own.startswith(f"{base}_source")
    return lent
