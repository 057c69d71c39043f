"""One daemon: how it starts, who may reach it, how it leaves, and what is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aj.sdk import connect
from aj.sdk.transport import Transport
from aj.shared import fingerprint
from aj.shared.errors import (
    AjError,
    DaemonBusyError,
    DaemonError,
    DaemonNotRunningError,
    OutcomeUnknownError,
)
from aj.shared.paths import SOCKET_PATH_LIMIT
from aj.shared.runtime import Runtime, acquire, held

World = Any


def test_the_real_daemon_starts_answers_and_stops(world: World) -> None:
    client = connect(world.root, env=world.env)
    found = client.info()
    assert found["pid"] == world.pid() and found["socket"] == str(world.runtime.socket)
    assert client.queue() == [] and client.records() == [] and client.jobs() == []
    assert not world.root.exists()
    client.shutdown()
    assert not world.runtime.socket.exists()
    with pytest.raises(DaemonNotRunningError):
        connect(world.root, env=world.env, start=False)


def test_D03_twenty_cold_clients_start_one_daemon(world: World) -> None:
    script = (
        "import os, sys; from pathlib import Path; from aj.sdk import connect\n"
        "client = connect(Path(sys.argv[1]), env=os.environ); client.queue(); print(client.info()['pid'])"
    )
    argv = [sys.executable, "-c", script, str(world.root)]
    clients = [subprocess.Popen(argv, env=world.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(20)]
    answers = [client.communicate(timeout=90) for client in clients]
    assert [client.returncode for client in clients] == [0] * 20, [answer[1] for answer in answers]
    assert {answer[0] for answer in answers} == {f"{world.pid()}\n".encode()}
    assert world.runtime.log.read_text().count("serves") == 1


@pytest.mark.parametrize("length", [SOCKET_PATH_LIMIT, SOCKET_PATH_LIMIT + 1, 200])
def test_D01_long_runtime_folders_work_and_are_found_again(
    tmp_path: Path, worlds: Callable[[Path], World], length: int
) -> None:
    missing = length - len(os.fsencode(tmp_path / "run" / "aj.sock")) - 1
    if missing < 1:
        pytest.skip(f"the temporary folder is too long: {tmp_path}")
    parts = [missing] if missing < 200 else [missing // 2, missing - missing // 2 - 1]
    world = worlds(tmp_path.joinpath(*("x" * part for part in parts)))
    assert len(os.fsencode(world.runtime.folder / "aj.sock")) == length
    pid = world.client().info()["pid"]
    assert (world.runtime.socket.parent == world.runtime.folder) == (length <= SOCKET_PATH_LIMIT)
    status = world.runtime.socket.parent.lstat()
    assert stat.S_IMODE(status.st_mode) == 0o700 and status.st_uid == os.getuid()
    assert world.client(TMPDIR=str(tmp_path)).info()["pid"] == pid
    world.client().shutdown()
    assert not world.runtime.socket.exists()


def test_D02_a_pid_file_of_a_stranger_means_nothing(world: World) -> None:
    stranger = subprocess.Popen(["sleep", "1000"])
    try:
        world.runtime.folder.mkdir(mode=0o700)
        for name in ("daemon.pid", "aj.pid", "daemon.lock"):
            (world.runtime.folder / name).write_text(f"{stranger.pid}\n")
        client = world.client()
        assert client.info()["pid"] != stranger.pid
        client.shutdown(force=True)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_D04_a_leaving_daemon_removes_only_its_own_socket(world: World) -> None:
    first = world.client().info()["pid"]
    os.kill(first, signal.SIGSTOP)
    for path in (world.runtime.socket, world.runtime.lock):  # as a cleaner of the temporary folder does
        path.unlink()
    second = world.client().info()["pid"]
    assert second != first
    os.kill(first, signal.SIGCONT)
    world.until(lambda: not _runs(first))
    assert world.client().info()["pid"] == second


def test_a_daemon_whose_socket_was_removed_gives_way(world: World) -> None:
    first = world.client().info()["pid"]
    world.runtime.socket.unlink()
    assert world.client().info()["pid"] != first
    world.until(lambda: not _runs(first))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_whatever_ends_it_the_next_client_starts_another(world: World, number: int) -> None:
    first = world.client().info()["pid"]
    world.kill(number)
    assert world.runtime.socket.exists() == (number == signal.SIGKILL)
    assert world.client().info()["pid"] != first


def test_a_client_outlives_its_daemon(world: World) -> None:
    client = world.client()
    world.kill()
    assert client.queue() == []


def test_a_stopped_daemon_is_not_judged_dead(world: World) -> None:
    client = world.client()
    pid = world.pid()
    os.kill(pid, signal.SIGSTOP)
    for call in (client.queue, lambda: world.client(), lambda: world.daemon().info()):
        with pytest.raises(DaemonBusyError, match="alive"):
            call()
    os.kill(pid, signal.SIGCONT)
    assert client.info()["pid"] == pid


def test_force_ends_even_a_daemon_that_hangs(world: World) -> None:
    client = world.client()
    pid = world.pid()
    os.kill(pid, signal.SIGSTOP)
    assert client.shutdown(force=True) == {"pid": pid, "waiting_for": [], "abandoned": None, "kept": None}
    world.until(lambda: not _runs(pid))


def test_the_socket_and_all_files_are_private_whatever_the_umask(world: World) -> None:
    before = os.umask(0)
    try:
        client = world.client()
        client.submit(world.spec(), world.caller())
    finally:
        os.umask(before)
    places = [world.runtime.folder, world.root / "daemon"]
    files = [path for place in places for path in place.iterdir()] + [world.root / "record.jsonl"]
    assert {path.name: stat.S_IMODE(path.lstat().st_mode) for path in files if path.name != "lock"} == {
        "aj.sock": 0o600,
        "daemon.lock": 0o600,
        "daemon.log": 0o600,
        "queue.db": 0o600,
        "queue.db-wal": 0o600,
        "queue.db-shm": 0o600,
        "record.jsonl": 0o600,
        "waiting": 0o700,
    }
    assert [stat.S_IMODE(place.stat().st_mode) for place in places] == [0o700, 0o700]


def test_the_socket_is_private_from_its_first_instant(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from aj.server import listening

    modes: list[int] = []

    class Watched(socket.socket):
        def bind(self, address: Any) -> None:
            super().bind(address)
            modes.append(stat.S_IMODE(os.lstat(address).st_mode))

    monkeypatch.setattr(socket, "socket", Watched)
    before = os.umask(0)
    try:
        listening.bind(world.folder / "s").close()
    finally:
        os.umask(before)
    assert modes == [0o600]


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_runtime_folder_that_others_can_enter_is_refused(world: World, mode: int) -> None:
    world.runtime.folder.mkdir(mode=0o700)
    world.runtime.folder.chmod(mode)
    with pytest.raises(DaemonError, match="mode") as refused:
        world.client()
    assert refused.value.hint == f"chmod 700 '{world.runtime.folder}'"


def test_a_runtime_folder_that_is_a_link_is_refused(world: World) -> None:
    (world.folder / "elsewhere").mkdir(mode=0o700)
    world.runtime.folder.symlink_to(world.folder / "elsewhere")
    with pytest.raises(DaemonError, match="not a folder"):
        world.client()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders away")
def test_folders_of_another_user_are_refused(world: World) -> None:
    world.runtime.folder.mkdir(mode=0o700)
    os.chown(world.runtime.folder, 4711, 4711)
    with pytest.raises(DaemonError, match="belongs to user 4711"):
        world.client()
    os.chown(world.runtime.folder, 0, 0)
    client = world.client()
    world.root.mkdir()
    os.chown(world.root, 4711, 4711)
    with pytest.raises(AjError, match="belongs to user 4711"):
        client.queue()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_hung_up_on(worlds: Callable[[Path], World], request: pytest.FixtureRequest) -> None:
    """In a folder that everybody can enter; the runtime folder, opened afterwards, is no longer what keeps them out."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    request.addfinalizer(lambda: shutil.rmtree(folder))
    world = worlds(folder)
    client = world.client()
    for path in (folder, world.runtime.folder, world.runtime.socket):
        path.chmod(0o777)
    script = (
        "import os, socket, sys\nos.setgid(4711); os.setuid(4711)\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "try:\n  s.connect(sys.argv[1])\nexcept PermissionError:\n  print('unreachable'); sys.exit()\n"
        "try:\n  s.sendall(b'GET /v1/info HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'); print(s.recv(100))\n"
        "except OSError as error:\n  print(type(error).__name__)"
    )
    stranger = subprocess.run([sys.executable, "-c", script, str(world.runtime.socket)], capture_output=True, text=True)
    world.runtime.folder.chmod(0o700)
    assert stranger.stdout.strip() in ("b''", "ConnectionResetError", "BrokenPipeError"), stranger.stderr
    assert client.queue() == []
    assert "refused a connection" in world.runtime.log.read_text()


