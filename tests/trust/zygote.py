"""A process that has everything imported and forks daemons and clients of `aj` in milliseconds.

The daemons are the real one in every way but two: pauses between attempts are short, and the remote can be told to
fail by the job's environment:

FAULT        what submitting does: `before` and `after` say whether the remote took the job when it strikes
             `lost before|after` (the answer never came), `time-out before|after`, `crash before|after` (the daemon dies)
FAULT_FIND   `blind`: looking for the job fails
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

DOUBLE = Path(__file__).parents[1] / "e2e" / "double"
sys.path.insert(0, str(DOUBLE))

import aj.build.engine  # noqa: E402
import aj.client.main  # noqa: E402
import aj.client.run  # noqa: E402
import aj.server.listening  # noqa: E402
from aj.build.effects import Effects, JobReceipt, Receipt, Sealed, Upload  # noqa: E402
from aj.build.store import Store  # noqa: E402
from aj.sdk.spawn import Daemon  # noqa: E402
from aj.server import submission, worker  # noqa: E402
from aj.server.serve import run  # noqa: E402
from aj.server.submit import Execution, get_execution  # noqa: E402
from aj.server.workshop import Workshop, live  # noqa: E402
from aj.shared.errors import OutcomeUnknownError, SubmissionError  # noqa: E402
from aj.shared.jsonio import Json  # noqa: E402
from aj.shared.model import Caller, Emit, Event, JobSpec  # noqa: E402
from aj.shared.paths import Home, cache_home  # noqa: E402
from aj.shared.runtime import Runtime, open_log  # noqa: E402
from aj.shared.schema import violations  # noqa: E402
from aj.shared.spec import describe  # noqa: E402


@dataclass(frozen=True, slots=True)
class Faulty:
    """A backend's effects that strike as the job's environment says."""

    inner: Effects

    def facts(self, spec: JobSpec, emit: Emit) -> Json:
        return self.inner.facts(spec, emit)

    def present(self, upload: Upload, facts: Json) -> Receipt | None:
        return self.inner.present(upload, facts)

    def upload(self, upload: Upload, facts: Json, emit: Emit) -> Receipt:
        emit(Event("note", f"uploading {upload.name}"))
        receipt = self.inner.upload(upload, facts, emit)
        emit(Event("note", f"uploaded {upload.name}"))
        return receipt

    def submit(self, sealed: Sealed, receipts: Mapping[str, Receipt], emit: Emit) -> JobReceipt:
        fault, _, when = sealed.spec.env.get("FAULT", "").partition(" ")
        emit(Event("note", "sending"))
        if when == "before":
            _strike(fault)
        receipt = self.inner.submit(sealed, receipts, emit)
        emit(Event("note", "sent"))
        if when == "after":
            _strike(fault)
        return receipt

    def find(self, spec: JobSpec) -> JobReceipt | None:
        if spec.env.get("FAULT_FIND") == "blind":
            raise SubmissionError("the network is down")
        return self.inner.find(spec)


def _strike(fault: str) -> NoReturn:
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "time-out":
        raise TimeoutError("timed out")
    raise OutcomeUnknownError("the answer was lost")


def workshop() -> Workshop:
    """The real one, its backends made faulty."""

    def executions(service: str) -> Execution:
        real = get_execution(service)
        return replace(real, effects=lambda home, caller: Faulty(real.effects(home, caller)))

    def submissions(home: Home, caller: Caller) -> submission.Submissions:
        return submission.Submissions(home, Store(cache_home(caller.env)), executions)

    return replace(live(), submissions=submissions)


def start(daemon: Daemon, lock: int) -> int:
    """In place of `Daemon._start`, for clients of this process: forks instead of starting Python anew."""
    log = open_log(daemon.place.log)
    offset = os.fstat(log).st_size
    if not os.fork():
        serve(str(daemon.place.folder), dict(daemon.env), lock, log)
    os.close(log)
    os.close(lock)
    return offset


def serve(folder: str, env: dict[str, str], lock: int, log: int) -> NoReturn:
    os.setsid()
    for number in (1, 2):
        os.dup2(log, number)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.set_inheritable(lock, False)
    os.environ.clear()
    os.environ.update(env)
    if limit := env.get("TEST_FILE_LIMIT"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
    os._exit(run(Runtime(Path(folder)), lock, workshop(), env))


def client(argv: list[str], env: dict[str, str], cwd: str, fds: list[int]) -> NoReturn:
    """`aj` itself: output, errors and, unless it is killed, its exit code each to a file."""
    out, err, status = fds
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    code = aj.client.main.main(argv)
    sys.stdout.flush()
    os.write(status, str(code).encode())
    os._exit(0)


def import_all() -> None:
    """Whatever client and daemon import or compile when they first need it: a whole rendering does."""
    with TemporaryDirectory() as folder:
        leaf = Path(folder) / ".azure_jobs" / "template" / "double.yaml"
        leaf.parent.mkdir(parents=True)
        leaf.write_text("base:\nconfig:\n  target: {service: double}\n  jobs: [{instance_count: 1}]\n")
        os.chdir(folder)
        for argv in (["render", "-t", "double", "-p", "1", "true"], ["template", "list"]):
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                assert aj.client.main.main(argv) == 0
        os.chdir("/")
    for schema in ("jobspec", "template"):
        violations({}, schema)


def main() -> None:
    worker.RETRY_SECONDS = 0.05
    setattr(Daemon, "_start", start)  # noqa: B010
    for service in ("double", "local"):
        describe(service), get_execution(service)
    import_all()
    link = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    link.send(b"ready")
    while True:
        content, fds, _, _ = socket.recv_fds(link, 1 << 18, 4)
        if not content:
            return
        asked = json.loads(content)
        pid = os.fork()
        if not pid:
            link.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if asked["what"] == "daemon":
                serve(asked["folder"], asked["env"], *fds)
            client(asked["argv"], asked["env"], asked["cwd"], fds)
        for fd in fds:
            os.close(fd)
        link.send(str(pid).encode())


if __name__ == "__main__":
    main()
