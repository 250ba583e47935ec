"""The memory that lanes work in, and what they bring to hand before they sweep."""

from __future__ import annotations

from featgraph.base.dataclass import replace
from featgraph.fold.passes.bodies.staging import at_hand
from featgraph.fold.passes.nests.accumulators import Accumulator
from featgraph.fold.passes.nests.blocks import levels, waiting
from featgraph.fold.passes.nests.facts import Facts
from featgraph.fold.passes.nests.homes import (
    VECTOR_BYTES,
    Area,
    home_of,
    padded,
    row_of,
)
from featgraph.fold.passes.nests.meets import box_dtypes
from featgraph.fold.tree.nodes import Areas
from featgraph.fold.tree.statements import Body, Rewriting, code
from featgraph.fold.tree.target import Target
from featgraph.program.signature import Real

__all__ = ["DeclareAreas", "group_areas", "scratch_of", "work_shape"]


def group_areas(facts: Facts) -> list[Area]:
    """Return the matrices that lanes that share an edge have together.

    On the CPU a thread is alone; what functions work in has another form there.
    """
    if facts.target is Target.CPU:
        return _works(facts)
    matrices = [a.name for a in _accumulators_of_vertex(facts) if a.is_matrix]
    gathered = [area for name in matrices for area in home_of(facts, name).areas()]
    waits = [area for area, in_group in _waiting(facts) if in_group]
    return [*gathered, *waits, *_works(facts)]


def _waiting(facts: Facts) -> list[tuple[Area, bool]]:
    """Return the arrays in which sums of blocks wait, and whether a group has one.

    A matrix that one thread of a GPU has in memory waits there, too.
    """
    if not facts.binding.block or facts.phase.kind.pushes:
        return []
    axis, found = facts.binding.features, list[tuple[Area, bool]]()
    k, own = axis.width, axis.count if axis.is_looped else axis.per_lane
    alone = facts.target is Target.CUDA and not facts.binding.meets
    for name in facts.summed:
        if home_of(facts, name).is_staged:
            continue
        home = home_of(facts, name).shape
        shape: tuple[int | str, ...]
        shape = {"one": (1,), "element": (1,), "wide": (own,)}.get(home, (k, own))
        several = levels(facts)
        shape = shape if several == 1 else (several, *shape)
        area = Area(waiting(facts, name), shape, facts.context.real)
        found.append((area, alone and home == "matrix"))
    return found


def _accumulators_of_vertex(facts: Facts) -> list[Accumulator]:
    """Return what lanes have for a vertex: what they load, or fill."""
    names = set(facts.phase.loads)
    if not facts.phase.kind.pushes:
        names |= {f.accumulator for f in facts.functions.values()} - {""}
    return [facts.accumulators[n] for n in sorted(names)]


def _works(facts: Facts) -> list[Area]:
    """Return the matrices that functions work in."""
    k, real = facts.phase.width, facts.context.real
    return [
        Area(f"{callee.name}_work_{n}", (k, columns), real)
        for callee in facts.callees.values()
        for n, columns in enumerate(callee.areas)
    ]


