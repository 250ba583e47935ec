"""Memory of properties: indices into arrays, and matrices staged in shared memory.

`InMemory` turns every ``d.name[...]`` of a user function into an index into an array;
`Memory` has the layout. `IndexChecks` is checked mode: it compares each index with the
length of the axis. A read out of range is reported and yields entry 0; a store or an
atomic out of range is reported and skipped.

`Staged` is a matrix of the whole graph in shared memory or registers (CUDA).
``fg.matvec(d.psi, x)`` reads all of d.psi for each edge. Lane f would read row f, so
that the loads of neighboring lanes are K entries apart. Instead, each block copies the
matrix to shared memory once, transposed, so that neighboring lanes read neighboring
entries. A lane that has all features keeps a small matrix in registers.
docs/design/0010-staged-matrices.md has the reasons.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping as Dict
from collections.abc import Sequence
from typing import cast

from featgraph.base.dataclass import dataclass, field
from featgraph.fold.analysis.access import INDEXED
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.operations.table import primitive_of
from featgraph.fold.passes.bodies.nodes import Array, Checked, Masked, Place
from featgraph.fold.schedules.mapping import Mapping
from featgraph.fold.tree.nodes import Target
from featgraph.fold.tree.statements import (
    Access,
    Atomic,
    Body,
    Cast,
    Helper,
    Identity,
    MathCall,
    Numeric,
    Operate,
    Rewriting,
    Scalar,
    Whole,
    code,
    copied,
    every,
    expression,
    is_reversed,
    name_of,
    when,
)
from featgraph.program.signature import Real

__all__ = [
    "STRIDES", "IndexChecks", "Memory", "Site", "Staged", "array_of", "find_staged",
    "has_pieces", "lowered", "shared_matrices_of", "stage_matrices",
]  # fmt: skip

#: Operation of ``fg.atomic`` -> function of the module of atomics.
_ATOMIC = {"add": "atomic_add", "min": "atomic_min", "max": "atomic_max"}
#: Placeholder for the indices in the template of an entry.
_PLACE = "PLACE"


@dataclass(frozen=True)
class Memory:
    """Memory layout of the values of a function.

    Attributes
    ----------
    cuda : bool
        Whether the target is CUDA: atomics of `device.warp`, unsigned edge ids.
    real : str
        Constructor of the storage type, by name.
    width : int
        K.
    identity : str
        Text for ``fg.nothing``.
    temporaries : frozenset of str
        Gathered values among its arguments.
    seen : mapping
        Property -> field with its earlier values, for an incremental gather.
    indexed : mapping
        Temporaries in memory -> template of an entry; ``{}`` stands for its indices.
    widths : mapping
        Properties that have rows -> K.
    values : mapping
        Edge properties that are passed by value -> name of the argument.
    ends : tuple of str
        Texts of the vertex and the edge that the report of a bad index names.
    """

    cuda: bool
    real: Real
    width: int = 0
    identity: str = "0"
    temporaries: frozenset[str] = frozenset()
    seen: Dict[str, str] = field(default_factory=dict)
    indexed: Dict[str, str] = field(default_factory=dict)
    widths: Dict[str, int] = field(default_factory=dict)
    values: Dict[str, str] = field(default_factory=dict)
    ends: tuple[str, str] = ("v", "-1")

    @property
    def intrinsics(self) -> str:
        """Module of atomics, bit operations and shuffles."""
        return (Target.CUDA if self.cuda else Target.CPU).intrinsics


def _bound_of(node: Access | Atomic, axis: int, memory: Memory) -> ast.expr:
    """Return the length of an axis of the accessed array."""
    # Rows of an array may be padded: K is the bound of a feature.
    if axis == 1 and node.name in memory.widths:
        return ast.Constant(memory.widths[node.name])
    return expression(f"ARRAY.shape[{axis}]", ARRAY=array_of(node, memory))


def lowered(node: ast.expr, memory: Memory) -> ast.expr:
    """Return a copy of an expression of the middle end, lowered to Python."""
    return cast("ast.expr", InMemory(memory).visit(copied(node)))


def array_of(node: Access | Array | Atomic, memory: Memory) -> ast.expr:
    """Return the array of an access."""
    version = "now" if isinstance(node, Atomic) else node.version
    if version == INDEXED:
        form = expression(memory.indexed[node.name].format(_PLACE))
        parts = (n for n in every([form]) if isinstance(n, ast.Subscript))
        [array] = [part.value for part in parts if name_of(part.slice) == _PLACE]
        return array
    if node.name in memory.temporaries and isinstance(node, Access):
        return ast.Name(node.name)
    if version == "seen":
        return expression(f"d.{memory.seen[node.name]}")
    return expression(f"d.{node.name}{'_next' if version == 'next' else ''}")


class InMemory(Rewriting):
    """Replace nodes of the middle end and of earlier passes by Python."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    # -- statements

    def visit_Masked(self, node: Masked) -> Body:
        """Put the statements under their tests."""
        tests = [cast("ast.expr", self.visit(test)) for test in node.tests]
        return when(tests, self.over(node.body))

    # -- arrays

    def visit_Scalar(self, node: Scalar) -> ast.expr:
        """Read a scalar of the State, or K."""
        if node.name == "feature_count":
            return ast.Constant(self.memory.width)
        # A recorded launch is replayed with the same arguments, so on the GPU the
        # number of the superstep is an array in device memory.
        entry = "[0]" if self.memory.cuda and node.name == "superstep" else ""
        return expression(f"d.{node.name}{entry}")

    def visit_Array(self, node: Array) -> ast.expr:
        """Name an array."""
        return array_of(node, self.memory)

    def visit_Access(self, node: Access) -> ast.expr:
        """Index the array of the property."""
        if node.name in self.memory.values:
            return ast.Name(self.memory.values[node.name])
        is_indexed = node.version == INDEXED
        is_temporary = node.name in self.memory.temporaries and not is_indexed
        if is_temporary and len(node.indices) < 3:  # a matrix is passed as an array
            return ast.Name(node.name)
        array = array_of(node, self.memory)
        indices = node.indices[1:] if is_temporary else node.indices
        place = _joined([self._place(index, node) for index in indices])
        if is_indexed:
            form = self.memory.indexed[node.name].format(_PLACE)
            return expression(form, PLACE=place)
        return ast.Subscript(array, place)

    def _place(self, index: ast.expr, node: Access | Atomic) -> ast.expr:
        """Return an index of an access; checked ones go through `guarded`."""
        if not isinstance(index, Checked):
            return cast("ast.expr", self.visit(copied(index)))
        vertex, edge = self.memory.ends
        text = f"guarded(INDEX, BOUND, {index.site}, {vertex}, {edge}, d.fault)"
        value = cast("ast.expr", self.visit(copied(index.value)))
        bound = _bound_of(node, index.axis, self.memory)
        return expression(text, INDEX=value, BOUND=bound)

    def visit_Place(self, node: Place) -> ast.expr:
        """Return a computed place unchanged."""
        return cast("ast.expr", self.visit(node.value))

    def visit_Checked(self, node: Checked) -> ast.expr:
        """Refuse a checked index outside an access."""
        raise TypeError("a checked index stands outside an access to an array")

    def visit_Atomic(self, node: Atomic) -> ast.expr:
        """Call an atomic."""
        array = array_of(node, self.memory)
        place = [self._place(index, node) for index in node.indices]
        return expression(
            f"{self.memory.intrinsics}.{_ATOMIC[node.op]}(ARRAY, PLACE, VALUE)",
            ARRAY=array,
            PLACE=_joined(place),
            VALUE=cast("ast.expr", self.visit(node.value)),
        )

    def visit_Operate(self, node: Operate) -> ast.expr:
        """Read the array of reverse edges."""
        edge = cast("ast.expr", self.visit(node.args[0]))
        text = f"d.{primitive_of(node).edge_array}[EDGE]"
        is_id = self.memory.cuda and is_reversed(node)
        return expression(f"uint64({text})" if is_id else text, EDGE=edge)

    # -- numbers

    def visit_Helper(self, node: Helper) -> ast.expr:
        """Call a helper by its emitted name."""
        return self._call(node.emitted, node.args)

    def visit_MathCall(self, node: MathCall) -> ast.expr:
        """Call a function of `math`, or a builtin."""
        if node.of_real and self.memory.cuda:  # min and max of CUDA drop NaN
            name = {"min": "lesser", "max": "greater"}[node.name]
            first, *others = (cast("ast.expr", self.visit(a)) for a in node.args)
            for other in others:
                first = expression(f"numbers.{name}(A, B)", A=first, B=other)
            return first
        module = "" if node.name in {"abs", "min", "max"} else "math."
        if node.name in {"floor", "ceil"} and not self.memory.cuda:
            module = "np."  # those of `math` return integers
        return self._call(f"{module}{node.name}", node.args)

    def visit_Numeric(self, node: Numeric) -> ast.expr:
        """Call the library of numbers."""
        suffix = f"_{self.memory.real}" if node.of_real else ""
        return self._call(f"numbers.{node.name}{suffix}", node.args)

    def visit_Cast(self, node: Cast) -> ast.expr:
        """Convert to the storage type, or to int64."""
        if node.to != "real":
            return self._call("int64" if node.to == "int" else node.to, [node.value])
        if not isinstance(node.value, ast.Constant):
            return self._call(self.memory.real, [node.value])
        value = float(cast("float", node.value.value))
        text = repr(value)
        if not math.isfinite(value):
            text = "math.inf" if math.isinf(value) else "math.nan"
        return expression(f"{self.memory.real}({text})")

    def visit_Identity(self, node: Identity) -> ast.expr:
        """Insert the text of the identity of the combine."""
        return expression(self.memory.identity)

    def _call(self, name: str, args: list[ast.expr]) -> ast.expr:
        made = [cast("ast.expr", self.visit(arg)) for arg in args]
        return ast.Call(expression(name), made, [])


