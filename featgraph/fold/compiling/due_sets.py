"""DueSetKernel: a kernel over vertex sets and rows, printed and compiled on use."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass
from featgraph.cuda.dialect import import_of_numbers
from featgraph.fold.compiling.compile import load_module
from featgraph.fold.passes.nests.due_sets import SetFacts
from featgraph.fold.printing.cpu import in_parallel, unsigned_vertices
from featgraph.fold.printing.writer import Writer, make_function, print_function
from featgraph.fold.syntax.unsigned_indices import unsigned_indices

__all__ = ["DueSetKernel"]

#: Suffix of the name of a kernel that is called for each chunk.
_IN_CHUNKS = "_in_chunks"
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
    """Return the text of the module."""
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
        _, _, _, *inner = arguments
        swept = in_parallel(kernel.name, inner)
        given = ("chunks", *inner)
        print_function(writer, make_function(decorator, of_all, given, "", swept))
    return writer.text


@dataclass(frozen=True)
class DueSetKernel:
    """A kernel of a layout on a target; see `featgraph.fold.passes.nests.due_sets`.

    It is printed at the first use of its function, and compiled at the first launch.
    """

    facts: SetFacts
    #: The module of its program: all have it.
    program = ""

    @property
    def name(self) -> str:
        """Name of its function."""
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
        """Function that calls it for each chunk, on all threads (CPU)."""
        return getattr(self.module, self.name + _IN_CHUNKS)

    @property
    def threads(self) -> int:
        """Threads of a block (CUDA)."""
        return self.facts.kernel.threads

    def arrays(self, along: str) -> tuple[str, ...]:
        """Return the names of the arrays of a graph among its last arguments."""
        return self.facts.arrays(along)
