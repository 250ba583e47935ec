"""What passes over the functions of a phase may ask, and how kernels call them."""

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
from featgraph.fold.analysis.gathers import combine_of, temporaries_of
from featgraph.fold.analysis.guarded import needs_guard
from featgraph.fold.passes.bodies.memory import Memory, Site
from featgraph.fold.passes.bodies.nodes import Row
from featgraph.fold.passes.bodies.staging import Staged, shared_matrices_of
from featgraph.fold.schedules.mapping import Mapping
from featgraph.fold.syntax.fresh_names import FreshNames
from featgraph.fold.syntax.vertex_numbers import NUMBER
from featgraph.fold.tree.expressions import Access, Cast, Identity
from featgraph.fold.tree.passes import Pass
from featgraph.fold.tree.statements import Body
from featgraph.program.combine import NO_SOURCE, identity_value
from featgraph.program.signature import Real

__all__ = ["BodyFacts", "Callee", "Context", "gather_identity"]


@dataclass
class Context:
    """What passes over the functions of one phase need to know of it.

    Attributes
    ----------
    checked : list or None
        Sites of guarded indices; None where the mode is off.
    seen : dict
        Property -> the field that holds what it was, for kept gathers.
    staged : dict
        Matrices of no vertex that the kernel keeps at hand, by name.
    forwarded : dict
        Edge properties whose next entries go to gathers in registers -> their name.
    solved : tuple of str
        Matrices whose elements have names.
    ordered : tuple of str
        Properties of edges that functions are given by value.
    restored : tuple of str
        Properties whose next entries are put back where a function returns False.
    indexed : dict
        Temporaries in memory -> the form of an entry, ``{}`` for its indices.
    any_width : str
        Text that K is read from where functions serve any K; "" elsewhere.
    watch : callable or None
        Told the kernel or function, the pass and the tree behind each pass, if given.
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
        """The type of real numbers."""
        return self.analysis.real

    @cached_property
    def _widths(self) -> dict[str, int]:
        """K of the properties that have rows."""
        return {
            name: type_.item_shape[0]
            for name, type_ in self.analysis.signature.items()
            if type_.kind.value in {"vertex", "edge"} and len(type_.item_shape) == 1
        }

    def memory(self, function: Analysed) -> Memory:
        """Return where the values of a function are."""
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
        """Return the properties of edges that it is given by value, and as what."""
        found = {}
        for name in self.ordered:
            given = f"{name}_e"
            while given in function.variables:
                given += "_"
            found[name] = given
        return found


@dataclass(frozen=True)
class BodyFacts:
    """One user function, in one form.

    Attributes
    ----------
    context : Context
        The phase that it belongs to.
    function : Analysed
    form : str
        What becomes of its features: ``"feature"``, it is called once for each;
        ``"parts"``, those of an outer product are; ``"unrolled"``, a lane's features
        have names of their own; ``"looped"``, they are elements of arrays;
        ``"vectorized"`` and, of an outer product, ``"columns"``; ``"triangle"``, it
        has no features.
    fresh : FreshNames
        Gives names.
    """

    context: Context
    function: Analysed
    form: str
    fresh: FreshNames = field(default_factory=FreshNames)

    @property
    def analysis(self) -> Analysis:
        """What is known of the program."""
        return self.context.analysis

    @property
    def mapping(self) -> Mapping:
        """How vertices and features go to lanes."""
        return self.context.mapping

    @property
    def width(self) -> int:
        """K; 1 of a function without features."""
        return 1 if self.function.is_scalar else self.context.width

    @property
    def count(self) -> int:
        """Features that a lane has, as named copies."""
        return 1 if self.function.is_scalar else self.mapping.features_per_lane

    @property
    def piece(self) -> int:
        """Features that a lane loads at once."""
        return 1 if self.function.is_scalar else self.mapping.vector_width

    @property
    def predicated(self) -> bool:
        """Whether lanes share the features, so that all of them go everywhere."""
        return self.context.cuda and self.mapping.lanes_per_edge > 1

    @property
    def padded(self) -> bool:
        """Whether lanes may have copies beyond the last feature."""
        return (
            self.predicated and self.mapping.lanes_per_edge * self.count != self.width
        )

    @property
    def returns_value(self) -> bool:
        """Whether each feature has a result of its own."""
        return self.function.kind.combines

    @property
    def has_key(self) -> bool:
        """Whether it returns key and source, for an argmin or argmax."""
        return bool(key_type(self.function, self.analysis))

    @property
    def roles(self) -> tuple[str, ...]:
        """Vertices, edges and data that it takes."""
        roles = [r for r in self.function.declared.roles if r not in {"f", "i"}]
        values = tuple(self.context.values_of(self.function).values())
        taken = [values if values and role == "e" else (role,) for role in roles]
        return tuple(itertools.chain(*taken))

    @cached_property
    def temporaries(self) -> tuple[str, ...]:
        """Gathered values that it takes, in order."""
        return temporaries_of(self.function, self.analysis)

    @cached_property
    def memory(self) -> Memory:
        """Where its values are."""
        return self.context.memory(self.function)

    @cached_property
    def staged(self) -> dict[str, Staged]:
        """Matrices at hand that it multiplies by."""
        used = shared_matrices_of(self.function, self.analysis)
        return {n: s for n, s in self.context.staged.items() if n in used}

    @property
    def leaves_early(self) -> bool:
        """Whether lanes may return in front of the end, and go along to it."""
        before = self.function.body[:-1]
        has_return = any(isinstance(n, ast.Return) for s in before for n in ast.walk(s))
        return self.predicated and has_return

    @property
    def live(self) -> str:
        """The name that says whether the function runs for a lane, and still does."""
        return "live" if self.leaves_early else "writer"

    def is_wide(self, temporary: str) -> bool:
        """Return whether a temporary has an entry for every feature."""
        known = self.analysis.temporaries
        if temporary in self.analysis.entries:
            return False
        base = known.get(temporary) or known[temporary.removesuffix("_source")]
        return len(base.item_shape) == 1

    def needs_guard(self, node: ast.AST) -> bool:
        """Return whether lanes without work must stay away from `node`."""
        helpers = {h.name: h for h in self.analysis.helpers}
        return self.predicated and needs_guard(node, helpers)

    def returned(self, value: ast.expr) -> ast.expr:
        """Return what a function returns; of an argmin or argmax, key and source."""
        key = key_type(self.function, self.analysis)
        return keyed(value, key, self._source) if key else value

    def _source(self) -> ast.expr:
        """Return the number of the source of an edge, as the user knows it."""
        source: ast.expr = ast.Name("u", ast.Load())
        is_number = not self.analysis.renumbered
        return source if is_number else Access(NUMBER, "now", [source])


@dataclass(frozen=True)
class Callee:
    """A function that kernels call, and how.

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
        Names of the matrices at hand that it takes last.
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
        """The last of its arguments, as the kernel names them."""
        areas = [f"{self.name}_work_{n}" for n in range(len(self.areas))]
        return [*areas, *self.matrices]


