"""From trees to lines of a generated module: the only place where trees become text.

`Writer` collects lines with indentation and origins. The functions below print
statements, each by one `ast.unparse`; line breaks of long statements follow the tree.
`PhaseToPrint` is a phase with its printed functions, from which targets print kernels.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from featgraph.base.dataclass import dataclass
from featgraph.fold.passes.bodies.facts import Callee, Context
from featgraph.fold.passes.nests.facts import NestFacts
from featgraph.fold.plan.plan import FoldPlan, Phase
from featgraph.fold.printing.module import Entry, Field
from featgraph.fold.schedules.base import GraphArray, Schedule
from featgraph.fold.tree.nodes import Comment
from featgraph.fold.tree.statements import Body, expression, note_of

__all__ = [
    "PhaseToPrint",
    "Writer",
    "head_of",
    "line_of",
    "make_function",
    "print_body",
    "print_function",
]

#: Longest line of a module.
_WIDTH = 88
#: Operators in front of which `Writer` may break a line.
_OPERATOR = re.compile(r" (\+|-|\*|/|\*\*|\||&|or|and|if|else|>|<|!=|==) ")

Origin = tuple[str, int]


class Writer:
    """Collects the lines of a generated module.

    Attributes
    ----------
    lines : list of str
        The text so far.
    origins : dict
        Generated line number -> ``(file, line)`` of the user's code it came from.
    written : dict
        Text of a function without its name -> name of the first function with that
        text.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.origins: dict[int, Origin] = {}
        self.written: dict[str, str] = {}
        self.depth = 0

    @property
    def indent(self) -> str:
        """Indentation of the next line."""
        return "    " * self.depth

    def line(self, text: str = "", origin: Origin | None = None) -> None:
        """Append one line at the current indentation; break a long one."""
        if text.startswith("#"):
            # A comment names a file. A newline in the name of the file would end the
            # comment, and the rest would be code.
            printable = text.isprintable()
            text = text if printable else text.encode("unicode_escape").decode()
            self.add([self.indent + text], origin)
        elif text.startswith('"'):
            self.add(_filled_docstring(text, self.indent), origin)
        else:
            self.add(_filled(text, self.indent) if text else [""], origin)

    def add(self, lines: Sequence[str], origin: Origin | None = None) -> None:
        """Append lines unchanged."""
        for line in lines:
            self.lines.append(line)
            if origin is not None:
                self.origins[len(self.lines)] = origin

    @contextmanager
    def block(self, header: str, origin: Origin | None = None) -> Iterator[None]:
        """Append `header`, and indent the lines in the context."""
        self.line(header, origin)
        self.depth += 1
        start = len(self.lines)
        yield
        if len(self.lines) == start:
            self.line("pass")
        self.depth -= 1

    @property
    def text(self) -> str:
        """The module as text."""
        return "\n".join(self.lines) + "\n"


def _filled_docstring(text: str, indent: str) -> list[str]:
    """Break the first line of a docstring; put closing quotes on a new line."""
    if len(indent) + len(text) <= _WIDTH:
        return [indent + text]
    lines = textwrap.wrap(
        text.removesuffix('"""'),
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
    )
    return [*lines, f'{indent}"""'] if text.endswith('"""') else lines


def _filled(text: str, indent: str, depth: int = 0) -> list[str]:
    """Fill lines with `text`; break at commas and operators inside brackets.

    Parameters
    ----------
    depth : int
        Open brackets in front of it; if any, further lines are not indented.
    """
    lines: list[str] = []
    first, inside = True, depth > 0
    while True:
        lead = indent if first or inside else indent + "    "
        if len(lead) + len(text) <= _WIDTH:
            return [*lines, lead + text]
        # Break at the last place with the fewest open brackets.
        cut, depth_at_cut, deeper = -1, 0, 99
        open_now = depth
        for place, letter in enumerate(text[: _WIDTH - len(lead)]):
            open_now += (letter in "([{") - (letter in ")]}")
            breakable = (
                letter == " "
                and place > 8
                and open_now > 0
                and (text[place - 1] == "," or _OPERATOR.match(text, place))
            )
            if breakable and open_now <= deeper:
                cut, depth_at_cut, deeper = place, open_now, open_now
        if cut < 0:
            return [*lines, lead + text]
        lines.append(lead + text[:cut].rstrip())
        text, depth, first = text[cut:].lstrip(), depth_at_cut, False


_Block = ast.If | ast.While | ast.For


def make_function(
    decorator: str, name: str, arguments: Iterable[str], doc: str, body: Body
) -> ast.FunctionDef:
    """Return a function of the module; `decorator` and `doc` may be ""."""
    given = [ast.arg(argument) for argument in arguments]
    first: Body = [ast.Expr(ast.Constant(doc))] if doc else []
    return ast.FunctionDef(
        name=name,
        args=ast.arguments([], given, None, [], [], None, []),
        body=[*first, *body],
        decorator_list=[expression(decorator)] if decorator else [],
        lineno=0,
    )


def print_function(writer: Writer, node: ast.FunctionDef, file: str = "") -> None:
    """Write a function behind two blank lines.

    Parameters
    ----------
    file : str
        File of the user function; "" for kernels.
    """
    writer.line()
    writer.line()
    if file:
        writer.line(f"# {file}:{node.lineno}")
    for decorator in node.decorator_list:
        writer.line(f"@{ast.unparse(decorator)}")
    header = f"def {node.name}({ast.unparse(node.args)}):"
    with writer.block(header, (file, node.lineno) if file else None):
        print_body(writer, node.body, file)


