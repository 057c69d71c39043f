"""Who keeps a file of the cache: a process that has it open and locked, or a link to a file outside that exists."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def hold(path: Path) -> int | None:
    """A descriptor that keeps the file from `alone`, None when there is no file."""
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


@contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Whether the file is there and nobody else holds it, which stays so inside the `with`."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def pin(path: Path, witness: Path) -> None:
    """Keep the file as long as `witness` exists; pins whose witness is gone go."""
    for old in pins(path):
        if not _is_alive(old):
            old.unlink(missing_ok=True)
    name = hashlib.sha256(os.fsencode(witness)).hexdigest()[:16]
    with suppress(FileExistsError):
        path.with_name(f"{path.name[:64]}.pin-{name}").symlink_to(witness)


def is_pinned(path: Path) -> bool:
    """Whether something that is still there waits for the file."""
    return any(map(_is_alive, pins(path)))


def pins(path: Path) -> list[Path]:
    """The links that keep the file, whether or not what they wait for is still there."""
    return list(path.parent.glob(path.name.removesuffix(".tar.gz") + ".pin-*"))


def _is_alive(pin: Path) -> bool:
    try:
        pin.stat()
    except FileNotFoundError:
        return False
    except OSError:  # its disk does not answer: it may exist
        return True
    return True
