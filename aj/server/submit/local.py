"""Jobs on this machine: how one is handed to its supervisor, which folder is its whole memory."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from aj.build.effects import JobReceipt, NothingToUpload, Receipt, Sealed
from aj.server.record import record_of
from aj.server.submit import Execution
from aj.server.submit.local_jobs import LocalJobs, job_folder, read_state
from aj.server.submit.supervisor import ARCHIVE, LOCK, NODES, STATE, Order
from aj.shared.clock import now_ns, now_utc
from aj.shared.errors import SubmissionError
from aj.shared.jsonio import Json, compact, locked
from aj.shared.model import Caller, Emit, Event, JobSpec
from aj.shared.paths import Home, cache_home, shipped

TERM_GRACE_SECONDS = 15
"""From TERM to KILL, for a job that is canceled, out of time or has lost a process."""
START_PATIENCE = 60
"""Seconds for a supervisor's first word; it takes a tenth of one."""

_OF_THE_RECORD = ("id", "name", "backend", "template", "nodes", "processes", "processes_per_node")
_MACHINE = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|XDG_CACHE_HOME|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_PREFIX"
    r"|(?:CUDA|NVIDIA)_VISIBLE_DEVICES|(?i:(?:https?|all|no)_proxy)|(?:REQUESTS|CURL)_CA_BUNDLE|SSL_CERT_(?:FILE|DIR)|UV_\w+"
)
"""What a job sees of the caller's environment: a place to work, its devices, its way out; no login of any cloud."""


@dataclass(frozen=True, slots=True)
class LocalEffects(NothingToUpload):
    """The writes of `local`: one supervisor process, which reports before `submit` returns."""

    home: Home
    caller: Caller
    bootstrap: Path
    term_grace_seconds: int = TERM_GRACE_SECONDS

    def submit(self, sealed: Sealed, receipts: Mapping[str, Receipt], emit: Emit) -> JobReceipt:
        """Start the job; `SubmissionError` when no process of it is left."""
        del receipts
        emit(Event("submit", f"starting `{sealed.spec.name}` on this machine"))
        folder = self._claim(sealed.spec.name)
        try:
            # A copy: a second link would change the ctime by which the store knows its file for the one it verified.
            assert sealed.archive is not None
            shutil.copyfile(sealed.archive, folder / ARCHIVE)
            (folder / NODES).symlink_to(self._nodes(sealed.spec.name))
            # Who starts the job has it alone, and the supervisor inherits the lock from them.
            with locked(folder / LOCK) as lock:
                _start_supervisor(self._order(sealed, folder), lock)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise SubmissionError(f"cannot start `{sealed.spec.name}`: {error}", where=str(folder)) from error
        except SubmissionError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return JobReceipt(remote_name=sealed.spec.name, portal_url=None, status="Running", note=f"its files: {folder}")

    def find(self, spec: JobSpec, facts: Json) -> JobReceipt | None:
        """Our job by its folder, whether it runs or has ended; waits for one that is just being started."""
        del facts
        folder = job_folder(self.home, spec.name)
        while not (folder / STATE).exists():
            try:
                with locked(folder / LOCK, fcntl.LOCK_SH | fcntl.LOCK_NB):
                    # Nobody is starting it any more: now the state is there or will never be.
                    if not (folder / STATE).exists():
                        return None
            except FileNotFoundError:
                return None
            except BlockingIOError:
                time.sleep(0.05)
        return JobReceipt(
            remote_name=spec.name,
            portal_url=None,
            status=str(read_state(folder)["status"]),
            note="it was there already",
        )

    def _claim(self, name: str) -> Path:
        folder = job_folder(self.home, name)
        try:
            self.home.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
        except FileExistsError:
            raise SubmissionError(
                f"a local job `{name}` exists already", where=str(folder), hint=f"see `aj job show {name}`"
            ) from None
        except OSError as error:
            raise SubmissionError(f"cannot make the job's folder: {error}", where=str(folder)) from error
        return folder

    def _order(self, sealed: Sealed, folder: Path) -> Order:
        env = self._machine()
        bash = shutil.which("bash", path=env["PATH"])
        if bash is None:
            raise SubmissionError(
                "`bash` is not on PATH", hint="install bash; a local job runs the same scripts as a cluster"
            )
        record, created = record_of(sealed.spec), {"created_at": now_utc(), "created_ns": now_ns()}
        job = {
            "kind": "local_job",
            **{key: record[key] for key in _OF_THE_RECORD},
            "azure_name": sealed.spec.name,
            "grace_seconds": self.term_grace_seconds,
            **created,
            **dict.fromkeys(("ended_at", "reason", "exit_code")),
        }
        return Order(
            folder=str(folder),
            nodes=str(self._nodes(sealed.spec.name)),
            archive=str(folder / ARCHIVE),
            bootstrap=str(self.bootstrap),
            bash=bash,
            env=env,
            payload=sealed.payload,
            job=job,
            grace_seconds=self.term_grace_seconds,
        )

    def _nodes(self, name: str) -> Path:
        return cache_home(self.caller.env) / "nodes" / name

    def _machine(self) -> dict[str, str]:
        """PATH ends with aj's own scripts: a `uv` that was installed with aj is found when there is no other."""
        env = {name: value for name, value in self.caller.env.items() if _MACHINE.fullmatch(name)}
        return {**env, "PATH": os.pathsep.join([env.get("PATH") or os.defpath, sysconfig.get_path("scripts")])}


def _start_supervisor(order: Order, lock: int) -> None:
    """Return when the job runs; `SubmissionError` when it does not and never will."""
    log = Path(order.folder, "supervisor.log")
    with log.open("ab") as errors:
        child = subprocess.Popen(
            [sys.executable, "-P", "-X", "utf8", "-m", "aj.server.submit.supervisor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=order.folder,
            # The very modules that we run, however we came by them; no process of the job sees this.
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            pass_fds=(lock,),
            start_new_session=True,
        )
    assert child.stdin is not None and child.stdout is not None
    try:
        with child.stdout as answers:
            with child.stdin as orders:
                orders.write(compact(asdict(order)))
            ready, _, _ = select.select([answers], [], [], START_PATIENCE)
            line = answers.readline() if ready else b""
    except BrokenPipeError:
        line = b""
    if not line:
        # The first process has gone or goes now; the supervisor proper is in its group.
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    answer = (
        json.loads(line) if line else {"error": log.read_text(errors="replace").strip()[-2000:] or "no word from it"}
    )
    if "error" in answer:
        raise SubmissionError(f"the supervisor of the job could not start it: {answer['error']}")


EXECUTION = Execution(
    effects=lambda home, caller: LocalEffects(home, caller, shipped("backends") / "archive" / "bootstrap.sh"),
    jobs=lambda home, caller: LocalJobs(home),
)
