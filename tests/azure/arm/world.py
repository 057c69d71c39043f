"""What exists in the simulated Azure: subscriptions, workspaces, virtual clusters, types, images."""

from __future__ import annotations

import datetime
import secrets
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.azure.arm.refusals import Refused, not_found
from tests.azure.arm.tokens import TENANT

ML = "Microsoft.MachineLearningServices"
PUBLIC = "core.windows.net"
"""The storage suffix of the public cloud."""


@dataclass(slots=True)
class Settings:
    """How the simulator behaves; each can be set by a test."""

    latency_ms: float = 0
    """Added to every request, Blob ones included."""
    page_size: int = 30
    """Rows of one page of any list."""
    stage_seconds: float = 0.01
    """How long a job stays in each state before Running."""
    hold: bool = False
    """Jobs stay Queued until this is taken back."""
    kill_after: float = 2.0
    """Seconds between TERM and KILL when a job is canceled."""
    cancel_status: int = 202
    """200: cancel answers when the job has ended."""
    unpullable: tuple[str, ...] = ()
    """Beginnings of images that no node can pull: their jobs fail while they are prepared."""
    log_links_seconds: float = 3600
    """Life of a signed URL of a log."""


@dataclass(slots=True, eq=False)
class Job:
    """A job: the properties it was made of, and its life."""

    id: str
    properties: dict[str, Any]
    folder: Path
    created: datetime.datetime
    status: str = "NotStarted"
    history: list[str] = field(default_factory=lambda: ["NotStarted"])
    error: str | None = None
    cancel: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    started_at: datetime.datetime | None = None
    ended_at: datetime.datetime | None = None

    def become(self, status: str) -> None:
        """Go on to another state; a job that was asked to end does not go back."""
        if self.status == "CancelRequested" and status not in ("Canceled", "Completed", "Failed"):
            return
        self.status = status
        self.history.append(status)


@dataclass(slots=True, eq=False)
class Workspace:
    """A workspace; dictionaries by lower-case name."""

    subscription: str
    group: str
    name: str
    location: str
    account: str
    identities: dict[str, dict[str, str]] = field(default_factory=dict)
    computes: dict[str, dict[str, Any]] = field(default_factory=dict)
    datastores: dict[str, dict[str, Any]] = field(default_factory=dict)
    environments: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    guid: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def id(self) -> str:
        """The ARM id."""
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.group}/providers/{ML}/workspaces/{self.name}"

    def document(self, discovery: str) -> dict[str, Any]:
        """The answer of GET."""
        storage = f"/subscriptions/{self.subscription}/resourceGroups/{self.group}/providers/Microsoft.Storage"
        identity: dict[str, Any] = {"type": "SystemAssigned", "principalId": self.guid, "tenantId": TENANT}
        if self.identities:
            identity["type"] = "SystemAssigned,UserAssigned"
            identity["userAssignedIdentities"] = self.identities
        return {
            "id": self.id,
            "name": self.name,
            "type": f"{ML}/workspaces",
            "location": self.location,
            "kind": "Default",
            "tags": {},
            "sku": {"name": "Basic", "tier": "Basic"},
            "identity": identity,
            "systemData": system_data(),
            "properties": {
                "friendlyName": self.name,
                "workspaceId": self.guid,
                "storageAccount": f"{storage}/storageAccounts/{self.account}",
                "discoveryUrl": discovery,
                "provisioningState": "Succeeded",
                "tenantId": TENANT,
                "publicNetworkAccess": "Enabled",
            },
        }

    def add_compute(self, name: str, size: str, nodes: int, kind: str = "AmlCompute") -> None:
        """A cluster of at most `nodes` machines."""
        properties: dict[str, Any] = {"computeType": kind, "provisioningState": "Succeeded", "isAttachedCompute": False}
        if kind == "AmlCompute":
            scale = {"minNodeCount": 0, "maxNodeCount": nodes, "nodeIdleTimeBeforeScaleDown": "PT2M"}
            properties |= {"computeLocation": self.location, "disableLocalAuth": True}
            properties["properties"] = {
                "osType": "Linux",
                "vmSize": size,
                "vmPriority": "Dedicated",
                "scaleSettings": scale,
            }
        self.computes[name.lower()] = {
            "id": f"{self.id}/computes/{name}",
            "name": name,
            "type": f"{ML}/workspaces/computes",
            "location": self.location,
            "properties": properties,
        }

    def add_datastore(self, name: str, account: str, container: str, credentials: str, endpoint: str) -> None:
        """A Blob datastore. `credentials` is AccountKey, Sas or None; `endpoint` the cloud's suffix."""
        self.datastores[name.lower()] = {
            "id": f"{self.id}/datastores/{name}",
            "name": name,
            "type": f"{ML}/workspaces/datastores",
            "systemData": system_data(),
            "properties": {
                "datastoreType": "AzureBlob",
                "accountName": account,
                "containerName": container,
                "endpoint": endpoint,
                "protocol": "https",
                "credentials": {"credentialsType": credentials},
                "isDefault": name == "workspaceblobstore",
                "subscriptionId": self.subscription,
                "resourceGroup": self.group,
                "serviceDataAccessAuthIdentity": "None",
                "tags": {},
                "properties": None,
                "description": None,
            },
        }


class World:
    """Everything there is, empty at first."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.subscriptions: dict[str, str] = {}
        self.workspaces: list[Workspace] = []
        self.virtual_clusters: list[dict[str, Any]] = []
        self.series: dict[str, list[dict[str, Any]]] = {}
        self.images: list[dict[str, Any]] = []
        self.usages: dict[str, list[dict[str, Any]]] = {}
        self.denied: list[str] = []
        """Lower-case parts of paths to which the caller has no role."""

    def workspace(self, path: Mapping[str, str]) -> Workspace:
        """The workspace a path names; Refused with ARM's word for the part that is not there."""
        subscription, group = path["subscriptionId"], path["resourceGroupName"]
        self.check_subscription(subscription)
        inside = [one for one in self.workspaces if same(one.subscription, subscription) and same(one.group, group)]
        if not inside:
            raise Refused(404, "ResourceGroupNotFound", f"Resource group '{group}' could not be found.")
        for one in inside:
            if same(one.name, path["workspaceName"]):
                return one
        raise not_found("workspaces", path["workspaceName"], group)

    def check_subscription(self, subscription: str) -> None:
        """Refused when there is no such subscription."""
        if not any(same(subscription, known) for known in self.subscriptions):
            raise Refused(404, "SubscriptionNotFound", f"The subscription '{subscription}' could not be found.")

    def virtual_cluster(self, arm_id: str) -> dict[str, Any] | None:
        """The row of a virtual cluster by its ARM id."""
        return next((row for row in self.virtual_clusters if same(row["id"], arm_id)), None)


def same(one: str, other: str) -> bool:
    """ARM's names do not tell upper from lower case."""
    return one.lower() == other.lower()


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def system_data(created: datetime.datetime | None = None) -> dict[str, Any]:
    """Who made a resource and when."""
    stamp = (created or now()).isoformat()
    return {"createdBy": "Somebody", "createdByType": "User", "createdAt": stamp, "lastModifiedAt": stamp}


def fresh_container() -> str:
    """A container name that no test had before."""
    return f"azureml-blobstore-{secrets.token_hex(6)}"
