"""Nests of kernels over sets of vertices and rows of edges, such as frontier expansion.

They depend on the layout of edges and on no program, so one module serves all programs
on a layout. `KERNELS` lists them: a `SetKernel` has a nest and a schedule, which
`PASSES` turn into statements. Loops over the words of a set alone, without rows, are in
the runtime.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass, replace
from featgraph.fold.passes.nests.converge import ConvergeRows
from featgraph.fold.passes.nests.diverge import DivergeRows
from featgraph.fold.passes.nests.facts import layout_along
from featgraph.fold.plan.traits import GraphTraits, Rows, rows_along
from featgraph.fold.schedules.base import Binding, KernelShape, Schedule
from featgraph.fold.schedules.block import BlockSchedule, PartSchedule
from featgraph.fold.schedules.cpu import CpuSchedule
from featgraph.fold.schedules.lanes import ApartSchedule, LaneSchedule
from featgraph.fold.schedules.mapping import Mapping
from featgraph.fold.schedules.words import WordRangesSchedule
from featgraph.fold.tree.layout import AdjacencyLayout
from featgraph.fold.tree.nodes import (
    AllEdges,
    Areas,
    Degree,
    ForEdges,
    Only,
    Sweep,
    Target,
)
from featgraph.fold.tree.passes import Pass, run
from featgraph.fold.tree.statements import Body, Rewriting, code, every, expression

__all__ = ["KERNELS", "SetFacts"]

#: Names of the arrays of rows in kernels that walk any kind of edges.
_ANY_ROWS = Rows("row_offsets", "row_ends", "", "", "", "", "", "")
#: Threads of a block that takes a hub, and of all others (CUDA).
_HUB_THREADS, _THREADS = 512, 256


@dataclass(frozen=True)
class SetKernel:
    """A kernel over sets of vertices and rows of edges.

    Attributes
    ----------
    name, doc : str
        Name, and docstring in the module.
    arguments : tuple of str
        Arguments in front of the arrays of rows.
    nest : callable
        Returns its nest.
    schedule : Schedule
        Mapping of vertices to threads.
    frontier_form : str
        How the vertices of a sparse set are found: see `KernelShape`.
    covers : bool
        Whether its grid has a thread for each vertex (CUDA).
    leaves_hubs : bool
        Whether vertices of high degree are left to a kernel of blocks (CUDA).
    finds_edges : bool
        Whether it uses the numbers of edges.
    along : str
        Kind of rows that it walks; "" for any, with placeholder names.
    words : str
        Array of the words that it sweeps; "" if it takes a range of words and another
        kernel calls it for each chunk (CPU).
    at_a_time : int
        Edges of a lane in flight, in walks without early exit (CUDA).
    """

    name: str
    doc: str
    arguments: tuple[str, ...]
    nest: Callable[[SetFacts], Body]
    schedule: Schedule
    frontier_form: str = "plain"
    covers: bool = False
    leaves_hubs: bool = False
    finds_edges: bool = False
    along: str = ""
    words: str = ""
    at_a_time: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block (CUDA)."""
        return _HUB_THREADS if isinstance(self.schedule, BlockSchedule) else _THREADS

    @property
    def rows(self) -> Rows:
        """Rows that it walks; placeholder names if `along` is open."""
        numbered = self.finds_edges and rows_along(self.along).edges
        edges = "row_edges" if numbered else ""
        return replace(_ANY_ROWS, edges=edges, finds_edges=self.finds_edges)


