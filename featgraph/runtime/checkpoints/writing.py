"""Writing checkpoints beside a run; with several ranks, by the first of them."""

from __future__ import annotations

import threading
import time
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from featgraph._activity import doing
from featgraph.errors import CheckpointWarning, DistributedError
from featgraph.graph import Graph
from featgraph.program.saved import write_state
from featgraph.program.snapshot import Snapshot
from featgraph.runtime.checkpoints.folder import CheckpointFolder

__all__ = ["Content", "Writer"]

#: What a write may meet that is no fault of the program's.
_FAILURES = (OSError, MemoryError)


@dataclass(frozen=True)
class Content:
    """What a checkpoint has.

    Attributes
    ----------
    body : dict
        Its record, in JSON.
    graph : Graph
        That of all its parts.
    parts : dict of str to Snapshot
        What is saved, by the name of its folder; nothing else writes it.
    """

    body: dict[str, Any]
    graph: Graph
    parts: dict[str, Snapshot] = field(default_factory=dict)


class Writer:
    """Writes one checkpoint at a time, on a thread of its own.

    Ranks hand their rows to the first one piece by piece, between two supersteps: so a
    run waits for that there.

    Parameters
    ----------
    folder : CheckpointFolder or None
        None on ranks but the first.
    """

    def __init__(self, folder: CheckpointFolder | None) -> None:
        self._folder = folder
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._has_warned = False
        #: How long the last write took, in s.
        self.seconds = 0.0

    @property
    def is_free(self) -> bool:
        """Whether nothing is being written."""
        return self._thread is None or not self._thread.is_alive()

    def write(self, content: Content) -> None:
        """Begin to write a checkpoint; what was written before has ended then."""
        self.wait()
        if content.graph.ranks is not None:
            self._write(content)
            self._report()
            return
        self._thread = threading.Thread(
            target=self._write, args=(content,), name="featgraph checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._report()

    def _write(self, content: Content) -> None:
        begun = time.perf_counter()
        try:
            with doing("writing", "a checkpoint"), ExitStack() as ends:
                self._write_on(content, ends)
        except BaseException as error:
            self._error = error
        self.seconds = time.perf_counter() - begun

    def _write_on(self, content: Content, ends: ExitStack) -> None:
        folder, graph = self._folder, content.graph

        def begin() -> Path:
            return Path() if folder is None else ends.enter_context(folder.beside())

        about = "writing a checkpoint"
        beside = begin() if graph.ranks is None else graph.ranks.on_all(begin, about)
        for name, snapshot in content.parts.items():
            write_state(beside / name, graph, snapshot)
        if folder is not None:
            folder.finish(beside, content.body)

    def _report(self) -> None:
        """Say once that writes fail; the run goes on, and later ones are tried."""
        error, self._error = self._error, None
        if error is None:
            return
        is_told = type(error) is DistributedError  # of the first rank's failure
        if not (is_told or isinstance(error, _FAILURES)):
            raise error
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"a checkpoint could not be written, the run goes on: {error}",
                CheckpointWarning,
                stacklevel=2,
            )
