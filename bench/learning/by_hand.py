"""The hand-written kernels on the inputs of a `LearningProblem`."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.learning.problems import ALPHA, RIDGE, LearningProblem

BLOCK = 256
#: From this degree on, a folded kernel gives a vertex a block of its own.
HUB_DEGREE = 2048
#: Arrays of the algorithms that mix a mean with given values, and the share of one.
MIXED = {
    "LP": ("weight clamped label label_next", ALPHA),
    "MMR": ("weight query score score_next", ALPHA),
    "MML": ("fused given mmode mmode_next", 1 - ALPHA),
}


class _ByHand:
    """Arrays of a problem on a device, and a loop of supersteps until none commits."""

    def __init__(self, problem: LearningProblem, device: Any) -> None:
        ins = problem.graph.in_edges
        if ins.row_offsets.dtype != np.int32:
            raise ValueError("the hand-written kernels take 32-bit offsets")
        self.problem, self.device = problem, device
        self.n = problem.graph.vertex_count
        self._held = {
            "offsets": device.put(ins.row_offsets),
            "sources": device.put(ins.column_indices),
            "committed": device.put(np.zeros(1, np.int32)),
        }
        if problem.name.startswith("BP"):
            self._held["twin"] = device.put(problem.graph.twins)
        for name, type_ in problem.state.signature.items():
            if type_.kind.value == "scalar" or type_.iterated:
                continue
            values = np.asarray(problem.state.stored(name))
            self._held[name] = device.put(
                values.view(np.uint8) if values.dtype == np.bool_ else values
            )
        for name, values in problem.initial.items():
            self._held[f"{name} initial"] = device.put(values)
            self._held[name] = device.put(values)
            if problem.name != "ALS":  # in place, one side at a time
                self._held[f"{name}_next"] = device.put(values)
        self.turn = 0

    def _pointers(self, names: str) -> list[int]:
        return [self.device.pointer(self._held[name]) for name in names.split()]

    def reset(self) -> None:
        """Go back to the initial values."""
        for name, values in self.problem.initial.items():
            self._held[name] = self.device.put(values)
        self.turn = 0
        self.device.synchronize()

    def launch(self) -> None:
        """Launch one superstep, and swap the arrays."""
        self.device.clear(self._held["committed"])
        self._launch()
        if self.problem.name != "ALS":
            for name in self.problem.initial:
                held, next_ = self._held[name], self._held[f"{name}_next"]
                self._held[name], self._held[f"{name}_next"] = next_, held
        self.turn += 1

    def _launch(self) -> None:
        raise NotImplementedError

    def committed(self) -> int:
        """Return how many vertices the last superstep committed; waits for it."""
        return int(self.device.get(self._held["committed"])[0])

    def iterate(self, max_supersteps: int) -> tuple[int, bool]:
        """Return supersteps run, and whether they converged."""
        idle = 0
        sides = max(len(self.problem.sides), 1)
        for number in range(1, max_supersteps + 1):
            self.launch()
            idle = idle + 1 if self.committed() == 0 else 0
            if idle == sides:
                return number, True
        return max_supersteps, False

    def values(self) -> dict[str, Any]:
        """Return the iterated properties, in kernel order."""
        names = self.problem.initial
        return {name: np.array(self.device.get(self._held[name])) for name in names}

    def answer(self) -> Any:
        """Return the result as the variants are compared on it."""
        values = np.array(self.device.get(self._held[self.problem.result]))
        return self.problem.comparable(values)


class Sweep(_ByHand):
    """NFA/NCD: one thread a vertex, all vertices, k = 4 (``kernels/sweep.cu``)."""

    def __init__(self, problem: LearningProblem, device: Any) -> None:
        if problem.k != 4:
            raise ValueError("the sweeps are written for k = 4")
        super().__init__(problem, device)
        for number, side in enumerate(problem.sides):
            self._held[f"side {number}"] = device.put(side)

    def movers(self, values: dict[str, Any], epsilon: float) -> int:
        """Return how many vertices a superstep from `values` moves by over `epsilon`.

        The iterated properties, in kernel order.
        """
        for name, array in values.items():
            self._held[name] = self.device.put(array)
        given, self.problem.epsilon = self.problem.epsilon, epsilon
        try:
            found = 0
            for turn in range(max(len(self.problem.sides), 1)):
                self.turn = turn
                self.device.clear(self._held["committed"])
                self._launch()
                found += self.committed()
        finally:
            self.problem.epsilon = given
        return found

    def _launch(self) -> None:
        name, epsilon, count = self.problem.name, self.problem.epsilon, self.n
        graph = self._pointers("offsets sources")
        (committed,) = self._pointers("committed")
        given: list[Any]
        if name in MIXED:
            names, share = MIXED[name]
            given = [*self._pointers(names), count, share, epsilon]
        elif name == "ALS":
            side = self._held[f"side {self.turn % 2}"]
            count = int(side.size)
            graph = [self.device.pointer(side), count, *graph]
            given = [*self._pointers("rating factor"), RIDGE, epsilon]
        else:
            given = self._pointers("twin psi")
            given.append(0 if name == "BP" else 4)
            given += self._pointers("phi msg msg_next belief belief_next")
            given += [count, epsilon]
        entry = "bp" if name.startswith("BP") else name.lower()
        self.device.launch(
            "sweep", f"{entry}_sweep", -(-count // BLOCK), BLOCK,
            [*graph, *given, committed],
        )  # fmt: skip


class Folded(_ByHand):
    """FA, fused, hubs apart: ``kernels/folded_lp.cu`` and ``kernels/folded_bp.cu``."""

    def __init__(self, problem: LearningProblem, device: Any) -> None:
        super().__init__(problem, device)
        degree = problem.graph.in_degree
        hubs = np.flatnonzero(degree >= HUB_DEGREE)
        hubs = hubs[np.argsort(-degree[hubs], kind="stable")].astype(np.int32)
        self.hub_count = int(hubs.size)
        self._held["hubs"] = device.put(hubs if hubs.size else np.zeros(1, np.int32))
        self.lanes = self._choose_lanes(problem.name, float(degree.mean()))

    def _choose_lanes(self, name: str, mean_degree: float) -> int:
        """Return the lanes of a vertex: about one for each 16 bytes that it reads."""
        k = self.problem.k
        if name == "BP":
            if k not in {4, 8, 32}:
                raise ValueError("written for k = 4, 8, 32")
            wanted, least = (mean_degree, 4) if k <= 8 else (32, 32)
        else:
            wanted, least = mean_degree * k / 4, max(k // 4, 4)
        lanes = least
        while lanes < min(wanted, 32):
            lanes *= 2
        return lanes

    def _launch(self) -> None:
        name, epsilon = self.problem.name, self.problem.epsilon
        given: list[Any] = self._pointers("offsets sources")
        if name == "LP":
            names, share = MIXED[name]
            given += [*self._pointers(names), self.n, share, epsilon]
        elif name == "BP":
            given += self._pointers("twin psi phi msg msg_next belief belief_next")
            given += [self.n, epsilon]
        else:
            raise ValueError(f"no folded kernel was written for {name}")
        given += [*self._pointers("committed hubs"), self.hub_count, HUB_DEGREE]
        vertices = BLOCK // self.lanes
        entry = name.lower()
        self.device.launch(
            f"folded_{entry}", f"{entry}_folded",
            self.hub_count + -(-self.n // vertices), BLOCK, given,
            K=self.problem.k, G=self.lanes,
        )  # fmt: skip


class EdgeLocked:
    """A sweep of SGD over shuffled edges, with locks for both ends (``sgd.cu``).

    Parameters
    ----------
    state : State
        Of a matrix without loops: x of 16 features, rating, rate and ridge.
    device : Device or Host
    """

    def __init__(self, state: Any, device: Any) -> None:
        graph, self._device = state.graph, device
        order = np.random.default_rng(0).permutation(graph.edge_count)
        values = (graph.sources[order], graph.targets[order], state["rating"][order])
        locks = np.zeros(graph.vertex_count, np.int32)
        self._held = [device.put(a) for a in (*values, state["x"], locks)]
        scalars = (np.float32(state[name]) for name in ("rate", "ridge"))
        self._given = [device.pointer(held) for held in self._held]
        self._given += [graph.edge_count, *scalars]

    def launch(self, blocks: int) -> None:
        """Launch one sweep by so many blocks."""
        self._device.launch("sgd", "sgd_edge_locked", blocks, 128, self._given)

    def answer(self) -> Any:
        """Return x."""
        return self._device.get(self._held[3])