@dataclass(frozen=True)
class SetFacts:
    """Facts about a set kernel that passes read: see `RowFacts`."""

    kernel: SetKernel
    traits: GraphTraits
    target: str

    @property
    def intrinsics(self) -> str:
        """Module that atomics, bits and shuffles come from."""
        return Target(self.target).intrinsics

    @cached_property
    def layout(self) -> AdjacencyLayout:
        """Layout of the edges that it walks."""
        return layout_along(self.kernel.rows, self.traits, self.target)

    def layout_along(self, along: str) -> AdjacencyLayout:
        """Return the layout; these kernels walk one kind of rows."""
        return self.layout

    @cached_property
    def shape(self) -> KernelShape:
        """Shape of the kernel, for its schedule."""
        kernel, on_cpu = self.kernel, self.target == "cpu"
        count = self.layout.vertex_count if on_cpu else "vertex_count"
        return KernelShape(
            1, frontier_form=kernel.frontier_form, threads=kernel.threads,
            covers=kernel.covers, names_features=False, vertex_count=count,
        )  # fmt: skip

    @cached_property
    def binding(self) -> Binding:
        """Binding of its schedule."""
        schedule, hubs = self.kernel.schedule, self.kernel.leaves_hubs
        mapping = Mapping(1, 1, 1, False, schedule.name, hubs=hubs)
        binding = schedule.bind(mapping, self.shape)
        walk = replace(binding.walk, at_a_time=self.kernel.at_a_time)
        return replace(binding, walk=walk)

    def test(self, words: str, vertex: str) -> str:
        """Return the text of the test that a vertex is in a set."""
        return f"{self.intrinsics}.test_bit({words}, {vertex})"

    @property
    def is_cut(self) -> bool:
        """Whether another kernel calls it for each chunk of words."""
        return self.target == "cpu" and not self.kernel.words

    @cached_property
    def body(self) -> Body:
        """The statements of the kernel."""
        *_, (_, tree) = run(PASSES, self)
        return tree

    @cached_property
    def _names(self) -> frozenset[str]:
        """Names in its statements."""
        return frozenset(n.id for n in every(self.body) if isinstance(n, ast.Name))

    def arrays(self, along: str = "") -> tuple[str, ...]:
        """Return the arrays of rows that it reads: its arguments, or names in a graph.

        Parameters
        ----------
        along : str
            Kind of edges whose arrays in a graph are named; "" for the arguments.
        """
        own = self.layout.arrays
        names = self._names
        if not along:
            return tuple(name for name in own if name in names)
        rows = rows_along(along, finds_edges=self.kernel.finds_edges)
        theirs = layout_along(rows, self.traits, self.target).arrays
        pairs = zip(own, theirs, strict=True)
        return tuple(other for name, other in pairs if name in names)

    @property
    def arguments(self) -> tuple[str, ...]:
        """All arguments of the kernel."""
        bounds = ("chunk", "first_word", "last_word") if self.is_cut else ()
        return (*bounds, *self.kernel.arguments, *self.arrays())


def nest(facts: SetFacts, tree: Body) -> Body:
    """Build the nest of the kernel, with the bounds of the words that it sweeps."""
    words = facts.kernel.words
    bounds = f"first_word, last_word = 0, {words}.size" if words else ""
    return tree + code(bounds) + facts.kernel.nest(facts)


def share(facts: SetFacts, tree: Body) -> Body:
    """Lower walks: for independent lanes, or for lanes of a warp that stay together."""
    one = _Shared if facts.binding.meets else DivergeRows
    return one(facts).over(tree)


def sweep(facts: SetFacts, tree: Body) -> Body:
    """Put the loops over vertices around the statements for one vertex."""
    return _Swept(facts).over(tree)


PASSES: tuple[Pass[SetFacts], ...] = (
    Pass(nest),
    Pass(share, (AllEdges, Degree, ForEdges, Only)),
    Pass(sweep, (Sweep,)),
)


class _Shared(ConvergeRows):
    """Lower walks of warps whose lanes have neighboring vertices or edges."""

    def visit_Degree(self, node: Degree) -> Body:
        """Take the degree from the row, which has been found."""
        return code(f"{node.name} = {self.layout.degree}")

    def visit_AllEdges(self, node: AllEdges) -> Body:
        """Give each warp a share of all edges."""
        return self.layout.all_edges(node, self.binding.walk.at_a_time)


class _Swept(Rewriting):
    """Put the loops over vertices around the statements of one."""

    def __init__(self, facts: SetFacts) -> None:
        self.facts = facts

    def visit_Sweep(self, node: Sweep) -> Body:
        """Return the sweep of the schedule; there are no areas to declare."""
        facts = self.facts
        swept = facts.kernel.schedule.sweep(node, facts.binding, facts.shape)
        return [part for part in swept if not isinstance(part, Areas)]


# -- nests


def _reach(facts: SetFacts) -> Body:
    """Return the nest that marks neighbors of active vertices as due (push)."""
    new = Only(
        expression(f"not {facts.test('due', 'v')}"),
        code(f"{facts.intrinsics}.set_bit(due, v)"),
    )
    return [Sweep("u", "active", "is_active", [ForEdges("u", [new])])]


def _reach_few(facts: SetFacts) -> Body:
    """Return the nest of `_reach` for few edges, which also lists the words of `due`.

    It returns -1 in place of their number if there are more than `most` edges.
    """
    out = code("edges = 0")
    count: Body = [Degree("u", "degree"), *code("edges += degree")]
    out.append(Sweep("u", "active", "is_active", count))
    # Too many edges are found before the first store, so that `due` stays empty.
    out += code(
        "if edges > most:\n"
        "    return -1, edges\n"
        "count = 0\n"
        "for place in range(first_word, last_word):\n"
        "    word = swept_words[place]\n"
        "    if active[word] != 0:\n"
        "        due[word] = active[word]\n"
        "        found[count] = word\n"
        "        count += 1"
    )
    # The first bit of a word lists it, so each word is listed once.
    reach = code(
        "due_word = v >> 5\n"
        "if due[due_word] == 0:\n"
        "    found[count] = due_word\n"
        "    count += 1\n"
        "due[due_word] |= uint32(1) << uint32(v & 31)"
    )
    out.append(Sweep("u", "active", "is_active", [ForEdges("u", reach)]))
    return out + code("return count, edges")


