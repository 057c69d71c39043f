"""Canonical JSON, digests, files that are either old or new but never half, and their locks."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_INVISIBLE = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]")

Json = Any
"""A JSON value: None, bool, int, float, str, list or dict with text keys."""


def canonical(value: Json) -> bytes:
    """The one spelling of a JSON value: sorted keys, two blanks of indent, UTF-8, a final newline, no NaN.

    What a reviewer could not see (controls, directions, line separators, lone surrogates) is written as an escape.
    """
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return (_INVISIBLE.sub(lambda found: f"\\u{ord(found.group()):04x}", text) + "\n").encode()


def compact(value: Json) -> bytes:
    """The same value on one line, for journals and wires."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256(content: bytes) -> str:
    """64 lower-case hex digits."""
    return hashlib.sha256(content).hexdigest()


def digest(value: Json) -> str:
    """SHA-256 of the value's compact spelling: the digest of a step's key."""
    return sha256(compact(value))


def read_json(path: Path) -> Json:
    """The document at `path`; `OSError` when it cannot be read, `ValueError` when it is not JSON."""
    return json.loads(path.read_bytes())


def write_file(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace `path` atomically: temporary name beside it, fsync, rename, fsync of the folder.

    A kill leaves only `*.tmp-<pid>`; `OSError` (disk full) leaves the old file and no temporary one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_if_changed(path: Path, content: bytes, *, mode: int = 0o600) -> bool:
    """`write_file` unless the bytes are there already; True when it wrote. Early cut-off rests on this."""
    with suppress(OSError):
        if path.read_bytes() == content:
            return False
    write_file(path, content, mode=mode)
    return True


@contextmanager
def locked(path: Path, operation: int = fcntl.LOCK_EX) -> Iterator[int]:
    """Hold the lock file `path`, made where it is missing, as `flock` says; its descriptor."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, operation)
        yield fd
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def pointer(*parts: str | int) -> str:
    """The JSON pointer (RFC 6901) of a path: `pointer("jobs", 0, "sku")` is `/jobs/0/sku`."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def parts(where: str) -> list[str]:
    """The keys and indices of a JSON pointer, as text."""
    return [part.replace("~1", "/").replace("~0", "~") for part in where.split("/")[1:]]


def dotted(*path: str | int) -> str:
    """A path as people write it: `jobs[0].tags`."""
    return "".join(f"[{part}]" if str(part).isdecimal() else f".{part}" for part in path).removeprefix(".")


def at(document: Json, where: str, default: Json = None) -> Json:
    """The value at a JSON pointer, or `default` where a part of the way is missing."""
    value = document
    for part in parts(where):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isascii() and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return default
    return value
