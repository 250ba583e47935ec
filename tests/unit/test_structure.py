"""Limits of the structure that fall: folders, thin files, members, lines, names, prose.

The figures stand in `structure.toml`. A figure that grew is a fault. One that fell is
written down, so that it cannot grow again::

    python -m tests.unit.test_structure

A budget is kept while the lines of its room stay within `SLACK` of it.
"""

from __future__ import annotations

import ast
import io
import re
import token
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from featgraph.fold.schedules.table import SCHEDULES
from featgraph.program.combines import RULES
from tests.unit.test_package import (
    EVERYWHERE,
    FLOORS,
    ROOT,
    floor_of,
    identify,
    import_graph,
    imported_modules,
    parse,
    sources,
)

FIGURES = Path(__file__).with_name("structure.toml")
COMMAND = "python -m tests.unit.test_structure"

#: Fewest lines of a file that one other file alone imports; most members of a class;
#: the share by which a room may leave its budget.
THIN, MAX_MEMBERS, SLACK = 120, 30, 0.02

#: Folders of which each file is one of a family, and may be thin.
FAMILIES = ("fold.schedules", "fold.kinds", "fold.passes", "fold.operations",
            "graph.formats")  # fmt: skip

Figures = dict[str, int]


def folder_of(module: str) -> str:
    """Return the folder of a module below featgraph, and a loose file as itself."""
    parts = module.split(".")[1:]
    is_door = (ROOT / "featgraph" / Path(*parts)).is_dir()
    return ".".join(parts if is_door else parts[:-1]) or ".".join(parts) or "__init__"


@cache
def imports_between(depth: int) -> Figures:
    """Count the imports "folder -> folder", of folders down to a depth.

    What a folder's ``__init__`` offers of the folders within is not an import.
    """
    found: Counter[str] = Counter()
    for module, imported in import_graph().items():
        for name in imported:
            ends = [".".join(folder_of(m).split(".")[:depth]) for m in (module, name)]
            if len(set(ends)) > 1 and not name.startswith(f"{module}."):
                found[" -> ".join(ends)] += 1
    return found


def circles() -> Figures:
    """Count the imports between folders of which one needs the other, both ways."""
    found: Figures = {}
    for depth in (1, 2, 3):
        arrows = imports_between(depth)
        graph = nx.DiGraph(arrow.split(" -> ") for arrow in arrows)
        for together in nx.strongly_connected_components(graph):
            for ends in graph.subgraph(together).edges:
                found[" -> ".join(ends)] = arrows[" -> ".join(ends)]
    return found


def upward_imports() -> Figures:
    """Count the imports between folders of a room that point up its floors."""
    rooms = {floor.split(".")[0] for floor in FLOORS}
    found: Counter[str] = Counter()
    for module, imported in import_graph().items():
        _, room, *below = module.split(".") if "." in module else ("", "")
        for name in imported if below and room in rooms else ():
            is_inside = name.startswith(f"featgraph.{room}.")
            if is_inside and floor_of(name) > floor_of(module):
                found[f"{folder_of(module)} -> {folder_of(name)}"] += 1
    return found


