"""The CUDA dialect (numba-cuda): the only module of featgraph that imports it.

Generated kernels and `featgraph.device` import all names of CUDA from here, so that
another dialect is a change of this file. Importing it needs neither a GPU nor
numba-cuda; the dialect itself is imported when the first of its names is used:

======================  ============================================================
``cuda``                the dialect's namespace (``cuda.shfl_xor_sync``, ...)
``int32``, ...          types of numbers, for casts and signatures
``overload``            compile-time choice of a device function by argument types
``load_row``            load adjacent entries of a row, 8 or 16 bytes at a time
``store_row``           store adjacent entries of a row, 8 or 16 bytes at a time
``anew``                copy an index so that the compiler treats it as unknown
``clock_ns``            the global timer of the GPU, in ns
``load_at``             load a number from an address, also in another GPU's memory
``store_at``            store a number at an address
``acquire_at``          load a flag at an address: acquire order, system scope
``acquire``             load an entry of an array: acquire order, GPU scope
``fence``               fence of acquire and release order, GPU scope
``prefetch``            prefetch an entry of an array into the L1 cache
``raise_at``            store a flag at an address: relaxed, system scope; a fence of
                        the system must come before
``set_condition``       set whether a conditional node of a CUDA graph runs (again)
``select``              choose one of two numbers, without a branch
``device_function``     decorator: a function that kernels call; always inlined
``kernel``              decorator: a kernel, ``kernel(cache=True, ...)`` for options
======================  ============================================================

The other functions run on the host: they check that CUDA can be used, choose the target
of a call, and compile kernels to PTX or LTO-IR without a GPU. `featgraph.cuda.code`
links these to machine code.

Notes
-----
No fastmath. ``fastmath=True`` of this dialect sets no ``nnan`` or ``ninf``, but it
flushes denormals, approximates division and square root, and replaces ``exp``, ``log``
and ``pow`` by versions of low precision; results must agree with the CPU target.
Contraction to fused multiply-add, which loses no precision, is on without it.
``x / 0`` gives inf or nan, never an exception.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.util
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from featgraph.base.config import config
from featgraph.base.errors import DeviceError, PlanError
from featgraph.base.interrupts import holds_compiler, import_whole, shielded
from featgraph.base.store import kept

__all__ = [
    "chosen_target",
    "compile_for_all",
    "compile_ltoir",
    "compile_ptx",
    "compiling",
    "device_function",
    "dialect_module",
    "is_available",
    "is_installed",
    "kernel",
    "launcher",
    "require",
    "storing_for",
    "target_cc",
]

if TYPE_CHECKING:  # `__getattr__` makes them; checks of names find them here
    acquire: Any
    acquire_at: Any
    anew: Any
    boolean: Any
    clock_ns: Any
    cuda: Any
    fence: Any
    float32: Any
    float64: Any
    int8: Any
    int16: Any
    int32: Any
    int64: Any
    load_at: Any
    load_row: Any
    overload: Any
    prefetch: Any
    raise_at: Any
    select: Any
    set_condition: Any
    store_at: Any
    store_row: Any
    uint8: Any
    uint16: Any
    uint32: Any
    uint64: Any

#: Major and minor version, such as (9, 0).
ComputeCapability = tuple[int, int]

#: Names of the dialect's number types.
NUMBERS = frozenset(
    {
        "boolean", "float32", "float64", "int8", "int16", "int32", "int64",
        "uint8", "uint16", "uint32", "uint64",
    }
)  # fmt: skip

#: The fix in errors for missing parts of the CUDA target.
_INSTALL = 'pip install "featgraph[cu13]", or choose target="cpu"'


def __getattr__(name: str) -> Any:
    """Import the dialect at the first access to one of its names."""
    if name in NUMBERS:
        return getattr(import_whole("numba"), name)
    known = import_whole("featgraph.cuda.intrinsics").INTRINSICS
    if name not in {"cuda", "overload", *known}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require()
    extending: Any = dialect_module("extending")
    globals()["cuda"] = import_whole("numba.cuda")
    globals()["overload"] = extending.overload
    for own, function in known.items():
        globals()[own] = extending.intrinsic(function)
    return globals()[name]


def _dialect() -> Any:
    """Return the module ``numba.cuda``, imported at the first use."""
    return globals().get("cuda") or __getattr__("cuda")


#: The module of the dialect that looks up ``np.row_stack``. The dialect imports it when
#: it compiles the first kernel.
_USES_ROW_STACK = "numba.cuda.np.arrayobj"
_first_import = threading.Lock()


def dialect_module(name: str) -> Any:
    """Import a module of the dialect, with any NumPy version that Numba supports.

    While it is imported, numba-cuda 0.30 looks up ``np.row_stack``, which NumPy 2.5
    removed, and makes a timedelta without a unit, for which NumPy 2.5 warns. The first
    import therefore provides the name and ignores the warning, and restores NumPy and
    the warning filters afterwards.

    Parameters
    ----------
    name : str
        The name after ``numba.cuda.``.

    Returns
    -------
    module
    """
    if not _is_ready():
        with _first_import:
            if not _is_ready():
                _import_with_row_stack()
    return import_whole(f"numba.cuda.{name}")


def _is_ready() -> bool:
    """Whether modules of the dialect can be imported without the workaround."""
    return _USES_ROW_STACK in sys.modules or hasattr(np, "row_stack")


def _import_with_row_stack() -> None:
    """Import the dialect while NumPy has a `row_stack`: see `dialect_module`."""

    def row_stack(arrays: Any) -> Any:
        # Not np.vstack itself: the dialect registers another implementation for it.
        return np.vstack(arrays)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*timedelta", DeprecationWarning)
        vars(np)["row_stack"] = row_stack
        try:
            import_whole(_USES_ROW_STACK)
        finally:
            del vars(np)["row_stack"]


def import_of_numbers(*names: str) -> str:
    """Return the import statement for number types in generated modules.

    Parameters
    ----------
    *names : str
        Names in `NUMBERS`.
    """
    return f"from numba import {', '.join(names)}"


def is_of_driver(error: BaseException) -> bool:
    """Whether an error of the dialect reports an error of the CUDA driver."""
    driver = sys.modules.get("numba.cuda.cudadrv.driver")
    return driver is not None and isinstance(error, driver.CudaAPIError)


def is_installed() -> bool:
    """Whether numba-cuda is installed; imports nothing.

    Returns
    -------
    bool
        True if kernels can be compiled, with or without a GPU.
    """
    return importlib.util.find_spec("numba_cuda") is not None


def is_available() -> bool:
    """Whether kernels can be launched.

    Returns
    -------
    bool
        True if numba-cuda is installed and finds a driver and a GPU.
    """
    if not _gpus and _has_driver() and is_installed() and _dialect().is_available():
        _gpus.append(True)
    return bool(_gpus)


#: Names of the driver's library, in the order in which the dialect tries them.
_DRIVERS = [
    f"{folder}libcuda.so{version}"
    for folder in ("", "/usr/lib/", "/usr/lib64/")
    for version in ("", ".1")
]


@functools.cache
def _has_driver() -> bool:
    """Whether the library of the CUDA driver can be loaded.

    Only then can there be a GPU. Importing the dialect takes 0.2 s, a third of a first
    call on the CPU with kernels in the store.
    """
    for name in _DRIVERS:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return True
    return False


#: Not empty once a GPU was found. Each call of a foldmap checks for a GPU, and the
#: dialect's check takes longer than a launch.
_gpus: list[bool] = []


def require(*, gpu: bool = False) -> None:
    """Raise unless the CUDA target can be used.

    Parameters
    ----------
    gpu : bool
        Require a GPU to launch on, not only the compiler.

    Raises
    ------
    featgraph.base.errors.DeviceError
        If numba-cuda is missing; with `gpu`, also if no driver or GPU is found.
    """
    if gpu and _gpus:
        return
    if not is_installed():
        raise DeviceError("the CUDA target needs numba-cuda", fix=_INSTALL)
    if gpu and not is_available():
        raise DeviceError(
            "no CUDA driver or no GPU was found",
            fix='check that nvidia-smi lists a GPU, or choose target="cpu"',
        )


def chosen_target(target: object, default: str = "cuda") -> str:
    """Return "cpu" or "cuda" for the ``target=`` of a call.

    Parameters
    ----------
    target : {"auto", "cpu", "cuda"}
        "auto" selects `config.target`.
    default : {"cuda", "cpu"}
        The target if `config.target` is "auto", too, and a GPU is available.

    Raises
    ------
    DeviceError
        If the target is "cuda", and CUDA is not available.
    PlanError
        If the target is unknown.
    """
    chosen = target if isinstance(target, str) else repr(target)
    if chosen == "auto":
        chosen = config.target
    if chosen == "auto":
        chosen = default if is_available() else "cpu"
    if chosen == "cuda":
        require(gpu=True)
    if chosen in {"cpu", "cuda"}:
        return chosen
    raise PlanError(
        "unknown target",
        where="target=",
        got=repr(chosen),
        expected="auto, cpu or cuda",
    )


def device_function(function: Callable[..., Any]) -> Any:
    """Compile a function for calls from kernels.

    LLVM inlines it, so that arguments which are constant at the call, such as the width
    of a group, unroll its loops.

    Parameters
    ----------
    function : callable
        A plain function, or a device function.

    Returns
    -------
    numba.cuda.dispatcher.CUDADispatcher
        Its ``py_func`` is the function.
    """
    plain = getattr(function, "py_func", function)
    return _dialect().jit(plain, device=True, forceinline=True)


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function as a kernel when it is first launched.

    Parameters
    ----------
    function : callable, optional
        The kernel. Left out, a decorator with the options is returned.
    **options
        ``cache``, ``launch_bounds``, ``max_registers``, ``link``, ``lineinfo`` of the
        dialect. With ``cache=True``, code is in `featgraph.base.store`.

    Returns
    -------
    numba.cuda.dispatcher.CUDADispatcher or callable
        The kernel, or the decorator.
    """
    if function is None:
        # The dialect loses some options that are passed to its decorator alone.
        return lambda decorated: kernel(decorated, **options)
    return kept(_with_shielded_compilation(_dialect().jit(function, **options)))


