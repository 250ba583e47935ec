"""Logs of compute-sanitizer, and the verdict on them.

A tool that crashes, that never met a kernel or that was killed leaves no summary. That
is not the same as no errors.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

_PREFIX = "========="
_ERRORS = re.compile(r"ERROR SUMMARY: (\d+) errors?\s*$")
_HAZARDS = re.compile(
    r"RACECHECK SUMMARY: (\d+) hazards? displayed "
    r"\((\d+) errors?, (\d+) warnings?\)"
)
#: Messages of the tool about itself, not about a kernel.
_BROKEN = re.compile(
    r"^(Internal Sanitizer Error|Fatal|Error: (?!Race reported|Potential )"
    r"|.*\bInternal error\b|Target application terminated|Device not supported"
    r"|.*Unsupported)",
    re.IGNORECASE,
)
#: Numbers, addresses and names differ from kernel to kernel: not part of the kind.
_PARTICULAR = re.compile(r"0x[0-9a-fA-F]+|\(\d+, ?\d+, ?\d+\)")


@dataclass(frozen=True)
class Report:
    """A log of one process.

    Attributes
    ----------
    errors : int or None
        Of its summary, with hazards and their warnings; None without a summary.
    kinds : dict
        First line of an error -> how many were printed.
    kernels : dict
        Where they happened -> how many.
    problems : tuple of str
        Messages of the tool about itself.
    """

    errors: int | None
    kinds: dict[str, int] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def parse_log(text: str) -> Report:
    """Return the report of a log."""
    errors: int | None = None
    kinds: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    problems: list[str] = []
    begins = True
    for line in text.splitlines():
        if not line.startswith(_PREFIX):
            continue
        text = line[len(_PREFIX) :]
        message = text.strip()
        found, hazards = _ERRORS.search(message), _HAZARDS.search(message)
        if hazards:
            errors = (errors or 0) + int(hazards[1])
        elif found:
            errors = (errors or 0) + int(found[1])
        elif "SUMMARY:" in message:
            pass  # of leaks, or how many were not printed
        elif _BROKEN.search(message):
            problems.append(message)
        elif not message:
            begins = True
            continue
        elif message != "COMPUTE-SANITIZER" and begins and not text.startswith("  "):
            kinds[_PARTICULAR.sub("...", message)] += 1
        if not begins and (place := re.match(r"at (\S+?)(\(|\+| in )", message)):
            kernels[place[1]] += 1
        begins = message == "COMPUTE-SANITIZER"
    return Report(errors, dict(kinds), dict(kernels), tuple(problems))


def judge(report: Report, exit_code: int | None, launches: int) -> str:
    """Return "clean", "found", or why a run is worthless.

    Parameters
    ----------
    report : Report
        Of the process's log.
    exit_code : int or None
        Of the tool; None if it was killed.
    launches : int
        Kernels that the process has launched by its own count.
    """
    if exit_code is None:
        return "timeout"
    if report.errors is None:
        return "no summary"
    if report.problems:
        return "crash"
    if report.errors:
        return "found"
    if exit_code:
        return "crash"
    return "clean" if launches > 0 else "no kernels"
