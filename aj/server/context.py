"""One project in the daemon: opened when it is first needed, by one daemon at a time, closed when it is idle."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from threading import RLock

from aj.server.journal import Journal
from aj.server.queue import Entry, Queue
from aj.server.record import hidden_values, record_of
from aj.server.worker import Work, Worker
from aj.server.workshop import Workshop
from aj.shared.clock import monotonic, new_id, now_utc
from aj.shared.errors import DaemonError
from aj.shared.model import Event, JobSpec
from aj.shared.paths import Home
from aj.shared.runtime import acquire, holds

LOCK_SECONDS = 2.0
"""How long another daemon that is just leaving may hold the project."""


class Context:
    """What belongs to one AJ_HOME. Everything blocks: use it in threads. Nothing is created before a submission.

    `lent` are variables of the caller who opens it, for entries whose own secrets went with another daemon.
    """

    def __init__(self, home: Home, workshop: Workshop, lent: Mapping[str, str]) -> None:
        self.home = home
        self.workshop = workshop
        self.journal = Journal(home.record)
        self.users = 0
        """Requests that hold it open."""
        self.used_at = monotonic()
        self.queue = Queue(home.daemon / "queue.db")
        self.worker = Worker(home, self.queue, self.journal, workshop, lent)
        self._guard = RLock()
        self._lock: int | None = None

    def restore(self) -> None:
        """Take up what the last daemon left, if there was one."""
        if self.queue.path.exists():
            self._open()

    def accept(self, spec: JobSpec) -> Work:
        """A new entry, stored; `prepare` must follow. `ConflictError` when this id was accepted before."""
        self._open()
        record = record_of(spec)
        entry = Entry(
            ticket=f"q-{new_id()}",
            **{key: record[key] for key in ("id", "name", "template", "backend")},
            state="pending",
            enqueued_at=now_utc(),
            detail="being prepared",
        )
        self.queue.accept(entry, record)
        work = Work(entry.ticket, record, hidden_values(spec))
        self.worker.add(work)
        work.passes("accepted")
        for notice in self.queue.notices:
            work.emit(Event("warning", f"{notice.message} ({notice.where}); {notice.hint}"))
        return work

    def cancel(self, ref: str) -> Entry:
        """End a pending entry; `ConflictError` when it is not pending."""
        entry = self.queue.cancel(self.queue.find(ref).ticket)
        self.worker.canceled(entry)
        return entry

    def vanished(self) -> bool:
        """Whether AJ_HOME was removed or replaced under us, or came to have a queue."""
        if self._lock is None:
            return self.queue.path.exists()
        return not (holds(self._lock, _lock(self.home)) and self.queue.path.exists())

    def close(self) -> None:
        """Let go of the files; only when nothing is active."""
        with self._guard:
            self.worker.stop()
            self._let_go()

    def _open(self) -> None:
        with self._guard:
            if self._lock is None:
                self._lock = _lock_project(self.home)
                try:
                    self.queue.open()
                    self.worker.restore()
                except BaseException:
                    self._let_go()
                    raise

    def _let_go(self) -> None:
        self.queue.close()
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None


def _lock(home: Home) -> Path:
    return home.daemon / "lock"


def _lock_project(home: Home) -> int:
    home.daemon.mkdir(parents=True, exist_ok=True, mode=0o700)
    deadline = monotonic() + LOCK_SECONDS
    while (fd := acquire(_lock(home))) is None:
        if monotonic() > deadline:
            raise DaemonError(
                "another daemon serves this project",
                where=str(_lock(home)),
                hint="use the AJ_RUNTIME_DIR that it uses, or stop it there",
            )
        time.sleep(0.05)
    return fd
