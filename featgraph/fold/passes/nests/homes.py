"""Storage of accumulators while edges or vertices contribute: their *homes*.

Most accumulators are ordinary variables of a lane, which `leaves` handles. Others are
SIMD vectors or matrix elements in registers, rows in memory, or batches of staged rows
that are added to a matrix tile by tile. A `Home` has one method for each kind of
statement on an accumulator.
"""

from __future__ import annotations

import ast
from typing import Any

from featgraph.base.dataclass import dataclass
from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.analysis.gathers import is_only_solved
from featgraph.fold.passes.bodies.vectorized import VECTOR_BYTES, pieces
from featgraph.fold.passes.nests.accumulators import Accumulator, source_name
from featgraph.fold.passes.nests.facts import (
    NestFacts,
    call_for_all,
    call_for_one,
    call_of_part,
    element,
    rows_of,
    shape_of,
)
from featgraph.fold.schedules.block import BUFFERS, padded_to_tiles
from featgraph.fold.tree.nodes import (
    AddStaged,
    Contribute,
    Features,
    Finish,
    RowLoad,
    Settle,
    Stage,
    Start,
    ToRow,
)
from featgraph.fold.tree.statements import Body, Rewriting, assigned, code, when
from featgraph.program.signature import Real

__all__ = ["Area", "Home", "Homes", "home_of", "padded", "row_of"]

#: Rows of a batch of outer products; with 64 float32 features 8 KB, in the L1 cache.
_BATCH = 32


@dataclass(frozen=True)
class Area:
    """A small array: its name, its shape, and the dtype of an entry.

    An `aligned` array begins at a cache line, and is filled with zeros (CPU).
    """

    name: str
    shape: tuple[Any, ...]
    dtype: str
    aligned: bool = False


class Home:
    """Default: variables of a lane in registers, or arrays that it loops over."""

    #: Whether lanes stage the factors of contributions, which the whole block adds.
    is_staged = False

    def __init__(self, facts: NestFacts, accumulator: Accumulator) -> None:
        self.facts, self.accumulator = facts, accumulator
        self.name = accumulator.name

    @property
    def shape(self) -> str:
        """Shape class of its features: see `Features`."""
        return shape_of(self.accumulator)

    def names(self, prefix: str) -> list[str]:
        """Return the variables of a lane."""
        own = f"{prefix}{self.name}"
        wide = self.accumulator.is_wide
        return self.facts.binding.features.names(own) if wide else [own]

    @property
    def is_one_triangle(self) -> bool:
        """Whether tiles above the diagonal of a matrix are never stored."""
        return False

    def areas(self) -> list[Area]:
        """Return the arrays that the home needs."""
        accumulator, facts = self.accumulator, self.facts
        if accumulator.is_matrix and self.name not in facts.phase.loads:
            return row_of(facts, self.name, accumulator)
        if accumulator.is_wide and facts.binding.features.is_looped:
            return row_of(facts, self.name, accumulator)
        return []

    def start(self, node: Start) -> Body:
        """Set the accumulator to the identity."""
        return [node]

    def take(self, node: Contribute) -> Body:
        """Combine a contribution into the accumulator."""
        return [node]

    def front(self) -> Body:
        """Return statements in front of the loop over vertices."""
        return []

    def stage(self, node: Stage) -> Body:
        """Stage the contribution of an edge, if this home stages."""
        raise NotImplementedError

    def add(self) -> Body:
        """Add the staged contributions of all lanes, if this home stages."""
        raise NotImplementedError

    def put_by(self) -> Body:
        """Add the sum of a block of terms to those before, if this home stages."""
        raise NotImplementedError

    def settle(self) -> Body:
        """Move the combined contributions to the accumulator, behind the walk."""
        return []

    def finish(self) -> Body:
        """Convert the accumulator to the form that functions read."""
        return []

    def each(self, lines: list[str]) -> Body:
        """Return statements for each feature of the accumulator."""
        return [Features(shape_of(self.accumulator), code("\n".join(lines)))]

    @property
    def part_size(self) -> int:
        """Entries of a partial result of a reduce."""
        return self.accumulator.size

    def reduced(self, entry: str, value: str) -> Body:
        """Store an entry of the combined partial results in the result."""
        return code(f"reduced[{entry}] = {value}")


