"""The work on one project's submissions: frozen as they come, sent one at a time in order, ended once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event as Flag
from threading import RLock, Thread
from typing import TYPE_CHECKING, Any, Literal

from aj.server.boundary import attempt
from aj.server.events import Feed
from aj.server.journal import Journal
from aj.server.queue import Entry, Queue, State
from aj.server.record import git_state, hidden_values, result_of, with_frozen, with_result
from aj.server.secrets import Secrets, check_whole
from aj.server.workshop import Workshop
from aj.shared.errors import AjError, InputError, OutcomeUnknownError, StoreError, SubmissionError
from aj.shared.jsonio import Json, write_file
from aj.shared.model import Caller, Event, JobResult, JobSpec, Status, to_json
from aj.shared.paths import Home
from aj.shared.redact import redact_text

if TYPE_CHECKING:
    from aj.server.submission import Submissions

REMEMBERED = 20
"""Ended works whose events can still be followed."""
RETRY_SECONDS = 2.0
"""Pause before a change that the disk refused is tried again."""
FINISH_ATTEMPTS = 3
LOG = logging.getLogger("aj")
POINTS = logging.getLogger("aj.points")
"""Where a submission is, step by step, for who debugs: every change of its state and every event, once it is true."""
_STATES: dict[str, State] = {"submitted": "done", "failed": "failed", "unknown": "unknown"}


class Work:
    """One submission in progress: what streams follow. `result` is set before the feed ends."""

    def __init__(self, ticket: str, record: dict[str, Json], hidden: frozenset[str]) -> None:
        self.ticket = ticket
        self.record = record
        self.hidden = hidden
        self.feed = Feed()
        self.phase: Literal["preparing", "waiting", "sending", "ended"] = "preparing"
        self.result: JobResult | None = None
        self._point = ""

    def so_far(self, status: Status, note: str | None) -> JobResult:
        """The result of a submission that has not ended."""
        return result_of(self.record, status, None, note)

    def emit(self, event: Event) -> None:
        """Progress, with the job's environment hidden."""
        detail = redact_text(event.detail, self.hidden)
        self.feed.emit(Event(event.kind, detail, event.completed, event.total))
        self.passes(event.kind if event.completed else f"{event.kind} {detail}")

    def passes(self, point: str) -> None:
        """Say where it is; of counts only that they go on."""
        if point != self._point:
            self._point = point
            POINTS.debug("%s: %s", self.record["id"], point)


