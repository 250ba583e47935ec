"""Processes that a launcher starts: how they end, and that none is left."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import featgraph as fg
from featgraph.cli import main
from featgraph.ranks.launching import agent
from featgraph.ranks.launching.launcher import Host, Launch, command_on, read_hosts, run

#: A rank that says what it was given, in a file of its own.
PRINTS = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
         "MASTER_ADDR", "MASTER_PORT", "FEATGRAPH_RESTART_COUNT", "FEATGRAPH_HOST",
         "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
print(json.dumps({name: os.environ.get(name) for name in names}))
print("on stderr", sys.argv[1:], file=sys.stderr)
"""
#: A rank that waits, with a child that has left its session; both say who they are.
WAITS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-ISc", "import time; time.sleep(600)"],
                         start_new_session=True)
open(f"{sys.argv[1]}/{os.environ['RANK']}", "w").write(f"{os.getpid()} {child.pid}\\n")
time.sleep(600)
"""
FAILS = (
    WAITS.removesuffix("time.sleep(600)\n")
    + """
if os.environ["RANK"] == "1":
    while len(os.listdir(sys.argv[1])) < 3:
        os.sched_yield()
    os._exit(9)
time.sleep(600)
"""
)


def launch(
    tmp_path: Path,
    code: str,
    *arguments: str,
    hosts: Sequence[Host] = (),
    **options: Any,
) -> int:
    script = tmp_path / "script.py"
    script.write_text(code)
    given = list(hosts) or [Host("localhost", 3)]
    template = "env STANDS_FOR={host} sh -c"
    command = [sys.executable, "-IS", str(script), *arguments]
    agents = [command_on(host, template, sys.executable) for host in given]
    return run(Launch(command, given, agents, **options))


def are_gone(folder: Path) -> bool:
    """Whether all processes that were noted have ended."""
    numbers = [int(n) for path in folder.iterdir() for n in path.read_text().split()]
    assert numbers
    return not any(Path(f"/proc/{number}").exists() for number in numbers)


def test_what_ranks_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert launch(tmp_path, PRINTS, "--its", "own") == 0
    shown = capsys.readouterr()
    lines = sorted(shown.out.splitlines())
    found = [json.loads(line.removeprefix(f"[{r}] ")) for r, line in enumerate(lines)]
    for rank, variables in enumerate(found):
        assert 0 < int(variables.pop("MASTER_PORT")) < 1 << 16
        assert int(variables.pop("OMP_NUM_THREADS")) >= 1
        assert variables == {
            "RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1",
            "FEATGRAPH_RESTART_COUNT": "0", "FEATGRAPH_HOST": "localhost",
            "CUDA_VISIBLE_DEVICES": ["4", "GPU-7", "4"][rank],
        }  # fmt: skip
    assert sorted(shown.err.splitlines()) == [
        f"[{rank}] on stderr ['--its', 'own']" for rank in range(3)
    ]


def test_ranks_of_several_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    hosts = [Host("127.0.1.1", 1), Host("127.0.1.2", 2)]
    assert launch(tmp_path, PRINTS, hosts=hosts, logs=tmp_path / "logs") == 0
    assert capfd.readouterr().err == ""
    files = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert files.keys() == {f"0-rank{r}.{n}" for r in range(3) for n in ("out", "err")}
    found = [json.loads(files[f"0-rank{rank}.out"]) for rank in range(3)]
    places = [(t["FEATGRAPH_HOST"], t["GROUP_RANK"], t["LOCAL_RANK"]) for t in found]
    assert places == [("127.0.1.1", "0", "0"), ("127.0.1.2", "1", "0"),
                      ("127.0.1.2", "1", "1")]  # fmt: skip
    assert {variables["MASTER_ADDR"] for variables in found} == {"127.0.1.1"}
    assert {variables["OMP_NUM_THREADS"] for variables in found} == {"7"}


def test_all_end_when_one_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = tmp_path / "noted"
    noted.mkdir()
    assert launch(tmp_path, FAILS, str(noted), grace=0.0) == 1
    assert are_gone(noted)
    assert "rank 1 on localhost: has ended with status 9" in capsys.readouterr().err


def test_ranks_are_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import os; os._exit(int(os.environ['FEATGRAPH_RESTART_COUNT']) < 2)"
    assert launch(tmp_path, code, restarts=1) == 1
    assert "(1 of 1)" in capsys.readouterr().err
    assert launch(tmp_path, code, restarts=2) == 0


#: A rank that fails, and has things to do before it ends; it says whether it was told
#: of a loss. What it offers second comes back when the launcher has done what it does.
CLEANS = """
import json, os, signal, socket, sys
talk = socket.socket(fileno=int(os.environ["FEATGRAPH_LAUNCHER"].split(",")[0]))
lines, heard = talk.makefile("r"), []
def say(**told):
    talk.sendall(json.dumps(told).encode() + b"\\n")
