"""Kernels that combine nodes of a tree of 32 branches (CUDA): see `fixed`.

A node is a row of numbers. What it is made of is combined one behind the other, so that
its bits do not depend on what a thread has.
"""

from featgraph.cuda.dialect import cuda, device_function, int64, kernel

__all__ = ["THREADS", "combine_level", "finish", "finish_joined"]

#: Threads, at most, of the block that combines what is left.
THREADS = 512


@device_function
def _pair(a, b, is_product):  # type: ignore[no-untyped-def]
    return a * b if is_product else a + b


@device_function
def _node(rows, first, count, f, is_product):  # type: ignore[no-untyped-def]
    """Return an entry of the node of some neighboring rows."""
    total = rows[first, f]
    if count == 32:  # most have all: their loads are on the way together
        for child in range(1, 32):
            total = _pair(total, rows[first + child, f], is_product)
    else:
        for child in range(int64(1), count):
            total = _pair(total, rows[first + child, f], is_product)
    return total


@device_function
def _combine(rows, step, thread, threads, is_product):  # type: ignore[no-untyped-def]
    """Combine rows as a step says, 32 at a time."""
    first, count, above = step
    width = int64(rows.shape[1])
    for index in range(thread, (count + 31) // 32 * width, threads):
        node = index // width
        f, begin = index - node * width, node * 32
        own = rows, first + begin, min(count - begin, int64(32)), f, is_product
        rows[above + node, f] = _node(*own)


@kernel(cache=True)
def combine_level(rows, first, count, above, is_product):  # type: ignore[no-untyped-def]
    """Combine so many rows, 32 at a time, into the rows from `above` on."""
    step = first, count, above
    _combine(rows, step, int64(cuda.grid(1)), int64(cuda.gridsize(1)), is_product)


@kernel(cache=True, launch_bounds=THREADS)
def finish(rows, steps, tops, first_slot, is_product, nodes):  # type: ignore[no-untyped-def]
    """Combine the levels that are left, and leave the top nodes; one block.

    They go to `nodes` from `first_slot` on; what is beside them becomes zeros.
    """
    thread, threads = int64(cuda.threadIdx.x), int64(cuda.blockDim.x)
    width = int64(rows.shape[1])
    for number in range(steps.shape[0]):
        step = steps[number, 0], steps[number, 1], steps[number, 2]
        _combine(rows, step, thread, threads, is_product)
        cuda.syncthreads()
    for index in range(thread, int64(nodes.size), threads):
        slot = index // width
        own, f = slot - first_slot, index - slot * width
        is_own = own >= 0 and own < tops.size
        row = tops[own] if is_own else int64(-1)
        if row >= 0:
            nodes[index] = rows[row, f]
        else:
            nodes[index] = 0


@kernel(cache=True, launch_bounds=THREADS)
def finish_joined(nodes, work, children, begins, root, is_product, result):  # type: ignore[no-untyped-def]
    """Combine the top nodes of all ranks, level by level; one block.

    Nodes that are not among them go to `work`: see `Joined`.
    """
    thread, threads = int64(cuda.threadIdx.x), int64(cuda.blockDim.x)
    width = int64(result.size)
    given = int64(nodes.size) // width
    for level in range(begins.size - 1):
        first, last = begins[level], begins[level + 1]
        for index in range(thread, (last - first) * width, threads):
            node = index // width
            f = index - node * width
            node += first
            total = _entry(nodes, work, children[node, 0], given, width, f)
            for branch in range(1, 32):
                child = children[node, branch]
                value = _entry(nodes, work, child, given, width, f)
                total = _pair(total, value, is_product) if child >= 0 else total
            work[node, f] = total
        cuda.syncthreads()
    for f in range(thread, width, threads):
        result[f] = _entry(nodes, work, root, given, width, f)


@device_function
def _entry(nodes, work, node, given, width, f):  # type: ignore[no-untyped-def]
    """Return an entry of a node, anything for -1; no load waits for what it is."""
    number = int64(node)
    known = nodes[max(min(number, given - 1), int64(0)) * width + f]
    made = work[max(number - given, int64(0)), f]
    return known if number < given else made
