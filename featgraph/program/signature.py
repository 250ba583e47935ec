"""Names and types of properties and scalars.

`name_problem` has the rules for names, with those that are reserved. A `Signature` is
the part of a State that planning depends on.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable
from enum import Enum, StrEnum
from typing import NamedTuple

import numpy as np

from featgraph.base.errors import StateError

__all__ = [
    "EXCLUSIVE",
    "GENERATED",
    "LONGEST",
    "METHODS",
    "RESERVED",
    "PropertyKind",
    "PropertyType",
    "Real",
    "Signature",
    "name_problem",
    "widest_real",
]


#: Names that no property may have: built-in fields of ``d``, and names of arrays in
#: generated code.
RESERVED = frozenset(
    {
        "edge_count",
        "edge_is_twin",
        "edge_twin",
        "fault",
        "feature_count",
        "in_degree",
        "living_count",
        "out_degree",
        "superstep",
        "vertex_count",
        "vertex_number",
    }
)
#: Methods of namedtuples, which `d` is in kernels; no property may have their names.
METHODS = frozenset({"count", "index"})
#: Longest name of a property.
LONGEST = 100


def _words(*lines: str) -> frozenset[str]:
    return frozenset(" ".join(lines).split())


#: Names in the functions of generated modules, without numbered copies; a test collects
#: them. The users' temporaries and local variables share these scopes.
GENERATED = _words(
    "CALLED CODE Data FAST INLINE INNER K SWEEP abs active_sources ahead alive",
    "all_found all_sources allowed base batch_count batch_end batch_first batch_row",
    "batch_start bit bits_before block_count block_end block_last block_level",
    "block_rows block_start block_sums block_tiles bool bool_ boolean box_float32",
    "box_float64 box_int32 box_int64 box_source changed_edges kept passed_edges stays",
    "changed_sources cholesky chunk chunks column combined contributed contribution",
    "contribution_bool contribution_int32 contribution_int64 contribution_real",
    "contribution_seen contribution_seen_bool contribution_seen_int32",
    "contribution_seen_int64 contribution_seen_real contribution_source count cpu cuda",
    "d data device_function done done_bits due due_bits due_count e edge edge_is_twin",
    "edge_lane edge_passed edge_share edge_state edge_twin element f f_first fault",
    "first_edge first_place first_row first_vertex first_word flags float float32",
    "float64 guarded half hit hub_parts part_first part_last is_reached some_due",
    "joined joined_column joined_count joined_end joined_entry joined_first",
    "joined_last joined_met joined_part joined_parts joined_place joined_row",
    "joined_sum hub_degree hubs i in_offsets in_round in_sources incident_edges",
    "in_run_ends in_run_ids in_run_starts in_run_stops incident_run_ends",
    "incident_run_ids incident_run_starts incident_run_stops out_run_ends out_run_ids",
    "out_run_starts out_run_stops incident_neighbors incident_offsets index inside",
    "inside_edge int int32 int64 is_due is_patched is_source is_swept is_target",
    "is_wanted j kernel key lane last_row last_word linalg linalg_thread listed live",
    "marks math max member met min moved namedtuple njit np nth numba numbers",
    "out_edges out_offsets out_targets own_start own_u own_v part_stop partials passed",
    "passed_count patch pending place position range reduced result retreated",
    "round_begin rounds row row_begin row_bits row_end row_hop row_last row_length",
    "row_places rows runs_edge scaled_row scratch second_edge segments share_begins",
    "share_count share_edges share_first share_last share_rows chunk_stride far_lists",
    "far_side first_chunk is_met is_near leaf_count lists met_count out_degree",
    "edge_count queues step_number source source_count sources spreads staged_column",
    "staged_row stale start step stop stopped_count stride sweep swept swept_words",
    "taken_source target targets thread tile tile_box tile_column tile_columns",
    "tile_count tile_like tile_place tile_row tile_rows tile_scale tile_share tiles",
    "turn u uint32 uint64 uint8 v value vectors vertex_blocks vertex_count vertex_end",
    "vertex_lane waits warp warp_count whole whole_round whole_rounds window",
    "window_end windows word work writer",
)

#: Further names in loops over supersteps, which contain no code of users.
LOOPS = _words(
    "counts delta edges ends far far_count first first_key first_word is_active key",
    "limit limits meets most most_edges most_work now number other queue sign sizes",
    "some stays",
)

#: Further names in kernels of exclusive functions.
EXCLUSIVE = _words(
    "arrived at before begun below conflicts deferred edge_order failed far_u far_v",
    "first got has_turns held is_first is_late is_next last leading left locks lower",
    "meets near_u near_v next_u next_v one order_sources order_targets other own polls",
    "slot some_run source_last source_turns stalled target_turns task tasks tried",
    "tries turn_counts turn_u turn_v turns upper vertex wants warp_number warps whole",
)

#: Further names in kernels of triangle functions. Of the user's names, these kernels
#: contain only that of the function.
TRIANGLES = _words(
    "active all_active before begin below bits both_active both_edges both_offsets",
    "both_orders degree_order e_uv e_uw e_vw earlier edge end far far_end first",
    "first_lower first_row found group high is_active last last_lower longest low",
    "lower lower_offsets lower_orders lower_positions middle mine near near_end one",
    "order_vertex other outside own place_count some_active swaps takes third",
    "to_high to_low twin two upper_edges upper_offsets upper_orders w",
)


def name_problem(name: object) -> str | None:
    """Return the reason why `name` cannot be the name of a property, or None.

    Parameters
    ----------
    name : object
        The name, of any type.
    """
    if not isinstance(name, str):
        return "is not a string"
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
        return "is not an ASCII identifier"
    if name.startswith("_"):
        return "starts with an underscore"
    if name.endswith("_next"):
        return "ends in _next, which names the other buffer of an iterated property"
    if name in RESERVED or name in METHODS:
        return "is reserved"
    if len(name) > LONGEST:
        return f"is longer than {LONGEST} characters"
    return None


class Real(StrEnum):
    """A type of real numbers; as text, its name in NumPy and in kernels."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"

    def __repr__(self) -> str:
        return repr(self.value)

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return np.dtype(self.value).itemsize

    def is_wider(self, dtype: str) -> bool:
        """Return whether a number of `dtype` is a narrower real one."""
        return dtype in set(Real) and Real(dtype).itemsize < self.itemsize