class InVectors(Home):
    """SIMD vectors of features in registers; an array behind the edges.

    Functions of any form read the array.
    """

    def start(self, node: Start) -> Body:
        """Set all vectors to the identity."""
        identity = self.accumulator.identity
        return self._each(f"{{name}} = vectors.spread_{{size}}({identity})")

    def take(self, node: Contribute) -> Body:
        """Add the vectors that a function returns."""
        call = call_for_all(self.facts, self.facts.callees[node.function])
        each = self._each("{name} += contributed[{place}]")
        return [assigned("contributed", call), *each]

    def settle(self) -> Body:
        """Store all vectors."""
        return self._each(f"vectors.store_{{size}}({self.name}, {{first}}, {{name}})")

    def _each(self, text: str) -> Body:
        """Return a statement for each vector."""
        out: Body = []
        split = pieces(self.facts.phase.width, self.facts.context.real)
        for place, (first, size) in enumerate(split):
            name = f"{self.name}_{first}"
            out += code(text.format(name=name, place=place, first=first, size=size))
        return out


class InRows(Home):
    """Rows in memory, one for each visited vertex; registers behind all edges."""

    @property
    def arrays(self) -> list[str]:
        """The arrays of these rows: of values, and of their sources."""
        name = f"rows_of_{self.name}"
        return [name, f"{name}_source"] if self.accumulator.is_arg else [name]

    def start(self, node: Start) -> Body:
        """Set the row to the identity."""
        return self.each(self.accumulator.start(self._element()))

    def take(self, node: Contribute) -> Body:
        """Combine a contribution into the row."""
        facts = self.facts
        value = ast.unparse(call_for_one(facts, facts.callees[node.function]))
        taken = self.accumulator.take(self._element(), value, facts.intrinsics)
        return self.each(taken)

    def settle(self) -> Body:
        """Load the row."""
        row, own = self._element(), element(self.accumulator)
        lines = [f"{own} = {row}"]
        if self.accumulator.is_arg:
            lines.append(f"{source_name(own)} = {source_name(row)}")
        return self.each(lines)

    def _element(self) -> str:
        return f"{self.arrays[0]}[row{', f' if self.accumulator.is_wide else ''}]"


class AtVertices(Home):
    """Entries in memory, one for each vertex; registers behind all edges (CUDA).

    Threads combine into them by atomics. Entries of vertices not visited hold the
    identity, and a read stores the identity back: contributions may arrive before the
    thread that lists the vertex.
    """

    @property
    def array(self) -> str:
        """The array of these entries."""
        return f"entries_of_{self.name}"

    @property
    def identity(self) -> str:
        """Text of an entry without contributions."""
        text = self.accumulator.memory_identity
        return f"{self.facts.intrinsics}.{text}" if self.accumulator.is_arg else text

    def take(self, node: Contribute) -> Body:
        """Combine a contribution into the entry."""
        facts, is_wide = self.facts, self.accumulator.is_wide
        value = ast.unparse(call_for_one(facts, facts.callees[node.function]))
        index, real = "(v, f)" if is_wide else "v", facts.context.real
        given = index, value, facts.intrinsics, real
        return self.each(self.accumulator.atomic(self.array, *given))

    def settle(self) -> Body:
        """Load the entry, and store the identity."""
        accumulator, own = self.accumulator, element(self.accumulator)
        index = "v, f" if accumulator.is_wide else "v"
        given = accumulator.is_arg, self.facts.intrinsics, self.array
        lines = accumulator.load(own, index, *given)
        return self.each([*lines, f"{self.array}[{index}] = {self.identity}"])


