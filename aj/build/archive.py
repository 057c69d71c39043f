"""How a selection becomes a `.tar.gz`: the same bytes on every machine, day, Python and number of threads."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import deflate

from aj.build.beneath import FILE, GONE, opened, opened_root, parents
from aj.build.links import resolve
from aj.build.select import Entry, Selection
from aj.build.tar import END, header, padding
from aj.shared.errors import ArchiveError, CodeChanged, CodeError
from aj.shared.model import ArchiveRecord, Emit, Event
from aj.shared.paths import shown

FORMAT = 1
"""The version of the byte format: raised with any change of the tar layout, of `BLOCK`, of the level, or of the
bytes that the deflate library writes. It is part of the archive step's key; the address is the digest of the real
bytes, so that even a change that went unnoticed costs one upload and never a wrong archive."""
BLOCK = 1 << 20
"""Bytes of tar in each gzip member: where the members begin must not depend on the number of threads."""

_LEVEL = 5
_MAX_THREADS = 8


def pack(selection: Selection, out: BinaryIO, emit: Emit, *, threads: int | None = None) -> ArchiveRecord:
    """Stream the archive of `selection` into `out`; `threads` compress, by default one a processor, at most 8.

    `CodeChanged` when a file is no longer what was selected, `CodeError` for a path or link that must not be packed and
    a folder that is gone, `ArchiveError` when a file cannot be read; then `out` holds a part that must be thrown away.
    """
    members = _members(selection.entries)
    _check_links(selection.root, members)
    progress = _Progress(emit, sum(member.size for member in members if member.kind == "file"))
    threads = threads or min(_MAX_THREADS, os.cpu_count() or 1)
    with opened_root(selection.root) as root, ThreadPoolExecutor(threads, thread_name_prefix="deflate") as pool:
        stream = _Stream(out, pool, window=threads + 2)
        for member in members:
            _write(member, root, stream, progress)
        stream.write(END)
        stream.finish()
    files = sum(member.kind != "folder" for member in members)
    return ArchiveRecord(stream.digest.hexdigest(), stream.size, files, selection.tree, FORMAT)


def _members(entries: Iterable[Entry]) -> list[Entry]:
    """The entries and all their parent folders by raw path: each folder comes before what lies in it."""
    found: dict[bytes, Entry] = {}
    for entry in entries:
        _check_path(entry.path)
        if entry.path in found:
            raise CodeError(f"`{shown(entry.path)}` was selected twice")
        found[entry.path] = entry
    for path in list(found):
        for parent in parents(path):
            folder = found.setdefault(parent, Entry(parent, "folder", 0o755, 0, ""))
            if folder.kind != "folder":
                raise CodeError(f"`{shown(path)}` lies below `{shown(parent)}`, which is a {folder.kind}")
    return [found[path] for path in sorted(found)]


def _check_path(path: bytes) -> None:
    if b"\0" in path or not {b"", b".", b".."}.isdisjoint(path.split(b"/")):
        raise CodeError(f"`{shown(path)}` is not a safe path for an archive", hint="rename it, or ignore it")


def _check_links(root: Path, members: Iterable[Entry]) -> None:
    targets = {member.path: member.content or b"" for member in members if member.kind == "link"}
    for link in resolve(root, targets):
        if link.leads_to is None or link.target != targets[link.path] or b"\0" in link.target or not link.target:
            raise CodeError(
                f"the link `{shown(link.path)}` leaves the code folder: it points to `{shown(targets[link.path])}`",
                hint="copy what it points to, or ignore it",
            )


class _Progress:
    """Says how many bytes of files were read: about a hundred times at most, and at the end."""

    def __init__(self, emit: Emit, total: int) -> None:
        self._emit = emit
        self._total = total
        self._done = 0
        self._next = 0
        self.add(0)

    def add(self, count: int) -> None:
        self._done += count
        if self._done >= self._next or self._done == self._total:
            self._next = self._done + max(self._total // 100, 4 << 20)
            self._emit(Event("pack", "packing the code", self._done, self._total))


class _Stream:
    """A tar stream, cut into blocks that other threads turn into one gzip member each, written in their order."""

    def __init__(self, out: BinaryIO, pool: Executor, window: int) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        self._out = out
        self._pool = pool
        self._window = window
        self._pending: deque[Future[bytearray]] = deque()
        self._block = memoryview(bytearray(BLOCK))
        self._filled = 0

    def room(self, limit: int) -> memoryview:
        """Where the next bytes go, at most `limit`; say with `advance` how many came."""
        return self._block[self._filled : self._filled + limit]

    def advance(self, count: int) -> None:
        self._filled += count
        if self._filled == BLOCK:
            self._submit(self._block)
            self._block = memoryview(bytearray(BLOCK))

    def write(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            room = self.room(len(rest))
            room[:] = rest[: len(room)]
            self.advance(len(room))
            rest = rest[len(room) :]

    def finish(self) -> None:
        if self._filled:
            self._submit(self._block[: self._filled])
        while self._pending:
            self._write_oldest()

    def _submit(self, block: memoryview) -> None:
        if len(self._pending) == self._window:
            self._write_oldest()
        self._pending.append(self._pool.submit(deflate.gzip_compress, block, _LEVEL))
        self._filled = 0

    def _write_oldest(self) -> None:
        member = self._pending.popleft().result()
        self.digest.update(member)
        self.size += len(member)
        self._out.write(member)


def _write(member: Entry, root: int, stream: _Stream, progress: _Progress) -> None:
    if member.kind != "file":
        stream.write(header(member.path, member.kind, 0o755, target=member.content or b""))
        return
    stream.write(header(member.path, "file", member.mode & 0o755, size=member.size))
    if member.content is None:
        _copy(member, root, stream, progress)
    elif len(member.content) == member.size:
        stream.write(member.content)
        progress.add(member.size)
    else:
        raise _changed(member)
    stream.write(padding(member.size))


def _copy(member: Entry, root: int, stream: _Stream, progress: _Progress) -> None:
    """The file's bytes, read once, which must be the ones that were selected."""
    with ExitStack() as stack:
        with _reading(member):
            fd = stack.enter_context(opened(root, member.path, FILE))
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode) or state.st_size != member.size:
            raise _changed(member)
        digest = hashlib.sha256()
        left = member.size
        while left:
            room = stream.room(left)
            with _reading(member):
                count = os.readv(fd, [room])
            if not count:
                raise _changed(member)
            digest.update(room[:count])
            stream.advance(count)
            progress.add(count)
            left -= count
        if digest.hexdigest() != member.digest or os.fstat(fd).st_size != member.size:
            raise _changed(member)


@contextmanager
def _reading(member: Entry) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in GONE:
            raise _changed(member) from error
        text = f"cannot read `{shown(member.path)}`: {error.strerror}"
        raise ArchiveError(text, hint="fix its permissions or ignore it") from error


def _changed(member: Entry) -> CodeChanged:
    text = f"`{shown(member.path)}` changed while it was packed"
    return CodeChanged(text, hint="wait until it is written, or ignore it")
