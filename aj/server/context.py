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
from aj.server.worker import Project, Work, Worker
from aj.server.workshop import Workshop
from aj.shared.clock import monotonic, new_id, now_utc
from aj.shared.errors import DaemonError, NotFoundError
from aj.shared.model import Caller, Event, JobSpec, Notice
from aj.shared.paths import Home
from aj.shared.runtime import acquire, holds

LOCK_SECONDS = 2.0
"""How long another daemon that is just leaving may hold the project."""


class Context:
    """Its methods block: call them from threads. Nothing is created in AJ_HOME before the first submission."""

    def __init__(self, home: Home, workshop: Workshop, lent: Mapping[str, str]) -> None:
        self.home = home
        self.workshop = workshop
        self.lent = lent
        """Variables of the caller who opened it, for entries whose own secrets went with another daemon."""
        self.journal = Journal(home.record)
        self.users = 0
        """Requests that hold it open."""
        self.used_at = monotonic()
        self._guard = RLock()
        self._lock: int | None = None
        self._queue: Queue | None = None
        self._worker: Worker | None = None

    def restore(self) -> None:
        """Take up what the last daemon left, if there was one."""
        if _database(self.home).exists():
            self._open()

    def accept(self, spec: JobSpec) -> Work:
        """A new entry, stored; `prepare` must follow. `ConflictError` when this id was accepted before."""
        queue, worker = self._open()
        record = record_of(spec)
        entry = Entry(
            ticket=f"q-{new_id()}",
            id=spec.identity.id,
            name=spec.name,
            template=spec.template.name,
            backend=spec.backend,
            state="pending",
            enqueued_at=now_utc(),
            detail="being prepared",
        )
        queue.accept(entry, record)
        work = Work(entry.ticket, record, hidden_values(spec))
        worker.add(work)
        work.passes("accepted")
        for notice in queue.notices:
            work.emit(Event("warning", f"{notice.message} ({notice.where}); {notice.hint}"))
        return work

    def prepare(self, work: Work, spec: JobSpec, caller: Caller, expect: str | None) -> None:
        """Freeze an accepted submission and give it its turn; never raises, `work` has the outcome."""
        self._open()[1].prepare(work, spec, caller, expect)

    def cancel(self, ref: str) -> Entry:
        """End a pending entry; `ConflictError` when it is not pending."""
        ticket = self.find(ref).ticket
        queue, worker = self._open()
        entry = queue.cancel(ticket)
        worker.canceled(entry)
        return entry

    def entries(self) -> list[Entry]:
        """Newest first."""
        return self._queue.entries() if self._queue else []

    def find(self, ref: str) -> Entry:
        """By ticket, id, name or the unique start of one; `NotFoundError` otherwise."""
        if self._queue is None:
            raise NotFoundError(f"no queue entry `{ref}`", hint="nothing was submitted in this project yet")
        return self._queue.find(ref)

    def work(self, ticket: str) -> Work | None:
        """The work of an entry that is in progress or ended lately."""
        return self._worker.work(ticket) if self._worker else None

    def notices(self) -> tuple[Notice, ...]:
        """What people must know of the queue, such as a damaged database that was set aside."""
        return tuple(self._queue.notices) if self._queue else ()

    def pending(self) -> list[Entry]:
        """Entries that wait for their turn."""
        return self._queue.pending() if self._queue else []

    def active(self) -> list[Work]:
        """Works that are being prepared or sent right now."""
        return self._worker.active() if self._worker else []

    def stop(self) -> None:
        """Take nothing more off the queue; what is being prepared or sent goes on."""
        if self._worker is not None:
            self._worker.stop()

    @property
    def stopping(self) -> bool:
        """Whether pending entries stay pending."""
        return self._worker is not None and self._worker.stopping

    def vanished(self) -> bool:
        """Whether AJ_HOME was removed or replaced under us, or came to have a queue."""
        if self._lock is None:
            return _database(self.home).exists()
        return not (holds(self._lock, _lock(self.home)) and _database(self.home).exists())

    def close(self) -> None:
        """Let go of the files; only when nothing is active."""
        with self._guard:
            if self._worker is not None:
                self._worker.stop()
            if self._queue is not None:
                self._queue.close()
            if self._lock is not None:
                os.close(self._lock)
            self._worker = self._queue = self._lock = None

    def _open(self) -> tuple[Queue, Worker]:
        with self._guard:
            if self._queue is None or self._worker is None:
                self._lock = _lock_project(self.home)
                try:
                    self._queue = Queue(_database(self.home))
                    self._worker = Worker(Project(self.home, self._queue, self.journal, self.workshop, self.lent))
                    self._worker.restore()
                except BaseException:
                    self.close()
                    raise
            return self._queue, self._worker


def _database(home: Home) -> Path:
    return home.daemon / "queue.db"


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
