"""`FoldMap`: functions that are declared once, and folded when they first run.

`FoldMap.__call__` runs one superstep, `FoldMap.fold` and `explain` inspect the kernel.
`FoldMap.prepare` returns the cached `Superstep` for a State, which `fg.iterate` uses,
too; `FoldMap.kernel` finds or folds the kernel. `foldmap`, `vertexmap`, `edgemap` and
`trianglemap` declare foldmaps.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from featgraph.base.arguments import shown
from featgraph.base.config import config
from featgraph.base.dataclass import replace
from featgraph.base.errors import PlanError, StateError, UserFunctionError
from featgraph.fold.compiling.kernel import Kernel
from featgraph.fold.folder import fold, fold_assumed
from featgraph.fold.plan.options import Changes, parse_change_driven, parse_options
from featgraph.fold.plan.traits import GraphTraits, graph_sizes, graph_traits
from featgraph.graph.views.view import Stamp
from featgraph.program.active import ActiveSet
from featgraph.program.functions import (
    EdgeFunction,
    TriangleFunction,
    UserFunction,
    VertexFunction,
    name_in,
    named,
)
from featgraph.program.given import compared_text
from featgraph.program.program import Program
from featgraph.program.signature import PropertyKind, Real
from featgraph.program.state import State, check_edges
from featgraph.runtime.devices.choose import choose_device
from featgraph.runtime.devices.protocol import Device
from featgraph.runtime.memory.buffers import arrays_for
from featgraph.runtime.memory.graph_arrays import explain_prepared
from featgraph.runtime.streaming.needs import explain_limit
from featgraph.runtime.superstep.catch_up import explain_due, note_call
from featgraph.runtime.superstep.exchange import exchange_of, losses_on
from featgraph.runtime.superstep.frontier import Frontier, Restriction
from featgraph.runtime.superstep.superstep import Superstep

__all__ = ["FoldMap", "edgemap", "foldmap", "trianglemap", "vertexmap"]


#: Functions to call when a foldmap is prepared, with (foldmap, State, options, changes,
#: superstep); `runtime.warming` adds one.
PREPARED: list[Callable[..., None]] = []


class _Supersteps(dict[Any, Superstep]):
    """The supersteps of a foldmap that are bound to one State, by device and options.

    Their references to the State are weak. When the State is deleted, they are handed
    to its graph for the next State: see `Superstep.let_go`.
    """

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        for superstep in () if is_over() else set(self.values()):
            superstep.let_go()


class FoldMap:
    """Functions over vertices and edges, folded into kernels when they first run.

    Made by `foldmap`, `vertexmap` and `edgemap`. Calling it runs one superstep.

    Attributes
    ----------
    program : Program
        The functions, with their captured constants frozen.
    vertices : object or None
        The argument of `on`.
    base : FoldMap
        The foldmap that `on` was called on; itself otherwise.
    """

    def __init__(
        self, program: Program, vertices: Any = None, base: FoldMap | None = None
    ) -> None:
        self.program = program
        self.vertices = vertices
        self.base = base or self
        #: Owner of sets -> (number of vertices, capacity) -> the restriction by `on`,
        #: and the mask of living vertices that it was made with.
        self._on: WeakKeyDictionary[Any, dict[Any, tuple[Restriction, Any]]] = (
            WeakKeyDictionary()
        )
        #: Version of a graph -> results of `is_independent` and `source_count`.
        self._independent: WeakKeyDictionary[Stamp, bool] = WeakKeyDictionary()
        self._sources: WeakKeyDictionary[Stamp, int] = WeakKeyDictionary()
        self._kernels: dict[Any, Kernel] = base._kernels if base is not None else {}
        #: State -> device and options -> superstep.
        self._supersteps: WeakKeyDictionary[State, _Supersteps] = (
            base._supersteps if base is not None else WeakKeyDictionary()
        )
        #: Shape of a graph -> types and options -> kernel. Shared with `base`, as `on`
        #: may be called for every superstep with other vertices.
        self._found: WeakKeyDictionary[Stamp, dict[Any, Kernel]] = (
            base._found if base is not None else WeakKeyDictionary()
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # By its name in a module, if there is one: the same object is found again.
        if self.vertices is not None:
            return FoldMap.on, (self.base, self.vertices)
        for function in self.program.functions:
            module = function.function.__module__
            name = name_in(module, self)
            if name is not None:
                return named, (FoldMap, module, name)
        return foldmap, self.program.functions

    def __deepcopy__(self, memo: dict[int, Any]) -> FoldMap:
        return self  # immutable

    def __repr__(self) -> str:
        names = " + ".join(f.name for f in self.program.functions)
        return (
            "<featgraph foldmap "
            f"{names}{'' if self.vertices is None else ' on some vertices'}>"
        )

    def on(self, vertices: Any) -> FoldMap:
        """Return this foldmap restricted to some vertices.

        Its vertex functions, gathers and reduces run on no others.

        Parameters
        ----------
        vertices : ActiveSet or array_like
            Integer ids of shape (N,), or a boolean mask of shape (V,); copied.
        """
        return FoldMap(self.program, copy.deepcopy(vertices), self.base)

    def __call__(
        self,
        state: State,
        *,
        active_in: Any = None,
        active_out: ActiveSet | None = None,
        target: str = "auto",
        **options: Any,
    ) -> ActiveSet:
        """Run one superstep.

        Parameters
        ----------
        state : State
            Changed in place.
        active_in : ActiveSet or array_like, optional
            The vertices to process; None for all.
        active_out : ActiveSet, optional
            Overwritten with the committed vertices; may be `active_in`.
        target : {"auto", "cpu", "cuda"}, optional
            The target to run on.
        **options
            ``direction``, ``feature_parallel``, ``folding``, ``schedule``,
            ``deterministic``, ``exchange``, ``overlap``; none changes the result.
            ``change_driven`` is for `iterate`: a call keeps no aggregates.
            ``wire_dtype`` rounds values that are sent to other ranks.

        Returns
        -------
        ActiveSet
            The committed vertices; for a foldmap that ends in edge functions, the
            targets of edges that returned True. On the GPU the call does not wait for
            them.

        Raises
        ------
        UserFunctionError, StateError, PlanError
            If functions, state and options do not fit together; the State is unchanged
            then.
        KernelFaultError
            In checked mode, if an index is out of range.
        """
        require_state(state).in_use.take("calling a foldmap")
        try:
            device = choose_device(target, state.graph)
            step = self.prepare(state, device, options)
            if active_out is not None:  # checked before the State changes
                if not isinstance(active_out, ActiveSet):
                    raise StateError(
                        "not an ActiveSet, which can be overwritten",
                        where="active_out=",
                        got=shown(active_out),
                        expected="an fg.ActiveSet",
                    )
                as_active(active_out, state, "active_out is")
            active = None
            if active_in is not None:
                active = words_on(as_active(active_in, state), state, device)
            only = None if self.vertices is None else self.restriction(state, device)
            with losses_on(state.graph):
                active_after = step.run(Frontier(active, only=only, options=options))
                if step.plan.options.wire_dtype is not None:
                    step.bound.exchange.check_rounded(active_after)
                words = device.sets.snapshot(active_after)
                step.bound.exchange.catch_up()
            count = state.graph.vertex_count
            made = ActiveSet.held(count, step.bound.exchange.holder, words)
            note_call(step.plan, state, made)
        finally:
            state.in_use.leave()
        if active_out is None:
            return made
        active_out.words = made.words
        return active_out

    def prepare(
        self,
        state: State,
        device: Device,
        options: dict[str, Any],
        incremental: Changes | None = None,
    ) -> Superstep:
        """Return the `Superstep` of this foldmap on a State, without running it.

        It is cached while the foldmap and the State live. With `incremental`, its
        kernel patches aggregates in a run that makes these changes.
        """
        known = self._supersteps.get(state)
        if known is None:
            known = self._supersteps[state] = _Supersteps()
            if state.graph.ranks is not None:
                state.bound[id(known)] = known
        options_text = repr(options) if options else ""
        found = known.get(key := (device, config.checked, options_text, incremental))
        graph = state.graph
        made_for = state.types_version, graph.part.stamps.shape, graph.stamps.version
        if found is None or found.made_for != made_for:
            check_edges(state)
            if graph.ranks is not None:
                exchange_of(graph, device)  # checks that ranks have one target
            kernel = self.kernel(state, device.name, options, incremental=incremental)
            for other in known.values():  # other options may share the kernel
                if other.kernel is kernel and other.device is device:
                    found = other
                    break
            else:
                found = _taken_up(kernel, state, device)
            known[key] = found = found or Superstep(kernel, state, device)
            found.renew(made_for)
            for note in PREPARED:
                note(self, state, options, incremental, found)
        found.bound.graph.follow()
        if found.is_prepared:
            found.make_ready(options)
        return found

    def restriction(self, state: State, device: Device) -> Restriction | None:
        """Return the restriction by `on`, cached on the device; None without one."""
        if self.vertices is None:
            return None
        exchange, graph = exchange_of(state.graph, device), state.graph
        holder, living = exchange.holder, graph.living
        known = self._on.setdefault(holder, {})
        key = graph.vertex_count, room_of(state, device)
        made, then = known.get(key, (None, None))
        if made is None or then is not living:
            given = as_active(self.vertices, state)
            # Lists are made on the host; downloading a set for one would cost a wait.
            is_held = given.is_held
            words = exchange.among_own(words_on(given, state, device))
            if device.name == "cpu" and graph.ranks is None:
                sets: Any = device.sets
                sets.look(words, arrays_for(state, device))
            # Weak: the cached restriction must not keep the graph alive.
            found, count = ref(exchange), graph.part.vertex_count

            def find_listed() -> Any:
                own = found()
                if is_held or own is None:
                    return None
                ids = given.vertices
                ids = ids if living is None else ids[living[ids]]
                return device.list_vertices(own.owned_rows(ids), count)

            made = Restriction(words, cache(find_listed))
            known[key] = made, living
        return made

    def is_independent(self, state: State) -> bool:
        """Whether no edge joins two of the vertices that `on` restricts the foldmap to.

        Then no vertex reads what another one commits in the same superstep.
        """
        graph = state.graph
        if self.vertices is None:
            return graph.edge_count == 0
        known = self._independent.get(version := graph.stamps.version)
        if known is None:
            whole = as_active(self.vertices, state).mask
            sides = graph.sides
            if sides is not None and _side_of(whole, sides) is not None:
                self._independent[version] = True
                return True
            mask, rows = graph.local_rows(whole), graph.part.in_edges
            targets = np.repeat(mask, np.diff(rows.row_offsets))
            known = not (targets & mask[rows.column_indices]).any()
            self._independent[version] = known
        return known

    def source_count(self, state: State) -> int:
        """Return an upper bound of the number of vertices that gathers read.

        In a graph whose edges join sides, a foldmap restricted to one side gathers from
        the others.
        """
        graph = state.graph
        if self.vertices is None or graph.sides is None:
            return graph.vertex_count
        known = self._sources.get(version := graph.stamps.version)
        if known is None:
            side = _side_of(as_active(self.vertices, state).mask, graph.sides)
            own = 0 if side is None else graph.sides[side]
            self._sources[version] = known = graph.vertex_count - own
        return known

    def kernel(
        self,
        state: State,
        target: str,
        options: dict[str, Any],
        *,
        incremental: Changes | None = None,
        traits: GraphTraits | None = None,
    ) -> Kernel:
        """Return the kernel for a State, folded on the first call.

        With `incremental`, it patches aggregates in a run that makes these changes.
        With `traits`, it is a kernel for graphs with these traits, which may be that
        of a plan for others, with the same text.
        """
        types = state.types
        options_text = repr(options) if options else ""
        part, shared = state.graph.part, self._kernels if traits else None
        traits = traits or graph_traits(part, target)
        if target == "cuda" and any(f.kind.exclusive for f in self.program.functions):
            sizes = graph_sizes(part, target).rounded()
            traits = replace(traits, sizes=sizes)
        short_key = types, target, config.checked, options_text, incremental, traits
        known = self._found.setdefault(part.stamps.shape, {})
        found = known.get(short_key)
        if found is not None:
            return found
        # The types of reduces' results follow from the functions: they may be in the
        # State or not, and must not lead to another kernel.
        filled = _reductions(self.program)
        signature = {
            name: type_
            for name, type_ in types
            if name not in filled or type_.kind is not PropertyKind.VECTOR
        }
        functions = self.program.functions
        parsed = parse_options(target, config.checked, options, functions)
        parsed = replace(parsed, incremental=incremental)
        key = tuple(sorted(signature.items())), parsed, traits
        if key not in self._kernels:
            made = fold(self.program, signature, *key[1:], shared)
            self._kernels[key] = made
        known[short_key] = self._kernels[key]
        return known[short_key]

    def fold(
        self,
        state: State | None = None,
        *,
        k: int = 8,
        dtype: str = "float32",
        target: str = "auto",
        **options: Any,
    ) -> Kernel:
        """Return the folded kernel, for inspection.

        It has ``.plan``, ``.source``, ``.show()``, ``.ptx()``, ``.resources()``,
        ``.explain()``.

        Parameters
        ----------
        state : State, optional
            Determines the types. Without it, properties indexed with f have `k`
            features of `dtype`.
        target : {"auto", "cpu", "cuda"}, optional
            "cuda" needs no GPU here.
        **options
            As for a call. ``change_driven=True`` gives the kernel that keeps
            aggregates, as in a run of this foldmap alone.
        """
        name = target
        if not isinstance(target, str) or target == "auto":
            name = choose_device(target, getattr(state, "graph", None)).name
        functions = self.program.functions
        parsed = parse_options(name, config.checked, options, functions)
        incremental = Changes() if parse_change_driven(options) is True else None
        if state is not None:
            if not isinstance(state, State):
                raise StateError(
                    "a foldmap is folded for a State",
                    where="state=",
                    got=type(state).__name__,
                    expected="a featgraph.State, or k= and dtype=",
                )
            return self.kernel(state, name, options, incremental=incremental)
        if type(k) is not int or k < 1:
            raise PlanError(
                "the number of features is a count",
                where="k=",
                got=repr(k),
                expected="an integer, 1 or more",
            )
        if not isinstance(dtype, str) or dtype not in set(Real):
            raise PlanError(
                "not a type of real numbers",
                where="dtype=",
                got=repr(dtype),
                expected="'float32' or 'float64'",
            )
        key = (k, dtype), replace(parsed, incremental=incremental)
        if key not in self._kernels:
            self._kernels[key] = fold_assumed(self.program, k, dtype, key[1])
        return self._kernels[key]

    def explain(self, state: State | None = None, **options: Any) -> str:
        """Return a text that explains how and why the program is folded.

        With a State, it lists the arrays that schedules have prepared for the graph,
        and the reasons why vertices are due after changes of the graph; under a memory
        limit, also the arrays that are streamed through the GPU.
        """
        kernel, limit = self.fold(state, **options), config.memory_limit_bytes
        text = kernel.explain()
        if state is None:
            return text
        types, graph = state.signature, state.graph.part
        prepared = explain_prepared(kernel.plan, graph, state._columns, options)
        due = explain_due(state.left[1].get(self.base), kernel.plan, state)
        text = "\n".join([text, *[""][: len(prepared)], *prepared, *due])
        if limit is None or kernel.plan.target != "cuda":
            return text
        limited = explain_limit(kernel.kernel_source, types, graph, limit)
        return f"{text}\n\n{limited}"


def _taken_up(kernel: Kernel, state: State, device: Device) -> Superstep | None:
    """Return the superstep of a deleted State, bound to this one; None without one."""
    found: Superstep | None = arrays_for(state, device).idle.take((kernel, device))
    if found is not None:
        found.take_up(state)
    return found


def require_state(state: Any) -> State:
    """Return the State that a foldmap runs on.

    Raises
    ------
    StateError
        If it is not a State.
    """
    if not isinstance(state, State):
        raise StateError(
            "a foldmap runs on a State",
            where="state=",
            got=type(state).__name__,
            expected="fg.State(graph, ...)",
        )
    state.follow()
    return state


def _side_of(mask: Any, sides: tuple[int, ...]) -> int | None:
    """Return the side that all vertices of a mask belong to; None for several."""
    found = np.flatnonzero(mask)
    ends = np.cumsum(sides)
    first, last = (
        np.searchsorted(ends, found[[0, -1]], "right") if found.size else (0, 0)
    )
    return int(first) if first == last else None


def _reductions(program: Program) -> set[str]:
    """Return the names of the results of reduces."""
    return {f.into for f in program.functions if f.kind.reduces}  # type: ignore[attr-defined]


def as_active(given: Any, state: State, what: str = "an active set") -> ActiveSet:
    """Return `given` as an ActiveSet of the State's graph.

    `what` names the set in the error for a set of another graph. On several ranks, all
    must pass the same vertices.
    """
    count = state.graph.vertex_count
    if not isinstance(given, ActiveSet):
        made = ActiveSet(state.graph, given)
        if state.graph.ranks is not None:
            state.graph.ranks.compare(f"{what}{compared_text(' = ', given)}")
        return made
    if given.vertex_count != count:
        raise StateError(
            f"{what} of another graph",
            got=f"{given.vertex_count} vertices",
            expected=f"{count} vertices",
        )
    return given


def words_on(given: ActiveSet, state: State, device: Device) -> Any:
    """Return the living vertices of a set, as words on a device."""
    holder = exchange_of(state.graph, device).holder
    words = given.on(holder, room_of(state, device))
    if state.graph.living is None:
        return words
    everyone = arrays_for(state, device).everyone
    return device.sets.intersection(words, everyone.words)


def room_of(state: State, device: Device) -> int | None:
    """Return the capacity of a graph's vertex sets; None on several ranks."""
    graph = state.graph
    return None if graph.ranks is not None else arrays_for(state, device).vertex_count


