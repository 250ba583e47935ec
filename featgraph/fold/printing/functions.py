"""Functions of the module as text."""

from __future__ import annotations

from featgraph.fold.passes.bodies.nodes import Define
from featgraph.fold.printing.statements import make_function, print_function
from featgraph.fold.printing.writer import Writer
from featgraph.fold.tree.expressions import narrowed
from featgraph.fold.tree.statements import Body
from featgraph.program.source import FunctionSource

__all__ = ["print_functions"]


def print_functions(writer: Writer, source: FunctionSource, tree: Body) -> None:
    """Write what a function of the user's has become."""
    for node in tree:
        one = narrowed(node, Define)
        arguments = (*one.roles, *one.more)
        made = make_function(one.decorator, one.name, arguments, "", one.body)
        made.lineno = source.line
        print_function(writer, made, source.file)