def test_it_lives_in_a_session_of_its_own_and_without_the_callers_environment(world: World) -> None:
    secrets = {"KUBECONFIG": "/of/the/caller", "AZURE_CLIENT_SECRET": "hunter22", "PYTHONPATH": "/nonsense"}
    pid = world.client(**secrets, PYTHONSTARTUP="/nonsense", AJ_DEBUG="1").info()["pid"]
    assert os.getsid(pid) not in (os.getsid(0), pid)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    environment = Path(f"/proc/{pid}/environ").read_bytes().decode()
    assert "AJ_DEBUG=1" in environment
    assert not any(word in environment for word in ("KUBECONFIG", "hunter22", "nonsense"))


def test_D06_an_idle_daemon_of_another_version_is_replaced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = world.client().info()["pid"]
    monkeypatch.setattr("aj.sdk.spawn.fingerprint", _fingerprint_until(first))
    assert world.client().info()["pid"] != first


def test_D06_a_busy_daemon_drains_first_and_the_queue_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = world.folder / "gate"
    client = world.client()
    first = client.info()["pid"]
    active = world.spec(FAKE_GATE=str(gate))
    waiting = [world.spec() for _ in range(3)]
    for spec in (active, *waiting):
        client.submit(spec, world.caller(), queue=True)
    world.until(gate.with_name("gate.reached").exists)
    said: list[str] = []
    monkeypatch.setattr("aj.sdk.spawn.fingerprint", _fingerprint_until(first))

    def emit(event: Any) -> None:
        said.append(event.detail)
        gate.touch()

    second = world.daemon().ensure(emit)
    assert second["pid"] != first
    assert active.name in said[0]
    entries = {entry["id"]: entry["state"] for entry in client.queue()}
    assert entries[active.identity.id] == "done" and len(entries) == 4
    for spec in waiting:
        assert client.wait(spec.identity.id, 30)["state"] == "done"


