"""Bayesian networks in the Bayesian Interchange Format (``.bif``, version 0.15)."""

from __future__ import annotations

import math
import os
import re
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from featgraph.graph.factor_graph import MAX_SCOPE, FactorGraph
from featgraph.graph.formats.text import Text, Tokens, read_text

__all__ = ["read_bif"]

# Blanks and comments are skipped; words are quoted text, punctuation, and others.
_TOKEN = re.compile(
    rb"(?P<skip>\s+|//[^\n]*|/\*.*?\*/)"
    rb'|"[^"\n]*"|[{}()\[\]|,;]|[^\s{}()\[\]|,;"]+|"',
    re.DOTALL,
)
_PUNCTUATION = frozenset(rb"{}()[]|,;")

# Files have few digits: distributions of published networks sum to one within 1e-3.
_SUM_TOLERANCE = 1e-2


def read_bif(
    path: str | os.PathLike[str], *, max_bytes: int | None = None
) -> FactorGraph:
    """Read a Bayesian network in the Bayesian Interchange Format.

    Factor i is the conditional distribution of variable i, its own axis first, then
    those of its parents. Properties and comments are skipped.

    Parameters
    ----------
    path : str or path
    max_bytes : int, optional
        Most bytes of text, and of memory allocated for a table. Default: 100 times the
        file, at least 64 MiB.

    Returns
    -------
    FactorGraph

    Raises
    ------
    FileFormatError
        If the file is malformed or truncated, a distribution is missing or does not sum
        to one (within 1e-2, since files are rounded), or the network has a cycle.
    OSError
        If the file is missing or cannot be read.

    References
    ----------
    F. Cozman, "The Interchange Format for Bayesian Networks", 1998.
    """
    return _Parser(read_text(path, max_bytes)).parse()


