"""Accesses of functions: the table of reads and writes, and what follows from it.

- `find_accesses` makes the access table: which properties a function reads and writes,
  and at which vertices and edges. Fusion, due sets and partitions are derived from it.
- `check_accesses` and `check_gathered` raise for accesses that the model forbids.
- `next_written_on_every_path` finds the ``_next`` entries that every path that may
  commit writes. Such a function needs no copy of the current entry first; for any other
  function the kernel makes one, because an entry that is not written keeps its value.
- `separate_gathered` finds reads of gathered values at other features than the
  function's own. A gather leaves ``d.into[v, f]`` in a register of the lane of feature
  f. An entry at a constant feature is needed by all lanes: it becomes an `Entry`, a
  temporary that is the same for all features. Any other index is computed, so that the
  value must be in memory: the gather then runs in an earlier kernel.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from featgraph.fold.syntax.names import EDGES
from featgraph.fold.tree.statements import (
    Access,
    Atomic,
    Operate,
    Whole,
    entity_of,
    every,
    is_reversed,
    is_same,
    name_of,
    narrowed,
    test_of,
)
from featgraph.program.functions import UserFunction
from featgraph.program.source import FunctionSource

__all__ = [
    "INDEXED", "AccessRecord", "Entry", "base_name", "check_accesses", "check_gathered",
    "conflict_ends", "entry_stem", "find_accesses", "next_dropped",
    "next_written_on_every_path", "separate_gathered", "touched_ends",
]  # fmt: skip


@dataclass(frozen=True, order=True)
class AccessRecord:
    """One row of the access table.

    Attributes
    ----------
    name : str
        Property, temporary or vector.
    version : str
        ``"now"`` or ``"next"``.
    mode : str
        "read", "write" (an assignment) or "atomic".
    where : str
        Position of the entry relative to the vertex or edge on which the function runs:

        - "own": at the edge e, or an edge of the triangle; at the vertex v, except in
          edge and triangle functions.
        - "neighbor": at u, the other end of an edge. In edge and triangle functions, at
          any vertex that is a parameter.
        - "twin": at ``fg.reverse(e)``.
        - "foreign": at a computed vertex.
        - "global": of a vector, which belongs to no vertex or edge.
    """

    name: str
    version: str
    mode: str
    where: str


def find_accesses(
    function: UserFunction, body: list[ast.stmt], kinds: Mapping[str, str]
) -> tuple[AccessRecord, ...]:
    """Return the access table of a function, sorted, without duplicates.

    Parameters
    ----------
    kinds : mapping
        Name -> "vertex", "edge", "vector", "scalar" or "into": see `Names`.
    """
    records: set[AccessRecord] = set()
    targets = set(map(id, _targets(body)))
    nodes = [n for n in every(body) if isinstance(n, Access | Whole | Atomic)]
    entries = (n for n in nodes if not isinstance(n, Atomic) and id(n) not in targets)
    read = {(n.name, n.version) for n in entries}
    for node in nodes:
        where = _class_of(function, node, kinds)
        if isinstance(node, Atomic):
            records.add(AccessRecord(node.name, "now", "atomic", where))
            continue
        if id(node) in targets:
            records.add(AccessRecord(node.name, node.version, "write", where))
        # The place of a write counts as read, too, if any entry of the property is.
        if (node.name, node.version) in read:
            records.add(AccessRecord(node.name, node.version, "read", where))
    return tuple(sorted(records))


def conflict_ends(body: Sequence[ast.stmt], has_sides: bool) -> str:
    """Return the ends at which edges conflict by an exclusive function: "u", "v", "uv".

    Two edges conflict at a vertex where one of them writes a property that the other
    reads or writes (S11). In a bipartite graph (`has_sides`) a vertex is the source of
    all its edges or the target of all, so an end that is only read has no conflicts.
    """
    written = {(t.name, entity_of(t)) for t in _targets(body)}
    names = {name for name, _ in written}
    nodes = (n for n in every(body) if isinstance(n, Access | Whole))
    touched = {(n.name, entity_of(n)) for n in nodes if n.name in names}
    # In general the one edge may write a vertex as its u, and the other read it as v.
    found = {end for _, end in (written if has_sides else touched)}
    return "".join(end for end in "uv" if end in found)


def touched_ends(body: Sequence[ast.stmt]) -> Counter[str]:
    """Return, for each property, the ends that read it plus the ends that write it."""
    written = _targets(body)
    nodes = (n for n in every(body) if isinstance(n, Access | Whole))
    read = [n for n in nodes if not any(n is t for t in written)]
    ways = ({(n.name, entity_of(n)) for n in way} for way in (written, read))
    return Counter(name for way in ways for name, _ in way)


def _targets(body: Iterable[ast.stmt]) -> list[Access]:
    """Return the accesses that assignments write."""
    assigned = (n.targets[0] for n in every(body) if isinstance(n, ast.Assign))
    return [target for target in assigned if isinstance(target, Access)]


def _class_of(
    function: UserFunction,
    node: Access | Whole | Atomic,
    kinds: Mapping[str, str],
) -> str:
    """Return `AccessRecord.where`; raise if the index has the wrong kind."""
    source, kind = function.source, function.kind
    stored = kinds.get(node.name, "vertex")  # builtin arrays belong to vertices
    first, name = node.indices[0] if node.indices else None, entity_of(node)
    if stored == "vector":
        if len(node.indices) == 2 and name in {"u", "v"}:
            raise source.error(
                f"the matrix {node.name!r} belongs to no vertex",
                node,
                got=f"d.{node.name}[{name}, ...]",
                expected=f"d.{node.name}[i, f]",
                fix=f"declare {node.name}=fg.vertex_property(...)",
            )
        if first is not None and (name == "e" or is_reversed(first)):
            raise source.error(
                f"the vector {node.name!r} is indexed by a feature",
                node,
                got="an edge",
                expected=f"d.{node.name}[f]",
            )
        return "global"
    if stored == "edge":
        if not (kind.along_edges or kind.intersects):
            raise source.error(
                f"a {kind} function has no edge to read {node.name!r} at", node
            )
        if name in (EDGES if kind.intersects else {"e"}):
            return "own"
        if first is not None and is_reversed(first):
            return "twin"
        raise source.error(
            f"the edge property {node.name!r} is indexed by an edge",
            node,
            got=first.name if isinstance(first, Operate) else _shown(first),
            expected="e_uv, e_uw, e_vw, or fg.reverse of one of them"
            if kind.intersects
            else "e or fg.reverse(e)",
        )
    if name == "e":
        raise source.error(
            f"the vertex property {node.name!r} is indexed by a vertex",
            node,
            got="e",
            expected="u or v",
        )
    if kind.writes_edges or kind.intersects:
        # These functions run on an edge or triangle, so no vertex is their own.
        ends = {"u", "v", "w"} if kind.intersects else {"u", "v"}
        return "neighbor" if name in ends else "foreign"
    return {"v": "own", "u": "neighbor"}.get(name, "foreign")


def _shown(node: ast.AST | None) -> str:
    return "nothing" if node is None else ast.unparse(node)


def check_accesses(
    function: UserFunction,
    body: list[ast.stmt],
    accesses: tuple[AccessRecord, ...],
    kinds: Mapping[str, str],
    iterated: frozenset[str],
    shared: frozenset[str],
) -> None:
    """Raise for accesses that S3, S5 and S6 of the model forbid.

    Raises
    ------
    UserFunctionError
        For a reduce of a gather's result, a write in a gather or reduce, a write at
        another place than v (in edge functions e), a write of an iterated property in
        place, and a read at another vertex or edge of a property that the function
        itself writes in place.
    """
    source, kind = function.source, function.kind
    for target in _targets(body):
        _check_write(function, target, kinds, iterated, shared)
    if kind.exclusive:
        _check_exclusive(source, body, accesses)
    if kind.intersects:
        _check_triangle(source, accesses, kinds)
    updated = [a.name for a in accesses if a.mode == "atomic"]
    if kind.combines and updated:
        raise source.error(
            f"a {kind} is pure: it has no atomic operations",
            got=f"an atomic operation on d.{updated[0]}",
            fix=_RETURN_IT,
        )
    for record in accesses:
        if kind.reduces and kinds.get(record.name) == "into":
            raise source.error(
                f"{record.name!r} is known at the due vertices only, and a reduce runs "
                "over all",
                got=f"d.{record.name}",
                fix="keep it in a property, written by a vertex function",
            )
    for record in accesses:
        if record.mode == "atomic" and record.name in iterated:
            raise source.error(
                f"{record.name!r} is iterated and cannot be updated atomically",
                fix="declare it without iterated=True",
            )
        if record.mode == "atomic" and record.name in shared:
            raise source.error(_shared_text(record.name), fix="give per_direction=True")
    written = {a.name for a in accesses if a.mode == "write" and a.version == "now"}
    for record in accesses:
        elsewhere = record.where not in {"own", "global"}
        if kind.exclusive and record.where == "neighbor":
            continue  # no other edge accesses u and v while the function runs
        if (
            record.mode == "read"
            and record.version == "now"
            and record.name in written
            and elsewhere
        ):
            raise source.error(
                f"{record.name!r} is written in place and read elsewhere by the same "
                "function",
                got=f"a {record.where} read",
                fix="read it at u, v and e"
                if kind.exclusive
                else f"declare {record.name} with iterated=True and write "
                f"d.{record.name}_next",
            )
    _check_other_features(source, body)


def _check_exclusive(
    source: FunctionSource, body: list[ast.stmt], accesses: tuple[AccessRecord, ...]
) -> None:
    """Raise for atomics on properties that an exclusive function writes.

    Raise also for a read of a property behind a write to it.
    """
    written = {a.name for a in accesses if a.mode == "write"}
    for record in accesses:
        if record.mode == "atomic" and record.name in written:
            raise source.error(
                f"{record.name!r} is written in place and updated atomically by the "
                "same function",
                got=f"fg.atomic on d.{record.name}",
                fix=f"assign to d.{record.name} at u, v or e",
            )
    _check_reads_first(source, body, set())


def _check_reads_first(
    source: FunctionSource, body: list[ast.stmt], wrote: set[str]
) -> set[str]:
    """Raise for reads of a property behind a write; return the properties written.

    In a loop every read is behind every write: that of an earlier iteration.
    """
    targets = _targets(body)
    for node in body:
        if isinstance(node, ast.If):
            branches = (node.body, node.orelse)
            found = [_check_reads_first(source, b, set(wrote)) for b in branches]
            parts: list[ast.AST] = [node.test]
        else:
            # A loop: its reads are behind the writes of its earlier iterations.
            inner = getattr(node, "body", [])
            wrote = wrote | {t.name for t in _targets(inner)}
            found, parts = [{t.name for t in _targets([node])}], [node]
        for read in (n for n in every(parts) if isinstance(n, Access | Whole)):
            if read.name in wrote and not any(read is t for t in targets):
                raise source.error(
                    f"{read.name!r} is read behind a write to it",
                    read,
                    got=f"d.{read.name} behind d.{read.name}[...] = ...",
                    expected="all reads of a property before the first write to it",
                    fix="keep what you read, or what you write, in a local",
                )
        wrote = wrote.union(*found)
    return wrote


def _check_triangle(
    source: FunctionSource,
    accesses: tuple[AccessRecord, ...],
    kinds: Mapping[str, str],
) -> None:
    """Raise for reads of gathered values, and of properties updated by atomics."""
    updated = {a.name for a in accesses if a.mode == "atomic"}
    for record in accesses:
        if kinds.get(record.name) == "into":
            raise source.error(
                f"{record.name!r} is known at the due vertices only",
                got=f"d.{record.name}",
                fix="keep it in a property, written by a vertex function",
            )
        if record.mode == "read" and record.name in updated:
            raise source.error(
                f"{record.name!r} is updated atomically and read by the same function",
                got=f"d.{record.name}",
                fix="read it in a function behind this one",
            )


def _shared_text(name: str) -> str:
    return (
        f"{name!r} has one value for both directions of an edge and cannot be written"
    )


#: The way to write what edges contribute.
_RETURN_IT = "return the contribution, and write the result in a vertex function"


def _article(kind: object) -> str:
    return "an" if str(kind)[0] in "aeiou" else "a"


def _check_write(
    function: UserFunction,
    target: Access,
    kinds: Mapping[str, str],
    iterated: frozenset[str],
    shared: frozenset[str],
) -> None:
    """Raise if a function must not write at a place, or must use another form."""
    source, kind = function.source, function.kind
    name = target.name
    shown = f"d.{name}{'_next' if target.version == 'next' else ''}"
    if kind.combines:
        raise source.error(
            f"a {kind} is pure and writes nothing",
            target,
            got=f"a write to {shown}",
            expected="no writes: its result is what it returns",
            fix=_RETURN_IT,
        )
    if kind.intersects:
        raise source.error(
            "a triangle function owns no entry: others write there, too",
            target,
            got=f"{shown} = ...",
            fix="use fg.atomic",
        )
    stored = str(kinds.get(name))
    ends: dict[str, tuple[str, ...]]
    ends = {kind.writes: ("e",) if kind.writes_edges else ("v",)}
    if kind.exclusive:
        ends["vertex"] = ("u", "v")
        if name in iterated:
            raise source.error(
                "an exclusive function writes in place",
                target,
                got=f"{shown}, which is iterated",
                expected="a property that is not iterated",
                fix=f"declare {name} without iterated=True",
            )
    if stored not in ends:
        raise source.error(
            f"{_article(kind)} {kind} function cannot write {shown}",
            target,
            got=f"a {kinds.get(name, 'builtin')} property",
            expected=f"a property of {', '.join(e for s in ends.values() for e in s)}",
            fix="use fg.atomic" if kind.writes_edges and stored == "vertex" else None,
        )
    if entity_of(target) not in ends[stored]:
        raise source.error(
            f"{_article(kind)} {kind} function writes only at "
            f"{' and '.join(ends[stored])}",
            target,
            got=f"{shown} elsewhere",
            fix="use fg.atomic",
        )
    if target.version == "now" and name in iterated:
        raise source.error(
            f"{name!r} is iterated and stays as it was during a superstep",
            target,
            fix=f"write d.{name}_next",
        )
    if name in shared:
        raise source.error(_shared_text(name), target, fix="give per_direction=True")


def _check_other_features(source: FunctionSource, body: list[ast.stmt]) -> None:
    """Raise for reads of entries that the lane of another feature writes.

    Entries without a feature index have their own rules, S6 and S11:
    `checks.check_shared_entries`.
    """
    targets = _targets(body)
    last = {(t.name, t.version): t.indices[-1] for t in targets if t.indices[1:]}
    for node in every(body):
        if not isinstance(node, Access | Whole) or any(node is t for t in targets):
            continue
        wrote = last.get((node.name, node.version))
        if wrote is not None and (
            isinstance(node, Whole) or not is_same(node.indices[-1], wrote)
        ):
            raise source.error(
                f"{node.name!r} is read at another feature than the same function "
                "writes",
                node,
                fix="keep the value in a local and use fg.broadcast",
            )


def next_written_on_every_path(
    body: list[ast.stmt], features_differ: bool
) -> frozenset[str]:
    """Return the properties whose ``_next`` every path that may commit writes first.

    A path that returns False commits nothing, unless `features_differ`: then another
    feature of the same vertex may return True.
    """
    walk = _Walk(features_differ)
    walk.block(body, frozenset())
    # An entry that is read before its write needs a copy even if all paths write it.
    missed = {name for done in walk.returns for name in walk.written - done}
    return frozenset(walk.written - missed - walk.read_early)


def next_dropped(functions: Sequence[Sequence[ast.stmt]]) -> frozenset[str]:
    """Return the properties whose ``_next`` may be written and then not be committed.

    Each function runs if the one before it returned True. A property is returned if
    some function returns False behind a write of the property.
    """
    written: set[str] = set()
    dropped: set[str] = set()
    for body in functions:
        _find_dropped(body, written, dropped)
    return frozenset(dropped)


def _find_dropped(
    body: Sequence[ast.stmt], written: set[str], dropped: set[str]
) -> None:
    """Add to `written` the properties that `body` may write, and to `dropped`.

    `dropped` gets those written in front of a return that is not ``True``.
    """
    for node in body:
        if isinstance(node, ast.Assign):
            target = node.targets[0]
            if isinstance(target, Access) and target.version == "next":
                written.add(target.name)
        elif isinstance(node, ast.Return):
            value = node.value
            # A computed verdict may be False.
            if not (isinstance(value, ast.Constant) and value.value is True):
                dropped |= written
        elif isinstance(node, ast.If):
            before = set(written)
            _find_dropped(node.orelse, before, dropped)
            _find_dropped(node.body, written, dropped)
            written |= before
        elif isinstance(node, ast.For | ast.While):
            for _ in range(2):  # a second iteration runs behind writes of the first
                _find_dropped(node.body, written, dropped)


class _Walk:
    """A walk over the paths of a function, for `next_written_on_every_path`.

    Attributes
    ----------
    written, read_early : set of str
        Properties whose ``_next`` some path writes; those that some path reads before.
    returns : list of frozenset of str
        For each return that may commit: properties written on every path to it.
    """

    def __init__(self, features_differ: bool) -> None:
        self.features_differ = features_differ
        self.written: set[str] = set()
        self.read_early: set[str] = set()
        self.returns: list[frozenset[str]] = []

    def block(
        self, body: list[ast.stmt], done: frozenset[str]
    ) -> frozenset[str] | None:
        """Return entries written if `body` falls through; None if it never does."""
        current: frozenset[str] | None = done
        for node in body:
            if current is None:
                break
            current = self.statement(node, current)
        return current

    def statement(self, node: ast.stmt, done: frozenset[str]) -> frozenset[str] | None:
        """Return the entries written behind a statement; None if no path goes on."""
        if isinstance(node, ast.Assign):
            self._reads(node.value, done)
            target = node.targets[0]
            if isinstance(target, Access) and target.version == "next":
                self.written.add(target.name)
                if _covers_entry(target):
                    return done | {target.name}
            return done
        if isinstance(node, ast.Return):
            value = narrowed(node.value, ast.expr)
            self._reads(value, done)
            commits = not (isinstance(value, ast.Constant) and value.value is False)
            if commits or self.features_differ:
                self.returns.append(done)
            return None
        if isinstance(node, ast.If):
            self._reads(node.test, done)
            ends = [self.block(node.body, done), self.block(node.orelse, done)]
            open_ends = [end for end in ends if end is not None]
            return frozenset.intersection(*open_ends) if open_ends else None
        if isinstance(node, ast.For | ast.While):
            self._reads(test_of(node), done)
            # It may have no iteration, so that its writes are not certain.
            self.block(node.body, done)
            return done
        if isinstance(node, ast.Expr):
            self._reads(node.value, done)
        return done

    def _reads(self, node: ast.expr, done: frozenset[str]) -> None:
        read = (n for n in every([node]) if isinstance(n, Access | Whole))
        self.read_early |= {n.name for n in read if n.version == "next"} - done


def _covers_entry(target: Access) -> bool:
    """Return whether all features write the whole entry: ``[v]`` or ``[v, f]``."""
    return list(map(name_of, target.indices[1:])) in ([], ["f"])


#: Version of an `Access` that reads the result of a gather from memory.
INDEXED = "indexed"


@dataclass(frozen=True)
class Entry:
    """One entry of the result of a gather, at a constant feature.

    Attributes
    ----------
    of : str
        ``into``, or the sources of an argmin or argmax, ``into_source``.
    feature : int
        Feature, 0 to K - 1.
    """

    of: str
    feature: int


def base_name(name: str, temporaries: Iterable[str]) -> str | None:
    """Return x for the names ``x`` and ``x_source`` of a temporary x, else None."""
    if name in temporaries:
        return name
    stem = name.removesuffix("_source")
    return stem if stem != name and stem in temporaries else None


def entry_stem(name: str, temporaries: Iterable[str]) -> str:
    """Return the prefix of the names of entries of a temporary, such as ``x_at``.

    Prefix and feature, ``x_at_3``, differ from other temporaries and copies of these.
    """
    stem, others = f"{name}_at", set(temporaries)
    while any(n == stem or n.startswith(f"{stem}_") for n in others):
        stem += "_"
    return stem


def check_gathered(
    function: UserFunction, body: list[ast.stmt], kinds: Mapping[str, str]
) -> None:
    """Raise for reads of gathered values of other vertices, which lanes do not have.

    `check_accesses` raises for any read in a reduce or triangle function.

    Raises
    ------
    UserFunctionError
        For a read at another vertex than v, and for any read in an edge function.
    """
    for node in every(body):
        if not isinstance(node, Access | Whole | Atomic):
            continue
        name, entity = node.name, entity_of(node)
        if kinds.get(name) != "into" or function.kind.is_silent:
            continue
        if entity == "v" and not function.kind.writes_edges:
            continue
        where = "where" if function.kind.writes_edges else "at a vertex where"
        raise function.source.error(
            f"{name!r} is read {where} it was not gathered",
            node,
            got=f"d.{name} in an edge function"
            if function.kind.writes_edges
            else f"d.{name} at {entity or 'another vertex'}",
            expected=f"d.{name} at v, in a vertex function or gather behind its gather",
            fix="store it in a property, and read that in a second foldmap",
        )


def separate_gathered(
    function: UserFunction,
    body: list[ast.stmt],
    shapes: Mapping[str, tuple[int, ...]],
    stems: Mapping[str, str],
) -> tuple[dict[str, Entry], frozenset[str]]:
    """Rename reads of gathered values at other features than f; `body` is changed.

    Parameters
    ----------
    function : UserFunction
        The function. A function that runs for each element of a matrix has no lane of
        feature f: all its reads are from memory.
    body : list of ast.stmt
        Its typed statements.
    shapes : mapping
        Temporary -> shape of an entry.
    stems : mapping
        Temporary -> prefix of the names of its entries (`entry_stem`).

    Returns
    -------
    entries : dict
        New name -> entry at a constant feature.
    indexed : frozenset of str
        Temporaries that are read at computed features, so from memory. Matrices are not
        among them: a gathered matrix is in an array already.
    """
    by_element = bool(getattr(function, "matrix", False))
    entries: dict[str, Entry] = {}
    indexed: set[str] = set()
    for node in every(body):
        if not isinstance(node, Access):
            continue
        base = base_name(node.name, shapes)
        if base is None or len(shapes[base]) != 1:
            continue  # a number is the same for all features; a matrix is an array
        last = node.indices[-1]
        if isinstance(last, ast.Constant):
            entry = Entry(node.name, int(last.value))  # type: ignore[arg-type]
            name = f"{stems[node.name]}_{entry.feature}"
            entries[name] = entry
            node.name, node.indices = name, node.indices[:1]
        elif by_element or name_of(last) != "f":
            node.version = INDEXED
            indexed.add(base)
    return entries, frozenset(indexed)
