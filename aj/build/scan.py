"""The one walk over a code folder: what is in it, what is left out, and the digests of its files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat, starmap
from typing import Literal, NamedTuple

from aj.build.beneath import FOLDER, Content, look, opened, read_content
from aj.build.remarks import SPECIAL, named, remarks
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


class Plain(NamedTuple):
    """All files of one folder that is as it was: entries only for who asks."""

    listing: Listing
    memo: Memo

    def entries(self) -> Iterator[Entry]:
        """In no order."""
        private = _private_mode(self.listing.folder + b"/")
        modes = (private or _mode(mode) for mode in self.listing.numbers[::NUMBERS])
        sizes = self.listing.numbers[1::NUMBERS]
        return starmap(Entry, zip(self.listing.paths(), repeat("file"), modes, sizes, self.memo.hexes(), strict=False))


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
        self.remarked: list[tuple[bytes, int]] = []
        """Path and bits (see `aj.build.remarks`) of what deserves a word."""
        self._top = top
        self._rules = rules
        self._cache = cache
        self._emit = emit
        self._plain_files = 0
        self._unread: list[tuple[bytes, Memo, int]] = []
        """Path, memo of the folder, index there."""
        self._unreadable: dict[bytes, str] = {}

    def run(self) -> None:
        """Walk, then read what the cache does not know; `CodeError` names all that is unreadable."""
        self._cache.obey(self._rules.digest)
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
            reasons = ", ".join(sorted(set(self._unreadable.values())))
            raise CodeError(
                f"cannot read {named(sorted(self._unreadable))}: {reasons}",
                hint="make it readable (`chmod u+rX`), or list it in `.amltignore` when the job does not need it",
            )

    def _walk(self, folder: bytes) -> Iterable[bytes]:
        """Take in one folder; the folders in it that are to be walked."""
        try:
            with opened(self._top, folder, FOLDER) as fd:
                if folder in self._rules.homes:
                    return self._scripts(folder, fd)
                self.folders.add(folder)
                return self._sort_out(_list(folder, fd), fd)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            self._unreadable[folder or b"."] = str(error.strerror)
        return ()

    def _scripts(self, home: bytes, fd: int) -> list[bytes]:
        """What is walked of AJ_HOME, which is never listed."""
        self.skipped.append(Skip(home, "aj's own state; only its `scripts/` travels", str(HOME_RULE)))
        path = home + b"/" + SCRIPTS
        mode = os.stat(SCRIPTS, dir_fd=fd, follow_symlinks=False).st_mode
        if self._excludes(path, mode):
            return []
        if stat.S_ISLNK(mode):
            self._link(path, fd)
        return [path] if stat.S_ISDIR(mode) else []

    def _sort_out(self, listing: Listing, fd: int) -> list[bytes]:
        """Take in the files; the folders in it that are to be walked."""
        before = self._found()
        memo = self._cache.memo(listing)
        if memo.flags and memo.is_plain():
            self.plain[listing.folder] = Plain(listing, memo)
            self._plain_files += len(memo.flags)
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
                self._cache.select(memo, index)
                self._add(path, mode, listing.numbers[index * NUMBERS + 1], memo.digest(index), flags)
            elif stat.S_ISREG(mode):
                self._unread.append((path, memo, index))
            elif stat.S_ISLNK(mode):
                self._link(path, fd)
            else:
                self.remarked.append((path, SPECIAL))
                self.skipped.append(Skip(path, _KINDS.get(stat.S_IFMT(mode), "neither file, folder nor link"), None))

    def _report(self, detail: str) -> None:
        """The files whose digest is known so far."""
        self._emit(Event("scan", detail, completed=self._found() - len(self._unread)))

    def _found(self) -> int:
        return self._plain_files + len(self.entries) + len(self._unread) + len(self.links)

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
        pool = ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), "scan")
        try:
            for batch, contents in zip(batches, pool.map(self._read, batches), strict=True):
                for (path, memo, index), content in zip(batch, contents, strict=True):
                    if isinstance(content, str):
                        self._unreadable[path] = content
                    elif content:
                        found = remarks(path, content.head)
                        self._cache.learn(memo, index, content, found)
                        self._add(path, content.status.st_mode, content.size, content.digest, found)
                self._report("reading")
        finally:
            pool.shutdown(cancel_futures=True)

    def _read(self, batch: list[tuple[bytes, Memo, int]]) -> list[Content | str | None]:
        """Of each file its content, None when it is gone, or why it cannot be read."""
        found: list[Content | str | None] = []
        for path, _, _ in batch:
            try:
                found.append(read_content(self._top, path))
            except OSError as error:
                found.append(str(error.strerror))
        return found

    def _add(self, path: bytes, mode: int, size: int, digest: bytes, remarks: int) -> None:
        self.entries.append(Entry(path, "file", _private_mode(path) or _mode(mode), size, digest.hex()))
        if remarks & ~(KNOWN | SELECTED):
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
                numbers += look(item.stat(follow_symlinks=False))
            except FileNotFoundError:
                continue
            names.append(item.name)
    return Listing(folder, folders, names, numbers)


def _mode(mode: int) -> int:
    return 0o755 if mode & stat.S_IXUSR else 0o644


def _private_mode(path: bytes) -> int:
    """0600 below a `.ssh/`, where ssh refuses anything wider; else 0."""
    return 0o600 if b"/.ssh/" in b"/" + path else 0
