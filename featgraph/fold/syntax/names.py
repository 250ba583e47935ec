"""Names in user functions and in generated code, and the numbers of vertices.

`Names` lists the properties, temporaries and vectors that ``d.name`` may mean.
`rename_locals` and `name_temporaries` rename names of the user that generated code uses
itself. `FreshNames` makes names for passes that differ from every local of the user's.

`with_numbers` translates between the user's vertex ids and the local numbers of a shard
(S10). In a shard `u` and `v` are positions among its rows. As an index they stay
positions; as a value they are translated by the shard's array of vertex ids. Reads at a
computed vertex go to a mirror, an array with the rows of all vertices. Atomics there go
to an outbox, an array with a row for each vertex.
"""

from __future__ import annotations

import ast
import itertools
import keyword
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from featgraph.base.dataclass import dataclass
from featgraph.fold.tree.statements import (
    Access,
    Atomic,
    Body,
    Whole,
    assigned_names,
    copy_location,
    entity_of,
    every,
    is_reversed,
)
from featgraph.program.functions import FunctionKind
from featgraph.program.signature import GENERATED

__all__ = [
    "BUILTIN_ARRAYS", "BUILTIN_SCALARS", "CANONICAL", "EDGES", "NUMBER", "FreshNames",
    "Names", "argument_counts", "ends_of", "forms_of", "is_at_end", "is_elsewhere",
    "is_plain", "lettered", "math_name", "name_temporaries", "redirected",
    "rename_locals", "unused_name", "with_numbers",
]  # fmt: skip

#: Parameter names of generated functions, by role.
CANONICAL = ("i", "f", "u", "v", "e", "d")
#: Parameters that are edges.
EDGES = frozenset({"e", "e_uv", "e_uw", "e_vw"})
BUILTIN_SCALARS = frozenset(
    {"superstep", "vertex_count", "living_count", "edge_count", "feature_count"}
)
BUILTIN_ARRAYS = frozenset({"in_degree", "out_degree"})

#: Functions of `math` that can be called, by number of arguments.
_MATH = {
    1: "sqrt exp log log1p expm1 sin cos tan tanh sinh cosh asin acos atan floor ceil "
    "fabs isnan isinf isfinite erf",
    2: "atan2 pow hypot",
}
_COUNTS = {name: count for count, names in _MATH.items() for name in names.split()}
_BUILTINS = {
    abs: "abs",
    min: "min",
    max: "max",
    float: "float",
    int: "int",
    bool: "bool",
}
#: Names of NumPy functions -> names in `_COUNTS` or `_BUILTINS`.
_NUMPY_ALIASES = {
    "abs": "abs",
    "absolute": "abs",
    "arccos": "acos",
    "arcsin": "asin",
    "arctan": "atan",
    "float32": "float",
    "float64": "float",
    "int32": "int",
    "int64": "int",
    "maximum": "max",
    "minimum": "min",
    "power": "pow",
}


@dataclass(frozen=True)
class Names:
    """The meanings of ``d.name`` in one function.

    Attributes
    ----------
    ranks : mapping
        Property, temporary or vector name -> number of indices.
    kinds : mapping
        Name -> "vertex", "edge", "vector", "scalar" or "into".
    iterated : frozenset of str
        Names with a ``_next``.
    taken : frozenset of str
        Names that locals must not hide: temporaries, and functions of the program.
    """

    ranks: Mapping[str, int]
    kinds: Mapping[str, str]
    iterated: frozenset[str]
    taken: frozenset[str] = frozenset()

    def index_hint(self, name: str) -> str:
        """Return how a property is indexed, e.g. ``d.x[v, f]``."""
        kind = self.kinds.get(name, "vertex")
        first = {"edge": ["e"], "vector": []}.get(kind, ["v"])
        rank = 1 if name in BUILTIN_ARRAYS else self.ranks[name]
        rest = {0: [], 1: ["f"], 2: ["i", "f"]}.get(rank - len(first), ["f"])
        return f"d.{name}[{', '.join(first + rest)}]"


def letters(count: int) -> str:
    """Return the letters of a number: ``a``, ..., ``z``, ``aa``, ... for 1, 2, ..."""
    text = ""
    while count:
        count, letter = divmod(count - 1, 26)
        text = "abcdefghijklmnopqrstuvwxyz"[letter] + text
    return text


def lettered(name: str) -> Iterator[str]:
    """Yield a name, and then the name with letters: ``x``, ``x_b``, ``x_c``, ..."""
    yield name
    for number in itertools.count(2):
        yield f"{name}_{letters(number)}"


