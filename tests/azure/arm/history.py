"""Run history, artifacts, and the logs behind their signed URLs."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.azure.arm.jobs import ENDED, find
from tests.azure.arm.refusals import Refused
from tests.azure.arm.resources import Answer, Call
from tests.azure.arm.runner import LOGS
from tests.azure.arm.world import Job, Workspace

if TYPE_CHECKING:
    from tests.azure.arm.simulator import Simulator

_SCOPE = (
    r"subscriptions/(?P<subscriptionId>[^/]+)/resourceGroups/(?P<resourceGroupName>[^/]+)"
    r"/providers/Microsoft\.MachineLearningServices/workspaces/(?P<workspaceName>[^/]+)"
)
_RUN = r"(?:experiments/[^/]+/)?runs/(?P<id>[^/]+)"
_ORIGIN = r"ExperimentRun/dcid\.(?P<id>[^/]+)"
_SECRET = secrets.token_bytes(32)

Route = tuple[str, str, "re.Pattern[str]"]
ROUTES: list[Route] = [
    (method, name, re.compile(pattern, re.IGNORECASE))
    for method, name, pattern in [
        ("GET", "Runs_Get", rf"/history/v1\.0/{_SCOPE}/{_RUN}"),
        ("GET", "Runs_GetDetails", rf"/history/v1\.0/{_SCOPE}/{_RUN}/details"),
        ("GET", "Experiments_List", rf"/history/v1\.0/{_SCOPE}/experiments"),
        ("POST", "Experiments_List", rf"/history/v1\.0/{_SCOPE}/experiments:query"),
        (
            "GET",
            "Artifacts_ListSasByPrefix",
            rf"/artifact/v2\.0/{_SCOPE}/artifacts/prefix/contentinfo/{_ORIGIN}(?:/(?P<path>.*))?",
        ),
        ("GET", "Artifacts_GetSas", rf"/artifact/v2\.0/{_SCOPE}/artifacts/contentinfo/{_ORIGIN}(?:/(?P<path>.*))?"),
        ("GET", "Artifacts_ListInContainer", rf"/artifact/v2\.0/{_SCOPE}/artifacts/{_ORIGIN}"),
    ]
]


def serve(world: Simulator, name: str, call: Call) -> Answer:
    """Answer one of ROUTES; `call.path` are the groups of its pattern."""
    workspace = world.state.workspace(call.path)
    if name == "Experiments_List":
        experiments = dict.fromkeys(one.properties.get("experimentName", "Default") for one in workspace.jobs.values())
        return Answer(200, {"value": [{"name": one, "archivedTime": None} for one in experiments]})
    job = find(workspace, call.path["id"])
    wanted = call.query.get("path") or call.path.get("path") or ""
    if name in ("Runs_Get", "Runs_GetDetails"):
        return Answer(200, _run(world, workspace, job))
    if name == "Artifacts_GetSas":
        if wanted not in log_names(job):
            raise Refused(404, "UserError", f"No artifact '{wanted}' of run '{job.id}'.")
        return Answer(200, _content(world, workspace, job, wanted))
    names = [one for one in log_names(job) if one.startswith(wanted)]
    if name == "Artifacts_ListInContainer":
        rows: list[Any] = [{"origin": "ExperimentRun", "container": f"dcid.{job.id}", "path": one} for one in names]
    else:
        rows = [_content(world, workspace, job, one) for one in names]
    start, size = int(call.query.get("continuationToken", "0") or "0"), world.state.settings.page_size
    rest = str(start + size) if start + size < len(rows) else None
    link = f"{call.url}?{urllib.parse.urlencode({**call.query, 'continuationToken': rest})}" if rest else None
    return Answer(200, {"value": rows[start : start + size], "continuationToken": rest, "nextLink": link})


def log_names(job: Job) -> list[str]:
    """The logs there are, `user_logs/std_log_process_0.txt` and the like."""
    folder = job.folder / LOGS
    return sorted(f"{LOGS}/{file.name}" for file in folder.iterdir()) if folder.is_dir() else []


def signed(world: Simulator, workspace: Workspace, job: Job, name: str) -> str:
    """A URL of a log that needs no token and ends with the settings' life."""
    path = f"/_logs/{workspace.guid}/{job.id}/{name}"
    end = str(int(time.time() + world.state.settings.log_links_seconds))
    return f"{world.arm}{path}?sv=2021-08-06&sr=b&sp=r&se={end}&sig={_signature(path, end)}"


def open_log(world: Simulator, path: str, query: dict[str, str], authorization: str | None) -> Path:
    """The file behind a signed URL; Refused as Blob does."""
    if authorization is not None:
        raise Refused(403, "AuthenticationFailed", "A signed URL was requested with an Authorization header.")
    if not hmac.compare_digest(query.get("sig", ""), _signature(path, query.get("se", ""))):
        raise Refused(403, "AuthenticationFailed", "Signature did not match.")
    if int(query["se"]) < time.time():
        raise Refused(403, "AuthenticationFailed", "Signed expiry time must be after the start time.")
    guid, job_id, name = path.removeprefix("/_logs/").split("/", 2)
    for workspace in world.state.workspaces:
        if workspace.guid == guid and job_id in workspace.jobs:
            file = workspace.jobs[job_id].folder / name
            if file.is_file():
                return file
    raise Refused(404, "BlobNotFound", "The specified blob does not exist.")


def read_range(file: Path, header: str | None) -> tuple[int, bytes, dict[str, str]]:
    """Status, bytes and headers of a GET, given its range header; Refused 416 beyond the end, as of an empty blob."""
    content = file.read_bytes()
    headers = {"Accept-Ranges": "bytes", "x-ms-blob-type": "AppendBlob", "x-ms-version": "2021-08-06"}
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", header or "")
    if found is None:
        return 200, content, headers
    start, end = int(found[1]), min(int(found[2] or len(content)), len(content) - 1)
    if start >= len(content):
        raise Refused(
            416, "InvalidRange", "The range specified is invalid.", {"Content-Range": f"bytes */{len(content)}"}
        )
    return 206, content[start : end + 1], headers | {"Content-Range": f"bytes {start}-{end}/{len(content)}"}


def _run(world: Simulator, workspace: Workspace, job: Job) -> dict[str, Any]:
    stamps = {"createdUtc": job.created, "startTimeUtc": job.started_at, "endTimeUtc": job.ended_at}
    error = {"error": {"code": "UserError", "message": job.error}} if job.error and job.status in ENDED else None
    return {
        "runId": job.id,
        "experimentName": job.properties.get("experimentName", "Default"),
        "displayName": job.properties.get("displayName", job.id),
        "status": job.status,
        "target": job.properties["computeId"].rsplit("/", 1)[-1],
        "tags": job.properties.get("tags") or {},
        "properties": job.properties.get("properties") or {},
        "dataContainerId": f"dcid.{job.id}",
        "error": error,
        "warnings": [],
        "logFiles": {name: signed(world, workspace, job, name) for name in log_names(job)},
        **{name: stamp.isoformat() if stamp else None for name, stamp in stamps.items()},
    }


def _content(world: Simulator, workspace: Workspace, job: Job, name: str) -> dict[str, Any]:
    place = {"origin": "ExperimentRun", "container": f"dcid.{job.id}", "path": name}
    return {**place, "contentUri": signed(world, workspace, job, name), "tags": None}


def _signature(path: str, end: str) -> str:
    return hmac.new(_SECRET, f"{path} {end}".encode(), hashlib.sha256).hexdigest()