def echo(name):
    say(**{"is": "offer", "name": name, "text": ""})
    while (told := json.loads(next(lines))).get("name") != name:
        heard.append(told["is"])
def end(*_):
    say(**{"is": "failed", "text": "ValueError"})
    echo("first"), echo("second")
    open(f"{sys.argv[1]}/{os.environ['RANK']}", "w").write(f"{'lost' in heard}\\n")
    os._exit(1)
if sys.argv[2] != "Ctrl-C":
    end()
signal.signal(signal.SIGINT, end)
os.kill(int(open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1]), 2)
while True:
    signal.pause()
"""


@pytest.mark.parametrize("cause", ["an error", "Ctrl-C"])
def test_a_rank_that_reports_its_failure_ends_by_itself(
    tmp_path: Path, cause: str
) -> None:
    (tmp_path / "noted").mkdir()
    one = [Host("localhost", 1)]
    status = launch(tmp_path, CLEANS, str(tmp_path / "noted"), cause, hosts=one)
    assert status == (1 if cause == "an error" else 130)
    assert texts(tmp_path / "noted") == [f"{cause == 'an error'}\n"]


def test_ranks_are_not_ended_as_those_before_them() -> None:
    commands, reports = os.pipe(), os.pipe()
    one = agent.Agent(commands[0], reports[1], start=lambda *_: (0, {}))
    one._end()  # it comes when all have ended
    assert one._kill_at is None
    for end in (*commands, *reports):
        os.close(end)


def test_more_ranks_than_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(fg.DistributedError, match="more ranks than GPUs") as raised:
        launch(tmp_path, PRINTS, gpus="own")
    for part in ("3 ranks, and 2 GPUs (CUDA_VISIBLE_DEVICES=0,1)", "no --gpus"):
        assert part in str(raised.value)
    assert launch(tmp_path, PRINTS, hosts=[Host("localhost", 2)], gpus="own") == 0


def test_a_host_that_cannot_be_reached(capsys: pytest.CaptureFixture[str]) -> None:
    host = Host("node7", 1)
    with pytest.raises(fg.DistributedError, match="nothing can be started on node7"):
        run(Launch(["true"], [host], [["/no/such/ssh"]]))
    assert run(Launch(["true"], [host], [["false"]], restarts=3)) == 1
    assert "rank 0 on node7: its host cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_none_is_left_behind_a_signal(tmp_path: Path, number: int) -> None:
    (tmp_path / "noted").mkdir()
    (tmp_path / "waits.py").write_text(WAITS)
    # Of another session than this one, as a terminal has it.
    started = subprocess.Popen(
        [sys.executable, "-m", "featgraph", "launch", "-n", "2", "--python",
         sys.executable, str(tmp_path / "waits.py"), str(tmp_path / "noted")],
        start_new_session=True, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(lambda: len(texts(tmp_path / "noted")) == 2)
    started.send_signal(number)
    _, shown = started.communicate(timeout=20)
    expected = -number if number == signal.SIGKILL else 128 + number
    assert started.returncode == expected, shown
    wait_for(lambda: are_gone(tmp_path / "noted"))


def texts(folder: Path) -> list[str]:
    return [t for path in folder.iterdir() if (t := path.read_text()).endswith("\n")]


def wait_for(condition: Any) -> None:
    """Return when something is true; other processes are at it."""
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        os.sched_yield()


def test_a_killed_agent_takes_its_ranks_along(tmp_path: Path) -> None:
    (tmp_path / "noted").mkdir()
    (tmp_path / "waits.py").write_text(WAITS)
    rank = {"rank": 0, "environment": {"RANK": "0"}}
    command = [
        sys.executable,
        "-IS",
        str(tmp_path / "waits.py"),
        str(tmp_path / "noted"),
    ]
    start = {"do": "start", "command": command, "folder": "/", "ranks": [rank]}
    started = subprocess.Popen(
        command_on(Host("localhost", 1), "", ""),
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert started.stdin is not None
    started.stdin.write(json.dumps(start | {"gpus": "auto"}) + "\n")
    started.stdin.flush()
    wait_for(lambda: len(texts(tmp_path / "noted")) == 1)
    started.kill()
    started.wait()
    started.stdin.close()
    process, child = map(int, (tmp_path / "noted" / "0").read_text().split())
    wait_for(lambda: not Path(f"/proc/{process}").exists())
    os.kill(child, signal.SIGKILL)  # it has a session of its own: it cannot be found


def test_what_is_printed_without_an_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import sys; sys.stdout.buffer.write(b'x' * 200_000 + b'\\n\\xff end')"
    assert launch(tmp_path, code, hosts=[Host("localhost", 1)]) == 0
    shown = capsys.readouterr().out
    assert shown.replace("\n", "") == "x" * 200_000 + "\ufffd end"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "no hosts"),
        ("# none\n", "no hosts"),
        ("a 1\n\nb\n", ":3: not a host"),
        ("a 0\n", ":1: not a host"),
        ("a -1\n", ":1: not a host"),
        ("a 1 2\n", ":1: not a host"),
        ("-oProxyCommand=x 1\n", ":1: not a host"),
        ("a 1\na 2\n", ":2: a host occurs twice"),
        ("localhost 1\na 2\n", ": other hosts cannot reach"),
    ],
)
def test_what_is_no_hosts_file(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(fg.FileFormatError) as raised:
        read_hosts(path)
    assert part in str(raised.value)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(fg.FileFormatError, match="not a text file"):
        read_hosts(path)
    path.write_text("#" * (1 << 24) + "\n")
    with pytest.raises(fg.FileFormatError, match="more than 16777216"):
        read_hosts(path)
    path.unlink()
    os.mkfifo(path)  # without a writer, which none is waited for
    for place in (path, tmp_path):
        with pytest.raises(fg.FileFormatError, match="not a regular file"):
            read_hosts(place)


def test_hosts_and_their_commands(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("node1 4  # the first\nlocalhost 2\n")
    assert read_hosts(path) == [Host("node1", 4), Host("localhost", 2)]
    found = command_on(Host("node1", 4), "ssh -p 22 {host}", "/opt/my python")
    assert found[:4] == ["ssh", "-p", "22", "node1"]
    assert shlex.split(found[4])[:2] == ["/opt/my python", "-c"]
    assert command_on(Host("localhost", 2), "ssh {host}", "")[0] == sys.executable
    with pytest.raises(fg.ArgumentError, match="--ssh"):
        command_on(Host("node1", 4), "ssh 'x", "python")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["script.py"], "how many ranks?"),
        (["-n", "0", "script.py"], "-n is not a number"),
        (["-n", "2", "--restarts", "-1", "script.py"], "--restarts is not"),
        (["-n", "2", "no.py"], "there is no such script"),
        (["--hosts", "hosts", "-n", "3", "script.py"], "-n and the hosts file differ"),
        (["--hosts", "none", "script.py"], "No such file"),
    ],
)
def test_what_cannot_be_launched(
    arguments: list[str],
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("")
    Path("hosts").write_text("node1 2\n")
    assert main(["launch", *arguments]) == 2
    assert part in capsys.readouterr().err
