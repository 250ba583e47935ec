"""The body of one user function: its statements, what it writes."""

from __future__ import annotations

import re
from dataclasses import replace

from tests.generated.expressions import Expression
from tests.generated.properties import Property
from tests.generated.statements import Statements

__all__ = ["Body"]


class Body(Statements):
    """Writes one function."""

    # -- writes

    def stored(self, p: Property) -> Expression:
        """Return a value that a property may be given."""
        uniform_only = not p.wide and self.reads.wide
        for _ in range(6):
            e = self._stored(p)
            if e.uniform or not uniform_only:
                return e
        if self.reads.together:
            name = "fg.any_feature" if p.type == "bool" else "fg.feature_max"
            return replace(e, text=f"{name}({e})", uniform=True)
        e = Expression("True" if p.type == "bool" else "1", "int")
        return e

    def _stored(self, p: Property) -> Expression:
        if p.type == "bool":
            return self.reads.of("bool", 2)
        kind = (
            p.type
            if self.reads.draw.chance(75)
            else self.reads.draw.one(("int", "bool", "real"))
        )
        if p.type == "int" and kind == "real":
            kind = "int"
        e = self.reads.of(kind, 3)
        if self.shown in self.reads.locals and p.role == "out":
            self.shown, e = "", self.reads.locals[self.shown]
            return e
        if kind == "bool":
            self.reads.draw.use("bool stored as a number")
            return e
        if p.role == "out":
            if p.type == "real" and e.type == "int" and e.bound > 2**20:
                return replace(e, text=f"({e} % 4099)", bound=4099)
            return e
        if p.type == "int":
            return self.reads.fit_int(e, p.lowest, p.bound)
        return self.reads.fit_real(e, p.bound, p.scale)

    def place_of(self, p: Property, end: str) -> str:
        """Return the entry of p that this function writes."""
        return f"[{end}, f]" if p.wide else f"[{end}]"

    def write(self, p: Property, end: str) -> None:
        """Write a property at the function's own place."""
        self.reads.draw.use(f"write {p.of} {p.role}", f"store {p.dtype}")
        suffix = "_next" if p.role == "next" else ""
        e = self.stored(p)
        # The old value is a number, too; a feature reads its own.
        is_number = p.dtype in {"float32", "float64", "int64"} and e.type != "bool"
        is_own = p.role == "out" and p.wide == self.reads.wide and e.units <= 2**20
        sign = ""
        if is_number and is_own and self.reads.draw.chance(30):
            sign = self.reads.draw.one(("-", "+"))
            self.reads.draw.use("augmented assignment")
        self.line(f"d.{p.name}{suffix}{self.place_of(p, end)} {sign}= {e}")
        read = [n for n in re.findall(r"\bt[0-9]+\b", e.text) if n in self.reads.locals]
        if p.role == "next" and read and self.reads.draw.chance(50):  # stored before it
            before = self.reads.locals[read[0]]
            again = self.reads.of(before.type, 0)
            self.line(f"{read[0]} = {again}")
            self.reads.locals[read[0]] = replace(again, text=read[0])
            self._vary(read[0], before)

    def update(self, p: Property, ends: list[str]) -> None:
        """Update a property through an atomic."""
        draw = self.reads.draw
        # Of two operations on one entry the order would tell.
        operation = self.reads.operations.setdefault(
            p.name, draw.one(("add", "max", "min"))
        )
        end = draw.one(ends)
        index = f"({end}, f)" if p.wide else end
        if p.type == "real":
            value = self.reads.fit_real(self.reads.of("real", 2), 4, 0)
        else:
            value = self.reads.fit_int(
                self.reads.of("int", 2), 0 if p.lowest == 0 else -4, 4
            )
        if p.dtype == "uint32" and operation == "add":
            value = replace(value, text=f"abs({value})")
        draw.use(f"atomic.{operation} {p.dtype}", f"atomic in {self.reads.kind}")
        # The old value depends on the order: it is bound, and not used.
        before = f"{self.name('before')} = " if draw.chance(20) else ""
        self.line(f"{before}fg.atomic.{operation}(d.{p.name}, {index}, {value})")
