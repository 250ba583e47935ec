"""Graphs that tests change in drawn batches, beside what their edges are."""

from __future__ import annotations

from typing import Any

import numpy as np

import featgraph as fg

__all__ = ["Batched", "drawn_batch"]


class Batched:
    """An `fg.DynamicGraph`, and its edges by number in the order of insertion.

    Copies are kept, and a deletion takes the oldest one; or the last weight counts.

    Attributes
    ----------
    edges : dict of int to (int, int, int)
        Number -> source, target and weight.
    loses : bool
        Whether vertices are deleted, and weights rise.
    remembers : int
        How many batches the log goes back.
    """

    def __init__(self, count: int, *, directed: bool, keeps: bool) -> None:
        self.graph = fg.DynamicGraph.from_edges(
            [], [], weights=np.zeros(0, np.int64), vertex_count=count,
            directed=directed, duplicates="keep" if keeps else "last", target="cpu",
        )  # fmt: skip
        self.given_directed, self._keeps, self._next = directed, keeps, 0
        self.edges: dict[int, tuple[int, int, int]] = {}
        self.remembers, self.loses = 1 << 30, True

    @property
    def count(self) -> int:
        """The number of ids."""
        return self.graph.vertex_count

    @property
    def living(self) -> Any:
        """Which ids have a vertex."""
        living = self.graph.living
        return np.ones(self.count, bool) if living is None else living

    def fresh(self) -> fg.Graph:
        """Return a graph that never was another."""
        s, t, w = np.array([*self.edges.values()], np.int64).reshape(-1, 3).T
        return fg.Graph.from_edges(
            s, t, weights=w, vertex_count=self.count, directed=self.given_directed
        )

    def apply(
        self, insert: Any = (), delete: Any = (), change: Any = (), vertices: int = 0
    ) -> None:
        """Delete edges by number, give some (number, weight), insert edges.

        Sometimes a vertex is deleted, too.
        """
        if vertices:
            self.graph.insert_vertices(vertices)
        if vertices == 2 and self.count > 20 and self.loses:
            dead = np.flatnonzero(self.living)[-vertices:-1]
            self.graph.delete_vertices(dead)
            gone = set(dead.tolist())
            self.edges = {n: e for n, e in self.edges.items() if gone.isdisjoint(e[:2])}
        updates = [(*self.edges[n], False) for n in delete if n in self.edges]
        for number, weight in change:
            if number in self.edges and number not in delete:
                if self._keeps:
                    updates.append((*self.edges[number], False))
                updates.append((*self.edges[number][:2], weight, True))
        living = np.append(self.living, np.zeros(2, bool))
        there = {e[:2]: e[2] for e in self.edges.values()}
        if not self.given_directed:
            there |= {e[1::-1]: e[2] for e in self.edges.values()}
        for s, t, w in np.array(insert, np.int64).reshape(-1, 3).tolist():
            if living[[s, t]].all():  # with "last", a copy may not weigh more
                most = 9 if self._keeps or self.loses else there.get((s, t), 9)
                updates.append((s, t, min(w, most), True))
        for s, t, w, inserts in updates:
            self._update((s, t), w, inserts)
        s, t, w, mask = np.array(updates, np.int64).reshape(-1, 4).T
        more = {"copies": "first"} if self._keeps else {}
        self.graph.update(s, t, insert=mask.astype(bool), weights=w, **more)
        log = self.graph._store._log
        while len(log._records) > self.remembers:
            log._size -= log._records.popleft().size

    def _update(self, pair: tuple[int, int], weight: int, inserts: bool) -> None:
        same = {pair} if self.given_directed else {pair, pair[::-1]}
        known = next((n for n, e in self.edges.items() if e[:2] in same), None)
        if not inserts:
            self.edges.pop(known, None)
        elif known is None or self._keeps:
            self.edges[self._next] = (*pair, weight)
            self._next += 1
        else:
            self.edges[known] = (*self.edges[known][:2], weight)


def drawn_batch(
    rng: np.random.Generator, graph: Batched, kind: str = "any"
) -> dict[str, Any]:
    """Draw insertions, deletions, other weights and vertices.

    Some edges are copies of others, and some have a hub at an end. Of kind "acyclic",
    they lead to higher ids; "grows" deletes none, and weights fall; so with "simple",
    and there are neither copies nor loops.
    """
    vertices = int(rng.integers(0, 3)) if rng.random() < 0.4 else 0
    count, most = graph.count + vertices, int(rng.choice([0, 1, 4, 9]))
    ends = rng.integers(0, max(count, 1), (most if count else 0, 2))
    ends[rng.random(len(ends)) < 0.3, int(rng.integers(2))] = count // 2
    known = [*graph.edges]
    if known and len(ends):  # a copy
        ends[0] = graph.edges[known[int(rng.integers(len(known)))]][:2]
    if kind in {"acyclic", "simple"}:
        ends.sort(axis=1)
        ends = ends[ends[:, 0] < ends[:, 1]]
    if kind == "simple":
        there = {edge[:2] for edge in graph.edges.values()}
        ends = np.unique(ends, axis=0)
        ends = np.array([e for e in ends.tolist() if tuple(e) not in there], np.int64)
        ends = ends.reshape(-1, 2)
    weights = rng.integers(1, 9, len(ends))
    lost = rng.permutation(known)[: int(rng.choice([0, 1, 5]))]
    lost = [] if kind in {"grows", "simple"} else lost
    left = [n for n in known if n not in set(map(int, lost))]
    others = rng.permutation(left)[: int(rng.choice([0, 1, 3]))]

    def most_of(number: int) -> int:
        return 1 + graph.edges[number][2] if kind in {"grows", "simple"} else 9

    return {
        "insert": np.column_stack([ends, weights]),
        "delete": [int(n) for n in lost],
        "change": [(n, int(rng.integers(1, most_of(n)))) for n in map(int, others)],
        "vertices": vertices,
    }