class InRegisters(Home):
    """Matrix elements in variables: all, or the columns of a lane.

    In memory, every element would be read and written for each edge. Factors of outer
    products are computed once for all elements; of symmetric products, only the
    elements on and below the diagonal are summed.
    """

    def __init__(
        self, facts: NestFacts, accumulator: Accumulator, function: Analysed
    ) -> None:
        super().__init__(facts, accumulator)
        self.axis, self.callees = facts.binding.features, facts.callees[function.name]
        self.is_solved = self.name in facts.phase.solved
        self.parts = (
            function.outer_product if self.name in facts.phase.in_registers else None
        )
        self.is_lower = self.parts is not None and self.parts.symmetric

    @property
    def shape(self) -> str:
        """Shape class of its features: see `Features`."""
        return "lower" if self.is_lower else "elements"

    def names(self, prefix: str) -> list[str]:
        """Return the variables of a lane."""
        pairs = self.axis.elements(self.is_lower)
        return [self.axis.element(f"{prefix}{self.name}", i, j) for i, j in pairs]

    def areas(self) -> list[Area]:
        """Return the matrix, unless functions only solve with its elements."""
        return [] if self.is_solved else super().areas()

    def start(self, node: Start) -> Body:
        """Set all elements to the identity."""
        own = f"{node.prefix}{self.name}[i, f]"
        return [Features(self.shape, code(f"{own} = {self.accumulator.identity}"))]

    def take(self, node: Contribute) -> Body:
        """Combine a contribution, element by element."""
        own, rows = f"{node.prefix}{self.name}[i, f]", rows_of(self.callees)
        if self.parts is None:
            value = ast.unparse(call_for_one(self.facts, self.callees))
            return self._each(own, value, rows)
        column = code(f"element[f] = {self._part('column', 'f')}")
        out: Body = [Features("wide", column, rows)]
        row = "element[f]" if self.is_lower else self._part("row", "f")
        if self.parts.scale is not None:
            out += code(f"value = {self._part('scale')}")
            row = f"value * {row}"
        if row == "element[f]":  # the product of a vector with itself
            return out + self._each(own, "element[i] * element[f]")
        out.append(Features("wide", code(f"row[f] = {row}")))
        return out + self._each(own, "row[i] * element[f]")

    def _each(self, own: str, value: str, rows: tuple[RowLoad, ...] = ()) -> Body:
        line = self.accumulator.update(own, value)
        return [Features(self.shape, code(line), rows)]

    def _part(self, part: str, feature: str = "") -> str:
        return call_of_part(self.facts, self.callees, part, feature)

    def finish(self) -> Body:
        """Mirror the elements at the diagonal; store all that are read from memory."""
        axis, out = self.axis, code("")
        for j in range(axis.per_lane):
            column: Body = []
            for i in range(axis.width):
                mirrors = self.is_lower and j > i
                place = f"{self.name}[{i}, {axis.feature(j)}]"
                if self.is_solved:
                    place = axis.element(self.name, i, j)
                if mirrors or not self.is_solved:
                    own = axis.element(self.name, *((j, i) if mirrors else (i, j)))
                    column += code(f"{place} = {own}")
            out += when([axis.inside(j)], column)
        return out


class AnElement(Home):
    """One element of a matrix at a time; a lane loops over elements."""

    @property
    def shape(self) -> str:
        """Shape class of its features: see `Features`."""
        return "element"

    def areas(self) -> list[Area]:
        """Return no array: no other element is read."""
        return []


class _OfProducts(Home):
    """A sum of outer products, whose factors wait in buffers of rows and columns."""

    def __init__(
        self, facts: NestFacts, accumulator: Accumulator, function: Analysed
    ) -> None:
        super().__init__(facts, accumulator)
        if function.outer_product is None:
            raise TypeError(f"{function.name} is no outer product")
        self.parts, self.callees = function.outer_product, facts.callees[function.name]
        # No user name can equal these.
        number = self.number = facts.phase.tiles.index(self.name)
        self.scale = f"tile_scale_{number}"
        #: One buffer holds both where rows equal columns.
        self.columns = self.rows = f"tile_columns_{number}"
        if not self.parts.is_square:
            self.rows = f"tile_rows_{number}"

    def _part(self, part: str, feature: str = "") -> str:
        return call_of_part(self.facts, self.callees, part, feature)


