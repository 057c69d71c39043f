"""Two versions of aj on one machine: handshake, drain, replacement; the queue is kept, or one line says what to do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aj.shared.runtime import held
from tests.trust.world import TrustWorld, until

PROJECT = Path(__file__).parents[2]
DOUBLE = PROJECT / "tests" / "e2e" / "double"
Make = Callable[..., TrustWorld]


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two installations: the present one, and a later one with another protocol and one more migration of the queue."""
    found = {}
    for version in ("1.0", "2.0"):
        folder = found[version] = tmp_path_factory.mktemp("version")
        for name in ("aj", "backends", "schemas"):
            shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for part in DOUBLE.iterdir():
            if part.name != "__pycache__":
                (shutil.copytree if part.is_dir() else shutil.copy)(part, folder / part.name)
        edit(folder / "aj" / "__init__.py", r'__version__ = "0.1.0"', f'__version__ = "{version}"')
    later = found["2.0"] / "aj"
    edit(later / "shared" / "fingerprint.py", "\nPROTOCOL = 1", "\nPROTOCOL = 2")
    edit(later / "shared" / "fingerprint.py", "OLDEST_PROTOCOL = 1", "OLDEST_PROTOCOL = 2")
    edit(
        later / "server" / "queue.py",
        '\n)\n"""Script n',
        '\n    "ALTER TABLE entries ADD COLUMN later TEXT",\n)\n"""Script n',
    )
    return found


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new))


def aj(world: TrustWorld, folder: Path, *argv: str, **env: str) -> tuple[int, dict[str, Any], str]:
    words = [sys.executable, "-P", "-m", "aj", "--json", *argv]
    done = subprocess.run(
        words, cwd=world.project, env={**world.env, "PYTHONPATH": str(folder), **env}, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.parametrize(("first", "then"), [("1.0", "2.0"), ("2.0", "1.0")])
def test_D06_an_idle_daemon_of_another_version_is_replaced(
    trust: Make, versions: dict[str, Path], first: str, then: str
) -> None:
    world = trust()
    assert aj(world, versions[first], "daemon", "start")[1]["version"] == first
    before = world.pid()
    assert aj(world, versions[then], "queue", "list")[:2] == (0, {"kind": "queue", "entries": []})
    assert aj(world, versions[then], "daemon", "status")[1]["version"] == then
    assert world.pid() != before


def test_D06_a_busy_daemon_drains_is_replaced_and_its_queue_is_kept(trust: Make, versions: dict[str, Path]) -> None:
    world = trust()
    old, new = versions["1.0"], versions["2.0"]
    aj(world, old, "daemon", "start", AJ_DEBUG="1", AJ_DEBUG_STOP_AT="step submit")
    daemon = world.pid()
    tickets = []
    for turn in range(3):
        code, document, _ = aj(world, old, "run", "-t", "double", "-p", "1", "--queue", "true", AJ_NAME=f"turn{turn}")
        assert (code, document["status"]) == (0, "queued")
        tickets.append(document["ticket"])
        if not turn:
            until(lambda: state(daemon) == "T")
            os.kill(daemon, signal.SIGCONT)
    for ticket in tickets:
        code, entry, said = aj(world, new, "queue", "wait", "--timeout", "60", ticket)
        assert (code, entry["state"]) == (0, "done"), said
    assert aj(world, new, "daemon", "status")[1]["version"] == "2.0"
    assert len(world.jobs("turn")) == 3
    code, document, _ = aj(world, old, "queue", "list")
    assert code == 1 and document["error"]["type"] == "StoreError"
    assert "version 2, this aj knows 1" in document["error"]["message"] and "newer aj" in document["error"]["hint"]
    assert len(aj(world, new, "queue", "list")[1]["entries"]) == 3


def test_D06_who_does_not_start_daemons_is_told_of_another_protocol(trust: Make, versions: dict[str, Path]) -> None:
    world = trust()
    aj(world, versions["2.0"], "daemon", "start")
    script = (
        "import os; from pathlib import Path; from aj.sdk import connect; from aj.shared.errors import AjError\n"
        "try: connect(Path('x').absolute(), env=os.environ, start=False)\n"
        "except AjError as error: print(type(error).__name__, error.message, error.hint)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env={**world.env, "PYTHONPATH": str(versions["1.0"])},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("DaemonError ") and "protocol" in done.stdout and "aj daemon restart" in done.stdout
    aj(world, versions["2.0"], "daemon", "stop")
    until(lambda: not held(world.runtime.lock))


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
