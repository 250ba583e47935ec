"""Kernels to inspect, compile and launch: of folded programs, and over vertex sets.

`Kernel` has the kernels of a folded program. Its text exists from the beginning; it is
imported and compiled at the first use. `DueSetKernel` is a kernel over vertex sets and
rows, such as "find the neighbors of a set", that depends on no program; it is printed
at the first use, too. `StagedKernel` is a loop over supersteps in one launch that runs
a second program when no vertex is due.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass, replace
from featgraph.base.errors import PlanError
from featgraph.cuda.dialect import import_of_numbers
from featgraph.fold.compiling.compile import explain_numba_error, load_module
from featgraph.fold.passes.nests.due_sets import SetFacts
from featgraph.fold.passes.passes import BODY_PASSES, NEST_PASSES
from featgraph.fold.plan.plan import VERTICES, WORKLIST, FoldPlan
from featgraph.fold.plan.worklist import as_worklist, why_not_staged
from featgraph.fold.printing import cpu, cuda
from featgraph.fold.printing.cpu import in_parallel, unsigned_vertices
from featgraph.fold.printing.emit import emit
from featgraph.fold.printing.explain import Behind, changes_of, print_nest
from featgraph.fold.printing.module import Entry, KernelSource, StageSource
from featgraph.fold.printing.writer import Writer, make_function, print_function
from featgraph.fold.syntax.arithmetic import unsigned_indices
from featgraph.fold.tree.passes import Pass
from featgraph.fold.tree.statements import Body

__all__ = ["DueSetKernel", "Kernel", "KernelText", "StagedKernel"]

#: Suffix of the name of a kernel that is called for each chunk.
_IN_CHUNKS = "_in_chunks"
#: Target -> first lines of the module of a `DueSetKernel`.
_HEADS = {
    "cpu": [
        "from numba import int64, njit, uint32",
        "",
        "from featgraph.device import cpu",
        "",
        'CODE = {"error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}',
        'CALLED = {**CODE, "cache": True, "nogil": True}',
    ],
    "cuda": [
        import_of_numbers("int32", "int64", "uint32", "uint64"),
        "",
        "from featgraph.cuda.dialect import cuda, kernel",
        "from featgraph.device import warp",
    ],
}


def _print_due_set(facts: SetFacts) -> str:
    """Return the text of the module of a kernel over vertex sets."""
    kernel, arguments, body = facts.kernel, facts.arguments, facts.body
    writer, traits = Writer(), facts.traits
    wide = ", 64-bit offsets" if traits.wide_offsets else ""
    writer.line(f'"""A set of vertices, and rows of edges: {traits.layout}{wide}."""')
    writer.line()
    for line in _HEADS[facts.target]:
        writer.line(line)
    if facts.target == "cuda":
        decorator = "kernel(cache=True)"
        body = unsigned_indices(body)
    else:
        decorator = "njit(**CALLED)"
        body = unsigned_vertices(body, traits.wide_offsets)
    made = make_function(decorator, kernel.name, arguments, kernel.doc, body)
    print_function(writer, made)
    if facts.is_cut:
        of_all = kernel.name + _IN_CHUNKS
        _, _, _, *inner = arguments  # without the chunk and its bounds
        swept = in_parallel(kernel.name, inner)
        given = ("chunks", *inner)
        print_function(writer, make_function(decorator, of_all, given, "", swept))
    return writer.text


@dataclass(frozen=True)
class DueSetKernel:
    """A kernel over vertex sets, for a layout and a target.

    `featgraph.fold.passes.nests.due_sets` has the kernels. The text is printed at the
    first use of its function, and compiled at the first launch.
    """

    facts: SetFacts
    #: Name of the program, for messages: "", since all programs share the module.
    program = ""

    @property
    def name(self) -> str:
        """Name of the function in the module."""
        return self.facts.kernel.name

    @property
    def stem(self) -> str:
        """Readable part of the file name of the module."""
        return f"{self.name}_{self.facts.traits.layout}"

    @cached_property
    def text(self) -> str:
        """Text of the generated module."""
        return _print_due_set(self.facts)

    @cached_property
    def module(self) -> ModuleType:
        """The generated module, imported from the store."""
        return load_module(self)

    @property
    def function(self) -> Any:
        """The compiled function."""
        return getattr(self.module, self.name)

    @property
    def in_chunks(self) -> Any:
        """The function that calls the kernel for each chunk, on all threads (CPU)."""
        return getattr(self.module, self.name + _IN_CHUNKS)

    @property
    def threads(self) -> int:
        """Threads of a block (CUDA)."""
        return self.facts.kernel.threads

    def arrays(self, along: str) -> tuple[str, ...]:
        """Return the names of the arrays of a graph, which are the last arguments."""
        return self.facts.arrays(along)


@dataclass(frozen=True)
class KernelText:
    """The text of an unpickled kernel, for reading; it cannot be launched.

    Attributes
    ----------
    name : str
        Representation of the kernel.
    source : str
        Text of the generated module.
    explanation : str
        Explanation of the plan: see `Kernel.explain`.
    """

    name: str
    source: str
    explanation: str

    def show(self) -> None:
        """Print the generated module."""
        print(self.source)

    def explain(self) -> str:
        """Return the explanation of the plan."""
        return self.explanation

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class StagedKernel:
    """A loop over supersteps that runs another kernel when no vertex is due (0098).

    Its module imports functions of the modules of both kernels, which must be loaded.
    """

    source: StageSource

    @cached_property
    def function(self) -> Any:
        """The compiled function."""
        return getattr(load_module(self.source), self.source.name)


class Kernel:
    """The kernels of one foldmap for one signature and one set of options.

    Compilation is deferred to the first launch or inspection.

    Attributes
    ----------
    kernel_source : KernelSource
        The generated module and its table of entries.
    plan : FoldPlan
        Decisions of the planner.
    """

    def __init__(self, kernel_source: KernelSource) -> None:
        self.kernel_source = kernel_source
        #: Decisions of the planner.
        self.plan: FoldPlan = kernel_source.plan
        self._forms: dict[str, Kernel] = {}
        self._staged: WeakKeyDictionary[Kernel, StagedKernel] = WeakKeyDictionary()

    @property
    def source(self) -> str:
        """Text of the generated module, or of both modules."""
        shared, own = self.kernel_source.shared, self.kernel_source.text
        return own if shared is None else f"{shared.text}\n\n{own}"

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The generated kernels, in the order in which they run."""
        return self.kernel_source.entries

    def show(self) -> None:
        """Print the generated module."""
        print(self.source)

    def __reduce__(self) -> tuple[Any, ...]:
        return KernelText, (repr(self), self.source, self.explain())

    def __copy__(self) -> Kernel:
        return self  # kernels are immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> Kernel:
        return self

    def __repr__(self) -> str:
        names = " + ".join(f.name for f in self.plan.analysis.functions)
        return f"<featgraph kernel {names} for {self.plan.target}>"

    @cached_property
    def module(self) -> ModuleType:
        """The generated module, imported from the store."""
        shared, module = self.kernel_source.shared, load_module(self.kernel_source)
        if shared is not None:
            # Functions of a module that serves any K are found in this one, too.
            of_all = vars(load_module(shared))
            names = {f"sweep_{entry.phase}" for entry in shared.entries}
            names |= {"Data", *(entry.name for entry in shared.entries)}
            vars(module).update({name: of_all[name] for name in names})
        return module

    def in_form(self, frontier_form: str) -> Kernel:
        """Return the kernels for another frontier form, cached: see `FoldPlan`."""
        if frontier_form not in self._forms:
            plan = self.plan
            other = (
                as_worklist(plan)
                if frontier_form == WORKLIST
                else replace(plan, frontier_form=frontier_form)
            )
            self._forms[frontier_form] = Kernel(emit(other))
        return self._forms[frontier_form]

    def function(self, entry: Entry) -> Any:
        """Return the compiled function of an entry."""
        return getattr(self.module, entry.name)

    def sweep(self, entry: Entry) -> Any:
        """Return the function that processes one chunk of the phase of an entry."""
        return getattr(self.module, f"sweep_{entry.phase}")

    @property
    def queue(self) -> Any:
        """The compiled loop over supersteps of few vertices."""
        return getattr(self.module, self.kernel_source.queue.name)  # type: ignore[union-attr]

    @cached_property
    def not_staged(self) -> str:
        """Reason why no loop in one launch can run this as a stage; "" if it can."""
        return why_not_staged(self.plan)

    def with_stage(self, stage: Kernel) -> StagedKernel:
        """Return the loop over supersteps that runs a stage when no vertex is due."""
        if stage not in self._staged:
            on_gpu = self.plan.target == "cuda"
            own, target = (stage, cuda) if on_gpu else (stage.in_form(VERTICES), cpu)
            modules = self.module.__name__, own.module.__name__
            sources = self.kernel_source, own.kernel_source
            self._staged[stage] = StagedKernel(target.print_stage(*sources, modules))
        return self._staged[stage]

    def signature_with_stage(self, stage: Kernel) -> tuple[Any, ...]:
        """Return the types of the arguments of `with_stage` (CUDA)."""
        queue = self.kernel_source.queue
        if queue is None or queue.entry is None:
            raise TypeError("the kernel has no loop over supersteps")
        types = self.signature(queue.entry)
        known = dict(zip(queue.arguments, types, strict=True))
        for entry in stage.entries:
            own = dict(zip(entry.arguments, stage.signature(entry), strict=True))
            if entry.role == "finish":
                known[f"reduced_{entry.phase}"] = own["reduced"]
            else:
                known |= {"s": own["d"], "everyone": own["due"]}
        arguments = self.with_stage(stage).source.arguments
        return tuple(known[name] for name in arguments)

    def signature(
        self, entry: Entry, module: ModuleType | None = None
    ) -> tuple[Any, ...]:
        """Return the Numba types of the arguments of an entry, to compile it.

        The class of the namedtuple `d` is that of `module`: by default the module of
        this kernel, else that of the frontier form whose `d` supersteps pass.
        """
        from featgraph.fold.compiling.signatures import entry_signature

        return entry_signature(self.kernel_source, entry, module or self.module)

    def explain_error(self, error: Exception) -> Exception:
        """Return an error with the user's file and line for an error of Numba."""
        shared, own = self.kernel_source.shared, self.kernel_source
        return explain_numba_error([own] if shared is None else [shared, own], error)

    def explain(self) -> str:
        """Return the explanation of the plan: phases, mappings, accesses."""
        from featgraph.fold.printing.explain import explain_plan

        return explain_plan(self.plan)

    def trees(self) -> list[Behind]:
        """Return the printed trees of functions and kernels after each pass."""
        found: list[Behind] = []

        def watch(kernel: str, one: Pass[Any], tree: Body) -> None:
            text, of_function = print_nest(tree), one in BODY_PASSES
            found.append(Behind(kernel, one.name, one.does, text, of_function))

        emit(self.plan, watch)
        return found

    def passes(self, name: str = "") -> str:
        """Return the printed trees of functions and kernels, pass by pass.

        Parameters
        ----------
        name : str
            A pass of `fold/passes/passes.py`, over user functions or over kernels: the
            trees before and after it are returned. "" for all passes.

        Raises
        ------
        PlanError
            If there is no such pass.
        """
        names = [one.name for one in (*BODY_PASSES, *NEST_PASSES)]
        if name and name not in names:
            raise PlanError(
                "there is no such pass", got=repr(name)[:80], expected=", ".join(names)
            )
        return changes_of(self.trees(), name)

    # -- looking at compiled code

    def ptx(self, cc: tuple[int, int] = (9, 0)) -> str:
        """Return the PTX of all entries; needs numba-cuda, not a GPU.

        Raises
        ------
        PlanError
            If the kernel was folded for the CPU.
        DeviceError
            If numba-cuda is not installed.
        """
        return "\n".join(self._compiled(cc, "compile_ptx").values())

    def resources(self, cc: tuple[int, int] = (9, 0)) -> dict[str, Any]:
        """Return registers, spills and shared memory of each entry, by name.

        As for a launch, the linker optimizes the code; code assembled from `ptx` may
        take more registers (docs/design/0021).
        """
        return {name: found for name, (_, found) in self._linked(cc).items()}

    def sass(self, cc: tuple[int, int] = (9, 0)) -> str:
        """Return the disassembly of all entries, linked as for a launch.

        Needs cuobjdump or nvdisasm on the path.
        """
        from featgraph.cuda import code as cuda_code

        return "\n".join(
            cuda_code.sass(cubin) for cubin, _ in self._linked(cc).values()
        )

    def _linked(self, cc: tuple[int, int]) -> dict[str, tuple[bytes, Any]]:
        from featgraph.cuda import code as cuda_code

        compiled = self._compiled(cc, "compile_ltoir")
        return {name: cuda_code.link_cubin(code, cc) for name, code in compiled.items()}

    def _compiled(self, cc: tuple[int, int], compiler: str) -> dict[str, Any]:
        """Return the output of a compiler of the dialect for each entry, by name."""
        if self.plan.target != "cuda":
            raise PlanError(
                "a CPU kernel has no PTX",
                where="Kernel.ptx",
                fix="fold it with target='cuda'",
            )
        from featgraph.cuda import dialect

        dialect.require()
        compiled = {}
        for entry in self.entries:
            function = self.function(entry)
            compiled[entry.name] = getattr(dialect, compiler)(
                function.py_func,
                self.signature(entry),
                cc,
                launch_bounds=entry.launch_bounds or entry.block or None,
            )
        return compiled
