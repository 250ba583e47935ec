"""Parameters packed by the runtime match those of the compiled kernels."""

from __future__ import annotations

import re
from typing import Any

import pytest

from featgraph.cuda import code as cuda_code
from featgraph.cuda import dialect
from featgraph.cuda import driver as cuda_driver

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the compiler", allow_module_level=True)

from featgraph.cuda import elements
from featgraph.fold.compiling.signatures import entry_signature
from featgraph.fold.folder import fold_due_set
from featgraph.fold.passes.nests.due_sets import KERNELS
from featgraph.fold.plan.traits import GraphTraits
from featgraph.ranks.exchange import gpu_kernels
from featgraph.runtime.devices import cuda_arrays, cuda_device, cuda_loops
from featgraph.runtime.recording.control import At
from tests.ptx.test_kernels import _compile, _kernel
from tests.simt.programs import BY_NAME

#: Bits of a parameter in PTX.
SIZES = {"float32": 32, "float64": 64, "bool": 8}


def sizes_packed(types: Any) -> list[int]:
    """Return the bits of each parameter that the runtime packs."""
    parameters = [p for type_ in types for p in cuda_driver._parameters(type_)]
    sizes: list[int] = []
    for parameter in parameters:
        assert parameter is not None
        if parameter.rank is None:
            bits = re.search(r"\d+$", parameter.dtype)
            sizes.append(int(bits[0]) if bits else SIZES[parameter.dtype])
        else:
            sizes += [64] * (5 + 2 * parameter.rank)
    return sizes


def sizes_taken(ptx: str) -> list[int]:
    """Return the bits of each parameter of the one kernel in `ptx`."""
    header = re.search(r"\.visible \.entry [^(]*\((.*?)\)", ptx, re.S)
    assert header is not None
    return [int(bits) for bits in re.findall(r"\.param \.[a-z](\d+) ", header[1])]


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("label_propagation", {"hubs": True}),
        ("pagerank", {}),
        ("inverse", {}),
        ("label_propagation", {"dtype": "float64", "wide": True}),
        ("turn", {}),
    ],
)
def test_folded_kernels(name: str, options: dict[str, Any]) -> None:
    kernel = _kernel(BY_NAME[name], 3, **options)
    source = kernel.kernel_source
    for entry, ptx, _ in _compile(kernel, (9, 0)):
        types = entry_signature(source, entry, kernel.module)
        assert sizes_packed(types) == sizes_taken(ptx), entry.name


def test_small_kernels() -> None:
    from numba import types

    words, rows = types.uint32[::1], types.float32[:, ::1]
    offsets = types.int32[::1]
    # fmt: off
    signatures = {
        "refresh_vertices": (words, rows, rows),
        "refresh_vertices_without": (words, words, rows, rows),
        "count_bits": (words, types.int64[::1]),
        "fill": (types.float64[::1], types.float64),
        "near": (
            words, rows, types.int64, *(types.float64,) * 3, types.float64[::1], words,
        ),
        "first_key": (words, rows, types.int64, types.float64, types.float64[::1]),
        "copy_features": (rows, rows, types.int64),
        "differ": (types.float32[::1], types.float32[::1], types.int32[::1]),
        "all_if": (types.int32[::1], words, words, words),
        "extreme": (
            types.float32[::1],
            types.float64,
            types.float64[::1],
            types.int64,
        ),
    }
    # fmt: on
    counts, edges = types.int32[::1], types.int64[::1]
    pairs, order = types.uint32[:, ::1], types.int64[:, ::1]
    signatures |= {
        "add_one": (edges,),
        "log_set": (words, pairs, edges),
        "end_logged": (edges,),
        "next_set": (order,),
        "play_set": (pairs, order, words),
    }
    signatures["add_up"] = (counts, edges, types.int64, offsets, counts)
    signatures["control"] = control_signature()
    signatures |= link_signatures()
    for name, signature in signatures.items():
        modules = cuda_arrays, cuda_device, cuda_loops, elements, gpu_kernels
        [kernel] = [getattr(m, name) for m in modules if hasattr(m, name)]
        ptx = dialect.compile_ptx(kernel, signature, (9, 0))
        assert sizes_packed(signature) == sizes_taken(ptx), name


