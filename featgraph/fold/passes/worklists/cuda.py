"""The worklist loop of a GPU: one kernel runs many supersteps (0042).

Warps take equal shares of the out-edges of the active vertices. A vertex visited for
the first time is appended to a list; accumulators are entries in memory, at the vertex.
Behind a grid barrier, listed vertices run the functions behind the gathers, and commit
to both buffers: no other vertex reads these entries until the next barrier.

If any one contribution settles a vertex (0082, the methods ``..._at_once``), the thread
of that edge runs the functions behind the gathers at once. Then a superstep has one
barrier, accumulators stay in registers, and there is no list of visited vertices.

The strings below are parts of the generated kernel; ``queues`` is
`featgraph.device.queue_cuda`.
"""

from __future__ import annotations

from featgraph.base.dataclass import replace
from featgraph.fold.passes.bodies.facts import Callee, Context
from featgraph.fold.passes.nests.homes import AtVertices
from featgraph.fold.passes.worklists.common import Worklist
from featgraph.fold.plan.plan import FoldPlan
from featgraph.fold.plan.worklist import first_settles
from featgraph.fold.schedules.thread import ThreadSchedule
from featgraph.fold.tree.layout import Walk
from featgraph.fold.tree.statements import Body, agreed, code, expression, when

__all__ = ["CudaWorklist"]

#: Chunks of 32 edges, vertices or words that a warp takes: its first one, and the
#: stride.
_WARPS = """
first_chunk = int32(cuda.grid(1) >> 5)
chunk_stride = int32(cuda.gridsize(1) >> 5)
"""
#: Walk all edges, a lane each. Lanes past the last edge repeat it, with ``inside_edge``
#: False.
_EACH_EDGE = """
chunk = first_chunk
while chunk * 32 < edge_count:
    u, place, inside_edge = queues.edge_of(
        lists, chunk, rows, edge_count, step_number
    )
    EDGE
    chunk += chunk_stride
"""


def _in_warps(worklist: Worklist) -> Body:
    """Return the declarations of a lane, and the first chunk and stride of its warp."""
    return worklist.front() + code(_WARPS)


def _each_edge(worklist: Worklist, body: Body) -> Body:
    """Return a walk of warps over the out-edges of the sources, ``u`` to ``v``."""
    layout = worklist.facts.layout
    edge = layout.row("u") + layout.at_place("u", Walk("together"), "start", body)
    return agreed(code(_EACH_EDGE, EDGE=edge), "warp")


def _degree(worklist: Worklist) -> Body:
    """Return the statements that bind the out-degree of `v`."""
    layout = worklist.facts.layout
    return layout.row("v") + code(f"out_degree = int64({layout.degree})")


#: The loop with one grid barrier (``queues.meet``) a superstep.
_LOOP_AT_ONCE = """
step_number, meets = int64(0), int64(0)
BEGIN
meets = queues.meet(lists, meets)
while queues.goes_on(lists, step_number):
    rows, leaf_count, edge_count = queues.sizes_of(lists, step_number)
    queues.clear(lists, step_number)
    queues.watch(lists, step_number)
    GATHER
    meets = queues.meet(lists, meets)
    step_number += 1
queues.leave(lists, step_number)
"""


def _ends_if_again(number: str) -> Body:
    """Return the test that ends the loop if a source is due itself.

    A source that continues must wait for all edges, so single kernels take over.
    """
    return when(["goes_on_0(v, d)"], code(f"queues.end_behind(lists, {number})"))


