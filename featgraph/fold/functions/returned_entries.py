"""Next entries that an edge function returns, for the kernel to store."""

from __future__ import annotations

import ast

from featgraph.fold.analysis.analyse import Analysed
from featgraph.fold.codegen.text.expressions import Style, print_expression
from featgraph.fold.codegen.text.writer import Writer
from featgraph.fold.functions.featurewise import Context
from featgraph.fold.syntax.nodes import Access, narrowed

__all__ = ["SentEntries"]


class SentEntries:
    """What a function printed as copies returns behind its verdict."""

    context: Context
    function: Analysed
    writer: Writer
    styles: list[Style]
    count: int

    def _name_sent(self) -> None:
        """Name what the caller stores, by property: a name for each copy."""
        forwarded = self.context.forwarded if self.function.kind == "edge" else {}
        self.sent = {
            name: [f"{own}_{j}" for j in range(self.count)]
            for name, own in forwarded.items()
        }

    def _with_sent(self, verdict: str) -> str:
        """Return what a function returns: its verdict, and what its caller stores."""
        sent = [name for names in self.sent.values() for name in names]
        return f"({', '.join([verdict, *sent])})" if sent else verdict

    def _start_sent(self) -> None:
        """Give what the caller stores a value where the function leaves early."""
        straight = all(isinstance(s, ast.Assign) for s in self.function.body[:-1])
        for name, copies in self.sent.items():
            for copy in [] if straight else copies:
                self.writer.line(f"{copy} = {self._stored_type(name)}(0)")

    def _stored_type(self, name: str) -> str:
        dtype = self.context.analysis.signature[name].dtype
        return self.context.real if dtype == "real" else dtype

    def _send(self, node: ast.Assign, origin: tuple[str, int]) -> None:
        """Print an assignment to next entries that the caller stores."""
        name = narrowed(node.targets[0], Access).name
        type_ = self._stored_type(name)
        for copy, style in zip(self.sent[name], self.styles, strict=True):
            text = print_expression(node.value, style)
            self.writer.line(f"{copy} = {type_}({text})", origin)

    def _is_sent(self, node: ast.Assign) -> bool:
        """Whether the caller stores what is assigned."""
        target = node.targets[0]
        is_next = isinstance(target, Access) and target.version == "next"
        return is_next and narrowed(target, Access).name in self.sent
