"""A folder of checkpoints, each of which is written as a whole or not at all.

::

    00000007/checkpoint.json     identity of the call, and checksums of the manifests
    00000007/state/...           a saved State: see `program.saved`
    00000007/record/...          arrays of the record
    00000007/round/...           the State at the start of the round, if there is one,
    00000007/round_record/...    and the other inputs of the round

A checkpoint is written to a folder ``.new-...``, which is renamed once all files are on
the disk. The two newest are kept. One that does not match its checksums is skipped, and
the older one is used. `CheckpointFolder` is the folder as a run uses it;
`newest_checkpoint` reads it from outside.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from featgraph.base.arguments import checked_arguments
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import CheckpointWarning, FileFormatError, StateError
from featgraph.base.files import (
    digest_of,
    lock_folder,
    rename_whole,
    sync_folder,
    temporary_folder,
    write_file,
)
from featgraph.program.saved import STATES, ManifestFormat, NewerFormatError

__all__ = ["CheckpointFolder", "FoundCheckpoint", "newest_checkpoint"]

#: Format of a checkpoint's manifest: file, kind, version, most bytes.
_FORMAT = ManifestFormat(
    "checkpoint.json", "checkpoint", 1, 1 << 28,
    fix="remove it, or choose another folder to begin anew",
    fix_newer="install a newer featgraph, or choose another folder to begin anew",
)  # fmt: skip
_wrong = _FORMAT.wrong
#: Names of folders: of a checkpoint, and of one that is being written or removed.
_NUMBER = re.compile(r"[0-9]{8,}")
_BESIDE = re.compile(r"\.(new|old)-[0-9a-f]{16}")
#: Number of whole checkpoints that are kept: the second is used if the newest is
#: damaged.
_KEPT = 2
#: Folders of a checkpoint; each has a saved State.
_PARTS = {"state", "record", "round", "round_record"}


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint that is whole.

    Attributes
    ----------
    path : Path
        The folder of the checkpoint.
    number : int
        Number of the checkpoint, counted over all runs in the folder.
    function : str
        The name of the algorithm, or "iterate".
    supersteps : int
        Number of supersteps of its run.
    ended : bool
        Whether the run had ended.
    """

    path: Path
    number: int
    function: str
    supersteps: int
    ended: bool


@checked_arguments
def newest_checkpoint(folder: str | os.PathLike[str]) -> FoundCheckpoint | None:
    """Return the newest checkpoint of a folder, which a run would be resumed from.

    It may be read while runs write; arrays are not checked.

    Parameters
    ----------
    folder : str or path
        The argument ``checkpoint=`` of the run.

    Returns
    -------
    FoundCheckpoint or None
        None if there is no checkpoint, or no such folder.

    Examples
    --------
    >>> import featgraph as fg, tempfile
    >>> from featgraph.algorithms import pagerank
    >>> graph = fg.Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pagerank(graph, checkpoint=folder, every=0)
    ...     found = fg.newest_checkpoint(folder)
    >>> found.function, found.ended
    ('pagerank', True)
    """
    for number, path in reversed(_numbered(Path(folder))):
        try:
            body = _FORMAT.parse(path, _FORMAT.read(path))
            return FoundCheckpoint(
                path, number, str(body["call"]["function"]) or "iterate",
                int(body["supersteps"]), bool(body["ended"]),
            )  # fmt: skip
        except (FileFormatError, KeyError, TypeError, ValueError):
            continue
    return None