def gather_identity(function: Analysed, analysis: Analysis) -> str:
    """Return the text of what a gather or reduce contributes with ``fg.nothing``."""
    if not function.kind.combines:
        return "0"
    operator = combine_of(function)
    temporary = analysis.temporaries.get(function.into or "")
    type_ = temporary.type if temporary is not None else function.returns
    # Truth values are combined as integers; their least and largest are 0 and 1. A key
    # is an integer among others.
    truths = function.returns == "bool" and not (operator.is_custom or operator.is_arg)
    dtype = np.dtype("bool" if truths else {"real": analysis.real}.get(type_, type_))
    value = identity_value(operator, dtype)
    return _number(value, "int32" if type_ == "bool" else type_, analysis.real)


def _number(value: Any, type_: str, real: Real) -> str:
    """Return the text of a number in the type of its accumulator."""
    if isinstance(value, float) and math.isinf(value):
        return f"{real}({'-' if value < 0 else ''}math.inf)"
    if type_ == "real":
        return f"{real}({float(value)!r})"
    return repr(int(value)) if type_ != "int32" else f"int32({int(value)})"


def key_type(function: Analysed, analysis: Analysis) -> str:
    """Return the type of an argmin's or argmax's key, "" for other functions."""
    temporary = analysis.temporaries.get(function.into or "")
    if not function.kind.gathers or temporary is None or not temporary.combine.is_arg:
        return ""
    return analysis.real if temporary.type == "real" else temporary.type


def keyed(value: ast.expr, key: str, source: Callable[[], ast.expr]) -> ast.expr:
    """Return the pair (key, source) of what a gather returns."""
    inner = value.value if isinstance(value, Cast) else value
    if isinstance(inner, Identity):
        return ast.Tuple([inner, Cast("int32", ast.Constant(NO_SOURCE))], ast.Load())
    if isinstance(inner, ast.IfExp):
        sides = (keyed(inner.body, key, source), keyed(inner.orelse, key, source))
        return ast.IfExp(inner.test, *sides)
    return ast.Tuple([Cast(key, value), source()], ast.Load())
