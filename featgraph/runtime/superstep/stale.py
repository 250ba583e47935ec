"""Which ``_next`` entries are stale, and their refresh before a phase reads them.

After a superstep the buffers of an iterated property swap. The one that becomes
``_next`` then differs from the current one at the committed entries. That is the
protocol of docs/design/0001-architecture.md.
"""

from __future__ import annotations

from typing import Any

from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.plan.plan import Phase
from featgraph.graph import Graph
from featgraph.program.signature import PropertyKind
from featgraph.program.state import State
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.memory.buffers import ALL
from featgraph.runtime.superstep.launcher import Launcher, Words

__all__ = ["StaleEntries", "is_soon_swept"]

#: Kernels with pulled edges sweep all vertices from so many active ones and targets of
#: theirs a vertex on. With half of a Delaunay graph's vertices active, finding the
#: others and refreshing edges took 270 of 440 us (NVIDIA H200).
LEAST_REACHED = 1 / 8
#: All vertices are swept where they and their edges, times the features, are fewer: a
#: sweep then takes no longer than finding due vertices. Skipping lost up to a third on
#: graphs of 0.3M to 0.9M vertices and edges, with k = 4 (NVIDIA H200).
FEWEST_TO_SKIP = 1 << 22


def is_soon_swept(graph: Graph, width: int) -> bool:
    """Whether a graph is so small that a GPU sweeps all of it in any case."""
    return (graph.vertex_count + graph.edge_count) * width < FEWEST_TO_SKIP


class StaleEntries(Launcher):
    """Launches for one state, and keeps its ``_next`` buffers fresh."""

    #: The set of all vertices.
    full: Words

    def __init__(
        self, kernel: Kernel, state: State, device: Device, reduced_over: Words
    ) -> None:
        super().__init__(kernel, state, device, reduced_over)
        self.committed = self.plan.facts.writes_next

    def forget_touched(self) -> None:
        """Begin a superstep: nothing has been refreshed or written yet."""
        self.touched: set[str] = set()
        self.sources_of: dict[str, Words] = {}

    def remember_sources(self, phase: Phase, sources: Words) -> None:
        """Note whose out-edges a phase writes ``_next`` entries of."""
        for name in phase.writes_next:
            if self._is_vertex_property(name):
                continue
            known = self.sources_of.get(name)
            self.sources_of[name] = (
                sources if known is None else self.device.words_or(known, sources)
            )

    def freshen(self, phase: Phase, swept: Words, sources: Words = None) -> None:
        """Refresh ``_next`` entries that a phase reads, or writes but leaves out.

        Of edges, it leaves out those that are no out-edges of `sources`; where that is
        None, of `swept`.
        """
        if self.in_place:
            return
        vertices = swept
        for name, reads in phase.touches_next:
            if name in self.touched:
                continue
            of_vertices = sources is None or self._is_vertex_property(name)
            if vertices is self.full and name in self.kernel.kernel_source.forwarded:
                of_vertices = True  # the kernel writes all of their in-edges
            swept = vertices if of_vertices else sources
            self.touched.add(name)
            self.buffers.next_of(name)
            stale = self.buffers.stale.get(name, ALL)
            # From here on that set is not referenced, and its memory is used again.
            self.buffers.stale[name] = None
            if stale is None or (not reads and (swept is self.full or stale is swept)):
                continue
            if isinstance(stale, str):
                self.device.copy(
                    self.buffers.next_of(name), self.buffers.property(name)
                )
            else:
                self._refresh(name, stale, None if reads else swept)

    def pulls_all(self, active_count: int | None) -> bool:
        """Whether kernels with pulled edges sweep all vertices though few are due.

        Where such a kernel writes all in-edges of what it sweeps, that saves finding
        due vertices, and refreshing what it would leave out. On small graphs it does.
        """
        if not self.kernel.kernel_source.forwarded or active_count is None:
            return False
        if is_soon_swept(self.graph, max(p.width for p in self.plan.phases)):
            return True
        reached = active_count * (1 + self.graph.edge_count / self.graph.vertex_count)
        return reached >= LEAST_REACHED * self.graph.vertex_count

    def _refresh(self, name: str, words: Words, without: Words | None) -> None:
        device, buffers = self.device, self.buffers
        next_, current = buffers.next_of(name), buffers.property(name)
        if self._is_vertex_property(name):
            device.refresh_vertices(words, next_, current, without)
            return
        if without is not None:
            words = device.words_without(words, without)
        device.refresh_edges(words, next_, current, buffers.graph)

    def _is_vertex_property(self, name: str) -> bool:
        return self.state.signature[name].kind is PropertyKind.VERTEX

    def edge_state(self, number: int) -> Any:
        """Where several phases sweep edges: 0 not run, 1 stopped, 2 passed last."""
        flags = self.buffers.temporary(
            "edge_state", "uint8", (max(self.graph.edge_count, 1),)
        )
        first = next(i for i, p in enumerate(self.plan.phases) if p.kind == "edge")
        if number == first:
            self.device.fill(flags, 0)
        return flags

    def commit(self, passed: Words | None) -> None:
        """Swap the buffers of what was written.

        Committed entries are stale in the other one: those of `passed`, and all that
        edge functions have run on. What was committed in the kernel is equal in both.
        """
        if self.plan.options.asynchronous:  # the kernel has written both
            self.buffers.end_in_place(dict.fromkeys(self.committed))
            return
        if self.in_place:
            self.buffers.end_in_place(dict.fromkeys(self.committed, ALL))
            return
        stale: dict[str, Words] = {}
        for name in self.committed:
            is_vertex = self._is_vertex_property(name)
            stale[name] = passed if is_vertex else self.sources_of.get(name)
        self.buffers.swap(stale)
