"""Sizes of the buffers that slices come to, and sizes in words."""

from __future__ import annotations

__all__ = [
    "ALIGNED",
    "MOVING",
    "buffers_in",
    "least_room",
    "rounded",
    "shown",
]

#: Parts of a buffer begin at multiples of so many bytes, as arrays of the driver do.
ALIGNED = 256
#: Bytes of a buffer. A copy of the largest takes 5 ms at 55 GB/s, some hundred times
#: what launching its sweep does; the smallest is what is worth a launch at all. Both
#: are assumed, not measured.
LEAST_BUFFER, MOST_BUFFER = 1 << 20, 1 << 28
#: Most buffers.
MOST_BUFFERS = 256
#: Buffers through which slices pass; others keep the slice that came first.
MOVING = 2
#: Share of what is left that buffers leave for values of States to come.
_LEFT = 16


def least_room() -> int:
    """Return the fewest bytes in which there are buffers."""
    return (MOVING + 1) * LEAST_BUFFER


def buffers_in(room: int) -> tuple[int, int]:
    """Return how many bytes each buffer has in so many, and how many there are.

    There is room for one more: for lists of the vertices of a slice.
    """
    left = max(room - room // _LEFT, min(room, least_room()))
    size = rounded(max(min(MOST_BUFFER, left // (MOVING + 1)), LEAST_BUFFER))
    return size, min(max(left // size - 1, MOVING), MOST_BUFFERS)


def rounded(size: int) -> int:
    """Return the largest number of bytes up to some, of which all parts are aligned."""
    return size // ALIGNED * ALIGNED


def shown(size: int) -> str:
    """Return a number of bytes in words."""
    for unit, each in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size >= each:
            return f"{size / each:.3g} {unit}"
    return f"{size} bytes"
