"""Numba's disk cache, with a checksum behind each file.

Numba trusts what it finds: a cut or flipped file ends in an error of `pickle`, or in
machine code that computes something else. Here such a file counts as absent.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from numba.core import caching

from featgraph.errors import CacheWarning

__all__ = ["guard_disk_cache"]

_SUM_BYTES = hashlib.sha256().digest_size


class _Summing:
    """A file that sums what is written to it."""

    def __init__(self, file: Any, salt: bytes) -> None:
        self.file = file
        self.sum = hashlib.sha256(salt)

    def write(self, data: bytes) -> Any:
        self.sum.update(data)
        return self.file.write(data)


class _CheckedFile(caching.IndexDataCacheFile):  # type: ignore[misc]
    """Index and data files with the sum of their contents behind them.

    `pickle` ignores what follows a pickle, so that Numba's own reading need not change.
    The sum of a data file also covers its key: two processes may give one number to
    different signatures.
    """

    key = b""

    def save(self, key: Any, data: Any) -> None:
        self.key = repr(key).encode()
        try:
            super().save(key, data)
        except OSError as error:
            warnings.warn(
                f"{self._index_path} cannot be written ({error}); "
                "the kernel is compiled again in the next process",
                CacheWarning,
                stacklevel=2,
            )

    def load(self, key: Any) -> Any:
        self.key = repr(key).encode()
        return super().load(key)

    @contextmanager
    def _open_for_write(self, path: str) -> Iterator[_Summing]:
        with super()._open_for_write(path) as file:
            summing = _Summing(file, self._salt(path))
            yield summing
            file.write(summing.sum.digest())

    def _load_index(self) -> Any:
        if self._is_damaged(self._index_path):
            return {}
        return super()._load_index()

    def _load_data(self, name: str) -> Any:
        if self._is_damaged(self._data_path(name)):
            return None
        return super()._load_data(name)

    def _salt(self, path: str) -> bytes:
        return self.key if path.endswith(".nbc") else b""

    def _is_damaged(self, path: str) -> bool:
        try:
            content = Path(path).read_bytes()
        except OSError:
            return False
        inner, found = content[:-_SUM_BYTES], content[-_SUM_BYTES:]
        if hashlib.sha256(self._salt(path) + inner).digest() == found:
            return False
        warnings.warn(
            f"{path} is damaged; the kernel is compiled again",
            CacheWarning,
            stacklevel=2,
        )
        Path(path).unlink(missing_ok=True)
        return True


def guard_disk_cache(module: ModuleType) -> None:
    """Give the dispatchers of a generated module checked files."""
    for value in vars(module).values():
        kept = getattr(getattr(value, "_cache", None), "_cache_file", None)
        if type(kept) is caching.IndexDataCacheFile:
            checked = _CheckedFile.__new__(_CheckedFile)
            checked.__dict__.update(kept.__dict__)
            value._cache._cache_file = checked
