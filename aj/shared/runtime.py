"""The daemon's private folder: what must be true of it, and the lock that alone says whether a daemon lives."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aj.shared.errors import DaemonError
from aj.shared.paths import runtime_folder, socket_path

LOG_LIMIT = 1024 * 1024
"""Bytes after which the log moves to `daemon.log.1`; one old log is kept."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """One daemon's folder; client and daemon derive the same paths from it."""

    folder: Path

    @property
    def socket(self) -> Path:
        """Where the daemon listens."""
        return socket_path(self.folder)

    @property
    def lock(self) -> Path:
        """Held by the living daemon, by nobody else; the file itself stays."""
        return self.folder / "daemon.lock"

    @property
    def log(self) -> Path:
        """Both output streams of the daemon."""
        return self.folder / "daemon.log"


def runtime(env: Mapping[str, str]) -> Runtime:
    """The runtime folder that this environment chooses (see `paths.runtime_folder`)."""
    return Runtime(runtime_folder(env))


def make_private(place: Runtime) -> None:
    """Create the folders with mode 0700 where they are missing; `DaemonError` when one is not ours alone."""
    for folder in {place.folder, place.socket.parent}:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise DaemonError(
                f"cannot create the runtime folder: {error.strerror}",
                where=str(folder),
                hint="set AJ_RUNTIME_DIR to a folder of your own",
            ) from error
    check_private(place)


def check_private(place: Runtime) -> None:
    """`DaemonError` unless the folders that exist are real folders of ours that nobody else can enter."""
    for folder in {place.folder, place.socket.parent}:
        try:
            status = folder.lstat()
        except FileNotFoundError:
            continue
        text, hint = None, "set AJ_RUNTIME_DIR to a folder of your own"
        if not stat.S_ISDIR(status.st_mode):
            text, hint = "is not a folder", "remove it"
        elif status.st_uid != os.getuid():
            text = f"belongs to user {status.st_uid}"
        elif status.st_mode & 0o077:
            text = f"has mode {stat.S_IMODE(status.st_mode):04o}, others can enter it"
            hint = f"chmod 700 '{folder}'"
        if text:
            raise DaemonError(f"the runtime folder {text}", where=str(folder), hint=hint)


def acquire(lock: Path) -> int | None:
    """The held lock as a file descriptor, closed to end the hold; None while another process has it."""
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if holds(fd, lock):
            return fd
    except BlockingIOError:
        pass
    os.close(fd)
    return None


def held(lock: Path) -> bool:
    """Whether a living process holds the lock; never disturbs other askers."""
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def holds(fd: int, path: Path) -> bool:
    """Whether `path` still names the open file `fd`: False once it was removed or replaced."""
    return is_at(os.fstat(fd), path)


def is_at(known: os.stat_result, path: Path) -> bool:
    """The same for what was looked at before."""
    try:
        return os.path.samestat(known, path.lstat())
    except OSError:
        return False


def peer(connection: socket.socket) -> tuple[int, int]:
    """Process id and user at the other end of a Unix socket, as the kernel knows them."""
    if hasattr(socket, "SO_PEERCRED"):
        pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return pid, uid
    local_peercred, local_peerpid = 1, 2  # macOS: at level 0; version and user come first
    _, uid = struct.unpack_from("2I", connection.getsockopt(0, local_peercred, 76))
    return connection.getsockopt(0, local_peerpid), uid


def open_log(log: Path) -> int:
    """The log for appending, mode 0600, moved aside first when it is full."""
    with suppress(FileNotFoundError):
        if log.lstat().st_size > LOG_LIMIT:
            log.replace(log.with_name(log.name + ".1"))
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
