"""The queue of one project on disk: every submission is an entry, each change durable before what it announces."""

from __future__ import annotations

import json
import os
import sqlite3  # noqa: TID253
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any, Literal, TypeVar

from aj.shared.clock import now_utc
from aj.shared.errors import ConflictError, NotFoundError, StoreError
from aj.shared.jsonio import Json, compact
from aj.shared.model import Notice

State = Literal["pending", "submitting", "done", "failed", "canceled", "unknown"]
FINISHED: tuple[State, ...] = ("done", "failed", "canceled", "unknown")
KEPT = 500
"""Finished entries that stay listed; the journal keeps the rest."""

MIGRATIONS = (
    """
    CREATE TABLE entries (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        turn INTEGER UNIQUE,
        ticket TEXT NOT NULL UNIQUE,
        id TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        template TEXT NOT NULL,
        backend TEXT NOT NULL,
        state TEXT NOT NULL DEFAULT 'pending',
        enqueued_at TEXT NOT NULL,
        started_at TEXT,
        finished_at TEXT,
        detail TEXT,
        sealed TEXT,
        record TEXT NOT NULL,
        result TEXT,
        recorded INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX by_state ON entries (state, turn);
    """,
)
"""Script n brings a database from version n to n + 1."""

_COLUMNS = "ticket, id, name, template, backend, state, enqueued_at, started_at, finished_at, detail, result, turn"
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """One submission as people see it: the `queue_entry` document without its `kind`."""

    ticket: str
    id: str
    name: str
    template: str
    backend: str
    state: State
    enqueued_at: str
    started_at: str | None = None
    finished_at: str | None = None
    detail: str | None = None
    result: Mapping[str, Json] | None = None
    turn: int | None = None
    """Its place in the order of submission; None while its archive and payload are still being made."""

    def document(self) -> dict[str, Json]:
        """For the wire."""
        keys = [key for key in self.__dataclass_fields__ if key != "turn"]
        return {key: getattr(self, key) for key in keys}


