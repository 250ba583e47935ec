"""Programs that cover the programming model, for the agreement tests."""

from __future__ import annotations

from tests.programs import (
    alongs,
    collectives,
    combines,
    dropped,
    gathered,
    learning,
    loose,
    messages,
    returns,
    traversal,
    twins,
)
from tests.programs.common import SMALL, WIDTHS, BankProgram

__all__ = ["BANK", "BY_NAME", "SMALL", "WIDTHS", "BankProgram"]

BANK: tuple[BankProgram, ...] = (
    *combines.PROGRAMS,
    *learning.PROGRAMS,
    *traversal.PROGRAMS,
    *collectives.PROGRAMS,
    *twins.PROGRAMS,
    *loose.PROGRAMS,
    *messages.PROGRAMS,
    *alongs.PROGRAMS,
    *gathered.PROGRAMS,
    *returns.PROGRAMS,
    *dropped.PROGRAMS,
)

BY_NAME = {program.name: program for program in BANK}
