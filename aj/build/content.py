"""Reading one file to its end: its digest, what about it deserves a word, and whether it stood still meanwhile."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from dataclasses import dataclass

from aj.build.beneath import FILE, open_beneath
from aj.build.remarks import remarks
from aj.shared import clock

_CHUNK = 1 << 20
_ATTEMPTS = 3
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR}
"""What opening says when the regular file that was listed is no longer one."""


@dataclass(frozen=True, slots=True)
class Content:
    """What one reading found."""

    status: os.stat_result
    """Of before the first byte."""
    began_ns: int
    """Wall clock of before `status`."""
    size: int
    """Bytes that were read."""
    digest: bytes
    remarks: int
    """See `aj.build.remarks`."""
    still: bool
    """Size, times and inode were the same after the last byte."""


def read_content(root: int, path: bytes) -> Content | None:
    """Read a file below the open folder `root` in bounded memory; None when it is no regular file any more.

    A file that changes while it is read is read again, a few times. `OSError` when it is unreadable.
    """
    content = _read(root, path)
    for _ in range(1, _ATTEMPTS):
        if content is None or content.still:
            break
        content = _read(root, path)
    return content


def _read(root: int, path: bytes) -> Content | None:
    began = clock.now_ns()
    try:
        fd = open_beneath(root, path, FILE)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise
    try:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            return None
        digest, head, size = hashlib.sha256(), b"", 0
        while size <= before.st_size and (chunk := os.read(fd, min(_CHUNK, before.st_size - size + 1))):
            digest.update(chunk)
            head = head or chunk
            size += len(chunk)
        still = size == before.st_size and _key(os.fstat(fd)) == _key(before)
        return Content(before, began, size, digest.digest(), remarks(path, head), still)
    finally:
        os.close(fd)


def _key(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
