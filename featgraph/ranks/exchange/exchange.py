"""Exchanges between ranks: vertex sets, results of reduces, and ghost rows.

Begin with `RankExchange`, which the runtime calls: it exchanges sets, results, ghosts
and rows of triangles. `Members` converts active sets of a rank to sets of the whole
graph, and back.

`HostBlocks` and `GpuBlocks` sum reals over ranks in an order that does not depend on
the partition: a fixed tree, whose leaves are blocks of 32 consecutive given vertex ids
(`runtime.devices.fixed_trees`). There are two cases:

* The vertices of each rank are whole blocks, so a word of own vertices is a leaf. Each
  rank combines its complete subtrees; their roots, fewer than 64 a level, are gathered.
* A block has vertices of several ranks, so each vertex is reduced by itself. With
  `HostBlocks`, each rank receives and combines a range of blocks; with `GpuBlocks`, all
  ranks gather the contributions of all vertices, and combine all blocks.

`GpuBlocks` gathers roots by a sum of integers: each rank adds the bits of its own
nodes, and zeros in place of all others.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import replace
from featgraph.base.errors import PlanError
from featgraph.cuda.values import DeviceValues
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.plan.traits import rows_along, rows_with
from featgraph.graph.partition.partition import Partition
from featgraph.graph.partition.shard import Shard
from featgraph.program.active import WORD_BITS, word_count
from featgraph.program.combines import Combine
from featgraph.program.signature import PropertyKind
from featgraph.ranks.engines.failures import lost_rank, require_same
from featgraph.ranks.engines.loopback import NullEngine
from featgraph.ranks.engines.messages import led, reduce_number
from featgraph.ranks.engines.protocol import Engine
from featgraph.ranks.exchange.gather_rows import gather_rows
from featgraph.ranks.exchange.ghosts import EdgeGhosts, RankGhosts, send_unsent
from featgraph.ranks.exchange.host_rows import HostRows
from featgraph.ranks.exchange.remote_entries import PartEdges, RemoteEntries
from featgraph.ranks.exchange.transport import EdgeTransport
from featgraph.ranks.exchange.triangle_parts import TrianglePart
from featgraph.ranks.exchange.triangles import DeviceTriangles, TriangleSweeps
from featgraph.ranks.exchange.vertex_sets import packed, unpacked
from featgraph.runtime.devices import fixed_trees
from featgraph.runtime.devices.fixed_trees import BRANCHES, Joined, Nodes, Subtree, join
from featgraph.runtime.devices.protocol import Array, Device, Reach, RowKernel
from featgraph.runtime.memory.buffers import Buffers
from featgraph.runtime.memory.graph_arrays import GraphArrays, graph_arrays
from featgraph.runtime.superstep.exchange import Counters

if TYPE_CHECKING:
    from featgraph.runtime.devices.cuda_trees import JoinTables

__all__ = ["RankExchange"]


HostArray = npt.NDArray[Any]
#: A node of the tree has a key of 64 bits: its index in its level, in so many low bits,
#: and its level above them.
_PLACE_BITS = 40


def are_words_blocks(partition: Partition) -> bool:
    """Whether each word of a rank's vertices is a block of 32 given vertex ids."""
    cuts = partition.cuts
    ends = (cuts % BRANCHES == 0) | (cuts == partition.vertex_count)
    return partition.order is None and bool(ends.all())


