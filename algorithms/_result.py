"""Results of algorithms: the record of the run, answers, and residuals.

Answers stay in the State of the run until they are read. A subclass of `Result`
declares them as fields, and an algorithm passes the view of a property for each::

    @dataclass(frozen=True, eq=False, kw_only=True)
    class BfsResult(Result):
        levels: npt.NDArray[np.int32] = answer()

    return BfsResult(..., levels=state.view("level"))

An algorithm that records its residual has a foldmap that ends in a reduce, which
compares the values after the superstep with those before it. A reduce runs after
the vertex functions, so entries that they dropped count as no change (S3)::

    @fg.reduce(into="residual", combine="max")
    def largest_change(f, v, d):
        return abs(d.x_next[v, f] - d.x[v, f])

`iterate_recorded` watches it (``watch=`` of `featgraph.iterate`). A foldmap without the
reduce costs nothing. The reduce makes no vertex due: no function of the foldmap reads
the residual.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from inspect import getattr_static
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

import featgraph as fg
from featgraph.algorithms._following import Following, Update, follow

__all__ = [
    "Following",
    "PathsResult",
    "Result",
    "Update",
    "answer",
    "around_of",
    "called_with",
    "iterate_recorded",
    "joined",
    "refuse_growth",
]

Array = npt.NDArray[Any]

#: Most characters of a value in the repr of a result.
WIDEST = 60


def around_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of foldmaps that run before and after the supersteps."""
    taken = ("target", "deterministic")
    return {name: options[name] for name in taken if name in options}


def values_on_host(state: fg.State, name: str) -> Any:
    """Return the read-only values of a property in host memory.

    None on a GPU, on ranks, and if some vertices may be dead.
    """
    if not state.is_read_on_host:
        return None
    graph = state.graph
    place: Any = state.residency  # None if no device has had the values
    is_on_gpu = place is not None and place.device.name == "cuda"
    if is_on_gpu or graph.ranks is not None or graph.changing is not None:
        return None
    return state.stored(name)


#: Options of runs that calls of foldmaps do not have.
_OF_RUNS = {
    "callback", "max_supersteps", "near_far", "progress", "recompute_every",
    "record_active",
}  # fmt: skip


