"""Generated text as a module, and the disk cache of compiled kernels.

`load_module` is the only place that executes generated code. Modules are in a
content-addressed store: the name of a module's file has a digest of its text, and of
all versions on which compiled code depends. The text includes the user functions, the
functions that they call, and captured constants. Numba's disk cache is in a folder
beside the modules, keyed by module file. It consists of pickles, so directories and
files are private to their owner and are checked (`featgraph.base.files`).

Numba does not verify its cache: a truncated or corrupted file ends in an error of
`pickle`, or in wrong machine code, and a file of another user can execute any code.
`CheckedFile` replaces Numba's access to these files, and treats such a file as absent.
`COMPILATION` logs each function that is loaded or compiled, and writes one message in a
process if compiling takes long.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import hashlib
import importlib.util
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
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Protocol

from featgraph.base.config import config
from featgraph.base.errors import CacheWarning, FeatGraphError, UserFunctionError
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
from featgraph.fold.printing.module import KernelSource

__all__ = [
    "COMPILATION", "CheckedFile", "check_module", "explain_numba_error",
    "guard_disk_cache", "is_stored", "load_module",
]  # fmt: skip

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
        if replaced is not None and not isinstance(replaced, CheckedFile):
            cache._cache_file = CheckedFile(replaced, folder, shared)


def is_stored(function: Any, types: Sequence[Any]) -> bool:
    """Return whether compiled code of a function for argument types is stored.

    This uses private names of Numba, as `CheckedFile` does.

    Parameters
    ----------
    function : object
        A dispatcher of Numba, or of its dialect for CUDA, in a generated module.
    types : sequence
        Types of Numba.
    """
    cache: Any = getattr(function, "_cache", None)
    files = getattr(cache, "_cache_file", None)
    if not isinstance(files, CheckedFile):
        return False
    codegen = function.targetctx.codegen()
    return files.has(cache._index_key(tuple(types), codegen))


def _warn(path: Path, problem: str) -> None:
    warnings.warn(
        f"{path} {problem}; the kernel is compiled again", CacheWarning, stacklevel=2
    )


class _TextLoader(SourceFileLoader):
    """Loader that executes the given text, not a file or cached bytecode."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        super().__init__(name, str(path))
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        """Return the compiled text."""
        return self.source_to_code(self._text.encode(), self.path)


class Source(Protocol):
    """Interface of objects that `load_module` loads."""

    @property
    def text(self) -> str:
        """Text of the module."""

    @property
    def stem(self) -> str:
        """Beginning of the file name, readable."""

    @property
    def program(self) -> str:
        """Name of the program, for messages; "" where all programs share the module."""


def load_module(source: Source) -> ModuleType:
    """Write the text of a module to the store, import it, and return the module.

    With a file, tracebacks, profilers and Numba's disk cache work as for any module.
    """
    COMPILATION.program = source.program or COMPILATION.program
    path = module_path(source.text, source.stem)
    name = f"featgraph_kernel_{path.stem}"
    import_whole("numba")  # with the first kernel, not with featgraph
    from numba.core.compiler_lock import global_compiler_lock

    # Another thread may be importing this module. A fork waits for this lock, so that
    # no child has half of a module.
    with global_compiler_lock:
        known = sys.modules.get(name)
        if known is not None and known.__file__ == str(path):
            return known
        return _import_text(name, path, source.text)


