"""The store: compiled functions on disk, checked before they are read.

``kept``                have a function of the package stored and looked up here
``njit``                Numba's decorator, with shielded compilation; stored here
``jit``                 the decorator of host loops: `njit` that releases the GIL
``guard_disk_cache``    the same as `kept`, for all functions of a generated module
``is_stored``           whether code of a function is stored for argument types
``store_directory``     folder of the store
``source_digest``       digest of a text and of all versions that code depends on

Files carry this digest in their names: of a generated module, or of the module of the
package that a function stands in. Times of files are not compared, since copies of the
package and layers of container images change them.

Numba's files are pickles, which Numba does not verify: a truncated or corrupted one
ends in an error of `pickle`, or in wrong machine code, and a file of another user can
execute any code. Here, such a file counts as absent; directories and files are private
to their owner (`featgraph.base.files`). The compiler looks up each function here before
it compiles it, and stores the result. `COMPILATION` logs both, and writes one message
in a process if compiling takes long.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import pickle
import re
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar, cast

from featgraph.base.config import VERSION, config
from featgraph.base.errors import CacheWarning
from featgraph.base.files import (
    DistrustedError,
    load_json,
    make_private,
    read_private,
    replace_private,
    why_distrusted,
)
from featgraph.base.interrupts import (
    BACKGROUND,
    import_whole,
    with_shielded_compilation,
)

__all__ = [
    "COMPILATION", "COMPILED", "CheckedFile", "forget", "guard_disk_cache",
    "is_stored", "jit", "kept", "njit", "private_directory", "shared_folders",
    "source_digest", "store_directory",
]  # fmt: skip

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: Size of the checksum at the end of each file.
_SUM_BYTES = hashlib.sha256().digest_size

#: Seconds of compiling after which the message is written.
_PATIENCE_S = 2.0
_LOG = logging.getLogger("featgraph")


class Compilation:
    """Measure and log the compilation of functions; announce it if it takes long.

    The time of nested compilations counts once. The elapsed time is checked before each
    function is compiled; no thread watches it.

    Attributes
    ----------
    program : str
        Program whose module was loaded last, for the message.
    seconds : float
        Seconds of compiling so far, without that on background threads.
    is_announced : bool
        Whether the message was written.
    """

    def __init__(self) -> None:
        self.program = "a program"
        self.seconds = 0.0
        self.is_announced = False
        #: For each thread: function and types -> time of its begin, and `seconds` then.
        #: A compilation that fails has no end: its entry goes with its thread.
        self._begun = threading.local()

    def begin(self, file: CheckedFile, key: str) -> None:
        """Record that the compilation of a function begins; announce it if due."""
        now, begun = time.perf_counter(), vars(self._begun)
        first, before = min(begun.values(), default=(now, self.seconds))
        if now - first + before >= _PATIENCE_S and not _is_in_background():
            self._announce(file)
        begun[file.name + key] = now, self.seconds

    def end(self, file: CheckedFile, key: str) -> None:
        """Record that a function is compiled: add its time, without nested ones."""
        now = time.perf_counter()
        begun, before = vars(self._begun).pop(file.name + key, (now, self.seconds))
        took = now - begun - (self.seconds - before)
        if not _is_in_background():
            self.seconds += took
        _LOG.info("compiled %s for the %s in %.2f s", file.name, file.target, took)

    def _announce(self, file: CheckedFile) -> None:
        """Print the message to a terminal, once in a process."""
        if self.is_announced or not config.messages or not _is_terminal(sys.stderr):
            return
        self.is_announced = True
        store = os.path.realpath(config.cache_dir)
        kept = "for this process only"
        if config.cache and file.folder.is_relative_to(store):
            home = os.path.expanduser("~")
            if store.startswith(home + os.sep):
                store = "~" + store.removeprefix(home)
            kept = f"once per machine; kept in {store}"
        print(
            f"featgraph: compiling kernels of {self.program} "
            f"for the {file.target} ({kept})",
            file=sys.stderr, flush=True,
        )  # fmt: skip


def _is_in_background() -> bool:
    return threading.current_thread().name == BACKGROUND


def _is_terminal(stream: Any) -> bool:
    return stream is not None and bool(stream.isatty())


#: Log of all compiling in this process.
COMPILATION = Compilation()


class CheckedFile:
    """Index and data files of one function, with checksums; replaces Numba's class.

    Each file ends with a checksum of its contents. The checksum of a data file also
    covers its signature, since two processes may give one number to different
    signatures. The index stores signatures as text: their types include namedtuples of
    all modules that called the function, and a process can compare texts without
    importing these modules.

    Parameters
    ----------
    replaced : object
        Cache object of Numba, or of numba-cuda, that this replaces.
    folder : Path
        Folder of the files.
    shared : sequence of Path, optional
        Folders of root or of this user, which are searched first and never written.

    Attributes
    ----------
    name : str
        Names of module and function, without digests.
    target : str
        "CPU" or "GPU".
    """

    def __init__(
        self, replaced: Any, folder: Path, shared: Sequence[Path] = ()
    ) -> None:
        self._replaced = replaced
        self.folder = folder
        self._folders = (*shared, folder)
        self._index = folder / replaced._index_name
        self.name = re.sub(r"(_[0-9a-f]{32})|(-\d+\..*)", "", replaced._index_name)
        is_for_gpu = "cuda" in type(replaced).__module__
        self.target = "GPU" if is_for_gpu else "CPU"

    def flush(self) -> None:
        """Remove all stored signatures."""
        self._write(self._index, self._index_content({}), b"")

    def save(self, key: Any, data: Any) -> None:
        """Store the code compiled for a signature."""
        names, signature = self._load_index(self.folder), repr(key)
        COMPILATION.end(self, signature)
        try:
            if signature not in names:
                taken, number = set(names.values()), 1
                while self._replaced._data_name(number) in taken:
                    number += 1
                names[signature] = self._replaced._data_name(number)
                self._write(self._index, self._index_content(names), b"")
            content = self._replaced._dump(data)
            self._write(self.folder / names[signature], content, signature.encode())
        except OSError as error:
            warnings.warn(
                f"{self._index} cannot be written ({error}); "
                "the kernel is compiled again in the next process",
                CacheWarning,
                stacklevel=2,
            )

    def load(self, key: Any) -> Any:
        """Return the stored code for a signature, or None."""
        signature = repr(key)
        for folder in self._folders:
            name = self._load_index(folder).get(signature)
            # The signature is part of the checksum: code for another one is refused.
            content = name and self._read(folder / name, signature.encode())
            if content:
                _LOG.debug("loaded %s for the %s", self.name, self.target)
                return pickle.loads(content)  # noqa: S301
        COMPILATION.begin(self, signature)
        return None

    def has(self, key: Any) -> bool:
        """Return whether code is stored for a signature, without reading the code."""
        found = ((at, self._load_index(at).get(repr(key))) for at in self._folders)
        return any(name is not None and (at / name).is_file() for at, name in found)

    def _index_content(self, names: dict[str, str]) -> bytes:
        return json.dumps([self._made_by(), names]).encode()

    def _load_index(self, folder: Path) -> dict[str, str]:
        content = self._read(folder / self._index.name, b"")
        if content is None:
            return {}
        try:
            made_by, names = load_json(content)
        except ValueError:  # of a release that wrote another form
            return {}
        return names if made_by == self._made_by() else {}

    def _made_by(self) -> str:
        """Return the version of the compiler that wrote an index.

        Numba also stores the modification time of the module. It is left out here:
        layers of container images truncate it to seconds, and the digest in the file
        name identifies the text already.
        """
        return str(self._replaced._version)

    def _read(self, path: Path, salt: bytes) -> bytes | None:
        """Return the contents of a file, or None if they must not be used."""
        is_shared = path.parent != self.folder
        try:
            problem = why_distrusted(path.parent, or_root=is_shared)
            if problem:
                raise DistrustedError(f"is not to be trusted: {problem}")
            content = read_private(path, or_root=is_shared)
        except DistrustedError as error:
            _warn(path, str(error))
            return None
        except OSError:
            return None
        inner, checksum = content[:-_SUM_BYTES], content[-_SUM_BYTES:]
        if hashlib.sha256(salt + inner).digest() == checksum:
            return inner
        _warn(path, "is damaged")
        if not is_shared:
            path.unlink(missing_ok=True)
        return None

    def _write(self, path: Path, content: bytes, salt: bytes) -> None:
        """Write a temporary file and rename it; only the owner may write it.

        Folders of other users are never written.
        """
        if why_distrusted(self.folder):
            return
        digest = hashlib.sha256(salt + content).digest()
        replace_private(path, [content, digest])


def guard_disk_cache(
    module: ModuleType, folder: Path, shared: Sequence[Path] = ()
) -> None:
    """Replace the cache files of all functions of a module by checked ones."""
    for value in vars(module).values():
        cache: Any = getattr(value, "_cache", None)
        replaced = getattr(cache, "_cache_file", None)
        if isinstance(replaced, _FileAtFirstUse):  # `dialect.kernel` made it
            replaced = replaced.replaced
        if replaced is not None and not isinstance(replaced, CheckedFile):
            cache._cache_file = CheckedFile(replaced, folder, shared)


def is_stored(function: Any, types: Sequence[Any]) -> bool:
    """Return whether compiled code of a function for argument types is stored.

    This uses private names of Numba, as `CheckedFile` does.

    Parameters
    ----------
    function : object
        A dispatcher of Numba, or of its dialect for CUDA.
    types : sequence
        Types of Numba.
    """
    cache: Any = getattr(function, "_cache", None)
    files: Any = getattr(cache, "_cache_file", None)
    if not hasattr(files, "has"):  # Numba's own
        return False
    codegen = function.targetctx.codegen()
    return bool(files.has(cache._index_key(tuple(types), codegen)))


def _warn(path: Path, problem: str) -> None:
    warnings.warn(
        f"{path} {problem}; the kernel is compiled again", CacheWarning, stacklevel=2
    )


#: Folder of compiled kernels, in that of the modules.
COMPILED = "__pycache__"


def forget(path: Path) -> None:
    """Remove the cache files of Numba for a module."""
    for stored in path.parent.glob(f"{COMPILED}/{path.stem}.*"):
        if stored.suffix in {".nbi", ".nbc"}:
            stored.unlink(missing_ok=True)


def store_directory() -> Path:
    """Return the directory of the store, created if it does not exist.

    A private temporary directory is returned if the configured one is switched off,
    cannot be created, or cannot be trusted.
    """
    if not config.cache:
        return private_directory()
    path = Path(os.path.realpath(config.cache_dir)) / "kernels"
    try:
        make_private(path / COMPILED)
        problem = why_distrusted(path / COMPILED, own=2)
    except OSError as error:
        problem = f"{path} cannot be made ({error})"
    if problem:
        warnings.warn(f"{problem}; kernels are not stored", CacheWarning, stacklevel=2)
        return private_directory()
    return path


def shared_folders() -> list[Path]:
    """Return the trusted folders from which compiled code is only read."""
    found = []
    for place in config.cache_path:
        folder = Path(os.path.realpath(place)) / "kernels" / COMPILED
        try:
            problem = why_distrusted(folder, own=3, or_root=True)
        except OSError as error:
            problem = f"{folder} cannot be read ({error})"
        if problem:
            _warn_once(f"{problem}; no kernels are loaded from {place}")
        else:
            found.append(folder)
    return found


@cache
def _warn_once(text: str) -> None:
    warnings.warn(text, CacheWarning, stacklevel=2)


@cache
def private_directory() -> Path:
    """Return the temporary store of this process, which is removed at its exit."""
    path, process = Path(tempfile.mkdtemp(prefix="featgraph-")), os.getpid()
    make_private(path / COMPILED)

    def remove() -> None:
        if os.getpid() == process:  # not at the end of a forked child
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    return path


@cache
def _versions() -> tuple[str, ...]:
    """Return the versions and settings on which compiled code depends.

    The device library enters by a digest of its files.
    """
    versions = [f"python {sys.version}"]
    for package in ("numba", "llvmlite", "numba-cuda", "numpy"):
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    root = Path(__file__).parents[1]
    others = [
        root / "base/files.py", root / "base/store.py", root / "cuda/dialect.py",
        root / "cuda/intrinsics.py", root / "fold/compiling/compile.py",
    ]  # fmt: skip
    for source in sorted([*root.glob("device/*.py"), *others]):
        versions.append(hashlib.sha256(source.read_bytes()).hexdigest())
    return tuple(versions)


def source_digest(text: str) -> str:
    """Return the digest of a text and of all versions that its code depends on."""
    content = "\n".join([text, *_versions()]).encode()
    return hashlib.sha256(content).hexdigest()[:32]


# -- functions of the package


class _FileAtFirstUse:
    """Stand-in for the files of a function until they are read or written.

    Until then, settings may name another store.

    Parameters
    ----------
    cache : object
        Cache of Numba, or of numba-cuda, whose files are replaced.
    module : str
        Path of the module of the package.

    Attributes
    ----------
    replaced : object
        Numba's files.
    """

    def __init__(self, cache: Any, module: str) -> None:
        self._cache, self._module = cache, module
        self.replaced = cache._cache_file

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # such as those that copies look for
            raise AttributeError(name)
        stem, _, rest = self.replaced._index_name.removesuffix(".nbi").partition(".")
        named = f"{stem}_{_module_digest(self._module)}.{rest}"
        folder = store_directory() / COMPILED
        files = type(self.replaced)(str(folder), named, None)
        made = CheckedFile(files, folder, shared_folders())
        self._cache._cache_file = made
        return getattr(made, name)


@cache
def _module_digest(path: str) -> str:
    # The version stands for other modules whose functions it calls.
    return source_digest(f"{VERSION}\n{Path(path).read_text(encoding='utf-8')}")


def kept(function: Any) -> Any:
    """Have code of a function of the package stored as that of generated modules.

    Parameters
    ----------
    function : object
        A dispatcher of Numba, or of its dialect for CUDA.

    Returns
    -------
    object
        The same one.
    """
    cache: Any = getattr(function, "_cache", None)
    if hasattr(cache, "_cache_file"):
        cache._cache_file = _FileAtFirstUse(cache, function.__code__.co_filename)
    return function


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return Numba's decorator with some options and shielded compilation."""
    decorate = import_whole("numba").njit(**options)
    return lambda function: kept(with_shielded_compilation(decorate(function)))


def jit(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Compile a host loop for the argument types of its first call; cached on disk.

    The loop releases the GIL. Modules of such loops are imported inside functions only,
    so that ``import featgraph`` does not import Numba.
    """
    try:
        compiled = njit(cache=True, nogil=True)(function)
    except RuntimeError:
        # Numba raises here if neither the package's folder nor the user's cache is
        # writable. Compile in each process instead.
        compiled = njit(nogil=True)(function)
    return cast("Callable[_P, _T]", compiled)
