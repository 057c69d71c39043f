"""One user's world: a runtime folder, a cache, projects, a remote that is a folder, and processes that can be killed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import socket
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aj.sdk.client import Client
from aj.sdk.spawn import Daemon
from aj.server.queue import FINISHED
from aj.shared.errors import AjError
from aj.shared.runtime import Runtime, held, open_log

LEAF = """\
base:
config:
  target: {{service: {service}}}
  jobs:
    - instance_count: 1
      command: [{command}]
      submit_args: {{env: {{LR: 1e-3}}}}
"""
PATIENCE_SECONDS = 60


class Zygote:
    """The test's end of the process that forks."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._lock = threading.Lock()

    def fork(self, asked: Mapping[str, Any], fds: list[int]) -> int:
        """The new process's id."""
        with self._lock:
            socket.send_fds(self._link, [json.dumps(asked).encode()], fds)
            return int(self._link.recv(100))


@dataclass(frozen=True, slots=True)
class ForkedDaemon(Daemon):
    """A daemon that the zygote forks; everything else is as always."""

    zygote: Zygote | None = None

    def _start(self, lock: int) -> int:
        assert self.zygote is not None
        log = open_log(self.place.log)
        offset = os.fstat(log).st_size
        self.zygote.fork({"what": "daemon", "folder": str(self.place.folder), "env": dict(self.env)}, [lock, log])
        os.close(log)
        os.close(lock)
        return offset


class Aj:
    """One running `aj` command."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.pid = pid
        self._folder = folder

    def ended(self) -> bool:
        return not runs(self.pid)

    def wait(self) -> tuple[int | None, dict[str, Any]]:
        """Exit code and JSON document; None and `{}` when it was killed."""
        until(self.ended)
        code, out = (self._folder / "status").read_text(), (self._folder / "out").read_text()
        try:
            return (int(code) if code else None), json.loads(out) if out and code else {}
        except ValueError as error:
            raise AssertionError((code, out, (self._folder / "err").read_text())) from error

    def said(self) -> str:
        return (self._folder / "err").read_text()


class TrustWorld:
    """Its default project has a `train.py` and the templates `double` and `local`."""

    def __init__(self, folder: Path, zygote: Zygote) -> None:
        self.folder = folder
        self.zygote = zygote
        self.runtime = Runtime(folder / "run")
        self.remote = folder / "remote"
        self.ran = folder / "ran"
        self.env = {
            **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
            "HOME": str(folder / "home"),
            "AJ_RUNTIME_DIR": str(self.runtime.folder),
            "AJ_CACHE_HOME": str(folder / "cache"),
        }
        (folder / "home").mkdir(parents=True)
        self.remote.mkdir()
        self.ran.mkdir()
        self.project = self.new_project("project")
        self.root = self.project / ".azure_jobs"
        self._commands = 0

    def new_project(self, name: str) -> Path:
        project = self.folder / name
        templates = project / ".azure_jobs" / "template"
        templates.mkdir(parents=True)
        (project / "train.py").write_text(f"print('{name}')\n")
        for service, command in (("double", "'true'"), ("local", f"'echo >> {self.ran}/$AJ_ID'")):
            (templates / f"{service}.yaml").write_text(LEAF.format(service=service, command=command))
        return project

    def daemon(self, **env: str) -> Daemon:
        return ForkedDaemon(self.runtime, {**self.env, **env}, zygote=self.zygote)

    def client(self, project: Path | None = None, **env: str) -> Client:
        daemon = self.daemon(**env)
        daemon.ensure()
        return Client((project or self.project) / ".azure_jobs", daemon)

    def aj(self, *argv: str, cwd: Path | None = None, **env: str) -> Aj:
        """Starts `aj --json ARGV`."""
        self._commands += 1
        folder = self.folder / "commands" / str(self._commands)
        folder.mkdir(parents=True)
        fds = [os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600) for name in ("out", "err", "status")]
        asked = {"argv": ["--json", *argv], "env": {**self.env, **env}, "cwd": str(cwd or self.project)}
        try:
            return Aj(self.zygote.fork({"what": "client", **asked}, fds), folder)
        finally:
            for fd in fds:
                os.close(fd)

    def run(self, base: str, service: str = "double", *options: str) -> Aj:
        """Starts `aj run` of a job whose name begins with `base`."""
        return self.aj("run", "-t", service, "-p", "1", "--no-follow", *options, "true", AJ_NAME=base)

    def pid(self) -> int:
        """Of the process that listens, as the kernel says."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.runtime.socket))
            return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])

    def kill_daemon(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid(), number)
        until(lambda: not held(self.runtime.lock))

    def jobs(self, base: str = "") -> list[str]:
        """Names of the jobs that exist at the remotes."""
        found = [path.name.removesuffix(".json") for path in (self.remote / "jobs").glob("*.json")]
        found += [path.parent.name for path in self.root.glob("logs/*/job.json")]
        return [name for name in found if name.startswith(base)]

    def sent(self, name: str) -> int:
        """How often the remote was asked to create a job of this name and did."""
        log = self.remote / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return lines.count(f"submit {name}")

    def end(self) -> None:
        with contextlib.suppress(OSError):
            pid = self.pid()
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGKILL)
            until(lambda: not held(self.runtime.lock))


