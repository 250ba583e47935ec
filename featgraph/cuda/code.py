"""Machine code of kernels, and its resources; needs no GPU and no system CUDA.

`link_cubin` links PTX or LTO-IR of `featgraph.cuda.dialect` to a cubin, and reads the
assembler's report into `Resources`; `sass` disassembles the cubin.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import DeviceError
from featgraph.base.interrupts import import_whole
from featgraph.cuda.dialect import ComputeCapability, require

__all__ = ["Resources", "link_cubin", "sass"]


@dataclass(frozen=True)
class Resources:
    """Resources of a kernel, from the report of the assembler.

    Attributes
    ----------
    registers : int
        Registers per thread.
    spill_stores_bytes, spill_loads_bytes : int
        Register spills per thread.
    stack_bytes : int
        Stack frame per thread; local arrays that are not in registers.
    shared_bytes : int
        Static shared memory per block.
    """

    registers: int
    spill_stores_bytes: int
    spill_loads_bytes: int
    stack_bytes: int
    shared_bytes: int

    @classmethod
    def from_log(cls, log: str, ptx: str = "") -> Resources:
        """Read the report that ``ptxas -v`` prints for one kernel.

        Parameters
        ----------
        log : str
            The whole report.
        ptx : str
            The PTX that was assembled. The dialect declares shared arrays outside the
            kernel, where the report does not count them.

        Returns
        -------
        Resources
            The largest figures over all functions in the report.
        """

        def largest(pattern: str) -> int:
            return max((int(found) for found in re.findall(pattern, log)), default=0)

        declared = sum(map(int, re.findall(r"\.shared .*\.b8 \w+\[(\d+)\]", ptx)))
        return cls(
            registers=largest(r"Used (\d+) registers"),
            spill_stores_bytes=largest(r"(\d+) bytes spill stores"),
            spill_loads_bytes=largest(r"(\d+) bytes spill loads"),
            stack_bytes=largest(r"(\d+) bytes stack frame"),
            shared_bytes=max(largest(r"(\d+) bytes smem"), declared),
        )


def link_cubin(code: str | bytes, cc: ComputeCapability) -> tuple[bytes, Resources]:
    """Link machine code with nvJitLink; needs no GPU and no system CUDA.

    Parameters
    ----------
    code : str or bytes
        PTX of one kernel from `compile_ptx`, or its LTO-IR from `compile_ltoir`.
    cc : (int, int)
        The compute capability.

    Returns
    -------
    (bytes, Resources)
        The cubin, and the kernel's resources.
    """
    require()
    core = import_whole("cuda.core")
    ptx = code if isinstance(code, str) else ""
    options = core.LinkerOptions(
        arch=f"sm_{cc[0]}{cc[1]}",
        ptxas_options=["-v"],
        link_time_optimization=not ptx,
        no_cache=True,  # cached code comes without the report
    )
    make = core.ObjectCode
    source = make.from_ptx(ptx.encode()) if ptx else make.from_ltoir(code)
    linker = core.Linker(source, options=options)
    cubin = linker.link("cubin")
    log = linker.get_info_log() or linker.get_error_log()
    return bytes(cubin.code), Resources.from_log(log, ptx)


def sass(cubin: bytes) -> str:
    """Disassemble machine code.

    Parameters
    ----------
    cubin : bytes
        From `link_cubin`.

    Returns
    -------
    str
        The assembly text.

    Raises
    ------
    featgraph.base.errors.DeviceError
        If neither ``nvdisasm`` nor ``cuobjdump`` is on PATH.
    """
    tools = {"nvdisasm": ["-c"], "cuobjdump": ["--dump-sass"]}
    commands = [
        [path, *options]
        for name, options in tools.items()
        if (path := shutil.which(name))
    ]
    if not commands:
        raise DeviceError(
            "no disassembler on PATH",
            expected="nvdisasm or cuobjdump",
            fix="install the CUDA toolkit's binary utilities and put them on PATH",
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run(
            [*commands[0], str(file)], capture_output=True, text=True, check=False
        )
    if done.returncode != 0:
        raise DeviceError(f"{commands[0][0]} failed", got=done.stderr.strip())
    return done.stdout
