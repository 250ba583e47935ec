"""Files of the UAI inference competitions: models, evidence, marginals."""

from __future__ import annotations

import math
import os
import re
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from featgraph.graph.factor_graph import MAX_SCOPE, FactorGraph
from featgraph.graph.formats.text import Tokens, read_text

__all__ = ["read_uai", "read_uai_evidence", "read_uai_marginals"]

_Path: TypeAlias = str | os.PathLike[str]

# Words are separated by blanks.
_WORD = re.compile(rb"\S+")

# Approximate memory for the name of a state, in bytes.
_STATE_BYTES = 64


def read_uai(path: _Path, *, max_bytes: int | None = None) -> FactorGraph:
    """Read a model of the UAI inference competitions, MARKOV or BAYES.

    Variables are named "0", "1", ..., and so are their states.

    Parameters
    ----------
    path : str or path
    max_bytes : int, optional
        As for `read_bif`.

    Returns
    -------
    FactorGraph

    Raises
    ------
    FileFormatError
        If the file is malformed or truncated, or has words after the last table.
    OSError
        If the file is missing or cannot be read.
    """
    text = read_text(path, max_bytes)
    tokens = Tokens(text, _WORD)
    if tokens.peek().upper() not in (b"MARKOV", b"BAYES"):
        tokens.fail("not a UAI model", expected="MARKOV or BAYES")
    tokens.take("the kind of model")
    # Each count is followed by at least as many words, each of a byte and a blank: a
    # larger count cannot be true.
    variables = tokens.count("number of variables", 1, (tokens.left_bytes + 1) // 2)
    most = text.limit_bytes // _STATE_BYTES
    states = [tokens.count("number of states", 1, most) for _ in range(variables)]
    if sum(states) > most:
        tokens.fail(
            "more states than a file of this size is trusted with",
            0,
            got=f"{sum(states)} states",
            expected=f"at most {most}",
            fix="pass max_bytes= (64 bytes a state) if the file is to be trusted",
        )
    factors = tokens.count("number of factors", 0, (tokens.left_bytes + 1) // 2)
    scopes = [_scope(tokens, variables) for _ in range(factors)]
    tables = [_table(tokens, [states[v] for v in scope]) for scope in scopes]
    if not tokens.at_end:
        tokens.fail("more values than the tables have", expected="the end of the file")
    return FactorGraph(
        {str(number): count for number, count in enumerate(states)},
        list(zip(scopes, tables, strict=True)),
    )


def read_uai_evidence(path: _Path, *, max_bytes: int | None = None) -> dict[int, int]:
    """Read the evidence for a UAI model: pairs of variable and state.

    Parameters
    ----------
    path : str or path
    max_bytes : int, optional
        As for `read_bif`.

    Returns
    -------
    dict of int to int
        State by variable, for `FactorGraph.given`; empty without evidence.

    Raises
    ------
    FileFormatError
        If the file is malformed or truncated, or has more than one set of evidence.
    OSError
        If the file is missing or cannot be read.
    """
    tokens = Tokens(read_text(path, max_bytes), _WORD)
    count = tokens.count("number of observations", 0, (tokens.left_bytes + 1) // 2)
    evidence: dict[int, int] = {}
    for _ in range(count):
        begin = tokens.position
        variable = tokens.count("variable", 0, 10**18)
        state = tokens.count("state", 0, 10**18)
        if evidence.setdefault(variable, state) != state:
            tokens.fail("a variable observed in two states", begin)
    if not tokens.at_end:
        tokens.fail(
            "more observations than the first number of the file",
            expected="one set of evidence and the end of the file",
        )
    return evidence


def read_uai_marginals(
    path: _Path, *, max_bytes: int | None = None
) -> list[NDArray[np.float64]]:
    """Read a solution of a UAI marginal task (``.MAR``).

    Parameters
    ----------
    path : str or path
    max_bytes : int, optional
        As for `read_bif`.

    Returns
    -------
    list of ndarray of float64
        The probabilities of the states of each variable.

    Raises
    ------
    FileFormatError
        If the file is malformed or truncated.
    OSError
        If the file is missing or cannot be read.
    """
    tokens = Tokens(read_text(path, max_bytes), _WORD)
    tokens.skip(b"mar", "solution: its first word")
    variables = tokens.count("number of variables", 1, (tokens.left_bytes + 1) // 2)
    marginals = []
    for _ in range(variables):
        most = (tokens.left_bytes + 1) // 2
        states = tokens.count("number of states", 1, most)
        marginals.append(
            np.array([tokens.probability("probability") for _ in range(states)])
        )
    if not tokens.at_end:
        tokens.fail("more values than variables", expected="the end of the file")
    return marginals


def _scope(tokens: Tokens, variables: int) -> tuple[int, ...]:
    begin = tokens.position
    size = tokens.count("number of variables of a factor", 0, MAX_SCOPE)
    scope = tuple(tokens.count("variable", 0, variables - 1) for _ in range(size))
    if len(set(scope)) < size:
        tokens.fail("a variable twice in a scope", begin)
    return scope


def _table(tokens: Tokens, shape: list[int]) -> NDArray[np.float64]:
    begin = tokens.position
    size = tokens.count("number of entries", 1, 10**19)
    if size != math.prod(shape):
        tokens.fail(
            "the table does not fit its scope",
            begin,
            got=f"{size} entries",
            expected=f"{' * '.join(map(str, shape)) or 1} = {math.prod(shape)} entries",
        )
    if size > (tokens.left_bytes + 1) // 2:
        tokens.fail(
            "a table claims more entries than the file can hold",
            begin,
            got=f"{size} entries",
            expected=f"at most {(tokens.left_bytes + 1) // 2}",
            fix="the file is truncated: fetch it again",
        )
    values = np.array([tokens.probability("table entry") for _ in range(size)])
    return values.reshape(shape)