def thin_files() -> Figures:
    """Return the thin files that one other file imports, with their lines."""
    importers: dict[str, set[str]] = {}
    modules = import_graph()
    for path in sources("algorithms"):
        imported = imported_modules(parse(path))
        modules[identify(path)] = imported | {n.rpartition(".")[0] for n in imported}
    for module, imported in modules.items():
        for name in imported:
            importers.setdefault(name, set()).add(module)
    found = {}
    for path in sources("featgraph"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        lines = path.read_text(encoding="utf-8").count("\n")
        is_one_of_many = folder_of(module) in (*FAMILIES, path.stem)
        is_one_of_many |= path.stem == "__init__"
        if len(importers.get(module, ())) == 1 and lines < THIN and not is_one_of_many:
            found[identify(path)] = lines
    return found


class OurClass:
    """A class as it stands in a file: its own members, and its bases by full name."""

    def __init__(self, module: str, node: ast.ClassDef, names: dict[str, str]) -> None:
        functions = ast.FunctionDef | ast.AsyncFunctionDef
        self.members = {n.name for n in node.body if isinstance(n, functions)}
        bases = (b.value if isinstance(b, ast.Subscript) else b for b in node.bases)
        texts = [ast.unparse(base) for base in bases]
        self.bases = [names.get(text, f"{module}.{text}") for text in texts]


def names_imported(tree: ast.Module) -> dict[str, str]:
    """Return the names that a module imports from others -> their full names."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@cache
def our_classes() -> dict[str, OurClass]:
    """Return all classes by their full names."""
    found, offered = {}, {}
    for path in sources(*EVERYWHERE):
        tree = parse(path)
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        names = names_imported(tree)
        if path.stem == "__init__":
            folder = module.removesuffix(".__init__")
            offered |= {f"{folder}.{name}": full for name, full in names.items()}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[f"{module}.{node.name}"] = OurClass(module, node, names)
    for of in found.values():
        of.bases = [offered.get(base, base) for base in of.bases]
    return found


def members(name: str) -> set[str]:
    """Return the functions of a class, with properties and what it inherits."""
    classes = our_classes()
    bases = (b for b in classes[name].bases if b in classes and b != name)
    return classes[name].members.union(*map(members, bases))


def large_classes() -> Figures:
    """Count the members of classes that have too many."""
    counts = {name: len(members(name)) for name in our_classes()}
    return {name: count for name, count in counts.items() if count > MAX_MEMBERS}


def code_lines(path: Path) -> int:
    """Count the lines that have code: no comments, docstrings and empty lines."""
    tree = parse(path)
    of_docstrings: set[int] = set()
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            first = node.body[0]
            of_docstrings |= set(range(first.lineno, int(first.end_lineno or 0) + 1))
    found: set[int] = set()
    blank = {token.NEWLINE, token.INDENT, token.DEDENT, token.ENDMARKER}
    blank |= {tokenize.NL, tokenize.COMMENT, tokenize.ENCODING}
    text = path.read_text(encoding="utf-8")
    for part in tokenize.generate_tokens(io.StringIO(text).readline):
        if part.type not in blank:
            found |= set(range(part.start[0], part.end[0] + 1))
    return len(found - of_docstrings)


def room_of(path: Path) -> str:
    """Return the room of a file: its first folder; loose files are public names."""
    parts = path.relative_to(ROOT).parts
    if parts[0] != "featgraph":
        return parts[0]
    return parts[1] if len(parts) > 2 else "featgraph"


@cache
def lines_by_room() -> Figures:
    """Count the code lines of each room."""
    found: Counter[str] = Counter()
    for path in sources("featgraph", "algorithms"):
        found[room_of(path)] += code_lines(path)
    return found


def budgets() -> Figures:
    """Return the budget of each room, and its lines where they have left it."""
    kept = read_figures().get("budgets", {})
    return {
        room: kept[room] if is_within(lines, kept.get(room, 0)) else lines
        for room, lines in lines_by_room().items()
    }


def is_within(lines: int, budget: int) -> bool:
    """Whether the lines of a room are within the slack of its budget."""
    return abs(lines - budget) <= SLACK * budget


#: Kinds of functions and of phases.
KINDS = frozenset({"vertex", "gather", "push", "edge", "triangle", "reduce"})
#: Combines, and what ranks make of some.
COMBINES = frozenset(RULES) | {"or", "and"}
#: Notion -> its names, words of what is compared with one, where it is at home, and
#: keys of which one tells a dict by its names from another.
NOTIONS: dict[str, tuple[frozenset[str], set[str], str, set[str]]] = {
    "kind": (
        KINDS,
        {"kind", "kinds"},
        "featgraph/fold/kinds/",
        {"gather", "push", "triangle", "reduce"},
    ),
    "schedule": (
        frozenset(SCHEDULES),
        {"schedule", "requested"},
        "featgraph/fold/schedules/",
        {"lanes", "virtual_warp", "search", "mark", "merge"},
    ),
    "combine": (
        COMBINES,
        {"combine", "operator", "operation"},
        "featgraph/program/combines.py",
        set(RULES) - {"min", "max", "all"},
    ),
}


def texts_in(node: ast.AST) -> set[str]:
    """Return the text of a constant, or those that a display or a pattern lists."""
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) else set()
    lists = ast.Set | ast.Tuple | ast.List | ast.BinOp | ast.pattern
    is_list = isinstance(node, lists)
    parts = ast.iter_child_nodes(node) if is_list else ()
    return {text for part in parts for text in texts_in(part)}


def words_in(node: ast.AST) -> set[str]:
    """Return the words of the name that an operand ends with: ``a.open_kind[0]``."""
    if isinstance(node, ast.Attribute | ast.Name):
        name = node.attr if isinstance(node, ast.Attribute) else node.id
        return words_in(node.value) if name == "get" else {name, *name.split("_")}
    if isinstance(node, ast.Subscript):
        return words_in(node.value)
    if isinstance(node, ast.Call):  # of `set(kinds)`, too
        return {w for part in (node.func, *node.args) for w in words_in(part)}
    if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        return words_in(node.elt)
    is_list = isinstance(node, ast.Set | ast.Tuple | ast.List)
    return {w for part in (node.elts if is_list else ()) for w in words_in(part)}


def comparisons(tree: ast.AST) -> Iterator[tuple[set[str], set[str]]]:
    """Generate the texts and the words of what is compared, also by `match`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            texts = [t for part in node.comparators for t in texts_in(part)]
            if isinstance(node.left, ast.Constant):
                texts += texts_in(node.left)
            operands = (node.left, *node.comparators)
            yield set(texts), {w for part in operands for w in words_in(part)}
        elif isinstance(node, ast.Match):
            for case in node.cases:
                yield texts_in(case.pattern), words_in(node.subject)


def keys_of_dicts(tree: ast.AST) -> Iterator[set[str]]:
    """Generate the keys of dicts that have texts as keys, and none that is another."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict) and None not in node.keys and node.keys:
            keys = [texts_in(key) for key in node.keys if key is not None]
            if all(keys):
                yield {text for texts in keys for text in texts}


def uses_of_names(tree: ast.AST, notion: str) -> int:
    """Count what compares with names of a notion, and the dicts by such names."""
    names, words, _, telling = NOTIONS[notion]
    compared = sum(
        bool((texts & names and words & terms) or ("name" in terms and texts & telling))
        for texts, terms in comparisons(tree)
    )
    return compared + sum(
        keys <= names and bool(keys & telling) for keys in keys_of_dicts(tree)
    )


def names_of(notion: str) -> Callable[[], Figures]:
    """Count comparisons with the names of a notion outside its home, by file."""

    def count() -> Figures:
        found = {
            identify(path): uses_of_names(parse(path), notion)
            for path in sources("featgraph")
            if not identify(path).startswith(NOTIONS[notion][2])
        }
        return {file: count for file, count in found.items() if count}

    return count


#: Beginnings of docstrings that name no thing, and words that stand for none.
VAGUE = re.compile(r"(What|Whether what|(Return|Yield) (whether )?what|Who)\b")
VAGUE_WORDS = re.compile(r"\b(whoever|nobody)\b", re.IGNORECASE)


def prose_in(text: str) -> list[str]:
    """Return the docstrings and the comments of a file."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = (n for n in ast.walk(ast.parse(text)) if isinstance(n, documented))
    docstrings = [ast.get_docstring(node) or "" for node in nodes]
    parts = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = (part.string for part in parts if part.type == token.COMMENT)
    return docstrings + [comment.lstrip("#: ") for comment in comments]


def vague_sentences(text: str) -> int:
    """Count vague beginnings of docstrings and comments, and vague words in them."""
    prose = prose_in(text)
    beginnings = sum(map(bool, map(VAGUE.match, prose)))
    return beginnings + sum(len(VAGUE_WORDS.findall(part)) for part in prose)


#: Verbs of people, in place of those of ranks, kernels, plans, files and messages.
SPEECH = re.compile(
    r"\b(who|whoever|nobody|tells?|told|says?|said|asks?|knows?|knew)\b", re.IGNORECASE
)
#: Beginnings of sentences of a page, and of error messages, that name no thing.
OPENING = re.compile(r"(?:^|[.:;] |\*\*|^[*-] )What\b", re.MULTILINE)
#: Code and headings of a page: they may have any words.
CODE = re.compile(r"^```.*?^```|`[^`]*`|^#.*?$", re.MULTILINE | re.DOTALL)
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "bench/*.md", "docs/**/*.md")
RAISED = re.compile(r"(Error|Warning|Exit)$")