def _import_text(name: str, path: Path, text: str) -> ModuleType:
    """Import a text under a name; failed imports leave no module behind."""
    loader = _TextLoader(name, path, text)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:  # never, since a loader is given
        raise ImportError(str(path))
    module = importlib.util.module_from_spec(spec)
    # Numba's cache finds the namedtuple by its module's name.
    sys.modules[name] = module
    try:
        loader.exec_module(module)
        # Numba identifies namedtuples by class name and fields; if two are equal, it
        # searches the kernel at every launch, which takes a quarter of a millisecond.
        # Pickle uses __qualname__, which remains.
        if hasattr(module, "Data"):
            module.Data.__name__ = path.stem
        guard_disk_cache(module, path.parent / COMPILED, _shared_folders())
        for value in vars(module).values():
            if hasattr(value, "_compile_for_args"):
                with_shielded_compilation(value)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def check_module(text: str) -> None:
    """Parse generated text, and check that all names in it are bound somewhere.

    Raises
    ------
    FeatGraphError
        If a name is unbound or the text does not parse: a fault of the folder, not of
        the user.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise FeatGraphError(
            "the generated module does not parse",
            where=f"line {error.lineno}",
            got=error.text,
        ) from error
    bound: set[str] = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(a.asname or a.name).split(".")[0] for a in node.names}
        elif isinstance(node, ast.FunctionDef):
            bound |= {node.name, *(a.arg for a in node.args.args)}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in bound:
            raise FeatGraphError(
                f"the generated module uses {node.id!r}, which is unbound",
                where=f"line {node.lineno}",
            )


def explain_numba_error(
    sources: Sequence[KernelSource], error: Exception
) -> UserFunctionError:
    """Return an error with the user's file and line, and the message of Numba.

    `sources` are the generated modules whose lines the message may contain; each has
    the user's line for its own lines (`origins`).
    """
    text = str(error)
    files = {Path(str(load_module(s).__file__)).name: s.origins for s in sources}
    found = re.findall(r'File "([^"]+)", line (\d+)', text)
    lines = [(files.get(Path(file).name, {}), int(number)) for file, number in found]
    places = [origins[number] for origins, number in lines if number in origins]
    where = f"{places[-1][0]}:{places[-1][1]}" if places else None
    first = next(
        (x for x in text.splitlines() if x.strip() and "Failed in" not in x), text
    )
    return UserFunctionError(
        "the compiler refuses this function",
        where=where,
        got=re.sub(r"\x1b\[[0-9;]*m", "", first).strip(),
        expected="numbers, properties, functions of math, featgraph operations",
        fix="the compiler's whole text is the cause of this error",
    )


#: Folder of compiled kernels, in that of the modules.
COMPILED = "__pycache__"


def module_path(text: str, stem: str) -> Path:
    """Write `text` to the store, unless it exists; return its path.

    Only texts that `check_module` has checked are written.

    Parameters
    ----------
    text : str
        The generated module.
    stem : str
        Beginning of the file name, readable; an identifier.
    """
    digest = hashlib.sha256("\n".join([text, *_versions()]).encode()).hexdigest()[:32]
    path = store_directory() / f"{stem[:40]}_{digest}.py"
    problem = "was damaged"
    try:
        if read_private(path) == text.encode():
            return path
    except DistrustedError as error:
        problem = str(error)
    except FileNotFoundError:  # another process may write it from here on
        problem = ""
    except OSError:  # cannot be read, as if it were damaged
        pass
    if problem and os.path.lexists(path):
        warnings.warn(
            f"{path} {problem} and is written again", CacheWarning, stacklevel=2
        )
        forget(path)
    check_module(text)
    try:
        _write_whole(path, text)
    except OSError as error:
        warnings.warn(
            f"{path.parent} cannot be written ({error}); kernels are not stored",
            CacheWarning,
            stacklevel=2,
        )
        path = _private_directory() / path.name
        _write_whole(path, text)
    return path


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
        return _private_directory()
    path = Path(os.path.realpath(config.cache_dir)) / "kernels"
    try:
        make_private(path / COMPILED)
        problem = why_distrusted(path / COMPILED, own=2)
    except OSError as error:
        problem = f"{path} cannot be made ({error})"
    if problem:
        warnings.warn(f"{problem}; kernels are not stored", CacheWarning, stacklevel=2)
        return _private_directory()
    return path


def _shared_folders() -> list[Path]:
    """Return the trusted folders from which compiled kernels are only read."""
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
def _private_directory() -> Path:
    """Create a temporary directory, which the process removes at its exit."""
    path, process = Path(tempfile.mkdtemp(prefix="featgraph-")), os.getpid()
    make_private(path / COMPILED)

    def remove() -> None:
        if os.getpid() == process:  # not at the end of a forked child
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    return path


def _write_whole(path: Path, text: str) -> None:
    """Write a temporary file and rename it, so that readers see whole files only."""
    replace_private(path, [text.encode()])


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
    root = Path(__file__).parents[2]
    names = ("cuda/dialect.py", "base/files.py", "fold/compiling/compile.py")
    others = [root / name for name in names]
    for source in sorted([*root.glob("device/*.py"), *others]):
        versions.append(hashlib.sha256(source.read_bytes()).hexdigest())
    return tuple(versions)