class HostBlocks:
    """Combines of reduces over ranks in the tree of all vertices, on the host.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    """

    def __init__(self, shard: Shard, engine: Engine) -> None:
        self._shard, self._engine = shard, engine
        partition = shard.partition
        self._count = -(-partition.vertex_count // BRANCHES)
        #: Whether a word of own vertices is a block of given vertex ids.
        self._are_words = are_words_blocks(partition)
        #: If not, the first block that each rank assembles, and the number of blocks.
        self._begins = np.arange(engine.size + 1) * self._count // engine.size
        #: Contributions of single vertices: [bit, word] is of vertex 32 * word + bit.
        self._of_vertices: HostArray = np.empty((0, 0, 0))
        self._due: HostArray = np.empty(0, np.uint32)

    def slices(
        self, entries: Callable[[str], list[Any]], given: dict[str, Any]
    ) -> Iterator[tuple[Callable[[str], list[Any]], Mapping[str, Any]]]:
        """Yield the entries and arguments of a reduce: once, or for each bit of words.

        In a slice for one bit, at most one vertex of each word is due, so partial
        results of words are contributions of single vertices.
        """
        if self._are_words:
            yield entries, given
            return
        self._due, partials = given["due"], given["partials"]
        shape = BRANCHES, *partials.shape
        if (
            self._of_vertices.shape != shape
            or self._of_vertices.dtype != partials.dtype
        ):
            self._of_vertices = np.empty(shape, partials.dtype)
        for bit, rows in enumerate(self._of_vertices):
            due = self._due & np.uint32(1 << bit)
            yield entries, {**given, "due": due, "partials": rows}

    def combine(self, given: Mapping[str, Any], combine: Combine) -> None:
        """Combine partial results over all ranks; all ranks call it."""
        partials, how = given["partials"], combine.rules.tree
        if self._are_words:
            first = int(self._shard.partition.cuts[self._engine.rank]) // BRANCHES
            blocks = partials[: -(-self._shard.own // BRANCHES)]
        else:
            first = int(self._begins[self._engine.rank])
            blocks = self._put_together(how)
        own = [*fixed_trees.nodes_of(first, blocks, how)]
        nodes = self._of_all_ranks(own, blocks)
        given["reduced"][...] = fixed_trees.combine_all(nodes, self._count, how)

    @cached_property
    def _homes(self) -> HostArray:
        """The rank that assembles the block of each own vertex."""
        blocks = self._shard.numbers[: self._shard.own] // BRANCHES
        return np.searchsorted(self._begins, blocks, "right") - 1

    def _put_together(self, how: Any) -> HostArray:
        """Exchange contributions of vertices; return the blocks of this rank."""
        shard, engine, rows = self._shard, self._engine, self._of_vertices
        due = np.flatnonzero(unpacked(self._due)[: shard.own])
        homes = self._homes[due]
        listed = [due[homes == rank] for rank in range(engine.size)]
        about = "a reduce by the users' numbers"
        places = engine.all_to_allv([shard.numbers[at] for at in listed], about=about)
        sent = [rows[at % BRANCHES, at // BRANCHES] for at in listed]
        received = engine.all_to_allv(sent, about=about)
        first, last = self._begins[engine.rank : engine.rank + 2].tolist()
        shape = (last - first) * BRANCHES, rows.shape[2]
        found = np.full(shape, how.identity, rows.dtype)
        found[np.concatenate(places) - first * BRANCHES] = np.concatenate(received)
        return fixed_trees.combine_groups(found, how)

    def _of_all_ranks(self, own: list[Nodes], like: HostArray) -> list[Nodes]:
        """Gather the nodes of all ranks, whose rows have the dtype of `like`."""
        keys = [
            (node.level << _PLACE_BITS) + node.first + np.arange(len(node.rows))
            for node in own
        ]
        about = "nodes of a reduce"
        own_keys = np.concatenate([np.empty(0, np.int64), *keys])
        rows = np.concatenate([like[:0], *(node.rows for node in own)])
        every = np.concatenate(self._engine.all_gather(own_keys, about=about))
        each = np.concatenate(self._engine.all_gather(rows, about=about))
        mask = (1 << _PLACE_BITS) - 1
        return [
            Nodes(int(key >> _PLACE_BITS), int(key & mask), each[n : n + 1])
            for n, key in enumerate(every)
        ]


GpuArray = Any
Entries = Callable[[str], list[Any]]


class GpuBlocks:
    """Combines of reduces over ranks in the tree of all vertices, on GPUs.

    Parameters
    ----------
    shard : Shard
    device : CudaDevice
    ranks : RankExchange
    transport : GpuTransport
    """

    def __init__(
        self, shard: Shard, device: Any, ranks: RankExchange, transport: Any
    ) -> None:
        self._shard, self._device = shard, device
        self._ranks, self._transport = ranks, transport
        self._are_words = are_words_blocks(shard.partition)
        #: GpuArray -> a view of it as integers, whose sums are exact.
        self._bits: weakref.WeakKeyDictionary[GpuArray, GpuArray] = (
            weakref.WeakKeyDictionary()
        )

    def slices(
        self, entries: Entries, given: dict[str, Any]
    ) -> Iterator[tuple[Entries, Mapping[str, Any]]]:
        """Yield the entries and arguments of a reduce over words, or over vertices."""
        own = self._shard.own
        parts = {"together": BRANCHES, "part_count": -(-own // BRANCHES)}
        if not self._are_words:
            contributed = self._contributions(given)
            parts = {"together": 1, "part_count": own, "partials": contributed}
        yield entries, {**given, **parts}

    def combine(self, given: Mapping[str, Any], combine: Combine) -> None:
        """Combine partial results over all ranks; all ranks call it.

        The combine is deferred to the next exchange, as for other results of reduces.
        """
        if self._are_words:
            self._combine_words(given, combine.rules.tree)
        else:
            self._combine_vertices(given, combine.rules.tree)

    def _combine_words(self, given: Mapping[str, Any], pair: Any) -> None:
        """Combine the subtrees of this rank, then the nodes of all ranks."""
        joined, trees, rank = self._joined, self._device.trees, self._shard.rank
        partials, result = given["partials"], given["reduced"]
        width, first = int(result.size), joined.firsts[rank]
        nodes = given["memory"]("nodes", (joined.firsts[-1] * width,))
        work = given["memory"]("nodes above", (max(len(joined.children), 1), width))
        trees.climb(partials, self._subtrees[rank], first, nodes, pair)
        tables = self._tables
        self._add_up(nodes, lambda: trees.join(nodes, work, tables, result, pair))

    def _combine_vertices(self, given: Mapping[str, Any], pair: Any) -> None:
        """Gather the contributions of all vertices, and combine the whole tree."""
        partition, result = self._shard.partition, given["reduced"]
        count, copy = partition.vertex_count, self._device.copy
        if not partition.is_led:
            self._combine_all(given, count, result, pair)
            return
        # Rank 0 has all vertices, and sends the result to the others.
        found = given["memory"]("root", (int(result.size),))
        self._device.fill(found, 0)
        # All ranks but 0 add zeros.
        if self._shard.own:
            self._combine_all(given, count, found, pair)
        self._add_up(found, lambda: copy(result, found))

    def _combine_all(
        self, given: Mapping[str, Any], count: int, result: GpuArray, pair: Any
    ) -> None:
        """Gather the contributions of `count` vertices, and combine their tree."""
        rows = Subtree(0, count, count).row_count
        every = given["memory"]("mirror", (rows, int(result.size)))
        contributed = self._contributions(given)
        own, whole = DeviceValues(contributed), DeviceValues(every)
        self._transport.collect(own, whole, self._ranks.own(None))
        self._device.trees.combine(every, count, result, pair)

    def _add_up(self, own: GpuArray, behind: Callable[[], None]) -> None:
        """Gather an array by a sum of its bits: one rank sets the bits of an entry."""
        bits = self._bits.get(own)
        if bits is None:
            self._bits[own] = bits = own.view(f"i{own.dtype.itemsize}")
        self._ranks.combine(bits, Combine("sum"), behind)

    @cached_property
    def _subtrees(self) -> list[Subtree]:
        """The nodes that each rank combines from its own blocks."""
        ends = (-(-self._shard.partition.cuts // BRANCHES)).tolist()
        return [Subtree(begin, end, ends[-1]) for begin, end in pairwise(ends)]

    @cached_property
    def _joined(self) -> Joined:
        """The tree over the top nodes of all ranks."""
        return join(self._subtrees)

    @cached_property
    def _tables(self) -> JoinTables:
        # The dialect is imported only if there is a GPU.
        from featgraph.runtime.devices.cuda_trees import JoinTables

        return JoinTables.of(self._joined, self._device)

    def _contributions(self, given: Mapping[str, Any]) -> GpuArray:
        """Return memory for the contribution of each own vertex."""
        shape = max(self._shard.own, 1), int(given["reduced"].size)
        found: GpuArray = given["memory"]("contributions", shape)
        return found


Words = Any


class RankExchange:
    """Exchange of vertex sets, reduce results and ghost rows with other ranks.

    Parameters
    ----------
    shard : Shard
        The part of this rank.
    edges : PartEdges
        The own and ghost edges of the part.
    engine : Engine
    device : Device
    triangles : callable
        Returns the oriented edges of this rank.

    Attributes
    ----------
    transport : Transport
        The exchange of rows.

    Raises
    ------
    PlanError
        On all ranks, if devices have different targets.
    """

    def __init__(
        self,
        shard: Shard,
        edges: PartEdges,
        engine: Engine,
        device: Device,
        triangles: Callable[[], TrianglePart],
    ) -> None:
        self._triangles = triangles
        self.shard, self.engine, self.device = shard, engine, device
        self._edges = edges
        #: Whether rank 0 has all vertices. Then it sends its results to the others
        #: later, and no rows are exchanged.
        self._is_led = shard.partition.is_led
        self._combined_by = led(engine) if self._is_led else engine
        own = np.arange(shard.numbers.size) < shard.own
        self._own = device.sets.upload(packed(own))
        self.holder = Members(shard, engine, device, self)
        if self._is_led:  # the targets of other ranks do not matter
            self.transport = _transport_on(_alone(shard), NullEngine(), device)
        else:
            require_same(
                engine,
                device.name,
                "ranks run a graph on different targets",
                "one target= on all of them",
                "the target of each rank, when a graph is first run on it",
                PlanError,
            )
            self.transport = _transport_on(shard, engine, device)

    @property
    def stays_on_device(self) -> bool:
        """Whether kernels exchange sets and rows with other ranks, without the host."""
        return self.transport.fused is not None

    @cached_property
    def _edge_transport(self) -> EdgeTransport:
        return self._over(self._edges.lists)

    def _over(self, lists: RemoteEntries, stays: bool = True) -> EdgeTransport:
        """Return the exchange of entries of edges: see `Transport.over`."""
        lists = lists.alone() if self._is_led else lists
        made: EdgeTransport = self.transport.over(lists, stays)
        return made

    @cached_property
    def _device_triangles(self) -> DeviceTriangles:
        part = self._triangles()
        return DeviceTriangles(part, self._edge_transport, self._over, self.device)

    @property
    def counters(self) -> Counters:
        """Counters of this rank's exchanges since the start."""
        transport = self.transport
        forms = dict(transport.forms)
        return Counters(self.engine.waited_s, transport.sent_behind, forms)

    @property
    def sent_bytes(self) -> dict[str, npt.NDArray[np.int64]]:
        """Bytes that this rank has sent since the start, by target rank: shape (P,).

        "messages" counts what the engine has sent. The other entries count the bytes
        that kernels have stored in windows of GPUs; they are read from the device.
        """
        transport = self.transport
        stored = transport.sent_bytes() if hasattr(transport, "sent_bytes") else {}
        return {"messages": self.engine.traffic.sent.copy(), **stored}

    def own(self, everyone: Words) -> Words:
        """Return the vertices that this rank owns."""
        return self._own

    def own_edges(self, everything: Words) -> Words:
        """Return the edges that this rank owns."""
        count = max(self._edges.count, 1)  # kernels take no empty array
        return self.device.sets.upload(packed(np.arange(count) < self._edges.own))

    def among_own(self, words: Words) -> Words:
        """Return the vertices of a set that this rank owns."""
        return self.device.sets.intersection(words, self._own)

    def with_ghosts(self, words: Words) -> Words:
        """Add the ghosts that are in their owners' sets to a set of own vertices."""
        return self.device.sets.union(words, self.share([], words))

    def share(self, values: Sequence[Any], changed: Words) -> Words:
        """Send rows of own vertices to the ranks with their ghosts: see `Transport`."""
        return self.transport.share(values, changed)

    def all_reduce(self, values: HostArray, operator: str) -> HostArray:
        """Return an array on the host, combined over all ranks entry by entry."""
        about = "numbers of all ranks"
        return self._combined_by.all_reduce(values, operator, about=about)

    def catch_up(self) -> None:
        """Broadcast the results of rank 0 if the other ranks follow it."""
        if self._is_led:
            self.engine.catch_up()  # type: ignore[attr-defined]

    def first_fault(self, fault: HostArray) -> tuple[HostArray, str]:
        """Return the fault recorded by a checked kernel on the first rank with one."""
        sent, edges = fault.copy(), self._edges
        if sent[0]:
            _, _, vertex, edge, _, _ = fault.tolist()
            sent[2] = self.shard.numbers[vertex]
            if 0 <= edge < self.shard.local.edge_count:
                sent[3] = edges.given_rows[edge]
        found = self.engine.all_gather(sent, about="checks of indices")
        rank = next((r for r, other in enumerate(found) if other[0]), 0)
        first = found[rank]
        if first[0] and first[3] >= 0:  # only its owner has the edge id
            own = edges.id_of_given(int(first[3]))
            first[3] = reduce_number(self.engine, own, "max", "an edge id")
        return first, f", on rank {rank}"

    def owned_rows(self, vertices: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the local numbers of those of some vertices that this rank owns."""
        own = self.shard.numbers[: self.shard.own]
        return np.flatnonzero(np.isin(own, vertices)).astype(np.int32)

    def ghosts(self, plan: FoldPlan) -> RankGhosts:
        """Return the ghosts that the kernels of a plan read."""
        edges = EdgeGhosts(plan, self._edge_transport)
        triangles = TriangleSweeps(plan, self.device, lambda: self._device_triangles)
        sets, transport = self.device.sets, self.transport
        own = self._own
        return RankGhosts(plan, transport, edges, own, sets, triangles, self.engine)

    def rows_for(self, phase: Phase, arrays: GraphArrays) -> Mapping[str, Array]:
        """Return the arrays of the part that a phase reads.

        Edge functions run on the edges into vertices that this rank owns.
        """
        if not phase.kind.sweeps_edges:
            return arrays
        own = graph_arrays(self._edges.into_own, self.device)
        return _OwnEdges(arrays, own)

    def renew(self, buffers: Buffers) -> None:
        """Send all unsent rows and entries: ghosts then equal their owners' values."""
        # Ghosts have rounded values: all rows are sent again, unrounded.
        for name in buffers.rounded:
            buffers.unsent[name] = self._own
        buffers.rounded.clear()
        waiting, types = sorted(buffers.unsent), buffers.state.signature
        of_edges = [n for n in waiting if types[n].kind is PropertyKind.EDGE]
        send_unsent(self._edge_transport, buffers, of_edges)
        for name in sorted(buffers.unsent):
            values = buffers.held(name, buffers.property(name))
            ghosts = self.share([values], buffers.unsent.pop(name))
            buffers.ghosts_came([name], ghosts)

    def count(self, words: Words) -> int:
        """Return the number of vertices of a set on all ranks."""
        return self.count_and_look(words, ())[0]

    def check_count(self, number: int) -> None:
        """Raise the error for which a negative count stands.

        In place of a count, kernels store -1 - rank if a rank is lost, and a number
        near `-TOO_LARGE` if a value does not fit `wire_dtype`.
        """
        if number < 0:
            fused = self.transport.fused
            known = None if fused is None else fused.rounding_error(number)
            raise known or lost_rank(self.engine, number)

    def check_rounded(self, words: Words) -> None:
        """Raise an error if a value of the last superstep did not fit `wire_dtype`.

        If the host encodes messages, the exchange itself has raised the error.
        """
        if self.transport.fused is not None:
            self.count(words)

    def count_and_look(
        self,
        words: Words,
        results: Sequence[tuple[Array, bool]],
        reach: Reach | None = None,
    ) -> tuple[int, list[float]]:
        """Return the size of a set on all ranks, and extremes of results."""
        sets: Any = self.device.sets
        if self.transport.fused is not None:
            if not self.transport.fused.leave_known(words):
                self.transport.fused.leave_count(sets.intersection(words, self._own))
            sets.leave_extremes(results)
            number, seen, _ = sets.read_counts(len(results), reach)
            self.check_count(number)
            return number, seen
        own = sets.intersection(words, self._own)
        number, seen = sets.count_and_look(own, results, reach)
        return reduce_number(self._combined_by, number, "sum", "a count"), seen

    def begin_timed(self) -> None:
        """Begin a superstep whose work is timed on the device, without waits."""
        if self.transport.fused is not None:
            self.transport.fused.begin_timed()

    def count_and_time(
        self, words: Words, results: Sequence[tuple[Array, bool]], seconds: float
    ) -> tuple[int, list[float], list[float]]:
        """Return the results of `count_and_look`, and the `seconds` of each rank.

        The host sends both in one exchange. If supersteps stay on the device, the times
        are instead those that the device has worked since `begin_timed`.
        """
        if self.transport.fused is not None:
            number, seen = self.count_and_look(words, results)
            times = np.zeros(self.engine.size, np.int64)
            times[self.engine.rank] = self.transport.fused.worked_ns()
            times = self.engine.all_reduce(times, "sum", about="times")
            return number, seen, (times / 1e9).tolist()
        own = self.device.sets.intersection(words, self._own)
        number, seen = self.device.sets.count_and_look(own, results)
        # Times in nanoseconds, so that an array of integers has them beside the count.
        sent = np.zeros(1 + self.engine.size, np.int64)
        sent[0], sent[1 + self.engine.rank] = number, round(seconds * 1e9)
        sent = self.engine.all_reduce(sent, "sum", about="a count, and times")
        return int(sent[0]), seen, (sent[1:] / 1e9).tolist()

    def combine(
        self, result: Array, combine: Combine, behind: Callable[[], None] | None = None
    ) -> None:
        """Combine the result of a reduce over all ranks, in place.

        `behind` is called after the combine, also if that is deferred.
        """
        operator = combine.rules.exchange
        fused = self.transport.fused
        if fused is not None and fused.numbers.can_combine(result, operator):
            fused.numbers.add(result, operator, behind=behind)
            return
        own, about = self.device.download(result), "the result of a reduce"
        if operator:
            found = self._combined_by.all_reduce(own, operator, about=about)
        else:
            pair = np.frompyfunc(combine.pair, 2, 1)
            found = reduce(pair, self.engine.all_gather(own, about=about))
        made = self.device.upload(np.asarray(found, own.dtype), result)
        # On the CPU `upload` returns the array that it is given.
        if made is not result:
            self.device.copy(result, made)
        if behind is not None:
            behind()

    def settle(self) -> None:
        """Complete deferred combines of reduce results, before they are read."""
        if self.transport.fused is not None:
            self.transport.fused.settle()

    def forget(self) -> None:
        """Drop deferred results after a superstep that has failed."""
        if self.transport.fused is not None:
            self.transport.fused.numbers.forget()

    @cached_property
    def blocks(self) -> Any:
        """The combines of reduces in a tree over words of vertices."""
        if self.device.name == "cpu":
            return HostBlocks(self.shard, self.engine)
        return GpuBlocks(self.shard, self.device, self, self.transport)


class Members:
    """Active sets of a distributed graph: a `Holder` that is its own `sets`.

    Words are those of the part: own vertices, then ghosts. All ranks call the same
    methods in the same order.

    Parameters
    ----------
    shard : Shard
    engine : Engine
    device : Device
    ranks : RankExchange
    """

    is_scarce = False  # sets stay on devices: all ranks would have to download together

    def __init__(
        self, shard: Shard, engine: Engine, device: Device, ranks: RankExchange
    ) -> None:
        self._shard, self._engine, self._device = shard, engine, device
        self._ranks = ranks

    @property
    def sets(self) -> Members:
        """The object itself: it implements the operations on sets, too."""
        return self

    def snapshot(self, words: Words) -> Words:
        """Return a copy of a set that later runs do not change."""
        return self._device.sets.snapshot(words)

    def upload(self, words: npt.NDArray[np.uint32]) -> Words:
        """Return this rank's part of a set of the whole graph, on the device."""
        return self._device.sets.upload(packed(unpacked(words)[self._shard.numbers]))

    def empty(self, count: int, apart: Mapping[int, int] | None = None) -> Words:
        """Return this rank's part of a set of the whole graph, on the device.

        `apart` has the nonzero words of the set: index -> word.
        """
        given = apart or {}
        numbers = np.fromiter(given, np.int64, len(given))
        bits = unpacked(np.fromiter(given.values(), np.uint32, len(given)))
        which = np.flatnonzero(bits)
        wanted = numbers[which // WORD_BITS] * WORD_BITS + which % WORD_BITS
        words: dict[int, int] = {}
        for local in self._shard.locals_of(wanted).tolist():
            if local >= 0:
                number, bit = divmod(local, WORD_BITS)
                words[number] = words.get(number, 0) | 1 << bit
        return self._device.sets.empty(word_count(self._shard.numbers.size), words)

    def download(self, words: Words) -> npt.NDArray[np.uint32]:
        """Return the set of the whole graph on the host; all ranks call it."""
        own = unpacked(self._device.download(words))[: self._shard.own]
        partition = self._shard.partition
        mask = np.empty(partition.vertex_count, np.bool_)
        gather_rows(self._engine, partition, own, mask, "an active set")
        return packed(mask)

    def count(self, words: Words) -> int:
        """Return the number of vertices of a set on all ranks."""
        number = self._ranks.count(words)
        self._ranks.catch_up()
        return number


class _OwnEdges(Mapping[str, Array]):
    """The arrays of a part, with out-edges into own vertices only."""

    def __init__(self, part: GraphArrays, own: GraphArrays) -> None:
        self._part, self._own = part, own

    def __getitem__(self, name: str) -> Array:
        goes_out = rows_with(name) == rows_along("out")
        return (self._own if goes_out else self._part)[name]

    def kernel(self, name: str, along: str) -> RowKernel:
        """Return a kernel over vertex sets that sweeps these rows."""
        return (self._own if along == "out" else self._part).kernel(name, along)

    def __iter__(self) -> Iterator[str]:
        return iter(self._part)

    def __len__(self) -> int:
        return len(self._part)


def _alone(shard: Shard) -> Shard:
    """Return the shard of a rank with all vertices, or none, as of a single rank."""
    whole = Partition.of_nothing()
    if shard.own:
        whole = Partition.of_known([0, shard.own], shard.partition.order)
    return replace(
        shard,
        rank=0,
        partition=whole,
        ghosts=np.array([shard.own, shard.own]),
        send_lists=shard.send_lists[:1],
    )


def _transport_on(shard: Shard, engine: Engine, device: Device) -> Any:
    """Return the transport of rows for a device."""
    if device.name == "cpu":
        return HostRows(shard, engine, device)
    from featgraph.ranks.exchange.gpu_transport import GpuTransport

    return GpuTransport(shard, engine, device)
