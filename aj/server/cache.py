"""The caller's cache of archives: what lies in it, and what may go."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from aj.build.store import LIMIT, Store, Stored
from aj.server.bodies import Cleaning
from aj.shared.caller import CALLER_HEADER
from aj.shared.clock import now_ns
from aj.shared.errors import RequestError
from aj.shared.jsonio import Json
from aj.shared.model import Caller
from aj.shared.paths import cache_home

DAY_NS = 24 * 3600 * 10**9


def show(caller: Caller) -> Json:
    """The `Cache` document: folder, limit, bytes, and the archives in the order in which they would go."""
    store = _store(caller)
    stored = store.entries()
    archives = [{**row, "in_use": store.in_use(row["sha256"])} for row in _rows(stored)]
    return {"folder": str(store.folder), "limit": LIMIT, "bytes": _size(stored), "archives": archives}


def clean(caller: Caller, asked: Cleaning) -> Json:
    """The `CleanedCache` document: folder, removed, freed, and the archives and bytes that are left."""
    store = _store(caller)
    collect = store.surplus if asked.dry_run else store.gc
    limit = LIMIT if asked.max_bytes is None else asked.max_bytes
    since = 0 if asked.unused_days is None else now_ns() - asked.unused_days * DAY_NS
    cleaned = collect(limit, unused_since_ns=since)
    gone = {entry.sha256 for entry in cleaned.removed}
    left = [entry for entry in store.entries() if entry.sha256 not in gone]
    return {
        "folder": str(store.folder),
        "dry_run": asked.dry_run,
        "removed": _rows(cleaned.removed),
        "freed": cleaned.freed,
        "left": _size(left),
        "left_archives": len(left),
    }


def _store(caller: Caller) -> Store:
    if not caller.env:
        raise RequestError(f"the header `{CALLER_HEADER}` is missing", hint="its environment says which cache is meant")
    return Store(cache_home(caller.env))


def _rows(stored: Iterable[Stored]) -> list[dict[str, Json]]:
    times = ((entry, datetime.fromtimestamp(entry.used_ns // 10**9, UTC)) for entry in stored)
    return [{"sha256": entry.sha256, "size": entry.size, "used_at": used.isoformat()} for entry, used in times]


def _size(stored: Iterable[Stored]) -> int:
    return sum(entry.size for entry in stored)
