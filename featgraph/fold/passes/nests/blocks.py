"""Summation in blocks, whose sums are added pairwise, to bound rounding errors.

Sequential summation of n terms has an error of up to n roundings. Summation in blocks
of b terms, added pairwise in the order of their positions, has b + log2(n / b).

`in_blocks_of` cuts a walk over edges into blocks, and `Blocks` lowers the statements
between and behind them. `finished` and `finished_by_blocks` return the last step of a
reduce, on the CPU and on a GPU: it combines the partial results of all chunks or blocks
of threads.
"""

from __future__ import annotations

from featgraph.fold.passes.nests.accumulators import Accumulator
from featgraph.fold.passes.nests.facts import NestFacts, element
from featgraph.fold.passes.nests.homes import Home, home_of
from featgraph.fold.tree.layout import Together, Walk
from featgraph.fold.tree.nodes import AddUp, Features, ForEdges, PutBy, Start, Target
from featgraph.fold.tree.statements import Body, Rewriting, agreed, code, when

__all__ = [
    "Blocks",
    "added_by_chunks",
    "finished",
    "finished_by_blocks",
    "in_blocks_of",
    "levels",
    "partial_sums",
]

#: Neighboring elements of the result of a reduce that a block of threads combines at a
#: time: 8 float32 are one memory transaction of 32 bytes. For a result of fewer than
#: `MANY` elements, it combines one at a time, with all threads on its rows.
TOGETHER, MANY = 8, 512
#: Entries of the array of partial sums on the CPU: enough for rows of 2**40 edges.
CPU_LEVELS = 32


def levels(facts: NestFacts) -> int:
    """Return the number of partial sums; 1: one sum of all earlier blocks.

    Of several, entry i is the sum of 2**i blocks, as in a binary counter. A lane of a
    GPU sums a share of a row only, so it has few blocks. An array for a binary counter
    would be local memory, which Numba zeros in each thread: a quarter of a superstep's
    time where there are many hubs (H200, 2026-11-22).
    """
    return CPU_LEVELS if facts.target is Target.CPU else 1


def partial_sums(facts: NestFacts, name: str) -> str:
    """Return the name of the array of partial sums; no user name can equal it."""
    return f"block_sums_{facts.summed.index(name)}"


def in_blocks_of(
    facts: NestFacts, node: ForEdges, walk: Walk, body: Body | Together
) -> Body:
    """Return the walk over edges, cut into blocks if some rows are long."""
    layout, block = facts.layout, facts.binding.block
    if not node.summed:
        return _walked(facts, node, walk, body) + node.behind
    put_by: Body = [PutBy(node.summed, node.prefix)]
    put_by += [Start(name, node.prefix) for name in node.summed]
    behind: Body = [AddUp(node.summed, node.prefix)]
    if isinstance(body, Together) or walk.form == "rounds":
        each = agreed(when([f"step > 0 and step % {block} == 0"], put_by), walk.company)
        first = body.takes[0] if isinstance(body, Together) else body
        first[:0] = each
        rounds = _walked(facts, node, walk, body)
        return code("block_count = 0") + rounds + node.behind + behind
    each = layout.edges(node.vertex, walk, "block", body) + node.behind
    return layout.blocks(node.part, block * walk.lanes, each, put_by) + behind


def _walked(
    facts: NestFacts, node: ForEdges, walk: Walk, body: Body | Together
) -> Body:
    if isinstance(body, Together):
        return facts.layout.together(node.vertex, walk, node.part, body)
    return facts.layout.edges(node.vertex, walk, node.part, body)


def finished(
    accumulator: Accumulator, in_blocks: bool, size: str, *, called_by_loops: bool
) -> tuple[Body, bool]:
    """Return the code that combines rows of `partials`, and whether NumPy runs it.

    Row i is combined with row i + n / 2 of n rows, in place, until one row is left.
    The function is compiled only if compiled loops call it: for these few operations,
    compiling takes 0.3 s of the first call.
    """
    each: Body
    rules = accumulator.rules
    rounds = accumulator.type == "real" and not rules.selects
    if in_blocks and rules.tree and not called_by_loops:
        each = _pairwise(accumulator, "", [])
        return each + code("reduced[:] = partials[0]"), True
    if rules.rows and not rounds and not called_by_loops:
        return code(f"reduced[:] = {rules.rows}"), True
    if in_blocks:
        each = _pairwise(accumulator, "range(rows - half)", [])
        each += code("reduced[f] = partials[0, f]")
    else:
        test = " != 0" if accumulator.type == "bool" else ""
        update = accumulator.update("total", f"partials[row, f]{test}")
        each = code(f"total = {accumulator.identity}")
        each += code(f"for row in range(partials.shape[0]):\n    {update}")
        each += code("reduced[f] = total")
    return code(f"for f in range({size}):\n    BODY", BODY=each), False


def added_by_chunks(accumulator: Accumulator) -> Body:
    """Return the code that combines the rows of blocks to one for each chunk.

    Neighboring rows are combined pairwise, as `Blocks` does within a chunk. Each chunk
    has the same number of rows, a power of two; its last rows may be empty.
    """
    pairs = code(accumulator.update("partials[::2]", "partials[1::2]"))
    pairs += code("partials = partials[::2]")
    return code("while partials.shape[0] >= chunks.size:\n    BODY", BODY=pairs)


