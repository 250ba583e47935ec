"""A generated module: its text, and its description for the runtime.

`KernelSource` has the text, an `Entry` for each kernel, a `Field` for each array or
scalar of ``d``, and a `Queue` for the loop over supersteps of few vertices.
"""

from __future__ import annotations

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass, field
from featgraph.fold.passes.nests.accumulators import accumulator_of
from featgraph.fold.passes.nests.facts import layout_along
from featgraph.fold.plan.plan import FoldPlan
from featgraph.fold.plan.traits import REVERSED, rows_along
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

#: Least alignment of arrays in bytes, which the widest load of a lane needs (CUDA).
ALIGNMENT = PIECE_BYTES

#: Arrays that have the same names in modules and in the graph.
_ARRAYS = (
    *(
        f"{rows}_{part}"
        for rows in ("upper", "lower", "both")
        for part in ("offsets", "orders", "edges", "positions")
    ),
    "order_vertex", "degree_order", "edge_twin", "in_sources", "triangle_begins",
    "triangle_middles", "vertex_blocks",
)  # fmt: skip
#: Arguments that a device sets at the launch of an entry, beside scratch areas.
_LAUNCHED = frozenset({"share_begins", "share_count", "share_rows", "swept_words"})


@dataclass(frozen=True)
class Field:
    """One field of the namedtuple `d`.

    Attributes
    ----------
    name : str
        Its name.
    source : str
        Where the runtime gets the value: "property", "next", "scalar", "vector",
        "temporary", "builtin", "fault" (the record of a bad index), "incremental" (an
        aggregate that persists), "seen" (values of a property at the last update of
        the aggregates), "everywhere" (a mirror or outbox, with rows of all vertices of
        a graph in parts) or "degrees" (degrees of all its vertices).
    dtype : str
        NumPy dtype.
    rank : int
        Dimensions; 0 for scalars.
    of : str
        Property or temporary that it belongs to.
    """

    name: str
    source: str
    dtype: str
    rank: int
    of: str


@dataclass(frozen=True)
class Argument:
    """One argument of an entry, with its source in the runtime.

    Attributes
    ----------
    name : str
        Its name in the module.
    kind : str
        "graph": an array of the graph, the same at each launch; "superstep": data, a
        set, a count, memory, or a prepared array of a schedule; "launch": computed from
        the others at the launch.
    array : str
        For kind "graph", the name of the array in the graph.
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
        Name of the function in the module.
    phase : int
        Index of its phase in the plan.
    role : str
        "main", "hubs" (a block for each vertex of high degree) or "finish" (the last
        step of a reduce).
    arguments : tuple of str
        Arguments, by name.
    scratch : dict
        Argument name -> dtype and item shape of a scratch area in global memory, with
        an item for each thread or group of lanes.
    block : int
        Threads a block (CUDA).
    launch_bounds : int or (int, int)
        Launch bounds for the compiler: threads a block, and resident blocks a
        multiprocessor (CUDA).
    strides : int
        Least number of vertices for each group of lanes, which repays the prologue of
        its block (CUDA).
    covers : bool
        Whether its grid must have a thread for each vertex, because it has no loop;
        other grids may have any size (CUDA).
    parts : dict
        Arrays with an entry for each part of a row that it combines: argument -> dtype
        and item shape. They must be zero before the first launch (CUDA).
    schedule : Schedule or None
        Its schedule; None for the last step of a reduce.
    arrays : tuple of GraphArray
        Arrays of the schedule.
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
    """The loop over supersteps of few vertices (0018, 0042).

    Attributes
    ----------
    name : str
        Function name in the module.
    arguments : tuple of str
        Arguments, by name.
    graph : tuple of str
        Arrays of the graph among the arguments.
    memory : tuple of (str, str, tuple of int)
        Accumulators among the arguments: name, dtype and item shape.
    commits : tuple of str
        Iterated properties that it writes.
    along : str
        Kind of edges along which active vertices push.
    entry : Entry or None
        Its kernel, on a GPU; ``IDENTITIES`` of the module has the initial values of its
        accumulators.
    overwrites : bool
        Whether current and next buffers are the same (CPU).
    marks_steps : bool
        Whether marks of vertices are numbers of supersteps, which remain set behind a
        superstep (CUDA).
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
    """A generated module, and its description for the runtime.

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
        Edge properties whose ``_next`` entries a pulled phase writes for all in-edges
        of swept vertices, whether their sources are active or not.
    waits : bool
        Whether current and next buffers may be the same if no vertex reads from another
        swept one: the only commits are stores of one vertex function to its vertex,
        behind the verdict.
    shared : KernelSource or None
        Module of its kernels that serve any number of features, and of `Data` (CPU).
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
        """Readable part of the file name of the module."""
        return self.plan.analysis.functions[-1].name

    @property
    def program(self) -> str:
        """Name of the Python module of the functions; of the last one in a script."""
        last = self.plan.analysis.functions[-1]
        module = last.declared.__module__.rpartition(".")[2]
        return last.name if module == "__main__" else module

    def arguments_of(self, entry: Entry) -> tuple[Argument, ...]:
        """Return the arguments of an entry, with their sources."""
        return self._arguments[entry.name]

    @cached_property
    def _arguments(self) -> dict[str, tuple[Argument, ...]]:
        """Arguments of each entry, by name; cached for further States."""
        return {entry.name: self._find_arguments(entry) for entry in self.entries}

    def _find_arguments(self, entry: Entry) -> tuple[Argument, ...]:
        """Return the arguments of an entry, each recognized by its name."""
        phase = self.plan.phases[entry.phase]
        chunks = "word_chunks" if phase.in_a_tree else phase.kind.chunks
        if phase.changed_only:
            chunks = "edge_word_chunks"
        if phase.kind.sweeps_blocks:
            chunks = f"{phase.rows.chunks} blocks"
        rows = vars(phase.rows)
        of_rows = (name for along in REVERSED for name in self._rows(along))
        arrays = {
            **{name: name for name in (*_ARRAYS, *of_rows)},
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
        """Return the arrays of the rows along one kind of edges."""
        return layout_along(
            rows_along(along), self.plan.traits, self.plan.target
        ).arrays

    @property
    def fill_values(self) -> dict[str, str]:
        """Field of each pushed temporary -> text of the initial value of entries."""
        fills = {}
        for phase in self.plan.phases:
            if not phase.kind.pushes:
                continue
            [function] = self.plan.functions_of(phase)
            accumulator = accumulator_of(function, self.plan.analysis)
            name = f"{accumulator.name}{'_packed' * accumulator.is_arg}"
            fills[name] = accumulator.memory_identity
        return fills


@dataclass(frozen=True, eq=False)
class StageSource:
    """A module that runs supersteps of few vertices with stages between them (0098).

    Attributes
    ----------
    name : str
        Function name in the module.
    arguments : tuple of str
        Names of the arguments: those of the loop, and for the stage ``s`` (its data),
        sets, and arrays of each reduce, such as ``rows_0`` for phase 0.
    once : frozenset of int
        Phases of reduces that combine each vertex once, when it will not run again.
        Row 0 of their partial results has the vertices that have left, row 1 those that
        are left.
    text, stem, program : str
        As in `KernelSource`.
    """

    name: str
    arguments: tuple[str, ...]
    once: frozenset[int]
    text: str
    stem: str
    program: str