def is_plain(name: str) -> bool:
    """Return whether a user's identifier may stand in generated code as it is."""
    return (
        name.isascii()
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and not name.startswith("_")
        and len(name) < 64
    )


def unused_name(name: str, taken: Collection[str]) -> str:
    """Return a name with as many underscores behind it as make it unused."""
    while name in taken:
        name += "_"
    return name


def _is_generated(name: str, hidden: Collection[str]) -> bool:
    """Return whether generated code may use a name, as for a copy: ``x_3``."""
    return name in hidden or re.search(r"_\d+$", name) is not None


#: Names that kernels derive from that of a temporary; each may get a number, ``x_3``.
_FORMS = (
    "{}", "{}_source", "{}_packed", "{}_at", "all_{}", "change_{}", "entries_of_{}",
    "new_{}", "old_{}", "own_{}", "rows_of_{}", "rows_of_{}_source",
)  # fmt: skip


def forms_of(name: str) -> set[str]:
    """Return the names that kernels derive from the name of a temporary."""
    return {form.format(name) for form in _FORMS}


def name_temporaries(
    intos: Iterable[str], hidden: Collection[str], fields: Collection[str]
) -> dict[str, str]:
    """Return the names of the results of gathers and reduces in generated code.

    A name is ``into`` with as many underscores as are needed to make it, and the names
    that kernels derive from it, unique.

    Parameters
    ----------
    intos : iterable of str
        The names that users gave, in the order of the functions.
    hidden : collection of str
        Names that generated code uses.
    fields : collection of str
        Names of properties: fields of ``d``, as temporaries may be.
    """
    names: dict[str, str] = {}
    used: set[str] = set()
    for into in intos:
        name = into
        while (
            # A temporary ``found`` may use ``all_found`` for the aggregate that a warp
            # recomputes, since no walk over edges has both that and the vote.
            any(_is_generated(n, hidden) for n in forms_of(name) - {f"all_{name}"})
            or forms_of(name) & used
            or (name != into and name in fields)
        ):
            name += "_"
        names[into] = name
        used |= forms_of(name)
    return names


def rename_locals(
    tree: ast.FunctionDef, roles: tuple[str, ...], taken: frozenset[str]
) -> None:
    """Rename parameters to `roles`, and locals so that they hide no name.

    Names that are neither are captured: they are marked ``is_free``.
    """
    mapping = dict(zip((a.arg for a in tree.args.args), roles, strict=True))
    used = set(roles) | taken
    hidden = set(CANONICAL) | GENERATED
    for count, name in enumerate(sorted(assigned_names(tree) - set(mapping))):
        plain = is_plain(name.strip("_"))
        fresh = name if plain else f"local_{count}"
        if _is_generated(fresh, hidden) or fresh.startswith("_"):
            fresh = f"{fresh.strip('_')}_"
        mapping[name] = unused_name(fresh, used)
        used.add(mapping[name])
    for node in (n for n in every([tree]) if isinstance(n, ast.Name)):
        if node.id in mapping:
            node.id = mapping[node.id]
        else:  # a captured name may equal a new name of a parameter
            node.is_free = True  # type: ignore[attr-defined]


def math_name(called: Any) -> str | None:
    """Return the name of a function of `math`, NumPy or Python; None for others."""
    try:
        if called in _BUILTINS:
            return _BUILTINS[called]
    except TypeError:  # unhashable
        return None
    name = getattr(called, "__name__", "")
    if getattr(math, name, None) is called and name in _COUNTS:
        return str(name)
    if getattr(np, name, None) is called:
        name = _NUMPY_ALIASES.get(name, name)
        if name in _COUNTS or name in _BUILTINS.values():
            return str(name)
    return None


def argument_counts(name: str) -> tuple[int, int]:
    """Return the least and the largest number of arguments of such a function."""
    if name in {"min", "max"}:
        return 2, 1000
    count = _COUNTS.get(name, 1)
    return count, count


#: Placeholder in a name for letters that are chosen later. Users' names are ASCII.
_OPEN = re.compile(r"ø(\d+)")