def test_D06_two_versions_that_replace_each_other_end_with_one_clear_error(world: World) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("aj.sdk.spawn.fingerprint", lambda: "of another version")
        with pytest.raises(DaemonError, match="keeps being replaced") as refused:
            world.client()
    assert refused.value.hint and "AJ_RUNTIME_DIR" in refused.value.hint


def test_the_fingerprint_follows_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.py").write_text("1")
    monkeypatch.setattr(fingerprint, "package", lambda: tmp_path)
    before = fingerprint.fingerprint()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "x.pyc").write_text("1")
    assert fingerprint.fingerprint() == before
    (tmp_path / "a" / "one.py").write_text("22")
    assert fingerprint.fingerprint() != before


def test_a_daemon_that_cannot_start_shows_the_end_of_its_log(world: World) -> None:
    with pytest.raises(DaemonError, match="does not start") as failed:
        world.client(AJ_LOG_LEVEL="NONSENSE")
    assert failed.value.hint and "AJ_LOG_LEVEL `NONSENSE`" in failed.value.hint
    broken = replace(world.daemon(), argv=(sys.executable, "-c", "raise RuntimeError('no luck')"))
    with pytest.raises(DaemonError, match="does not start") as failed:
        broken.ensure()
    assert failed.value.hint and "no luck" in failed.value.hint
    assert not held(world.runtime.lock)


def test_something_else_at_the_sockets_place_is_not_removed(world: World) -> None:
    world.runtime.folder.mkdir(mode=0o700)
    world.runtime.socket.write_text("mine")
    with pytest.raises(DaemonError) as failed:
        world.client()
    assert failed.value.hint and "the socket's place is taken" in failed.value.hint
    assert world.runtime.socket.read_text() == "mine"


def test_it_leaves_after_idle_time_but_not_with_work(world: World) -> None:
    gate = world.folder / "gate"
    client = world.client(AJ_IDLE_SECONDS="1")
    client.submit(world.spec(FAKE_GATE=str(gate)), world.caller(), queue=True)
    world.until(gate.with_name("gate.reached").exists)
    time.sleep(3)
    assert held(world.runtime.lock)
    gate.touch()
    world.until(lambda: not held(world.runtime.lock))
    assert not world.runtime.socket.exists()
    assert client.queue()[0]["state"] == "done"