class InTiles(_OfProducts):
    """A sum of outer products whose factors are buffered in batches.

    A full batch is added to one tile of the matrix after the other, with the tile in
    registers.
    """

    @property
    def count(self) -> str:
        """Variable with the number of buffered products."""
        return f"tile_count_{self.number}"

    def areas(self) -> list[Area]:
        """Return the matrix, and the buffer of rows."""
        real = self.facts.context.real
        k = padded(self.facts.phase.width, real)
        names = dict.fromkeys((self.columns, self.rows))
        batches = [Area(name, (_BATCH, k), real, aligned=True) for name in names]
        return [Area(self.name, (k, k), real, aligned=True), *batches]

    def start(self, node: Start) -> Body:
        """Set the matrix to zero, and the buffer to empty."""
        return [node, *code(f"{self.count} = 0")]

    def take(self, node: Contribute) -> Body:
        """Buffer a row and a column; add a full batch."""
        out: Body = []
        if self.parts.scale is not None:
            out += code(f"{self.scale} = {self._part('scale')}")
        out += self._vectors() if self.callees.vectors else self._features()
        out += code(f"{self.count} += 1")
        full = self.settle() + code(f"{self.count} = 0")
        return out + when([f"{self.count} == {_BATCH}"], full)

    def _features(self) -> Body:
        """Return statements that buffer a product, feature by feature."""
        column = f"{self.columns}[{self.count}, f]"
        each = code(f"{column} = {self._part('column', 'f')}")
        if self.rows != self.columns:
            # Factors that are equal but for the scale are computed once.
            row = column if self.parts.symmetric else self._part("row", "f")
            each += code(f"{self.rows}[{self.count}, f] = {self._scaled(row)}")
        loop = f"for f in range({self.facts.phase.width}):\n    BODY"
        return code(loop, BODY=each)

    def _vectors(self) -> Body:
        """Return statements that buffer a symmetric product, vector by vector."""
        out = code(f"column = {self._part('column')}")
        split = pieces(self.facts.phase.width, self.facts.context.real)
        for j, (first, size) in enumerate(split):
            store, place = f"vectors.store_{size}", f"({self.count}, {first})"
            out += code(f"{store}({self.columns}, {place}, column[{j}])")
            if self.rows != self.columns:
                row = self._scaled(f"column[{j}]")
                out += code(f"{store}({self.rows}, {place}, {row})")
        return out

    def _scaled(self, row: str) -> str:
        return row if self.parts.scale is None else f"{self.scale} * {row}"

    def settle(self) -> Body:
        """Add the buffered products to the matrix."""
        return code(
            f"tiles.add_products({self.name}, {self.rows}, {self.columns}, "
            f"{self.count}, {self.parts.symmetric})"
        )

    def finish(self) -> Body:
        """Copy one triangle of a symmetric matrix into the other."""
        looped = self.facts.binding.features.is_looped
        if not self.parts.symmetric or (looped and _is_one_triangle(self)):
            return []
        return code(f"tiles.mirror({self.name}, {self.facts.phase.width})")


def _is_one_triangle(home: Home) -> bool:
    """Return whether only one triangle of a symmetric matrix is read.

    That holds if functions only read its diagonal, or solve with it (`fg.solve`,
    positive definite). On the CPU, `solve` then reads the upper triangle: copying it to
    the lower one crosses cache lines, which for 64 features and more costs as much as
    the solution. In tiles of a block it reads the lower triangle, and the upper one
    would be half of the stores.
    """
    facts = home.facts
    statements = [s for f in facts.functions.values() for s in f.body]
    return home.name not in facts.phase.stores and is_only_solved(
        home.name, statements, spd=True
    )


