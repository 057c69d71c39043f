"""A daemon that is stopped, left alone, or whose terminal goes away; its log, and what local jobs inherit of it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aj.shared.errors import DaemonBusyError
from aj.shared.model import Event
from aj.shared.runtime import LOG_LIMIT
from tests.trust.world import TrustWorld, state_of, until

Make = Callable[..., TrustWorld]
WORD_SECONDS = 5.0


def test_a_stopped_daemon_is_spoken_of_inside_a_stream_and_waited_for(trust: Make) -> None:
    world = trust()
    world.client(AJ_DEBUG="1", AJ_DEBUG_STOP_AT="note sending")
    began = time.monotonic()
    daemon, aj = world.pid(), world.run("patient")
    until(lambda: "alive but has not answered" in aj.said())
    assert state_of(daemon) == "T" and not aj.ended()
    assert time.monotonic() - began < WORD_SECONDS + 2  # of which some are our own start
    os.kill(daemon, signal.SIGCONT)
    code, document = aj.wait()
    assert (code, document["status"]) == (0, "submitted") and world.pid() == daemon


def test_a_daemon_that_is_stopped_while_an_entry_is_waited_for(trust: Make) -> None:
    world = trust()
    client = world.client(AJ_DEBUG="1", AJ_DEBUG_STOP_AT="note sent")
    daemon, aj = world.pid(), world.run("queued", "double", "--queue")
    until(lambda: state_of(daemon) == "T")
    said: list[Event] = []
    with pytest.raises(DaemonBusyError, match="alive"):
        client.ticket("queued")
    os.kill(daemon, signal.SIGCONT)
    aj.wait()
    assert client.wait(client.queue()[0]["id"], 60, said.append)["state"] == "done"


def test_its_log_is_bounded_while_it_runs(trust: Make) -> None:
    world = trust()
    client = world.client()
    with world.runtime.log.open("ab") as log:
        log.write(b"x" * (LOG_LIMIT + 1))
    until(lambda: world.runtime.log.stat().st_size <= LOG_LIMIT)
    with world.runtime.log.open("ab") as log:
        log.write(b"y" * (LOG_LIMIT + 1))
    until(lambda: world.runtime.log.stat().st_size <= LOG_LIMIT)
    client.shutdown()
    assert "has ended" in world.runtime.log.read_text()
    sizes = {path.name: path.stat().st_size for path in world.runtime.folder.glob("daemon.log*")}
    assert set(sizes) == {"daemon.log", "daemon.log.1"} and sum(sizes.values()) < 2.2 * LOG_LIMIT
    assert {path.stat().st_mode & 0o777 for path in world.runtime.folder.glob("daemon.log*")} == {0o600}


def test_it_survives_the_terminal_that_it_was_started_from(trust: Make) -> None:
    """A client in a session of its own on a terminal, which then hangs up: as when its window is closed."""
    world = trust()
    script = (
        "import os\nfrom aj.client.main import main\nmain(['daemon', 'start']); print('up', flush=True); os.read(0, 1)"
    )
    leader, follower = pty.openpty()
    shell = subprocess.Popen(
        [sys.executable, "-c", script],
        env=world.env,
        cwd=world.project,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    said = b""
    while b"up" not in said:
        said += os.read(leader, 1000)
    daemon = world.pid()
    assert os.getsid(daemon) != os.getsid(shell.pid)
    # One may be closed while they are looked at.
    assert not any(path.resolve().is_relative_to("/dev/pts") for path in Path(f"/proc/{daemon}/fd").iterdir())
    os.close(leader)
    shell.kill()
    shell.wait()
    for number in (signal.SIGHUP, signal.SIGHUP):
        os.kill(daemon, number)
    assert world.pid() == daemon and world.client().info()["pid"] in (daemon, world.pid())


def test_its_umask_does_not_reach_local_jobs(trust: Make) -> None:
    world = trust()
    client = world.client()
    made = world.ran / "made"
    code, document = world.aj("run", "-t", "local", "-p", "1", "sh", "-c", f"umask > {made}; mkdir {made}.d").wait()
    assert (code, document["job_status"]) == (0, "Completed"), document
    assert made.read_text() == "0022\n"
    assert (made.stat().st_mode & 0o777, Path(f"{made}.d").stat().st_mode & 0o777) == (0o644, 0o755)
    assert client.info()["outstanding"] == 0


def test_the_switch_that_stops_it_for_tests_is_off_in_normal_use(trust: Make) -> None:
    world = trust()
    world.client(AJ_DEBUG_STOP_AT="accepted", AJ_LOG_LEVEL="DEBUG")
    assert world.run("normal").wait()[0] == 0
