"""A kernel over sets and rows as a module, for any layout: see `lowering.due_sets`."""

from __future__ import annotations

from featgraph.cuda.dialect import import_of_numbers
from featgraph.fold.passes.nests.due_sets import SetFacts
from featgraph.fold.printing.cpu import in_parallel, unsigned_vertices
from featgraph.fold.printing.statements import make_function, print_function
from featgraph.fold.printing.writer import Writer
from featgraph.fold.syntax.unsigned_indices import unsigned_indices

__all__ = ["IN_CHUNKS", "print_due_set"]

#: What follows the name of a kernel that is called for each chunk.
IN_CHUNKS = "_in_chunks"
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


def print_due_set(facts: SetFacts) -> str:
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
        of_all = kernel.name + IN_CHUNKS
        _, _, _, *inner = arguments
        swept = in_parallel(kernel.name, inner)
        given = ("chunks", *inner)
        print_function(writer, make_function(decorator, of_all, given, "", swept))
    return writer.text