def _find(facts: SetFacts) -> Body:
    """Return the nest in which inactive vertices search for an active source (pull)."""
    found = Only(expression(facts.test("active", "u")), code("is_due = True\nbreak"))
    body = [*code("is_due = False"), ForEdges("v", [found])]
    marks = (("is_due", "due"),)
    return [Sweep("v", "", "is_own", body, marks=marks, begins="active")]


def _find_together(facts: SetFacts) -> Body:
    """Return the nest of `_find` for lanes that share a row, with a common early exit.

    A lane that finds a source sets the bit of the vertex in `due`, which all lanes read
    before each edge.
    """
    test = facts.test("active", "u")
    found = code("warp.set_bit(due, v)\nbreak")
    each = code(f"if {facts.test('due', 'v')}:\n    break")
    each.append(Only(expression(test), found))
    return [Sweep("v", "", "is_own", [ForEdges("v", each)])]


def _targets(facts: SetFacts) -> Body:
    """Return the nest in which vertices search for an in-edge that passed."""
    found = Only(expression("edge_state[e] == 2"), code("is_target = True\nbreak"))
    body: Body = [ForEdges("v", [found])]
    if facts.target == "cpu":
        # Where most vertices have no edges, the test in front of the loop saves a
        # quarter of the time (two cores of an AMD EPYC, 2026-11-23).
        body = [Degree("v", "degree"), Only(expression("degree > 0"), body)]
    body = [*code("is_target = False"), *body]
    return [Sweep("v", "", "is_own", body, marks=(("is_target", "targets"),))]


def _count(facts: SetFacts) -> Body:
    """Return the nest that sums the degrees of a set."""
    each = [Degree("v", "degree"), *code("edges += degree")]
    if facts.target == "cpu":
        return [
            *code("edges = 0"),
            Sweep("v", "words", "is_own", each),
            *code("return edges"),
        ]
    total = code(
        "edges = warp.group_sum(edges, 32)\n"
        "if cuda.laneid == 0 and edges != 0:\n"
        "    cuda.atomic.add(total, 0, edges)"
    )
    return [*code("edges = int64(0)"), Sweep("v", "words", "is_own", each, total)]


def _refresh(facts: SetFacts) -> Body:
    """Return the nest that copies entries of the edges out of a set."""
    copy = code("for f in range(current.shape[1]):\n    next_[e, f] = current[e, f]")
    return [Sweep("u", "words", "is_own", [ForEdges("u", copy)])]


def _refresh_all(facts: SetFacts) -> Body:
    """Return the nest of `_refresh` over all edges, with coalesced copies of a warp."""
    # `warp.test_bit` has a branch, behind which loads of other edges would wait.
    bit = "words[u >> 5] >> uint32(u & 31)"
    first = code(f"is_stale = ({bit} & uint32(1) != 0) & inside_edge")
    own = "int64(e)" if facts.traits.wide_offsets else "int32(e)"
    behind = code(f"warp.copy_rows(is_stale, {own}, next_, current)")
    return [AllEdges("u", first, behind, ("is_stale",))]


def _count_rows(facts: SetFacts) -> Body:
    """Return the nest that counts, for each warp, vertices with edges, and edges."""
    each = [Degree("v", "degree"), *code("count += int32(degree > 0)\ntotal += degree")]
    behind = code(
        "count = warp.group_sum(int32(count), 32)\n"
        "total = warp.group_sum(total, 32)\n"
        "if cuda.laneid == 0:\n"
        "    counts[cuda.grid(1) >> 5] = count\n"
        "    edges[cuda.grid(1) >> 5] = total"
    )
    front = code("count, total = int32(0), int64(0)")
    return [*front, Sweep("v", "words", "is_own", each, behind)]


