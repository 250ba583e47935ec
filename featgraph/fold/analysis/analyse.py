"""The middle end, the same for every target: from a program to its analysis.

`analyse` takes each user function through these steps, in `_Analyser._function`:
`resolve_function` determines names, `normal_form` gives each collaborative call a
statement of its own, `assign_types` types locals, `find_accesses` makes the access
table, and `checks` raise for functions that do not fit the model. The result is an
`Analysed` for each function, and an `Analysis` of the program with temporaries, helpers
and names for kernels.

On several ranks kernels run on a shard, whose vertices have local numbers
(`renumbered`): see `syntax.names`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Any, cast
from weakref import WeakKeyDictionary

from featgraph.base.cached import cached_property
from featgraph.base.dataclass import dataclass, field, replace
from featgraph.fold.analysis.access import (
    AccessRecord,
    Entry,
    base_name,
    check_accesses,
    check_gathered,
    entry_stem,
    find_accesses,
    next_written_on_every_path,
    separate_gathered,
)
from featgraph.fold.analysis.checks import (
    check_features,
    check_groups,
    check_matrices,
    check_shared_entries,
    matrix_names,
    width_of,
    with_filter,
)
from featgraph.fold.operations.products import OuterProduct, find_outer_product
from featgraph.fold.operations.table import OPERATIONS
from featgraph.fold.syntax.arithmetic import contributed, uses_numbers
from featgraph.fold.syntax.names import (
    BUILTIN_ARRAYS,
    CANONICAL,
    EDGES,
    NUMBER,
    Names,
    ends_of,
    forms_of,
    is_at_end,
    is_elsewhere,
    is_plain,
    lettered,
    name_temporaries,
    redirected,
    unused_name,
    with_numbers,
)
from featgraph.fold.syntax.normal_form import (
    find_varying,
    has_collective,
    normal_form,
    returns_varying,
)
from featgraph.fold.syntax.resolve import Resolved, resolve_function
from featgraph.fold.syntax.types import assign_types
from featgraph.fold.tree.statements import (
    Access,
    Atomic,
    Helper,
    Operate,
    Scalar,
    Whole,
    every,
)
from featgraph.program.combines import Combine, require_integers
from featgraph.program.functions import (
    FunctionKind,
    GatherFunction,
    ReduceFunction,
    UserFunction,
)
from featgraph.program.operations import Collaborative
from featgraph.program.program import Program
from featgraph.program.signature import (
    EXCLUSIVE,
    GENERATED,
    TRIANGLES,
    PropertyKind,
    PropertyType,
    Real,
    Signature,
    widest_real,
)
from featgraph.program.source import FunctionSource

__all__ = ["Analysed", "Analysis", "HelperFunction", "Temporary", "analyse"]

#: Types of the parameters of user functions; "edge" is the type of edge ids.
_PARAMETER_TYPES = dict.fromkeys(("i", "f", "u", "v", "w"), "int32")
_PARAMETER_TYPES |= dict.fromkeys(EDGES, "edge")
_BUILTIN_DTYPES = {
    "superstep": "int64",
    "vertex_count": "int64",
    "living_count": "int64",
    "edge_count": "int64",
    "feature_count": "int64",
    "in_degree": "int32",
    "out_degree": "int32",
    NUMBER: "int32",
}


@dataclass(frozen=True)
class Temporary:
    """The result of a gather: one entry of `item_shape` for each vertex.

    Attributes
    ----------
    name : str
        Name in generated code, ``d.name``.
    into : str
        Name that the user gave.
    type : str
        "real", "bool" or an integer type.
    item_shape : tuple of int
        (), (K,), or (K, K) of a matrix gather.
    combine : Combine
        How contributions are reduced.
    """

    name: str
    into: str
    type: str
    item_shape: tuple[int, ...]
    combine: Combine


@dataclass(frozen=True)
class HelperFunction:
    """A plain function called by user functions, specialised for argument types."""

    name: str
    source: FunctionSource
    parameters: tuple[str, ...]
    body: tuple[ast.stmt, ...]
    returns: str


@dataclass(frozen=True, eq=False)
class Analysed:
    """One user function after the middle end.

    Attributes
    ----------
    name : str
        Its name in the generated module.
    declared : UserFunction
        The declaration: the user's function and the options of its decorator.
    body : tuple of ast.stmt
        Normal form with conversions.
    width : int
        K; 1 for a function that indexes nothing with f.
    is_scalar : bool
        Whether it indexes nothing with f.
    varying, matrices : frozenset of str
        Locals that differ between features; locals that hold a K x K matrix.
    variables : dict
        Local -> type.
    collective : bool
        Whether it makes collaborative calls.
    returns : str
        Type of the returned value.
    returns_varying : bool
        Whether the returned value differs between features.
    accesses : tuple of AccessRecord
        The access table.
    degrees : tuple of AccessRecord
        Accesses to ``d.in_degree`` and ``d.out_degree``.
    scalars : tuple of str
        Scalars and built-in arrays that it reads.
    next_definite : frozenset of str
        Iterated properties whose ``_next`` it writes on every path that may return
        True, before reading it.
    operations : frozenset of str
        Names of the operations that it calls.
    indexed : frozenset of str
        Gathered values that it reads at computed features, so from memory.
    outer_product : OuterProduct or None
        The factors, for a matrix gather or reduce that sums outer products.
    accumulator : str
        Name of the accumulator of a gather or reduce in kernels; "" for others.
    """

    name: str
    declared: UserFunction
    body: tuple[ast.stmt, ...]
    width: int
    is_scalar: bool
    varying: frozenset[str]
    matrices: frozenset[str]
    variables: dict[str, str]
    collective: bool
    returns: str
    returns_varying: bool
    accesses: tuple[AccessRecord, ...]
    degrees: tuple[AccessRecord, ...]
    scalars: tuple[str, ...]
    next_definite: frozenset[str]
    operations: frozenset[str]
    indexed: frozenset[str] = frozenset()
    outer_product: OuterProduct | None = None
    accumulator: str = ""

    @property
    def kind(self) -> FunctionKind:
        """The kind that the user declared."""
        return self.declared.kind

    @property
    def into(self) -> str | None:
        """Name of the temporary that a gather fills, or the vector of a reduce."""
        if self.kind.gathers:
            return self.accumulator
        return getattr(self.declared, "into", None)

    @property
    def twin_operations(self) -> tuple[str, ...]:
        """Operations on edges that need an undirected graph."""
        return tuple(n for n in sorted(self.operations) if OPERATIONS[n].edge_array)

    @property
    def multiplies(self) -> bool:
        """Whether it calls an operation that multiplies a matrix by a row or matrix."""
        return any(OPERATIONS[name].multiplies for name in self.operations)

    @property
    def is_inlined(self) -> bool:
        """Whether the compiler must inline it: it multiplies matrices on edges (CPU).

        A call passes all arrays as arguments, which takes as long as such a product.
        """
        return self.multiplies and self.kind.writes_edges

    def updates(self, name: str) -> frozenset[str]:
        """Return the names of its atomic operations on a property."""
        atomics = (n for n in every(self.body) if isinstance(n, Atomic))
        return frozenset(n.op for n in atomics if n.name == name)

    def writes(self, version: str) -> frozenset[str]:
        """Return the properties it writes in `version`."""
        return frozenset(
            a.name for a in self.accesses if a.mode == "write" and a.version == version
        )


@dataclass
class Analysis:
    """All functions of a program, analysed in order.

    Attributes
    ----------
    signature : Signature
        Types of properties and scalars of the State, mirrors and outboxes included.
    real : str
        Storage type of the foldmap: the widest of the floating-point properties that it
        uses, float32 if it uses none.
    functions : list of Analysed
        In the order of the program.
    temporaries : dict
        Name in kernels -> result of a gather.
    entries : dict
        Name in kernels -> entry of a temporary at a constant feature.
    reductions : dict
        Name of the result of a reduce -> its shape.
    helpers : list of HelperFunction
        In the order in which they must be defined.
    renumbered : bool
        Whether kernels use the local numbers of a shard for vertices.
    mirrors : dict
        Name of a mirror in kernels -> (property or degree, version). A mirror has the
        rows of all vertices, for reads at computed vertices.
    outboxes : dict
        Name of an outbox in kernels -> (property, atomic operation). An outbox has a
        row for each vertex, for atomics at computed vertices.
    combines : dict
        Name of the result of a gather or reduce -> its combine, where this is a
        function that kernels call.
    """

    signature: Signature
    real: Real
    functions: list[Analysed] = field(default_factory=list)
    temporaries: dict[str, Temporary] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    reductions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    helpers: list[HelperFunction] = field(default_factory=list)
    renumbered: bool = False
    mirrors: dict[str, tuple[str, str]] = field(default_factory=dict)
    outboxes: dict[str, tuple[str, str]] = field(default_factory=dict)
    combines: dict[str, HelperFunction] = field(default_factory=dict)

    @property
    def emitted(self) -> set[str]:
        """Names of accumulators in kernels."""
        return {f.accumulator for f in self.functions} - {""}

    @property
    def names(self) -> set[str]:
        """Names that kernels cannot use for more: of values, properties, functions."""
        own = {n for f in self.functions for n in (*f.variables, f.name)}
        return own | self.emitted | set(self.signature) | GENERATED

    def as_given(self, name: str) -> str:
        """Return the user's name of a field of ``d``, such as a temporary."""
        base = base_name(name, self.temporaries)
        if base is None:
            return name
        return self.temporaries[base].into + name.removeprefix(base)

    @cached_property
    def helper_of(self) -> dict[str, HelperFunction]:
        """Helpers by the names that calls have."""
        return {helper.name: helper for helper in self.helpers}

    @cached_property
    def has_reals(self) -> bool:
        """Whether functions read, hold, return or fill real numbers."""
        types = {t.type for t in self.temporaries.values()}
        for function in self.functions:
            used = (*(a.name for a in function.accesses), *function.scalars)
            given = [self.signature[n] for n in used if n in self.signature]
            types |= {function.returns, *function.variables.values()}
            types |= {"real" for type_ in given if type_.is_real}
        return not types.isdisjoint({"real", "float32", "float64"})

    def uses_numbers(self, *, cuda: bool) -> bool:
        """Return whether generated code calls `featgraph.device.numbers`."""
        bodies = [function.body for function in self.functions]
        bodies += [helper.body for helper in self.helpers]
        return any(uses_numbers(body, cuda) for body in bodies)


