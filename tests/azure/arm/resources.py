"""The answers of ARM for workspaces, computes, datastores and environment versions."""

from __future__ import annotations

import datetime
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.azure.arm.refusals import not_found, user_error
from tests.azure.arm.world import ML, Workspace, same, system_data

if TYPE_CHECKING:
    from tests.azure.arm.simulator import Simulator


@dataclass(frozen=True, slots=True)
class Call:
    """A request that kept the contract. `url` is the address without its query."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    url: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back; `document` None: no body."""

    status: int
    document: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


def page(rows: Sequence[Any], call: Call, size: int) -> Answer:
    """One page of `rows` by `$skip`, with the link to the next."""
    start = int(call.query.get("$skip", "0") or "0")
    document: dict[str, Any] = {"value": list(rows[start : start + size])}
    if start + size < len(rows):
        query = urllib.parse.urlencode({**call.query, "$skip": str(start + size)}, safe="$")
        document["nextLink"] = f"{call.url}?{query}"
    return Answer(200, document)


def get_workspace(world: Simulator, call: Call) -> Answer:
    return Answer(200, world.state.workspace(call.path).document(world.discovery))


def list_computes(world: Simulator, call: Call) -> Answer:
    return page(list(world.state.workspace(call.path).computes.values()), call, world.state.settings.page_size)


def get_compute(world: Simulator, call: Call) -> Answer:
    workspace = world.state.workspace(call.path)
    return _get(workspace, workspace.computes, "workspaces/computes", call.path["computeName"])


def list_datastores(world: Simulator, call: Call) -> Answer:
    rows = list(world.state.workspace(call.path).datastores.values())
    if "names" in call.query:
        wanted = call.query["names"].lower().split(",")
        rows = [row for row in rows if row["name"].lower() in wanted]
    if call.query.get("isDefault") == "true":
        rows = [row for row in rows if row["properties"]["isDefault"]]
    return page(rows, call, int(call.query.get("count", world.state.settings.page_size)))


def get_datastore(world: Simulator, call: Call) -> Answer:
    workspace = world.state.workspace(call.path)
    return _get(workspace, workspace.datastores, "workspaces/datastores", call.path["name"])


def put_datastore(world: Simulator, call: Call) -> Answer:
    workspace, name = world.state.workspace(call.path), call.path["name"]
    given = call.body["properties"]
    for needed in ("accountName", "containerName"):
        if not given.get(needed):
            raise user_error(f"`{needed}` is required for an AzureBlob datastore.")
    was = workspace.datastores.get(name.lower())
    if was is not None and was["properties"]["isDefault"]:
        raise user_error(f"The default datastore '{name}' cannot be changed.")
    workspace.add_datastore(
        name, given["accountName"], given["containerName"], "None", given.get("endpoint") or world.suffix
    )
    stored = workspace.datastores[name.lower()]
    stored["properties"]["credentials"] = {"credentialsType": given["credentials"]["credentialsType"]}
    for kept in ("description", "tags", "properties", "protocol", "serviceDataAccessAuthIdentity"):
        if given.get(kept) is not None:
            stored["properties"][kept] = given[kept]
    return Answer(200 if was else 201, stored)


def list_secrets(world: Simulator, call: Call) -> Answer:
    """The key or a SAS of the container, by the credentials the datastore keeps."""
    stored = get_datastore(world, call).document["properties"]
    kind = stored["credentials"]["credentialsType"]
    account, container = stored["accountName"], stored["containerName"]
    key = world.keys.get(account)
    if kind == "None" or key is None:
        raise user_error(f"The datastore '{call.path['name']}' has no secrets: its credentials are of type {kind}.")
    if kind == "AccountKey":
        return Answer(200, {"secretsType": "AccountKey", "key": key})
    return Answer(200, {"secretsType": "Sas", "sasToken": container_sas(account, container, key)})


def container_sas(account: str, container: str, key: str) -> str:
    """A SAS for reading and writing one container, good for an hour."""
    from azure.storage.blob import ContainerSasPermissions, generate_container_sas

    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    allowed = ContainerSasPermissions(read=True, write=True, create=True, list=True)
    return generate_container_sas(account, container, account_key=key, permission=allowed, expiry=end)


def list_environments(world: Simulator, call: Call) -> Answer:
    rows = [
        row
        for (name, _), row in world.state.workspace(call.path).environments.items()
        if name == call.path["name"].lower()
    ]
    if not rows:
        raise not_found("workspaces/environments", call.path["name"], call.path["resourceGroupName"])
    size = int(call.query.get("$top", world.state.settings.page_size))
    return page(rows[::-1], call, size)


def get_environment(world: Simulator, call: Call) -> Answer:
    workspace, key = world.state.workspace(call.path), _environment_key(call)
    if key not in workspace.environments:
        raise not_found("workspaces/environments/versions", "/".join(key), workspace.group)
    return Answer(200, workspace.environments[key])


def put_environment(world: Simulator, call: Call) -> Answer:
    """A new version; the image of one that exists cannot change."""
    workspace, key, given = world.state.workspace(call.path), _environment_key(call), call.body["properties"]
    if not given.get("image") and not given.get("build"):
        raise user_error("An environment version needs `image` or `build`.")
    was = workspace.environments.get(key)
    if was is not None and was["properties"].get("image") != given.get("image"):
        raise user_error(f"Environment version {key[0]}:{key[1]} exists with another image and cannot be changed.")
    name, version = call.path["name"], call.path["version"]
    made = {
        "environmentType": "UserCreated",
        "isAnonymous": False,
        "isArchived": False,
        "provisioningState": "Succeeded",
    }
    workspace.environments[key] = {
        "id": f"{workspace.id}/environments/{name}/versions/{version}",
        "name": version,
        "type": f"{ML}/workspaces/environments/versions",
        "systemData": system_data(),
        "properties": {**made, **{name: value for name, value in given.items() if value is not None}},
    }
    return Answer(200 if was else 201, workspace.environments[key])


def find_environment(workspace: Workspace, named: str) -> dict[str, Any] | None:
    """The properties of what `environmentId` names, an ARM id or `azureml:NAME:VERSION`; None when it is not there."""
    if named.startswith("azureml:"):
        name, _, version = named.removeprefix("azureml:").partition(":")
        rows = [workspace.environments.get((name.lower(), version))]
    else:
        rows = [row for row in workspace.environments.values() if same(named, row["id"])]
    return next((row["properties"] for row in rows if row is not None), None)


def _environment_key(call: Call) -> tuple[str, str]:
    return call.path["name"].lower(), call.path["version"]


def _get(workspace: Workspace, rows: Mapping[str, Any], kind: str, name: str) -> Answer:
    if name.lower() not in rows:
        raise not_found(kind, name, workspace.group)
    return Answer(200, rows[name.lower()])