def _with_shielded_compilation(kernel: Any) -> Any:
    """Make a kernel compile in a shielded call, for the GPU of the calling thread."""
    dialect, compile_ = _dialect(), kernel._compile_for_args

    def compile_lean(*arguments: Any) -> Any:
        with compiling():
            return compile_(*arguments)

    def compile_on(number: int, arguments: tuple[Any, ...]) -> Any:
        with dialect.gpus[number]:  # a new thread has no current GPU
            return compile_lean(*arguments)

    def compile_shielded(*arguments: Any) -> Any:
        if holds_compiler():
            return compile_lean(*arguments)
        number = dialect.current_context().device.id
        return shielded(functools.partial(compile_on, number, arguments))

    kernel._compile_for_args = compile_shielded
    return kernel


def launcher(kernel: Any, blocks: int, threads: int, stream: Any = 0) -> Any:
    """Bind a kernel to a grid, without the dialect's warnings about small grids.

    Parameters
    ----------
    kernel : numba.cuda.dispatcher.CUDADispatcher
        A kernel decorated with `kernel`.
    blocks, threads : int
        Blocks of the grid, threads of a block.
    stream : object, optional
        A stream of the dialect; 0 is the default one.

    Returns
    -------
    callable
        Takes the kernel's arguments, compiles it for their types at the first call, and
        launches it.
    """
    settings: Any = dialect_module("core.config")
    advice = settings.CUDA_LOW_OCCUPANCY_WARNINGS
    settings.CUDA_LOW_OCCUPANCY_WARNINGS = 0
    try:
        configured = kernel[blocks, threads, stream]
    finally:
        settings.CUDA_LOW_OCCUPANCY_WARNINGS = advice

    return configured


