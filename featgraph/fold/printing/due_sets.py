"""A kernel over sets and rows as a module, for any layout: see `lowering.due_sets`."""

from __future__ import annotations

from featgraph.fold.lowering.due_sets import SetFacts
from featgraph.fold.printing.cpu import unsigned_vertices
from featgraph.fold.printing.statements import print_body
from featgraph.fold.printing.writer import Writer
from featgraph.fold.syntax.unsigned_indices import unsigned_indices

__all__ = ["IN_CHUNKS", "print_due_set"]

#: What follows the name of a kernel that is called for each chunk.
IN_CHUNKS = "_in_chunks"
_HEADS = {
    "cpu": [
        "from numba import int64, njit, prange, uint32",
        "",
        "from featgraph.device import cpu",
        "",
        'CODE = {"error_model": "numpy", "cache": True}',
    ],
    "cuda": [
        "from numba import int32, int64, uint32, uint64",
        "",
        "from featgraph._cuda import cuda, kernel",
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
        decorator = "@kernel(cache=True)"
        body = unsigned_indices(body)
    else:
        decorator = "@njit(**CODE)"
        body = unsigned_vertices(body, traits.wide_offsets)
    for line in ("", "", decorator):
        writer.line(line)
    with writer.block(f"def {kernel.name}({', '.join(arguments)}):"):
        writer.line(f'"""{kernel.doc}"""')
        print_body(writer, body)
    if facts.is_cut:
        _print_chunks(writer, kernel.name, arguments[2:])
    return writer.text


def _print_chunks(writer: Writer, name: str, arguments: tuple[str, ...]) -> None:
    """Write what calls a kernel for each chunk, on all threads (CPU)."""
    for line in ("", "", "@njit(**CODE, parallel=True)"):
        writer.line(line)
    given = ", ".join(arguments)
    with (
        writer.block(f"def {name}{IN_CHUNKS}(chunks, {given}):"),
        writer.block("for chunk in prange(chunks.size - 1):"),
    ):
        writer.line(f"{name}(chunks[chunk], chunks[chunk + 1], {given})")
