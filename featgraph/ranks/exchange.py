"""What a rank does together with the others: sets, results, rows of ghosts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.distributed.engines.protocol import Engine
from featgraph.distributed.rows.forms import SendList, choose
from featgraph.distributed.rows.messages import decode, encode, row_bytes, store
from featgraph.fold.plan.plan import FoldPlan
from featgraph.graph.partition.shard import Shard
from featgraph.program.combine import Combine
from featgraph.ranks.ghosts import RankGhosts
from featgraph.ranks.members import Members, packed
from featgraph.ranks.outboxes import combine_rows, identity, in_outbox
from featgraph.runtime.devices.protocol import Array, Device

__all__ = ["RankExchange"]

Words = Any
HostArray = npt.NDArray[Any]
#: What engines call the combines that they know.
_OPERATORS = {
    "sum": "sum", "product": "product", "min": "min", "max": "max", "any": "or",
    "all": "and",
}  # fmt: skip


class RankExchange:
    """What runs on a device do together with those of other ranks.

    Parameters
    ----------
    shard : Shard
        What this rank has.
    engine : Engine
    device : Device
    """

    def __init__(self, shard: Shard, engine: Engine, device: Device) -> None:
        self.shard, self.engine, self.device = shard, engine, device
        self.holder = Members(shard, engine, device)
        own = np.arange(shard.numbers.size) < shard.own
        self._own = device.sets.upload(packed(own))
        #: What this rank sends to each rank, and what each sends to this one.
        self._sent = [SendList(numbers, shard.own) for numbers in shard.send_lists]
        self._taken = _lists_taken(shard)

    def own(self, everyone: Words) -> Words:
        """Return the vertices that this rank owns."""
        return self._own

    def among_own(self, words: Words) -> Words:
        """Return what of a set this rank owns."""
        return self.device.sets.intersection(words, self._own)

    def with_ghosts(self, words: Words) -> Words:
        """Return own vertices, with the ghosts that their owners call this with."""
        return self.device.sets.union(words, self.share([], words))

    def all_reduce(self, values: HostArray, operator: str) -> HostArray:
        """Return numbers of the host, combined over all ranks."""
        return self.engine.all_reduce(values, operator, about="numbers of all ranks")

    def first_fault(self, fault: HostArray) -> tuple[HostArray, str]:
        """Return what a checked kernel has recorded on the first rank that has any."""
        told, shard = fault.copy(), self.shard
        if told[0]:
            _, _, vertex, edge, _, _ = fault.tolist()
            told[2] = shard.numbers[vertex]
            if edge >= 0:
                told[3] = shard.edge_ids[int(shard.local.given_index[edge])]
        found = self.engine.all_gather(told, about="checks of indices")
        rank = next((r for r, other in enumerate(found) if other[0]), 0)
        return found[rank], f", on rank {rank}"

    def ghosts(self, plan: FoldPlan) -> RankGhosts:
        """Return the ghosts of a plan's kernels."""
        return RankGhosts(plan, self, self._own, self.device.sets)

    def count(self, words: Words) -> int:
        """Return how many vertices a set has on all ranks."""
        return self.holder.count(words)

    def count_and_look(
        self, words: Words, results: Sequence[tuple[Array, bool]]
    ) -> tuple[int, list[float]]:
        """Return the size of a set on all ranks, and extremes of results.

        The results are those of all ranks already.
        """
        sets = self.device.sets
        own = sets.intersection(words, self._own)
        number, seen = sets.count_and_look(own, results)
        return self.holder.total(number), seen

    def combine(self, result: Array, combine: Combine) -> None:
        """Make the result of a reduce that of all ranks, in place."""
        own, about = self.device.download(result), "the result of a reduce"
        operator = None if combine.is_custom else _OPERATORS[combine.name]
        if operator is not None:
            found = self.engine.all_reduce(own, operator, about=about)
        else:
            pair = np.frompyfunc(combine.function, 2, 1)  # type: ignore[arg-type]
            found = reduce(pair, self.engine.all_gather(own, about=about))
        self.device.copy(result, self.device.upload(np.asarray(found, own.dtype)))

    def share(self, arrays: Sequence[Array], changed: Words) -> Words:
        """Send rows of own vertices to the ranks that have them: see `Carrier`."""
        words = self.device.download(changed)
        sizes = row_bytes(arrays)
        messages = [
            encode(link, choose(link, words, sizes), arrays) for link in self._sent
        ]
        received = self.engine.all_to_allv(messages, about="rows of ghosts")
        ghosts = np.zeros(self.shard.numbers.size, np.bool_)
        for rank, message in enumerate(received):
            arrived = decode(self._taken[rank], message, arrays)
            first = int(self.shard.ghosts[rank])
            store(arrived, arrays, first)
            ghosts[first + arrived.positions] = True
        return self.device.sets.upload(packed(ghosts))

    def collect(self, array: Array, mirror: Array) -> None:
        """Fill the mirror of a property with the rows that each rank owns."""
        own = self.device.download(array)[: self.shard.own]
        parts = self.engine.all_gather(own, about="a mirror")
        order = self.shard.partition.order
        mirror[slice(None) if order is None else order] = np.concatenate(parts)

    def empty_outbox(self, outbox: Array, operation: str) -> None:
        """Make all rows of an outbox such that combining them changes nothing."""
        self.device.fill(outbox, identity(operation, outbox.dtype))

    def deliver(self, outbox: Array, array: Array, operation: str) -> Words:
        """Combine the rows of an outbox at the owners of vertices: see `Carrier`.

        What ranks have is combined in their order.
        """
        partition, rows = self.shard.partition, self.device.download(outbox)
        messages = []
        for begin, end in pairwise(partition.cuts.tolist()):
            places = slice(begin, end)
            order = partition.order
            messages.append(
                in_outbox(rows[places if order is None else order[places]], operation)
            )
        received = self.engine.all_to_allv(messages, about="atomic operations")
        found = self.device.download(array)
        own = found[: self.shard.own]
        reached = np.zeros(self.shard.numbers.size, np.bool_)
        for message in received:
            reached[combine_rows(message, own, operation)] = True
        if found is not array:
            self.device.copy(array, self.device.upload(found))
        return self.device.sets.upload(packed(reached))


def _lists_taken(shard: Shard) -> list[SendList]:
    """Return the send list of each rank to this one, in that rank's numbers."""
    partition, found = shard.partition, []
    for rank, (begin, end) in enumerate(pairwise(shard.ghosts)):
        places = shard.numbers[begin:end]
        if partition.places is not None:
            places = partition.places[places]
        first, last = partition.cuts[rank : rank + 2]
        numbers = np.ascontiguousarray(places - first, np.int32)
        found.append(SendList(numbers, int(last - first)))
    return found