def vague_text(text: str) -> int:
    """Count verbs of people, and beginnings that name no thing."""
    return len(SPEECH.findall(text)) + len(OPENING.findall(text))


def vague_messages(tree: ast.AST) -> int:
    """Count the same in texts that errors and warnings are made of."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    raised = (call for call in calls if RAISED.search(ast.unparse(call.func)))
    parts = {part for call in raised for part in ast.walk(call)}
    constants = (part for part in parts if isinstance(part, ast.Constant))
    texts = [text for part in constants for text in texts_in(part)]
    return sum(vague_text(text[:1].upper() + text[1:]) for text in texts)


@cache
def prose() -> Figures:
    """Count vague sentences by room, and verbs of people in the package's texts."""
    found: Counter[str] = Counter()
    for path in sources(*EVERYWHERE):
        found[room_of(path)] += vague_sentences(path.read_text(encoding="utf-8"))
    for path in sources("featgraph", "algorithms"):
        found["error messages"] += vague_messages(parse(path))
        for part in prose_in(path.read_text(encoding="utf-8")):
            found["docstrings and comments"] += len(SPEECH.findall(part))
    for path in (path for pattern in PAGES for path in ROOT.glob(pattern)):
        found["pages"] += vague_text(CODE.sub("", path.read_text(encoding="utf-8")))
    return {room: count for room, count in found.items() if count}


