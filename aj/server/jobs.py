"""Which backend a job belongs to, and its life there, for the jobs that a project submitted or can see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING

from aj.server.context import Context
from aj.shared.errors import AjError, ConflictError, NotFoundError, UnknownServiceError
from aj.shared.jsonio import Json
from aj.shared.model import Caller, Notice, to_json

if TYPE_CHECKING:
    from aj.server.submit import Jobs

SEARCHED = 10_000
"""Records in which a job is looked for, newest first."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which jobs of a list are meant; None for all."""

    limit: int
    status: str | None = None
    experiment: str | None = None
    backend: str | None = None

    def takes(self, row: Mapping[str, Json]) -> bool:
        """Whether a row is among them; upper and lower case are the same."""
        rules = {"status": self.status, "experiment": self.experiment, "backend": self.backend}
        return all(str(row.get(key)).lower() == rule.lower() for key, rule in rules.items() if rule)


@dataclass(frozen=True, slots=True)
class View:
    """One caller's view of one project's jobs."""

    context: Context
    caller: Caller

    def list_jobs(self, wanted: Wanted) -> tuple[list[dict[str, Json]], list[Notice]]:
        """Newest first over all backends; no more pages are read than are needed.

        What cannot be reached is told, and is an error only where the caller wants that backend and no other.
        """
        notices: list[Notice] = []
        lists = [
            jobs.list_jobs() if wanted.backend else _reachable(service, jobs, notices)
            for service, jobs in self._backends(wanted.backend)
        ]
        rows: Iterator[dict[str, Json]] = merge(*lists, key=lambda row: str(row.get("created_at") or ""), reverse=True)
        return list(islice(filter(wanted.takes, rows), wanted.limit)), notices

    def show(self, ref: str) -> dict[str, Json]:
        """One job; `NotFoundError` lists near names."""
        jobs, name = self._job(ref)
        return jobs.show(name)

    def logs(self, ref: str, cursor: Mapping[str, int], stream: str | None) -> Json:
        """A page of its output: chunks, cursor, finished, streams, note."""
        jobs, name = self._job(ref)
        return to_json(jobs.logs(name, cursor, stream))

    def cancel(self, ref: str) -> dict[str, Json]:
        """End it: azure_name and the status after."""
        jobs, name = self._job(ref)
        return {"azure_name": name, "status": jobs.cancel(name)}

    def _job(self, ref: str) -> tuple[Jobs, str]:
        """The backend that has the job, and its remote name."""
        if (known := _submitted(self.context, ref)) is not None:
            service, name = known
            jobs = self.context.workshop.jobs(self.context.home, service, self.caller)
            if jobs is None:
                message = f"aj does not manage jobs of `{service}`"
                raise ConflictError(message, hint="use the tools of that service")
            return jobs, name
        unknown: AjError = NotFoundError(f"no job `{ref}`", hint="`aj job list` and `aj list` show what there is")
        for _, jobs in self._backends():
            try:
                return jobs, str(jobs.show(ref)["azure_name"])
            except NotFoundError as error:
                unknown = error
        raise unknown

    def _backends(self, only: str | None = None) -> list[tuple[str, Jobs]]:
        """Those that this project has used or is configured for, that still exist and manage jobs."""
        from aj.server.submit import configured_services

        context = self.context
        records, _ = context.journal.newest(SEARCHED)
        used = {str(record.get("backend")) for record in records} | {entry.backend for entry in context.queue.entries()}
        found = []
        for service in sorted(used | set(configured_services(context.home))):
            try:
                jobs = context.workshop.jobs(context.home, service, self.caller)
            except UnknownServiceError:
                continue
            if jobs is not None and only in (None, service):
                found.append((service, jobs))
        return found


def _reachable(service: str, jobs: Jobs, notices: list[Notice]) -> Iterator[dict[str, Json]]:
    """The rows that can be read; why the others cannot goes to `notices`."""
    try:
        yield from jobs.list_jobs()
    except AjError as error:
        notices.append(Notice(f"the jobs of `{service}` cannot be listed: {error.message}", error.where, error.hint))


def _submitted(context: Context, ref: str) -> tuple[str, str] | None:
    """Service and remote name of a job that the queue or the journal knows."""
    try:
        entry = context.queue.find(ref)
    except NotFoundError:
        return _recorded(context, ref)
    if entry.state in ("pending", "submitting"):
        raise ConflictError(
            f"`{entry.name}` is {entry.state}, it is no job yet",
            hint=f"`aj queue wait {entry.ticket}` waits, `aj queue cancel {entry.ticket}` ends a pending one",
        )
    return entry.backend, str((entry.result or {}).get("azure_name") or entry.name)


def _recorded(context: Context, ref: str) -> tuple[str, str] | None:
    records, _ = context.journal.newest(SEARCHED)
    exact = [record for record in records if ref in (record["id"], record.get("name"), record.get("azure_name"))]
    near = [record for record in records if record["id"].startswith(ref) or str(record.get("name")).startswith(ref)]
    found = {record["id"]: record for record in reversed(exact or near)}
    if len(found) != 1:
        return None
    record = next(iter(found.values()))
    return str(record.get("backend")), str(record.get("azure_name") or record.get("name"))