def _is_number(node: ast.expr) -> bool:
    """Return whether an index is a literal of at least 0, which is not checked."""
    value = node.value if isinstance(node, ast.Constant) else None
    return type(value) is int and value >= 0


def _joined(indices: list[ast.expr]) -> ast.expr:
    return indices[0] if len(indices) == 1 else ast.Tuple(indices, ast.Load())


#: Function, file, line, property and axis of an index, by its number.
Site = tuple[str, str, int, str, int]


@dataclass
class IndexChecks(Rewriting):
    """Add a bounds check to each index of a read, a store and an atomic.

    Attributes
    ----------
    memory : Memory
        Layout of the values.
    function, file : str
        The user's function and its file.
    sites : list of Site
        List to which the site of each index is appended.
    """

    memory: Memory
    function: str
    file: str
    sites: list[Site]

    def _site(self, node: Access | Atomic, axis: int) -> int:
        line = getattr(node, "lineno", 0)
        self.sites.append((self.function, self.file, line, node.name, axis))
        return len(self.sites) - 1

    def visit_Assign(self, node: ast.Assign) -> ast.Assign | Masked:
        """Store only if all indices are in range."""
        node.value = self._checked(node.value)
        [target] = node.targets
        if not isinstance(target, Access):
            return node
        return Masked(self._tests(target, target.indices), [node])

    def visit_Masked(self, node: Masked) -> Masked:
        """Join the tests of indices with those of the mask."""
        is_assigned = isinstance(node.body[0], ast.Assign)
        node.body = self.over(node.body)
        first = node.body[0]
        if is_assigned and isinstance(first, Masked):
            return Masked([*node.tests, *first.tests], first.body)
        return node

    def visit_Access(self, node: Access) -> Access:
        """Check the indices of a read; a temporary passed by value has no array."""
        is_given = node.name in self.memory.temporaries and node.version != INDEXED
        if is_given and len(node.indices) < 3:
            return node
        first = int(is_given)
        for axis, index in enumerate(node.indices[first:]):
            checked = self._checked(index)
            # Constant features have been checked when the function was analysed.
            is_known = _is_number(checked) and first + axis > 0
            if not (is_known or isinstance(checked, Place)):
                checked = Checked(checked, axis, self._site(node, axis))
            node.indices[first + axis] = checked
        return node

    def visit_Atomic(self, node: Atomic) -> ast.expr:
        """Skip an atomic whose index is out of range."""
        indices = [copied(index) for index in node.indices]
        self.generic_visit(node)
        tests = self._tests(node, indices)
        test = tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)
        zeros: list[ast.expr] = [ast.Constant(0) for _ in indices]
        return ast.IfExp(test, node, Access(node.name, "now", zeros))

    def _tests(self, node: Access | Atomic, indices: list[ast.expr]) -> list[ast.expr]:
        """Return the tests of all indices of a changed entry."""
        vertex, edge = self.memory.ends
        tests = []
        for axis, index in enumerate(indices):
            site = self._site(node, axis)
            text = f"{self.memory.intrinsics}.checked(INDEX, BOUND, {site}, "
            tests.append(
                expression(
                    f"{text}{vertex}, {edge}, d.fault)",
                    INDEX=self._checked(copied(index)),
                    BOUND=_bound_of(node, axis, self.memory),
                )
            )
        return tests

    def _checked(self, node: ast.expr) -> ast.expr:
        return cast("ast.expr", self.visit(node))