class Worker:
    """Prepares in the caller's thread, sends in a thread of its own that lives while something is pending."""

    def __init__(self, home: Home, queue: Queue, journal: Journal, workshop: Workshop, lent: Mapping[str, str]) -> None:
        self._home = home
        self._queue = queue
        self._journal = journal
        self._workshop = workshop
        self._secrets = Secrets(lent)
        self._guard = RLock()
        self._works: dict[str, Work] = {}
        self._left: list[Entry] = []
        self._thread: Thread | None = None
        self._closing = Flag()

    def restore(self) -> None:
        """Take up what the last daemon left: records, interrupted entries, pending entries."""
        for entry in self._queue.unrecorded():
            if not self._journal.has(entry.id):
                self._record(entry.ticket, self._queue.record(entry.ticket), JobResult(**(entry.result or {})))
        self._left = self._queue.interrupted()
        for entry in (*self._left, *self._queue.pending()):
            work = self._works[entry.ticket] = Work(entry.ticket, self._queue.record(entry.ticket), frozenset())
            work.phase = "sending" if entry in self._left else "waiting"
        for witness in self._witnesses.glob("*"):
            if witness.name not in self._works:
                self._release(witness.name)
        self._start()

    def add(self, work: Work) -> None:
        """A work whose entry was accepted; `prepare` must follow."""
        with self._guard:
            self._works[work.ticket] = work

    def prepare(self, work: Work, spec: JobSpec, caller: Caller, expect: str | None) -> None:
        """Freeze an accepted submission and give it its turn. A failure here ends it before anything was sent."""
        outcome = attempt(lambda: self._freeze(work, spec, caller, expect), work.hidden)
        if isinstance(outcome, AjError):
            self._end(work, result_of(work.record, "failed", outcome))
        else:
            self._start()
        if work.result is not None:  # it was canceled meanwhile
            self._release(work.ticket)

    def canceled(self, entry: Entry) -> None:
        """Tell those who follow that the entry was canceled."""
        if (work := self._works.get(entry.ticket)) is not None:
            error = SubmissionError(f"`{entry.name}` was canceled before it was sent")
            self._tell(work, result_of(work.record, "failed", error))

    def work(self, ticket: str) -> Work | None:
        """The work of an entry that is in progress or ended lately."""
        return self._works.get(ticket)

    def active(self) -> list[Work]:
        """Works that are being prepared or sent right now."""
        return [work for work in list(self._works.values()) if work.phase in ("preparing", "sending")]

    def stop(self) -> None:
        """Take nothing more off the queue; what is being prepared or sent goes on."""
        self._closing.set()
        for work in list(self._works.values()):
            work.feed.wake()

    @property
    def stopping(self) -> bool:
        """Whether pending entries stay pending."""
        return self._closing.is_set()

    @property
    def _witnesses(self) -> Path:
        """A file for each entry that has not ended: the pins of its archive point at it."""
        return self._home.daemon / "waiting"

    def _release(self, ticket: str) -> None:
        with suppress(OSError):
            (self._witnesses / ticket).unlink(missing_ok=True)

    def _freeze(self, work: Work, spec: JobSpec, caller: Caller, expect: str | None) -> None:
        submissions, witness = self._workshop.submissions(self._home, caller), self._witnesses / work.ticket
        write_file(witness, b"")
        frozen = submissions.prepare(spec, caller, work.emit, expect, witness)
        for notice in frozen.notices:
            work.emit(Event("warning", ": ".join(filter(None, (notice.where, notice.message)))))
        work.passes("frozen")
        work.record = {**with_frozen(work.record, frozen), **git_state(caller)}
        sealed = {"frozen": submissions.freeze(frozen), "caller": self._secrets.withhold(work.ticket, caller)}
        with self._guard:
            if self._queue.ready(work.ticket, sealed, work.record):
                work.phase = "waiting"
        work.passes("ready")
        work.feed.wake()

    def _start(self) -> None:
        with self._guard:
            if self._thread is None and not self._closing.is_set():
                self._thread = Thread(target=self._work_off, name=f"worker {self._home.root}", daemon=True)
                self._thread.start()

    def _work_off(self) -> None:
        while self._left and not self._closing.is_set():
            self._settle(self._left.pop(0))
        while (work := self._next()) is not None:
            self._send(work)

    def _next(self) -> Work | None:
        with self._guard:
            entry = None if self._closing.is_set() else attempt(self._queue.next)
            if isinstance(entry, Entry):
                return self._works[entry.ticket]
            self._thread = None
            return None

    def _send(self, work: Work) -> None:
        thawed = attempt(lambda: self._thaw_whole(work), work.hidden)
        if isinstance(thawed, AjError):
            self._end(work, result_of(work.record, "failed", thawed, "nothing was sent"))
            return
        work.phase = "sending"
        begun = attempt(lambda: self._queue.begin(work.ticket))
        if isinstance(begun, AjError):
            work.phase = "waiting"
            work.emit(Event("wait", f"{begun.message}; trying again"))
            self._closing.wait(RETRY_SECONDS)
        elif begun:
            work.passes("begun")
            self._end(work, self._result(work, self._execute(work, *thawed)))

    def _execute(self, work: Work, submissions: Submissions, frozen: Any, caller: Caller) -> JobResult | AjError:
        outcome = attempt(lambda: submissions.execute(frozen, caller, work.emit), work.hidden)
        if not isinstance(outcome, AjError) or isinstance(outcome, SubmissionError | OutcomeUnknownError | InputError):
            return outcome
        found = attempt(lambda: submissions.reconcile(frozen, caller, work.emit), work.hidden)
        if isinstance(found, SubmissionError):
            return outcome
        if isinstance(found, AjError):
            return OutcomeUnknownError(f"{outcome.message}; whether the job exists is not known", hint=found.hint)
        return found

    def _settle(self, entry: Entry) -> None:
        """An entry that a dead daemon left: adopted, surely absent, or failed as unknown; never sent again."""
        work = self._works[entry.ticket]
        outcome: JobResult | AjError
        if entry.state == "pending":
            outcome = SubmissionError("the daemon ended before this was prepared", hint="nothing was sent, run it")
        else:
            outcome = attempt(lambda: self._look_up(work), work.hidden)
        if isinstance(outcome, AjError) and not isinstance(outcome, SubmissionError):
            outcome = _unknown(entry, outcome)
        state: State | None = "failed" if isinstance(outcome, AjError) else None
        self._end(work, self._result(work, outcome), state)

    def _look_up(self, work: Work) -> JobResult:
        submissions, frozen, caller = self._thaw(work)
        return submissions.reconcile(frozen, caller, work.emit)

    def _thaw(self, work: Work) -> tuple[Submissions, Any, Caller]:
        sealed = self._queue.sealed(work.ticket)
        if sealed is None:
            raise StoreError("what was to be sent is no longer in the queue's database")
        caller = self._secrets.caller(work.ticket, sealed["caller"])
        submissions = self._workshop.submissions(self._home, caller)
        frozen = submissions.thaw(sealed["frozen"])
        work.hidden = hidden_values(frozen.spec)
        return submissions, frozen, caller

    def _thaw_whole(self, work: Work) -> tuple[Submissions, Any, Caller]:
        thawed = self._thaw(work)
        check_whole(self._queue.sealed(work.ticket)["caller"], thawed[2])
        return thawed

    def _result(self, work: Work, outcome: JobResult | AjError) -> JobResult:
        if isinstance(outcome, OutcomeUnknownError) and outcome.hint is None:
            outcome.hint = _way_out(work.record["id"])
        if isinstance(outcome, AjError):
            status: Literal["unknown", "failed"] = "unknown" if isinstance(outcome, OutcomeUnknownError) else "failed"
            return result_of(work.record, status, outcome)
        return outcome

    def _end(self, work: Work, result: JobResult, state: State | None = None) -> None:
        """Make the end durable, then tell it. Where the disk refuses, the next opening looks the entry up."""
        work.passes("executed")
        result = replace(result, ticket=work.ticket)
        detail = str(result.error["message"]) if result.error else None
        for _ in range(FINISH_ATTEMPTS):
            outcome = attempt(
                lambda: self._queue.finish(work.ticket, state or _STATES[result.status], detail, to_json(result))
            )
            if not isinstance(outcome, AjError):
                break
            work.emit(Event("warning", outcome.message))
            self._closing.wait(RETRY_SECONDS)
        work.passes("finished")
        if work.result is None:
            self._record(work.ticket, work.record, result)
            work.passes("recorded")
            self._tell(work, result)

    def _record(self, ticket: str, record: dict[str, Json], result: JobResult) -> None:
        def write() -> None:
            self._journal.append(with_result(record, result))
            self._queue.recorded(ticket)

        outcome = attempt(write)
        if isinstance(outcome, AjError) and (work := self._works.get(ticket)) is not None:
            work.emit(Event("warning", outcome.message))

    def _tell(self, work: Work, result: JobResult) -> None:
        with self._guard:
            work.result = result
            work.phase = "ended"
            self._secrets.forget(work.ticket)
            ended = [ticket for ticket, other in self._works.items() if other.phase == "ended"]
            for ticket in ended[:-REMEMBERED]:
                del self._works[ticket]
        self._release(work.ticket)
        work.passes("ended")
        work.feed.end()


def _unknown(entry: Entry, why: AjError) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"outcome unknown: the daemon ended while `{entry.name}` was being submitted ({why.message})",
        hint=f"begun {entry.started_at}; {_way_out(entry.id)}",
    )


def _way_out(job_id: str) -> str:
    return f"look with `aj job show {job_id}` and `aj list` before you run it again"
