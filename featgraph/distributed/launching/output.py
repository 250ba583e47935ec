"""Where the output of ranks goes: to ours, with their numbers, or to files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

__all__ = ["Output"]


class Output:
    """Writes what ranks print.

    Parameters
    ----------
    size : int
        How many ranks there are; of a single one lines have no number.
    folder : Path, optional
        Each rank has a file there for each attempt: ``0-rank3.out`` and ``.err``. By
        default lines go to our output, each behind the number of its rank.
    """

    def __init__(self, size: int, folder: Path | None = None) -> None:
        self._size, self._folder = size, folder
        self._files: dict[str, IO[str]] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def print(self, attempt: int, rank: int, name: str, line: str) -> None:
        """Write a line of a rank's "out" or "err"."""
        stream = sys.stderr if name == "err" else sys.stdout
        if self._folder is not None:
            file = f"{attempt}-rank{rank}.{name}"
            if file not in self._files:
                self._files[file] = (self._folder / file).open("w", encoding="utf-8")
            stream = self._files[file]
        elif self._size > 1:
            line = f"[{rank}] {line}"
        stream.write(line + "\n")
        stream.flush()

    def close(self) -> None:
        """Close files."""
        while self._files:
            self._files.popitem()[1].close()
