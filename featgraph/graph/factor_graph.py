"""Discrete variables and tables over some of them: Bayesian and Markov networks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from featgraph.base.arguments import shown
from featgraph.base.dataclass import dataclass
from featgraph.base.errors import GraphInputError
from featgraph.graph.graph import Graph
from featgraph.graph.inputs.numbers import converted, number_array

__all__ = ["Factor", "FactorGraph"]

Array: TypeAlias = npt.NDArray[Any]
Variable: TypeAlias = str | int

#: Most states of a variable: each state has a name, and an entry in marginals.
_MOST_STATES = 1 << 20
#: Most variables of a table, which has an axis for each: NumPy 1 has at most 32 axes.
MAX_SCOPE = 32


@dataclass(frozen=True, eq=False)
class Factor:
    """A table over some variables.

    Attributes
    ----------
    scope : tuple of int
        The variables, all different.
    table : ndarray of float64
        Nonnegative, with one axis per variable of the scope; read-only.
    """

    scope: tuple[int, ...]
    table: npt.NDArray[np.float64]


class FactorGraph:
    """A product of tables over discrete variables; immutable.

    The probability of an assignment of states is proportional to the product of the
    entries that it selects, one from each table. In a Bayesian network, every table is
    the conditional distribution of one variable.

    Parameters
    ----------
    variables : mapping of str to sequence of str, or to int
        Name of each variable -> names of its states, or their number.
    factors : iterable of (scope, table)
        The scope lists variables by name, or by number in the order of `variables`. The
        table has one axis per variable, with one entry per state.

    Raises
    ------
    GraphInputError
        If a variable has no states, or two of the same name; a scope has an unknown or
        repeated variable; or a table has another shape, or entries that are negative,
        infinite or NaN.

    Examples
    --------
    >>> import featgraph as fg
    >>> model = fg.FactorGraph(
    ...     {"rain": ["no", "yes"], "wet": ["no", "yes"]},
    ...     [(["rain"], [0.8, 0.2]), (["rain", "wet"], [[0.9, 0.1], [0.2, 0.8]])],
    ... )
    >>> model
    FactorGraph(2 variables of up to 2 states, 2 factors of up to 2 variables)
    """

    __slots__ = ("_numbers", "cardinalities", "factors", "names", "states")

    #: The names of the states of each variable, by its name.
    states: Mapping[str, tuple[str, ...]]
    #: The names of the variables, in order.
    names: tuple[str, ...]
    #: Number of states of each variable, shape (V,).
    cardinalities: npt.NDArray[np.int64]
    #: The tables.
    factors: tuple[Factor, ...]

    def __init__(
        self,
        variables: Mapping[str, Sequence[str] | int],
        factors: Iterable[tuple[Sequence[Variable], npt.ArrayLike]],
    ) -> None:
        _require_mapping("not variables", variables)
        self.states = {name: _states(name, value) for name, value in variables.items()}
        if not self.states:
            raise GraphInputError("a factor graph has variables", got="none")
        self.names = tuple(self.states)
        self.cardinalities = np.array([len(s) for s in self.states.values()], np.int64)
        self.cardinalities.flags.writeable = False
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self.factors = tuple(
            self._factor(number, scope, table)
            for number, (scope, table) in enumerate(_pairs(factors))
        )

    def _factor(self, number: int, scope: Sequence[Variable], table: Any) -> Factor:
        where = f"factor {number}"
        variables = tuple(self.variable(name) for name in scope)
        names = [self.names[variable] for variable in variables]
        if len(set(variables)) < len(variables) or len(variables) > MAX_SCOPE:
            raise GraphInputError(
                "not a scope",
                where=where,
                got=f"{len(names)} variables: {', '.join(names[:8])}",
                expected=f"at most {MAX_SCOPE} variables, each once",
            )
        values = converted(number_array(table, where), np.dtype(np.float64), where)
        expected = tuple(int(self.cardinalities[v]) for v in variables)
        if values.shape != expected:
            raise GraphInputError(
                f"the table does not fit its scope ({', '.join(names)})",
                where=where,
                got=f"shape {values.shape}",
                expected=f"shape {expected}",
            )
        bad = ~(np.isfinite(values) & (values >= 0))
        if bad.any():
            raise GraphInputError(
                "entries of a table are finite and not negative",
                where=f"{where}, entry {np.argwhere(bad)[0].tolist()}",
                got=values[bad][0],
            )
        values.flags.writeable = False
        return Factor(variables, values)

    def __repr__(self) -> str:
        arity = max((len(factor.scope) for factor in self.factors), default=0)
        return (
            f"FactorGraph({len(self.states)} variables of up to "
            f"{self.cardinalities.max()} states, {len(self.factors)} factors of up to "
            f"{arity} variables)"
        )

    def variable(self, name: Variable) -> int:
        """Return the number of a variable, from its name or number.

        Raises
        ------
        GraphInputError
            If there is no such variable.
        """
        if isinstance(name, str) and name in self._numbers:
            return self._numbers[name]
        is_number = isinstance(name, int | np.integer) and not isinstance(name, bool)
        if is_number and 0 <= int(name) < len(self.states):
            return int(name)
        raise GraphInputError(
            "there is no such variable",
            got=repr(name),
            expected=f"one of {', '.join(self.names[:6])}"
            + (", ..." if len(self.states) > 6 else "")
            + f", or 0 to {len(self.states) - 1}",
        )

    def state(self, variable: Variable, name: str | int) -> int:
        """Return the number of a variable's state, from names or numbers.

        Raises
        ------
        GraphInputError
            If there is no such variable, or it has no such state.
        """
        owner = self.names[self.variable(variable)]
        states = self.states[owner]
        if isinstance(name, str) and name in states:
            return states.index(name)
        is_number = isinstance(name, int | np.integer) and not isinstance(name, bool)
        if is_number and 0 <= int(name) < len(states):
            return int(name)
        raise GraphInputError(
            "there is no such state",
            where=f"variable {owner!r}",
            got=repr(name),
            expected=f"one of {', '.join(states[:8])}, or 0 to {len(states) - 1}",
        )

    def given(self, evidence: Mapping[Any, str | int]) -> FactorGraph:
        """Return the factor graph conditioned on observed states.

        Parameters
        ----------
        evidence : mapping
            The observed state of some variables, each by name or number.

        Returns
        -------
        FactorGraph
            The same variables with the same numbers. An observed variable has one state
            left, and is in no scope.

        Raises
        ------
        GraphInputError
            If a variable or state is unknown, a variable is observed in two states, or
            the observations have probability zero, with the variables of the table.
        """
        observed: dict[int, int] = {}
        _require_mapping("not evidence", evidence)
        for name, value in evidence.items():
            variable, state = self.variable(name), self.state(name, value)
            if observed.setdefault(variable, state) != state:
                raise GraphInputError(
                    "observed in two states",
                    where=f"variable {self.names[variable]!r}",
                    got=f"{self.names[variable]} and {variable} in the evidence",
                )
        states = {
            name: (states[observed[number]],) if number in observed else states
            for number, (name, states) in enumerate(self.states.items())
        }
        factors = [
            self._given_factor(number, factor, observed)
            for number, factor in enumerate(self.factors)
        ]
        return FactorGraph(states, factors)

    def _given_factor(
        self, number: int, factor: Factor, observed: dict[int, int]
    ) -> tuple[tuple[int, ...], Array]:
        index = tuple(observed.get(v, slice(None)) for v in factor.scope)
        table = factor.table[index]
        if not table.any():
            seen = [
                f"{self.names[v]} = {self.states[self.names[v]][observed[v]]}"
                for v in factor.scope
                if v in observed
            ]
            raise GraphInputError(
                "the evidence is impossible" if seen else "nothing is possible",
                where=f"factor {number} over "
                + ", ".join(self.names[v] for v in factor.scope),
                got=", ".join(seen) or "a table of zeros",
                fix="check the observed states, or give the table a small chance",
            )
        return tuple(v for v in factor.scope if v not in observed), table

    def log_score(self, states: npt.ArrayLike) -> float:
        """Return the log of the product of tables for one state per variable, (V,)."""
        chosen, counts = number_array(states, "states"), self.cardinalities
        is_wrong = chosen.shape != counts.shape or chosen.dtype.kind not in "iu"
        bad = 0 if is_wrong else int(np.argmax((chosen < 0) | (chosen >= counts)))
        if is_wrong or not 0 <= chosen[bad] < counts[bad]:
            raise GraphInputError(
                "one state for each variable is needed",
                where="states" if is_wrong else f"variable {self.names[bad]!r}",
                got=f"{chosen.dtype} of shape {chosen.shape}"
                if is_wrong
                else chosen[bad],
                expected=f"integers of shape {counts.shape}"
                if is_wrong
                else f"0 <= state < {counts[bad]}",
            )
        with np.errstate(divide="ignore"):
            entries = [f.table[tuple(chosen[list(f.scope)])] for f in self.factors]
            return float(np.log(np.array(entries, np.float64)).sum())

    def unary(self) -> npt.NDArray[np.float64]:
        """Return the product of each variable's own tables, (V, K), K the most states.

        A row is zero beyond the states of its variable. Tables without variables, which
        scale all assignments, are left out.
        """
        counts = self.cardinalities
        product = (np.arange(counts.max()) < counts[:, None]).astype(np.float64)
        for factor in self.factors:
            if len(factor.scope) == 1:
                row = product[factor.scope[0]]
                row[: len(factor.table)] *= factor.table
                # Products of many tables underflow; only ratios of entries matter.
                row /= row.max() or 1.0
        return product

    def pairwise(self) -> tuple[Graph, npt.NDArray[np.float64]]:
        """Return the tables of two variables as edges and potentials.

        Tables over the same two variables are multiplied into one edge, so that they
        make no loop.

        Returns
        -------
        graph : Graph
            Undirected, with an edge for each pair of variables that share a table.
        potentials : ndarray of shape (E, K, K)
            Entry [e, i, j] is for state i of the edge's source and j of its target;
            zero beyond their states.

        Raises
        ------
        GraphInputError
            If a table has three variables or more.
        """
        k = int(self.cardinalities.max())
        products: dict[tuple[int, int], Array] = {}
        for number, factor in enumerate(self.factors):
            if len(factor.scope) > 2:
                raise GraphInputError(
                    "a table of more than two variables is no edge",
                    where=f"factor {number}",
                    got=f"{len(factor.scope)} variables",
                    fix="use factor_propagation, which takes any number",
                )
            if len(factor.scope) == 2:
                u, v = factor.scope
                table = factor.table if u < v else factor.table.T
                pair = (min(u, v), max(u, v))
                if pair in products:
                    table = table * products[pair]
                    table = table / (table.max() or 1.0)
                products[pair] = table
        potentials = np.zeros((len(products), k, k))
        for edge, table in enumerate(products.values()):
            potentials[edge, : table.shape[0], : table.shape[1]] = table
        pairs = np.array(list(products), np.int64).reshape(-1, 2)
        graph = Graph.from_edges(
            pairs[:, 0], pairs[:, 1], vertex_count=len(self.states), directed=False
        )
        return graph, potentials


def _require_mapping(what: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise GraphInputError(
            what,
            got=shown(value),
            expected="a mapping from variables to states",
        )


def _pairs(factors: Any) -> Iterator[tuple[Any, Any]]:
    try:
        for number, pair in enumerate(factors):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise GraphInputError(
                    "not a factor",
                    where=f"factor {number}",
                    got=shown(pair),
                    expected="a pair (scope, table)",
                )
            scope = pair[0]
            is_row = isinstance(scope, Iterable) and getattr(scope, "ndim", 1) == 1
            if not is_row:
                raise GraphInputError(
                    "not a scope",
                    where=f"factor {number}",
                    got=shown(scope),
                    expected="a sequence of variables",
                )
            yield scope, pair[1]
    except TypeError:
        raise GraphInputError(
            "not factors",
            got=shown(factors),
            expected="pairs (scope, table)",
        ) from None


def _states(name: str, value: Sequence[str] | int) -> tuple[str, ...]:
    if not isinstance(name, str):
        raise GraphInputError("variables have names", got=repr(name), expected="str")
    if isinstance(value, bool | str):
        states: tuple[str, ...] = ()
    elif isinstance(value, int | np.integer) and value > _MOST_STATES:
        states = ()
    elif isinstance(value, int | np.integer):
        states = tuple(str(number) for number in range(int(value)))
    elif isinstance(value, Iterable) and np.ndim(value) == 1:
        states = tuple(str(state) for state in value)
    else:
        states = ()
    if not states or len(set(states)) < len(states):
        raise GraphInputError(
            "a variable has one state or more, of different names",
            where=f"variable {name!r}",
            got=shown(value),
            expected=f"names, or a number of at most {_MOST_STATES:,}",
        )
    return states
