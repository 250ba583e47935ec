"""Reads of a user function: properties, temporaries of gathers, numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.generated.draw import Draw
from tests.generated.expressions import Expression, Expressions
from tests.generated.properties import Property

__all__ = ["Known", "Reads", "Temporary"]


@dataclass(frozen=True)
class Temporary:
    """The result of a gather at each vertex, or of a reduce over all.

    `keeps` says that an expression may read it as it is; else an identity beyond all
    bounds is cut off first.
    """

    name: str
    type: str
    wide: int
    bound: int
    scale: int
    keeps: bool
    is_loose: bool = False


@dataclass(frozen=True)
class Known:
    """Values that functions of a program can read.

    `temporaries` are those that gathers and reduces in front of a function have left.
    """

    properties: list[Property]
    temporaries: list[Temporary]
    undirected: bool


class Reads(Expressions):
    """The expressions of one function of a program.

    Parameters
    ----------
    known : Known
        What it can read.
    kind : str
        "vertex", "gather", "edge", "reduce", "triangle"; "helper" reads nothing.
    wide : int
        Feature axes of the function: 0, 1, or 2 (``matrix=True``).
    """

    def __init__(
        self,
        draw: Draw,
        k: int,
        without: frozenset[str],
        known: Known,
        kind: str,
        wide: int,
    ) -> None:
        super().__init__(draw, k, without)
        self.kind = kind
        self.wide = bool(wide)
        self.axes = wide
        self.properties = known.properties
        gathered = kind in {"vertex", "gather"}
        self.temporaries = [t for t in known.temporaries if t.is_loose or gathered]
        self.undirected = known.undirected
        self.together = kind in {"vertex", "edge", "gather"} and wide < 2
        self.locals: dict[str, Expression] = {}
        self.loops: list[str] = []  # loop variables that count features
        self.writes_place: set[str] = set()
        self.writes_next: set[str] = set()
        self.updates: set[str] = set()
        self.operations: dict[str, str] = {}
        self.constants: list[tuple[str, Expression]] = []
        #: Properties that a foldmap's functions write and read more often than others.
        self.hot: frozenset[str] = frozenset()
        #: Whether it reads what is committed at its source alone, so that patches do.
        self.sources_only = kind == "gather" and draw.chance(40)
        self.allows_foreign = kind == "vertex" and draw.chance(25)

    # -- what can be read

    def leaves(self, type_: str) -> list[Callable[[], Expression]]:
        found: list[Callable[[], Expression]] = []
        for p in self.properties:
            if p.type == type_ and self._is_readable(p):
                # Properties of edges and vertices count double.
                times = 16 if p.name in self.hot else 2
                found += [lambda p=p: self.read(p)] * (1 if p.of == "scalar" else times)
        for t in self.temporaries:
            if t.type == type_ and t.wide <= 1 + bool(self.loops):
                found += [lambda t=t: self.read_temporary(t)] * 4
        for e in self.locals.values():
            if e.type == type_:
                found += [lambda e=e: e] * 3
        found += [lambda e=e: e for _, e in self.constants if e.type == type_]
        if type_ == "int" and self.kind != "helper":
            found.append(lambda: _read_number(self))
        if type_ == "bool" and "e" in self._ends() and self.undirected:
            found.append(lambda: Expression("fg.is_twin(e)", "bool"))
        return found

    def _ends(self) -> str:
        """Return the letters of the function's parameters."""
        ends = {"vertex": "v", "reduce": "v", "helper": "", "triangle": "uvw"}
        return ends.get(self.kind, "uve")

    def _is_readable(self, p: Property) -> bool:
        if p.role == "out" or p.name in self.updates:
            return False
        if p.of == "edge" and self.kind in {"vertex", "reduce"}:
            return False
        if p.wide == 2 and not (self.axes == 2 or self.loops):
            return False
        if p.name in self.writes_place and not p.wide and self.wide:
            return False
        if p.wide and self.kind == "triangle":
            return False
        return not (p.index and self.draw.chance(60))

    def feature(self) -> tuple[str, bool]:
        """Return an index over features, and whether it is the same for all."""
        draw = self.draw
        if self.wide and draw.chance(65):
            return "f", False
        kinds = ["constant"] + ["loop"] * 3 * bool(self.loops)
        kinds += ["computed", "next"] * self.wide
        kind = draw.one(kinds)
        draw.use(f"feature {kind}")
        if kind == "loop":
            return draw.one(self.loops), True
        if kind == "next":
            by = draw.number(1, max(1, self.k - 1))
            return f"(f + {by}) % {self.k}", False
        if kind == "computed":
            ints = [
                p
                for p in self.properties
                if p.of == "vertex"
                and p.type == "int"
                and not p.wide
                and not p.index
                and p.bound <= 999
                and self._is_readable(p)
            ]
            if ints and "v" in self._ends():
                p = draw.one(ints)
                return f"(d.{p.name}[v] + f) % {self.k}", False
            return f"({self.k - 1} - f)", False
        return str(draw.number(0, self.k - 1)), True

    def read(self, p: Property) -> Expression:
        """Return ``d.p[...]``."""
        draw, name = self.draw, p.name
        end, uniform = "", True
        own = p.name in self.writes_place
        if p.of == "vertex":
            end = draw.one([x for x in self._ends() if x in "uvw"])
            if own:
                end = "v"
            elif self.sources_only and p.role == "next":
                end = "u"
            elif self.allows_foreign and draw.chance(50):
                end = _elsewhere(self)
            if p.role == "next" and self._may_read_next(p, "v"):
                # At another vertex only what it does not write: those run meanwhile.
                own = self.kind == "gather" or p.name in self.writes_next
                name = f"{p.name}_next"
                end = "v" if own and self.kind == "vertex" else end
                draw.use(*["next elsewhere"] * (end not in {"u", "v"}))
        elif p.of == "edge":
            end = draw.one(("e_uv", "e_uw", "e_vw")) if self.kind == "triangle" else "e"
            if end == "e" and not own and self.undirected and draw.chance(40):
                end = "fg.reverse(e)"
                draw.use("twin")
            if p.role == "next" and self._may_read_next(p, "e"):
                own = self.kind == "gather" or p.name in self.writes_next
                name = f"{p.name}_next"
                end = "e" if own and self.kind == "edge" else end
                draw.use(*["next at a twin"] * (end != "e"))
        indices = [end] if end else []
        if p.wide == 2:
            first = draw.one(self.loops or ["i"])
            indices.append(first)
            uniform = first != "i"
        if p.wide:
            text, same = ("f", False) if own and self.wide else self.feature()
            indices.append(text)
            uniform = uniform and same
        text = f"d.{name}" + (f"[{', '.join(indices)}]" if indices else "")
        bound = p.bound if p.type != "bool" else 1
        return Expression(text, p.type, bound, p.scale, uniform)

    def _may_read_next(self, p: Property, end: str) -> bool:
        kinds = {"v": {"vertex", "gather", "edge"}, "e": {"edge", "gather"}}
        percent = 50 if p.name in self.hot else 25
        if self.kind not in kinds[end] or not self.draw.chance(percent):
            return False
        if self.kind == "gather" and (self.sources_only or p.name not in self.hot):
            return False
        if p.wide and not self.wide:
            return False  # of feature g: only a function that writes no feature may
        if not p.wide and self.wide and p.name in self.writes_next:
            return False
        self.draw.use("read next")
        return p.wide < 2

    def read_temporary(self, t: Temporary) -> Expression:
        """Return ``d.into[v, f]``; what stands for nothing is brought into bounds."""
        draw = self.draw
        indices = [] if t.is_loose else ["v"]
        uniform = True
        if t.is_loose and not t.wide:
            indices = ["0"]  # a reduce gives a vector always
        if t.wide == 2:
            indices.append(draw.one(self.loops or ["0"]))
        if t.wide:
            text, uniform = self.feature()
            if not t.is_loose and text != "f":
                if "gathered" in self.without and self.wide:
                    text, uniform = "f", False
                draw.use("gathered at another feature" if text != "f" else "gathered")
            indices.append(text)
        text = f"d.{t.name}" + (f"[{', '.join(indices)}]" if indices else "")
        e = Expression(text, t.type, t.bound, t.scale, uniform)
        if t.keeps or t.type == "bool":
            return e
        if t.type == "int":
            return replace(e, text=f"min(max({e}, {-t.bound}), {t.bound})")
        low, high = float(-t.bound), float(t.bound)
        return replace(e, text=f"min(max({e}, {low}), {high})")


def _read_number(reads: Reads) -> Expression:
    """Return a number that needs no property."""
    draw = reads.draw
    letters = [x for x in reads._ends() if x in "uvw"]
    options = [*letters, "d.vertex_count"]
    options += [f"d.in_degree[{x}]" for x in letters]
    options += [f"d.out_degree[{x}]" for x in letters]
    if reads.wide:
        options += ["f", "f"] + ["i"] * (reads.axes == 2)
    options += reads.loops
    if "superstep" not in reads.without and draw.chance(5):
        options = ["d.superstep"]
        draw.use("superstep")
    text = draw.one(options)
    uniform = text not in {"f", "i"}
    return Expression(text, "int", 400, 0, uniform)


def _elsewhere(reads: Reads) -> str:
    """Return a vertex that need be no neighbor."""
    reads.draw.use("foreign")
    pointers = [p for p in reads.properties if p.index and p.of == "vertex"]
    pointers = [p for p in pointers if not p.wide]
    if pointers and reads.draw.chance(50):
        return f"d.{pointers[0].name}[v]"
    return f"(v + {reads.draw.number(1, 5)}) % d.vertex_count"
