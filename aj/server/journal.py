"""The journal of attempts: one JSON line each, appended whole or not at all, read newest first."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from aj.shared.errors import StoreError
from aj.shared.jsonio import Json, compact
from aj.shared.model import Notice

BLOCK = 64 * 1024
"""Bytes read at a time, from the end."""


class Journal:
    """`record.jsonl` of one AJ_HOME."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Mapping[str, Json]) -> None:
        """Add one line, durable when this returns; `StoreError` when it cannot be written.

        One write under a lock; a torn last line of a killed writer is closed first, so that it cannot swallow ours.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                os.fchmod(fd, 0o600)
                _write_line(fd, compact(dict(record)))
            finally:
                os.close(fd)
        except OSError as error:
            raise StoreError(f"cannot write the journal: {error.strerror}", where=str(self.path)) from error

    def newest(self, limit: int) -> tuple[list[dict[str, Json]], list[Notice]]:
        """At most `limit` records, newest first, and a warning for lines that are none (torn, or not by aj)."""
        records: list[dict[str, Json]] = []
        skipped = 0
        for line in _lines_from_the_end(self.path):
            if len(records) == limit:
                break
            record = _record(line)
            if record is not None:
                records.append(record)
            elif line.strip():
                skipped += 1
        what = "1 line that is" if skipped == 1 else f"{skipped} lines that are"
        warning = Notice(f"skipped {what} no record", where=str(self.path), hint="remove what aj did not write")
        return records, [warning] if skipped else []

    def has(self, job_id: str) -> bool:
        """Whether an attempt of this AJ_ID is among the recorded ones."""
        needle = job_id.encode()
        lines = (line for line in _lines_from_the_end(self.path) if needle in line)
        return any((record := _record(line)) is not None and record["id"] == job_id for line in lines)


def _write_line(fd: int, line: bytes) -> None:
    size = os.lseek(fd, 0, os.SEEK_END)
    torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
    whole = (b"\n" if torn else b"") + line + b"\n"
    written = os.write(fd, whole)
    if written != len(whole):
        os.ftruncate(fd, size)
        raise OSError(None, "the disk is full")
    os.fsync(fd)


def _record(line: bytes) -> dict[str, Json] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    known = isinstance(value, dict) and isinstance(value.get("id"), str) and isinstance(value.get("status"), str)
    return value if known else None


def _lines_from_the_end(path: Path) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"cannot read the journal: {error.strerror}", where=str(path)) from error
    with file:
        position = file.seek(0, os.SEEK_END)
        rest: list[bytes] = []
        while position:
            step = min(BLOCK, position)
            position -= step
            file.seek(position)
            first, *others = file.read(step).split(b"\n")
            if others:
                rest.append(others.pop())
                yield b"".join(reversed(rest))
                yield from reversed(others)
                rest = []
            rest.append(first)
        yield b"".join(reversed(rest))
