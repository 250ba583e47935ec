"""``featgraph data``: public data sets, fetched by name."""

from __future__ import annotations

import argparse

from featgraph.cli.data_sets import DATA_SETS, fetch_data

__all__ = ["add_data_options", "get_data"]


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="which one; by default they are listed"
    )
    parser.set_defaults(command=get_data)


def get_data(options: argparse.Namespace) -> None:
    """Fetch a data set, and print its licence and where it is; or list all.

    Raises
    ------
    FeatGraphError
        No such data set, or it cannot be fetched.
    """
    if options.name is None:
        width = max(map(len, DATA_SETS))
        for name, known in DATA_SETS.items():
            megabytes = sum(file.size for file in known.files) / 1e6
            print(f"{name:<{width}}  {megabytes:4.1f} MB  {known.title}")
        return
    folder = fetch_data(options.name)
    known = DATA_SETS[options.name]
    print(f"{known.title}\npublisher: {known.publisher}\nlicence:   {known.licence}")
    for file in known.files:
        print(folder / file.name)
