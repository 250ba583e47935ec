"""Names on the command line: of algorithms, and flags in place of options in errors.

Errors of readers and algorithms name Python options, such as ``names=True``.
`speaking_of_flags` replaces them by flags, here ``--names``, which it takes from the
parser of a command, so that flags are defined only there.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from featgraph.base.arguments import near_name
from featgraph.base.errors import ArgumentError, FeatGraphError

__all__ = [
    "ALGORITHMS",
    "UNDIRECTED",
    "CommandError",
    "in_flags",
    "known_algorithm",
    "speaking_of_flags",
]

#: An option with its value in Python syntax.
_OPTION = re.compile(
    r"""\b([a-z][a-z_]*)=(?:'([^']*)'|"([^"]*)"|(True|False)\b|([\w.]+))?"""
)
#: The name of an option with an underscore, which is not an English word.
_NAME = re.compile(r"(?<![-\w.])[a-z]+(?:_[a-z]+)+\b(?!\()")
#: Fixes that apply only to Python programs.
_CODE = re.compile(r"\w\(|\b(fg|numpy|np|scipy|pandas)\.|\bGraph\.|\b[a-z_]+=")


class CommandError(FeatGraphError):
    """An error with the flags of a command in place of Python options."""


@contextmanager
def speaking_of_flags(parser: argparse.ArgumentParser) -> Iterator[None]:
    """Replace options in errors of a block by the flags of a parser.

    Raises
    ------
    CommandError
        For any `FeatGraphError`.
    """
    try:
        yield
    except CommandError:
        raise
    except FeatGraphError as error:
        raise in_flags(error, parser) from error


def in_flags(error: FeatGraphError, parser: argparse.ArgumentParser) -> CommandError:
    """Return an error with flags, without fixes that apply only to programs."""
    flags = _flags_of(parser)

    def with_flags(text: object) -> Any:
        # Quoted text comes from the user, and is not changed.
        if not isinstance(text, str) or text.startswith(("'", '"')):
            return text
        text = _OPTION.sub(lambda match: _flag(match, flags), text)
        return _NAME.sub(lambda match: flags.get(match[0], [match[0]])[0], text)

    fix, where = with_flags(error.fix), with_flags(error.where)
    return CommandError(
        with_flags(error.what),
        where=flags[where][0] if where in flags else where,
        got=with_flags(error.got),
        expected=with_flags(error.expected),
        fix=None if fix is None or _CODE.search(fix) else fix,
    )


def _flags_of(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """Return a dict of option name -> its flag, and its negative flag if any."""
    found = {}
    for action in parser._actions:
        flags = [flag for flag in action.option_strings if flag.startswith("--")]
        if flags:
            found[action.dest] = flags
    if "undirected" in found:
        found["directed"] = found["undirected"] * 2
    return found


def _flag(match: re.Match[str], flags: dict[str, list[str]]) -> str:
    name, single, double, truth, plain = match.groups()
    if name not in flags:
        return match[0]
    if truth is not None:
        return flags[name][-1 if truth == "False" else 0]
    value = next((v for v in (single, double, plain) if v is not None), None)
    return flags[name][0] if value is None else f"{flags[name][0]} {value}"


#: Name of an algorithm on the command line -> description; a test checks the names.
ALGORITHMS = {
    "als": "factors of users and items, by alternating least squares",
    "belief-propagation": "marginals of a pairwise model, from arrays",
    "betweenness-centrality": "the share of shortest paths that lead through a vertex",
    "bfs": "levels and parents of a breadth-first search",
    "circuit-simulation": "voltages and currents of a network of resistors",
    "closeness-centrality": "how near a vertex is to all others",
    "clustering": "local clustering coefficients",
    "connected-components": "components, weak ones of directed graphs",
    "eigenvector-centrality": "the eigenvector of the largest eigenvalue",
    "factor-propagation": "marginals of a model in a .bif or .uai file",
    "gradient-factorization": "factors of users and items, by gradient descent",
    "heat-simulation": "heat that spreads along edges",
    "hits": "hubs and authorities",
    "k-core": "core numbers",
    "k-truss": "the trussness of every edge",
    "katz-centrality": "how many walks lead to a vertex",
    "label-propagation": "spread the labels of some vertices to all others",
    "label-set-propagation": "spread several sets of labels to all vertices",
    "multi-manifold-ranking": "nearness to a query along several manifolds",
    "multimodal-learning": "given values spread over several modalities",
    "neural-network": "neurons on any graph, settled for given inputs",
    "pagerank": "how often a random surfer is found at a vertex",
    "pagerank-push": "how often a random surfer from a few seeds visits a vertex",
    "sgd-factorization": "factors of users and items, by stochastic gradient descent",
    "sssp": "shortest paths: distances and predecessors",
    "sswp": "widest paths: widths and predecessors",
    "strongly-connected-components": "strong components",
    "triangle-count": "triangles of each vertex",
}


def known_algorithm(name: str) -> str:
    """Return the name of an algorithm with dashes; ArgumentError if there is none."""
    found = name.replace("_", "-")
    if found not in ALGORITHMS:
        raise ArgumentError(
            f"there is no algorithm {name!r:.80}",
            fix=near_name(found, ALGORITHMS) or "featgraph list",
        )
    return found


#: Algorithms that always read the lines of an edge list as undirected edges.
UNDIRECTED = frozenset(
    {
        "belief-propagation",
        "circuit-simulation",
        "clustering",
        "k-truss",
        "triangle-count",
    }
)