def _have_no_blas() -> None:
    """Stand for the dialect's import of SciPy's BLAS: see `compiling`."""
    raise ImportError("kernels have no linear algebra of the host")


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Compile kernels in a block without three slow and unnecessary steps.

    - Collections by Python's cyclic garbage collector, which traverse all imported
      objects. The compiler's trees are freed by reference counts.
    - PTX for kernels that are linked from LTO-IR. The dialect generates it only to
      search for names of its library, and the LLVM code has the same names.
    - The import of SciPy's linear algebra, which kernels cannot call.

    The block holds the compiler's lock, so that no other thread compiles meanwhile.
    """
    codegen: Any = dialect_module("codegen")
    settings: Any = dialect_module("core.config")
    locks: Any = dialect_module("core.compiler_lock")
    linalg: Any = dialect_module("np.linalg")
    library = codegen.CUDACodeLibrary
    make_ptx, ensure_blas = library.get_asm_str, linalg.ensure_blas
    # The dialect's memory management is recognized by declarations in PTX.
    needs_ptx = getattr(settings, "CUDA_ENABLE_NRT", False)

    def searched(own: Any, cc: Any = None) -> str:
        is_linked_from_ltoir = getattr(own, "_lto", False) and not needs_ptx
        return str(own.get_llvm_str() if is_linked_from_ltoir else make_ptx(own, cc))

    with locks.global_compiler_lock:
        collects = gc.isenabled()
        gc.disable()
        library.get_asm_str, linalg.ensure_blas = searched, _have_no_blas
        try:
            yield
        finally:
            library.get_asm_str, linalg.ensure_blas = make_ptx, ensure_blas
            if collects:
                gc.enable()


@contextlib.contextmanager
def target_cc(cc: ComputeCapability) -> Iterator[None]:
    """Compile for a compute capability instead of that of the GPU.

    The dialect queries the driver for the capability when it compiles device functions;
    within this context, the query returns `cc`. Not thread-safe.

    Parameters
    ----------
    cc : (int, int)
        The compute capability, such as ``(9, 0)``.
    """
    require()
    dispatcher: Any = dialect_module("dispatcher")
    query = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=cc)
    try:
        yield
    finally:
        dispatcher.get_current_device = query


@contextlib.contextmanager
def storing_for(cc: ComputeCapability) -> Iterator[None]:
    """Compile kernels, and store them in the cache, for a GPU that is not present.

    The dialect stores machine code by the compute capability of the current GPU, and
    loads it there. Within this context it uses `cc`, and loads nothing. Not
    thread-safe.

    Parameters
    ----------
    cc : (int, int)
        The compute capability, such as ``(9, 0)``.
    """
    codegen: Any = dialect_module("codegen")
    kernels: Any = dialect_module("dispatcher")._Kernel
    # The cache key contains the text of this type.
    capability = import_whole("cuda.core._device").ComputeCapability(*cc)
    device = SimpleNamespace(compute_capability=capability)
    contexts, bind = codegen.devices, kernels.bind
    context = SimpleNamespace(device=device)
    with target_cc(capability), compiling():
        codegen.devices = SimpleNamespace(get_context=lambda *_: context)
        kernels.bind = lambda own: own._codelibrary.get_cubin()
        try:
            yield
        finally:
            codegen.devices, kernels.bind = contexts, bind


def compile_for_all(
    kernels: Sequence[tuple[Any, tuple[Any, ...]]], types: tuple[Any, ...]
) -> None:
    """Compile kernels whose content is the same once, and store the code for each.

    Nothing is compiled if all of them are stored; see `storing_for`.

    Parameters
    ----------
    kernels : sequence of (numba.cuda.dispatcher.CUDADispatcher, tuple)
        Kernels, each with the types of its arguments: namedtuples, where each has the
        class of its module, may differ.
    types : tuple of numba types
        The types for which one of them is compiled.
    """
    made = None
    for kernel, own in kernels:
        if kernel._cache.load_overload(own, kernel.targetctx) is not None:
            continue
        if made is None:
            compiler, options = dialect_module("dispatcher"), kernel.targetoptions
            made = compiler._Kernel(kernel.py_func, types, **options)
            made.bind()
        made.signature = made.signature.replace(args=own)
        kernel._cache.save_overload(own, made)


def compile_ptx(
    py_kernel: Callable[..., Any],
    signature: Any,
    cc: ComputeCapability,
    *,
    launch_bounds: int | tuple[int, ...] | None = None,
) -> str:
    """Compile a kernel to PTX; needs no GPU.

    Parameters
    ----------
    py_kernel : callable
        A plain function, or one decorated with `kernel`.
    signature : tuple of numba types, or numba signature
        The types of its arguments.
    cc : (int, int)
        The compute capability.
    launch_bounds : int or tuple of int, optional
        Threads per block, and blocks per multiprocessor.

    Returns
    -------
    str
        The PTX.
    """
    return str(_compile(py_kernel, signature, cc, "ptx", launch_bounds))


def compile_ltoir(
    py_kernel: Callable[..., Any],
    signature: Any,
    cc: ComputeCapability,
    *,
    launch_bounds: int | tuple[int, ...] | None = None,
) -> bytes:
    """Compile a kernel to LTO-IR, which is optimized when a launch links it.

    Parameters
    ----------
    py_kernel, signature, cc, launch_bounds
        As for `compile_ptx`.

    Returns
    -------
    bytes
        The LTO-IR, for `featgraph.cuda.code.link_cubin`. For a kernel without launch
        bounds, the result takes fewer registers than code linked from PTX.
    """
    return bytes(_compile(py_kernel, signature, cc, "ltoir", launch_bounds))


def _compile(
    py_kernel: Any, signature: Any, cc: ComputeCapability, output: str, bounds: Any
) -> Any:
    """Compile a kernel to "ptx" or "ltoir"; DeviceError if a library is missing."""
    plain = getattr(py_kernel, "py_func", py_kernel)
    options = {} if bounds is None else {"launch_bounds": bounds}
    lock = dialect_module("core.compiler_lock").global_compiler_lock

    def compile_() -> Any:
        with lock, target_cc(cc):
            # The default is the C ABI, which kernels do not use.
            code, _ = _dialect().compile(
                plain, signature, cc=cc, device=False, abi="numba", output=output,
                **options,
            )  # fmt: skip
        return code

    try:
        code = compile_() if holds_compiler() else shielded(compile_)
    except Exception as error:
        missing = _missing_part(error)
        if missing is None:
            raise
        raise DeviceError(
            "the compiler of the CUDA target is incomplete",
            got=missing,
            expected="NVVM, NVRTC and nvJitLink, which come from pip and need no GPU",
            fix=_INSTALL,
        ) from error
    return code


#: Names of the errors of numba-cuda and NVIDIA's packages for a missing library.
_MISSING_PARTS = frozenset(
    {
        "DynamicLibNotFoundError",
        "ModuleNotFoundError",
        "NvvmSupportError",
        "NvrtcSupportError",
    }
)


def _missing_part(error: BaseException | None) -> str | None:
    """Return the first line of an error for a missing library; None for others."""
    while error is not None:
        if {kind.__name__ for kind in type(error).__mro__} & _MISSING_PARTS:
            return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        error = error.__cause__ or error.__context__
    return None
