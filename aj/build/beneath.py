"""Opening and reading below one folder by raw path: never through a final link, however long the path is."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from aj.shared import clock
from aj.shared.errors import CodeError

_ONE_CALL = 2048
"""Bytes of a path that the kernel surely takes at once (PATH_MAX is 4,096 on Linux, 1,024 with names on macOS)."""
_CHUNK = 1 << 20
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
"""Not blocking: a file that turned into a FIFO must not hold us."""
GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR}
"""What opening says when the regular file that was listed is no longer one."""


@contextmanager
def opened(root: int, path: bytes, flags: int) -> Iterator[int]:
    """A descriptor of `path`, relative to the open folder `root`; `OSError` as `os.open` raises it."""
    at = root
    try:
        while len(path) > _ONE_CALL:
            cut = path.rindex(b"/", 0, _ONE_CALL)
            deeper = os.open(path[:cut], FOLDER, dir_fd=at)
            if at != root:
                os.close(at)
            at, path = deeper, path[cut + 1 :]
        fd = os.open(path or b".", flags, dir_fd=at)
    finally:
        if at != root:
            os.close(at)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def opened_root(root: Path) -> Iterator[int]:
    """A descriptor of the code folder itself, which may be reached by links; `CodeError` when it cannot be read."""
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        text = f"the code folder cannot be read: {error.strerror}"
        raise CodeError(text, where=str(root), hint="run aj where your code is") from None
    try:
        yield fd
    finally:
        os.close(fd)


def spellings(folder: Path) -> tuple[bytes, bytes]:
    """The folder's absolute path without a final `/`: as written, and with all links resolved."""
    written = os.path.normpath(folder.absolute())
    return os.fsencode(written).rstrip(b"/"), os.fsencode(folder.resolve()).rstrip(b"/")


def parents(path: bytes) -> list[bytes]:
    """The folders that `path` lies in, the topmost first."""
    return list(accumulate(path.split(b"/")[:-1], lambda folder, name: folder + b"/" + name))


@dataclass(frozen=True, slots=True)
class Content:
    """What one reading of a file found."""

    status: os.stat_result
    """Of before the first byte."""
    began_ns: int
    """Wall clock of before `status`."""
    size: int
    """Bytes that were read."""
    digest: bytes
    head: bytes
    """The beginning: all of a small file."""
    still: bool
    """Size, times and inode were the same after the last byte."""


def read_content(root: int, path: bytes) -> Content | None:
    """Read a file below the open folder `root` in bounded memory; None when it is no regular file any more.

    `OSError` when it is unreadable.
    """
    began = clock.now_ns()
    try:
        with opened(root, path, FILE) as fd:
            before = os.fstat(fd)
            if not stat.S_ISREG(before.st_mode):
                return None
            digest, head, size = hashlib.sha256(), b"", 0
            while size <= before.st_size and (chunk := os.read(fd, min(_CHUNK, before.st_size - size + 1))):
                digest.update(chunk)
                head = head or chunk
                size += len(chunk)
            still = size == before.st_size and look(os.fstat(fd)) == look(before)
            return Content(before, began, size, digest.digest(), head, still)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise


def look(status: os.stat_result) -> tuple[int, ...]:
    """What changes with a file: mode, size in bytes, mtime and ctime in nanoseconds, inode."""
    return status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
