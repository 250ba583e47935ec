"""Facts about user functions that passes read, and signatures of the results.

A `Context` has the facts that the functions of a phase share, a `BodyFacts` those of
one function in one form, and a `Callee` the signature by which kernels call it.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass, field
from featgraph.fold.analysis.analyse import Analysed, Analysis
from featgraph.fold.analysis.gathers import combine_of, needs_guard, temporaries_of
from featgraph.fold.passes.bodies.memory import Memory, Site, Staged, shared_matrices_of
from featgraph.fold.passes.bodies.nodes import Row
from featgraph.fold.schedules.mapping import Mapping
from featgraph.fold.syntax.names import NUMBER, FreshNames, unused_name
from featgraph.fold.tree.passes import Pass
from featgraph.fold.tree.statements import Access, Body, Cast, Identity, contains
from featgraph.program.combines import NO_SOURCE, identity_value
from featgraph.program.signature import Real

__all__ = ["BodyFacts", "Callee", "Context", "gather_identity"]


@dataclass
class Context:
    """Facts shared by the functions of one phase.

    Attributes
    ----------
    checked : list or None
        Sites of guarded indices; None if checked mode is off.
    seen : dict
        Property -> field with its earlier values, for incremental gathers.
    staged : dict
        Matrices of the whole graph that the kernel stages, by name.
    forwarded : dict
        Edge properties whose next entries reach gathers in registers -> name of these.
    solved : tuple of str
        Matrices whose elements are named variables.
    ordered : tuple of str
        Properties of edges that functions take by value.
    restored : tuple of str
        Properties whose next entries are restored where a function returns False.
    indexed : dict
        Temporaries in memory -> template of an entry; ``{}`` stands for its indices.
    any_width : str
        Text of K where functions serve any K; "" elsewhere.
    watch : callable or None
        Called after each pass with the kernel or function, the pass and the tree.
    """

    analysis: Analysis
    mapping: Mapping
    width: int
    cuda: bool
    checked: list[Site] | None = None
    seen: dict[str, str] = field(default_factory=dict)
    staged: dict[str, Staged] = field(default_factory=dict)
    forwarded: dict[str, str] = field(default_factory=dict)
    solved: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    ordered: tuple[str, ...] = ()
    indexed: dict[str, str] = field(default_factory=dict)
    any_width: str = ""
    watch: Callable[[str, Pass[Any], Body], None] | None = None

    @property
    def real(self) -> Real:
        """Storage type of real numbers."""
        return self.analysis.real

    @cached_property
    def _widths(self) -> dict[str, int]:
        """Row lengths (K) of properties that have rows."""
        return {
            name: type_.item_shape[0]
            for name, type_ in self.analysis.signature.items()
            if type_.kind.value in {"vertex", "edge"} and len(type_.item_shape) == 1
        }

    def memory(self, function: Analysed) -> Memory:
        """Return the memory layout of the values of a function."""
        is_edge = function.kind.along_edges
        return Memory(
            cuda=self.cuda,
            real=self.real,
            width=self.width if not function.is_scalar else 1,
            identity=gather_identity(function, self.analysis),
            temporaries=frozenset(temporaries_of(function, self.analysis)),
            seen=self.seen,
            indexed=self.indexed,
            widths=self._widths,
            ends=("v", "e" if is_edge else "-1"),
            values=self.values_of(function),
        )

    def values_of(self, function: Analysed) -> dict[str, str]:
        """Map edge properties that are passed by value to the names of arguments."""
        taken = function.variables
        return {name: unused_name(f"{name}_e", taken) for name in self.ordered}


@dataclass(frozen=True)
class BodyFacts:
    """One user function, in one form.

    Attributes
    ----------
    context : Context
        Facts of its phase.
    function : Analysed
    form : str
        How features are handled. ``"feature"``: one call for each; ``"parts"``: the
        same for the factors of an outer product; ``"unrolled"``: a variable for each
        feature of a lane; ``"looped"``: elements of arrays; ``"vectorized"`` and, for
        an outer product, ``"columns"``: SIMD vectors; ``"triangle"``: no features.
    fresh : FreshNames
        Makes unused names.
    """

    context: Context
    function: Analysed
    form: str
    fresh: FreshNames = field(default_factory=FreshNames)

    @property
    def analysis(self) -> Analysis:
        """Analysis of the program."""
        return self.context.analysis

    @property
    def mapping(self) -> Mapping:
        """Mapping of vertices and features to lanes."""
        return self.context.mapping

    @property
    def width(self) -> int:
        """K; 1 for a function without features."""
        return 1 if self.function.is_scalar else self.context.width

    @property
    def count(self) -> int:
        """Number of named copies: features of a lane."""
        return 1 if self.function.is_scalar else self.mapping.features_per_lane

    @property
    def piece(self) -> int:
        """Features in one vector load of a lane."""
        return 1 if self.function.is_scalar else self.mapping.vector_width

    @property
    def predicated(self) -> bool:
        """Whether lanes share features, so control flow becomes predicates."""
        return self.context.cuda and self.mapping.lanes_per_edge > 1

    @property
    def padded(self) -> bool:
        """Whether some lanes have copies beyond the last feature."""
        return (
            self.predicated and self.mapping.lanes_per_edge * self.count != self.width
        )

    @property
    def returns_value(self) -> bool:
        """Whether each feature has a result of its own."""
        return self.function.kind.combines

    @property
    def has_key(self) -> bool:
        """Whether the function returns (key, source), for an argmin or argmax."""
        return bool(key_type(self.function, self.analysis))

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the vertex, edge and data arguments."""
        roles = [r for r in self.function.declared.roles if r not in {"f", "i"}]
        values = tuple(self.context.values_of(self.function).values())
        taken = [values if values and role == "e" else (role,) for role in roles]
        return tuple(itertools.chain(*taken))

    @cached_property
    def temporaries(self) -> tuple[str, ...]:
        """Gathered values among the arguments, in order."""
        return temporaries_of(self.function, self.analysis)

    @cached_property
    def memory(self) -> Memory:
        """Memory layout of the values that the function reads and writes."""
        return self.context.memory(self.function)

    @cached_property
    def staged(self) -> dict[str, Staged]:
        """Staged matrices that the function multiplies by."""
        used = shared_matrices_of(self.function, self.analysis)
        return {n: s for n, s in self.context.staged.items() if n in used}

    @property
    def leaves_early(self) -> bool:
        """Whether it has early returns, behind which lanes run on, masked."""
        before = self.function.body[:-1]
        return self.predicated and any(contains(s, ast.Return) for s in before)

    @property
    def live(self) -> str:
        """Name of the predicate that the function has not returned for a lane."""
        return "live" if self.leaves_early else "writer"

    def is_wide(self, temporary: str) -> bool:
        """Return whether a temporary has one entry per feature."""
        known = self.analysis.temporaries
        if temporary in self.analysis.entries:
            return False
        base = known.get(temporary) or known[temporary.removesuffix("_source")]
        return len(base.item_shape) == 1

    def needs_guard(self, node: ast.AST) -> bool:
        """Return whether idle lanes must not execute `node`."""
        return self.predicated and needs_guard(node, self.analysis)

    def returned(self, value: ast.expr) -> ast.expr:
        """Return `value`, or (`value`, source) for an argmin or argmax."""
        key = key_type(self.function, self.analysis)
        return keyed(value, key, self._source) if key else value

    def _source(self) -> ast.expr:
        """Return the id of the source of an edge in the numbering of the user."""
        source: ast.expr = ast.Name("u", ast.Load())
        is_number = not self.analysis.renumbered
        return source if is_number else Access(NUMBER, "now", [source])


