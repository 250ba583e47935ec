"""Write the texts of all programs in all plans; compare those of two commits.

``python -m tests.texts write FILE.zip`` in a worktree of each, then
``python -m tests.texts compare OLD.zip NEW.zip --trees``. Exit status 1 where kernels
differ. ``python -m zipfile -e FILE.zip FOLDER`` unpacks texts, to look at.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import zipfile
from functools import partial
from pathlib import Path

from tests.texts.compare import compare


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.texts")
    commands = parser.add_subparsers(required=True)
    write = commands.add_parser("write", help="print modules into a zip file")
    write.set_defaults(command=_write)
    write.add_argument("file", type=Path)
    write.add_argument(
        "--only", nargs="+", default=[""], metavar="PART", help="of names of programs"
    )
    write.add_argument("--plans", default="", metavar="PART", help="of names of plans")
    write.add_argument("--phase", help="plans with one: vertex, edge, push, ...")
    write.add_argument(
        "--drawn", action="store_true", help="the plans that tests/golden holds"
    )
    write.add_argument("--jobs", type=int, default=1)
    against = commands.add_parser("compare", help="compare two such files")
    against.set_defaults(command=_compare)
    against.add_argument("old", type=Path)
    against.add_argument("new", type=Path)
    against.add_argument(
        "--trees", action="store_true", help="comments, brackets, casts do not count"
    )
    against.add_argument("--show", type=int, default=3, help="so many diffs")
    return parser.parse_args()


def _write(options: argparse.Namespace) -> int:
    from tests.texts.plans import cases_by_name

    names = [n for n in cases_by_name() if any(part in n for part in options.only)]
    chosen = options.plans, options.phase, options.drawn
    # Forked, workers have the programs already; a name is all that is sent to one.
    count = 0
    with (
        multiprocessing.get_context("fork").Pool(options.jobs) as pool,
        zipfile.ZipFile(options.file, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name, made in pool.imap(partial(_texts_of, chosen), names):
            count += len(made)
            for plan, text in made:
                archive.writestr(f"{name}/{plan}.py", text)
    print(f"{count} plans of {len(names)} programs and widths")
    return 0


def _texts_of(
    chosen: tuple[str, str | None, bool], name: str
) -> tuple[str, list[tuple[str, str]]]:
    from tests.conftest import small_graphs_as_large
    from tests.texts.plans import VARIANTS, cases_by_name, drawn, texts

    plans, phase, is_drawn = chosen
    case = cases_by_name()[name]
    some = [v for v in (drawn(case) if is_drawn else VARIANTS) if plans in v.name]
    with small_graphs_as_large():
        return name, list(texts(case, some, phase))


def _compare(options: argparse.Namespace) -> int:
    found = compare(options.old, options.new, trees=options.trees, show=options.show)
    for diff in found.diffs:
        print(diff, end="\n\n")
    for category, count in found.counts.most_common():
        print(f"{count:7} {category}")
    return 0 if found.is_same else 1


if __name__ == "__main__":
    options = _arguments()
    sys.exit(options.command(options))
