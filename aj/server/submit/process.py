"""Who a process is: its pid together with its start, so that a reused pid is never taken for it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

_PROC = Path("/proc")


def start_of(pid: int) -> str | None:
    """When and in which boot `pid` started, as an opaque text; None when it is gone or dead and not yet waited for."""
    if not (_PROC / "self" / "stat").exists():
        return _start_by_ps(pid)
    fields = _stat(pid)
    if fields is None or fields[0] in ("Z", "X"):
        return None
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{fields[19]}"


def send(pid: int, start: str, number: signal.Signals) -> bool:
    """Signal `pid` if it is still the process that started then; False when that one is gone."""
    if not hasattr(os, "pidfd_open"):
        if start_of(pid) != start:
            return False
        os.kill(pid, number)
        return True
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # The descriptor holds the process: what is checked here is what is signalled below.
        if start_of(pid) != start:
            return False
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def descendants(pid: int) -> list[int]:
    """All living processes below `pid`, parents before children; empty where there is no `/proc`."""
    parents: dict[int, list[int]] = {}
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None and fields[0] not in ("Z", "X"):
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = list(parents.get(pid, []))
    for member in found:
        found.extend(parents.get(member, []))
    return found


def _stat(pid: int) -> list[str] | None:
    """The fields of `/proc/<pid>/stat` from the state on: the name before it may hold blanks and brackets."""
    try:
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _start_by_ps(pid: int) -> str | None:
    listed = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = listed.stdout.strip().partition(" ")
    return None if listed.returncode or state.startswith("Z") else started.strip()