def finished_by_blocks(home: Home, threads: int) -> Body:
    """Return the kernel body that combines the rows of `partials` pairwise.

    A block of threads combines one element of all rows; from `MANY` elements on,
    `TOGETHER` neighboring ones, which one memory transaction loads. Row i is combined
    in place with row i + n / 2 of n rows. This works for any combine, and the result
    depends only on the number of rows; shuffles exist for some combines only, and for
    32 rows.
    """
    size, accumulator = home.part_size, home.accumulator
    reduced = home.reduced("f", "partials[0, f]")
    if size < MANY or size % TOGETHER:
        rows = f"range(cuda.threadIdx.x, rows - half, {threads})"
        each = _pairwise(accumulator, rows, code("cuda.syncthreads()"))
        each += when(["cuda.threadIdx.x == 0"], reduced)
        elements = f"range(cuda.blockIdx.x, {size}, cuda.gridDim.x)"
        return code(f"for f in {elements}:\n    BODY", BODY=each)
    shift = TOGETHER.bit_length() - 1
    own = f"cuda.threadIdx.x >> {shift}"
    rows = f"range({own}, rows - half, {threads // TOGETHER})"
    each = code(f"f = first + (cuda.threadIdx.x & {TOGETHER - 1})")
    each += _pairwise(accumulator, rows, code("cuda.syncthreads()"))
    each += when([f"{own} == 0"], reduced)
    step = f"cuda.gridDim.x * {TOGETHER}"
    elements = f"range(cuda.blockIdx.x * {TOGETHER}, {size}, {step})"
    return code(f"for first in {elements}:\n    BODY", BODY=each)


def _pairwise(accumulator: Accumulator, first: str, behind: Body) -> Body:
    """Return the loop that combines row i of n rows with row i + n / 2, down to one.

    `first` is the range of rows combined one by one; "" combines all at once (NumPy).
    `behind` follows on each round.
    """
    if first:
        update = accumulator.update("partials[row, f]", "partials[row + half, f]")
        loop = code(f"for row in {first}:\n    {update}")
    else:
        loop = code(accumulator.update("partials[:rows - half]", "partials[half:rows]"))
    # Of an odd number of rows, the middle one waits for the next round.
    half = [*code("half = (rows + 1) >> 1"), *loop, *behind, *code("rows = half")]
    rows = code("rows = partials.shape[0]")
    return [*rows, *code("while rows > 1:\n    BODY", BODY=half)]


class Blocks(Rewriting):
    """Lower `PutBy` and `AddUp`: store and add partial sums of blocks."""

    def __init__(self, facts: NestFacts) -> None:
        self.facts, self.levels = facts, levels(facts)

    def visit_PutBy(self, node: PutBy) -> Body:
        """Add the sum of a block to the partial sums, with carries."""
        homes = [home_of(self.facts, name) for name in node.names]
        staged = [s for home in homes if home.is_staged for s in home.put_by()]
        taken, left = self._taken(node), self._each(node, "{place} = {name}")
        if self.levels == 1:
            out = when(["block_count > 0"], taken)
        else:
            # As in a binary counter: carry while the bit of the level is set.
            level = taken + code("block_level += 1")
            test = "block_count >> block_level & 1"
            out = code("block_level = 0")
            out += code(f"while {test}:\n    BODY", BODY=level)
        return staged + out + left + code("block_count += 1")

    def visit_AddUp(self, node: AddUp) -> Body:
        """Add all partial sums to the sum of the last block."""
        taken = self._taken(node)
        if self.levels == 1:
            return when(["block_count > 0"], taken)
        level = when(["block_count & 1"], taken)
        level += code("block_count >>= 1\nblock_level += 1")
        loop = code("while block_count > 0:\n    BODY", BODY=level)
        return code("block_level = 0") + loop

    def _taken(self, node: PutBy | AddUp) -> Body:
        return self._each(node, "")

    def _each(self, node: PutBy | AddUp, text: str) -> Body:
        """Return a statement for each element; "" adds its partial sums."""
        out: Body = []
        for base in node.names:
            accumulator = self.facts.accumulators[base]
            if home_of(self.facts, base).is_staged:
                continue  # earlier sums are in the matrix
            name = element(accumulator, f"{node.prefix}{base}")
            place = self._place(accumulator)
            line = text.format(place=place, name=name)
            line = line or accumulator.update(name, place)
            out.append(Features(home_of(self.facts, base).shape, code(line)))
        return out

    def _place(self, accumulator: Accumulator) -> str:
        """Return an element of the partial sums; ``j`` numbers features of a lane."""
        level = "block_level, " if self.levels > 1 else ""
        shape = home_of(self.facts, accumulator.name).shape
        own = {"one": "0", "element": "0", "wide": "j"}.get(shape, "i, j")
        return f"{partial_sums(self.facts, accumulator.name)}[{level}{own}]"