def called_with(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of an algorithm that a call of a foldmap takes."""
    return {name: value for name, value in options.items() if name not in _OF_RUNS}


class _Answer:
    """A field of a result: copied from a view, or computed, when it is first read."""

    def __init__(self, is_per_vertex: bool) -> None:
        self.is_per_vertex = is_per_vertex

    def __set_name__(self, owner: type, name: str) -> None:
        self._name, self._source = name, _source_of(name)

    def __get__(self, result: Result | None, owner: type | None = None) -> Any:
        if result is None:  # `dataclass` then takes it for a field without a default
            raise AttributeError(self._name)
        known = vars(result)
        source = known.get(self._source)
        if self._name not in known and source is not None:
            # Two threads may both read it; both return the array that is stored first.
            known.setdefault(self._name, self._read(result, source))
            stays = isinstance(source, fg.View) and (
                source.is_on_gpu or source.is_of_ranks
            )
            if not stays:  # the source keeps the whole State in memory
                known.pop(self._source, None)
        return known[self._name]

    def __set__(self, result: Result, given: Any) -> None:
        is_source = isinstance(given, fg.View) or callable(given)
        vars(result)[self._source if is_source else self._name] = given

    def _read(self, result: Result, source: Any) -> Any:
        if not isinstance(source, fg.View):
            result._require_present(self._name)
        try:
            if not isinstance(source, fg.View):
                return source(result)
            return source.whole()
        except fg.StateError as error:
            raise fg.StateError(
                "the answer has been overwritten",
                where=f"result.{self._name}",
                got="a State that was used since: by a callback that has kept it, or "
                "by an update that ended in an error",
                fix="update the result again; or read it before the State is used, or "
                "use a copy of the State",
            ) from error


def answer(*, is_per_vertex: bool = True) -> Any:
    """Declare a field of a result that is copied or computed when it is first read.

    The constructor takes a `featgraph.View`, or a function of the result that returns
    the answer, or the answer itself. `Result.to_frame` includes answers for which
    `is_per_vertex` is True.
    """
    return _Answer(is_per_vertex)


def _source_of(name: str) -> str:
    return f"_{name}_source"


@dataclass(frozen=True, eq=False, kw_only=True)
class Result:
    """Base of the results of all algorithms.

    Answers are NumPy arrays. Some stay in the State of the run until they are first
    read, which copies them. Until then (for values on a GPU, until the result is
    deleted) the result keeps the State; on a changing graph, updates that continue keep
    it, too. Copies and pickles of a result have arrays only.

    Attributes
    ----------
    run : featgraph.Run
        Active counts, times, directions, target.
    residuals : ndarray of float64, shape (S,)
        How much each of the S supersteps changed, in the measure `residual_name`;
        entries that a superstep dropped count as unchanged. Empty if none were
        recorded: some algorithms have none, others take ``history=``.
    vertex_names : ndarray, tuple or None
        Name of each vertex, in the order of all arrays of the result; None if the names
        are 0..V-1. ``dict(zip(result.vertex_names, result.ranks))`` is by name.
    residual_name : str
        The measure of `residuals`, an attribute of the class; empty if an algorithm has
        none.
    """

    run: fg.Run
    residuals: npt.NDArray[np.float64]
    vertex_names: Any = field(default=None, repr=False)

    residual_name: ClassVar[str] = ""
    #: The fix in the error for missing residuals; "" if they are always recorded.
    residual_fix: ClassVar[str] = "run with history=True"

    def __init_subclass__(cls) -> None:
        # The repr of a dataclass would read all answers, and print whole arrays.
        cls.__repr__ = Result.__repr__  # type: ignore[method-assign]

    @classmethod
    def of(cls, graph: Any, run: fg.Run, residuals: Any = None, **answers: Any) -> Self:
        """Return the result of a run on a graph.

        Parameters
        ----------
        graph : Graph
            The graph, for the names of its vertices.
        run : Run
            The record.
        residuals : ndarray of float64, optional
            A residual for each superstep. Default: none were recorded.
        **answers
            The attributes of the class. A `View` is copied, and a function is called,
            when its attribute is first read.
        """
        residuals = np.empty(0) if residuals is None else residuals
        names = graph.vertex_names
        return cls(run=run, residuals=residuals, vertex_names=names, **answers)

    def __repr__(self) -> str:
        run = repr(self.run)[1:-1].removeprefix("Run: ")
        names = [one.name for one in fields(self) if one.repr and one.name != "run"]
        lines = [f"  {name}: {self._shown(name)}" for name in names]
        return "\n".join([f"<{type(self).__name__}: {run}", *lines]) + ">"

    def _shown(self, name: str) -> str:
        """Describe an attribute in one line, without reading an answer."""
        known = vars(self)
        value = known.get(name, known.get(_source_of(name)))
        if isinstance(value, fg.View | np.ndarray):
            return f"{value.dtype} of shape {value.shape}"
        if callable(value):
            return "computed when it is first read"
        text = " ".join(repr(value).split())
        return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."

    @property
    def converged(self) -> bool:
        """Whether the run ended because it had converged, not at a limit."""
        return self.run.converged

    @property
    def supersteps(self) -> int:
        """The number of supersteps that ran."""
        return self.run.supersteps

    def view(self, name: str) -> fg.View | Array:
        """Return an answer in place, without a copy, for other libraries.

        Parameters
        ----------
        name : str
            The attribute.

        Returns
        -------
        View or ndarray
            As from `State.view`, on the GPU if the answer is there. It stays valid
            until `update`: nothing else uses the State, unless a callback has kept it.

        Raises
        ------
        FeatGraphError
            If the result has no such array.

        Examples
        --------
        >>> import featgraph as fg, numpy as np
        >>> from featgraph.algorithms import bfs
        >>> found = bfs(fg.Graph.from_edges([0, 1], [1, 2]), 0)
        >>> np.asarray(found.view("levels")).tolist()
        [0, 1, 2]
        """
        if isinstance(name, str) and name in {one.name for one in fields(self)}:
            source = vars(self).get(_source_of(name))
            found = source if isinstance(source, fg.View) else getattr(self, name)
            if isinstance(found, fg.View | np.ndarray):
                return found
        raise fg.FeatGraphError(
            "the result has no such array",
            where=f"{type(self).__name__}.view({name!r:.100})",
            expected=", ".join(one.name for one in fields(self)),
        )

    def local(self, name: str) -> Array:
        """Return the rows of an answer that this rank owns, without communication.

        Parameters
        ----------
        name : str
            The attribute.

        Returns
        -------
        ndarray
            A copy, with a row for each of ``graph.own_vertices`` (on one rank, all
            vertices); if vertices were moved between ranks, of
            ``run.graph.own_vertices``.

        Raises
        ------
        FeatGraphError
            If the result has no such array, or on several ranks if the answer is
            computed from the values of all of them.

        Examples
        --------
        >>> import featgraph as fg
        >>> from featgraph.algorithms import bfs
        >>> bfs(fg.Graph.from_edges([0, 1], [1, 2]), 0).local("levels").tolist()
        [0, 1, 2]
        """
        source = vars(self).get(_source_of(name))
        if isinstance(source, fg.View):
            return source.local()
        is_known = isinstance(name, str) and name in {one.name for one in fields(self)}
        if is_known and fg.distributed.current_engine().size > 1:
            raise fg.FeatGraphError(
                "the answer is computed from the values of all ranks",
                where=f"{type(self).__name__}.local({name!r:.100})",
                fix=f"read result.{name} on all ranks",
            )
        return np.array(self.view(name))

    def update(self) -> Update:
        """Bring the result up to date with its graph, in place.

        Afterwards, all attributes are as after a new call with the same arguments; of
        several equally good predecessors, another one may be chosen. Arrays that were
        passed to the call are not copied: their current values are used.

        Returns
        -------
        Update
            The work that was done, or the reason why the algorithm began anew.

        Raises
        ------
        StateError
            If the graph is not a `DynamicGraph`, the result is a copy, or it was
            computed from values of edges that were passed to the algorithm.

        Notes
        -----
        An update costs nothing if the graph has not changed, and at most about as much
        as a new call: after one that took longer, by counts of edges and supersteps,
        those of as many changes begin anew for a while. Results of calls with
        ``callback=``, or with a ``max_supersteps=`` at which a call might end, always
        begin anew. If an update raises an error, answers that were read before stay,
        and the next one begins anew.

        Examples
        --------
        >>> import featgraph as fg
        >>> from featgraph.algorithms import triangle_count
        >>> path = fg.DynamicGraph.from_edges([0, 1], [1, 2], directed=False)
        >>> counts = triangle_count(path)
        >>> _ = path.insert_edges([2], [0])
        >>> counts.update().began_anew, counts.total
        ('', 1)
        """
        following = self._following
        if following is None:
            raise fg.StateError(
                "the result follows no graph",
                where=f"{type(self).__name__}.update()",
                got="a copy, or a result on a graph that does not change",
                expected="a result of an algorithm on an fg.DynamicGraph",
                fix="call the algorithm again",
            )
        return following.update(self)

    @property
    def _following(self) -> Following | None:
        return vars(self).get("_call")

    def _follow(self, version: Any, call: Any, args: Any, kwargs: Any) -> None:
        """Store the call that has made the result; `featgraph.algorithm` calls this."""
        vars(self)["_call"] = follow(version, call, args, kwargs)

    def _resume(self, following: Following) -> Update | str:
        """Update the result from the changes, or return the reason to begin anew."""
        return "the algorithm has no incremental form"

    def _take(self, **answers: Any) -> None:
        """Replace answers by others, all of the same version of the graph."""
        known = vars(self)
        for name, value in answers.items():
            to, other = name, _source_of(name)
            if callable(value):
                to, other = other, name
            known[to] = value
            known.pop(other, None)

    def _require_present(self, name: str) -> None:
        """Raise StateError if the graph has changed since the result was computed."""
        following = self._following
        if following is not None and following.version != following.graph.version:
            raise fg.StateError(
                "the graph has changed since",
                where=f"result.{name}",
                got=f"version {following.graph.version}, and a result of version "
                f"{following.version}",
                fix="call result.update(), or read the answer before the graph changes",
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes, with all answers read."""
        read = {one.name: getattr(self, one.name) for one in fields(self)}
        # Private attributes are sources of answers, and the state of updates.
        public = {k: value for k, value in vars(self).items() if k[0] != "_"}
        return public | read

    def to_frame(self) -> Any:
        """Return the answers for all vertices as a pandas DataFrame.

        Returns
        -------
        pandas.DataFrame
            A row for each vertex, indexed by its name; a column for each answer with
            one value per vertex. An answer with k values has the columns ``name_0`` to
            ``name_{k-1}``. Answers for edges or other things are left out.

        Raises
        ------
        FeatGraphError
            If pandas is not installed, or the result has no answer for each vertex.

        Examples
        --------
        >>> import featgraph as fg
        >>> from featgraph.algorithms import bfs
        >>> path = fg.Graph.from_edges([0, 1], [1, 2])
        >>> bfs(path, 0).to_frame()["levels"].tolist()
        [0, 1, 2]
        """
        answers = {name: np.asarray(getattr(self, name)) for name in self._per_vertex()}
        if not answers:
            raise fg.FeatGraphError(
                "the result has no answer for each vertex",
                where=f"{type(self).__name__}.to_frame()",
                fix=f"use its arrays: {', '.join(one.name for one in fields(self))}",
            )
        what = "a data frame needs pandas"
        pandas = _imported("pandas", what, "pip install pandas")
        columns: dict[str, Array] = {}
        for name, values in answers.items():
            for place in np.ndindex(values.shape[1:]):
                columns["_".join([name, *map(str, place)])] = values[
                    (slice(None), *place)
                ]
        index = self._row_names(len(next(iter(answers.values()))))
        names = pandas.Index(index, name="vertex", tupleize_cols=False)
        return pandas.DataFrame(columns, index=names)

    def _per_vertex(self) -> list[str]:
        """Return the names of the answers that have a row for each vertex."""
        declared = {
            f.name: getattr_static(type(self), f.name, None) for f in fields(self)
        }
        return [
            name
            for name, one in declared.items()
            if isinstance(one, _Answer) and one.is_per_vertex
        ]

    def _row_names(self, count: int) -> Any:
        """Return the names of the vertices of `count` rows."""
        names = range(count) if self.vertex_names is None else self.vertex_names
        return names if isinstance(names, range | np.ndarray) else list(names)

    def plot(self, ax: Any = None) -> Any:
        """Plot the residual of each superstep, on a logarithmic scale.

        Supersteps that changed nothing cannot be drawn on this scale and are left out.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            The axes to draw in. Default: new axes of a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes with the plot, which is not shown or saved.

        Raises
        ------
        FeatGraphError
            If nothing was recorded, or matplotlib is not installed.
        """
        if not self.residual_name:
            raise fg.FeatGraphError(
                "this algorithm records no residuals",
                where=f"{type(self).__name__}.plot()",
            )
        if not self.residuals.size:
            raise fg.FeatGraphError(
                "there is no residual to draw",
                got=f"{self.supersteps} supersteps, none recorded",
                fix=(self.residual_fix or None) if self.supersteps else None,
            )
        if ax is None:
            fix = 'pip install "featgraph[plot]"'
            _imported("matplotlib", "a plot needs matplotlib", fix)
            from matplotlib import pyplot

            ax = pyplot.subplots()[1]
        supersteps = np.arange(1, self.residuals.size + 1)
        changed = self.residuals > 0
        ax.semilogy(supersteps[changed], self.residuals[changed], marker=".")
        ax.set_xlabel("superstep")
        ax.set_ylabel(self.residual_name)
        return ax


class PathsResult(Result):
    """Base of the results of searches: each vertex has its predecessor on a path.

    Attributes
    ----------
    tree_name : str
        The name of the answer with the predecessors, an attribute of the class.
    """

    tree_name: ClassVar[str] = "predecessors"

    def path_to(self, vertex: Any, search: int | None = None) -> list[Any]:
        """Return the vertices of the path to a vertex, from the source on.

        Parameters
        ----------
        vertex : int or hashable
            The end of the path: the number of a vertex, or its name. Integers are
            always numbers.
        search : int, optional
            The search, as a column of the answers. Required if there are several.

        Returns
        -------
        list
            Vertices from the source on, both ends included, by name if the graph has
            names. Empty if there is no path; a source has a path to itself.

        Raises
        ------
        GraphInputError
            If there is no such vertex or search.

        Examples
        --------
        >>> import featgraph as fg
        >>> from featgraph.algorithms import bfs
        >>> chain = fg.Graph.from_edges([0, 1, 3], [1, 2, 2])
        >>> found = bfs(chain, [0, 3])
        >>> found.path_to(2, search=0), found.path_to(2, search=1), found.path_to(0, 1)
        ([0, 1, 2], [3, 2], [])
        """
        before = np.asarray(getattr(self, self.tree_name))
        if before.ndim == 1:
            before = before[:, None]
        width = before.shape[1]
        if search is None and width == 1:
            search = 0
        if not isinstance(search, int | np.integer) or not 0 <= search < width:
            raise fg.GraphInputError(
                "a path belongs to one search",
                where="search=",
                got=repr(search),
                expected=f"0 <= search < {width}, the index in sources=",
            )
        here = _vertex_of(vertex, self.vertex_names, len(before))
        path = [] if before[here, search] < 0 else [here]
        while path and before[path[-1], search] != path[-1]:
            path.append(int(before[path[-1], search]))
        names = self.vertex_names
        if isinstance(names, np.ndarray):
            names = names[path].tolist()
            return names[::-1]
        return [v if names is None else names[v] for v in path[::-1]]


def _vertex_of(given: Any, names: Any, count: int) -> int:
    """Return the vertex with a number, or with a name that is not an integer."""
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        given, expected = int(given), f"0 <= vertex < {count}"
        if 0 <= given < count:
            return given
    else:
        known = [] if names is None else names
        for vertex, name in enumerate(known):
            if name == given:
                return vertex
        expected = "a number" if names is None else "a number, or a vertex name"
    raise fg.GraphInputError(
        "no vertex of the graph",
        where="vertex=",
        got=f"{given!r:.100}",
        expected=expected,
    )


def _imported(module: str, what: str, fix: str) -> Any:
    """Import an optional library; raise FeatGraphError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise fg.FeatGraphError(what, fix=fix) from error


def iterate_recorded(
    steps: fg.FoldMap | Sequence[fg.FoldMap],
    state: fg.State,
    *,
    history: bool = True,
    growth: str | None = None,
    enough: int | None = None,
    **options: Any,
) -> tuple[fg.Run, npt.NDArray[np.float64]]:
    """Run `featgraph.iterate` and record the residual after every superstep.

    Parameters
    ----------
    steps, state, **options
        As for `featgraph.iterate`.
    history : bool, optional
        Record the largest feature of ``residual``, the result of a reduce of the
        foldmaps. False records nothing.
    growth : str, optional
        The fix in the error for residuals that are not finite. Default: no error.
    enough : int, optional
        The number of supersteps after which the run counts as converged.

    Returns
    -------
    run : featgraph.Run
        The record.
    residuals : ndarray of float64, shape (S,)
        A residual for each superstep; empty without `history`.

    Raises
    ------
    DivergenceError
        If a residual is not finite and `growth` is given.
    """
    limit = options.get("max_supersteps")
    if enough is not None and (limit is None or enough <= limit):
        options |= {"max_supersteps": None, "supersteps": enough}
    watch = "residual" if history else None
    run = fg.iterate(steps, state, watch=watch, **options)
    run.converged = run.converged or run.supersteps == enough
    residuals = np.array(run.watched, np.float64)
    is_bad = ~np.isfinite(residuals)
    if growth is not None and is_bad.any():
        refuse_growth(int(np.argmax(is_bad)) + 1, growth)
    return run, residuals


def joined(runs: Sequence[fg.Run]) -> fg.Run:
    """Concatenate the records of one or more runs."""
    made = fg.Run(runs[0].target, runs[0].kernels, converged=True)
    for run in runs:
        made.supersteps += run.supersteps
        for name in (
            "active_counts", "directions", "aggregates", "seconds", "partitions",
        ):  # fmt: skip
            getattr(made, name).extend(getattr(run, name))
        made.graph = run.graph or made.graph
    return made


def refuse_growth(superstep: int, fix: str) -> None:
    """Raise DivergenceError for a superstep whose values were not finite."""
    raise fg.DivergenceError(
        "the values grow without bounds",
        where=f"superstep {superstep}",
        expected="a recurrence that contracts",
        fix=fix,
    )
