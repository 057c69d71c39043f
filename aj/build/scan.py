"""The one walk over a code folder: what is in it, what is left out, and the digests of its files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat, starmap
from typing import Literal, NamedTuple

from aj.build.beneath import FOLDER, open_beneath
from aj.build.content import Content, read_content
from aj.build.remarks import CREDENTIAL, CRLF_SCRIPT, named
from aj.build.rules import HOME_RULE, SCRIPTS, Exclusions
from aj.build.statcache import KNOWN, NUMBERS, SELECTED, Listing, Memo, StatCache
from aj.shared.errors import CodeError
from aj.shared.model import Emit, Event

_EMIT_EVERY = 1000
_BATCH = 50
_THREADS = 4
_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a device", stat.S_IFCHR: "a device"}


class Entry(NamedTuple):
    """One member of the code. A tuple, because there are tens of thousands: a dataclass takes four times as long."""

    path: bytes
    """Relative to the root, raw bytes, `/` between components."""
    kind: Literal["file", "folder", "link"]
    """A folder is listed only when nothing in it is."""
    mode: int
    """0644, 0755 or 0600 of a file; 0755 of a folder, 0777 of a link."""
    size: int
    """Bytes of the content; of a link, of its target; 0 of a folder."""
    digest: str
    """SHA-256 of the content, 64 hex digits; of a link, of its target; of a folder, empty."""
    content: bytes | None = None
    """Of a generated file, and the target of a link; else it is on disk."""


@dataclass(frozen=True, slots=True)
class Skip:
    """What was seen and left out: a file, or a folder with all that is in it."""

    path: bytes
    reason: str
    rule: str | None
    """`file:line: pattern` or `built-in: name`; None when no rule did it."""


@dataclass(frozen=True, slots=True)
class Plain:
    """All files of one folder that is as it was: entries only for who asks."""

    listing: Listing
    memo: Memo

    def entries(self) -> Iterator[Entry]:
        """In no order."""
        private = _private_mode(self.listing.folder + b"/")
        modes = (private or (0o755 if mode & stat.S_IXUSR else 0o644) for mode in self.listing.numbers[::NUMBERS])
        sizes = self.listing.numbers[1::NUMBERS]
        return starmap(Entry, zip(self.listing.paths(), repeat("file"), modes, sizes, self.memo.hexes(), strict=False))


_Unread = tuple[bytes, Memo, int]
"""A file, the memo of its folder, its index there."""


class Scan:
    """Walks the folder that is open as `top`; an excluded folder is never opened, and no link is followed."""

    def __init__(self, top: int, rules: Exclusions, cache: StatCache, emit: Emit) -> None:
        self.plain: dict[bytes, Plain] = {}
        """By folder."""
        self.entries: list[Entry] = []
        """All other files, and empty folders, in no order."""
        self.links: dict[bytes, bytes] = {}
        """Path → target."""
        self.folders: set[bytes] = set()
        """All that were listed."""
        self.skipped: list[Skip] = []
        self.special: list[bytes] = []
        """FIFOs, sockets and devices that no rule excludes."""
        self.remarked: list[tuple[bytes, int]] = []
        """Path and bits of files with remarks."""
        self._top = top
        self._rules = rules
        self._cache = cache
        self._emit = emit
        self._files = 0
        self._unread: list[_Unread] = []
        self._unreadable: list[tuple[bytes, str]] = []

    def run(self) -> None:
        """Walk, then read what the cache does not know; `CodeError` names all that is unreadable."""
        pending = [b""]
        reported = 0
        while pending:
            pending += self._walk(pending.pop())
            if self._found() >= reported + _EMIT_EVERY:
                reported = self._found()
                self._report("listing")
        self._read_unknown()
        self._report("done")
        if self._unreadable:
            paths = [path for path, _ in sorted(self._unreadable)]
            reasons = ", ".join(sorted({reason for _, reason in self._unreadable}))
            raise CodeError(
                f"cannot read {named(paths)}: {reasons}",
                hint="make it readable (`chmod u+rX`), or list it in `.amltignore` when the job does not need it",
            )

    def _walk(self, folder: bytes) -> list[bytes]:
        """Take in one folder; the folders in it that are to be walked."""
        try:
            fd = open_beneath(self._top, folder, FOLDER)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            return self._cannot_read(folder or b".", error)
        try:
            if folder in self._rules.homes:
                return self._scripts(folder, fd)
            self.folders.add(folder)
            return self._sort_out(_list(folder, fd), fd)
        except OSError as error:
            return self._cannot_read(folder or b".", error)
        finally:
            os.close(fd)

    def _cannot_read(self, path: bytes, error: OSError) -> list[bytes]:
        self._unreadable.append((path, str(error.strerror)))
        return []

    def _scripts(self, home: bytes, fd: int) -> list[bytes]:
        """What is walked of AJ_HOME, which is never listed."""
        self.skipped.append(Skip(home, "aj's own state; only its `scripts/` travels", str(HOME_RULE)))
        path = home + b"/" + SCRIPTS
        try:
            mode = os.stat(SCRIPTS, dir_fd=fd, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return []
        if self._excludes(path, mode):
            return []
        if stat.S_ISLNK(mode):
            self._link(path, fd)
        return [path] if stat.S_ISDIR(mode) else []

    def _sort_out(self, listing: Listing, fd: int) -> list[bytes]:
        """Take in the files; the folders in it that are to be walked."""
        before = self._found()
        memo = self._cache.memo(listing, self._rules.digest)
        if memo.flags and memo.is_plain():
            self.plain[listing.folder] = Plain(listing, memo)
            self._files += len(memo.flags)
        else:
            self._judge(listing, memo, fd)
        prefix = listing.folder + b"/" if listing.folder else b""
        inner = [prefix + os.fsencode(name) for name in listing.folders]
        inner = [path for path in inner if not self._excludes(path, stat.S_IFDIR)]
        if listing.folder and not inner and self._found() == before:
            self.entries.append(Entry(listing.folder, "folder", 0o755, 0, ""))
        return inner

    def _judge(self, listing: Listing, memo: Memo, fd: int) -> None:
        """Ask the rules about each file that they did not select before, and note what is to be read."""
        for index, (path, mode) in enumerate(zip(listing.paths(), listing.numbers[::NUMBERS], strict=True)):
            flags = memo.flags[index]
            if not flags & SELECTED and self._excludes(path, mode):
                continue
            if flags & KNOWN:
                memo.flags[index] |= SELECTED
                self._add(path, mode, listing.numbers[index * NUMBERS + 1], memo.digest(index), flags)
            elif stat.S_ISREG(mode):
                self._unread.append((path, memo, index))
            elif stat.S_ISLNK(mode):
                self._link(path, fd)
            else:
                self.special.append(path)
                self.skipped.append(Skip(path, _KINDS.get(stat.S_IFMT(mode), "neither file, folder nor link"), None))

    def _report(self, detail: str) -> None:
        """The files whose digest is known so far."""
        self._emit(Event("scan", detail, completed=self._found() - len(self._unread)))

    def _found(self) -> int:
        return self._files + len(self.entries) + len(self._unread) + len(self.links)

    def _excludes(self, path: bytes, mode: int) -> bool:
        rule = self._rules.excluding(path, path.rpartition(b"/")[2], folder=stat.S_ISDIR(mode))
        if rule:
            self.skipped.append(Skip(path, "excluded", str(rule)))
        return rule is not None

    def _link(self, path: bytes, fd: int) -> None:
        try:
            self.links[path] = os.readlink(path.rpartition(b"/")[2], dir_fd=fd)
        except OSError:
            return  # gone, or no link any more

    def _read_unknown(self) -> None:
        batches = [self._unread[at : at + _BATCH] for at in range(0, len(self._unread), _BATCH)]
        self._unread = []
        pool = ThreadPoolExecutor(max(1, min(_THREADS, os.cpu_count() or 1)), "scan")
        try:
            for batch, contents in zip(batches, pool.map(self._read, batches), strict=True):
                for (path, memo, index), content in zip(batch, contents, strict=True):
                    if isinstance(content, OSError):
                        self._cannot_read(path, content)
                    elif content:
                        memo.learn(index, content)
                        self._add(path, content.status.st_mode, content.size, content.digest, content.remarks)
                self._report("reading")
        finally:
            pool.shutdown(cancel_futures=True)

    def _read(self, batch: list[_Unread]) -> list[Content | OSError | None]:
        return [self._read_one(path) for path, _, _ in batch]

    def _read_one(self, path: bytes) -> Content | OSError | None:
        try:
            return read_content(self._top, path)
        except OSError as error:
            return error

    def _add(self, path: bytes, mode: int, size: int, digest: bytes, remarks: int) -> None:
        packed = _private_mode(path) or (0o755 if mode & stat.S_IXUSR else 0o644)
        self.entries.append(Entry(path, "file", packed, size, digest.hex()))
        if remarks & (CREDENTIAL | CRLF_SCRIPT):
            self.remarked.append((path, remarks))


def _list(folder: bytes, fd: int) -> Listing:
    names: list[str] = []
    folders: list[str] = []
    numbers: list[int] = []
    with os.scandir(fd) as items:
        for item in items:
            if item.is_dir(follow_symlinks=False):
                folders.append(item.name)
                continue
            try:
                now = item.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            names.append(item.name)
            numbers += (now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino)
    return Listing(folder, folders, names, numbers)


def _private_mode(path: bytes) -> int:
    """0600 below a `.ssh/`, where ssh refuses anything wider; else 0."""
    return 0o600 if b"/.ssh/" in b"/" + path else 0
