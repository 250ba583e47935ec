"""CUDA C++ kernels written by hand, and the two ways to run them.

`compile_cuda` makes machine code with NVRTC, which needs no GPU; `Device` launches it.
`Host` runs the same source on the CPU, thread by thread (``kernels/on_host.h``), so
that a machine without a GPU still checks what the kernels compute. Both have the same
methods.
"""

from __future__ import annotations

import ctypes
import io
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "kernels"
#: Entries of each file, and the argument types that ctypes needs: p, i (32 bits), f.
ENTRIES: dict[str, dict[str, str]] = {
    "sweep": {
        "lp_sweep": "ppppppiffp",
        "mmr_sweep": "ppppppiffp",
        "mml_sweep": "ppppppiffp",
        "als_sweep": "pipppp" + "ffp",
        "bp_sweep": "ppppippppp" + "ifp",
    },
    "folded_lp": {"lp_folded": "ppppppiffppii"},
    "folded_bp": {"bp_folded": "pppppppppifppii"},
    "sgd": {"sgd_edge_locked": "pppppiff"},
}
_TYPES: dict[str, Any] = {
    "p": ctypes.c_void_p,
    "i": ctypes.c_int,
    "f": ctypes.c_float,
}


def _arguments(file: str, entry: str, given: Sequence[Any]) -> tuple[list[Any], Any]:
    """Return arguments of C, which live until they are copied, and pointers to them."""
    letters = ENTRIES[file][entry]
    if len(letters) != len(given):
        raise TypeError(f"{entry} takes {len(letters)} arguments, got {len(given)}")
    held = [_TYPES[letter](value) for letter, value in zip(letters, given, strict=True)]
    addresses = map(ctypes.addressof, held)
    return held, (ctypes.c_void_p * len(held))(*addresses)


@cache
def compile_cuda(
    file: str, defines: tuple[tuple[str, int], ...] = (), arch: str = "sm_90"
) -> tuple[bytes, str]:
    """Return the cubin of ``kernels/file.cu`` and the assembler's report.

    Parameters
    ----------
    file : str
        Without ``.cu``.
    defines : tuple of (name, value)
        As ``-Dname=value``.
    arch : str
    """
    from cuda.core import Program, ProgramOptions

    text = (FOLDER / f"{file}.cu").read_text(encoding="utf-8")
    head = "".join(f"#define {name} {value}\n" for name, value in defines)
    options = ProgramOptions(std="c++17", arch=arch, ptxas_options=["-v"])
    log = io.StringIO()
    program = Program(f"{head}#line 1\n{text}", "c++", options)
    return program.compile("cubin", logs=log).code, log.getvalue()


def resources(file: str, **defines: int) -> Any:
    """Return registers, spills and shared memory of a file's hungriest kernel."""
    from featgraph.cuda.code import Resources

    return Resources.from_log(compile_cuda(file, tuple(sorted(defines.items())))[1])


class Device:
    """Launches on the default stream of the GPU, whose context Numba holds."""

    name = "cuda"

    def __init__(self) -> None:
        from cuda.bindings import driver

        from featgraph.cuda.dialect import cuda

        self._cuda, self._driver = cuda, driver
        own = cuda.get_current_device()
        self.multiprocessors = own.MULTIPROCESSOR_COUNT
        major, minor = own.compute_capability
        self._arch = f"sm_{major}{minor}"
        cuda.current_context()
        self._functions: dict[Any, Any] = {}
        self._modules: list[Any] = []

    def _checked(self, outcome: Any) -> Any:
        error, *values = outcome
        if int(error) != 0:
            raise RuntimeError(f"the CUDA driver reported {error}")
        return values[0] if values else None

    def put(self, array: Any) -> Any:
        """Copy to the device."""
        return self._cuda.to_device(np.ascontiguousarray(array))

    def get(self, held: Any) -> Any:
        """Copy to the host; waits for the device."""
        return held.copy_to_host()

    def pointer(self, held: Any) -> int:
        """Return the address of an array of `put`."""
        return int(held.__cuda_array_interface__["data"][0])

    def clear(self, held: Any) -> None:
        """Set 32-bit values to zero, in the order of the launches."""
        self._checked(
            self._driver.cuMemsetD32Async(self.pointer(held), 0, held.size, 0)
        )

    def synchronize(self) -> None:
        """Wait for launched work."""
        self._cuda.synchronize()

    def _function(self, file: str, entry: str, defines: dict[str, int]) -> Any:
        key = (file, entry, *sorted(defines.items()))
        if key not in self._functions:
            code, _ = compile_cuda(file, tuple(sorted(defines.items())), self._arch)
            module = self._checked(self._driver.cuModuleLoadData(code))
            self._modules.append(module)
            self._functions[key] = self._checked(
                self._driver.cuModuleGetFunction(module, entry.encode())
            )
        return self._functions[key]

    def launch(
        self, file: str, entry: str, grid: int, block: int, given: Sequence[Any],
        **defines: int,
    ) -> None:  # fmt: skip
        """Launch a kernel; does not wait for it."""
        function = self._function(file, entry, defines)
        _held, pointers = _arguments(file, entry, given)
        where, grids = ctypes.addressof(pointers), (max(grid, 1), 1, 1, block, 1, 1)
        self._checked(self._driver.cuLaunchKernel(function, *grids, 0, 0, where, 0))


def has_host_compiler() -> bool:
    """Return whether this machine has the compiler of `Host`."""
    return shutil.which("g++") is not None


@cache
def _host_library(file: str, defines: tuple[tuple[str, int], ...]) -> Any:
    compiler = shutil.which("g++")
    if compiler is None:
        raise RuntimeError("kernels run on the host through g++, which is not there")
    text = f'#include "{FOLDER / "on_host.h"}"\n#include "{FOLDER / file}.cu"\n'
    text += "".join(f"KERNEL({entry})\n" for entry in ENTRIES[file])
    with tempfile.TemporaryDirectory(prefix="featgraph-kernels-") as folder:
        Path(folder, "module.cpp").write_text(text, encoding="utf-8")
        options = ["-O1", "-std=c++17", "-shared", "-fPIC", "-fno-strict-aliasing"]
        options += ["-w", *(f"-D{name}={value}" for name, value in defines)]
        command = [compiler, *options, "module.cpp", "-o", "module.so"]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return ctypes.CDLL(f"{folder}/module.so")


class Host:
    """Runs the kernels on the CPU; slow, for tests."""

    name = "cpu"

    def put(self, array: Any) -> Any:
        """Copy."""
        # Rows are read in aligned loads of 16 bytes.
        array = np.ascontiguousarray(array)
        whole = np.empty(array.nbytes + 16, np.uint8)
        skipped = -whole.ctypes.data % 16
        copy = whole[skipped : skipped + array.nbytes].view(array.dtype)
        copy = copy.reshape(array.shape)
        copy[...] = array
        return copy

    def get(self, held: Any) -> Any:
        """Copy."""
        return held.copy()

    def pointer(self, held: Any) -> int:
        """Return the address of an array of `put`."""
        return int(held.ctypes.data)

    def clear(self, held: Any) -> None:
        """Set to zero."""
        held[...] = 0

    def synchronize(self) -> None:
        """Do nothing: a launch has ended when it returns."""

    def launch(
        self, file: str, entry: str, grid: int, block: int, given: Sequence[Any],
        **defines: int,
    ) -> None:  # fmt: skip
        """Run a kernel."""
        library = _host_library(file, tuple(sorted(defines.items())))
        _held, pointers = _arguments(file, entry, given)
        library[f"host_{entry}"](max(grid, 1), block, pointers)
