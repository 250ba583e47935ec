"""Checks of a text file that need all of its lines, which several ranks may read."""

from __future__ import annotations

from featgraph.base.errors import FileFormatError
from featgraph.graph.formats.matrix_market import fail_triangles
from featgraph.graph.formats.ranges import Block, Layout, line_at

__all__ = ["Seen"]


class Seen:
    """Statistics of the lines that begin in a range of a file.

    Parameters
    ----------
    layout : Layout

    Attributes
    ----------
    count : int
        Number of edges.
    highest : int
        The highest id; -1 without edges.
    least : int
        The lowest id; 0 without edges.
    above, below : bool
        Whether there is an entry on this side of the diagonal.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.count, self.highest, self.least = 0, -1, 0
        self._above: tuple[int, int] | None = None
        self.below = False
        self._blocks: list[tuple[int, int]] = []

    @property
    def above(self) -> bool:
        """Whether there is an entry above the diagonal."""
        return self._above is not None

    def add(self, block: Block) -> None:
        """Update the statistics with some edges."""
        self._blocks.append((self.count, block.begin))
        self.count += block.sources.size
        for ends in (block.sources, block.targets):
            self.highest = max(self.highest, int(ends.max(initial=-1)))
            self.least = min(self.least, int(ends.min(initial=0)))
        if block.above >= 0 and self._above is None:
            self._above = block.begin, block.above
        self.below |= block.below >= 0

    def check(self, total: int, sides: tuple[bool, bool], before: int = 0) -> None:
        """Check that all lines together match the header of the file.

        Parameters
        ----------
        total : int
            Number of edges in the file.
        sides : tuple of 2 bool
            Whether the file has entries above, and below the diagonal.
        before : int
            Number of edges in earlier ranges.

        Raises
        ------
        FileFormatError
            On the rank that has the wrong line, or on all ranks if lines are missing.
        """
        layout, most = self._layout, self._layout.entries
        if most is not None and before <= most < before + self.count:
            row = most - before
            first, begin = next(b for b in reversed(self._blocks) if b[0] <= row)
            text, position = line_at(layout, begin, row - first)
            text.fail(
                "more entries than the header says",
                position,
                expected=f"{most} entries",
            )
        if most is not None and total < most:
            raise FileFormatError(
                "fewer entries than the header says",
                where=layout.path,
                got=f"{total} entries before the end of the file",
                expected=f"{most} entries",
                fix="the file is truncated: fetch it again",
            )
        if all(sides) and self._above is not None:
            fail_triangles(*line_at(layout, *self._above))
        if not total and layout.vertex_count is None:
            raise FileFormatError(
                "no edges",
                where=layout.path,
                got="the end of the file",
                expected="lines of two vertex ids",
                fix="pass vertex_count= and names=False for a graph without edges",
            )
