"""Prints how lanes, and the warps of a block, combine what each has accumulated."""

from __future__ import annotations

from featgraph.fold.codegen.kernels.accumulators import Accumulator, source_name
from featgraph.fold.codegen.text.writer import Writer
from featgraph.fold.lowering.meets import box_dtypes

__all__ = [
    "WARP",
    "combines_four",
    "print_block_combine",
    "print_four_combine",
    "print_span_combine",
]

WARP = 32


def print_span_combine(
    writer: Writer, accumulator: Accumulator, name: str, lanes: int, span: int
) -> None:
    """Combine the same lane of all groups of a span by shuffles."""
    function = f"warp.slot_{accumulator.combine.name}"
    names = f"{name}, {source_name(name)}" if accumulator.is_arg else name
    writer.line(f"{names} = {function}({names}, {lanes}, {span})")


def combines_four(accumulator: Accumulator, copies: int, slots: int) -> bool:
    """Return whether copies of an accumulator are combined four at a time.

    That takes as many shuffles for four as for two where a span has eight slots.
    """
    shuffled = accumulator.rules.by_fours
    return shuffled and copies % 4 == 0 and slots >= 8


def print_four_combine(
    writer: Writer, accumulator: Accumulator, names: list[str], lanes: int, span: int
) -> None:
    """Combine the same lane of all groups of a span, four copies at a time."""
    function = f"warp.slot_{accumulator.combine.name}_4"
    for first in range(0, len(names), 4):
        four = ", ".join(names[first : first + 4])
        writer.line(f"{four} = {function}({four}, {lanes}, {span})")


def print_block_combine(
    writer: Writer,
    accumulator: Accumulator,
    name: str,
    lanes: int,
    threads: int,
    real: str,
) -> None:
    """Combine the same lane of all groups of a block.

    First by shuffles, then through shared memory and in order, so that the result is
    repeatable. A combine of the user's has no shuffles.
    """
    shuffled = not accumulator.combine.is_custom
    if shuffled and lanes < WARP:
        print_span_combine(writer, accumulator, name, lanes, WARP)
    row = WARP if shuffled else lanes
    box = f"box_{box_dtypes(accumulator, real)[0]}"
    is_bool = accumulator.type == "bool"
    writer.line(f"{box}[thread] = {f'int32({name})' if is_bool else name}")
    if accumulator.is_arg:
        writer.line(f"box_source[thread] = {source_name(name)}")
    writer.line("cuda.syncthreads()")
    for line in accumulator.start(name):
        writer.line(line)
    lane = " + lane" if lanes > 1 else ""
    with writer.block(f"for row in range({threads // row}):"):
        writer.line(f"member = uint32(row * {row}{lane})")
        value = f"{box}[member]{' != 0' if is_bool else ''}"
        pair = f"{value}, box_source[member]" if accumulator.is_arg else value
        for line in accumulator.take(name, pair, "warp"):
            writer.line(line)
    writer.line("cuda.syncthreads()")
