"""Kernels of ranks compile for a GPU: no spills, no needless float64, flags."""

from __future__ import annotations

import re
from typing import Any

import pytest

from featgraph.cuda import code as cuda_code
from featgraph.cuda import dialect
from featgraph.ranks.exchange import gpu_kernels

if not dialect.is_installed():
    pytest.skip("needs numba-cuda, the compiler", allow_module_level=True)

from numba import types

from featgraph.ranks.exchange import window_kernels as kernels
from featgraph.ranks.exchange.window_channel import _Lists, _Pair

N, FLAG = types.int64, types.boolean
WORDS, NUMBERS, OWN = (
    types.Array(t, 1, "C") for t in (types.uint32, types.int32, types.int64)
)
TABLE = types.Array(types.int64, 2, "C")
ROWS = types.Array(types.float32, 2, "C")

LISTS = types.NamedTuple((NUMBERS, TABLE, N), _Lists)
STATES = types.Array(types.uint8, 1, "C")
INTEGERS = types.Array(types.int64, 2, "C")
ENTRIES = [
    (
        gpu_kernels.mark_passed,
        (STATES, types.int32, NUMBERS, WORDS, STATES, WORDS),
    ),
    (gpu_kernels.copy_rows, (INTEGERS, types.int32, INTEGERS)),
    (gpu_kernels.list_passed, (STATES, NUMBERS, NUMBERS, NUMBERS)),
    (gpu_kernels.note_changed, (WORDS, NUMBERS, types.int32, WORDS)),
    *(
        (
            gpu_kernels.combine_listed,
            (rows, N, rows, WORDS, rows, WORDS, NUMBERS, NUMBERS, N, WORDS),
        )
        for rows in (ROWS, INTEGERS)
    ),
]

SETS = types.NamedUniTuple(WORDS, 2, _Pair)
SENT = TABLE, N, TABLE, N, N
SIGNATURES = [
    (
        kernels.post,
        (SETS, SETS, N, FLAG, N, FLAG, N, LISTS, *SENT, OWN, TABLE, OWN, OWN, OWN),
    ),
    (kernels.take, (SETS, N, FLAG, FLAG, LISTS, *SENT, OWN, TABLE, OWN, N, N, OWN)),
    (kernels.combine_rows, (ROWS, N, N, N, TABLE, WORDS, N, OWN, N, N, OWN)),
]


@pytest.mark.parametrize(
    ("kernel", "signature"), SIGNATURES, ids=lambda x: getattr(x, "__name__", None)
)
def test_it_compiles(kernel: Any, signature: tuple[types.Type, ...]) -> None:
    bounds = kernel.targetoptions.get("launch_bounds")
    ptx = dialect.compile_ptx(kernel, signature, (9, 0), launch_bounds=bounds)
    # The kernel that takes numbers takes those of 64 bits, too.
    assert kernel is kernels.take or not re.search(r"\bf64\b", ptx)
    if kernel is kernels.post:  # one fence of the system, then a store a rank
        fence, flag = ptx.find("membar.sys"), ptx.find("st.relaxed.sys")
        assert 0 <= fence < flag
        assert ptx.count("membar.sys") == 1
    else:
        # A loop looks at the flag and at the alarm, each time anew.
        assert max(map(awaited_in, waits_of(ptx))) == 2
    _, found = cuda_code.link_cubin(ptx, (9, 0))
    assert found.spill_stores_bytes == found.spill_loads_bytes == found.stack_bytes == 0
    assert found.registers <= 65536 // (bounds[0] * bounds[1])


def waits_of(ptx: str) -> list[str]:
    """Return the loops that pause, from their label to the branch back."""
    lines, labels, found = ptx.splitlines(), dict[str, int](), list[str]()
    for number, line in enumerate(lines):
        if label := re.match(r"(\$\w+):", line):
            labels[label[1]] = number
        elif back := re.search(r"\bbra(?:\.uni)? *\t*(\$\w+);", line):
            loop = "\n".join(lines[labels.get(back[1], number) : number])
            if loop.count("nanosleep") == 1:
                found.append(loop)
    return found


def awaited_in(loop: str) -> int:
    """Return how many addresses a loop looks at."""
    return len(set(re.findall(r"ld\.acquire\.sys\S* %rd\d+, \[(\S+)\]", loop)))


@pytest.mark.parametrize(
    ("kernel", "signature"), ENTRIES, ids=lambda x: getattr(x, "__name__", None)
)
def test_kernels_over_entries_compile(
    kernel: Any, signature: tuple[types.Type, ...]
) -> None:
    ptx = dialect.compile_ptx(kernel, signature, (9, 0), launch_bounds=None)
    assert not re.search(r"\bf64\b", ptx)
    _, found = cuda_code.link_cubin(ptx, (9, 0))
    assert found.spill_stores_bytes == found.spill_loads_bytes == found.stack_bytes == 0