#: Shared memory that the matrices of one block may take: 12 blocks of 128 threads, all
#: that registers leave room for, then fit a multiprocessor with 200 KiB.
STAGED_BYTES = 16 * 1024
#: Entries of a matrix that one lane may keep in registers.
STAGED_REGISTERS = 16
#: Vertices that a group of lanes takes in turn where its block stages a matrix: they
#: repay the copy.
STRIDES = 8


@dataclass(frozen=True)
class Staged:
    """A matrix of the whole graph, and its staged copy.

    Attributes
    ----------
    source : str
        The matrix ``d.source``, k x k.
    names : tuple of str
        Name of the shared array; or names of rows, one tuple each.
    width : int
        K.
    piece : int
        Entries in one load of a lane.
    turns : tuple of bool
        Orientations in use: the matrix (False), its transpose (True), or both. Each
        has an area in shared memory, one behind the other.
    """

    source: str
    names: tuple[str, ...]
    width: int
    piece: int
    turns: tuple[bool, ...]

    @property
    def in_registers(self) -> bool:
        """Whether each lane keeps the whole matrix in registers."""
        return len(self.names) > 1


def shared_matrices_of(function: Analysed, analysis: Analysis) -> dict[str, set[bool]]:
    """Return the matrices of the graph in products, with their orientations."""
    found: dict[str, set[bool]] = {}
    if function.is_scalar:
        return found
    for node in every(function.body):
        if not isinstance(node, Operate) or not primitive_of(node).multiplies:
            continue
        matrix, transpose = node.args[0], node.option("transpose")
        if not isinstance(matrix, Whole) or matrix.indices:
            continue
        type_ = analysis.signature.get(matrix.name)
        if type_ is None or type_.item_shape != (function.width,) * 2:
            continue
        if transpose is None or isinstance(transpose, ast.Constant):
            turns = {transpose is not None and bool(transpose.value)}
        else:
            turns = {False, True}
        found.setdefault(matrix.name, set()).update(turns)
    return found


