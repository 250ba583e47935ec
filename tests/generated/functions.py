"""User functions of a program, kind by kind."""

from __future__ import annotations

from dataclasses import replace

from tests.generated.bodies import Body
from tests.generated.forms import Apart, Expression
from tests.generated.gathers import Gathers
from tests.generated.properties import Property

__all__ = ["Functions"]


class Functions(Gathers):
    """Writes the functions of foldmaps, kind by kind."""

    def write(self, form: str) -> list[str]:
        """Write the functions of a foldmap; return their names."""
        self.temporaries, self.unseen = [], []
        self.hot = self._choose_hot(form)
        kinds = {
            "v": self.vertex,
            "g": self.gather,
            "m": lambda: self.gather(matrix=True),
            "e": self.edge,
            "r": self.reduce,
            "R": lambda: self.reduce(matrix=True),
            "t": self.triangle,
        }
        return [kinds[letter]() for letter in form]

    def _choose_hot(self, form: str) -> frozenset[str]:
        """Choose what is written by one function and read by others of a foldmap."""
        place = ("vertex", "place")
        kinds = [("vertex", "next"), place, ("vertex", "atomic"), place]
        if self.patches:
            kinds = [("vertex", "next")]
        if "e" in form:
            kinds += [("edge", "next"), ("edge", "place")]
        chosen: set[str] = set()
        for _ in range(1 if self.patches else self.draw.one((1, 1, 2, 0))):
            of, role = self.draw.one(kinds)
            found = self._of(of, {role}, True)
            if found:
                chosen.add(self.draw.one(found).name)
        return frozenset(chosen)

    # -- vertex functions

    def vertex(self) -> str:
        draw = self.draw
        wide = any(t.wide for t in self.unseen) or draw.chance(70)
        wide = bool(self._hot_width()) if self.patches else wide
        body, name = self._body("vertex", int(wide)), self._name("vertex")
        self.changed = ""
        targets = self._targets(
            body, self._of("vertex", {"next", "place", "out"}, wide)
        )
        updated = self._updated(body, 20)
        body.statements(draw.number(0, 2), 2)
        self._leave(body)
        self._show(body)
        self._write(body, targets, updated, "v", ["v", "d.to[v]"])
        self._return(body)
        self._end("@fg.vertex", f"{name}(f, v, d)", body)
        return name

    def _targets(self, body: Body, found: list[Property]) -> list[Property]:
        """Choose what a function writes; a wide one writes something wide."""
        draw = self.draw
        if not found:
            return []
        targets = [draw.one(found) for _ in range(draw.number(1, 3))]
        hot = [p for p in found if p.name in self.hot]
        if hot and (draw.chance(85) or self.patches):
            targets[0] = draw.one(hot)
        if body.reads.wide and not any(p.wide for p in targets):
            targets.insert(0, draw.one([p for p in found if p.wide]))
        targets = list({p.name: p for p in targets}.values())
        body.reads.writes_place = {p.name for p in targets if p.role == "place"}
        body.reads.writes_next = {p.name for p in targets if p.role == "next"}
        return targets

    def _updated(self, body: Body, percent: int) -> list[Property]:
        found = self._of("vertex", {"atomic"}, body.reads.wide)
        hot = [p for p in found if p.name in self.hot]
        if not self.draw.chance(max(percent, 80) if hot else percent):
            return []
        found = hot or found
        chosen = [self.draw.one(found)] if found else []
        body.reads.updates = {p.name for p in chosen}
        return chosen

    def _leave(self, body: Body, value: str = "False") -> None:
        """Return early now and then; behind that not all features are here."""
        if self.draw.chance(20):
            condition = body.reads.of("bool", 2)
            body.line(f"if {condition}:")
            body.line(f"    return {value}")
            self.draw.use("early return")
            if not condition.uniform:
                body.reads.together = False
                body.varying += 1

    def _show(self, body: Body) -> None:
        """Store what gathers have left, as it is, where it can be seen."""
        shown: set[str] = set()
        for t in list(self.unseen):
            if t.wide > 1 or (t.wide and not body.reads.wide):
                continue
            outs = {"real": ("o0", "o2"), "int": ("o4", "o5"), "bool": ("o6", "o6")}
            name = outs[t.type][0 if t.wide else 1]
            p = next(p for p in self.properties if p.name == name)
            if (p.wide and not body.reads.wide) or name in shown:
                continue
            shown.add(name)
            index = "v, f" if p.wide else "v"
            end = ([] if t.is_loose else ["v"]) + ["f"] * t.wide
            end = end or ["0"]
            read = f"d.{t.name}" + (f"[{', '.join(end)}]" if end else "")
            body.line(f"d.{name}[{index}] = {read}")
            self.unseen.remove(t)

    def _write(
        self,
        body: Body,
        targets: list[Property],
        updated: list[Property],
        end: str,
        ends: list[str],
    ) -> None:
        draw = self.draw
        for p in targets:
            if draw.chance(25):
                condition = body.reads.of("bool", 2)
                body.line(f"if {condition}:")
                body.indent += 1
                body.varying += not condition.uniform
                with Apart(body.reads, condition.uniform):
                    body.write(p, end)
                body.varying -= not condition.uniform
                body.indent -= 1
                if draw.chance(30):
                    body.line("else:")
                    body.indent += 1
                    body.varying += not condition.uniform
                    with Apart(body.reads, condition.uniform):
                        body.write(p, end)
                    body.varying -= not condition.uniform
                    body.indent -= 1
            elif not self._write_gathered(body, p):
                body.write(p, end)
            if draw.chance(25):  # of what has been stored
                body.statements(1, 1)
        for p in updated:
            body.update(p, ends)

    def _write_gathered(self, body: Body, p: Property) -> bool:
        """Have a row follow what has been gathered, so that runs go on for a while."""
        found = [t for t in self.temporaries if t.type == p.type and t.wide == p.wide]
        if not (self.patches and p.name in self.hot and found) or p.type == "bool":
            return False
        place = body.place_of(p, "v")
        own = Expression(f"d.{p.name}{place}", p.type, p.bound, p.scale, not p.wide)
        gathered = body.reads.read_temporary(self.draw.one(found))
        how = self.draw.one(("least", "add", "sub"))
        e = body.reads.joined(how, gathered, own, p.type)
        fits = body.reads.fit_int if p.type == "int" else body.reads.fit_real
        low = (p.lowest,) if p.type == "int" else ()
        high = (p.bound,) if p.type == "int" else (p.bound, p.scale)
        if not e.uniform and not p.wide and body.reads.wide:
            return False
        body.line(f"d.{p.name}_next{place} = {fits(e, *low, *high)}")
        self.changed = f"d.{p.name}_next{place} != d.{p.name}{place}"
        return True

    def _return(self, body: Body) -> None:
        draw = self.draw
        e = body.reads.of("bool", 2)
        if self.changed and draw.chance(80):
            test = draw.one(("", " and v % 3 != 1", f" or {e}"))
            e = Expression(self.changed + test, "bool", 1, 0, False)
        elif draw.chance(35) and not self.patches:
            e = Expression("True", "bool")
        elif draw.chance(30):  # by a name: what is stored before may wait for it
            body.line(f"goes_on = {e}")
            e = replace(e, text="goes_on")
        body.line(f"return {e}")

    # -- edge and triangle functions

    def edge(self) -> str:
        draw = self.draw
        found = self._of("edge", {"next", "place", "out"}, True)
        wide = draw.chance(60)
        found = [p for p in found if wide or not p.wide]
        if wide and not any(p.wide for p in found):
            wide = bool([p for p in self._of("vertex", {"atomic"}, True) if p.wide])
        body, name = self._body("edge", int(wide)), self._name("edge")
        targets: list[Property] = []
        if found and draw.chance(75) and (not wide or any(p.wide for p in found)):
            targets = self._targets(body, found)
        updated = self._updated(body, 40 if targets else 100)
        if wide and not targets:
            updated = [p for p in self._of("vertex", {"atomic"}, True) if p.wide][:1]
            body.reads.updates = {p.name for p in updated}
        body.statements(draw.number(0, 1), 2)
        self._leave(body)
        self._write(body, targets, updated, "e", ["v", "u"])
        self._return(body)
        self._end("@fg.edge", f"{name}(f, u, v, e, d)", body)
        return name

    def triangle(self) -> str:
        draw = self.draw
        body, name = self._body("triangle", 0), self._name("triangle")
        body.reads.together = False
        updated = self._of("vertex", {"atomic"}, False)
        body.reads.updates = {p.name for p in updated}
        within = ""
        flags = [p for p in self.properties if p.of == "edge" and p.type == "bool"
                 and not p.wide and p.role != "out"]  # fmt: skip
        if flags and draw.chance(50):
            within = f'(within="{draw.one(flags).name}")'
            draw.use("within=")
        body.statements(draw.number(0, 1), 2)
        for p in updated:
            for _ in range(draw.number(1, 2)):
                body.update(p, ["u", "v", "w"])
        head = f"{name}(u, v, w, e_uv, e_uw, e_vw, d)"
        self._end(f"@fg.triangle{within}", head, body)
        draw.use("triangle")
        return name
