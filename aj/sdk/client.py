"""What can be asked of the daemon, method by method; `aj` itself uses nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from aj.sdk.spawn import Daemon
from aj.sdk.transport import ANSWER_SECONDS, REMOTE_SECONDS, LostError, NotSentError, Transport
from aj.shared.clock import monotonic
from aj.shared.errors import (
    AjError,
    ConfigError,
    DaemonBusyError,
    DaemonError,
    DaemonNotRunningError,
    OutcomeUnknownError,
    WaitTimeoutError,
    from_wire,
)
from aj.shared.jsonio import Json
from aj.shared.model import Caller, Emit, Event, JobResult, JobSpec, Notice, nowhere, to_json
from aj.shared.spec import spec_to_json

RECONNECTS = 3
"""Times that a wait survives the end of the daemon without a word in between."""


class Client:
    """One project's view of the daemon; made by `aj.sdk.connect`. May be used from several threads.

    Errors are those of `aj.shared.errors`, with the type that the daemon raised. A read is tried once more when the
    daemon went away; a write never is, unless it surely was not received.

    `ref` is an AJ_ID, a ticket or a name, or the unique start of one.
    """

    def __init__(self, root: Path, daemon: Daemon) -> None:
        self.root = root
        self._daemon = daemon

    def info(self) -> dict[str, Any]:
        """version, protocol, fingerprint, pid, uptime_s, socket, log, draining, contexts, outstanding."""
        return self._daemon.info()

    def plan(self, spec: JobSpec, caller: Caller, *, offline: bool = False, emit: Emit = nowhere) -> dict[str, Any]:
        """The `plan` document: what the next `submit` of this job would do; nothing is written remotely."""
        body = {"spec": spec_to_json(spec), "caller": to_json(caller), "offline": offline}
        return self._stream("POST", "/v1/plans", emit, body)

    def submit(
        self, spec: JobSpec, caller: Caller, *, queue: bool = False, expect: str | None = None, emit: Emit = nowhere
    ) -> JobResult:
        """Submit a job and follow it until the backend has it, or with `queue` until it has a ticket.

        A submission that fails is a result with status `failed` and an `error`; `expect` (the payload digest of a saved
        plan) makes it fail when an input has moved. `OutcomeUnknownError` when the daemon went away in between. The
        work goes on when the caller goes away: `wait` follows it by its AJ_ID.
        """
        body = {"spec": spec_to_json(spec), "caller": to_json(caller), "queue": queue, "expect": expect}
        try:
            return JobResult(**self._stream("POST", "/v1/submissions", emit, body))
        except (LostError, DaemonBusyError) as error:
            known = spec.identity.id
            raise OutcomeUnknownError(
                f"outcome unknown: {error.message}; `{spec.name}` may or may not have been submitted",
                hint=f"look with `aj queue show {known}`, `aj list` and `aj job show {known}` before you run it again",
            ) from error

    def records(self, limit: int | None = None, emit: Emit = nowhere) -> list[dict[str, Any]]:
        """The journal, newest first; `emit` hears of lines that are no records."""
        return self._listed("/v1/records" + (f"?limit={limit}" if limit is not None else ""), "records", emit)

    def queue(self, emit: Emit = nowhere) -> list[dict[str, Any]]:
        """All entries, newest first; `emit` hears of a database that was set aside."""
        return self._listed("/v1/queue", "entries", emit)

    def ticket(self, ref: str) -> dict[str, Any]:
        """One entry."""
        return self._ask("GET", f"/v1/queue/{_word(ref)}")

    def cancel_ticket(self, ref: str) -> dict[str, Any]:
        """End an entry that is still pending; `ConflictError` when it is not."""
        return self._ask("POST", f"/v1/queue/{_word(ref)}/cancel", {})

    def wait(self, ref: str, timeout: float | None = None, emit: Emit = nowhere) -> dict[str, Any]:
        """The entry once it has ended, whatever became of it; `emit` gets its events, those of the past first.

        `WaitTimeoutError` after `timeout` seconds. It outlives the daemon: a pending entry goes on in the next one.
        """
        deadline = None if timeout is None else monotonic() + timeout
        broken = 0
        while True:
            try:
                return self._stream("GET", f"/v1/queue/{_word(ref)}/events", emit, deadline=deadline)
            except WaitTimeoutError:
                state = self.ticket(ref)["state"]
                hint = f"it goes on; `aj queue wait {ref}` waits again"
                raise WaitTimeoutError(f"`{ref}` is still {state} after {timeout:g} s", hint=hint) from None
            except DaemonBusyError:
                raise
            except DaemonError:
                broken += 1
                if broken > RECONNECTS:
                    raise
                self._daemon.ensure(emit)

    def jobs(
        self, limit: int | None = None, *, warn: Callable[[Notice], object] | None = None, **wanted: str
    ) -> list[dict[str, Any]]:
        """The jobs of the backends that this project uses, newest first; `wanted`: status, experiment, backend.

        `warn` hears of each backend that cannot be reached; one that is `wanted` is an error.
        """
        query = {**({"limit": str(limit)} if limit is not None else {}), **wanted}
        document = self._ask("GET", "/v1/jobs" + (f"?{urlencode(query)}" if query else ""), remote=True)
        for warning in document["warnings"]:
            if warn is not None:
                warn(Notice(**warning))
        found = document["jobs"]
        assert isinstance(found, list)
        return found

    def job(self, ref: str) -> dict[str, Any]:
        """One job, with everything that its backend knows."""
        found = self._ask("GET", f"/v1/jobs/{_word(ref)}", remote=True)["job"]
        assert isinstance(found, dict)
        return found

    def job_logs(self, ref: str, cursor: Mapping[str, int] | None = None, stream: str | None = None) -> dict[str, Any]:
        """A page of its output: chunks [{stream, text}], the cursor for the next page, finished, streams, note.

        `stream` chooses one: a rank, or the name of a log file.
        """
        query = {**({"cursor": json.dumps(dict(cursor))} if cursor else {}), **({"stream": stream} if stream else {})}
        return self._ask("GET", f"/v1/jobs/{_word(ref)}/logs?{urlencode(query)}", remote=True)

    def cancel_job(self, ref: str) -> dict[str, Any]:
        """End a job: azure_name and the status after."""
        return self._ask("POST", f"/v1/jobs/{_word(ref)}/cancel", {}, remote=True)

    def azure(self, topic: str) -> dict[str, Any]:
        """What this caller can see in Azure: `login`, `workspaces`, `workspace`, `experiments`, `quota`, and of
        Singularity `clusters`, `skus`, `images`.
        """
        return self._ask("GET", f"/v1/azure/{_word(topic)}", remote=True)

    def cache(self) -> dict[str, Any]:
        """What lies in this caller's cache: folder, limit and bytes, and archives [{sha256, size, used_at, in_use}].

        The archives come in the order in which they would be removed: least recently used first.
        """
        return self._ask("GET", "/v1/cache", remote=True)

    def cache_gc(
        self, *, max_bytes: int | None = None, unused_days: int | None = None, dry_run: bool = False
    ) -> dict[str, Any]:
        """Remove archives: the least recently used above `max_bytes` (None: the bound that packing keeps to by itself),
        and those that were not used for `unused_days`. What is being packed or sent, or waits in a queue, stays.

        folder, dry_run, removed [{sha256, size, used_at}], freed (bytes), left (bytes), left_archives.
        """
        body = {"max_bytes": max_bytes, "unused_days": unused_days, "dry_run": dry_run}
        return self._ask("POST", "/v1/cache/gc", body, remote=True)

    def shutdown(self, force: bool = False, emit: Emit = nowhere) -> dict[str, Any]:
        """End the daemon once it has finished what it is doing, or at once: pid, waiting_for, abandoned, kept.

        Returns when it has ended. What is pending stays in the queue. `abandoned` is None for a daemon that hung.
        """
        return self._daemon.stop(force, emit)

    def _way(self, remote: bool) -> Transport:
        """The caller goes along where it can: what waits in the project may need its secrets after a restart."""
        from dataclasses import replace

        from aj.shared.caller import to_header

        way = Transport(self._daemon.place.socket, self.root)
        try:
            return replace(way, caller=to_header(self._daemon.env, self.root))
        except ConfigError:
            if remote:
                raise
            return way

    def _ask(self, method: str, path: str, body: Json = None, *, remote: bool = False) -> dict[str, Any]:
        """A read may be lost, and is tried once more."""
        way, patience = self._way(remote), REMOTE_SECONDS if remote else ANSWER_SECONDS
        try:
            return way.request(method, path, body, patience=patience)
        except (NotSentError, LostError) as error:
            if method != "GET" and isinstance(error, LostError):
                raise
            self._daemon.ensure()
            return way.request(method, path, body, patience=patience)

    def _listed(self, path: str, key: str, emit: Emit) -> list[dict[str, Any]]:
        document = self._ask("GET", path)
        for warning in document["warnings"]:
            emit(Event("warning", "; ".join(filter(None, (warning["message"], warning["where"], warning["hint"])))))
        found = document[key]
        assert isinstance(found, list)
        return found

    def _stream(
        self, method: str, path: str, emit: Emit, body: Any = None, deadline: float | None = None
    ) -> dict[str, Any]:
        try:
            return _outcome(self._way(remote=False).stream(method, path, body, deadline=deadline), emit)
        except (NotSentError, DaemonNotRunningError):
            self._daemon.ensure(emit)
            return _outcome(self._way(remote=False).stream(method, path, body, deadline=deadline), emit)


def _outcome(lines: Iterator[Mapping[str, Any]], emit: Emit) -> dict[str, Any]:
    for line in lines:
        if "error" in line:
            raise from_wire(line["error"])
        if "result" in line:
            return dict(line["result"])
        event = line["event"]
        if event["kind"] != "beat":
            emit(Event(event["kind"], event["detail"], event["completed"], event["total"]))
    raise AjError("the daemon's answer has no end")


def _word(ref: str) -> str:
    return quote(ref, safe="")
