"""Which archives lie on this machine, whether their bytes are still right, and which of them may go."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from aj.build.beneath import look
from aj.build.holds import alone, hold, is_pinned, pin, pins
from aj.shared.clock import new_id, now_ns
from aj.shared.errors import StoreError
from aj.shared.jsonio import compact, locked, read_json, sync_folder, write_file
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


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What went, least recently used first; `freed` are its bytes and those of files that killed processes left."""

    removed: tuple[Stored, ...]
    freed: int


class Store:
    """The archives below one cache folder, `<folder>/archives/<sha256>.tar.gz`, shared by any number of processes.

    Beside each, `<sha256>.seen` remembers how the archive looked when its content was last hashed, and its mtime is
    the last use. Leases and temporary files are held by locks on the files themselves: a killed process holds none.
    `<sha256>.pin-*` are links to files outside: while one of those exists, the archive stays, whoever lives.
    """

    def __init__(self, folder: Path, witness: Path | None = None) -> None:
        self.folder = folder / "archives"
        self._witness = witness

    def kept_by(self, witness: Path | None) -> Store:
        """The same store: what is found in it or added to it stays as long as the file `witness` exists.

        There is no moment between finding and keeping in which a `gc` could remove the archive.
        """
        return Store(self.folder.parent, witness)

    def path(self, sha256: str) -> Path:
        """Where the archive lies, or would."""
        path = self.folder / f"{sha256}.tar.gz"
        if not _NAME.match(path.name):
            raise StoreError(f"`{sha256}` is not the SHA-256 of an archive")
        return path

    def has(self, sha256: str, emit: Emit = nowhere) -> bool:
        """Whether the archive is here with the right bytes.

        They are hashed only when the file looks different from the last time. A damaged archive is removed with a
        warning, so that it is packed again. Works in a cache that cannot be written.
        """
        path = self.path(sha256)
        with _failing("read", self.folder):
            self._check_owner()
            if self._witness is not None and path.exists():
                with self._exclusive():
                    self._keep(path)
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
        with _failing("write", self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_owner()
            self.folder.chmod(0o700)
            self._sweep(_remove_unlocked)
            temporary, fd = self._create()
        try:
            draft = _Draft(self.folder, fd)
            record = fill(cast(BinaryIO, draft))
            if (record.sha256, record.size) != (draft.digest.hexdigest(), draft.size):
                raise StoreError("the archive's record does not fit its bytes", hint="this is a fault of aj; report it")
            with _failing("write", self.folder):
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
        with _failing("read", self.folder):
            self._check_owner()
            fd = hold(path)
        if fd is None:
            hint = "run the command again: it is packed anew"
            raise StoreError(f"the archive {sha256} is not in the cache", hint=hint)
        try:
            _use(path)
            yield path
        finally:
            os.close(fd)

    def entries(self) -> tuple[Stored, ...]:
        """What is here, least recently used first."""
        found: list[Stored] = []
        with _failing("read", self.folder), suppress(FileNotFoundError):
            for item in self.folder.iterdir():
                if match := _NAME.match(item.name):
                    with suppress(FileNotFoundError):
                        found.append(Stored(match[1], item.stat().st_size, _used_ns(item)))
        return tuple(sorted(found, key=lambda stored: (stored.used_ns, stored.sha256)))

    def in_use(self, sha256: str) -> bool:
        """Whether somebody has leased the archive, or waits for it."""
        path = self.path(sha256)
        with _failing("read", self.folder):
            return path.exists() and (is_pinned(path) or not _is_unlocked(path))

    def gc(self, limit: int = LIMIT, *, unused_since_ns: int = 0, keep: str | None = None) -> Cleaned:
        """Remove what was last used before `unused_since_ns`, and the least recently used above `limit` bytes.

        What is leased or pinned stays, and so does `keep`. Temporary files of killed processes go in any case.
        """
        return self._collect(limit, unused_since_ns, keep, _remove_unlocked)

    def surplus(self, limit: int = LIMIT, *, unused_since_ns: int = 0) -> Cleaned:
        """What `gc` would remove now."""
        return self._collect(limit, unused_since_ns, None, _is_unlocked)

    def _collect(self, limit: int, unused_since_ns: int, keep: str | None, take: Callable[[Path], bool]) -> Cleaned:
        stored, removed = self.entries(), []
        excess = sum(entry.size for entry in stored) - limit
        with _failing("clean", self.folder):
            self._check_owner()
            freed = self._sweep(take)
            for entry in stored:
                if (excess > 0 or entry.used_ns < unused_since_ns) and entry.sha256 != keep:
                    with self._exclusive():
                        path = self.path(entry.sha256)
                        if not is_pinned(path) and take(path):
                            removed.append(entry)
                            excess -= entry.size
        return Cleaned(tuple(removed), freed + sum(entry.size for entry in removed))

    def _publish(self, temporary: Path, path: Path) -> None:
        # Under the lock, so that a file that somebody has leased is never replaced by an equal one without a lease.
        with self._exclusive():
            if not _is_intact(path):
                temporary.replace(path)
                sync_folder(self.folder)
            self._keep(path)
            _use(path)

    def _keep(self, path: Path) -> None:
        """Pin the archive to the witness, if it is here and there is one; under the lock."""
        if self._witness is not None and path.exists():
            pin(path, self._witness)
            sync_folder(self.folder)

    def _create(self) -> tuple[Path, int]:
        temporary = self.folder / f"new.tmp-{os.getpid()}-{new_id()}"
        with self._exclusive():
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
        return temporary, fd

    def _sweep(self, take: Callable[[Path], bool]) -> int:
        """Take what killed processes left; the bytes of it."""
        freed = 0
        for item in self.folder.glob("*.tmp-*"):
            with self._exclusive(), suppress(FileNotFoundError):
                size = item.stat().st_size
                freed += size if take(item) else 0
        return freed

    def _exclusive(self) -> AbstractContextManager[int]:
        return locked(self.folder / "lock")

    def _check_owner(self) -> None:
        # The folder above may be a system's own, such as a scratch disk; another user's could exchange ours.
        for folder, others in ((self.folder.parent, {0}), (self.folder, set[int]())):
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


def _is_intact(path: Path) -> bool:
    try:
        state = path.stat()
        looks = [*look(state)]
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
    return path.with_name(path.name.removesuffix(".tar.gz") + ".seen")


def _use(path: Path) -> None:
    with suppress(OSError):
        _memo(path).touch(mode=0o600)


def _used_ns(path: Path) -> int:
    try:
        return _memo(path).stat().st_mtime_ns
    except FileNotFoundError:
        return path.stat().st_mtime_ns


def _remove_unlocked(path: Path) -> bool:
    """Remove a file that nobody holds, with the pins of who needed it."""
    with alone(path) as free:
        if free:
            _remove(path)
            for each in pins(path):
                each.unlink(missing_ok=True)
    return free


def _is_unlocked(path: Path) -> bool:
    with alone(path) as free:
        return free


def _remove(path: Path) -> None:
    _memo(path).unlink(missing_ok=True)  # first: an archive without its memo is only hashed once more
    path.unlink(missing_ok=True)
