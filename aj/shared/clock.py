"""The only source of time and chance."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime


def now_utc() -> str:
    """The current time as ISO 8601 UTC in whole seconds, for example `2026-01-31T08:00:00+00:00`."""
    return datetime.now(UTC).replace(microsecond=0).isoformat()


def now_ns() -> int:
    """Wall clock in nanoseconds, comparable with a file's mtime."""
    return time.time_ns()


def monotonic() -> float:
    """Seconds that never go backwards, for durations and time-outs."""
    return time.monotonic()


def new_id() -> str:
    """A fresh AJ_ID: 8 lower-case hex digits."""
    return secrets.token_hex(4)
