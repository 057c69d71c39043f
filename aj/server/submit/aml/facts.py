"""What a job needs to know of its workspace: read side by side, remembered with its age, nothing written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from functools import cache

from aj.server.azure.arm import Arm
from aj.server.azure.blob import account_url
from aj.server.submit.aml.memory import Known, Memory, folder
from aj.server.submit.aml.where import (
    PARALLEL,
    SHOWN,
    Look,
    Place,
    candidates,
    configured_workspace,
    last_of,
    machine_paths,
    seen,
    the_one,
)
from aj.shared.clock import now_ns
from aj.shared.config import checked_config
from aj.shared.errors import AzureError, ConflictError, NotFoundError
from aj.shared.jsonio import Json, digest, sha256
from aj.shared.model import Emit, Event, JobSpec, Mount
from aj.shared.opts.aml import AmlOpts, image_reference
from aj.shared.opts.sing import UAI, SingOpts
from aj.shared.paths import Home

FRESH_SECONDS = 3600
"""Facts that are older are read again; a refused submission forgets them at once."""
Found = Mapping[str, "dict[str, Json] | None"]
"""Path → the resource, None where there is none."""
GUESSED = 4
"""So many workspaces are read whole before it is known which one has the compute; of more, the compute first."""
STORE = "workspaceblobstore"
STAND_IN = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04:latest"
"""The image of the environment that a job must name although it runs in another one."""
_ZONE = re.compile(r"z[0-9]+\.blob\.storage\.azure\.net")
"""The other form of an account's host that the service gives out."""


def memory_of(home: Home, spec: JobSpec, arm: Arm, who: str) -> Memory:
    """Where the facts of this job are remembered; `who` tells logins apart."""
    mounts = [[mount.name, mount.account, mount.container] for mount in spec.storage]
    place = [*astuple(place_of(spec)), checked_config(home).get("workspace"), identity_of(spec)]
    key = digest([spec.service, place, spec.image, spec.registry, mounts, dict(arm.cloud), who])
    return Memory(folder(home) / f"{key[:24]}.json")


def read_facts(home: Home, spec: JobSpec, arm: Arm, emit: Emit) -> Known:
    """Ask Azure; errors list the candidates when a name is missing or ambiguous."""
    wanted, read_ns, image = place_of(spec), now_ns(), _image(spec)
    where, found = _read(home, spec, arm, image)
    machines = next(iter(machine_paths(where, wanted)), None)
    workspace, store = found[where], found[f"{where}/datastores/{STORE}"]
    if workspace is None:
        raise NotFoundError(f"no workspace `{last_of(where)}`", where=where, hint=seen(arm))
    if machines and found[machines] is None:
        raise NotFoundError(
            f"no compute `{wanted.compute}` in the workspace `{last_of(where)}`",
            where=where,
            hint=_computes(arm, where),
        )
    if store is None:
        raise NotFoundError(f"the workspace `{last_of(where)}` has no `{STORE}`", where=where)
    missing = _missing(where, spec, found, arm, emit)
    facts = {
        "workspace": {
            "id": where,
            "location": workspace.get("location") or "",
            "discovery": str(workspace["properties"].get("discoveryUrl") or "").rstrip("/").removesuffix("/discovery"),
        },
        "environment": {"id": environment_path(where, image)},
        "store": _store(store["properties"], workspace["properties"], arm),
        "mounts": {mount.name: datastore_name(mount) for mount in spec.storage},
    }
    if isinstance(spec.backend_spec, AmlOpts):
        facts["compute"] = _compute(found[machines or ""] or {}, spec.backend_spec, emit)
    else:
        facts["identity"] = _attached(workspace, identity_of(spec))
    return Known(facts, read_ns, missing)


def _read(home: Home, spec: JobSpec, arm: Arm, image: str) -> tuple[str, Found]:
    """The workspace, and what is there of all that the job refers to, asked for side by side."""
    wanted = place_of(spec)
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="facts") as pool:
        look: Look = cache(lambda path: pool.submit(arm.look, path))
        rows = candidates(home, wanted, arm)
        for row in rows:
            for path in _needed(row, spec, image) if len(rows) <= GUESSED else machine_paths(row, wanted):
                look(path)
        where = the_one(rows, wanted, arm, look)
        asked = [(path, look(path)) for path in _needed(where, spec, image)]
        return where, {path: answer.result() for path, answer in asked}


