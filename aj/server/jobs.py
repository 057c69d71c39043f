"""Which backend a job belongs to, and its life there, for the jobs that this project submitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from aj.server.context import Context
from aj.shared.errors import AjError, ConflictError, NotFoundError, UnknownServiceError
from aj.shared.jsonio import Json
from aj.shared.model import to_json

if TYPE_CHECKING:
    from aj.server.submit import Jobs

SEARCHED = 10_000
"""Records in which a job is looked for, newest first."""


def list_jobs(context: Context) -> list[dict[str, Json]]:
    """The jobs of every backend that this project has used, newest first."""
    found: list[dict[str, Json]] = []
    for service in _services(context):
        if jobs := context.workshop.jobs(context.home, service):
            found.extend(jobs.list_jobs())
    return sorted(found, key=lambda job: str(job.get("created_at") or ""), reverse=True)


def show(context: Context, ref: str) -> dict[str, Json]:
    """One job; `NotFoundError` lists near names."""
    jobs, name = _job(context, ref)
    return jobs.show(name)


def logs(context: Context, ref: str, cursor: Mapping[str, int]) -> Json:
    """A page of its output: chunks, cursor, finished."""
    jobs, name = _job(context, ref)
    return to_json(jobs.logs(name, cursor))


def cancel(context: Context, ref: str) -> dict[str, Json]:
    """End it: azure_name and the status after."""
    jobs, name = _job(context, ref)
    return {"azure_name": name, "status": jobs.cancel(name)}


def _job(context: Context, ref: str) -> tuple[Jobs, str]:
    """The backend that has the job, and its remote name."""
    service, name = _submitted(context, ref) or (None, ref)
    if service is not None:
        return _jobs(context, service), name
    unknown: AjError = NotFoundError(f"no job `{ref}`", hint="`aj job list` and `aj list` show what there is")
    for candidate in _services(context):
        jobs = context.workshop.jobs(context.home, candidate)
        if jobs is None:
            continue
        try:
            jobs.show(ref)
        except NotFoundError as error:
            unknown = error
        else:
            return jobs, ref
    raise unknown


def _submitted(context: Context, ref: str) -> tuple[str, str] | None:
    """Service and remote name of a job that the queue or the journal knows."""
    try:
        entry = context.find(ref)
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


def _jobs(context: Context, service: str) -> Jobs:
    jobs = context.workshop.jobs(context.home, service)
    if jobs is None:
        raise ConflictError(f"aj does not manage jobs of `{service}`", hint="use the tools of that service")
    return jobs


def _services(context: Context) -> list[str]:
    """Backends that this project has used and that still exist."""
    records, _ = context.journal.newest(SEARCHED)
    used = {str(record.get("backend")) for record in records} | {entry.backend for entry in context.entries()}
    known = []
    for service in sorted(used):
        try:
            context.workshop.jobs(context.home, service)
        except UnknownServiceError:
            continue
        known.append(service)
    return known