class _Staged(_OfProducts):
    """A sum of outer products by all threads of a block, with factors in shared memory.

    Lanes store a row and a column of each product to shared memory; each thread has a
    tile of the sum in registers. A symmetric sum has tiles on and below the diagonal.
    Small sums have several copies of all tiles, each for a share of the products.
    """

    is_staged = True

    def __init__(
        self, facts: NestFacts, accumulator: Accumulator, function: Analysed
    ) -> None:
        super().__init__(facts, accumulator, function)
        self.mapping, real = facts.phase.mapping, facts.context.real
        self.zero = f"{real}(0.0)"
        self.padded = padded_to_tiles(facts.phase.width)
        self.is_symmetric, number = self.parts.symmetric, self.number
        self.tile, own = f"tile_{number}", ("share", "row", "column")
        self.share, self.row, self.column = (f"tile_{n}_{number}" for n in own)
        self.staged = {n: f"staged_{n}_{number}" for n in ("row", "column")}

    @property
    def shape(self) -> str:
        """Shape class of its features: see `Features`."""
        return "matrix"

    @property
    def count(self) -> int:
        """Tiles in a row of the matrix."""
        return self.padded // self.mapping.tile

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        count = self.count
        return count * (count + 1) // 2 if self.is_symmetric else count * count

    @property
    def shares(self) -> int:
        """Groups of threads that have all tiles."""
        return self.mapping.lanes_per_vertex // self.tiles

    def _buffers(self, row_count: int) -> Body:
        """Return the buffers for `row_count` rows, and the tile of a thread.

        Padding of the rows is zero, so it adds nothing.
        """
        k, real, out = self.facts.phase.width, self.facts.context.real, code("")
        shape = (row_count, self.padded)
        # Aligned for loads and stores of 16 bytes.
        for name in dict.fromkeys((self.columns, self.rows)):
            out += code(f"{name} = cuda.shared.array({shape}, {real}, alignment=16)")
            if k < self.padded:
                out += self._cleared(name, shape)
        place = "lower_place" if self.is_symmetric else "whole_place"
        names = f"{self.share}, {self.row}, {self.column}"
        own = f"block_tiles.{place}(int32(thread), {self.count}, {self.shares})"
        return out + code(f"{names} = {own}")

    def _cleared(self, name: str, shape: tuple[int, int]) -> Body:
        """Zero the padding of each row; the first rows are stored behind a barrier.

        Lanes never store to padding.
        """
        k, rest = self.facts.phase.width, self.padded - self.facts.phase.width
        each = code(f"{name}[place // {rest}, {k} + place % {rest}] = {self.zero}")
        places = f"range(thread, {shape[0] * rest}, {self.mapping.lanes_per_vertex})"
        return code(f"for place in {places}:\n    BODY", BODY=each)

    def start(self, node: Start) -> Body:
        """Set the tile to zero."""
        return code(f"{self.tile} = block_tiles.zeros({self.zero})")

    def stage(self, node: Stage) -> Body:
        """Load row and column of a product; zero for idle lanes."""
        out, parts = code(""), [("column", self._part("column", "f"))]
        if self.parts.scale is not None:
            scale = f"{self._part('scale')} if {node.mask} else {self.zero}"
            out += code(f"{self.scale}_{node.number} = {scale}")
        if not self.is_symmetric:
            parts.append(("row", self._part("row", "f")))
        each = code("")
        for part, value in parts:
            name = f"{self.staged[part]}_{node.number}[f]"
            each += code(f"{name} = {value} if {node.mask} else {self.zero}")
        return [*out, Features("wide", each, rows_of(self.callees))]

    def _stored(self, number: int, place: str) -> Body:
        """Store the factors of a lane at an index of the buffer."""
        column = f"{self.staged['column']}_{number}"
        out: Body = [self._to_row(column, self.columns, place)]
        if self.rows == self.columns:
            return out
        row = column if self.is_symmetric else f"{self.staged['row']}_{number}"
        if self.parts.scale is not None:
            scaled = f"scaled_row[f] = {self.scale}_{number} * {row}[f]"
            out.append(Features("wide", code(scaled)))
            row = "scaled_row"
        return [*out, self._to_row(row, self.rows, place)]

    def _to_row(self, name: str, array: str, place: str) -> ToRow:
        whole = self.padded == self.facts.phase.width
        return ToRow(name, array, place, self.mapping.vector_width if whole else 1)

    def _added(self, first: str, last: str) -> Body:
        """Add the products of rows `first` to `last` of the buffer to all tiles."""
        own = f"{first}, {last}, {self.shares}, {self.row}, {self.column}"
        return code(
            "cuda.syncthreads()\n"
            f"{self.tile} = block_tiles.add_products({self.tile}, {self.rows}, "
            f"{self.columns}, {own})"
        )


