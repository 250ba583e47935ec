"""A generated module: its text, and what the runtime must know to launch it."""

from __future__ import annotations

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass, field
from featgraph.fold.passes.nests.accumulators import accumulator_of
from featgraph.fold.passes.nests.facts import layout_along
from featgraph.fold.plan.layout import REVERSED, rows_along
from featgraph.fold.plan.plan import FoldPlan
from featgraph.fold.schedules.base import GraphArray, Schedule
from featgraph.fold.schedules.mapping import PIECE_BYTES

__all__ = [
    "ALIGNMENT",
    "Argument",
    "Entry",
    "Field",
    "KernelSource",
    "Queue",
    "StageSource",
]

#: Addresses of arrays are multiples of so many bytes: lanes load them at once (CUDA).
ALIGNMENT = PIECE_BYTES

#: Arrays of the graph that entries take: name in a module -> how the graph calls it.
_ARRAYS = {
    name: name
    for name in (
        *(
            f"{rows}_{part}"
            for rows in ("upper", "lower", "both")
            for part in ("offsets", "orders", "edges", "positions")
        ),
        "order_vertex",
        "degree_order",
        "edge_twin",
        "in_sources",
        "triangle_begins",
        "triangle_middles",
    )
}
#: What a device decides when it launches an entry, beside its scratch areas.
_LAUNCHED = frozenset({"share_begins", "share_count", "share_rows", "swept_words"})


@dataclass(frozen=True)
class Field:
    """One field of the namedtuple `d`.

    Attributes
    ----------
    name : str
        Its name.
    source : str
        "property", "next", "scalar", "vector", "temporary", "builtin", "fault",
        "incremental"
        (an aggregate that stays), "seen" (what a property was when the aggregates
        last took it in), "everywhere" (rows of all vertices, where the kernels have
        some) or "degrees" (of all vertices then): where the runtime finds it.
    dtype : str
        NumPy dtype.
    rank : int
        Dimensions; 0 for scalars.
    of : str
        The property or temporary it belongs to.
    """

    name: str
    source: str
    dtype: str
    rank: int
    of: str


@dataclass(frozen=True)
class Argument:
    """One argument of an entry: where the runtime finds it.

    Attributes
    ----------
    name : str
        Its name in the module.
    kind : str
        "graph": an array of the graph, the same at each launch; "superstep": the data,
        a set, a count, memory, or what a schedule has prepared; "launch": what follows
        from the others when the entry is launched.
    array : str
        Of kind "graph", how the graph calls it.
    """

    name: str
    kind: str
    array: str = ""


@dataclass(frozen=True)
class Entry:
    """One kernel of the module.

    Attributes
    ----------
    name : str
        Function name in the module.
    phase : int
        Which phase of the plan it is.
    role : str
        "main", "hubs" (a block for each vertex of high degree) or "finish" (the last
        step of a reduce).
    arguments : tuple of str
        What the runtime must pass, by name.
    scratch : dict
        Argument name -> dtype, and shape behind the first axis, of a scratch area in
        global memory, one a thread or group.
    block : int
        Threads a block (CUDA).
    launch_bounds : int or (int, int)
        What the compiler is told of it: threads a block, and how many blocks must fit a
        multiprocessor (CUDA).
    strides : int
        Vertices that a group of lanes takes in turn, at least, so that what its block
        does first pays (CUDA).
    covers : bool
        Whether its grid must have a place for each vertex, since it has no loop;
        other grids may have any size (CUDA).
    parts : dict
        Arrays with an entry for each part of a row that it joins: argument -> dtype and
        shape of one of them. They are zero at first (CUDA).
    schedule : Schedule or None
        That of its threads; None for the last step of a reduce.
    arrays : tuple of GraphArray
        The arrays that this names for them.
    """

    name: str
    phase: int
    role: str
    arguments: tuple[str, ...]
    scratch: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    block: int = 0
    launch_bounds: int | tuple[int, int] = 0
    strides: int = 1
    covers: bool = False
    parts: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    schedule: Schedule | None = None
    arrays: tuple[GraphArray, ...] = ()


@dataclass(frozen=True)
class Queue:
    """The loop over supersteps of few vertices, where a module has one (0018, 0042).

    Attributes
    ----------
    name : str
        Function name in the module.
    arguments : tuple of str
        What the runtime must pass, by name.
    graph : tuple of str
        Of those, the arrays of the graph.
    memory : tuple of (str, str, tuple of int)
        Of those, what gathers fill: dtypes and shapes of an entry.
    commits : tuple of str
        Iterated properties that it writes.
    along : str
        Along which edges the rows out of active vertices lead.
    entry : Entry or None
        The kernel that it is, on a GPU; ``IDENTITIES`` of the module has what its
        memory holds before anything is gathered.
    overwrites : bool
        Whether the current buffers stand for the next ones (CPU).
    marks_steps : bool
        Whether marks are numbers of supersteps, which are left behind it (CUDA).
    """

    name: str
    arguments: tuple[str, ...]
    graph: tuple[str, ...]
    memory: tuple[tuple[str, str, tuple[int, ...]], ...]
    commits: tuple[str, ...]
    along: str
    entry: Entry | None = None
    overwrites: bool = False
    marks_steps: bool = False