def check_truth(world: TrustWorld, client: Client, base: str, service: str = "double") -> None:
    """What must hold of the one submission whose name begins with `base`, whatever was killed: client asks anew."""
    entries = [entry for entry in client.queue() if entry["name"].startswith(base)]
    assert len(entries) <= 1, entries
    jobs = world.jobs(base)
    if not entries:
        assert not jobs, "a job without an entry"
        return
    entry = client.wait(entries[0]["id"], PATIENCE_SECONDS)
    jobs = world.jobs(base)
    assert entry["state"] in FINISHED, entry
    assert len(jobs) <= 1, jobs
    result = entry["result"]
    assert (entry["state"], len(jobs)) in {("done", 1), ("failed", 0)}, (entry, jobs)
    assert (result["status"], result["azure_name"]) in {("submitted", entry["name"]), ("failed", None)}, result
    if service == "double":
        assert world.sent(entry["name"]) <= len(jobs)  # the remote, too, may die before it has logged one
    records = [record for record in client.records() if record["id"] == entry["id"]]
    assert [record["status"] for record in records] == [result["status"]], records
    assert not list((world.root / "daemon" / "waiting").glob("*")), "an archive is kept for nobody"


def check_files(world: TrustWorld) -> None:
    """What must hold of everything on the disk when nothing runs: no lock, no half file that anyone would use."""
    for lock in (world.root / "daemon" / "lock", world.root / "build" / "lock", world.runtime.lock):
        if lock.exists():
            with lock.open("rb+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for archive in world.folder.glob("cache/archives/*.tar.gz"):
        assert hashlib.sha256(archive.read_bytes()).hexdigest() == archive.name[:64]
    for blob in world.remote.glob("blobs/*[!.]"):
        if ".tmp-" not in blob.name:
            assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    for target in world.root.glob("build/**/*.json"):
        json.loads(target.read_bytes())
    journal = world.root / "record.jsonl"
    for line in journal.read_text().splitlines() if journal.exists() else ():
        assert not line.strip() or json.loads(line)
    database = world.root / "daemon" / "queue.db"
    if database.exists():
        with contextlib.closing(sqlite3.connect(database)) as opened:
            assert opened.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            sealed = "SELECT count(*) FROM entries WHERE state NOT IN ('pending', 'submitting') AND sealed IS NOT NULL"
            assert opened.execute(sealed).fetchone() == (0,)
    assert not list((world.root / "daemon").glob("*.corrupt-*"))


def runs(pid: int) -> bool:
    """Whether the process lives; a dead one that nobody has waited for does not."""
    return state_of(pid) not in ("", "Z", "X")


def state_of(pid: int) -> str:
    """One letter, `T` for stopped; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def until(true: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> None:
    """Waits for something that must come."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if true():
            return
        time.sleep(0.003)
    raise AssertionError("it did not come")


def ignoring(work: Callable[[], Any]) -> Callable[[], None]:
    """The same without its errors, for threads whose outcome is looked at elsewhere."""

    def run() -> None:
        with contextlib.suppress(AjError):
            work()

    return run
