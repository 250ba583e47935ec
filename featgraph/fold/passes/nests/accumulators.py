"""Accumulators of gathers and reduces, and the texts of the statements on them.

An `Accumulator` returns the statements that initialize it, combine a contribution, load
and store an entry, or combine into memory by an atomic. A `Patch` has those of
incremental gathers, which replace the old contribution of an edge by the new one.
"""

from __future__ import annotations

import math

from featgraph.base.dataclass import dataclass
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.gathers import combine_of, memory_dtype, reduced_type
from featgraph.fold.passes.bodies.facts import gather_identity
from featgraph.fold.plan.plan import FoldPlan
from featgraph.fold.tree.nodes import Target
from featgraph.program.combines import NO_SOURCE, Combine, Rules
from featgraph.program.signature import Real

__all__ = [
    "Accumulator",
    "Patch",
    "accumulator_of",
    "change_name",
    "final_test",
    "indexed_forms",
    "was_packed",
]


@dataclass(frozen=True)
class Accumulator:
    """The accumulator of one gather or reduce.

    Attributes
    ----------
    name : str
        Name in kernels.
    type : str
        "real", "int64", "int32" or "bool".
    combine : Combine
        The operator.
    function : str
        Emitted name of a user-defined operator.
    identity : str
        Text of the identity.
    shape : tuple of int
        Shape of one entry.
    adds : str
        Function that adds a rounded contribution without contraction (FMA), as for
        contributions from other ranks; "" where contraction is allowed.
    """

    name: str
    type: str
    combine: Combine
    function: str
    identity: str
    shape: tuple[int, ...]
    adds: str = ""

    @property
    def rules(self) -> Rules:
        """Algebraic rules of the operator."""
        return self.combine.rules

    @property
    def is_arg(self) -> bool:
        """Whether the combine is an argmin or argmax, of a key and its source."""
        return self.rules.is_arg

    @property
    def size(self) -> int:
        """Number of values in one entry."""
        return math.prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Whether an entry is k x k."""
        return len(self.shape) == 2

    @property
    def is_wide(self) -> bool:
        """Whether an entry has one value for each feature."""
        return len(self.shape) == 1

    @property
    def key_dtype(self) -> str:
        """Dtype of a key that shares a 64-bit word with its source."""
        return "float32" if self.type == "real" else "int32"

    @property
    def memory_identity(self) -> str:
        """Text of an entry without contributions, in memory that atomics update."""
        return f"PACKED_NONE_{self.key_dtype.upper()}" if self.is_arg else self.identity

    def start(self, name: str) -> list[str]:
        """Return the statements that set `name` to the identity."""
        lines = [f"{name} = {self.identity}"]
        if self.is_arg:
            lines.append(f"{source_name(name)} = int32({NO_SOURCE})")
        return lines

    def take(self, name: str, value: str, intrinsics: str) -> list[str]:
        """Return the statements that combine the contribution `value` into `name`."""
        if self.is_arg:
            source = source_name(name)
            return [
                f"key, source = {value}",
                f"if {intrinsics}.wins_{self.rules.order}(key, source, {name}, "
                f"{source}):",
                f"    {name}, {source} = key, source",
            ]
        return [self.update(name, value)]

    def update(self, name: str, value: str) -> str:
        """Return the statement that combines a value (not for argmin and argmax)."""
        if self.adds:
            return f"{name} = {self.adds}({name}, {value})"
        called = f"{{0}} = {self.function}({{0}}, {{1}})"
        return (self.rules.update or called).format(name, value)

    def atomic(
        self, array: str, index: str, value: str, intrinsics: str, real: Real
    ) -> list[str]:
        """Return the statements that combine `value` into memory by an atomic."""
        if self.is_arg:
            # Key and source are packed into 64 bits, so that the least word wins for
            # both orders.
            pack = f"pack_{self.rules.order}_{self.key_dtype}"
            return [
                f"key, source = {value}",
                f"{intrinsics}.atomic_min({array}, {index}, {intrinsics}.{pack}(key, "
                "source))",
            ]
        given = f"{array}, {index}, {memory_dtype(self.type, real)}({value})"
        if self.function:
            given += f", {self.function}"
        return [f"{intrinsics}.atomic_{self.rules.atomic or 'combine'}({given})"]

    def load(
        self, name: str, index: str, packed: bool, intrinsics: str, array: str = ""
    ) -> list[str]:
        """Return the statements that load an entry from memory.

        `array` is "" for a field of `d`.
        """
        if packed:
            unpack = f"unpack_{self.rules.order}_{self.key_dtype}"
            entry = f"{array or f'd.{self.name}_packed'}[{index}]"
            return [
                f"{name}, {source_name(name)} = {intrinsics}.{unpack}({entry})",
            ]
        test = " != 0" if self.type == "bool" else ""
        lines = [f"{name} = {array or f'd.{self.name}'}[{index}]{test}"]
        if self.is_arg:
            lines.append(f"{source_name(name)} = d.{self.name}_source[{index}]")
        return lines

    def forms(self, packed: bool, intrinsics: str) -> dict[str, str]:
        """Return templates that read an entry in memory; ``{}`` stands for indices."""
        if packed:
            unpack = f"{intrinsics}.unpack_{self.rules.order}_{self.key_dtype}"
            both = f"{unpack}(d.{self.name}_packed[{{}}])"
            return {self.name: f"{both}[0]", f"{self.name}_source": f"{both}[1]"}
        key = f"d.{self.name}[{{}}]"
        found = {self.name: f"({key} != 0)" if self.type == "bool" else key}
        if self.is_arg:
            found[f"{self.name}_source"] = f"d.{self.name}_source[{{}}]"
        return found

    def store(self, name: str, index: str) -> list[str]:
        """Return the statements that store an entry to memory."""
        lines = [f"d.{self.name}[{index}] = {name}"]
        if self.is_arg:
            lines.append(f"d.{self.name}_source[{index}] = {source_name(name)}")
        return lines


def source_name(name: str) -> str:
    """Return the name of the source in a (key, source) pair.

    ``best_3`` becomes ``best_source_3``, and ``best[f]`` becomes ``best_source[f]``.
    """
    array, bracket, indices = name.partition("[")
    stem, _, copy = array.rpartition("_")
    own = f"{stem}_source_{copy}" if stem and copy.isdigit() else f"{array}_source"
    return f"{own}{bracket}{indices}"


def accumulator_of(function: Analysed, analysis: Analysis) -> Accumulator:
    """Return the accumulator that a gather or reduce fills."""
    name, into = function.accumulator, str(function.into)
    temporary = analysis.temporaries.get(name)
    combine = combine_of(function)
    if temporary is not None:
        type_, shape = temporary.type, temporary.item_shape
    else:
        type_ = reduced_type(function)
        shape = analysis.reductions[into]
        shape = () if function.is_scalar else shape
    helper = analysis.combines.get(into)
    return Accumulator(
        name,
        type_,
        combine,
        helper.name if helper is not None else "",
        _identity(function, analysis, type_),
        shape,
    )


def _identity(function: Analysed, analysis: Analysis, type_: str) -> str:
    """Return the text of the initial value of an accumulator."""
    if type_ == "bool":
        return str(combine_of(function).rules.neutral)
    return gather_identity(function, analysis)


def final_test(accumulator: Accumulator, name: str) -> str:
    """Return the test that no further contribution changes an accumulator."""
    if accumulator.is_arg:  # with ``first=True``, any source will do
        return f"{source_name(name)} >= 0"
    if accumulator.rules.final is not None:
        return name if accumulator.rules.final else f"not {name}"
    # With ``first=True``, the first contribution is final.
    return f"{name} != {accumulator.identity}"


def indexed_forms(plan: FoldPlan) -> dict[str, str]:
    """Return templates that read each temporary, and its sources, from memory."""
    intrinsics = Target(plan.target).intrinsics
    forms: dict[str, str] = {}
    for function in plan.analysis.functions:
        if function.kind.gathers:
            accumulator = accumulator_of(function, plan.analysis)
            forms |= accumulator.forms(was_packed(accumulator, plan), intrinsics)
    return forms


def was_packed(accumulator: Accumulator, plan: FoldPlan) -> bool:
    """Return whether a push packs key and source into one word."""
    return accumulator.is_arg and any(
        p.kind.pushes and plan.functions_of(p)[0].into == accumulator.name
        for p in plan.phases
    )


def change_name(name: str) -> str:
    """Return the name of the sum of absolute differences that goes with `name`."""
    return f"change_{name}"


@dataclass(frozen=True)
class Patch:
    """Incremental update of one accumulator.

    Attributes
    ----------
    accumulator : Accumulator
        Accumulator of a combine that can be updated.
    intrinsics : str
        Module of atomics and bit operations.
    real : Real
        The type of real numbers.
    """

    accumulator: Accumulator
    intrinsics: str
    real: Real

    @property
    def measures(self) -> bool:
        """Whether absolute differences are summed, too (sums of reals)."""
        return self.accumulator.rules.is_sum and self.accumulator.type == "real"

    def start(self, name: str, change: str, stored: str) -> list[str]:
        """Return the statements before the edges; `stored` is an entry in memory.

        Patches of min, max and any start from the stored value.
        """
        if self.accumulator.rules.patch == "extremum":
            return [f"{name} = {stored}"]
        lines = [f"{name} = {self.accumulator.identity}"]
        if self.measures:
            lines.append(f"{change} = {self.accumulator.identity}")
        return lines

    def take(self, name: str, change: str, new: str, old: str) -> list[str]:
        """Return the statements that replace `old` by `new` for one edge."""
        if self.accumulator.rules.patch == "quotient":
            # A product of zero or infinity has lost all other factors.
            return [
                f"{name} *= {new} / {old}",
                f"is_patched &= {self.intrinsics}.is_normal({name})",
            ]
        if self.accumulator.rules.is_sum and not self.measures:
            return [f"{name} += {new} - {old}"]
        if self.measures:
            return [
                f"patch = {new} - {old}",
                f"{name} += patch",
                f"{change} += abs(patch)",
            ]
        # If the old contribution was the extremum, and the new one is not, another edge
        # may have the extremum: the aggregate must be recomputed.
        order = {"min": "<=", "max": ">=", "": ""}[self.accumulator.rules.order]
        lines = [f"contributed, retreated = {new}, {old}"]
        if order:
            lines.append(
                f"is_patched &= contributed {order} {name} or not retreated {order} "
                f"{name}"
            )
        else:
            lines.append("is_patched &= contributed or not retreated")
        return [*lines, self.accumulator.update(name, "contributed")]

    def finish(self, name: str, change: str, stored: str) -> list[str]:
        """Return the statements behind the edges, after lanes have combined.

        Patches that start from the stored value need none.
        """
        update = self.accumulator.update(name, stored)
        if self.accumulator.rules.patch == "quotient":
            test = f"is_patched &= {self.intrinsics}.is_normal"
            return [f"{test}({stored})", update, f"{test}({name})"]
        if not self.measures:
            return [update]
        # A sum much smaller than its changes would consist of their rounding errors.
        holds = f"{self.intrinsics}.sum_holds({stored}, {name}, {change})"
        return [f"is_patched &= {holds}", update]
