"""What a caller can see in Azure, as rows: their login, workspaces, experiments, computes, virtual clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice

from aj.server.azure.arm import Arm, azure_of
from aj.server.azure.token import claims
from aj.server.submit.aml.facts import experiment_of
from aj.server.submit.aml.match import Cluster, Machine, parse_clusters, parse_machines
from aj.server.submit.aml.sing import cluster_rows, image_rows, sku_of, type_rows
from aj.server.submit.aml.where import configured_workspace, workspaces
from aj.shared.errors import NotFoundError
from aj.shared.jsonio import Json
from aj.shared.model import Caller, nowhere
from aj.shared.opts.sing import ALIAS
from aj.shared.paths import Home

JOBS_COUNTED = 1_000
"""The newest jobs of a workspace, from which its experiments are told."""
_WORKSPACE = {
    "name": "name",
    "resource_group": "resourceGroup",
    "subscription_id": "subscriptionId",
    "location": "location",
}
_COMPUTE = {
    "type": "computeType",
    "size": "vmSize",
    "priority": "vmPriority",
    "nodes": "currentNodeCount",
    "max_nodes": "maxNodeCount",
    "state": "provisioningState",
}
"""Our names → Azure's."""


def view(topic: str, home: Home, caller: Caller) -> dict[str, Json]:
    """The document of one topic; `NotFoundError` lists them."""
    if topic not in _TOPICS:
        known = ", ".join(f"`{name}`" for name in _TOPICS)
        raise NotFoundError(f"nothing is known of `{topic}`", hint=f"it may be {known}")
    return _TOPICS[topic](azure_of(home, caller), home)


def _login(arm: Arm, home: Home) -> dict[str, Json]:
    token = arm.login.token(arm.cloud["arm_scope"])
    known = claims(token.text)
    return {
        "logged_in": True,
        "source": token.source,
        "account": known.get("upn") or known.get("unique_name") or known.get("appid") or known.get("oid"),
        "tenant": known.get("tid"),
        "expires_at": datetime.fromtimestamp(token.expires_on, UTC).isoformat(),
        "scope": arm.cloud["arm_scope"],
        "endpoint": arm.cloud["arm"],
        "workspace": configured_workspace(home),
    }


def _workspaces(arm: Arm, home: Home) -> dict[str, Json]:
    chosen = (configured_workspace(home) or "").lower()
    rows = [{**_picked(row, _WORKSPACE), "configured": str(row["id"]).lower() == chosen} for row in workspaces(arm)]
    return {"workspaces": rows}


def _workspace(arm: Arm, home: Home) -> dict[str, Json]:
    found = arm.get(_chosen(home))
    properties = found["properties"]
    return {
        "name": found["name"],
        "id": found["id"],
        "location": found.get("location"),
        "storage_account": str(properties.get("storageAccount") or "").rpartition("/")[2],
        "state": properties.get("provisioningState"),
        "experiment": experiment_of(home),
    }


def _experiments(arm: Arm, home: Home) -> dict[str, Json]:
    found: dict[str, dict[str, Json]] = {}
    for job in islice(arm.pages(f"{_chosen(home)}/jobs", listViewType="ActiveOnly"), JOBS_COUNTED):
        name = str(job["properties"].get("experimentName") or "Default")
        newest = {"name": name, "jobs": 0, "last_job_at": (job.get("systemData") or {}).get("createdAt")}
        found.setdefault(name, newest)["jobs"] += 1
    return {"experiments": list(found.values())}


def _quota(arm: Arm, home: Home) -> dict[str, Json]:
    return {"computes": [_compute(row) for row in arm.pages(f"{_chosen(home)}/computes")]}


def _compute(row: Mapping[str, Json]) -> dict[str, Json]:
    properties = row["properties"]
    machine = properties.get("properties") or {}
    scale = machine.get("scaleSettings") or {}
    return {"name": row["name"], **_picked({**machine, **scale, **properties}, _COMPUTE)}


def _picked(row: Mapping[str, Json], names: Mapping[str, str]) -> dict[str, Json]:
    return {key: row.get(name) for key, name in names.items()}


def _clusters(arm: Arm, home: Home) -> dict[str, Json]:
    del home
    return {"clusters": [row for cluster in parse_clusters(cluster_rows(arm)) for row in _quotas(cluster)]}


def _quotas(cluster: Cluster) -> Iterator[dict[str, Json]]:
    """A row for each series: the user's limit and what is left of it, and what each tier has left."""
    place = {
        "cluster": cluster.name,
        "resource_group": cluster.group,
        "subscription_id": cluster.subscription,
        "region": cluster.region,
    }
    for series in sorted({*cluster.user, *(name for quotas in cluster.tiers.values() for name in quotas)}):
        mine = cluster.user.get(series)
        tiers = {
            tier.lower(): quotas[series].free if series in quotas else None for tier, quotas in cluster.tiers.items()
        }
        own = {"limit": mine.limit if mine else 0, "used": mine.used if mine else 0, "free": mine.free if mine else 0}
        yield {**place, "series": series, **own, **tiers}


def _skus(arm: Arm, home: Home) -> dict[str, Json]:
    del home
    offered = parse_clusters(cluster_rows(arm))
    found: dict[Machine, set[str]] = {}
    for (_, region), rows in type_rows(arm, [cluster.place for cluster in offered], nowhere).items():
        for machine in parse_machines(rows):
            found.setdefault(machine, set()).add(region)
    return {
        "skus": [_sku(machine, regions) for machine, regions in sorted(found.items(), key=lambda item: item[0].name)]
    }


def _sku(machine: Machine, regions: Iterable[str]) -> dict[str, Json]:
    return {
        "name": machine.name.removeprefix("Singularity."),
        "sku": sku_of(machine),
        "series": machine.series,
        "gpus": machine.gpus,
        "accelerator": " ".join(sorted(machine.accelerators)) or None,
        "vendor": machine.vendor,
        "gpu_memory_gb": machine.gpu_memory_gb,
        "cores": machine.cores,
        "memory_gib": machine.memory_gib,
        "regions": ", ".join(sorted(regions)),
    }


def _images(arm: Arm, home: Home) -> dict[str, Json]:
    offered = parse_clusters(cluster_rows(arm))
    place = configured_workspace(home)
    known = [cluster.subscription for cluster in offered] or ([place.split("/")[2]] if place else [])
    rows = image_rows(arm, known[0]) if known else []
    names = ([str(name) for name in row.get("names") or ()] for row in rows)
    return {"images": [{"image": ALIAS + each[-1], "aliases": ", ".join(each[:-1])} for each in names if each]}


def _chosen(home: Home) -> str:
    if (place := configured_workspace(home)) is None:
        raise NotFoundError("no workspace is configured", hint="`aj ws list` shows them, `aj ws set NAME` chooses one")
    return place


_TOPICS: Mapping[str, Callable[[Arm, Home], dict[str, Json]]] = {
    "login": _login,
    "workspaces": _workspaces,
    "workspace": _workspace,
    "experiments": _experiments,
    "quota": _quota,
    "clusters": _clusters,
    "skus": _skus,
    "images": _images,
}