@dataclass(frozen=True, eq=False)
class KernelSource:
    """The generated module and what the runtime must know to launch it.

    Attributes
    ----------
    text : str
        Python source.
    entries : tuple of Entry
        Its kernels in the order in which they run.
    fields : tuple of Field
        Fields of `d`.
    origins : dict
        Line of the module -> (file, line) of the user's code.
    sites : list
        Checked mode: (function, file, line, name, axis) of each guarded index.
    queue : Queue or None
        The loop over supersteps of few vertices.
    forwarded : tuple of str
        Edge properties of which a pulled phase writes the ``_next`` entries of all
        in-edges of what it sweeps, whether their sources are active or not.
    waits : bool
        Whether the current buffers may stand for the next ones where no vertex reads
        from another that is swept: all there is to commit is what one vertex function
        has stored, behind its verdict, for its vertex.
    shared : KernelSource or None
        The module of those of its kernels that serve any number of features, and of
        `Data` (CPU).
    """

    plan: FoldPlan
    text: str
    entries: tuple[Entry, ...]
    fields: tuple[Field, ...]
    origins: dict[int, tuple[str, int]]
    sites: list[tuple[str, str, int, str, int]]
    queue: Queue | None = None
    forwarded: tuple[str, ...] = ()
    waits: bool = False
    shared: KernelSource | None = None

    @property
    def stem(self) -> str:
        """What the module's file is called, for people."""
        return self.plan.analysis.functions[-1].name

    @property
    def program(self) -> str:
        """The module of its functions, without its packages; in a script their name."""
        last = self.plan.analysis.functions[-1]
        module = last.declared.__module__.rpartition(".")[2]
        return last.name if module == "__main__" else module

    def arguments_of(self, entry: Entry) -> tuple[Argument, ...]:
        """Return what the runtime must pass to an entry."""
        return self._arguments[entry.name]

    @cached_property
    def _arguments(self) -> dict[str, tuple[Argument, ...]]:
        """What each entry is passed, by its name: every new State asks for it."""
        return {entry.name: self._find_arguments(entry) for entry in self.entries}

    def _find_arguments(self, entry: Entry) -> tuple[Argument, ...]:
        phase = self.plan.phases[entry.phase]
        chunks = "word_chunks" if phase.in_a_tree else phase.kind.chunks
        if phase.changed_only:
            chunks = "edge_word_chunks"
        rows = vars(phase.rows)
        arrays = {
            **_ARRAYS,
            **{name: name for along in REVERSED for name in self._rows(along)},
            "chunks": chunks or phase.rows.chunks,
            **{a.name: a.array.format(**rows) for a in entry.arrays if a.array},
        }
        prepared = {a.name for a in entry.arrays if a.dtype}
        arrays = {n: a for n, a in arrays.items() if n not in prepared}
        launched = _LAUNCHED.union(entry.scratch, entry.parts)
        return tuple(
            Argument(name, "graph", arrays[name])
            if name in arrays
            else Argument(name, "launch" if name in launched else "superstep")
            for name in entry.arguments
        )

    def _rows(self, along: str) -> tuple[str, ...]:
        """Return the arrays that rows along some edges are found by."""
        return layout_along(
            rows_along(along), self.plan.traits, self.plan.target
        ).arrays

    @property
    def fill_values(self) -> dict[str, str]:
        """Pushed temporaries (by field) -> text of the value that fills them first."""
        fills = {}
        for phase in self.plan.phases:
            if not phase.kind.pushes:
                continue
            accumulator = accumulator_of(
                self.plan.functions_of(phase)[0], self.plan.analysis
            )
            if accumulator.is_arg:
                kind = "FLOAT32" if accumulator.type == "real" else "INT32"
                fills[f"{accumulator.name}_packed"] = f"PACKED_NONE_{kind}"
            else:
                fills[accumulator.name] = accumulator.identity
        return fills


@dataclass(frozen=True, eq=False)
class StageSource:
    """A module that runs supersteps of few vertices and, between them, a stage (0098).

    Attributes
    ----------
    name : str
        Function name in the module.
    arguments : tuple of str
        What the runtime must pass, by name: what the loop takes, and of the stage "s"
        (its data), sets, and for each reduce ``rows_0`` and the like, by its phase.
    once : frozenset of int
        Phases that combine once what vertices contribute that are not left.
    text, stem, program : str
        As those of `KernelSource`.
    """

    name: str
    arguments: tuple[str, ...]
    once: frozenset[int]
    text: str
    stem: str
    program: str