def _missing(where: str, spec: JobSpec, found: Found, arm: Arm, emit: Emit) -> dict[str, Json]:
    """What must be registered: path → body; `ConflictError` when something else is there."""
    image = _image(spec)
    environment = environment_path(where, image)
    version = found[environment]
    missing: dict[str, Json] = {}
    if version is None:
        missing[environment] = {"properties": {"image": image, "osType": "Linux"}}
        emit(Event("note", f"the environment of `{image}` is not there yet; it is registered with the job"))
    else:
        _check_image(version, image, environment)
    for mount in spec.storage:
        path = _datastore_path(where, mount)
        if found[path] is None:
            missing[path] = _datastore(mount, arm)
            emit(Event("note", f"the datastore of `{mount.name}` is not there yet; it is registered with the job"))
        else:
            _check_datastore(found[path] or {}, mount, path)
    return missing


def place_of(spec: JobSpec) -> Place:
    """The workspace and compute of either kind of job: one on a virtual cluster has no compute there."""
    opts = spec.backend_spec
    if isinstance(opts, SingOpts):
        return Place(opts.workspace_subscription_id, opts.workspace_resource_group, opts.workspace, None)
    assert isinstance(opts, AmlOpts)
    return Place(opts.subscription_id, opts.resource_group, opts.workspace, opts.compute)


def identity_of(spec: JobSpec) -> str | None:
    """ARM id of the user-assigned identity that a job on a virtual cluster acts as."""
    return spec.backend_spec.identity if isinstance(spec.backend_spec, SingOpts) else None


def _image(spec: JobSpec) -> str:
    """The image of the job's environment; where Singularity has an image of its own, any will do."""
    if isinstance(spec.backend_spec, SingOpts) and spec.backend_spec.image_version:
        return STAND_IN
    return image_reference(str(spec.image), spec.registry)


def _attached(workspace: Mapping[str, Json], identity: str | None) -> dict[str, Json]:
    """The client id by which the job logs in; `ConflictError` when the workspace does not have the identity."""
    if identity is None:
        return {"client_id": None}
    assigned = (workspace.get("identity") or {}).get("userAssignedIdentities") or {}
    for name, ids in assigned.items():
        if name.lower() == identity.lower():
            return {"client_id": str(ids["clientId"])}
    known = ", ".join(f"`{last_of(name)}`" for name in assigned) or "none"
    raise ConflictError(
        f"the identity `{last_of(identity)}` is not attached to the workspace `{workspace.get('name')}`",
        where=UAI,
        hint=f"attached are {known}; `az ml workspace update` attaches another",
    )


def _needed(workspace: str, spec: JobSpec, image: str) -> list[str]:
    """The paths of everything that the job refers to, in the order of importance."""
    stores = [_datastore_path(workspace, mount) for mount in spec.storage]
    own = f"{workspace}/datastores/{STORE}"
    return [workspace, own, environment_path(workspace, image), *machine_paths(workspace, place_of(spec)), *stores]


def _datastore_path(workspace: str, mount: Mount) -> str:
    return f"{workspace}/datastores/{datastore_name(mount)}"


def known_workspaces(home: Home) -> list[str]:
    """The configured workspace, then those of remembered facts."""
    found = [place] if (place := configured_workspace(home)) else []
    for path in sorted(folder(home).glob("*.json")):
        if (known := Memory(path).recall()) is not None:
            found.append(str(known.facts["workspace"]["id"]))
    return list({place.lower(): place for place in reversed(found)}.values())[::-1]


def experiment_of(home: Home) -> str:
    """The experiment that the project's jobs belong to."""
    return str(checked_config(home).get("experiment", "Default"))


def environment_path(workspace: str, image: str) -> str:
    """The environment version of an image: its digest decides, its name is for people."""
    name = re.sub("[^A-Za-z0-9]+", "-", image.partition("@")[0]).strip("-")[:80].rstrip("-")
    return f"{workspace}/environments/aj-{name}/versions/{sha256(image.encode())[:32]}"