class FreshNames:
    """Unique names for several passes, ``p_a``, ``p_b``, ..., in order of the text.

    Passes get names with a placeholder; `settle` replaces it when all passes are done.
    Names that belong to one statement form a group, and get consecutive letters.
    """

    def __init__(self) -> None:
        self.stems: list[str] = []
        self.groups: list[list[int]] = []

    def begin(self) -> None:
        """Begin the group of a new statement."""
        self.groups.append([])

    def __call__(self, stem: str) -> str:
        """Return a unique name; suffixes may be appended to it."""
        self.groups[-1].append(len(self.stems))
        self.stems.append(stem)
        return f"{stem}_ø{len(self.stems) - 1}"

    def settle(self, body: Body, taken: Collection[str]) -> None:
        """Replace placeholders in `body` by letters, so that no name is `taken`."""
        group_of = {n: group for group in self.groups for n in group}
        final: dict[int, str] = {}
        count = 0
        for name in _names(body):
            found = _OPEN.search(name.id)
            if found is None:
                continue
            number = int(found[1])
            for n in group_of[number] if number not in final else []:
                count += 1
                while f"{self.stems[n]}_{letters(count)}" in taken:
                    count += 1
                final[n] = letters(count)
            name.id = _OPEN.sub(final[number], name.id)


def _names(body: Iterable[ast.AST]) -> Iterator[ast.Name]:
    """Yield names in the order of the text."""
    for node in body:
        if isinstance(node, ast.Name):
            yield node
        yield from _names(ast.iter_child_nodes(node))


#: Name in generated code of a shard's array of vertex ids.
NUMBER = "vertex_number"


def ends_of(kind: FunctionKind) -> frozenset[str]:
    """Return the parameter names of vertices in functions of a kind."""
    return frozenset({"u", "v", "w"} if kind.intersects else {"u", "v"})


def with_numbers(
    body: list[ast.stmt], kinds: Mapping[str, str], ends: frozenset[str]
) -> list[ast.stmt]:
    """Return a body in which ``u`` and ``v`` as values are the user's vertex ids.

    Parameters
    ----------
    body : list of ast.stmt
        Normal form; changed.
    kinds : mapping of str to str
        Name -> "vertex", "edge", "vector", "scalar" or "into": see `Names`.
    ends : set of str
        Parameter names of vertices: see `ends_of`.
    """
    return [_Numbers(kinds, ends).visit(statement) for statement in body]


class _Numbers(ast.NodeTransformer):
    def __init__(self, kinds: Mapping[str, str], ends: frozenset[str]) -> None:
        self.kinds, self.ends = kinds, ends

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.ends or not isinstance(node.ctx, ast.Load):
            return node
        return copy_location(Access(NUMBER, "now", [node]), node)

    def visit_Access(self, node: Access) -> ast.AST:
        return self._indexed(node)

    def visit_Whole(self, node: Whole) -> ast.AST:
        return self._indexed(node)

    def visit_Atomic(self, node: Atomic) -> ast.AST:
        if is_elsewhere(node, self.ends):  # outboxes are indexed by the user's ids
            self.generic_visit(node)
            return node
        return self._indexed(node)

    def _indexed(self, node: Access | Whole | Atomic) -> ast.AST:
        """Translate all indices but the vertex that owns the entry."""
        first, has_rows = node.indices[:1], self.kinds.get(node.name) != "vector"
        own = first if has_rows and isinstance(first[0], ast.Name) else []
        node.indices = node.indices[len(own) :]
        self.generic_visit(node)
        node.indices = [*own, *node.indices]
        return node


def redirected(
    body: list[ast.stmt],
    mirrors: Mapping[tuple[str, str], str],
    outboxes: Mapping[tuple[str, str], str],
    ends: frozenset[str],
) -> None:
    """Redirect accesses at computed vertices to mirrors and outboxes.

    Parameters
    ----------
    body : list of ast.stmt
        Changed; accesses at the ends of an edge or triangle stay as they are.
    mirrors : mapping of (str, str) to str
        Property and version -> its mirror.
    outboxes : mapping of (str, str) to str
        Property and atomic operation -> its outbox.
    ends : set of str
        Parameter names of vertices: see `ends_of`.
    """
    for node in every(body):
        if isinstance(node, Atomic) and is_elsewhere(node, ends):
            node.name = outboxes.get((node.name, node.op), node.name)
        elif isinstance(node, Access | Whole) and not is_at_end(node, ends):
            mirror = mirrors.get((node.name, node.version))
            if mirror is not None:
                node.name, node.version = mirror, "now"


def is_at_end(node: Access | Whole, ends: frozenset[str]) -> bool:
    """Return whether an access is to a vertex that is a parameter of the function."""
    return entity_of(node) in ends


def is_elsewhere(node: Atomic, ends: frozenset[str]) -> bool:
    """Return whether an atomic may update a vertex that another rank owns.

    The rank that owns the target of an edge runs functions on the edge, so only v and e
    are its own. The corners and edges of a triangle are all on its rank, some of them
    as ghosts, whose sums are sent to their owners.
    """
    entity = entity_of(node)
    if "w" in ends:
        return entity not in ends | EDGES and not is_reversed(node.indices[0])
    return entity not in {"v", "e"}
