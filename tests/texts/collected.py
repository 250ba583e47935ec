"""``pytest --texts FILE``: the digests of all modules that a run generates.

A line is a sha256, the target and the user functions of a module; lines are sorted, so
that ``diff`` compares the files of two commits. Subprocesses of tests are not seen.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import pytest

from featgraph.fold.printing.module import KernelSource
from tests.texts.paths import normalised

__all__ = ["Collected"]

#: Where a function stands outside of the repository, before its line: temporary files,
#: and text without a file, which tests number.
OUTSIDE = re.compile(r"(?m)(?<=# )(/\S*/(?=\S+:\d+$)|<.*>(?=:\d+$))")


class Collected:
    """Notes each module as it is printed; workers of xdist hand theirs over."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.lines: set[str] = set()
        made = KernelSource.__init__

        def noted(source: KernelSource, *args: Any, **kwargs: Any) -> None:
            made(source, *args, **kwargs)
            self.lines.add(_line(source))

        # Where it is printed is imported by name from many places; this is one.
        patch = pytest.MonkeyPatch()
        patch.setattr(KernelSource, "__init__", noted)
        config.add_cleanup(patch.undo)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.lines |= set(getattr(node, "workeroutput", {}).get("texts", ()))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        lines = sorted(self.lines)
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["texts"] = lines
        else:
            text = "".join(f"{line}\n" for line in lines)
            self.config.option.texts.write_text(text, encoding="utf-8")


def _line(source: KernelSource) -> str:
    text = OUTSIDE.sub("", normalised(source.text))
    names = "+".join(f.name for f in source.plan.analysis.functions)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{digest} {source.plan.target} {names}"