def datastore_name(mount: Mount) -> str:
    """A name that no other container of any account has."""
    plain = re.sub("[^a-z0-9]+", "_", f"{mount.account}_{mount.container}").strip("_")
    return f"aj_{plain}_{sha256(f'{mount.account}/{mount.container}'.encode())[:10]}"


def _datastore(mount: Mount, arm: Arm) -> Json:
    return {
        "properties": {
            "datastoreType": "AzureBlob",
            "accountName": mount.account,
            "containerName": mount.container,
            "endpoint": arm.cloud["storage_suffix"],
            "protocol": "https",
            "credentials": {"credentialsType": "None"},
        }
    }


def _compute(compute: Mapping[str, Json], opts: AmlOpts, emit: Emit) -> dict[str, Json]:
    """The compute's facts; `AzureError` when it cannot run the job, whatever it waits for."""
    properties = compute["properties"]
    state = properties.get("provisioningState", "Succeeded")
    if state in ("Failed", "Deleting", "Canceled"):
        raise AzureError(f"the compute `{opts.compute}` is {state}", where=str(compute["id"]), hint="choose another")
    identity = compute.get("identity") or {}
    assigned = [each.get("clientId") for each in (identity.get("userAssignedIdentities") or {}).values()]
    system = "SystemAssigned" in str(identity.get("type") or "")
    if opts.identity == "managed" and not assigned and not system:
        text = f"the compute `{opts.compute}` has no managed identity; `jobs[0].identity` may be `user` or `none`"
        emit(Event("warning", text))
    scale = (properties.get("properties") or {}).get("scaleSettings") or {}
    return {
        "id": str(compute["id"]),
        "client_id": assigned[0] if len(assigned) == 1 and not system else None,
        "max_nodes": scale.get("maxNodeCount"),
    }


def check_size(facts: Mapping[str, Json], spec: JobSpec) -> None:
    """`AzureError` for a job that is larger than its compute can ever become."""
    most = (facts.get("compute") or {}).get("max_nodes")
    if most is not None and spec.shape.nodes > most:
        raise AzureError(
            f"the compute `{place_of(spec).compute}` has at most {most} nodes, the job wants {spec.shape.nodes}",
            where=facts["compute"]["id"],
            hint=f"give `-n {most}` or fewer, or let the compute grow",
        )


def _store(store: Mapping[str, Json], workspace: Mapping[str, Json], arm: Arm) -> dict[str, Json]:
    account, container = str(store.get("accountName")), str(store.get("containerName"))
    owner = str(workspace.get("storageAccount") or "")
    scope = owner if last_of(owner) == account else f"storageAccounts/{account}"
    suffix = str(store.get("endpoint") or arm.cloud["storage_suffix"])
    if suffix != arm.cloud["storage_suffix"] and not _ZONE.fullmatch(suffix):
        message = f"the workspace's store is at `{suffix}`, which is not `{arm.cloud['storage_suffix']}` of this cloud"
        raise AzureError(message, hint="`cloud` in `aj_config.json` says which cloud the workspace is in")
    zone = "blob" not in arm.cloud and _ZONE.fullmatch(suffix)
    return {
        "name": STORE,
        "account": account,
        "container": container,
        "url": f"https://{account}.{suffix}" if zone else account_url(arm.cloud, account),
        "credentials": (store.get("credentials") or {}).get("credentialsType") or "None",
        "scope": f"{scope}/blobServices/default/containers/{container}",
    }


def _check_image(version: Mapping[str, Json], image: str, where: str) -> None:
    other = version["properties"].get("image")
    if other != image:
        message = f"the environment of `{image}` is there, but holds `{other}`"
        raise ConflictError(message, where=where, hint="it cannot be changed; give the image another tag")


def _check_datastore(datastore: Mapping[str, Json], mount: Mount, where: str) -> None:
    properties = datastore["properties"]
    if (properties.get("accountName"), properties.get("containerName")) != (mount.account, mount.container):
        message = f"the datastore of `storage.{mount.name}` is there, but names `{properties.get('accountName')}`"
        raise ConflictError(message, where=where, hint="remove it in the workspace, aj registers it again")


def _computes(arm: Arm, workspace: str) -> str:
    names = [f"`{row['name']}`" for row in arm.pages(f"{workspace}/computes")]
    return f"it has {', '.join(names[:SHOWN])}" if names else "it has none"
