"""Names in user functions, their meaning, and names of generated code.

`Names` lists the properties, temporaries and vectors that ``d.name`` may mean.
`FreshNames` makes names for passes that differ from every local of the user's.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from featgraph.base.dataclass import dataclass
from featgraph.fold.tree.expressions import assigned_names
from featgraph.fold.tree.statements import Body
from featgraph.program.names import GENERATED

__all__ = [
    "BUILTIN_ARRAYS",
    "BUILTIN_SCALARS",
    "CANONICAL",
    "EDGES",
    "FreshNames",
    "Names",
    "argument_counts",
    "forms_of",
    "is_plain",
    "letters",
    "math_name",
    "name_temporaries",
    "rename_locals",
]

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
    """Return ``a``, ``b``, ..., ``z``, ``aa``, ... for 1, 2, ..."""
    text = ""
    while count:
        count, letter = divmod(count - 1, 26)
        text = "abcdefghijklmnopqrstuvwxyz"[letter] + text
    return text


def is_plain(name: str) -> bool:
    """Return whether a user's identifier may stand in generated code as it is."""
    return (
        name.isascii()
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and not name.startswith("_")
        and len(name) < 64
    )


def _is_generated(name: str, hidden: Collection[str]) -> bool:
    """Return whether generated code may use a name: copies end in numbers."""
    return name in hidden or re.search(r"_\d+$", name) is not None


#: Names in kernels of a temporary, its parts and copies; numbers are put to all.
_FORMS = (
    "{}", "{}_source", "{}_packed", "{}_at", "all_{}", "change_{}", "entries_of_{}",
    "new_{}", "old_{}", "own_{}", "rows_of_{}", "rows_of_{}_source",
)  # fmt: skip


def forms_of(name: str) -> set[str]:
    """Return the names that kernels make of the name of a temporary."""
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
            # Lanes vote on ``all_found`` in other passes over edges than those that
            # renew an aggregate ``found`` aside, as ``all_found``.
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
    """Give parameters their canonical names and locals names that hide nothing."""
    mapping = dict(zip((a.arg for a in tree.args.args), roles, strict=True))
    used = set(roles) | taken
    hidden = set(CANONICAL) | GENERATED
    for count, name in enumerate(sorted(assigned_names(tree) - set(mapping))):
        plain = is_plain(name.strip("_"))
        fresh = name if plain else f"local_{count}"
        if _is_generated(fresh, hidden) or fresh.startswith("_"):
            fresh = f"{fresh.strip('_')}_"
        while fresh in used:
            fresh += "_"
        used.add(fresh)
        mapping[name] = fresh
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name):
            continue
        if node.id in mapping:
            node.id = mapping[node.id]
        else:  # a captured name may be spelt as a parameter now is
            node.is_free = True  # type: ignore[attr-defined]


def math_name(called: Any) -> str | None:
    """Return the name of a function of `math`, NumPy or Python that can be folded."""
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
    """Return the fewest and the most arguments that such a function takes."""
    if name in {"min", "max"}:
        return 2, 1000
    count = _COUNTS.get(name, 1)
    return count, count


#: Stands in a name for letters to come, with a number. Names of users are ASCII.
_OPEN = re.compile(r"ø(\d+)")


class FreshNames:
    """Unique names made by several passes; letters follow the order of the final text.

    The names of one statement are a group. Groups are ordered when all passes are done.
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
        """Put letters into the names in `body`, so that none of them is `taken`."""
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