class Queue:
    """`queue.db` of one AJ_HOME, used by one daemon at a time; every method may be called from any thread.

    Until `open` it is empty, whatever lies on the disk. `StoreError` when the disk refuses. A database that is no
    database is set aside, with a warning in `notices`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notices: list[Notice] = []
        self._lock = RLock()
        self._is_open = False
        self._database: sqlite3.Connection | None = None

    def open(self) -> Queue:
        """Make the file where there is none, and read it from now on."""
        self._is_open = True
        self._run(lambda database: None)
        return self

    def close(self) -> None:
        """Everything is on disk already; this only lets go of the files."""
        with self._lock:
            self._is_open = False
            self._let_go()

    def accept(self, entry: Entry, record: Json) -> None:
        """Store a new entry; `ConflictError` when its id was accepted before, because nothing is sent twice.

        `record` is what the journal will say of it, as far as it is known.
        """
        columns = ("ticket", "id", "name", "template", "backend", "enqueued_at", "detail")
        values = (*(getattr(entry, column) for column in columns), _text(record))
        try:
            self._write(f"INSERT INTO entries ({', '.join(columns)}, record) VALUES (?,?,?,?,?,?,?,?)", values)
        except sqlite3.IntegrityError as error:
            hint = f"see `aj queue show {entry.id}`; a new run has a new id"
            raise ConflictError(f"a submission `{entry.id}` was accepted before", hint=hint) from error

    def ready(self, ticket: str, sealed: Json, record: Json) -> bool:
        """Store what will be sent and what the journal will say, give the entry its turn; False: it was canceled."""
        statement = """UPDATE entries SET sealed=?, record=?, detail=NULL,
            turn=(SELECT coalesce(max(turn), 0) + 1 FROM entries) WHERE ticket=? AND state='pending'"""
        return self._write(statement, (_text(sealed), _text(record), ticket)) == 1

    def next(self) -> Entry | None:
        """The pending entry whose turn it is."""
        where = "state='pending' AND turn IS NOT NULL ORDER BY turn LIMIT 1"
        return next(iter(self._entries(where)), None)

    def begin(self, ticket: str) -> bool:
        """Pending becomes submitting: only then may anything be written remotely. False: it was canceled meanwhile."""
        statement = "UPDATE entries SET state='submitting', started_at=? WHERE ticket=? AND state='pending'"
        return self._write(statement, (now_utc(), ticket)) == 1

    def finish(self, ticket: str, state: State, detail: str | None, result: Json) -> bool:
        """The end of an entry: what was to be sent is overwritten, old history dropped. False: it had ended before."""
        statement = """UPDATE entries SET state=?, finished_at=?, detail=?, result=?, sealed=NULL
            WHERE ticket=? AND state IN ('pending', 'submitting')"""
        changed = self._write(statement, (state, now_utc(), detail, _text(result), ticket)) == 1
        self._forget()
        return changed

    def cancel(self, ticket: str) -> Entry:
        """End a pending entry before anything was sent; `ConflictError` for any other."""
        statement = """UPDATE entries SET state='canceled', finished_at=?, detail='canceled before it was sent',
            sealed=NULL, recorded=1 WHERE ticket=? AND state='pending'"""
        changed = self._write(statement, (now_utc(), ticket)) == 1
        entry = self.find(ticket)
        if not changed:
            raise ConflictError(
                f"`{entry.ticket}` is {entry.state}, only pending entries can be canceled",
                hint=f"`aj job cancel {entry.id}` ends a submitted job",
            )
        self._forget()
        return entry

    def entries(self) -> list[Entry]:
        """All entries, newest first."""
        return self._entries("1 ORDER BY number DESC")

    def find(self, ref: str) -> Entry:
        """By ticket, id or name, or the unique start of one; `NotFoundError` otherwise."""
        found = self._entries("ticket=?1 OR id=?1 OR name=?1 OR json_extract(result, '$.azure_name')=?1", (ref,))
        if not found and ref:
            start = "substr({0}, 1, length(?1)) = ?1"
            found = self._entries(" OR ".join(start.format(name) for name in ("ticket", "id", "name")), (ref,))
        if len(found) == 1:
            return found[0]
        if found:
            near = ", ".join(f"`{entry.ticket}` ({entry.name})" for entry in found[:5])
            raise NotFoundError(f"`{ref}` is the start of {len(found)} entries", hint=f"say more of it: {near}")
        shown = "`aj queue list` shows the tickets, `aj list` older runs"
        hint = shown if self._is_open else "nothing was submitted in this project yet"
        raise NotFoundError(f"no queue entry `{ref}`", hint=hint)

    def sealed(self, ticket: str) -> Json:
        """What `ready` stored, None once the entry has ended."""
        rows = self._read("SELECT sealed FROM entries WHERE ticket=?", (ticket,))
        return json.loads(rows[0][0]) if rows and rows[0][0] else None

    def record(self, ticket: str) -> dict[str, Json]:
        """What is known for the journal, `{}` for an entry that is gone."""
        rows = self._read("SELECT record FROM entries WHERE ticket=?", (ticket,))
        found = json.loads(rows[0][0]) if rows and rows[0][0] else {}
        return found if isinstance(found, dict) else {}

    def interrupted(self) -> list[Entry]:
        """What a daemon that died left behind: entries in the middle of being made or sent, oldest first."""
        return self._entries("state='submitting' OR (state='pending' AND turn IS NULL) ORDER BY number")

    def pending(self) -> list[Entry]:
        """Entries that wait for their turn, in its order."""
        return self._entries("state='pending' AND turn IS NOT NULL ORDER BY turn")

    def unrecorded(self) -> list[Entry]:
        """Finished entries that the journal may lack, oldest first."""
        return self._entries("state IN ('done', 'failed', 'unknown') AND recorded=0 ORDER BY number")

    def recorded(self, ticket: str) -> None:
        """The journal has this attempt."""
        self._write("UPDATE entries SET recorded=1 WHERE ticket=?", (ticket,))

    def _entries(self, where: str, values: tuple[Any, ...] = ()) -> list[Entry]:
        rows = self._read(f"SELECT {_COLUMNS} FROM entries WHERE {where}", values)
        return [_entry(row) for row in rows]

    def _forget(self) -> None:
        """Drop the oldest finished entries, and copies of what was cleared that the write-ahead log still has."""
        finished = "state IN ('done', 'failed', 'canceled', 'unknown')"
        keep = f"SELECT number FROM entries WHERE {finished} ORDER BY number DESC LIMIT {KEPT}"
        self._write(f"DELETE FROM entries WHERE {finished} AND number NOT IN ({keep})", ())
        self._read("PRAGMA wal_checkpoint(TRUNCATE)", ())

    def _read(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        if not self._is_open:
            return []
        return self._run(lambda database: database.execute(statement, values).fetchall())

    def _write(self, statement: str, values: tuple[Any, ...]) -> int:
        return self._run(lambda database: database.execute(statement, values).rowcount)

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock, self._told():
            try:
                return work(self._opened())
            except sqlite3.DatabaseError as error:
                if getattr(error, "sqlite_errorcode", None) not in _CORRUPT:
                    raise
                self._let_go()
                self._set_aside()
                return work(self._opened())

    def _opened(self) -> sqlite3.Connection:
        if not self._is_open:
            raise sqlite3.ProgrammingError("it is closed")
        self._database = self._database or _opened(self.path)
        return self._database

    def _let_go(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = None

    def _set_aside(self) -> None:
        stamp = now_utc().replace(":", "").replace("+0000", "Z")
        aside = self.path.with_name(f"{self.path.name}.corrupt-{stamp}-{os.urandom(2).hex()}")
        for suffix in ("", "-wal", "-shm"):
            part = Path(f"{self.path}{suffix}")
            if part.exists():
                part.rename(f"{aside}{suffix}")
        hint = "entries that were pending in it were not sent; `aj list` and `aj job list` show what was"
        self.notices.append(Notice("the queue's database was damaged and was set aside", where=str(aside), hint=hint))

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"cannot use the queue's database: {error}", where=str(self.path), hint="is the disk full or read-only?"
            ) from error


def _opened(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.parent.is_symlink() or path.parent.stat().st_uid != os.getuid():
        raise StoreError("the queue's folder is a link or another user's", where=str(path.parent), hint="remove it")
    path.parent.chmod(0o700)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
    try:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "temp_store=MEMORY"):
            database.execute(f"PRAGMA {pragma}")
        _migrate(database, path)
        if not _is_sound(database):
            raise _damage("the content makes no sense")
    except BaseException:
        database.close()
        raise
    return database


def _is_sound(database: sqlite3.Connection) -> bool:
    """Whether pages and rows are what this module wrote, as far as that can be seen."""
    texts = " AND ".join(f"({name} IS NULL OR json_valid({name}))" for name in ("sealed", "record", "result"))
    states = ", ".join(f"'{state}'" for state in ("pending", "submitting", *FINISHED))
    odd = f"SELECT {_COLUMNS}, recorded FROM entries WHERE NOT (state IN ({states}) AND {texts})"
    try:
        whole = database.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
        return whole and database.execute(odd).fetchone() is None
    except sqlite3.OperationalError:  # a column is gone, or a text is not UTF-8
        return False


def _migrate(database: sqlite3.Connection, path: Path) -> None:
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the queue's database has version {version}, this aj knows {len(MIGRATIONS)}",
            where=str(path),
            hint="use the newer aj, or move the file away",
        )
    for number, script in enumerate(MIGRATIONS[version:], version + 1):
        try:
            database.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version={number}; COMMIT;")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            raise _damage(f"the tables do not fit their version: {error}") from error


def _damage(what: str) -> sqlite3.DatabaseError:
    damaged = sqlite3.DatabaseError(what)
    damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return damaged


def _entry(row: tuple[Any, ...]) -> Entry:
    fields = dict(zip(_COLUMNS.split(", "), row, strict=True))
    return Entry(**{**fields, "result": json.loads(fields["result"]) if fields["result"] else None})


def _text(value: Json) -> str | None:
    return None if value is None else compact(value).decode()
