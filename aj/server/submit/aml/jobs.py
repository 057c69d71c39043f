"""The life of Azure ML jobs after their submission: rows, pages of logs by ranges, cancel."""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from aj.server.azure.arm import Arm, azure_of, segment
from aj.server.azure.wire import read, send
from aj.server.submit import LogChunk, LogPage
from aj.server.submit.aml.facts import known_workspaces
from aj.server.submit.aml.where import workspaces
from aj.shared.clock import monotonic
from aj.shared.errors import AzureError, ConflictError, NotFoundError
from aj.shared.jsonio import Json
from aj.shared.model import Caller
from aj.shared.paths import Home

ENDED = frozenset({"Completed", "Failed", "Canceled"})
PAGE_BYTES = 1024 * 1024
"""The most that one call of `logs` reads of each file."""
CANCEL_SECONDS = 20.0
"""How long a cancel is watched."""
POLL_SECONDS = 1.0
_OWN_LOGS = re.compile(r"user_logs/.+|azureml-logs/70_driver_log.*")
"""What the job's processes wrote; the other files are the service's own."""
_AJ_ID = re.compile(r"[0-9a-f]{4,8}")


@dataclass(frozen=True, slots=True)
class AmlJobs:
    """The jobs of the workspaces that the project uses. Each method takes a name, an AJ_ID or a start of one."""

    home: Home
    caller: Caller
    service: str = "aml"
    """Or `sing`: the jobs on virtual clusters."""

    def list_jobs(self) -> Iterator[dict[str, Json]]:
        """Newest first, page by page as they are asked for."""
        from heapq import merge

        arm = self._arm()
        lists = [self._rows(arm, workspace) for workspace in self._workspaces(arm)]
        return merge(*lists, key=lambda row: str(row["created_at"]), reverse=True)

    def show(self, name: str) -> dict[str, Json]:
        """Everything that the service says."""
        arm = self._arm()
        workspace, job = self._find(arm, name)
        properties = job["properties"]
        more = {
            "workspace": workspace,
            "compute": str(properties.get("computeId") or "").rpartition("/")[2],
            "tags": properties.get("tags") or {},
            "environment": properties.get("environmentId"),
            "description": properties.get("description"),
        }
        if properties.get("status") in ENDED:
            run = arm.service(_run(arm, workspace, str(job["name"])))
            reason = ((run.get("error") or {}).get("error") or {}).get("message")
            more |= {"started_at": run.get("startTimeUtc"), "ended_at": run.get("endTimeUtc"), "reason": reason}
        return {**_row(job), **more}

    def logs(self, name: str, cursor: Mapping[str, int], stream: str | None = None) -> LogPage:
        """What the log files have beyond `cursor`; `stream` chooses one of them, its own are the default."""
        arm = self._arm()
        run = arm.service(self._history(arm, name))
        ended = run.get("status") in ENDED
        links = {str(key): str(link) for key, link in (run.get("logFiles") or {}).items()}
        if stream is not None and stream not in links:
            known = ", ".join(f"`{each}`" for each in sorted(links)) or "none yet"
            raise NotFoundError(f"`{name}` has no log `{stream}`", hint=f"it has {known}")
        wanted = [stream] if stream else sorted(filter(_OWN_LOGS.fullmatch, links)) or (sorted(links) if ended else [])
        with ThreadPoolExecutor(8, thread_name_prefix="logs") as pool:
            parts = list(pool.map(lambda each: _part(arm, links[each], max(0, cursor.get(each, 0)), ended), wanted))
        chunks = tuple(LogChunk(each, text) for each, (text, _, _) in zip(wanted, parts, strict=True) if text)
        after = {each: position for each, (_, position, _) in zip(wanted, parts, strict=True)}
        note = None if links else f"no logs yet: the job is {run.get('status')}"
        finished = ended and all(done for _, _, done in parts)
        return LogPage(chunks, {**cursor, **after}, finished, tuple(sorted(links)), note)

    def cancel(self, name: str) -> str:
        """Ask for its end, and see it happen for some seconds; a job that has ended stays as it is."""
        arm = self._arm()
        workspace, job = self._find(arm, name)
        status = str(job["properties"].get("status"))
        path = f"{workspace}/jobs/{segment(str(job['name']))}"
        if status in ENDED:
            return status
        arm.post(f"{path}/cancel")
        until = monotonic() + CANCEL_SECONDS
        while (status := str(arm.get(path)["properties"]["status"])) not in ENDED and monotonic() < until:
            time.sleep(POLL_SECONDS)
        return status

    def _history(self, arm: Arm, name: str) -> str:
        """The job's address in the run history; found once, as following its logs asks again and again."""
        key = (str(self.home.root), name)
        if key not in _HISTORY:
            workspace, job = self._find(arm, name)
            _HISTORY[key] = _run(arm, workspace, str(job["name"]))
        return _HISTORY[key]

    def _arm(self) -> Arm:
        return azure_of(self.home, self.caller)

    def _workspaces(self, arm: Arm) -> list[str]:
        """The configured workspace and those of earlier submissions; without either, the only one there is."""
        if known := known_workspaces(self.home):
            return known
        visible = [str(row["id"]) for row in workspaces(arm)]
        if len(visible) != 1:
            hint = "`aj ws list` shows them, `aj ws set NAME` chooses"
            raise NotFoundError(f"no workspace is configured, you can see {len(visible)}", hint=hint)
        return visible

    def _rows(self, arm: Arm, workspace: str) -> Iterator[dict[str, Json]]:
        for job in arm.pages(f"{workspace}/jobs", jobType="Command", listViewType="ActiveOnly"):
            row = _row(job)
            if row["backend"] == self.service:
                yield row

    def _find(self, arm: Arm, name: str) -> tuple[str, dict[str, Json]]:
        """Workspace and job, by name at once, else by the id among the jobs that aj submitted."""
        places = self._workspaces(arm)
        for workspace in places:
            if (job := arm.look(f"{workspace}/jobs/{segment(name)}")) is not None:
                return workspace, job
        if _AJ_ID.fullmatch(name):
            rows = [
                (workspace, job)
                for workspace in places
                for job in arm.pages(f"{workspace}/jobs", jobType="Command", tag="aj_id", listViewType="All")
                if str(((job["properties"].get("tags")) or {}).get("aj_id", "")).startswith(name)
            ]
            if len(rows) == 1:
                return rows[0]
            if rows:
                names = ", ".join(f"`{job['name']}`" for _, job in rows)
                raise ConflictError(f"`{name}` is the start of several jobs", hint=f"one of {names}")
        where = ", ".join(f"`{workspace.rpartition('/')[2]}`" for workspace in places)
        raise NotFoundError(f"no job `{name}` in {where}", hint="`aj job list` shows what there is")