def _print_once(writer: Writer, node: ast.FunctionDef) -> None:
    """Write a kernel, or an alias if an equal one was written before.

    Numba compiles each function at its first call, so aliases save compile time.
    """
    text = ast.unparse(node).replace(f"def {node.name}(", "def (", 1)
    known = writer.written.setdefault(text, node.name)
    if known == node.name:
        print_function(writer, node)
        return
    for line in ("", "", f"{node.name} = {known}"):
        writer.line(line)


def print_body(writer: Writer, body: Body, file: str = "") -> None:
    """Write the lines of statements.

    Parameters
    ----------
    file : str
        File of the user function; "" for statements of a nest.
    """
    for node in body:
        _print(writer, node, file)


def _print(writer: Writer, node: ast.stmt, file: str) -> None:
    """Write one statement with its body, and the origin of its lines."""
    line = getattr(node, "lineno", 0) if file else 0
    origin = (file, line) if line else None
    if isinstance(node, Comment):
        writer.line(f"# {node.text}")
    elif isinstance(node, _Block):
        with writer.block(_header(node, len(writer.indent)), origin):
            print_body(writer, node.body, file)
        if node.orelse:
            with writer.block("else:"):
                print_body(writer, node.orelse, file)
    elif doc := _doc_of(node):
        writer.line(f'"""{doc}"""')
    else:
        writer.add(_lines(node, writer.indent), origin)


def _doc_of(node: ast.stmt) -> str:
    """Return the text of a docstring; "" for other statements."""
    value = node.value if isinstance(node, ast.Expr) else None
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    return ""


def _header(node: _Block, depth: int) -> str:
    """Return the header line of a branch or a loop.

    A long conjunction or disjunction gets parentheses, in which `Writer` breaks lines.
    """
    note = _note(node)
    header = f"{head_of(node)}:{note}"
    if depth + len(header) <= _WIDTH or isinstance(node, ast.For):
        return header
    if not isinstance(node.test, ast.BoolOp):
        return header
    word, test = header.split(" ", 1)[0], ast.unparse(node.test)
    return f"{word} ({test}):{note}"


def _lines(node: ast.stmt, indent: str) -> list[str]:
    """Return the lines of a statement without a body.

    The right-hand side of a long statement is put in parentheses.
    """
    text = line_of(node) + _note(node)
    if len(indent) + len(text) <= _WIDTH:
        return [indent + text]
    value = _right_of(node)
    if value is None or isinstance(value, ast.Tuple):
        return _filled(text, indent)
    right = ast.unparse(value) + _note(node)
    head = indent + text.removesuffix(right)
    return [f"{head}(", *_filled(right, indent + "    ", 1), f"{indent})"]


def _right_of(node: ast.stmt) -> ast.expr | None:
    """Return the right-hand side that may be put in parentheses."""
    if isinstance(node, ast.AugAssign):
        return (
            node.value if isinstance(node.op, ast.Add | ast.Mult | ast.BitOr) else None
        )
    return node.value if isinstance(node, ast.Assign | ast.Return) else None


def _note(node: ast.stmt) -> str:
    return f"  # {note_of(node)}" if note_of(node) else ""


def head_of(node: _Block) -> str:
    """Return the header of a branch or a loop, without the colon."""
    if isinstance(node, ast.For):
        bare: ast.stmt = ast.For(node.target, node.iter, [], [], lineno=0)
    else:
        bare = type(node)(node.test, [], [])
    return ast.unparse(bare).removesuffix(":")


def line_of(node: ast.stmt) -> str:
    """Return a statement of one line."""
    if isinstance(node, ast.Assign) and not hasattr(node, "lineno"):
        node.lineno = 0  # unparse reads it
    return ast.unparse(node)


@dataclass(frozen=True, eq=False)
class PhaseToPrint:
    """A phase of a plan whose functions are printed.

    Attributes
    ----------
    writer : Writer
        Receives the kernels.
    context : Context
        Facts shared by its functions.
    plan, phase : FoldPlan, Phase
        Decisions of the planner.
    number : int
        Index of the phase in the plan.
    callees : dict
        Emitted name of a function -> its signature.
    fields : tuple of Field
        Fields of `d`.
    """

    writer: Writer
    context: Context
    plan: FoldPlan
    phase: Phase
    number: int
    callees: dict[str, Callee]
    fields: tuple[Field, ...]

    def facts(self, schedule: Schedule, threads: int = 0) -> NestFacts:
        """Return the facts of a kernel of the phase in a schedule."""
        return NestFacts(
            self.context, self.plan, self.phase, self.callees, schedule, threads
        )

    @property
    def ordered(self) -> tuple[GraphArray, ...]:
        """Copies of edge properties, in the order of the schedule."""
        types = self.plan.analysis.signature
        return tuple(
            GraphArray(f"ordered_{name}", dtype=types[name].dtype)
            for name in self.phase.ordered
        )

    def finish(
        self, name: str, decorator: str, doc: str, body: Body, block: int = 0,
        more: tuple[str, ...] = (),
    ) -> Entry:  # fmt: skip
        """Print the kernel that combines the rows of `partials` of a reduce."""
        arguments = ("partials", "reduced", *more)
        _print_once(self.writer, make_function(decorator, name, arguments, doc, body))
        return Entry(name, self.number, "finish", arguments, block=block)
