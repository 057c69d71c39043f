"""One daemon for each runtime folder: found, started under its lock, or replaced when it is of another version."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aj.sdk.transport import ANSWER_SECONDS, LostError, NotSentError, Transport
from aj.shared.caller import travels
from aj.shared.clock import monotonic
from aj.shared.errors import AjError, ConflictError, DaemonBusyError, DaemonError, DaemonNotRunningError
from aj.shared.fingerprint import PROTOCOL, fingerprint, package
from aj.shared.model import Emit, Event, nowhere
from aj.shared.runtime import Runtime, acquire, check_private, held, make_private, open_log, peer, runtime

START_SECONDS = 20.0
"""From the lock to the first answer, on a machine with much else to do."""
POLL_SECONDS = 0.01
STARTS = 3
"""Daemons that one client starts before it gives up: two versions of aj might replace each other's for ever."""
TAIL_BYTES = 4000
KEPT_BY_DAEMON = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR"),
    *("IDENTITY_ENDPOINT", "IDENTITY_HEADER", "MSI_ENDPOINT", "MSI_SECRET"),
)
"""Caller's names that the process itself needs; a caller's choices reach it in requests only."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """The daemon of one runtime folder, running or not. `argv` is how to start it."""

    place: Runtime
    env: Mapping[str, str]
    argv: tuple[str, ...] = (sys.executable, "-P", "-m", "aj.server.serve")
    transport: Transport = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "transport", Transport(self.place.socket))

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Daemon:
        """The one that this environment chooses."""
        return cls(runtime(env), env)

    def info(self) -> dict[str, Any]:
        """What the running daemon says of itself; `DaemonNotRunningError` when none runs."""
        check_private(self.place)
        deadline = monotonic() + ANSWER_SECONDS
        while True:
            try:
                return self.transport.request("GET", "/v1/info")
            except (NotSentError, LostError) as error:
                if not held(self.place.lock):
                    raise DaemonNotRunningError("no daemon is running", hint="`aj daemon start`") from error
                if monotonic() > deadline:
                    raise _stuck(self.place) from error
            time.sleep(POLL_SECONDS)

    def greet(self) -> None:
        """`DaemonError` unless the running daemon, of whatever version, understands this one."""
        found = self.info()
        oldest, newest = found.get("oldest_protocol", found["protocol"]), found["protocol"]
        if not oldest <= PROTOCOL <= newest:
            raise DaemonError(
                f"the running daemon speaks protocol {oldest} to {newest}, this aj {PROTOCOL}",
                hint="`aj daemon restart`",
            )

    def ensure(self, emit: Emit = nowhere) -> dict[str, Any]:
        """A running daemon of this very version, started or replaced where that is needed: what it says of itself."""
        make_private(self.place)
        deadline = monotonic() + START_SECONDS
        starts = offset = 0
        while True:
            found = self._ask()
            if found and found.get("fingerprint") == fingerprint() and not found.get("draining"):
                return found
            if found:
                if starts == STARTS:
                    raise _of_another_version(found)
                self._replace(found, emit)
                deadline = monotonic() + START_SECONDS
            elif (lock := acquire(self.place.lock)) is not None:
                if starts == STARTS:
                    os.close(lock)
                    raise DaemonError("the daemon does not start", where=str(self.place.log), hint=self._tail(offset))
                starts += 1
                offset = self._start(lock)
            elif monotonic() > deadline:
                raise _stuck(self.place)
            else:
                time.sleep(POLL_SECONDS)

    def stop(self, force: bool, emit: Emit = nowhere) -> dict[str, Any]:
        """Let it finish what it is doing, or with `force` leave at once; returns when it has ended.

        The answer of `/v1/shutdown`: pid, waiting_for, abandoned, kept. A daemon that does not even answer is ended by
        force only, by the process id that the kernel has for its socket.
        """
        found: dict[str, Any] = {}
        try:
            found = self.info()
            answer = self.transport.request("POST", "/v1/shutdown", {"force": force, "pid": found["pid"]})
        except (DaemonBusyError, LostError):
            if not force:
                raise
            answer = {"pid": self._kill(), "waiting_for": [], "abandoned": None, "kept": None}
        self._wait_for_end(answer["pid"], emit, answer["waiting_for"])
        return answer

    def _ask(self) -> dict[str, Any] | None:
        try:
            return self.transport.request("GET", "/v1/info")
        except (NotSentError, LostError):
            return None

    def _start(self, lock: int) -> int:
        """Hand the lock over to a new process that goes to the background; the length of its log before."""
        import subprocess

        log = open_log(self.place.log)
        try:
            offset = os.fstat(log).st_size
            begun = subprocess.run(
                [*self.argv, "--runtime", str(self.place.folder), "--lock", str(lock)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
                cwd="/",
                pass_fds=(lock,),
                start_new_session=True,
                check=False,
            )
        except OSError as error:
            raise DaemonError(f"the daemon cannot be started: {error}") from error
        finally:
            os.close(log)
            os.close(lock)
        if begun.returncode:
            raise DaemonError("the daemon does not start", where=str(self.place.log), hint=self._tail(offset))
        return offset

    def _environment(self) -> dict[str, str]:
        """Without what belongs to callers, and without PYTHONPATH and its like, which could break the daemon."""
        kept = {
            name: value
            for name, value in self.env.items()
            if name in KEPT_BY_DAEMON or not (travels(name) or name.startswith("PYTHON"))
        }
        home = package().parent
        return kept if home.name in ("site-packages", "dist-packages") else {**kept, "PYTHONPATH": str(home)}

    def _replace(self, found: Mapping[str, Any], emit: Emit) -> None:
        try:
            answer = self.transport.request("POST", "/v1/shutdown", {"pid": found.get("pid")})
        except (NotSentError, LostError, ConflictError):
            return
        except DaemonBusyError:
            raise
        except AjError as error:
            raise DaemonError(
                f"the running daemon speaks protocol {found.get('protocol')}, this aj {PROTOCOL}: {error.message}",
                hint="`aj daemon stop --force`, then try again",
            ) from error
        self._wait_for_end(found.get("pid"), emit, answer.get("waiting_for", []))

    def _wait_for_end(self, pid: Any, emit: Emit, waiting_for: list[Any]) -> None:
        if waiting_for:
            names = ", ".join(f"`{work['name']}`" for work in waiting_for)
            emit(Event("wait", f"the daemon {pid} finishes {names} before it ends"))
        asked = monotonic()
        while held(self.place.lock):
            time.sleep(POLL_SECONDS)
            if monotonic() - asked > 1:
                found = self._ask()
                if found and found.get("pid") != pid:
                    return
                asked = monotonic()

    def _kill(self) -> int:
        """End a daemon that hangs. Its process id is the kernel's, of a socket that a living process listens on."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_SECONDS)
            try:
                connection.connect(str(self.place.socket))
                pid, owner = peer(connection)
            except OSError as error:
                raise DaemonError(f"the daemon cannot be reached: {error}", where=str(self.place.socket)) from error
            if owner != os.getuid():
                raise DaemonError(f"the socket is served by user {owner}", where=str(self.place.socket))
            os.kill(pid, signal.SIGKILL)
            return pid

    def _tail(self, offset: int) -> str:
        try:
            with self.place.log.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(min(offset, size), size - TAIL_BYTES))
                return f"its log ends with:\n{log.read().decode(errors='replace').strip()}"
        except OSError as error:
            return f"its log cannot be read: {error}"


def _stuck(place: Runtime) -> DaemonBusyError:
    return DaemonBusyError(
        "a daemon is alive but opens no socket",
        where=str(place.lock),
        hint="it may be ending its last work; try again, or see its log",
    )


def _of_another_version(found: Mapping[str, Any]) -> DaemonError:
    return DaemonError(
        f"the daemon keeps being replaced by another aj, of `{found.get('package')}`",
        hint="set AJ_RUNTIME_DIR to give each installation a daemon of its own",
    )
