"""Functions of the module as text."""

from __future__ import annotations

from featgraph.fold.functions.nodes import Define
from featgraph.fold.printing.statements import print_body
from featgraph.fold.printing.writer import Writer
from featgraph.fold.syntax.nodes import narrowed
from featgraph.fold.tree.statements import Body
from featgraph.program.source import FunctionSource

__all__ = ["print_functions"]


def print_functions(writer: Writer, source: FunctionSource, tree: Body) -> None:
    """Write what a function of the user's has become."""
    for node in tree:
        function = narrowed(node, Define)
        writer.line()
        writer.line()
        writer.line(f"# {source.file}:{source.line}")
        writer.line(function.decorator)
        parameters = ", ".join((*function.roles, *function.more))
        origin = (source.file, source.line)
        with writer.block(f"def {function.name}({parameters}):", origin):
            print_body(writer, function.body, source.file)