class _Parser:
    """One pass over the blocks of a file."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.tokens = Tokens(text, _TOKEN)
        self.states: dict[str, tuple[str, ...]] = {}
        #: Name of the child -> variables of its table, child first.
        self.scopes: dict[str, tuple[str, ...]] = {}
        self.tables: dict[str, NDArray[np.float64]] = {}
        self.entries = 0

    def parse(self) -> FactorGraph:
        tokens = self.tokens
        tokens.skip(b"network", "file: its first word")
        while tokens.peek() != b"{":
            tokens.take("'{'")
        tokens.skip(b"{", "network block")
        while tokens.peek() != b"}":
            if tokens.take("'property' or '}'").lower() != b"property":
                tokens.fail("malformed network block", expected="property or '}'")
            self.skip_property()
        tokens.skip(b"}", "network block")
        while not tokens.at_end:
            keyword = tokens.take("variable or probability").lower()
            if keyword == b"variable":
                self.variable()
            elif keyword == b"probability":
                self.probability()
            else:
                tokens.fail("unknown block", expected="variable or probability")
        for name in self.states:
            if name not in self.scopes:
                tokens.fail("a variable without probability block", got=repr(name))
        if not self.states:
            tokens.fail("no variables", expected="variable NAME { ... }")
        cycle = _in_cycles(self.scopes)
        if cycle:
            tokens.fail(
                "the network has a cycle",
                0,
                got=f"through {', '.join(cycle[:8])}",
                expected="no variable that depends on itself",
            )
        return FactorGraph(
            self.states, [(self.scopes[n], self.tables[n]) for n in self.states]
        )

    def word(self, what: str) -> str:
        """Return the next word without quotes; punctuation is refused."""
        raw = self.tokens.peek()
        if not raw or raw == b'"' or (len(raw) == 1 and raw[0] in _PUNCTUATION):
            self.tokens.fail(f"{what} is missing", expected=what)
        self.tokens.take(what)
        return raw.strip(b'"').decode("utf-8", "replace")

    def skip_property(self) -> None:
        while self.tokens.peek() != b";":
            begin = self.tokens.position
            if self.tokens.take("';' behind the property") == b'"':
                self.tokens.fail("an open string", begin, expected="a closing quote")
        self.tokens.skip(b";", "property")

    def variable(self) -> None:
        tokens = self.tokens
        begin = tokens.position
        name = self.word("the name of a variable")
        if name in self.states:
            tokens.fail("a variable declared twice", begin)
        tokens.skip(b"{", "variable block")
        while tokens.peek() != b"}":
            keyword = tokens.take("'type', 'property' or '}'").lower()
            if keyword == b"property":
                self.skip_property()
            elif keyword == b"type" and name not in self.states:
                self.states[name] = self.type()
            else:
                tokens.fail("malformed variable block", expected="one 'type discrete'")
        tokens.skip(b"}", "variable block")
        if name not in self.states:
            tokens.fail("a variable without states", begin, expected="type discrete")

    def type(self) -> tuple[str, ...]:
        tokens = self.tokens
        tokens.skip(b"discrete", "type of a variable")
        tokens.skip(b"[", "type of a variable")
        begin = tokens.position
        count = tokens.count("number of states", 1, (tokens.left_bytes + 1) // 2)
        tokens.skip(b"]", "type of a variable")
        tokens.skip(b"{", "states of a variable")
        states = [self.word("the name of a state")]
        while tokens.peek() == b",":
            tokens.skip(b",", "states of a variable")
            states.append(self.word("the name of a state"))
        tokens.skip(b"}", "states of a variable")
        tokens.skip(b";", "type of a variable")
        if len(states) != count or len(set(states)) < count:
            tokens.fail(
                "the number of states does not equal the states listed",
                begin,
                got=f"{len(set(states))} different states",
                expected=f"{count}",
            )
        return tuple(states)

    def probability(self) -> None:
        tokens = self.tokens
        begin = tokens.position
        scope = self.scope()
        child = scope[0]
        if child in self.scopes:
            tokens.fail("two probability blocks of a variable", begin)
        shape = [len(self.states[name]) for name in scope]
        self.entries += math.prod(shape)
        if self.entries > self.text.limit_bytes // 8:
            tokens.fail(
                "the tables are larger than a file of this size is trusted with",
                begin,
                got=f"{self.entries} entries up to here",
                expected=f"at most {self.text.limit_bytes // 8}",
                fix="pass max_bytes= (8 bytes an entry) if the file is to be trusted",
            )
        # Parents first while the table is filled, so that a row is a distribution.
        rows = np.full((*shape[1:], shape[0]), np.nan)
        default: list[float] | None = None
        tokens.skip(b"{", "probability block")
        while tokens.peek() != b"}":
            start = tokens.position
            keyword = tokens.take("a row, 'table', 'default', 'property' or '}'")
            if keyword == b"(":
                self.row(rows, scope[1:], start)
            elif keyword.lower() == b"table":
                values = self.values(math.prod(shape))
                # In the file, the child varies slowest, its last parent fastest.
                rows[...] = np.moveaxis(np.array(values).reshape(shape), 0, -1)
            elif keyword.lower() == b"default":
                default = self.values(shape[0])
            elif keyword.lower() == b"property":
                self.skip_property()
            else:
                tokens.fail("malformed probability block", start, expected="a row")
        tokens.skip(b"}", "probability block")
        if default is not None:
            rows[np.isnan(rows[..., 0])] = default
        self.check_rows(rows, scope, begin)
        self.scopes[child] = scope
        self.tables[child] = np.moveaxis(rows, -1, 0)

    def scope(self) -> tuple[str, ...]:
        tokens = self.tokens
        tokens.skip(b"(", "probability block")
        scope: list[str] = []
        while True:
            begin = tokens.position
            name = self.word("the name of a variable")
            if name not in self.states:
                tokens.fail(
                    "a variable that is not declared",
                    begin,
                    expected="a name of a variable block above",
                )
            if name in scope or len(scope) == MAX_SCOPE:
                tokens.fail(
                    "not a scope",
                    begin,
                    expected=f"at most {MAX_SCOPE} variables, each once",
                )
            scope.append(name)
            if tokens.peek() == b")":
                break
            if tokens.peek() in (b"|", b","):
                tokens.skip(b"|" if len(scope) == 1 else b",", "scope")
        tokens.skip(b")", "scope")
        return tuple(scope)

    def row(
        self, rows: NDArray[np.float64], parents: tuple[str, ...], begin: int
    ) -> None:
        """Read ``state, state) p, p, p;``, the distribution for states of parents."""
        tokens = self.tokens
        index = []
        for number, parent in enumerate(parents):
            if number:
                tokens.skip(b",", f"row: it has a state of each of {len(parents)}")
            at = tokens.position
            state = self.word("a state")
            if state not in self.states[parent]:
                tokens.fail(
                    f"{parent} has no such state",
                    at,
                    expected=", ".join(self.states[parent][:8]),
                )
            index.append(self.states[parent].index(state))
        tokens.skip(b")", f"row: it has a state of each of {len(parents)}")
        if not np.isnan(rows[tuple(index)]).all():
            tokens.fail("a row given twice", begin)
        rows[tuple(index)] = self.values(rows.shape[-1])

    def values(self, count: int) -> list[float]:
        tokens = self.tokens
        values = [tokens.probability("probability")]
        while tokens.peek() != b";":
            if tokens.peek() == b",":
                tokens.skip(b",", "row of probabilities")
            if len(values) == count:
                self.wrong_count(len(values) + 1, count)
            values.append(tokens.probability("probability"))
        if len(values) != count:
            self.wrong_count(len(values), count)
        tokens.skip(b";", "row of probabilities")
        return values

    def wrong_count(self, found: int, count: int) -> NoReturn:
        self.tokens.fail(
            "a row of another length",
            got=f"{'more than ' if found > count else ''}{min(found, count)} values",
            expected=f"{count} values and ';'",
        )

    def check_rows(
        self, rows: NDArray[np.float64], scope: tuple[str, ...], begin: int
    ) -> None:
        missing = np.isnan(rows).any(axis=-1)
        sums = rows.sum(axis=-1)
        for bad, what in (
            (missing, "a row is missing"),
            (np.abs(sums - 1) > _SUM_TOLERANCE, "probabilities do not sum to one"),
        ):
            if bad.any():
                first = np.argwhere(bad)[0]
                states = [
                    f"{parent} = {self.states[parent][state]}"
                    for parent, state in zip(scope[1:], first, strict=True)
                ]
                given = f" given {', '.join(states)}" if states else ""
                total = "no row" if missing.any() else f"a sum of {sums[tuple(first)]}"
                self.tokens.fail(
                    f"{what}: {scope[0]}{given}", begin, got=total, expected="1"
                )


def _in_cycles(scopes: dict[str, tuple[str, ...]]) -> list[str]:
    """Return the variables on cycles, and those that depend on them."""
    waiting = {name: set(scope[1:]) for name, scope in scopes.items()}
    children: dict[str, list[str]] = {name: [] for name in waiting}
    for name, parents in waiting.items():
        for parent in parents:
            children[parent].append(name)
    free = [name for name, parents in waiting.items() if not parents]
    while free:
        parent = free.pop()
        del waiting[parent]
        for name in children[parent]:
            waiting[name].discard(parent)
            if not waiting[name]:
                free.append(name)
    return sorted(waiting)
