"""Statements of user functions: locals, branches, loops."""

from __future__ import annotations

from dataclasses import replace

from tests.generated.expressions import Apart, Expression
from tests.generated.reads import Reads

__all__ = ["Statements"]


class Statements:
    """Writes the statements of one function that compute locals.

    Parameters
    ----------
    reads : Reads
        The expressions of the function.
    """

    def __init__(self, reads: Reads) -> None:
        self.reads = reads
        self.lines: list[str] = []
        self.varying = 0  # of how many conditions around that differ by feature
        self.indent = 1
        self.names = 0
        self.shown = ""  # a local that is to be stored where it can be seen

    # -- statements

    def line(self, text: str) -> None:
        """Add a line."""
        self.lines.append("    " * self.indent + text)

    def name(self, stem: str = "t") -> str:
        """Return a new name."""
        self.names += 1
        return f"{stem}{self.names}"

    def statements(self, count: int, depth: int) -> None:
        """Write some statements that compute locals."""
        for _ in range(count):
            kind = self.reads.draw.one(
                ("let", "let", "if", "for", "while", "update", "update", "nest")
            )
            if depth <= 0 and kind in {"if", "for", "while", "nest"}:
                kind = "let"
            self.reads.draw.use(f"statement {kind}")
            getattr(self, f"_{kind}")(depth)

    def _let(self, depth: int) -> None:
        type_ = self.reads.draw.one(("real", "int", "bool"))
        e = self.reads.of(type_, 2)
        name = self.name()
        self.line(f"{name} = {e}")
        self.reads.locals[name] = replace(e, text=name)

    def _update(self, depth: int) -> None:
        """Assign again: to a value of the same type."""
        changeable = [n for n in self.reads.locals if n.startswith("t")]
        if not changeable:
            return self._let(depth)
        name = self.reads.draw.one(changeable)
        before = self.reads.locals[name]
        e = self.reads.of(before.type, 2)
        if before.type != "bool" and self.reads.draw.chance(40):
            self.line(f"{name} {self.reads.draw.one(('+', '-'))}= {e}")
            made = replace(
                e,
                bound=e.bound + before.bound,
                scale=max(e.scale, before.scale),
                uniform=e.uniform and before.uniform,
            )
            if e.type == "real" and made.units > 2**20:
                self.lines.pop()
                return None
        else:
            self.line(f"{name} = {e}")
            made = e
        self.reads.locals[name] = replace(made, text=name)
        self._vary(name, before)
        return None

    def _vary(self, name: str, before: Expression) -> None:
        """Join bounds; behind a condition that varies, what is assigned varies."""
        now = self.reads.locals[name]
        self.reads.locals[name] = replace(
            now,
            bound=max(now.bound, before.bound),
            scale=max(now.scale, before.scale),
            uniform=now.uniform and before.uniform and not self.varying,
        )

    def _if(self, depth: int) -> None:
        condition = self.reads.of("bool", 2)
        self._open(f"if {condition}:", condition.uniform, depth)
        if self.reads.draw.chance(50):
            self._open("else:", condition.uniform, depth)

    def _nest(self, depth: int) -> None:
        """Make collaborative calls under conditions within conditions."""
        drawn = [self.reads.of("bool", 1) for _ in range(6)]
        conditions = [c for c in drawn if c.uniform][:2]
        if not self.reads.together or len(conditions) < 2:
            return self._if(depth)
        name = self.name()
        values = [self.reads.small(self.reads.of("int", 1)) for _ in range(3)]
        call = self.reads.draw.one(("fg.feature_max", "fg.feature_min"))
        self.line(f"{name} = {values[0]}")
        self.line(f"if {conditions[0]}:")
        self.line(f"    if {conditions[1]}:")
        self.line(f"        {name} = {call}({values[1]})")
        self.line("    else:")
        self.line(f"        {name} = {call}({values[2]})")
        bound = max(e.bound for e in values)
        uniform = values[0].uniform and not self.varying
        self.reads.locals[name] = Expression(name, "int", bound, 0, uniform)
        self.shown = name if uniform else ""
        self.reads.draw.use("nested collaborative calls")
        return None

    def _open(self, head: str, uniform: bool, depth: int) -> None:
        """Write an indented block; its new names end with it."""
        self.line(head)
        known = set(self.reads.locals)
        self.indent += 1
        self.varying += not uniform
        with Apart(self.reads, uniform):
            before = len(self.lines)
            if self.reads.draw.chance(60) and any(
                n.startswith("t") for n in self.reads.locals
            ):
                self._update(depth - 1)
            self.statements(self.reads.draw.number(0, 2), depth - 1)
            if len(self.lines) == before:
                self.line("pass")
        self.varying -= not uniform
        self.indent -= 1
        for name in set(self.reads.locals) - known:
            del self.reads.locals[name]

    def _for(self, depth: int) -> None:
        """Accumulate over a range; what is added does not read the sum."""
        draw = self.reads.draw
        type_ = draw.one(("real", "int"))
        total, i = self.name("s"), self.name("i")
        start = self.reads.of(type_, 0)
        over_features = self.reads.k <= 17 and draw.chance(60)
        count = self.reads.k if over_features else draw.number(0, 5)
        texts = [f"{count}", f"0, {count}"]
        if not over_features:
            texts += [f"1, {count + 1}", f"{count}, 0, -1", f"-3, {3 * count - 3}, 3"]
        text = draw.one(texts)
        uniform = True
        if not over_features and draw.chance(40):
            bound = self.reads.of("int", 0)
            text, count, uniform = f"{bound} % {count + 1}", count + 1, bound.uniform
            draw.use("loop of computed length")
        self.line(f"{total} = {start}")
        self.line(f"for {i} in range({text}):")
        self.indent += 1
        known, varying = dict(self.reads.locals), self.varying
        self.varying += not uniform
        if over_features and text in texts[:2]:
            self.reads.loops.append(i)
        self.reads.locals[i] = Expression(i, "int", 400, 0, uniform)
        with Apart(self.reads, uniform):
            if depth > 1 and draw.chance(25):
                self.reads.together = False
                leave, word = self.reads.of("bool", 1), draw.one(("break", "continue"))
                self.line(f"if {leave}:")
                self.line(f"    {word}")
                draw.use(word)
                uniform = uniform and leave.uniform
            added = self.reads.small(self.reads.of(type_, 2), 2**13)
        self.line(f"{total} = {total} + {added}")
        self.indent -= 1
        self.varying = varying
        if i in self.reads.loops:
            self.reads.loops.remove(i)
        self.reads.locals = known
        self.reads.locals[total] = Expression(
            total,
            type_,
            start.bound + max(count, 1) * added.bound,
            max(start.scale, added.scale),
            uniform and start.uniform and added.uniform and not self.varying,
        )

    def _while(self, depth: int) -> None:
        """Count down, or leave earlier."""
        n, x = self.name("n"), self.name("s")
        with Apart(self.reads, False):
            start, condition = self.reads.of("int", 1), self.reads.of("bool", 1)
        self.line(f"{n} = 0")
        self.line(f"{x} = {start}")
        count = self.reads.draw.number(1, 4)
        self.line(f"while {n} < {count} and {condition}:")
        self.line(f"    {n} += 1")
        with Apart(self.reads, False):
            added = self.reads.small(self.reads.of("int", 1))
        self.line(f"    {x} = {x} + {added}")
        uniform = start.uniform and added.uniform and condition.uniform
        uniform = uniform and not self.varying
        bound = start.bound + count * added.bound
        self.reads.locals[x] = Expression(x, "int", bound, 0, uniform)
        self.reads.locals[n] = Expression(
            n, "int", count, 0, condition.uniform and uniform
        )
