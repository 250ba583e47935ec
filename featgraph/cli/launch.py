"""``featgraph launch``: a script on several ranks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from featgraph.base.errors import ArgumentError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_launch", "launch"]


def add_launch(commands: Commands) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "launch",
        help="run a script on several ranks",
        description="Run a script on several ranks, which it joins by "
        "fg.distributed.init(). When one fails the others are told which, and end.",
    )
    parser.add_argument("-n", type=int, metavar="N", help="how many ranks")
    parser.add_argument(
        "--hosts",
        type=Path,
        metavar="FILE",
        help="lines `HOST RANKS`; by default all ranks run here",
    )
    parser.add_argument(
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="start all ranks again when one fails, so often at most (default: 0)",
    )
    parser.add_argument(
        "--gpus",
        action="store_true",
        help="give each rank a GPU of its own, or refuse; by default ranks share "
        "those that there are",
    )
    parser.add_argument(
        "--logs",
        type=Path,
        metavar="FOLDER",
        help="write the output of ranks there, a file each",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=5.0,
        metavar="S",
        help="seconds that ranks have to end when one has failed (default: 5)",
    )
    parser.add_argument(
        "--ssh",
        default=None,
        metavar="COMMAND",
        help="what runs a command on another host; {host} is its name "
        "(default: ssh -o BatchMode=yes {host})",
    )
    parser.add_argument(
        "--python", default=sys.executable, help="Python on other hosts, and of ranks"
    )
    parser.add_argument("script", help="a .py file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...")
    parser.set_defaults(command=launch)


def launch(options: argparse.Namespace) -> int:
    """Run the script; return the exit status."""
    from featgraph.ranks.launching.launcher import (
        SSH,
        Host,
        Launch,
        command_on,
        read_hosts,
        run,
    )

    for name, least in (("n", 1), ("restarts", 0), ("grace", 0)):
        value = getattr(options, name)
        if value is not None and not least <= value < 1e6:
            flag = "-n" if name == "n" else f"--{name}"
            raise ArgumentError(
                f"{flag} is not a number that helps",
                got=value,
                expected=f"{least} or more",
            )
    if options.hosts is not None:
        hosts = read_hosts(options.hosts)
        total = sum(host.ranks for host in hosts)
        if options.n not in (None, total):
            raise ArgumentError(
                "-n and the hosts file differ",
                where=str(options.hosts),
                got=f"-n {options.n}, and {total} ranks of {len(hosts)} hosts",
                fix="leave -n out, or change the file",
            )
    elif options.n is None:
        raise ArgumentError("how many ranks?", fix="-n N, or --hosts FILE")
    else:
        hosts = [Host("localhost", options.n)]
    script = Path(options.script)
    if all(host.is_here for host in hosts) and not script.is_file():
        raise ArgumentError(
            "there is no such script",
            got=options.script,
            expected="a .py file",
            fix="options of featgraph launch stand before it, its own behind it",
        )
    ssh = SSH if options.ssh is None else options.ssh
    return run(
        Launch(
            [options.python, options.script, *options.arguments],
            hosts,
            [command_on(host, ssh, options.python) for host in hosts],
            options.restarts,
            options.grace,
            "own" if options.gpus else "auto",
            options.logs,
        )
    )
