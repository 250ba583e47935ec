"""DueSetKernel: a kernel over sets and rows, ready to be launched, for all programs."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass
from featgraph.fold.compiling.compile import load_module
from featgraph.fold.passes.nests.due_sets import SetFacts
from featgraph.fold.printing.due_sets import IN_CHUNKS, print_due_set

__all__ = ["DueSetKernel"]


@dataclass(frozen=True)
class DueSetKernel:
    """A kernel of a layout on a target; see `featgraph.fold.passes.nests.due_sets`.

    It is printed when its function is asked for, and compiled when that is launched.
    """

    facts: SetFacts
    #: The module of its program: all have it.
    program = ""

    @property
    def name(self) -> str:
        """What its function is called."""
        return self.facts.kernel.name

    @property
    def stem(self) -> str:
        """What the module's file is called, for people."""
        return f"{self.name}_{self.facts.traits.layout}"

    @cached_property
    def text(self) -> str:
        """The generated module's text."""
        return print_due_set(self.facts)

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
        """The function that calls it for each chunk, on all threads (CPU)."""
        return getattr(self.module, self.name + IN_CHUNKS)

    @property
    def threads(self) -> int:
        """Threads of a block (CUDA)."""
        return self.facts.kernel.threads

    def arrays(self, along: str) -> tuple[str, ...]:
        """Return the arrays of a graph that it takes last, by their names."""
        return self.facts.arrays(along)
