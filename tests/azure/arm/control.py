"""What a test tells the simulator and asks it: `POST /_control/VERB` with a JSON object, no token."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tests.azure.arm.blob import Account
from tests.azure.arm.traffic import sequential
from tests.azure.arm.world import PUBLIC, Workspace, World, fresh_container, same

if TYPE_CHECKING:
    from tests.azure.arm.simulator import Simulator


async def serve(world: Simulator, request: Request) -> Response:
    """Carry out one order; 400 with the reason when it cannot be."""
    verb = request.url.path.removeprefix("/_control/")
    given = await request.json()
    try:
        if verb == "reset":
            await asyncio.to_thread(world.runner.stop)
        done = VERBS[verb](world, **given)
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        return JSONResponse({"error": f"{verb}: {error!r}"}, 400)
    return JSONResponse(done)


def reset(world: Simulator) -> None:
    """Back to an empty Azure: no workspaces, no jobs, no faults, no traffic."""
    world.state = World()
    world.faults.clear()
    world.exchanges.clear()
    world.refusals.clear()
    world.violations.clear()
    world.blob.accounts.clear()
    world.suffix = PUBLIC


def settings(world: Simulator, **given: Any) -> None:
    for name, value in given.items():
        if not hasattr(world.state.settings, name):
            raise ValueError(f"no setting `{name}`")
        setattr(world.state.settings, name, value)


def cloud(world: Simulator, suffix: str) -> None:
    """The storage suffix that datastores made from now on have, as `core.chinacloudapi.cn`."""
    world.suffix = suffix


def subscription(world: Simulator, id: str, name: str) -> None:
    world.state.subscriptions[id] = name


def workspace(world: Simulator, account: str, credentials: str, **place: Any) -> dict[str, Any]:
    """A workspace at `place` (subscription, group, name, location); its default container is yet to be made."""
    made = Workspace(account=account, **place)
    container = fresh_container()
    made.add_datastore("workspaceblobstore", account, container, credentials, world.suffix)
    world.state.workspaces.append(made)
    return {"id": made.id, "container": container, "guid": made.guid}


def compute(world: Simulator, workspace: str, name: str, size: str, nodes: int, kind: str = "AmlCompute") -> str:
    _workspace(world, workspace).add_compute(name, size, nodes, kind)
    return f"{workspace}/computes/{name}"


def identity(world: Simulator, workspace: str, arm_id: str) -> dict[str, str]:
    """Attach a user-assigned identity to a workspace."""
    ids = {"clientId": str(uuid.uuid4()), "principalId": str(uuid.uuid4())}
    _workspace(world, workspace).identities[arm_id] = ids
    return ids


def datastore(
    world: Simulator, workspace: str, name: str, account: str, container: str, credentials: str = "None"
) -> None:
    _workspace(world, workspace).add_datastore(name, account, container, credentials, world.suffix)


def account(world: Simulator, name: str, **allowed: bool) -> None:
    """An account's policy: shared_keys, data_role, firewall_open."""
    world.blob.accounts[name] = Account(**allowed)


def deny(world: Simulator, path: str) -> None:
    """Take the caller's role away from every ARM path that contains `path`."""
    world.state.denied.append(path.lower())


def rows(world: Simulator, kind: str, rows: list[Any], location: str = "") -> None:
    """Set virtual_clusters, images, or series and usages of one location, as the service would send them."""
    if kind in ("series", "usages"):
        getattr(world.state, kind)[location.lower()] = rows
    elif kind in ("virtual_clusters", "images"):
        setattr(world.state, kind, rows)
    else:
        raise ValueError(f"no rows of kind `{kind}`")


def fault(world: Simulator, **given: Any) -> None:
    world.faults.order(given)


def faults_waiting(world: Simulator) -> list[str]:
    return world.faults.waiting()


def job(world: Simulator, workspace: str, id: str) -> dict[str, Any]:
    """A job's state with its whole history, its properties as they were sent, and its folder."""
    found = _workspace(world, workspace).jobs[id]
    shown = {"status": found.status, "history": found.history, "error": found.error, "ended": found.ended.is_set()}
    return {**shown, "properties": found.properties, "folder": str(found.folder)}


def job_ids(world: Simulator) -> list[str]:
    return [one for workspace in world.state.workspaces for one in workspace.jobs]


def write_log(world: Simulator, workspace: str, id: str, name: str, text: str) -> None:
    """Append to a log of a job, as if the job had."""
    file = _workspace(world, workspace).jobs[id].folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        out.write(text)


def traffic(world: Simulator, since: float = 0, until: float = float("inf")) -> dict[str, Any]:
    """Requests that began in a window of the monotonic clock, and how many of them waited for another."""
    seen = [one for one in world.exchanges if since <= one.started <= until]
    spans = [(one.started, one.ended or one.started) for one in seen]
    return {"requests": [one.to_json() for one in seen], "sequential": sequential(spans)}


def forget_traffic(world: Simulator) -> None:
    world.exchanges.clear()


def complaints(world: Simulator) -> dict[str, list[str]]:
    """violations: answers of ours that broke the contract; refusals: requests that did, or named what is not there."""
    return {"violations": world.violations, "refusals": world.refusals}


VERBS: dict[str, Callable[..., Any]] = {
    verb.__name__: verb
    for verb in (
        reset, settings, cloud, subscription, workspace, compute, identity, datastore, account, deny, rows, fault,
        faults_waiting, job, job_ids, write_log, traffic, forget_traffic, complaints,
    )
}  # fmt: skip


def _workspace(world: Simulator, arm_id: str) -> Workspace:
    return next(one for one in world.state.workspaces if same(one.id, arm_id))