def _list_rows(facts: SetFacts) -> Body:
    """Return the nest that lists the vertices that `_count_rows` counts.

    With each vertex it stores the number of edges of all vertices before it.
    """
    each = [
        Degree("v", "degree"),
        *code(
            "before = warp.sum_before(int64(degree))\n"
            "rows = warp.group_bits(degree > 0, 32)\n"
            "if degree > 0:\n"
            # Vertices of lower lanes come first.
            "    lower = rows & (uint32(1) << uint32(cuda.laneid)) - uint32(1)\n"
            "    place = count + warp.count_bits(lower)\n"
            "    share_rows[place] = v\n"
            "    share_begins[place] = total + before\n"
            "count += int32(warp.count_bits(rows))\n"
            # In the last lane this is the sum over the warp.
            "total += warp.broadcast(int64(before + degree), 31, 32)"
        ),
    ]
    front = code("count, total = counts[cuda.grid(1) >> 5], edges[cuda.grid(1) >> 5]")
    return [*front, Sweep("v", "words", "is_own", each)]


_CPU, _LANES, _BLOCK = CpuSchedule(), LaneSchedule(), BlockSchedule()
_PARTS, _APART, _RANGES = PartSchedule(), ApartSchedule(), WordRangesSchedule()
#: Arguments of `_count_rows` and `_list_rows`; ``everything`` stands for all vertices.
_SHARED = ("words", "everything", "vertex_count", "counts", "edges")
_REACH = "Add the ends of the edges of active vertices to `due`"
_FIND = "Set `due` to the active vertices and those with an active source"
_COUNT = "the degrees of the vertices in `words`"
_REFRESH = "Copy the rows of the edges out of the vertices in `words`"
_TARGETS = "Add the vertices with an in-edge that passed last to `targets`."
#: Target -> name -> kernel. The rows of "reach" are the out-edges of active vertices,
#: those of "find" the in-edges of the vertices that search.
KERNELS: dict[str, dict[str, SetKernel]] = {
    target: {kernel.name: kernel for kernel in kernels}
    for target, kernels in {
        "cpu": (
            SetKernel(
                "reach", f"{_REACH}.", ("active", "due"), _reach, _CPU
            ),
            SetKernel(
                "reach_few",
                f"{_REACH}, which is empty, and add these; note where it has bits. "
                "Return in how many words, or -1 where edges are more than `most`, and "
                "how many these are.",
                ("active", "swept_words", "due", "found", "most"), _reach_few, _CPU,
                "listed", words="swept_words",
            ),
            SetKernel("find", f"{_FIND}.", ("active", "due"), _find, _CPU),
            SetKernel(
                "count", f"Return the sum of {_COUNT}.", ("words", "swept_words"),
                _count, _CPU, "listed", words="swept_words",
            ),
            SetKernel(
                "find_targets", _TARGETS, ("edge_state", "targets"), _targets, _CPU,
                finds_edges=True, along="in", words="targets",
            ),
            SetKernel(
                "refresh", f"{_REFRESH}.", ("words", "next_", "current"), _refresh,
                _CPU, finds_edges=True, along="out", words="words",
            ),
        ),
        "cuda": (
            SetKernel(
                "reach", f"{_REACH}, but of hubs.", ("active", "due", "hub_degree"),
                _reach, _APART, "packed", leaves_hubs=True,
            ),
            SetKernel(
                "reach_hubs", f"{_REACH}, a block for each part of a hub's row.",
                ("active", "due", "hub_parts"), _reach, _PARTS,
            ),
            SetKernel(
                "find", f"{_FIND}; hubs do not look.",
                ("active", "due", "vertex_count", "hub_degree"), _find, _LANES,
                covers=True, leaves_hubs=True,
            ),
            SetKernel(
                "find_hubs", "Add the hubs with an active source to `due`.",
                ("active", "due", "hubs"), _find_together, _BLOCK,
            ),
            SetKernel(
                "count", f"Add {_COUNT} to `total`.", ("words", "total"), _count,
                _LANES, "packed",
            ),
            SetKernel(
                "find_targets", _TARGETS, ("edge_state", "targets", "vertex_count"),
                _targets, _LANES, covers=True, finds_edges=True, along="in",
            ),
            SetKernel(
                "refresh", f"{_REFRESH}.", ("words", "next_", "current"), _refresh,
                _APART, "packed", finds_edges=True, along="out",
            ),
            SetKernel(
                "refresh_all", f"{_REFRESH}; asks all edges.",
                ("words", "next_", "current"), _refresh_all, _LANES, finds_edges=True,
                along="in", at_a_time=4,
            ),
            SetKernel(
                "count_rows",
                "Count the vertices of a set with edges, and these, for each warp.",
                _SHARED, _count_rows, _RANGES,
            ),
            SetKernel(
                "list_rows",
                "List the vertices of a set with edges, and the edges before each.",
                (*_SHARED, "share_rows", "share_begins"), _list_rows, _RANGES,
            ),
        ),
    }.items()
}  # fmt: skip