#: Program -> key of `analyse` -> analysis. Keys are weak: they keep no program alive.
_known: WeakKeyDictionary[Program, dict[Any, Analysis]] = WeakKeyDictionary()


def analyse(
    program: Program, signature: Signature, *, renumbered: bool = False
) -> Analysis:
    """Return the analysis of a program; it is cached, and shared by all plans.

    Parameters
    ----------
    program : Program
        The functions.
    signature : Signature
        Types of the State's properties and scalars.
    renumbered : bool, optional
        Whether kernels use the local numbers of a shard for vertices.

    Returns
    -------
    Analysis
        Shared: later stages must not change it, nor the trees in it.

    Raises
    ------
    UserFunctionError
        If a function does not fit the model or the signature; has its file and line.
    """
    known = _known.setdefault(program, {})
    key = tuple(signature.items()), renumbered
    if key not in known:
        known[key] = _analyse(program, signature, renumbered)
    return known[key]


def _analyse(program: Program, signature: Signature, renumbered: bool) -> Analysis:
    """Run the middle end, twice if the functions use no property of the widest type."""
    # Which properties are in use is known behind the first run only, and the types of
    # locals depend on the storage type.
    real = _widest(signature, signature)
    found = _Analyser(program, signature, real, renumbered).run()
    used = {a.name for function in found.functions for a in function.accesses}
    narrower = _widest(signature, used)
    if narrower == real:
        return found
    return _Analyser(program, signature, narrower, renumbered).run()


