"""Near and far: vertices with a key beyond a moving threshold wait (S4, S8).

With a distance as the key this is delta-stepping. An announced vertex is near if its
key is within the threshold, and is processed only then; far vertices stay due. When no
vertex is near, the threshold moves. The fixpoint is the same, with fewer edges: a value
that is improved several times while its vertex is far is passed on once.

`NearFar` is the option of `iterate`. `Waiting` splits active sets; compiled loops split
them themselves, by the `Keys` that it returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featgraph.base.errors import PlanError
from featgraph.cuda.values import Filled, Reordered
from featgraph.fold.plan.plan import FoldPlan, GatherReads
from featgraph.program.combines import RULES
from featgraph.program.signature import PropertyKind
from featgraph.program.state import State
from featgraph.runtime.devices.protocol import Reach, limit_behind
from featgraph.runtime.memory.buffers import buffers_of
from featgraph.runtime.superstep.exchange import Exchange

__all__ = ["NEAR_FAR", "NearFar", "Waiting", "checked_near_far"]

Words = Any
#: Name of the option in messages.
NEAR_FAR = "near_far="
#: Combines that compare keys, smallest or largest first.
_ORDERED = [name for name, rules in RULES.items() if rules.order]
#: Default delta in mean weights over the mean degree: a bucket then has about as many
#: out-edges as a warp has lanes (Davidson et al., "Work-efficient parallel GPU methods
#: for single-source shortest paths", 2014).
_EDGES = 32
#: The same for a compiled loop, by target; on a CPU its supersteps cost almost nothing.
#: Of 1 to 256 on kron-15 and on a grid of 708 x 708, mean weight 32, delta = 1 and 16
#: were fastest (2026-11-21, two cores of an AMD EPYC). On a GPU a superstep costs 8 us:
#: of 2, 8, 32 and 128 edges, 32 were fastest on grid4096, 157 ms (NVIDIA H200,
#: 2026-11-23; 219 with 8, 412 with 2, 734 with 128).
_EDGES_IN_A_LOOP = {"cpu": 2, "cuda": 32}
#: Most weights in the sample for the mean.
_MOST_SAMPLED = 1 << 13


@dataclass(frozen=True)
class NearFar:
    """The order in which `iterate` processes vertices, by a key.

    Parameters
    ----------
    key : str
        An iterated vertex property that a gather combines with min, argmin, max or
        argmax. Announced vertices are near if the key of one of their features is
        within the threshold, and wait otherwise. With min and argmin small keys are
        near, with max and argmax large ones.
    delta : float, optional
        Distance of the new threshold from the first waiting key, when no key is near.
        Small values evaluate fewer edges in more supersteps. By default, 32 times the
        mean absolute value that the gather reads of an edge, over the mean degree; at
        least that mean value. If the gather reads no value of an edge, the mean value
        is 1. On the CPU, if supersteps run in a compiled loop and write the key, it is
        twice that mean value over the mean degree.
    optional : bool, optional
        Let `iterate` decide whether vertices wait. They do if supersteps run in a
        compiled loop and write the key; on a GPU, for graphs of small degree, from the
        second run on, for which the loop is compiled.

    Raises
    ------
    PlanError
        If delta is not a positive, finite number.

    Examples
    --------
    >>> import featgraph as fg
    >>> fg.NearFar("distance", delta=0.5)
    NearFar(key='distance', delta=0.5, optional=False)
    """

    key: str
    delta: float | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.key, str):
            raise PlanError(
                "the key of near and far vertices is a vertex property",
                where="NearFar(key=)",
                got=repr(self.key),
                expected="its name",
            )
        delta = self.delta
        if delta is None:
            return
        is_number = isinstance(delta, int | float | np.integer | np.floating)
        if isinstance(delta, bool) or not is_number or not 0 < delta < math.inf:
            raise PlanError(
                "delta is a distance between keys",
                where="NearFar(delta=)",
                got=repr(delta),
                expected="a positive, finite number, or None",
            )


class Keys(NamedTuple):
    """Arguments of a compiled loop that splits near and far vertices.

    Attributes
    ----------
    number : int
        Index of the key's property in `PlanFacts.queue_keys`; -1 if no vertices wait.
    sign, delta, limit : float
        Vertices with ``sign * key <= limit`` are near. The limit moves to `delta`
        behind the first key.
    """

    number: int = -1
    sign: float = 1.0
    delta: float = 0.0
    limit: float = 0.0


class Waiting:
    """Splits the active sets of a run by a moving threshold.

    Parameters
    ----------
    given : NearFar
        The option of the run.
    plans : iterable of FoldPlan
        The foldmaps of the run.
    state : State
    exchange : Exchange
        Exchanges with other ranks: all have one threshold.
    in_a_loop : bool
        Whether supersteps run in a compiled loop that handles the key.

    Raises
    ------
    PlanError
        If the property cannot be a key, or a foldmap has no gather that combines keys.
    """

    def __init__(
        self,
        given: NearFar,
        plans: Iterable[FoldPlan],
        state: State,
        exchange: Exchange,
        in_a_loop: bool = False,
    ) -> None:
        self.key = given.key
        self.state = state
        self.exchange, self.device = exchange, exchange.device
        _check_key(given.key, state)
        readers = [f for plan in plans for f in _readers(given.key, plan)]
        first = {gather.combine.rules.order == "min" for gather in readers}
        if len(first) > 1:
            raise PlanError(
                f"some gathers take the smallest {given.key}, others the largest",
                where=NEAR_FAR,
                fix="iterate them one after the other",
            )
        #: Keys are processed in ascending order of ``sign * key``.
        self.sign = 1.0 if first == {True} else -1.0
        delta = given.delta
        if delta is None:
            loop = self.device.name if in_a_loop else ""
            delta = _mean_step(readers, state, exchange, loop)
        self.delta = float(delta)
        #: Keys with ``sign * key <= limit`` are near; -inf before the first superstep.
        self.limit = -math.inf

    def keys(self, plan: FoldPlan) -> Keys:
        """Return the arguments of a compiled loop of a plan."""
        number = plan.facts.queue_keys.index(self.key)
        return Keys(number, self.sign, self.delta, self.limit)

    def follow(self, limits: Sequence[float]) -> list[float]:
        """Continue after a compiled loop; return the threshold of each superstep.

        `limits` has the limits of the supersteps of the loop, and of the next one.
        """
        *past, self.limit = limits
        return [self.sign * limit for limit in past]

    @property
    def threshold(self) -> float:
        """The largest near key (the smallest, if large keys come first)."""
        return self.sign * self.limit

    def forget(self) -> None:
        """Reset the threshold: the next split begins at the first key."""
        self.limit = -math.inf

    def split(
        self, words: Words, reach_of: Callable[[Words], Reach | None]
    ) -> tuple[Words, int, int | None]:
        """Return the near vertices of a set, their number, and the number of far ones.

        If no vertex is near, the threshold moves so that one is, unless the set is
        empty. On several ranks far vertices are not counted, and their number is None.

        Parameters
        ----------
        reach_of : callable
            Takes the near vertices and returns their reach, so that their edges are
            counted in the same wait: see `VertexSets`.
        """
        keys, width = self._keys()
        if self.state.graph.ranks is None:
            order, limits = (width, self.sign), (self.limit, self.delta)
            near, count, self.limit, number = self.device.keys.nearest(
                words, keys, order, *limits, reach_of
            )
            return near, count, number - count
        near = self._near(words)
        count = self.exchange.count(near)
        if count == 0 and self.exchange.count(words) > 0:
            own = self.exchange.among_own(words)
            first = self.device.keys.first(own, keys, width, self.sign)
            [least] = self.exchange.all_reduce(np.array([first]), "min").tolist()
            self.limit = limit_behind(least, self.delta)
            near = self._near(words)
            count = self.exchange.count(near)
        return near, count, None

    def _near(self, words: Words) -> Words:
        """Return the near vertices of a set on several ranks, with ghosts."""
        own = self.exchange.among_own(words)
        near = self.device.keys.near(own, *self._keys(), self.sign, self.limit)
        return self.exchange.with_ghosts(near)

    def _keys(self) -> tuple[Any, int]:
        """Return the array of keys, and the number of keys per vertex."""
        keys = buffers_of(self.state, self.device).property(self.key)
        return keys, math.prod(self.state.signature[self.key].item_shape)


def checked_near_far(given: Any) -> NearFar | None:
    """Return the option `near_far`.

    Raises
    ------
    PlanError
        If it has a wrong type.
    """
    if given is None or isinstance(given, NearFar):
        return given
    raise PlanError(
        "not a rule for near and far vertices",
        where=NEAR_FAR,
        got=repr(given),
        expected='fg.NearFar("name", delta=None)',
    )


def _check_key(name: str, state: State) -> None:
    """Raise PlanError if a property cannot be a key."""
    type_ = state.signature.get(name)
    is_vertex = type_ is not None and type_.kind is PropertyKind.VERTEX
    if type_ is None or not is_vertex or not type_.iterated or type_.dtype == "bool":
        raise PlanError(
            f"{name!r} is no key of near and far vertices",
            where=NEAR_FAR,
            got="no property of the State" if type_ is None else type_.describe(),
            expected="an iterated vertex property of numbers",
        )


def _readers(name: str, plan: FoldPlan) -> list[GatherReads]:
    """Return the gathers of a foldmap that combine keys by min or max.

    Raises
    ------
    PlanError
        If there is none.
    """
    gathers = [g for g in plan.facts.gathers if name in g.of_neighbors]
    found = [g for g in gathers if g.combine.rules.order]
    if not found:
        names = " + ".join(plan.facts.names)
        raise PlanError(
            f"{names} has no gather that takes the smallest or largest value computed "
            f"from {name}",
            where=NEAR_FAR,
            got=", ".join(f"{g.name} ({g.combine.name})" for g in gathers)
            or f"no gather that reads {name} at its sources",
            expected=f"a gather with {', '.join(_ORDERED)}",
        )
    return found


def _sampled(state: State, name: str) -> npt.NDArray[np.float64]:
    """Return some values of an edge property, in any order, without an array of size E.

    Values that only a device has are read from there.
    """
    values = state._columns[name].values
    if isinstance(values, Filled) and values.apart is None:
        return np.array([values.value], np.float64)
    if isinstance(values, Reordered):
        return values.sample(_MOST_SAMPLED).astype(np.float64)
    stored = state.stored(name)
    return np.asarray(stored[:: len(stored) // _MOST_SAMPLED + 1], np.float64)


def _mean_step(
    readers: list[GatherReads], state: State, exchange: Exchange, loop: str
) -> float:
    """Return the default delta, from the weights that the gathers read.

    `loop` is the target of a compiled loop, "" without one.
    """
    types = state.signature
    names = {
        name
        for gather in readers
        for name in gather.anywhere
        if name in types
        and types[name].kind is PropertyKind.EDGE
        and types[name].dtype != "bool"
    }
    if len(names) > 1:
        raise PlanError(
            "the key depends on several edge properties, so that delta= has no default",
            where=NEAR_FAR,
            got=", ".join(sorted(names)),
            fix="give NearFar(delta=)",
        )
    mean = 1.0
    for name in names:
        weights = np.abs(_sampled(state, name))
        weights = weights[np.isfinite(weights)]
        own = np.array([weights.sum(), weights.size])
        total, size = exchange.all_reduce(own, "sum").tolist()
        if total:  # otherwise there is no edge, or all weights are 0
            mean = total / size
    degree = state.graph.edge_count / max(state.graph.vertex_count, 1)
    if loop:
        return mean * _EDGES_IN_A_LOOP[loop] / max(degree, 1.0)
    return mean * max(1.0, _EDGES / max(degree, 1.0))