def link_signatures() -> dict[str, tuple[Any, ...]]:
    """Return the types that kernels over rows of other ranks are launched with."""
    from numba import types

    words, numbers, number = types.uint32[::1], types.int32[::1], types.int64
    rows, message = types.uint16[:, ::1], types.uint16[::1]
    listed = numbers, number, number
    chunks = numbers, numbers, numbers, number, number, numbers, words
    return {
        "mark_changed": (words, numbers, numbers, words, numbers),
        "take_bits": (words, numbers, number, number, words, numbers),
        "add_up_links": (numbers, numbers, numbers),
        "list_marked": (words, numbers, *chunks),
        "pick_listed": (numbers, number, words, number, numbers),
        "copy_words": (words, number, number, words),
        "gather_rows": (rows, number, *listed, message, number),
        "scatter_rows": (message, number, number, *listed, rows),
        "add_vertices": (*listed, words),
        "mark_used": (rows, number, types.uint16, words),
        "combine_rows": (message, number, number, *listed, rows, number),
    }


def control_signature() -> tuple[Any, ...]:
    """Return the types that the kernel is launched with."""
    from numba import types

    words, reals = types.int64[::1], types.float64[::1]
    at = types.NamedUniTuple(types.int64, len(At._fields), At)
    return at, words, reals, words, words, reals


def test_a_loop_stores_its_node() -> None:
    """The linker resolves the function; time and the host are read once."""
    ptx = dialect.compile_ptx(cuda_arrays.control, control_signature(), (9, 0))
    for text in ("%globaltimer", "ld.global.cv"):
        assert ptx.count(text) == 1, text
    assert "call.uni \n\tcudaGraphSetCond" in ptx
    _, resources = cuda_code.link_cubin(ptx, (9, 0))
    assert resources.spill_stores_bytes == 0


#: Registers of due sets and refreshes when they were written by hand, or today's, if
#: fewer. Kernels that count also pack the vertices of a set, as by hand they did not.
REGISTERS = {
    "reach": 46, "reach_hubs": 32, "find": 24, "find_hubs": 28, "count": 32,
    "find_targets": 20, "refresh": 48, "refresh_all": 32, "count_rows": 32,
    "list_rows": 32,
}  # fmt: skip


@pytest.mark.drawn(2)
@pytest.mark.parametrize("wide", [False, True])
def test_kernels_over_sets(wide: bool) -> None:
    from numba import types

    words, rows, ends = types.uint32[::1], types.float32[:, ::1], types.int32[::1]
    offsets, number = types.int64[::1] if wide else ends, types.int64
    copied, edges = (words, rows, rows), types.int64[::1]
    listed = (words, types.boolean, number, ends, edges)
    signatures: dict[str, tuple[Any, ...]] = {
        "reach": (words, words, number, offsets, ends),
        "reach_hubs": (words, words, ends, offsets, ends),
        "find": (words, words, number, number, offsets, ends),
        "find_hubs": (words, words, ends, offsets, ends),
        "count": (words, edges, offsets),
        "find_targets": (types.uint8[::1], words, number, offsets, ends),
        "refresh": (*copied, offsets, ends, offsets),
        "refresh_all": (*copied, ends),
        "count_rows": (*listed, offsets),
        "list_rows": (*listed, ends, offsets, offsets),
    }
    assert signatures.keys() == KERNELS["cuda"].keys() == REGISTERS.keys()
    traits = GraphTraits(wide_offsets=wide)
    for name, signature in signatures.items():
        kernel = fold_due_set(name, traits, "cuda", "in").function
        ptx = dialect.compile_ptx(kernel, signature, (9, 0))
        assert sizes_packed(signature) == sizes_taken(ptx), name
        linked = dialect.compile_ltoir(kernel, signature, (9, 0))
        _, resources = cuda_code.link_cubin(linked, (9, 0))
        assert resources.spill_stores_bytes == 0, name
        assert resources.registers <= REGISTERS[name], name