def test_force_says_what_it_abandons_and_the_next_daemon_finds_it(world: World) -> None:
    client = world.client()
    spec, later = world.spec(FAKE_GATE=str(world.folder / "gate")), world.spec()
    for each in (spec, later):
        client.submit(each, world.caller(), queue=True)
    world.until((world.folder / "gate.reached").exists)
    said = client.shutdown(force=True)
    assert [work["name"] for work in said["abandoned"]] == [spec.name] and said["kept"] == 1
    assert client.wait(spec.identity.id, 30)["state"] == "done"
    assert client.wait(later.identity.id, 30)["state"] == "done"
    assert (world.remote / "order").read_text().split() == [spec.identity.id, later.identity.id]


def test_a_stopping_daemon_takes_nothing_on_and_the_client_goes_to_the_next(world: World) -> None:
    gate = world.folder / "gate"
    client = world.client()
    first = client.info()["pid"]
    client.submit(world.spec(FAKE_GATE=str(gate)), world.caller(), queue=True)
    world.until(gate.with_name("gate.reached").exists)
    Transport(world.runtime.socket).request("POST", "/v1/shutdown", {})
    threading.Timer(0.3, gate.touch).start()
    assert client.submit(world.spec(), world.caller()).status == "submitted"
    assert client.info()["pid"] != first


def test_a_direct_run_whose_turn_never_came_says_so(world: World) -> None:
    gate = world.folder / "gate"
    client = world.client()
    client.submit(world.spec(FAKE_GATE=str(gate)), world.caller(), queue=True)
    results: list[Any] = []
    spec = world.spec()
    direct = threading.Thread(target=lambda: results.append(client.submit(spec, world.caller())))
    direct.start()
    world.until(lambda: len(client.queue()) == 2 and client.ticket(spec.identity.id)["detail"] is None)
    Transport(world.runtime.socket).request("POST", "/v1/shutdown", {})
    direct.join(30)
    gate.touch()
    assert results[0].status == "queued" and "stopped" in results[0].note
    assert client.wait(spec.identity.id, 30)["state"] == "done"


def test_the_daemon_dies_in_the_middle_of_a_submission(world: World) -> None:
    client = world.client()
    spec = world.spec(FAKE_GATE=str(world.folder / "gate"))
    errors: list[AjError] = []

    def submit() -> None:
        try:
            client.submit(spec, world.caller())
        except AjError as error:
            errors.append(error)

    direct = threading.Thread(target=submit)
    direct.start()
    world.until((world.folder / "gate.reached").exists)
    world.kill()
    direct.join(30)
    assert isinstance(errors[0], OutcomeUnknownError) and errors[0].exit_code == 4
    assert errors[0].hint and f"aj job show {spec.identity.id}" in errors[0].hint
    assert client.wait(spec.identity.id, 30)["state"] == "done"
    assert len(list(world.remote.glob("train_*"))) == 1


def test_two_daemons_never_serve_one_project(world: World, worlds: Callable[[Path], World]) -> None:
    world.client().submit(world.spec(), world.caller())
    other = worlds(world.folder / "other")
    with pytest.raises(DaemonError, match="another daemon serves this project"):
        other.client(root=world.root).queue()
    world.client().shutdown()
    assert len(other.client(root=world.root).queue()) == 1


def test_the_lock_is_found_again_when_its_file_was_replaced(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    first = acquire(lock)
    assert first is not None and acquire(lock) is None and held(lock)
    lock.unlink()
    second = acquire(lock)
    assert second is not None and held(lock)
    os.close(first)
    assert held(lock)
    os.close(second)
    assert not held(lock)


def test_the_log_is_bounded(tmp_path: Path) -> None:
    from aj.shared.runtime import LOG_LIMIT, open_log

    place = Runtime(tmp_path)
    place.log.write_bytes(b"x" * (LOG_LIMIT + 1))
    os.close(open_log(place.log))
    place.log.write_bytes(b"y" * (LOG_LIMIT + 1))
    os.close(open_log(place.log))
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {
        "daemon.log": 0,
        "daemon.log.1": LOG_LIMIT + 1,
    }


def _fingerprint_until(pid: int) -> Callable[[], str]:
    """As a client of a version that differs from the daemon `pid` and equals the next one."""
    real = fingerprint.fingerprint
    return lambda: "new" if _runs(pid) else real()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