class PropertyKind(Enum):
    """The owner of the entries of a property.

    A VECTOR, of shape (K,) or (K, K), and a SCALAR belong to no vertex or edge.
    """

    VERTEX = "vertex"
    EDGE = "edge"
    VECTOR = "vector"
    SCALAR = "scalar"

    # Hashing by identity needs no Python call: each call of a foldmap looks up types.
    __hash__ = object.__hash__


class PropertyType(NamedTuple):
    """Type of one property.

    Attributes
    ----------
    kind : PropertyKind
        The owner of its entries.
    dtype : str
        NumPy name of its storage type. Scalars: ``"bool"``, ``"int64"`` or ``"real"``
        (the foldmap's type of real numbers).
    item_shape : tuple of int
        Shape of one entry: ``()``, ``(K,)`` or ``(K, K)``; the whole shape of a vector
        or matrix that belongs to no vertex.
    iterated : bool
        Whether it has a next buffer, ``name_next``.
    shared : bool
        Edge properties of undirected graphs: one row for both directions, so that no
        function may write it.
    computed_as : str or None
        NumPy name of its arithmetic type, if that is another one (`arithmetic`).
    column : str
        The name of the graph's column that it refers to, in every version; "" for
        values of a State.
    """

    kind: PropertyKind
    dtype: str
    item_shape: tuple[int, ...] = ()
    iterated: bool = False
    shared: bool = False
    computed_as: str | None = None
    column: str = ""

    @property
    def arithmetic(self) -> str:
        """The type in which functions compute with its values."""
        return self.computed_as or self.dtype

    @property
    def is_real(self) -> bool:
        """Whether functions compute real numbers with it."""
        return self.arithmetic == "real" or np.dtype(self.arithmetic).kind == "f"

    def require_one_type(self, name: str) -> None:
        """Refuse a storage type that differs from the arithmetic type.

        Raises
        ------
        StateError
            If they differ: kernels of no target convert at loads and stores yet.
        """
        if self.arithmetic != self.dtype:
            raise StateError(
                "a property is stored in the type that functions compute in",
                where=f"property {name!r}",
                got=f"stored as {self.dtype}, computed as {self.arithmetic}",
                expected="one type",
                fix=f"store it as {self.arithmetic}",
            )

    def describe(self) -> str:
        """Return, e.g., ``vertex float32 (V, 8), iterated``."""
        first = {PropertyKind.VERTEX: ("V",), PropertyKind.EDGE: ("E",)}.get(
            self.kind, ()
        )
        shape = (*first, *map(str, self.item_shape))
        inside = ", ".join(shape) + ("," if len(shape) == 1 else "")
        shown = f" ({inside})" if shape else ""
        is_matrix = self.kind is PropertyKind.VECTOR and len(self.item_shape) == 2
        return (
            f"{'matrix' if is_matrix else self.kind.value} "
            f"{self.dtype}{shown}{', iterated' if self.iterated else ''}"
        )


#: Property name -> type.
Signature = dict[str, PropertyType]


def widest_real(types: Iterable[PropertyType]) -> Real:
    """Return the widest arithmetic type of real numbers; float32 if there is none."""
    found = [Real(t.arithmetic) for t in types if t.arithmetic in set(Real)]
    return max(found, key=lambda real: real.itemsize, default=Real.FLOAT32)