def foldmap(*functions: Any) -> FoldMap:
    """Declare functions that run together, in this order, in one superstep.

    Parameters
    ----------
    *functions : declared with `vertex`, `gather`, `edge`, `triangle` or `reduce`
        Their captured constants are frozen now.

    Raises
    ------
    UserFunctionError
        If there is none, one is not declared, or two gathers fill one name.

    Examples
    --------
    >>> import featgraph as fg
    >>> @fg.gather(into="low", combine="min")
    ... def lowest(f, u, v, e, d):
    ...     return d.label[u]
    >>> @fg.vertex
    ... def adopt(f, v, d):
    ...     d.label_next[v] = min(d.label[v], d.low[v])
    ...     return d.low[v] < d.label[v]
    >>> step = fg.foldmap(lowest, adopt)
    """
    return FoldMap(Program.declare(functions))


def vertexmap(*functions: Any) -> FoldMap:
    """Declare a foldmap of vertex functions only.

    Raises
    ------
    UserFunctionError
        If a function is of another kind.
    """
    return _of_kind(VertexFunction, functions)


def edgemap(*functions: Any) -> FoldMap:
    """Declare a foldmap of edge functions only; it returns targets.

    Raises
    ------
    UserFunctionError
        If a function is of another kind.
    """
    return _of_kind(EdgeFunction, functions)


def trianglemap(*functions: Any) -> FoldMap:
    """Declare a foldmap of triangle functions only; it commits nothing.

    Raises
    ------
    UserFunctionError
        If a function is of another kind.
    """
    return _of_kind(TriangleFunction, functions)


def _of_kind(declared: type[UserFunction], functions: tuple[Any, ...]) -> FoldMap:
    """Return the foldmap of functions, all of which must be of one kind."""
    for function in functions:
        if not isinstance(function, declared):
            raise UserFunctionError(
                f"{declared.kind}map takes {declared.kind} functions",
                where=f"fg.{declared.kind}map",
                got=getattr(function, "name", repr(function)),
                fix="use fg.foldmap for functions of several kinds",
            )
    return foldmap(*functions)
