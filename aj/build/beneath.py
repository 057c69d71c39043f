"""Opening files below one folder by raw path: never through a final link, however long the path is."""

from __future__ import annotations

import os
from pathlib import Path

_ONE_CALL = 2048
"""Bytes of a path that the kernel surely takes at once (PATH_MAX is 4,096 on Linux, 1,024 with names on macOS)."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
"""Not blocking: a file that turned into a FIFO must not hold us."""


def open_beneath(root: int, path: bytes, flags: int) -> int:
    """A descriptor of `path`, relative to the open folder `root`; `OSError` as `os.open` raises it."""
    at = root
    try:
        while len(path) > _ONE_CALL:
            cut = path.rindex(b"/", 0, _ONE_CALL)
            deeper = os.open(path[:cut], FOLDER, dir_fd=at)
            if at != root:
                os.close(at)
            at, path = deeper, path[cut + 1 :]
        return os.open(path or b".", flags, dir_fd=at)
    finally:
        if at != root:
            os.close(at)


def open_root(root: Path) -> int:
    """A descriptor of the folder itself, which may be reached by links."""
    return os.open(root, os.O_RDONLY | os.O_DIRECTORY)


def spellings(folder: Path) -> tuple[bytes, bytes]:
    """The folder's absolute path without a final `/`: as written, and with all links resolved."""
    written = os.path.normpath(folder.absolute())
    return os.fsencode(written).rstrip(b"/"), os.fsencode(folder.resolve()).rstrip(b"/")


def shown(path: bytes) -> str:
    """A raw path or pattern for people: what is not UTF-8 or not printable is escaped."""
    text = path.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