def has_pieces(mapping: Mapping, width: int) -> bool:
    """Whether lanes can load unpadded rows in pieces."""
    return mapping.vector_width > 1 and width % mapping.vector_width == 0


def find_staged(
    analysis: Analysis, members: Sequence[Analysed], mapping: Mapping, width: int
) -> dict[str, Staged]:
    """Return the matrices that a kernel stages, by name (CUDA).

    Parameters
    ----------
    members : sequence of Analysed
        Functions of the phase.
    mapping : Mapping
        Of the phase; matrices are staged wherever features have named copies.
    width : int
        K.
    """
    if mapping.is_looped or mapping.tile or width == 1:
        return {}
    turns: dict[str, set[bool]] = {}
    at_edges: set[str] = set()
    for function in members:
        for name, found in shared_matrices_of(function, analysis).items():
            turns.setdefault(name, set()).update(found)
            at_edges |= set() if function.kind.writes_vertices else {name}
    for name in [n for n in turns if n not in at_edges and turns[n] == {True}]:
        # A vertex function reads the transpose once, row by row, at full width: that is
        # as fast from the L1 cache as from shared memory.
        if mapping.lanes_per_edge > 1 and has_pieces(mapping, width):
            del turns[name]
    taken = analysis.names
    staged: dict[str, Staged] = {}
    left = STAGED_BYTES // analysis.real.itemsize
    for name in sorted(turns):
        dtype = analysis.signature[name].dtype
        small = width * width <= STAGED_REGISTERS and mapping.features_per_lane == width
        in_registers = small and mapping.vector_width == width and dtype in {
            "real", analysis.real,
        }  # fmt: skip
        own = f"{'register_of' if in_registers else 'shared'}_{name}"
        while own in taken or f"{own}_0" in taken:
            own += "_"
        names = tuple(f"{own}_{i}" for i in range(width)) if in_registers else (own,)
        ways = tuple(sorted(turns[name]))
        if not in_registers:
            left -= len(ways) * width * width
            if left < 0:
                return staged
        piece = 1 if width % mapping.vector_width else mapping.vector_width
        staged[name] = Staged(name, names, width, piece, ways)
    return staged


def stage_matrices(staged: dict[str, Staged], real: Real, threads: int) -> Body:
    """Return the statements in front of a sweep that stage its matrices."""
    out: Body = []
    in_blocks = [s for s in staged.values() if not s.in_registers]
    for matrix in staged.values():
        k, source = matrix.width, f"d.{matrix.source}"
        if matrix.in_registers:
            for i, name in enumerate(matrix.names):
                place = f"{source}, {i}, 0, {k}, {matrix.piece}"
                out += code(f"{name} = warp.load_row({place})")
            continue
        [name] = matrix.names
        shape = f"({len(matrix.turns) * k}, {k})"
        out += code(f"{name} = cuda.shared.array({shape}, {real}, alignment=16)")
    for matrix in in_blocks:
        out += _staged_in_block(matrix, real, threads)
    return out + (code("cuda.syncthreads()") if in_blocks else [])


def _staged_in_block(matrix: Staged, real: Real, threads: int) -> Body:
    """Return the loop in which a block copies a matrix to its shared memory."""
    k, [name] = matrix.width, matrix.names
    # Unsigned: Python's division of signed integers takes tests of the signs.
    each = code(f"row, column = uint32(member) // {k}, uint32(member) % {k}")
    for area, turned in enumerate(matrix.turns):
        entry = "row, column" if turned else "column, row"
        own = f"row + {area * k}" if area else "row"
        each += code(f"element = {real}(d.{matrix.source}[{entry}])")
        each += code(f"{name}[{own}, column] = element")
    members = f"range(cuda.threadIdx.x, {k * k}, {threads})"
    return code(f"for member in {members}:\n    BODY", BODY=each)
