"""Real daemon processes on real sockets in folders of their own; whatever a test starts has ended when it is over."""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aj.sdk.client import Client
from aj.sdk.spawn import Daemon
from aj.shared.clock import new_id
from aj.shared.errors import AjError
from aj.shared.job.naming import stable_identity
from aj.shared.model import Caller, Identity, JobSpec, MergedTemplate, Shape
from aj.shared.opts.local import LocalOpts
from aj.shared.runtime import Runtime, held

STABLE = {
    "AJ_TEMPLATE": "gpu",
    "AJ_NODES": "1",
    "AJ_GPUS_PER_NODE": "1",
    "AJ_PROCESSES": "1",
    "AJ_PROCESSES_PER_NODE": "1",
}
DOUBLE = Path(__file__).parent / "double" / "daemon.py"


class World:
    """One runtime folder, one project with a `train.py`, one remote; its daemon is the double."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runtime = Runtime(folder / "run")
        self.project = folder / "project"
        self.root = self.project / ".azure_jobs"
        self.remote = folder / "remote"
        self.env = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
            "AJ_RUNTIME_DIR": str(self.runtime.folder),
            "AJ_CACHE_HOME": str(folder / "cache"),
        }
        self.project.mkdir()
        self.remote.mkdir()
        (self.project / "train.py").write_text("print('one')\n")

    def daemon(self, **env: str) -> Daemon:
        return Daemon(self.runtime, {**self.env, **env}, (sys.executable, "-P", str(DOUBLE)))

    def client(self, root: Path | None = None, **env: str) -> Client:
        daemon = self.daemon(**env)
        daemon.ensure()
        return Client(root or self.root, daemon)

    def spec(self, **env: str) -> JobSpec:
        identity = Identity(new_id(), "train", "2026-01-31T08:00:00+00:00")
        name = f"train_{identity.id}"
        return JobSpec(
            service="local",
            identity=identity,
            name=name,
            shape=Shape(1, 1, 1),
            sku=None,
            image=None,
            registry=None,
            setup=(),
            command="python train.py",
            argv=("python", "train.py"),
            env={"FAKE_REMOTE": str(self.remote), **env, **STABLE, **stable_identity(identity, name)},
            secret_env=("FAKE_SECRET",),
            storage=(),
            ignore=(),
            timeout_seconds=None,
            description=None,
            backend_spec=LocalOpts(),
            extra={},
            template=MergedTemplate("gpu", {}, ()),
        )

    def caller(self, cwd: Path | None = None, **env: str) -> Caller:
        return Caller(str(cwd or self.project), {"PATH": self.env["PATH"], **env})

    def pid(self) -> int:
        """Of the process that listens, as the kernel says."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.runtime.socket))
            return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid(), number)
        self.until(lambda: not held(self.runtime.lock))

    def until(self, true: Callable[[], Any]) -> None:
        """Waits for something that must come."""
        for _ in range(2000):
            if true():
                return
            time.sleep(0.01)
        raise AssertionError("it did not come")

    def state(self) -> Mapping[str, bytes]:
        """Every byte that aj keeps of this world."""
        places = [self.root, self.runtime.folder, self.folder / "cache"]
        files = [path for place in places for path in place.rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in files}

    def end(self) -> None:
        try:
            pid = self.pid()
        except OSError:
            return
        os.kill(pid, signal.SIGCONT)
        try:
            self.daemon().stop(force=True)
        except AjError:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A fresh world; its daemon is ended afterwards."""
    made = World(tmp_path)
    yield made
    made.end()


@pytest.fixture
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], World]]:
    """Makes worlds in folders of the test's choice; their daemons are ended afterwards."""
    made: list[World] = []

    def make(folder: Path) -> World:
        folder.mkdir(parents=True, exist_ok=True)
        made.append(World(folder))
        return made[-1]

    yield make
    for each in made:
        each.end()