class InBlockTiles(_Staged):
    """A sum of outer products in tiles in registers of a block.

    Lanes store the factors of a batch of edges to shared memory; then each thread adds
    all of them to its tile. Tiles are stored to the matrix behind all edges, and
    between blocks of terms of long rows.
    """

    @property
    def is_one_triangle(self) -> bool:
        """Whether tiles above the diagonal are never stored."""
        return self.is_symmetric and _is_one_triangle(self)

    def areas(self) -> list[Area]:
        """Return the matrix."""
        side = self.padded
        return [Area(self.name, (side, side), self.facts.context.real)]

    def front(self) -> Body:
        """Return the buffers and the tile, in front of the loop over vertices."""
        return self._buffers(self.mapping.edges_at_a_time * self.mapping.unroll)

    def add(self) -> Body:
        """Store the factors of all lanes, and add them to all tiles."""
        # No thread may still add the last batch, whose factors are overwritten.
        edges, out = self.mapping.edges_at_a_time, code("cuda.syncthreads()")
        for n in range(self.mapping.unroll):
            place = f"{n * edges} + edge_lane" if edges > 1 else str(n)
            out += self._stored(n, place)
        return out + self._added(self.share, "batch_count")

    def put_by(self) -> Body:
        """Add the sum of a block of terms to the matrix."""
        return self._put_together("block_count > 0", mirrors=False)

    def finish(self) -> Body:
        """Store the whole sum in the matrix."""
        mirrors = self.is_symmetric and not self.is_one_triangle
        return self._put_together(_adds(self.facts, self.name), mirrors=mirrors)

    def _put_together(self, adds: str, *, mirrors: bool) -> Body:
        return code(
            f"block_tiles.put_together({self.name}, {self.tile}, {self.share}, "
            f"{self.shares}, {self.row}, {self.column}, {adds}, {mirrors})"
        )