def _widest(signature: Signature, names: Iterable[str]) -> Real:
    return widest_real(signature[name] for name in names if name in signature)


class _Analyser:
    """One run of the middle end over a program, for one signature."""

    def __init__(
        self, program: Program, signature: Signature, real: Real, renumbered: bool
    ) -> None:
        for name, type_ in signature.items():
            type_.require_one_type(name)
        self.program = program
        self.result = Analysis(dict(signature), real, renumbered=renumbered)
        reserved = {*GENERATED, *CANONICAL}
        if any(f.kind.intersects for f in program.functions):
            reserved |= TRIANGLES
        if any(f.kind.exclusive for f in program.functions):
            reserved |= EXCLUSIVE
            for name in signature:  # parameters for values that an edge has in order
                reserved |= {f"{name}_e", f"near_{name}", f"ordered_{name}"}
        intos = [f.into for f in program.functions if hasattr(f, "into")]
        #: ``into`` -> its name in generated functions, where it is a local.
        self.emitted = name_temporaries(intos, reserved, signature)
        names = self.emitted.values()
        self.temporaries = {*names, *(f"{name}_source" for name in names)}
        self.stems = {n: entry_stem(n, self.temporaries) for n in self.temporaries}
        # A local with such a name would have copies with the names of entries.
        self.temporaries |= set(self.stems.values())
        self.taken: set[str] = reserved | self.temporaries
        self.taken.update(*map(forms_of, names))
        self.specialised: dict[tuple[Any, tuple[str, ...]], HelperFunction | None] = {}

    def run(self) -> Analysis:
        for function in self.program.functions:
            self._refuse_clash(function)
            analysed = self._function(function)
            self.result.functions.append(analysed)
            if analysed.kind.gathers:
                self._add_temporary(analysed)
            elif analysed.kind.reduces:
                self.result.reductions[str(analysed.into)] = _reduced(analysed)
                self._called_combine(analysed, analysed.returns)
        return self.result

    def _refuse_clash(self, function: UserFunction) -> None:
        """Raise if `into` names a property; a reduce may fill a vector of the State."""
        into = getattr(function, "into", None)
        if into is None:
            return
        names = [into]
        if _combine_of(function).is_arg:
            names += [f"{into}_source", f"{into}_packed"]
        for name in names:
            known = self.result.signature.get(name)
            if known is not None and not (
                function.kind.reduces and known.kind is PropertyKind.VECTOR
            ):
                raise function.source.error(
                    f"{name!r} is the name of a property of the State",
                    got=known.describe(),
                    fix=f"give the {function.kind} another into",
                )

    # -- names

    def _names(self, function: UserFunction) -> Names:
        """Return the meanings of ``d.name``, with the results of functions so far."""
        ranks, kinds = {}, {}
        for name, type_ in self.result.signature.items():
            entity = type_.kind in {PropertyKind.VERTEX, PropertyKind.EDGE}
            ranks[name] = len(type_.item_shape) + entity
            kinds[name] = type_.kind.value
        for temporary in self.result.temporaries.values():
            name = temporary.into
            ranks[name] = len(temporary.item_shape) + 1
            kinds[name] = "into"
            if temporary.combine.is_arg:
                ranks[f"{name}_source"], kinds[f"{name}_source"] = ranks[name], "into"
        for name in self.result.reductions:
            ranks[name] = len(self.result.reductions[name])
            kinds[name] = "vector"
        iterated = frozenset(n for n, t in self.result.signature.items() if t.iterated)
        return Names(ranks, kinds, iterated, self._hidden_names())

    def _hidden_names(self) -> frozenset[str]:
        """Return the names that locals of user functions must not have."""
        helpers = {source.name for source in self.program.helpers.values()}
        functions = {function.name for function in self.program.functions}
        return frozenset(self.temporaries | helpers | functions)

    def _dtypes(self) -> dict[str, str]:
        dtypes = dict(_BUILTIN_DTYPES)
        dtypes.update((n, t.dtype) for n, t in self.result.signature.items())
        for temporary in self.result.temporaries.values():
            dtypes[temporary.into] = temporary.type
            dtypes[f"{temporary.into}_source"] = "int32"
        for analysed in self.result.functions:
            if analysed.kind.reduces:
                dtypes[analysed.into or ""] = analysed.returns
        return dtypes

    # -- one function

    def _function(self, function: UserFunction) -> Analysed:
        """Run all passes and checks over one function."""
        source = function.source
        names = self._names(function)
        captured = self.program.captured[function.function]
        decides = not function.kind.combines
        ends = {"nothing": not decides, "returns": not function.kind.intersects}
        resolved = resolve_function(
            source, function.roles, captured, names, data=True, **ends
        )
        body = normal_form(
            resolved, lambda called: self._resolve_called(called, names), names.taken
        )
        if self.result.renumbered:
            body = with_numbers(body, names.kinds, ends_of(function.kind))
        body, variables, returned = assign_types(
            source,
            body,
            {r: _PARAMETER_TYPES[r] for r in function.roles if r != "d"},
            self._dtypes(),
            self._call_helper,
            "bool" if decides or _combine_of(function).rules.gives == "bool" else None,
            self.result.real,
        )
        if not decides:
            returned = contributed(function, body, returned)
        collective = any(has_collective(s) for s in body)
        check_features(function, body, collective)
        width, is_scalar = width_of(source, body, names.kinds, self._item_shape)
        check_groups(source, body, width)
        varying = find_varying(source, body)
        reads_first = function.kind.exclusive
        check_shared_entries(source, body, width, varying, reads_first=reads_first)
        check_gathered(function, body, names.kinds)
        accesses = find_accesses(function, body, names.kinds)
        shared = frozenset(n for n, t in self.result.signature.items() if t.shared)
        check_accesses(function, body, accesses, names.kinds, names.iterated, shared)
        if self.result.renumbered:
            self._redirect(body, ends_of(function.kind))
        nodes = list(every(body))
        operations = frozenset(n.name for n in nodes if isinstance(n, Operate))
        matrices = matrix_names(body)
        check_matrices(source, body, matrices)
        # From here on temporaries have their names in kernels.
        accesses = self._emit_names(body, accesses)
        shapes = {n: t.item_shape for n, t in self.result.temporaries.items()}
        entries, indexed = separate_gathered(function, body, shapes, self.stems)
        self.result.entries |= entries
        accesses = with_filter(function, accesses, self.result.signature)
        scalars = {n.name for n in nodes if isinstance(n, Scalar)}
        scalars |= {
            n.name for n in nodes if isinstance(n, Access) and n.name in _BUILTIN_DTYPES
        }
        is_gather = self.result.renumbered and function.kind.gathers
        if is_gather and _combine_of(function).is_arg:
            scalars |= {NUMBER}  # sources of an argmin or argmax are the user's ids
        return Analysed(
            name=_emitted_name(function.name, self.taken),
            declared=function,
            body=tuple(body),
            width=width,
            is_scalar=is_scalar,
            varying=varying,
            matrices=matrices,
            variables=variables,
            collective=collective,
            returns=returned,
            returns_varying=returns_varying(body, varying),
            accesses=tuple(a for a in accesses if a.name not in _BUILTIN_DTYPES),
            degrees=tuple(a for a in accesses if a.name in BUILTIN_ARRAYS),
            scalars=tuple(sorted(scalars - {"feature_count"})),
            next_definite=next_written_on_every_path(
                body, returns_varying(body, varying)
            ),
            operations=operations,
            indexed=indexed,
            outer_product=_outer_product(function, body, returned),
            accumulator=self.emitted.get(getattr(function, "into", ""), ""),
        )

    def _emit_names(
        self, body: list[ast.stmt], accesses: tuple[AccessRecord, ...]
    ) -> tuple[AccessRecord, ...]:
        """Rename gathered values to their names in kernels, in `body` and `accesses`.

        Checks run before, so that error messages have the user's names.
        """
        temporaries = self.result.temporaries.values()
        emitted = {t.into: t.name for t in temporaries}
        emitted |= {f"{t.into}_source": f"{t.name}_source" for t in temporaries}
        for node in every(body):
            if isinstance(node, Access | Whole):
                node.name = emitted.get(node.name, node.name)
        return tuple(replace(a, name=emitted.get(a.name, a.name)) for a in accesses)

    def _redirect(self, body: list[ast.stmt], ends: frozenset[str]) -> None:
        """Redirect accesses at computed vertices to mirrors and outboxes.

        The access table keeps the names of the properties.
        """
        mirrors = {of: name for name, of in self.result.mirrors.items()}
        outboxes = {of: name for name, of in self.result.outboxes.items()}
        for node in every(body):
            if isinstance(node, Atomic) and is_elsewhere(node, ends):
                key = node.name, node.op
                if key not in outboxes:
                    outboxes[key] = self._whole(node.name, f"{node.op}_elsewhere")
            elif isinstance(node, Access | Whole) and not is_at_end(node, ends):
                key = node.name, node.version
                if key not in mirrors and self._is_of_vertices(node.name):
                    ending = "next_" if node.version == "next" else ""
                    mirrors[key] = self._whole(node.name, f"{ending}everywhere")
        self.result.mirrors = {name: of for of, name in mirrors.items()}
        self.result.outboxes = {name: of for of, name in outboxes.items()}
        redirected(body, mirrors, outboxes, ends)

    def _is_of_vertices(self, name: str) -> bool:
        type_ = self.result.signature.get(name)
        is_property = type_ is not None and type_.kind is PropertyKind.VERTEX
        return is_property or name in BUILTIN_ARRAYS

    def _whole(self, of: str, ending: str) -> str:
        """Return the name of a new mirror or outbox, and add its type to the signature.

        Parameters
        ----------
        of : str
            Property or degree.
        ending : str
            Last part of the name.
        """
        signature = self.result.signature
        name = unused_name(f"{of}_{ending}", signature.keys() | self.temporaries)
        if of in signature:
            signature[name] = signature[of]._replace(iterated=False)
        else:
            dtype = _BUILTIN_DTYPES[of]
            signature[name] = PropertyType(PropertyKind.VERTEX, dtype, ())
        return name

    def _resolve_called(self, called: Any, names: Names) -> Resolved:
        if isinstance(called, Collaborative):
            source, function = called.source, called.function
        else:
            source, function = self.program.helper(called), called
        captured = self.program.captured_by(function, source)
        return resolve_function(source, source.parameters, captured, names)

    def _call_helper(self, node: Helper, types: list[str]) -> str:
        """Specialise a helper for argument types; set its emitted name on `node`."""
        key = (node.function, tuple(types))
        if key not in self.specialised:
            # None marks a helper in work, so that a recursive call is found.
            self.specialised[key] = None
            self.specialised[key] = self._specialise(node, types)
        helper = self.specialised[key]
        if helper is None:
            source = self.program.helper(node.function)
            raise source.error("a recursive helper cannot be folded", fix="use a loop")
        node.emitted = helper.name
        return helper.returns

    def _specialise(self, node: Helper, types: list[str]) -> HelperFunction:
        """Resolve and type a helper; helpers that it calls are added before it."""
        source = self.program.helper(node.function)
        if len(types) != len(source.parameters):
            raise source.error(
                "wrong number of arguments for this helper",
                got=len(types),
                expected=len(source.parameters),
            )
        captured = self.program.captured_by(node.function, source)
        hidden = {*GENERATED, *CANONICAL, *self._hidden_names()}
        roles = tuple(p if p not in hidden else f"{p}_" for p in source.parameters)
        names = Names({}, {}, frozenset(), self._hidden_names())
        resolved = resolve_function(source, roles, captured, names)
        parameters = dict(zip(roles, types, strict=True))
        body, _, returned = assign_types(
            source,
            resolved.tree.body,
            parameters,
            {},
            self._call_helper,
            None,
            self.result.real,
        )
        helper = HelperFunction(
            _emitted_name(source.name, self.taken),
            source,
            roles,
            tuple(body),
            returned,
        )
        self.result.helpers.append(helper)
        return helper

    # -- widths and temporaries

    def _item_shape(self, name: str) -> tuple[int, ...]:
        gathered = {t.into: t.item_shape for t in self.result.temporaries.values()}
        base = base_name(name, gathered)
        if base is not None:
            return gathered[base]
        if name in self.result.reductions:
            return self.result.reductions[name]
        return self.result.signature[name].item_shape

    def _add_temporary(self, analysed: Analysed) -> None:
        """Add the result of a gather, in the type in which it is accumulated."""
        gather: Any = analysed.declared
        shape: tuple[int, ...] = () if analysed.is_scalar else (analysed.width,)
        if gather.matrix:
            if analysed.is_scalar:
                raise gather.source.error("a matrix gather indexes nothing with f")
            shape = (analysed.width, analysed.width)
        type_ = analysed.returns
        combine = gather.combine
        gives = combine.rules.gives
        if combine.is_custom and isinstance(combine.identity, float):
            type_ = "real"
        elif gives == "bool" or (gives and type_ != "real"):
            type_ = gives
        elif type_ == "bool":
            type_ = "int32"  # a sum or product of booleans counts
        type_ = self._called_combine(analysed, type_)
        name = analysed.accumulator
        self.result.temporaries[name] = Temporary(
            name, gather.into, type_, shape, combine
        )

    def _called_combine(self, analysed: Analysed, type_: str) -> str:
        """Specialise a combine that is called; return the type that it accumulates."""
        operator: Any = _combine_of(analysed.declared)
        operator.require_numbers(analysed.returns, analysed.declared.source)
        if not operator.is_called:
            return type_
        if operator.is_custom:
            self.program.helpers.setdefault(operator.function, operator.source)
        node = Helper(operator.pair, [])
        returned = self._call_helper(node, [type_, type_])
        if analysed.kind.reduces and type_ != "real":
            require_integers(operator, returned, analysed.declared.source)
        if returned == "real" and type_ != "real":
            # Integers combine to a real number, which then is an operand itself.
            type_ = "real"
            self._call_helper(node, [type_, type_])
        helper = self.specialised[(operator.pair, (type_, type_))]
        if helper is not None:
            self.result.combines[analysed.into or ""] = helper
        return type_


#: Suffixes of the name of a function in those of its parts, and of its areas.
_PARTS = ("column", "rest", "row", "scale", "work")


def _emitted_name(name: str, taken: set[str]) -> str:
    """Return a name for a function of the generated module; it is taken then."""
    stem = name if is_plain(name) else "function"
    if re.search(r"_\d+$", stem):  # as kernels and copies of locals are named
        stem += "_"
    for fresh in lettered(stem):
        own = {fresh, *(f"{fresh}_{part}" for part in _PARTS)}
        if taken.isdisjoint(own):
            break
    taken |= own
    return fresh


def _reduced(analysed: Analysed) -> tuple[int, ...]:
    declared: Any = analysed.declared
    if declared.matrix and analysed.is_scalar:
        raise declared.source.error("a matrix reduce indexes nothing with f")
    return (analysed.width,) * (2 if declared.matrix else 1)


def _combine_of(function: UserFunction) -> Combine:
    return cast("GatherFunction | ReduceFunction", function).combine


def _outer_product(
    function: UserFunction, body: list[ast.stmt], returned: str
) -> OuterProduct | None:
    matrix = getattr(function, "matrix", False)
    if not matrix or returned != "real" or not _combine_of(function).rules.is_sum:
        return None
    return find_outer_product(body)