def scratch_of(facts: Facts) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the areas in global memory: argument -> dtype and shape of one of them."""
    if facts.target is Target.CPU or facts.phase.mapping.shared_matrices:
        return {}
    areas = group_areas(facts)
    return {f"scratch_{n}": (a.dtype, a.shape) for n, a in enumerate(areas)}


class DeclareAreas(Rewriting):
    """Puts declarations in the place of `Areas`."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def visit_Areas(self, node: Areas) -> Body:
        """Return the declarations; a kernel without areas has none."""
        facts, out = self.facts, code("")
        if facts.target is Target.CUDA:
            out += at_hand(facts.context.staged, facts.context.real, facts.threads)
        for n, area in enumerate(group_areas(facts)):
            out += self._of_group(area, n)
        waits = [area for area, in_group in _waiting(facts) if not in_group]
        for area in (*waits, *self._of_lane()):
            out += self._declared(area)
        boxes = [
            n
            for a in _accumulators_of_vertex(facts)
            for n in box_dtypes(a, facts.context.real)
        ]
        for accumulator in _accumulators_of_vertex(facts):
            out += home_of(facts, accumulator.name).front()
        for name in dict.fromkeys(boxes) if self._has_boxes() else ():
            dtype = "int32" if name == "source" else name
            box = f"cuda.shared.array({facts.threads}, {dtype})"
            out += code(f"box_{name} = {box}")
        return out

    def _has_boxes(self) -> bool:
        """Whether the warps of a block combine what they have, in shared arrays."""
        kind, scopes = self.facts.phase.kind, self.facts.binding.scopes
        shared = "partial" if kind.reduces else "vertex"
        combines = kind.reduces or kind.pulls
        return combines and scopes[shared].company == "block"

    def _of_group(self, area: Area, number: int) -> Body:
        """Return where the area of a group is; on the CPU a thread is one."""
        facts, mapping = self.facts, self.facts.phase.mapping
        if facts.target is Target.CPU:
            k, columns = area.shape
            solves = columns == k + 1
            room = work_shape(k, columns, facts.context.real)
            aligned = solves and mapping.is_looped
            return self._declared(replace(area, shape=room, aligned=aligned))
        if mapping.tile:
            return self._of_block(area, number)
        shift = mapping.lanes_per_edge.bit_length() - 1
        own = f" >> {shift}" if shift else ""
        if not mapping.shared_matrices:
            return code(f"{area.name} = scratch_{number}[cuda.grid(1){own}]")
        shape = (facts.threads >> shift, *area.shape)
        shared = f"cuda.shared.array({shape}, {self._type(area.dtype)})"
        return code(f"{area.name} = {shared}[cuda.threadIdx.x{own}]")

    def _of_block(self, area: Area, number: int) -> Body:
        """Return where the area of a block is that has one vertex."""
        if not self.facts.phase.mapping.shared_matrices:
            return code(f"{area.name} = scratch_{number}[uint32(cuda.blockIdx.x)]")
        kind = self._type(area.dtype)
        shared = f"cuda.shared.array({area.shape}, {kind}, alignment=16)"
        return code(f"{area.name} = {shared}")

    def _of_lane(self) -> list[Area]:
        """Return the arrays of a lane: those of what it keeps, and of its loops."""
        facts, found = self.facts, list[Area]()
        k, real = facts.binding.features.count, facts.context.real
        for array, kind, dtype in (("rows", "real", real), ("flags", "int64", "int64")):
            counts = [p.arrays.get(kind, 0) for p in facts.callees.values()]
            if max(counts, default=0):
                found.append(Area(array, (max(counts), k), dtype))
        for accumulator in _accumulators_of_vertex(facts):
            if accumulator.is_matrix and facts.target is Target.CUDA:
                continue  # of its group
            own = home_of(facts, accumulator.name).areas()
            found += own
            if own and accumulator.name in facts.phase.incremental:
                found += row_of(facts, f"change_{accumulator.name}", accumulator)[:1]
        for name, accumulator in facts.rows_left.items():
            found += row_of(facts, facts.row_left(name), accumulator)[:1]
            if accumulator.is_arg:
                found.append(Area("contribution_source", (k,), "int32"))
            if accumulator.name in facts.phase.incremental:
                seen = facts.row_left(name, "contribution_seen")
                found += row_of(facts, seen, accumulator)[:1]
        return list({a.name: a for a in found}.values())

    def _declared(self, area: Area) -> Body:
        sizes = ", ".join(map(str, area.shape))
        shape = sizes if len(area.shape) == 1 else f"({sizes})"
        kind = self._type(area.dtype)
        if self.facts.target is Target.CUDA:
            return code(f"{area.name} = cuda.local.array({shape}, {kind})")
        if area.aligned:
            return code(f"{area.name} = tiles.zeros({sizes}, np.empty(0, {kind}))")
        return code(f"{area.name} = np.empty({shape}, {kind})")

    def _type(self, dtype: str) -> str:
        if self.facts.target is Target.CUDA:
            return "boolean" if dtype == "bool" else dtype
        return "np.bool_" if dtype == "bool" else f"np.{dtype}"


def work_shape(k: int, columns: int, real: Real) -> tuple[int, int]:
    """Return the shape of the work area of solve or inverse (CPU).

    That of solve has room for the rows that `featgraph.device.cholesky_cpu` works in.
    """
    if columns != k + 1:
        return k, columns
    size = VECTOR_BYTES // real.itemsize
    return padded(k, real) + 1 + size, padded(columns, real)
