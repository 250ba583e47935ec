"""Graphs that tests change in drawn batches, beside what their edges are."""

from __future__ import annotations

from typing import Any

import numpy as np

import featgraph as fg
from tests.dynamic.model import Model

__all__ = ["Batched", "drawn_batch"]


class Batched:
    """An `fg.DynamicGraph`, and its edges as a `Model` has them.

    Copies are kept, and a deletion takes the oldest one; or the last weight counts.

    Attributes
    ----------
    model : Model
    loses : bool
        Whether vertices are deleted, and weights rise.
    remembers : int
        How many batches the log goes back.
    """

    def __init__(self, count: int, *, directed: bool, keeps: bool) -> None:
        duplicates = "keep" if keeps else "last"
        self.graph = fg.DynamicGraph.from_edges(
            [], [], weights=np.zeros(0, np.int64), vertex_count=count,
            directed=directed, duplicates=duplicates, target="cpu",
        )  # fmt: skip
        self.model = Model(directed, duplicates, "keep")
        self.model.insert_vertices(count)
        self.given_directed, self._keeps = directed, keeps
        self.remembers, self.loses = 1 << 30, True

    @property
    def edges(self) -> dict[int, tuple[int, ...]]:
        """Number -> source, target and weight, in the order of insertion."""
        return {e.number: (e.source, e.target, *e.values) for e in self.model.edges}

    @property
    def count(self) -> int:
        """The number of ids."""
        return self.graph.vertex_count

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
            self.model.insert_vertices(vertices)
        if vertices == 2 and self.count > 20 and self.loses:
            dead = np.flatnonzero(self.model.living)[-2:-1]
            self.graph.delete_vertices(dead)
            self.model.delete_vertices(dead.tolist())
        edges = self.edges
        updates = [(*edges[n], False) for n in delete if n in edges]
        for number, weight in change:
            if number in edges and number not in delete:
                if self._keeps:
                    updates.append((*edges[number], False))
                updates.append((*edges[number][:2], weight, True))
        living = [*self.model.living, False, False]
        there = {e[:2]: e[2] for e in edges.values()}
        if not self.given_directed:
            there |= {e[1::-1]: e[2] for e in edges.values()}
        for s, t, w in np.array(insert, np.int64).reshape(-1, 3).tolist():
            if living[s] and living[t]:  # with "last", a copy may not weigh more
                most = 9 if self._keeps or self.loses else there.get((s, t), 9)
                updates.append((s, t, min(w, most), True))
        more = {"copies": "first"} if self._keeps else {}
        self.model.update([(s, t, new, (w,)) for s, t, w, new in updates], **more)
        s, t, w, mask = np.array(updates, np.int64).reshape(-1, 4).T
        self.graph.update(s, t, insert=mask.astype(bool), weights=w, **more)
        log = self.graph._store._log
        while len(log._records) > self.remembers:
            log._size -= log._records.popleft().size


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
    edges = graph.edges
    known = [*edges]
    if known and len(ends):  # a copy
        ends[0] = edges[known[int(rng.integers(len(known)))]][:2]
    if kind in {"acyclic", "simple"}:
        ends.sort(axis=1)
        ends = ends[ends[:, 0] < ends[:, 1]]
    if kind == "simple":
        there = {edge[:2] for edge in edges.values()}
        ends = np.unique(ends, axis=0)
        ends = np.array([e for e in ends.tolist() if tuple(e) not in there], np.int64)
        ends = ends.reshape(-1, 2)
    weights = rng.integers(1, 9, len(ends))
    lost = rng.permutation(known)[: int(rng.choice([0, 1, 5]))]
    lost = [] if kind in {"grows", "simple"} else lost
    left = [n for n in known if n not in set(map(int, lost))]
    others = rng.permutation(left)[: int(rng.choice([0, 1, 3]))]

    def most_of(number: int) -> int:
        return 1 + edges[number][2] if kind in {"grows", "simple"} else 9

    return {
        "insert": np.column_stack([ends, weights]),
        "delete": [int(n) for n in lost],
        "change": [(n, int(rng.integers(1, most_of(n)))) for n in map(int, others)],
        "vertices": vertices,
    }