#: Warps take sources in reverse order: the last warps have fewest edges.
_EACH_SOURCE = """
chunk = int32(chunk_stride - 1 - first_chunk)
while chunk * 32 < rows + leaf_count:
    place = int32(chunk * 32 + cuda.laneid)
    v = queues.source_of(lists, place, rows, leaf_count, step_number)
    is_met = False
    MEET
    queues.append(is_met, v, lists, step_number)
    chunk += chunk_stride
"""
#: Run the functions behind the gathers for each listed vertex. All lanes of a warp stay
#: in the loop, since appending to a list takes votes.
_EACH_MET = """
met_count = int32(lists.words[queues.DUE + (step_number & (queues.TURNS - 1))])
chunk = first_chunk
while chunk * 32 < met_count:
    place = int32(chunk * 32 + cuda.laneid)
    v = lists.due[min(place, int32(met_count - 1))]
    alive = False
    out_degree = int64(0)
    COMMIT
    APPEND
    chunk += chunk_stride
"""
#: Walk the words of the active set, a lane each.
_EACH_ACTIVE = """
first_word = first_chunk * 32
while first_word < lists.active.size:
    place = int32(first_word + cuda.laneid)
    word = uint32(0)
    if place < lists.active.size:
        word = lists.active[place]
    WORD
    first_word += chunk_stride * 32
"""
#: Take a bit of the word of each lane, until no lane of the warp has one left.
_EACH_BIT = """
while warp.group_any(word != 0, 32):
    is_active = word != 0
    out_degree = int64(0)
    v = int32(0)
    if is_active:
        v = int32(place * 32 + warp.trailing_zeros(word))
        word = uint32(word & (word - uint32(1)))
        DEGREE
    APPEND
"""
#: With near and far vertices: append `v` to the sources, or to the waiting vertices.
_NEAR_OR_FAR = """
is_near = False
if {flag}:
    is_near = is_near_0(v, d, lists, far_lists)
queues.wait({flag}, is_near, v, lists, far_lists, {far_side})
queues.append_row(is_near, v, out_degree, lists, {step_number})
"""
#: Move the limit if no vertex is near, between grid barriers: find the first waiting
#: key, set the limit, list the vertices within it.
_REFILL = """
if queues.wants_more(lists, far_side, step_number):
    FIRST
    meets = queues.meet(lists, meets)
    queues.move_limit(lists, far_lists, 1 - far_side)
    meets = queues.meet(lists, meets)
    MOVE
    meets = queues.meet(lists, meets)
    far_side = 1 - far_side
return meets, far_side
"""
#: Reduce the first (least signed) key of all waiting vertices.
_FIRST = """
first, some = float64(math.inf), False
far_count = lists.words[queues.FARS + far_side]
for place in range(cuda.grid(1), far_count, cuda.gridsize(1)):
    v = far_lists.vertices[far_side, place]
    if far_lists.waits[v] != 0:
        some = True
        first = min(first, first_key_0(v, d, lists, far_lists))
queues.note_first(some, first, lists, far_lists)
"""
#: List waiting vertices within the limit as sources; others go to the other of two
#: lists (``far_side``).
_EACH_FAR = """
chunk = first_chunk
while chunk * 32 < far_count:
    place = int32(chunk * 32 + cuda.laneid)
    v = int32(0)
    is_near = False
    stays = False
    out_degree = int64(0)
    if place < far_count:
        v = far_lists.vertices[far_side, place]
        if far_lists.waits[v] != 0:
            is_near = is_near_0(v, d, lists, far_lists)
            stays = not is_near
            is_near = queues.stops_waiting(is_near, v, far_lists)
            DEGREE
    queues.append_far(stays, v, lists, far_lists, 1 - far_side)
    queues.append_row(is_near, v, out_degree, lists, step_number)
    chunk += chunk_stride
"""
#: The loop with barriers behind the walk over edges, and behind the commits.
_LOOP = """
step_number, meets = int64(0), int64(0)
BEGIN
meets = queues.meet(lists, meets)
REFILL
while GOES_ON:
    rows, leaf_count, edge_count = queues.sizes_of(lists, step_number)
    queues.clear(lists, step_number)
    CLEAR
    GATHER
    meets = queues.meet(lists, meets)
    queues.watch(lists, step_number)
    WATCH
    COMMIT
    meets = queues.meet(lists, meets)
    step_number += 1
    REFILL
queues.leave(lists, step_number)
LEAVE
"""


