"""The answers of ARM for jobs: the service's own checks of a body, lists with filters, cancel."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.azure.arm.refusals import Refused, not_found, user_error
from tests.azure.arm.resources import Answer, Call, find_environment, page
from tests.azure.arm.world import ML, Job, Workspace, now, same, system_data

if TYPE_CHECKING:
    from tests.azure.arm.simulator import Simulator

MUTABLE = ("tags", "properties", "description", "isArchived", "services")
ENDED = ("Completed", "Failed", "Canceled")
_REFERENCE = re.compile(r"\$\{\{\s*(inputs|outputs)\.([^}\s]+)\s*\}\}")


def put_job(world: Simulator, call: Call) -> Answer:
    """Accept a job and start it; or change what may change of one that exists."""
    workspace, name = world.state.workspace(call.path), call.path["id"]
    given = {key: value for key, value in call.body["properties"].items() if value is not None}
    check_limits(given)
    was = workspace.jobs.get(name)
    if was is not None:
        changed = [key for key in {*given, *was.properties} - {*MUTABLE} if given.get(key) != was.properties.get(key)]
        if changed:
            raise Refused(400, "ImmutablePropertyModified", f"Job '{name}' exists; cannot change: {sorted(changed)}.")
        was.properties.update({key: given[key] for key in MUTABLE if key in given})
        return Answer(200, document(world, workspace, was))
    check_references(world, workspace, given)
    job = Job(name, given, world.job_folder(name), now())
    workspace.jobs[name] = job
    world.runner.start(workspace, job)
    return Answer(201, document(world, workspace, job))


def get_job(world: Simulator, call: Call) -> Answer:
    workspace = world.state.workspace(call.path)
    return Answer(200, document(world, workspace, find(workspace, call.path["id"])))


def list_jobs(world: Simulator, call: Call) -> Answer:
    """Newest first, by jobType, tag (a key), properties (`name` or `name=value`, comma-joined) and listViewType."""
    workspace = world.state.workspace(call.path)
    rows = [job for job in reversed(workspace.jobs.values()) if _wanted(job.properties, call.query)]
    shown = [document(world, workspace, job) for job in rows]
    return page(shown, call, world.state.settings.page_size)


def cancel_job(world: Simulator, call: Call) -> Answer:
    """202 with the address of the operation; 200 when the job has ended already or the settings say so."""
    workspace = world.state.workspace(call.path)
    job = find(workspace, call.path["id"])
    if job.status in ENDED:
        return Answer(200)
    job.become("CancelRequested")
    job.cancel.set()
    if world.state.settings.cancel_status == 200:
        return Answer(200)
    place = f"/subscriptions/{workspace.subscription}/providers/{ML}/locations/{workspace.location}"
    where = f"{world.arm}{place}/mfeOperationResults/jc:{workspace.guid}:{job.id}?api-version=2024-04-01"
    return Answer(202, headers={"Location": where, "Retry-After": "1"})


def delete_job(world: Simulator, call: Call) -> Answer:
    workspace = world.state.workspace(call.path)
    job = workspace.jobs.get(call.path["id"])
    if job is None:
        return Answer(204)
    if job.status not in ENDED:
        raise Refused(409, "Conflict", f"Job '{job.id}' is {job.status}; cancel it first.")
    del workspace.jobs[job.id]
    return Answer(200)


def find(workspace: Workspace, name: str) -> Job:
    """The job; Refused when there is none."""
    if name not in workspace.jobs:
        raise not_found("workspaces/jobs", name, workspace.group)
    return workspace.jobs[name]


def document(world: Simulator, workspace: Workspace, job: Job) -> dict[str, Any]:
    """A job as GET shows it."""
    link = f"https://ml.azure.com/runs/{job.id}?wsid={workspace.id}&tid=11111111-2222-3333-4444-555555555555"
    services = {
        "Tracking": {"endpoint": f"azureml://{workspace.location}.api.azureml.ms/mlflow", "jobServiceType": "Tracking"},
        "Studio": {"endpoint": link, "jobServiceType": "Studio"},
    }
    shown = {
        "experimentName": "Default",
        "isArchived": False,
        "description": None,
        **job.properties,
        "services": {**(job.properties.get("services") or {}), **services},
        "status": job.status,
    }
    shown["properties"] = {**(job.properties.get("properties") or {}), "_azureml.ComputeTargetType": "amlctrain"}
    return {
        "id": f"{workspace.id}/jobs/{job.id}",
        "name": job.id,
        "type": f"{ML}/workspaces/jobs",
        "systemData": system_data(job.created),
        "properties": shown,
    }


def check_limits(given: Mapping[str, Any]) -> None:
    """The service's limits that no schema states; Refused."""
    for kind in ("tags", "properties"):
        rows = given.get(kind) or {}
        if len(rows) > 50:
            raise user_error(f"A job has at most 50 {kind}, not {len(rows)}.")
        for key, value in rows.items():
            if len(key) > 100 or len(value or "") > 1000:
                raise user_error(f"A key of {kind} has at most 100 characters and its value 1000: '{key[:100]}'.")
    for key, most in (("displayName", 256), ("description", 5000)):
        if len(given.get(key) or "") > most:
            raise user_error(f"`{key}` has at most {most} characters.")
    if re.fullmatch(r"[a-zA-Z0-9][\w-]{0,254}", given.get("experimentName", "Default")) is None:
        raise user_error(f"The experiment name '{given['experimentName']}' is not valid.")
    resources = given.get("resources") or {}
    if re.fullmatch(r"\d+[bBkKmMgG]", resources.get("shmSize", "2g")) is None:
        raise user_error(f"shmSize '{resources['shmSize']}' must be a number and one of b, k, m, g.")
    if resources.get("instanceCount", 1) < 1:
        raise user_error("instanceCount must be at least 1.")
    processes = (given.get("distribution") or {}).get("processCountPerInstance")
    if processes is not None and processes < 1:
        raise user_error("processCountPerInstance must be at least 1.")