@dataclass(frozen=True)
class Callee:
    """Signature of a function that kernels call.

    Attributes
    ----------
    name : str
        Name in the generated module.
    is_collective : bool
        Called once for all features, not once per feature.
    temporaries : tuple of str
        Temporaries it takes, in order; ``best_source`` is one of its own.
    areas : tuple of int
        Columns of the k x k work areas it takes.
    arrays : dict
        Loops form: scratch rows it takes, by type.
    rows : tuple of Row
        Values of rows it takes behind the temporaries, loaded by the caller.
    matrices : tuple of str
        Names of the staged matrices that it takes last.
    vectors : bool
        Whether it is printed as vectors; a gather returns its contributions then.
    waits : bool
        Whether it stores next entries only where its verdict is True.
    """

    function: Analysed
    name: str
    is_collective: bool
    temporaries: tuple[str, ...]
    areas: tuple[int, ...] = ()
    arrays: dict[str, int] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    matrices: tuple[str, ...] = ()
    vectors: bool = False
    waits: bool = False

    @property
    def areas_and_matrices(self) -> list[str]:
        """Names of the last arguments in the kernel: work areas, staged matrices."""
        areas = [f"{self.name}_work_{n}" for n in range(len(self.areas))]
        return [*areas, *self.matrices]


def gather_identity(function: Analysed, analysis: Analysis) -> str:
    """Return the text that stands for ``fg.nothing`` in a gather or reduce."""
    if not function.kind.combines:
        return "0"
    operator = combine_of(function)
    temporary = analysis.temporaries.get(function.into or "")
    type_ = temporary.type if temporary is not None else function.returns
    # Booleans are combined as integers, but their least and largest values are 0 and 1.
    # Keys, and values of custom combines, may be any integers.
    is_bool = function.returns == "bool" and not (operator.is_custom or operator.is_arg)
    dtype = np.dtype("bool" if is_bool else {"real": analysis.real}.get(type_, type_))
    value = identity_value(operator, dtype)
    return _number(value, "int32" if type_ == "bool" else type_, analysis.real)


def _number(value: Any, type_: str, real: Real) -> str:
    """Return the text of a number in the type of its accumulator."""
    if isinstance(value, float) and not math.isfinite(value):
        name = "nan" if math.isnan(value) else "inf"
        return f"{real}({'-' if value < 0 else ''}math.{name})"
    if type_ == "real":
        return f"{real}({float(value)!r})"
    return repr(int(value)) if type_ != "int32" else f"int32({int(value)})"


def key_type(function: Analysed, analysis: Analysis) -> str:
    """Return the key type of an argmin or argmax; "" for other functions."""
    temporary = analysis.temporaries.get(function.into or "")
    if not function.kind.gathers or temporary is None or not temporary.combine.is_arg:
        return ""
    return analysis.real if temporary.type == "real" else temporary.type


def keyed(value: ast.expr, key: str, source: Callable[[], ast.expr]) -> ast.expr:
    """Return the pair (key, source) for a returned value.

    `NO_SOURCE` is the source of the identity.
    """
    inner = value.value if isinstance(value, Cast) else value
    if isinstance(inner, Identity):
        return ast.Tuple([inner, Cast("int32", ast.Constant(NO_SOURCE))], ast.Load())
    if isinstance(inner, ast.IfExp):  # one side may be `fg.nothing`
        sides = (keyed(inner.body, key, source), keyed(inner.orelse, key, source))
        return ast.IfExp(inner.test, *sides)
    return ast.Tuple([Cast(key, value), source()], ast.Load())