class CudaWorklist(Worklist):
    """Functions of the loop that one grid of a GPU runs.

    Attributes
    ----------
    at_once : bool
        Whether any one edge settles a vertex, so that a superstep has one barrier.
    """

    def __init__(
        self, context: Context, plan: FoldPlan, callees: dict[str, Callee]
    ) -> None:
        super().__init__(context, plan, callees, ThreadSchedule())
        self.at_once = first_settles(plan.analysis.functions, plan.phases, plan.options)
        self.facts.binding = replace(self.facts.binding, at_vertices=True)

    @property
    def entries(self) -> list[AtVertices]:
        """Accumulators in memory."""
        facts = self.facts
        if self.at_once:
            return []
        return [AtVertices(facts, facts.filled(f.name)) for f in self.gathers]

    @property
    def waits(self) -> bool:
        """Whether vertices can wait, by keys that separate near from far ones."""
        return bool(self.facts.plan.facts.queue_keys)

    def near(self) -> Body:
        """Return the body of the test that a key of `v` is within the limit."""
        # Negated: nan is near, since no limit would reach it.
        test = "is_near = is_near or not sign * float64(ENTRY) > limit"
        # Without a key (-1), no vertex waits.
        out = code("key = lists.words[queues.KEY]\nis_near = key < 0")
        out += code(
            "sign, limit = far_lists.limits[queues.SIGN], far_lists.limits[queues.NEAR]"
        )
        return self.front() + out + self._keys(test) + code("return is_near")

    def first_key(self) -> Body:
        """Return the body that computes the least signed key of `v`; nan is skipped."""
        test = "first = min(first, sign * float64(ENTRY))"
        out = code("key, sign = lists.words[queues.KEY], far_lists.limits[queues.SIGN]")
        out += code("first = float64(math.inf)")
        return self.front() + out + self._keys(test) + code("return first")

    def refill(self) -> Body:
        """Return the body that moves the limit and lists vertices if none is near."""
        move = code(_EACH_FAR, DEGREE=when(["is_near"], _degree(self)))
        parts = {"FIRST": code(_FIRST), "MOVE": agreed(move, "warp")}
        return _in_warps(self) + code(_REFILL, **parts)

    def _keys(self, test: str) -> Body:
        """Return `test` for each entry of the property that has the keys of `v`."""
        out, facts = code(""), self.facts
        for number, name in enumerate(facts.plan.facts.queue_keys):
            shape = facts.plan.analysis.signature[name].item_shape
            letters = "ij"[: len(shape)]
            entry = f"d.{name}[{', '.join(['v', *letters])}]"
            each = code(test.replace("ENTRY", entry))
            for letter, size in reversed([*zip(letters, shape, strict=True)]):
                each = code(f"for {letter} in range({size}):\n    BODY", BODY=each)
            out += when([f"key == {number}"], each)
        return out

    def _append(self, flag: str, number: str, side: str) -> Body:
        """Return the statements that append `v` to sources, or to waiting vertices."""
        if not self.waits:
            given = f"{flag}, v, out_degree, lists, {number}"
            return code(f"queues.append_row({given})")
        counts = f"queues.count_passed({flag}, lists, {number})\n"
        text = _NEAR_OR_FAR.format(flag=flag, step_number=number, far_side=side)
        return code((counts if flag == "alive" else "") + text)

    def begin(self) -> Body:
        """Return the body that lists the initially active vertices."""
        append, found = self._append("is_active", "0", "0"), _degree(self)
        if self.at_once:
            found += _ends_if_again("-1")
        bits = code(_EACH_BIT, DEGREE=found, APPEND=append)
        words = code(_EACH_ACTIVE, WORD=agreed(bits, "warp"))
        return _in_warps(self) + agreed(words, "warp")

    def meet(self) -> Body:
        """Return the body that lists the sources, and the targets of their edges.

        Each of them runs the functions in front of the gathers, by one thread.
        """
        meets = self._claims("inside_edge") + code(
            "queues.append(is_met, v, lists, step_number)"
        )
        found = code("is_met = False") + meets
        return _in_warps(self) + _each_edge(self, found) + self._each_source()

    def push(self) -> Body:
        """Return the body that contributes along edges to vertices that go on."""
        wanted = ["inside_edge", "lists.marks[v] > 0"]
        return _in_warps(self) + _each_edge(self, when(wanted, self.contributes()))

    def gather(self) -> Body:
        """Return the body that lists vertices and contributes in one walk.

        The test that a vertex goes on has no side effects and the same result in all
        threads, so no barrier separates the test from contributions.
        """
        claim = code("is_met = queues.claim(lists, v)") + self.contributes()
        tests = ["inside_edge", "goes_on_0(v, d)" if self.before else ""]
        body = code("is_met = False") + when(tests, claim)
        body += code("queues.append(is_met, v, lists, step_number)")
        return _in_warps(self) + _each_edge(self, body) + self._each_source()

    def settled_at_once(self) -> Body:
        """Return the function that settles `v` by one edge from ``u``, if possible.

        It returns whether `v` commits, which is True for one edge only. Loads of all
        tests are issued before the first branch.
        """
        out = self.tried_at_once() + code(
            "alive = goes_on_0(v, d)\n"
            "is_met = queues.is_unsettled(lists, v, step_number)\n"
            "is_met = is_met & alive & all_found & inside_edge\n"
            "alive = False"
        )
        written = frozenset(self.facts.phase.writes_next)
        commits = self.copied(written, commits=True) + _ends_if_again("step_number")
        ends = when(["alive"], commits, self.dropped())
        # An atomic claims `v`: one thread only finds `is_met` behind it.
        settles = code("is_met = queues.settles(lists, v, step_number)")
        out += when(["is_met"], settles) + when(["is_met"], self.settled() + ends)
        return out + code("return alive")

    def gather_at_once(self) -> Body:
        """Return the loop that settles vertices along the edges out of the sources."""
        body = _degree(self) + code(
            "alive = settled_0(u, v, e, d, lists, step_number, inside_edge)\n"
            "queues.append_row(alive, v, out_degree, lists, step_number + 1)"
        )
        return _in_warps(self) + _each_edge(self, body)

    def commit(self) -> Body:
        """Return the body that runs listed vertices behind all edges."""
        # Both buffers get the new entries: they are equal, and need not be exchanged.
        written = frozenset(self.facts.phase.writes_next)
        commits = self.copied(written, commits=True) + _degree(self)
        ends = when(["alive"], commits, self.dropped())
        settled = self.settled() + ends
        # The next superstep visits `v` anew.
        if self.repeats:
            body = code("lists.marks[v] = 0") + settled
        else:
            body = code("is_wanted = lists.marks[v] > 0\nlists.marks[v] = 0")
            body += when(["is_wanted"], settled)
        inside = when(["place < met_count"], body)
        append = self._append("alive", "step_number + 1", "far_side")
        met = code(_EACH_MET, COMMIT=inside, APPEND=append)
        return _in_warps(self) + agreed(met, "warp")

    def loop(self, first: str, arguments: str) -> Body:
        """Return the loop; `first` are arguments of list functions, then all others."""
        begin, gather = code(f"begin_0({first})"), code(f"gather_0({arguments})")
        if self.at_once:
            return code(_LOOP_AT_ONCE, BEGIN=begin, GATHER=gather)
        if not self.repeats:
            gather = code(f"meet_0({arguments})\nmeets = queues.meet(lists, meets)")
            gather += code(f"push_0({arguments})")
        parts = dict.fromkeys(("REFILL", "CLEAR", "WATCH", "LEAVE"), code(""))
        goes_on, front = "queues.goes_on(lists, step_number)", code("")
        if self.waits:
            front, goes_on = (
                code("far_side = 0"),
                "queues.goes_on_near(lists, far_lists, step_number)",
            )
            refill = (
                f"meets, far_side = refill_0(step_number, meets, far_side, {first})"
            )
            parts = {
                "REFILL": code(refill),
                "CLEAR": code("queues.clear_first(lists, far_lists)"),
                "WATCH": code(
                    "queues.watch_far(lists, far_lists, far_side, step_number)"
                ),
                "LEAVE": code("queues.leave_far(lists, far_lists, far_side)"),
            }
        loop = code(
            _LOOP, BEGIN=begin, GATHER=gather,
            COMMIT=code(f"commit_0({arguments})"), **parts,
            GOES_ON=expression(goes_on),
        )  # fmt: skip
        return front + loop

    def _claims(self, inside: str) -> Body:
        """Return the statements by which the first thread that visits `v` lists it."""
        goes_on = "goes_on_0(v, d)"
        if self.repeats:
            tests = [inside, goes_on if self.before else ""]
            return when(tests, code("is_met = queues.claim(lists, v)"))
        ran = code(f"lists.marks[v] = 1 if {goes_on} else -1")
        claim = code("is_met = queues.claim(lists, v)") + when(["is_met"], ran)
        return when([inside], claim)

    def _each_source(self) -> Body:
        meets = self._claims("place < rows + leaf_count")
        return agreed(code(_EACH_SOURCE, MEET=meets), "warp")