def check_references(world: Simulator, workspace: Workspace, given: Mapping[str, Any]) -> None:
    """What a new job names must be there; Refused."""
    if find_environment(workspace, given["environmentId"]) is None:
        raise user_error(f"The environment '{given['environmentId']}' does not exist.")
    compute = given.get("computeId")
    if not compute:
        raise user_error("A job needs a `computeId`.")
    known = any(same(compute, row["id"]) for row in workspace.computes.values())
    if not known and world.state.virtual_cluster(compute) is None:
        raise user_error(f"The compute '{compute}' does not exist in workspace '{workspace.name}'.")
    if not known:
        check_singularity(world, given)
    for kind, name in _REFERENCE.findall(given["command"]):
        if name not in (given.get(kind) or {}):
            raise user_error(f"The command names ${{{{{kind}.{name}}}}}, which is not among the {kind}.")


def check_singularity(world: Simulator, given: Mapping[str, Any]) -> None:
    """What a job on a virtual cluster must say of itself; Refused."""
    asked = ((given.get("resources") or {}).get("properties") or {}).get("AISuperComputer")
    if not isinstance(asked, dict):
        raise user_error("A job on a virtual cluster needs `resources.properties.AISuperComputer`.")
    if given.get("identity") is not None:
        raise user_error("A job on a virtual cluster has no `identity`.")
    if not same(asked.get("VirtualClusterArmId") or "", given["computeId"]):
        raise user_error("`VirtualClusterArmId` is not the virtual cluster of `computeId`.")
    types = [one.strip() for one in str(asked.get("instanceType") or "").split(",")]
    known = {row["name"] for rows in world.state.series.values() for row in rows}
    if not 1 <= len(types) <= 4 or not known.issuperset(types):
        raise user_error(
            f"`instanceType` names what no region has, or more than four types: '{asked.get('instanceType')}'."
        )
    if asked.get("slaTier") not in ("Premium", "Standard", "Basic"):
        raise user_error(f"`slaTier` is '{asked.get('slaTier')}', not Premium, Standard or Basic.")


def _wanted(properties: Mapping[str, Any], query: Mapping[str, str]) -> bool:
    archived, view = bool(properties.get("isArchived")), query.get("listViewType", "ActiveOnly")
    if view != "All" and archived != (view == "ArchivedOnly"):
        return False
    if "jobType" in query and properties["jobType"] != query["jobType"]:
        return False
    if "tag" in query and query["tag"] not in (properties.get("tags") or {}):
        return False
    for wanted in filter(None, query.get("properties", "").split(",")):
        name, equals, value = wanted.partition("=")
        have = (properties.get("properties") or {}).get(name)
        if have is None or (equals and have != value):
            return False
    return True
