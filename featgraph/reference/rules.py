"""One superstep, by the rules of docs/model.md. Begin with `_Superstep.run`.

S1  ``d.x`` is x when the superstep began; ``d.x_next`` equals it until written.
S2  Functions run in order. After False, no function runs on that vertex or edge.
S3  At the end, ``_next`` entries stand where the last function returned True.
S4  Which vertices are due and which edges are run on: `_Superstep.due`, `.edges`.
S5  A gather combines over all edges of a due vertex along its direction, or over those
    from active vertices only.
S6  A foldmap with a foreign read is due everywhere while anything is active.
S11 An exclusive function runs edge by edge, in a given order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import UserFunctionError
from featgraph.graph import Graph
from featgraph.program.active import ActiveSet
from featgraph.program.combines import NO_SOURCE, identity_value
from featgraph.program.functions import (
    EdgeFunction,
    GatherFunction,
    ReduceFunction,
    TriangleFunction,
    UserFunction,
    VertexFunction,
)
from featgraph.program.operations import Nothing
from featgraph.program.program import Program
from featgraph.program.signature import PropertyKind, Signature
from featgraph.reference.facts import Facts
from featgraph.reference.memory import Memory, Topology, mask_of
from featgraph.reference.numbers import Integer, as_number, freeze, round_to
from featgraph.reference.sweep import Sweep, run_triangle

__all__ = ["Accumulator", "Outcome", "superstep"]


class Accumulator:
    """The entries of one vertex while its contributions are combined.

    Sums and products are computed in float64 or int64. Values for min, max, argmin and
    argmax are rounded to the storage dtype first, so that ties are those of a kernel.

    Attributes
    ----------
    result : ndarray
        The combined value, one entry per feature (or pair of features).
    sources : ndarray
        For argmin and argmax, the source of the best key.
    magnitude : ndarray
        Sum of the absolute contributions.
    """

    def __init__(
        self, program: Program, function: GatherFunction | ReduceFunction, facts: Facts
    ) -> None:
        self.combine = function.combine
        self.rules = function.combine.rules
        self.dtype = np.dtype(facts.names[function.into].dtype)
        self.wide = np.dtype(np.float64) if self.dtype.kind == "f" else self.dtype
        self.identity = identity_value(self.combine, self.dtype)
        self.custom: Any = None
        if self.combine.function is not None:
            self.custom = freeze(program, self.combine.function)
        self.result: npt.NDArray[Any] = np.zeros(0)
        self.sources: npt.NDArray[Any] = np.zeros(0)
        self.magnitude: npt.NDArray[np.float64] = np.zeros(0)

    def begin(self, shape: tuple[int, ...]) -> None:
        """Start with the identity in every entry."""
        self.result = np.full(shape, self.identity, self.wide)
        self.sources = np.full(shape, NO_SOURCE, np.int32)
        self.magnitude = np.zeros(shape)

    def add(self, place: tuple[int | None, int], value: Any, source: int) -> None:
        """Combine `value`, the contribution at ``place = (i, f)`` from `source`."""
        if isinstance(value, Nothing):
            return
        if self.rules.order and value != value:
            return  # NaN is neither less nor greater (S5)
        i, f = place
        entry = () if self.result.ndim == 0 else (f,) if i is None else (i, f)
        value = self._typed(value)
        if not self.rules.is_arg and self.rules.gives != "bool":
            self.magnitude[entry] += abs(float(value))
        if self.rules.is_arg:
            if self._is_better(value, source, entry):
                self.result[entry], self.sources[entry] = value, source
        else:
            self.result[entry] = self._typed(self._combined(self.result[entry], value))

    def _typed(self, value: Any) -> Any:
        """Return `value` in the type of the result; rounded if it is compared."""
        if self.rules.gives == "bool":
            return bool(value)
        if self.dtype.kind == "f":
            compared = self.rules.order
            return as_number(
                round_to(self.dtype.name, value) if compared else float(value)
            )
        return as_number(round_to(self.dtype.name, value))

    def _is_better(self, key: Any, source: int, entry: tuple[int, ...]) -> bool:
        best, best_source = self.result[entry], self.sources[entry]
        if best_source == NO_SOURCE:
            return True
        if key == best:
            return bool(source < best_source)
        return bool(key < best if self.rules.order == "min" else key > best)

    def _combined(self, a: Any, b: Any) -> Any:
        pair: Any = self.custom or self.combine.pair
        return pair(as_number(a), b)


Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Outcome:
    """The results of a superstep.

    Attributes
    ----------
    values : dict
        Every property, scalar and reduce result, in their given form.
    signature : dict
        Their types; reduce results are new.
    active_out : ActiveSet
        Committed vertices; targets of edges that returned True if the foldmap ends in
        edge functions.
    left_due : ActiveSet
        Due vertices that `on` excluded; they stay due.
    temporaries : dict
        The result of each gather, ``(V, ...)``; zeros where it did not run.
    proposed : dict
        The ``_next`` of each iterated property before entries were dropped.
    magnitude : dict
        For each gather and reduce, the sum of the absolute contributions, which with
        `degree` gives the tolerance of S9. In the shape of the results; zeros for any
        and arg.
    degree : ndarray of shape (V,)
        In-degrees, or the number of edges of a gather if that is larger.
    """

    values: dict[str, Any]
    signature: Signature
    active_out: ActiveSet
    left_due: ActiveSet
    temporaries: dict[str, npt.NDArray[Any]]
    proposed: dict[str, npt.NDArray[Any]]
    magnitude: dict[str, npt.NDArray[np.float64]]
    degree: npt.NDArray[np.int32]


def superstep(
    program: Program,
    graph: Graph,
    values: dict[str, Any],
    signature: Signature,
    *,
    active: Any = None,
    on: Any = None,
    also_due: Any = (),
    superstep: int = 0,
    asynchronous: bool = False,
    order: Sequence[int] | None = None,
    record_order: str | None = None,
) -> Outcome:
    """Run one superstep of `program`.

    Parameters
    ----------
    program : Program
        The functions, in order.
    graph : Graph
        The graph on which they run.
    values : dict
        Property -> array: vertex properties ``(V, ...)``; edge properties in the order
        in which the edges were given, ``(E, ...)``, or ``(2 E, ...)`` for undirected
        graphs unless they are shared; vectors ``(K,)``; scalars. Not changed. See
        `from_state`.
    signature : dict
        Property -> `PropertyType`.
    active : ActiveSet or array_like, optional
        The active set; None for all vertices.
    on : ActiveSet or array_like, optional
        The restriction of ``foldmap.on(vertices)``.
    also_due : ActiveSet or array_like, optional
        Vertices that an earlier superstep left due.
    superstep : int, optional
        ``d.superstep``.
    asynchronous : bool, optional
        Run vertex by vertex, each commit at once: one of the orders that S8 allows.
        For programs of gathers and vertex functions.
    order : sequence of int, optional
        Rows of edges, in the order in which an exclusive function runs on those of its
        domain; each of these occurs once. By default, the order of rows.
    record_order : str, optional
        The edge property of shape (2,) that gets the turns of each edge (S11).

    Raises
    ------
    ValueError
        If an edge of the domain does not occur exactly once in `order`.
    UserFunctionError
        If a function breaks a rule: writes entries that are not its own, reads at
        other vertices what it writes in place, or makes a collaborative call under a
        condition that varies.
    StateError
        If it names a property that does not exist.

    Examples
    --------
    >>> import numpy as np
    >>> from featgraph.graph import Graph
    >>> from featgraph.program.program import Program
    >>> from featgraph.program.signature import PropertyKind, PropertyType
    >>> import featgraph.program.functions as fg
    >>> @fg.gather(into="total")
    ... def neighbors(f, u, v, e, d):
    ...     return d.x[u]
    >>> graph = Graph.from_edges([0, 1], [1, 2])
    >>> x = PropertyType(PropertyKind.VERTEX, "float32")
    >>> values = {"x": np.array([1, 2, 3], np.float32)}
    >>> outcome = superstep(Program.declare([neighbors]), graph, values, {"x": x})
    >>> outcome.temporaries["total"].tolist()
    [0.0, 1.0, 2.0]
    """
    topology = Topology.of(graph)
    facts = Facts(program, signature)
    memory = Memory(facts, topology, values, signature, superstep)
    masks = [
        mask_of(given, topology.vertex_count, empty) & topology.living
        for given, empty in ((active, True), (on, True), (also_due, False))
    ]
    with np.errstate(all="ignore"):  # inf and nan are allowed, as in a kernel
        kind = _OneByOne if asynchronous else _Superstep
        running = kind(program, facts, topology, memory, *masks)
        if record_order is not None:
            memory.buffers[record_order][:] = -1
        running.order, running.recorded = order, record_order
        return running.run()


class _Superstep:
    """The running superstep: vertices and edges that ran, passed, stopped."""

    def __init__(
        self,
        program: Program,
        facts: Facts,
        topology: Topology,
        memory: Memory,
        active: Mask,
        on: Mask,
        also_due: Mask,
    ) -> None:
        self.program = program
        self.facts = facts
        self.topology = topology
        self.memory = memory
        if facts.is_foreign and active.any():  # S6
            active = topology.living.copy()
        self.active = active
        self.on = on
        self.also_due = also_due
        # The last function that ran on the vertex (edge) returned True, or False.
        self.passed = np.zeros(topology.vertex_count, np.bool_)
        self.stopped = np.zeros(topology.vertex_count, np.bool_)
        self.edges_passed: set[int] = set()
        self.edges_stopped: set[int] = set()
        #: For an exclusive function: its order of rows, and the property of turns.
        self.order: Sequence[int] | None = None
        self.recorded: str | None = None
        self.left_due = np.zeros(topology.vertex_count, np.bool_)
        self.magnitude: dict[str, npt.NDArray[np.float64]] = {}
        self.degree: npt.NDArray[np.int32] = memory.buffers["in_degree"].copy()
        #: Iterated property -> row -> its ``_next`` before it was dropped.
        self.dropped: dict[str, dict[int, Any]] = {}
        self.signature: Signature = {
            name: type_
            for name, type_ in facts.names.items()
            if name not in facts.temporaries
        }

    def run(self) -> Outcome:
        """Run the functions in order (S2), then commit (S3)."""
        for number, function in enumerate(self.program.functions):
            width = self.facts.widths[number]
            plain = freeze(self.program, function.function)
            if isinstance(function, VertexFunction):
                self.run_vertex(function, width, plain)
            elif isinstance(function, EdgeFunction):
                self.run_edge(number, function, width, plain)
            elif isinstance(function, TriangleFunction):
                run_triangle(self, number, function, plain)
            elif isinstance(function, GatherFunction):
                self.run_gather(function, width, plain)
            elif isinstance(function, ReduceFunction):
                self.run_reduce(function, width, plain)
        return self.commit()

    # -- the domain of functions (S4)

    def due(self) -> list[int]:
        """Return the due vertices, after the functions so far."""
        due = self.active | self.also_due
        for along in self.gathers_first():
            due |= self.topology.gatherers(self.active, along)
        due |= self.targets()
        due &= ~self.stopped
        self.left_due |= due & ~self.on
        return np.flatnonzero(due & self.on).tolist()

    def gathers_first(self) -> set[str]:
        """Return the `along` of all gathers with no edge function before them."""
        alongs = set()
        for function in self.program.functions:
            if isinstance(function, EdgeFunction):
                break
            if isinstance(function, GatherFunction):
                alongs.add(function.along)
        return alongs

    def targets(self) -> Mask:
        """Return the targets of edges whose last function returned True.

        After an exclusive function, these are both ends.
        """
        targets = np.zeros(self.topology.vertex_count, np.bool_)
        both = any(f.kind.exclusive for f in self.program.functions)
        for row in self.edges_passed:
            targets[self.topology.target[row]] = True
            if both:
                targets[self.topology.source[row]] = True
        return targets

    def edges(self, number: int) -> list[int]:
        """Return the edges that edge function `number` runs on."""
        before = self.program.functions[:number]
        behind_vertex = any(isinstance(f, VertexFunction) for f in before)
        sources = self.passed if behind_vertex else self.active
        return [
            row
            for row in self.topology.rows
            if sources[self.topology.source[row]] and row not in self.edges_stopped
        ]

    # -- running one function

    def run_vertex(
        self, function: UserFunction, width: int, plain: Callable[..., Any]
    ) -> None:
        """Run on the due vertices; a vertex passes if any feature returns True."""
        sweep = Sweep(self.memory, function, width, PropertyKind.VERTEX)
        for v in self.due():
            results = sweep.run(v, v, lambda f, v=v: plain(f, Integer(v), sweep.data))
            self.passed[v] = any(results)
            self.stopped[v] = not any(results)
        sweep.check_elsewhere()
        for v in np.flatnonzero(self.stopped).tolist():
            self.drop(PropertyKind.VERTEX, v)

    def run_edge(
        self, number: int, function: UserFunction, width: int, plain: Callable[..., Any]
    ) -> None:
        """Run on out-edges of the sources; an edge passes if any feature is True."""
        sweep = Sweep(self.memory, function, width, PropertyKind.EDGE)
        is_exclusive, rows = function.kind.exclusive, self.edges(number)
        for row in self.in_order(number, rows) if is_exclusive else rows:
            ends = self.ends(row)
            at = (int(ends[0]), int(ends[1])) if is_exclusive else ()
            results = sweep.run(
                row, -1, lambda f, ends=ends: plain(f, *ends, sweep.data), at
            )
            (self.edges_passed if any(results) else self.edges_stopped).add(row)
            (self.edges_stopped if any(results) else self.edges_passed).discard(row)
        sweep.check_elsewhere()
        for row in self.edges_stopped:
            self.drop(PropertyKind.EDGE, row)

    def in_order(self, number: int, rows: list[int]) -> list[int]:
        """Return the rows of a domain in order (S11), and record their turns."""
        if self.order is not None:
            ordered = [row for row in self.order if row in set(rows)]
            if sorted(ordered) != sorted(rows):
                raise ValueError(f"order has {ordered} of the edges {sorted(rows)}")
            rows = ordered
        if self.recorded is not None:
            conflicts = self.facts.conflict_ends(number, self.topology.has_sides)
            turns, entries = Counter[int](), self.memory.buffers[self.recorded]
            for row in rows:
                ends = {"u": self.topology.source[row], "v": self.topology.target[row]}
                for place, end in enumerate("uv"):
                    if end in conflicts:
                        entries[row, place] = turns[ends[end]]
                turns.update({ends[end] for end in conflicts})
        return rows

    def drop(self, kind: PropertyKind, row: int) -> None:
        """Restore the ``_next`` entries of a row whose function returned False (S3)."""
        buffers = self.memory.buffers
        for name, type_ in self.signature.items():
            if type_.iterated and type_.kind is kind:
                next_ = buffers[f"{name}_next"]
                self.dropped.setdefault(name, {}).setdefault(row, next_[row].copy())
                next_[row] = buffers[name][row]

    def run_gather(
        self, function: GatherFunction, width: int, plain: Callable[..., Any]
    ) -> None:
        """Combine over the edges of each due vertex (S5), which passes."""
        sweep = Sweep(self.memory, function, width, None)
        into, source = function.into, f"{function.into}_source"
        accumulator = Accumulator(self.program, function, self.facts)
        k = self.memory.buffers[into].shape[1:]
        size = self.memory.buffers[into].shape
        magnitude = self.magnitude[into] = np.zeros(size)
        for v in self.due():
            accumulator.begin(k)
            edges = self.topology.gathered(v, function.along)
            if function.sources == "active":
                edges = [(row, u) for row, u in edges if self.active[u]]
            self.degree[v] = max(self.degree[v], len(edges))
            for row, u in edges:
                ends = Integer(u), Integer(v), Integer(row)
                for i in range(width) if function.matrix else [None]:
                    first = [] if i is None else [Integer(i)]
                    results = sweep.run(
                        v,
                        v,
                        lambda f, a=(*first, *ends): _with_f(plain, f, a, sweep.data),
                    )
                    for f, value in enumerate(results):
                        accumulator.add((i, f), value, u)
            self.memory.buffers[into][v] = accumulator.result
            self.memory.filled[into][v] = True
            magnitude[v] = accumulator.magnitude
            if function.combine.is_arg:
                self.memory.buffers[source][v] = accumulator.sources
                self.memory.filled[source][v] = True
            self.passed[v] = True

    def run_reduce(
        self, function: ReduceFunction, width: int, plain: Callable[..., Any]
    ) -> None:
        """Combine over all vertices (of `on`), and store the result immediately."""
        sweep = Sweep(self.memory, function, width, None)
        accumulator = Accumulator(self.program, function, self.facts)
        type_ = self.facts.names[function.into]
        accumulator.begin(type_.item_shape)
        for v in np.flatnonzero(self.on).tolist():
            for i in range(width) if function.matrix else [None]:
                first = [] if i is None else [Integer(i)]
                results = sweep.run(
                    v,
                    v,
                    lambda f, a=(*first,), v=v: plain(*a, f, Integer(v), sweep.data),
                )
                for f, value in enumerate(results):
                    accumulator.add((i, f), value, v)
        stored = np.array(accumulator.result).astype(type_.dtype)
        self.memory.put(function.into, type_, stored)
        self.magnitude[function.into] = accumulator.magnitude

    def ends(self, row: int) -> tuple[Any, Any, Any]:
        """Return u, v, e of an edge."""
        source, target = self.topology.source[row], self.topology.target[row]
        return Integer(source), Integer(target), Integer(row)

    # -- the end (S3)

    def commit(self) -> Outcome:
        """Commit the ``_next`` entries of rows that passed; drop the others."""
        buffers, proposed = self.memory.buffers, {}
        rows = {
            PropertyKind.VERTEX: np.flatnonzero(self.passed).tolist(),
            PropertyKind.EDGE: sorted(self.edges_passed),
        }
        for name, type_ in self.signature.items():
            if type_.iterated:
                proposed[name] = buffers[f"{name}_next"].copy()
                for row in rows[type_.kind]:
                    buffers[name][row] = proposed[name][row]
                for row, value in self.dropped.get(name, {}).items():
                    proposed[name][row] = value
            if type_.kind is PropertyKind.EDGE:
                self.memory.put(name, type_, buffers[name])  # copies rows of self-loops
        silent = ReduceFunction | TriangleFunction
        own = [f for f in self.program.functions if not isinstance(f, silent)]
        ends_in_edges = bool(own) and isinstance(own[-1], EdgeFunction)
        active_out = self.targets() if ends_in_edges else self.passed.copy()
        if self.facts.tells_targets:  # S3: edges whose twin passed are due
            active_out |= self.targets()
        count = self.topology.vertex_count
        return Outcome(
            values={name: self.memory.given(name) for name in self.signature},
            signature=self.signature,
            active_out=ActiveSet(count, active_out),
            left_due=ActiveSet(count, self.left_due & ~self.on),
            temporaries={name: buffers[name] for name in self.memory.filled},
            proposed=proposed,
            magnitude=self.magnitude,
            degree=self.degree,
        )


class _OneByOne(_Superstep):
    """A superstep that runs all functions on a vertex, commits, takes the next (S8)."""

    def run(self) -> Outcome:
        """Run the due vertices in order."""
        waiting = super().due()
        self.active = self.active.copy()
        functions = [
            (function, width, freeze(self.program, function.function))
            for function, width in zip(
                self.program.functions, self.facts.widths, strict=True
            )
        ]
        self.running: list[int] = []
        for function, width, plain in functions:
            if isinstance(function, ReduceFunction):
                self.run_reduce(function, width, plain)
        for v in waiting:
            self.running = [v]
            for function, width, plain in functions:
                if isinstance(function, GatherFunction):
                    self.run_gather(function, width, plain)
                elif isinstance(function, VertexFunction):
                    self.run_vertex(function, width, plain)
                elif not isinstance(function, ReduceFunction):
                    raise UserFunctionError("edge functions do not run one by one")
            self._keep(v)
        return self.commit()

    def due(self) -> list[int]:
        """Return the running vertex, until it has stopped."""
        return [v for v in self.running if not self.stopped[v]]

    def _keep(self, v: int) -> None:
        """Commit the entries of a vertex that passed, so that later ones read them."""
        if self.passed[v]:
            self.active[v] = True
            buffers = self.memory.buffers
            for name, type_ in self.signature.items():
                if type_.iterated and type_.kind is PropertyKind.VERTEX:
                    buffers[name][v] = buffers[f"{name}_next"][v]


def _with_f(plain: Callable[..., Any], f: Any, arguments: Any, d: Any) -> Any:
    """Call a gather, whose parameters are (f, u, v, e, d) or (i, f, u, v, e, d)."""
    *first, u, v, e = arguments
    return plain(*first, f, u, v, e, d)
