"""Which aj this is: two processes of the same fingerprint run the same code and read the same data files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from aj import __version__
from aj.shared.jsonio import sha256
from aj.shared.paths import shipped

PROTOCOL = 1
"""Raised when a route, a body or a header changes its meaning; `/v1/info` and `/v1/shutdown` never change theirs."""
OLDEST_PROTOCOL = 1
"""The first one that the daemon still understands."""
ROOT_HEADER = "X-AJ-Root"
"""Carries AJ_HOME, absolute, percent-encoded."""


def fingerprint() -> str:
    """16 hex digits over version, interpreter, and name, size and mtime of aj's own files: an edit changes it."""
    lines = [__version__, sys.version]
    for label, folder in (("aj", package()), ("backends", shipped("backends")), ("schemas", shipped("schemas"))):
        lines.extend(sorted(f"{label}/{line}" for line in _files(folder, "")))
    return sha256("\n".join(lines).encode("utf-8", "surrogateescape"))[:16]


def package() -> Path:
    """The folder of the package `aj` that is running."""
    return Path(__file__).resolve().parent.parent


def _files(folder: Path | str, below: str) -> Iterator[str]:
    with os.scandir(folder) as found:
        for entry in found:
            if entry.name.startswith((".", "__pycache__")) or entry.name.endswith((".pyc", "~")):
                continue
            if entry.is_dir():
                yield from _files(entry.path, f"{below}{entry.name}/")
            else:
                status = entry.stat()
                yield f"{below}{entry.name} {status.st_size} {status.st_mtime_ns}"