class InShareTiles(_Staged):
    """A sum of outer products over all vertices, by blocks that each take a share.

    A block stores the tiles of its share in a row of partial results. The buffer of
    factors is double: while a batch is added, the next one is stored, so there is one
    barrier for each batch.
    """

    def areas(self) -> list[Area]:
        """Return no matrix: partial results are in global memory."""
        return []

    def front(self) -> Body:
        """Return the buffers, the tile, and the array that combines shares."""
        out = self._buffers(BUFFERS * self.mapping.batch)
        out += code(f"tile_place = int32(thread % {self.tiles})")
        if self.shares > 1:
            # Shares are added pairwise: half of them leave their tiles at a time.
            shape = (self.shares // 2 * self.tiles, self.mapping.tile**2)
            real = self.facts.context.real
            box = f"cuda.shared.array({shape}, {real}, alignment=16)"
            out += code(f"tile_box = {box}")
        return out

    def add(self) -> Body:
        """Store the factors of all lanes, and add them to all tiles."""
        out = code("")
        for n in range(self.mapping.unroll):
            stored = self._stored(n, f"batch_row + place_{n}")
            out += when([f"waits_{n}"], stored)
        first, last = f"batch_row + {self.share}", "batch_row + batch_count"
        return out + self._added(first, last)

    def put_by(self) -> Body:
        """Add the sum of a block of terms to the partial result."""
        return self._left("block_count > 0")

    def finish(self) -> Body:
        """Store the whole sum in the partial result."""
        return self._left(_adds(self.facts, self.name))

    @property
    def part_size(self) -> int:
        """Entries of all tiles in a partial result."""
        return self.mapping.part_size

    def reduced(self, entry: str, value: str) -> Body:
        """Store an entry of the tiles in the matrix; mirror that of a symmetric one."""
        leave = "leave_lower" if self.is_symmetric else "leave_whole"
        own = f"{self.facts.phase.width}, {self.count}, int32({entry}), {value}"
        return code(f"block_tiles.{leave}(reduced, {own})")

    def _left(self, adds: str) -> Body:
        """Add the copies of the tiles of all shares, and store the sum of the block."""
        out = code("")
        if self.shares > 1:
            own = f"{self.share}, {self.shares}, tile_place, {self.tiles}"
            added = f"block_tiles.add_shares({self.tile}, tile_box, {own})"
            out += code(f"{self.tile} = {added}")
        part = f"uint32({self.facts.binding.partial})"
        own = f"{part}, {self.tile}, {self.share}, tile_place, {adds}"
        return out + code(f"block_tiles.leave_part(partials, {own})")


def _adds(facts: NestFacts, name: str) -> str:
    """Return the test that the matrix already has sums of earlier blocks of terms."""
    in_blocks = facts.binding.block and name in facts.summed
    return "block_count > 0" if in_blocks else "False"


def home_of(facts: NestFacts, name: str) -> Home:
    """Return the home of an accumulator."""
    accumulator = facts.accumulators[name]
    filling = [f for f in facts.functions.values() if f.accumulator == name]
    # Whether each lane sums its own columns of a matrix.
    has_columns = accumulator.is_matrix and facts.phase.mapping.column_width > 0
    for function in filling:
        if accumulator.is_matrix and facts.binding.features.is_element:
            return AnElement(facts, accumulator)
        if name in facts.phase.in_registers or has_columns:
            return InRegisters(facts, accumulator, function)
        if name in facts.phase.tiles:
            mapping = facts.phase.mapping
            if mapping.batch:
                return InShareTiles(facts, accumulator, function)
            tiles = InBlockTiles if mapping.tile else InTiles
            return tiles(facts, accumulator, function)
        if facts.callees[function.name].vectors:
            return InVectors(facts, accumulator)
        if facts.binding.in_rows:
            return InRows(facts, accumulator)
        if facts.binding.at_vertices:
            return AtVertices(facts, accumulator)
    return Home(facts, accumulator)  # also if an earlier phase has filled it


def row_of(facts: NestFacts, name: str, accumulator: Accumulator) -> list[Area]:
    """Return arrays with the shape of an accumulator, and of its sources."""
    dtype = facts.context.real if accumulator.type == "real" else accumulator.type
    axis = facts.binding.features
    shape: tuple[Any, ...] = accumulator.shape
    if axis.any_width and accumulator.is_wide:
        shape = (axis.any_width,)
    own = [Area(name, shape, dtype)]
    if accumulator.is_arg:
        own.append(Area(f"{name}_source", shape, "int32"))
    return own


def padded(k: int, real: Real) -> int:
    """Return `k`, rounded up to whole vectors."""
    size = VECTOR_BYTES // real.itemsize
    return -(-k // size) * size


class Homes(Rewriting):
    """Lower statements on accumulators with a home of their own."""

    def __init__(self, facts: NestFacts) -> None:
        self.facts = facts

    def visit_Start(self, node: Start) -> Body:
        """Set an accumulator to its identity."""
        return home_of(self.facts, node.of).start(node)

    def visit_Contribute(self, node: Contribute) -> Body:
        """Combine a contribution."""
        filled = self.facts.filled(node.function)
        return home_of(self.facts, filled.name).take(node)

    def visit_Stage(self, node: Stage) -> Body:
        """Stage the contribution of an edge."""
        home = home_of(self.facts, self.facts.filled(node.function).name)
        return home.stage(node)

    def visit_AddStaged(self, node: AddStaged) -> Body:
        """Add the staged contributions of all lanes."""
        return home_of(self.facts, self.facts.filled(node.function).name).add()

    def visit_Settle(self, node: Settle) -> Body:
        """Add buffered contributions."""
        return home_of(self.facts, node.of).settle()

    def visit_Finish(self, node: Finish) -> Body:
        """Convert an accumulator to the form that functions read."""
        return home_of(self.facts, node.of).finish()
