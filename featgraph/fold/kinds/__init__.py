"""Kinds of phases: the interface (`base`), vertex phases, and the list of all kinds.

`table.KINDS` lists the kinds. A new kind is a `PhaseKind` and an entry in that list.
"""