_HISTORY: dict[tuple[str, str], str] = {}


def _row(job: Mapping[str, Json]) -> dict[str, Json]:
    properties = job["properties"]
    tags = properties.get("tags") or {}
    distribution, resources = properties.get("distribution") or {}, properties.get("resources") or {}
    studio = (properties.get("services") or {}).get("Studio") or {}
    return {
        "id": tags.get("aj_id"),
        "name": properties.get("displayName") or job["name"],
        "azure_name": str(job["name"]),
        "status": str(properties.get("status") or "Unknown"),
        "backend": "sing" if "/virtualclusters/" in str(properties.get("computeId")).lower() else "aml",
        "template": tags.get("aj_template"),
        "experiment": properties.get("experimentName"),
        "nodes": resources.get("instanceCount") or 1,
        "processes_per_node": distribution.get("processCountPerInstance") or 1,
        "created_at": str((job.get("systemData") or {}).get("createdAt") or ""),
        "ended_at": None,
        "portal_url": studio.get("endpoint"),
    }


def _run(arm: Arm, workspace: str, name: str) -> str:
    """The address of a job in the run history, which is a service of the workspace's region."""
    found = arm.get(workspace)["properties"].get("discoveryUrl")
    if not found:
        raise AzureError("the workspace does not say where its services are", where=workspace)
    return f"{str(found).rstrip('/').removesuffix('/discovery')}/history/v1.0{workspace}/runs/{segment(name)}"


def _part(arm: Arm, link: str, start: int, ended: bool) -> tuple[str, int, bool]:
    """New text of one file, the position after it, and whether that is its end. The link is a secret, its own login."""
    how: dict[str, Any] = {"headers": {"Range": f"bytes={start}-{start + PAGE_BYTES - 1}"}}
    answer = read(lambda: send(arm.http, "GET", link, **how))
    if answer.status_code in (404, 416):
        return "", start, True
    if not answer.is_success:
        raise AzureError(
            f"a log cannot be read: {answer.status_code}", hint="try again", status_code=answer.status_code
        )
    content = answer.content if answer.status_code == 206 else answer.content[start : start + PAGE_BYTES]
    last = len(content) < PAGE_BYTES
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(content, ended and last)
    return text, start + len(content) - len(decoder.getstate()[0]), last
