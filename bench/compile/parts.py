"""Where a first call's compiling goes: seconds of each part, and of each kernel.

On a GPU a kernel is typed and lowered (``front_end``, Python that holds the
interpreter), made LTO-IR, and linked; PTX is made where it is linked from that. On a
CPU only kernels stand apart: Numba's compiler is one part. A function compiled within
another counts for both.
"""

from __future__ import annotations

import functools
import re
import time
from collections import defaultdict
from typing import Any


class Parts:
    """Adds up seconds of the compiler's parts from its making on.

    Parameters
    ----------
    target : str
        The compiler whose names are wrapped, for the rest of the process.

    Attributes
    ----------
    seconds : dict
        Part -> s, on all threads.
    kernels : dict
        Module and function -> s.
    """

    def __init__(self, target: str) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.kernels: dict[str, float] = defaultdict(float)
        if target == "cuda":
            self._watch_cuda()
        else:
            self._watch_cpu()

    def _watch_cuda(self) -> None:
        from numba.cuda import codegen, dispatcher
        from numba.cuda.cudadrv import driver

        library = codegen.CUDACodeLibrary
        for owner, name, part in (
            (dispatcher, "compile_cuda", "front_end"),
            (library, "get_asm_strs", "ptx"),
            (library, "get_ltoir", "ltoir"),
            (driver._Linker, "complete", "link"),
        ):
            self._time(owner, name, lambda *_, p=part: (self.seconds, p))
        self._time(
            dispatcher._Kernel, "__init__", lambda _, f, *__: (self.kernels, _name(f))
        )

    def _watch_cpu(self) -> None:
        from numba.core import dispatcher

        def entry_of(own: Any, *_: Any) -> Any:
            return self.kernels, _name(own.py_func)

        self._time(dispatcher.Dispatcher, "compile", entry_of)

    @staticmethod
    def _time(owner: Any, name: str, entry_of: Any) -> None:
        """Have calls of a function add their time to an entry; not those within."""
        inner, depth = getattr(owner, name), defaultdict(int)

        @functools.wraps(inner)
        def outer(*given: Any, **options: Any) -> Any:
            into, key = entry_of(*given)
            begun, depth[key] = time.perf_counter(), depth[key] + 1
            try:
                return inner(*given, **options)
            finally:
                depth[key] -= 1
                if not depth[key]:
                    into[key] += time.perf_counter() - begun

        setattr(owner, name, outer)

    def told(self) -> dict[str, Any]:
        """Return both, kernels that took the longest first, as JSON can have them."""
        longest = sorted(self.kernels.items(), key=lambda item: -item[1])
        return {
            "parts_s": {part: round(s, 4) for part, s in self.seconds.items()},
            "kernels_s": {name: round(s, 4) for name, s in longest},
        }


def _name(function: Any) -> str:
    """Return a function's name and its module's, without the digest of its text."""
    module = re.sub(r"_[0-9a-f]{32}$", "", function.__module__.rpartition(".")[2])
    return f"{module.removeprefix('featgraph_kernel_')}.{function.__name__}"