class CheckpointFolder:
    """The folder of the checkpoints of a call, locked by this process.

    Parameters
    ----------
    path : Path

    Raises
    ------
    StateError
        If the folder has other files, or another run writes there.
    OSError
        If the folder cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Numbers of damaged checkpoints.
        self._damaged: set[int] = set()
        path.mkdir(parents=True, exist_ok=True)
        others = [p.name for p in path.iterdir() if not _is_ours(p.name)]
        if others:
            raise StateError(
                "the folder has other files",
                where=os.fspath(path),
                got=", ".join(sorted(others)[:3]),
                expected="no folder, an empty one, or one with checkpoints",
                fix="choose another folder for checkpoint=",
            )
        with contextlib.ExitStack() as opened:
            try:
                opened.enter_context(lock_folder(path, waits=False))
            except BlockingIOError as error:
                raise StateError(
                    "another run writes its checkpoints there",
                    where=os.fspath(path),
                    fix="wait for it, or choose another folder for checkpoint=",
                ) from error
            for left in path.iterdir():  # from processes that have ended
                if _BESIDE.fullmatch(left.name):
                    shutil.rmtree(left, ignore_errors=True)
            with self.beside() as probe:
                write_file(probe / "probe", [b"checkpoint"])
            #: Releases the lock.
            self.close = opened.pop_all().close

    def newest(self) -> tuple[Path, dict[str, Any]] | None:
        """Return the newest whole checkpoint, and its record; None if there is none.

        Raises
        ------
        FileFormatError
            If there are checkpoints but none is whole, or one is of a newer featgraph.
        """
        first: FileFormatError | None = None
        for number, path in reversed(_numbered(self.path)):
            try:
                body = _FORMAT.parse(path, _FORMAT.read(path))
                _verify(path, body)
            except NewerFormatError:
                raise
            except FileFormatError as error:
                first = first or error
                self._damaged.add(number)
                continue
            if first is not None:
                warnings.warn(
                    f"a checkpoint is damaged; an older one is used: {first}",
                    CheckpointWarning,
                    stacklevel=2,
                )
            return path, body
        if first is not None:
            raise FileFormatError(
                "no checkpoint is whole",
                where=os.fspath(self.path),
                got=first.what,
                fix="remove the folder to begin anew, or choose another one",
            ) from first
        return None

    def beside(self) -> contextlib.AbstractContextManager[Path]:
        """Return a context with a temporary folder, which is removed at its end."""
        return temporary_folder(self.path / f".new-{secrets.token_hex(8)}")

    def finish(self, beside: Path, body: dict[str, Any]) -> None:
        """Write the manifest of a checkpoint, and make it the newest."""
        manifests = {
            part.name: _digest_of_file(part / STATES.file)
            for part in sorted(beside.iterdir())
        }
        text = _FORMAT.text(body | {"manifests": manifests})
        write_file(beside / _FORMAT.file, [text])
        sync_folder(beside)
        known = _numbered(self.path)
        number = known[-1][0] + 1 if known else 1
        rename_whole(beside, self.path / f"{number:08d}")
        whole = [*(n for n, _ in known if n not in self._damaged), number]
        for old, path in known:
            if old not in whole[-_KEPT:]:
                self._remove(path)

    def _remove(self, path: Path) -> None:
        """Remove a checkpoint; rename it first, so that no part of it is ever read."""
        gone = self.path / f".old-{secrets.token_hex(8)}"
        with contextlib.suppress(OSError):  # the next process tries again
            path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def _is_ours(name: str) -> bool:
    """Whether a file has the name of a checkpoint, or of an unfinished one."""
    return bool(_NUMBER.fullmatch(name) or _BESIDE.fullmatch(name))


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints of a folder, oldest first."""
    try:
        found = [p for p in folder.iterdir() if _NUMBER.fullmatch(p.name)]
    except OSError:
        return []
    return sorted((int(path.name), path) for path in found)


def _verify(path: Path, body: dict[str, Any]) -> None:
    """Check the checksums of all files of a checkpoint."""
    manifests = body.get("manifests")
    if not isinstance(manifests, dict):
        raise _wrong(path, "no list of manifests")
    for part, checksum in manifests.items():
        if part not in _PARTS:
            raise _wrong(path, f"a part {part!r:.40}")
        folder = path / part
        _require_digest(folder / STATES.file, checksum)
        for name, sum_ in _files_of(STATES.parse(folder, STATES.read(folder))):
            _require_digest(folder / name, sum_)


def _files_of(tree: Any) -> Iterator[tuple[str, str]]:
    """Generate the files that a manifest names, with their checksums."""
    if isinstance(tree, dict):
        if set(tree) == {"file", "sha256"}:
            yield Path(str(tree["file"])).name, tree["sha256"]
        else:
            for part in tree.values():
                yield from _files_of(part)
    elif isinstance(tree, list):
        for part in tree:
            yield from _files_of(part)


def _require_digest(path: Path, checksum: object) -> None:
    """Raise FileFormatError if a file does not have a checksum."""
    if _digest_of_file(path) != checksum:
        raise _wrong(path, "another checksum")


def _digest_of_file(path: Path) -> str:
    try:
        return digest_of(path)
    except OSError as error:
        raise _wrong(path, error) from error