#: Sections of the file of figures -> what counts them, and the seam to look for.
SECTIONS: dict[str, tuple[Callable[[], Figures], str]] = {
    "circles": (circles, "imports between folders point one way"),
    "upward": (upward_imports, "imports point down FLOORS"),
    "thin": (thin_files, "fold a thin file into the only one that imports it"),
    "members": (large_classes, "a class in slices is one class: find the seam"),
    "budgets": (budgets, f"say in the commit why a room needs more: {COMMAND}"),
    "kind": (names_of("kind"), "let the object of the kind say it"),
    "schedule": (names_of("schedule"), "let the schedule say it"),
    "combine": (names_of("combine"), "let `Rules` say it"),
    "prose": (prose, "name the thing that returns, stores or raises: no What, says"),
}


def read_figures() -> dict[str, Any]:
    """Return the figures that were written down."""
    return tomllib.loads(FIGURES.read_text("utf-8")) if FIGURES.exists() else {}


def show_figures() -> str:
    """Return the text of the file of figures, as they are now."""
    parts = []
    for section, (measure, _) in SECTIONS.items():
        lines = [f'"{name}" = {count}' for name, count in sorted(measure().items())]
        parts.append("\n".join([f"[{section}]", *lines]))
    return "\n\n".join(parts) + "\n"


def changes(now: Figures, limits: Figures, advice: str) -> list[str]:
    """Return a line for each figure that is not as it was written down."""
    found = []
    for name in sorted(now.keys() | limits.keys()):
        count, limit = now.get(name, 0), limits.get(name, 0)
        if count > limit:
            found.append(f"{name}: {count}, and {limit} are written down: {advice}")
        elif count < limit:
            found.append(f"{name}: fell from {limit} to {count}: {COMMAND}")
    return found


@pytest.mark.parametrize("section", SECTIONS)
def test_figures_fall(section: str) -> None:
    measure, advice = SECTIONS[section]
    limits = read_figures()[section]
    if section == "thin":  # how thin does not matter
        found = changes(dict.fromkeys(measure(), 1), dict.fromkeys(limits, 1), advice)
    else:
        found = changes(measure(), limits, advice)
    assert not found, "\n" + "\n".join(found)


def test_a_class_has_one_base_of_ours() -> None:
    classes = our_classes()
    over = [
        name
        for name, of in classes.items()
        if sum(map(classes.__contains__, of.bases)) > 1
    ]
    assert not over


FAULTY = '''
def f(phase, mapping, rules, name):
    """No kind == "edge" here."""
    a = phase.kind == "edge" or mapping.schedule in {"lanes", "thread"}
    b = open_kind != "push" or name == "product" or "sum" == rules.combine
    b |= [p.kind for p in phases] == ["vertex"] or "gather" in kinds[0]
    b |= set(kinds) == {"vertex"} or [f.kind for f in fs] == ["gather"] * 2
    b |= "reduce" in (kind, open_kind)
    table = {"reduce": 1, "triangle": 2}, {"sum": 0, "min": 1}, {"product": 2}
    match phase.kind:
        case "vertex" | "edge":
            pass
    return a, b, table
'''

HARMLESS = """
def f(policy, side, node, scopes, form):
    a = policy == "sum" or side == "edge" or node.name in {"min", "max"}
    b = form == "all" or kind == "f" or (name, "any") in written
    c = type_.kind.value == "edge" or combine.rules.order == "min"
    return a, b, c, {"vertex": 1, "edge": 2}, {"last": 1, "min": 2}
"""


def test_names_are_found_in_comparisons_and_keys() -> None:
    faulty, harmless = ast.parse(FAULTY), ast.parse(HARMLESS)
    counts = {notion: uses_of_names(faulty, notion) for notion in NOTIONS}
    assert counts == {"kind": 9, "schedule": 1, "combine": 4}
    assert not any(uses_of_names(harmless, notion) for notion in NOTIONS)


VAGUE_PROSE = '''"""What a module has."""
class A:
    """Return what is here."""  # nobody reads it
    #: What it is.
    def f(self):
        """Whether what is here is A; whoever reads it knows."""
    def g(self):
        """Yield what follows."""
        return "nobody"
'''


def test_vague_sentences_are_found() -> None:
    assert vague_sentences(VAGUE_PROSE) == 7
    assert not vague_sentences('"""Whatever holds."""\ndef what(): "Return whats."')
    assert SPEECH.findall(" ".join(prose_in(VAGUE_PROSE))) == [
        "whoever",
        "knows",
        "nobody",
    ]


def test_vague_words_of_pages_and_messages_are_found() -> None:
    page = """# What is said

The plan says so. What it knows, `who` has. **What is
asked** stays; whatever remains, nobody tells.

```
who = "says"
```
"""
    assert vague_text(CODE.sub("", page)) == 6
    raised = 'raise fg.PlanError("what is asked", fix=f"ask {who} for it")'
    assert vague_messages(ast.parse(raised)) == 2
    assert not vague_messages(ast.parse('print("what is asked", "ask who")'))


if __name__ == "__main__":
    FIGURES.write_text(show_figures(), encoding="utf-8")
