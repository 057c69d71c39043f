"""Which archives lie on this machine, whether their bytes are still right, and which of them may go."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from aj.shared.clock import new_id, now_ns
from aj.shared.errors import StoreError
from aj.shared.jsonio import compact, read_json, sync_folder, write_file
from aj.shared.model import ArchiveRecord, Emit, Event, nowhere

LIMIT = 20 << 30
"""Bytes of archives that are kept when nobody says otherwise."""

_NAME = re.compile(r"([0-9a-f]{64})\.tar\.gz\Z")
_CLOCK_STEP_NS = 20_000_000
"""No file system's time stamps are coarser than this; a file changed within one step may look unchanged."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One archive: its size in bytes, and its last use in nanoseconds of the wall clock."""

    sha256: str
    size: int
    used_ns: int


class Store:
    """The archives below one cache folder, `<folder>/archives/<sha256>.tar.gz`, shared by any number of processes.

    Beside each, `<sha256>.seen` remembers how the archive looked when its content was last hashed, and its mtime is
    the last use. Leases and temporary files are held by locks on the files themselves: a killed process holds none.
    `<sha256>.pin-*` are links to files outside: while one of those exists, the archive stays, whoever lives.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "archives"

    def path(self, sha256: str) -> Path:
        """Where the archive lies, or would."""
        path = self._folder / f"{sha256}.tar.gz"
        if not _NAME.match(path.name):
            raise StoreError(f"`{sha256}` is not the SHA-256 of an archive")
        return path

    def has(self, sha256: str, emit: Emit = nowhere) -> bool:
        """Whether the archive is here with the right bytes.

        They are hashed only when the file looks different from the last time. A damaged archive is removed with a
        warning, so that it is packed again. Works in a cache that cannot be written.
        """
        path = self.path(sha256)
        with _failing("read", self._folder):
            self._check_owner()
            if _is_intact(path):
                _use(path)
                return True
            if path.exists():
                with self._exclusive():
                    if not _is_intact(path):
                        _remove(path)
                emit(Event("warning", f"the cached archive {sha256} was damaged and is packed again"))
        return False

    def add(self, fill: Callable[[BinaryIO], ArchiveRecord]) -> ArchiveRecord:
        """Keep what `fill` writes, under the digest of its bytes; an equal archive that is here already stays.

        A failure of any kind leaves nothing, a kill an unlocked temporary file that the next `add` or `gc` removes.
        """
        with _failing("write", self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_owner()
            self._folder.chmod(0o700)
            self._sweep()
            temporary, fd = self._create()
        try:
            draft = _Draft(self._folder, fd)
            record = fill(cast(BinaryIO, draft))
            if (record.sha256, record.size) != (draft.digest.hexdigest(), draft.size):
                raise StoreError("the archive's record does not fit its bytes", hint="this is a fault of aj; report it")
            with _failing("write", self._folder):
                os.fsync(fd)
                self._publish(temporary, self.path(record.sha256))
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            os.close(fd)
        with suppress(StoreError):
            self.gc(keep=record.sha256)
        return record

    @contextmanager
    def lease(self, sha256: str) -> Iterator[Path]:
        """The archive's path, which no process' `gc` removes inside the `with`; `StoreError` when it is not here."""
        path = self.path(sha256)
        with _failing("read", self._folder):
            self._check_owner()
            fd = _lock_shared(path)
        if fd is None:
            raise _absent(sha256)
        try:
            _use(path)
            yield path
        finally:
            os.close(fd)

    def pin(self, sha256: str, witness: Path) -> None:
        """No `gc` removes the archive as long as the file `witness` exists; `StoreError` when it is not here."""
        path = self.path(sha256)
        with _failing("write", self._folder):
            self._check_owner()
            if not self._folder.is_dir():
                raise _absent(sha256)
            with self._exclusive():
                if not path.exists():
                    raise _absent(sha256)
                pin = path.with_name(f"{sha256}.pin-{hashlib.sha256(os.fsencode(witness)).hexdigest()[:16]}")
                with suppress(FileExistsError):
                    pin.symlink_to(witness)
                sync_folder(self._folder)

    def entries(self) -> tuple[Stored, ...]:
        """What is here, least recently used first."""
        found: list[Stored] = []
        with _failing("read", self._folder), suppress(FileNotFoundError):
            for item in self._folder.iterdir():
                if match := _NAME.match(item.name):
                    with suppress(FileNotFoundError):
                        found.append(Stored(match[1], item.stat().st_size, _used_ns(item)))
        return tuple(sorted(found, key=lambda stored: (stored.used_ns, stored.sha256)))

    def gc(self, limit: int = LIMIT, *, keep: str | None = None) -> int:
        """Remove what is least recently used until at most `limit` bytes are left; gives the bytes freed.

        What is leased or pinned stays, and so does `keep`. Temporary files of killed processes go in any case.
        """
        stored = self.entries()
        excess = sum(entry.size for entry in stored) - limit
        freed = 0
        with _failing("clean", self._folder):
            self._check_owner()
            self._sweep()
            for entry in stored:
                if freed < excess and entry.sha256 != keep:
                    with self._exclusive():
                        path = self.path(entry.sha256)
                        freed += entry.size if not _is_pinned(path) and _remove_unlocked(path) else 0
        return freed

    def _publish(self, temporary: Path, path: Path) -> None:
        # Under the lock, so that a file that somebody has leased is never replaced by an equal one without a lease.
        with self._exclusive():
            if not _is_intact(path):
                temporary.replace(path)
                sync_folder(self._folder)
            _use(path)

    def _create(self) -> tuple[Path, int]:
        temporary = self._folder / f"new.tmp-{os.getpid()}-{new_id()}"
        with self._exclusive():
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
        return temporary, fd

    def _sweep(self) -> None:
        for item in self._folder.glob("*.tmp-*"):
            with self._exclusive():
                _remove_unlocked(item)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _check_owner(self) -> None:
        # The folder above may be a system's own, such as a scratch disk; another user's could exchange ours.
        for folder, others in ((self._folder.parent, {0}), (self._folder, set[int]())):
            if folder.exists() and folder.stat().st_uid not in {os.geteuid(), *others}:
                raise StoreError(
                    f"the cache `{folder}` belongs to another user", hint="set AJ_CACHE_HOME to a folder of your own"
                )


class _Draft:
    """Where `fill` writes: counts and hashes, and tells a full disk from a fault of `fill`."""

    def __init__(self, folder: Path, fd: int) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        self._folder = folder
        self._fd = fd

    def write(self, content: bytes) -> int:
        self.digest.update(content)
        self.size += len(content)
        rest = memoryview(content)
        with _failing("write", self._folder):
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        return len(content)


@contextmanager
def _failing(verb: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot {verb} the cache `{folder}`: {error.strerror}",
            hint="make room, or set AJ_CACHE_HOME to a folder that you may write",
        ) from error


def _absent(sha256: str) -> StoreError:
    return StoreError(f"the archive {sha256} is not in the cache", hint="run the command again: it is packed anew")


def _is_pinned(path: Path) -> bool:
    """Whether something waits for the archive; links to what is gone are removed."""
    pins = list(path.parent.glob(f"{path.name[:64]}.pin-*"))
    for pin in pins:
        try:
            pin.stat()
        except FileNotFoundError:
            pin.unlink(missing_ok=True)
        except OSError:  # its disk does not answer: it may exist
            continue
    return any(pin.is_symlink() for pin in pins)


def _is_intact(path: Path) -> bool:
    try:
        state = path.stat()
        looks = [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
        with suppress(OSError, ValueError):
            if read_json(_memo(path)) == looks:
                return True
        with path.open("rb") as archive:
            digest = hashlib.file_digest(archive, "sha256").hexdigest()
    except FileNotFoundError:
        return False
    if digest != path.name[:64]:
        return False
    if now_ns() - state.st_ctime_ns > _CLOCK_STEP_NS:
        with suppress(OSError):
            write_file(_memo(path), compact(looks))
    return True


def _memo(path: Path) -> Path:
    return path.with_name(path.name[:64] + ".seen")


def _use(path: Path) -> None:
    with suppress(OSError):
        _memo(path).touch(mode=0o600)


def _used_ns(path: Path) -> int:
    try:
        return _memo(path).stat().st_mtime_ns
    except FileNotFoundError:
        return path.stat().st_mtime_ns


def _lock_shared(path: Path) -> int | None:
    """A descriptor that holds the archive, None when there is none."""
    while True:
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        fcntl.flock(fd, fcntl.LOCK_SH)
        if os.fstat(fd).st_nlink:
            return fd
        # It was removed between the two calls.
        os.close(fd)


def _remove_unlocked(path: Path) -> bool:
    with suppress(FileNotFoundError, BlockingIOError):
        fd = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)
            return True
        finally:
            os.close(fd)
    return False


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    _memo(path).unlink(missing_ok=True)
