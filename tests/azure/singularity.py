"""Rows as the service sends them for Singularity: virtual clusters with quotas, instance types, images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tests.azure.arm.tokens import TENANT
from tests.azure.cloud import SUBSCRIPTION, Azure

TYPE = "microsoft.machinelearningservices/virtualclusters"


def quota(series: str, limit: int, used: int = 0, tier: str | None = None) -> dict[str, Any]:
    """A limit in GPUs (or cores) of a series; with a tier it is the tier's, without it the user's own."""
    row = {"id": series, "name": series, "limit": limit, "used": used}
    return row if tier is None else {**row, "slaTier": tier}


def virtual_cluster(
    name: str,
    limits: Sequence[dict[str, Any]],
    *,
    region: str = "westus2",
    subscription: str = SUBSCRIPTION,
    group: str = "singularity",
) -> dict[str, Any]:
    """A row of Resource Graph. `limits` come from `quota`: those without a tier are the user's overall limits."""
    provider = "Microsoft.MachineLearningServices/virtualclusters"
    managed: dict[str, Any] = {
        "locations": [region],
        "defaultGroupPolicyOverallQuotas": {"limits": [one for one in limits if "slaTier" not in one]},
        "quotas": {region: {"limits": [one for one in limits if "slaTier" in one]}},
    }
    return {
        "id": f"/subscriptions/{subscription}/resourceGroups/{group}/providers/{provider}/{name}",
        "name": name,
        "type": TYPE,
        "tenantId": TENANT,
        "subscriptionId": subscription,
        "resourceGroup": group,
        "location": region,
        "tags": {},
        "properties": {"managed": managed},
    }


def instance_type(
    name: str, series: str, *, gpus: int, cores: int, memory: int, description: str = ""
) -> dict[str, Any]:
    """A row of `instanceTypeSeries`. `name` is the short one, `memory` in GiB."""
    return {
        "name": f"Singularity.{name}",
        "instanceTypeSeriesId": series,
        "numberOfGPUs": gpus,
        "numberOfCores": cores,
        "memoryGiB": memory,
        "description": description or f"{cores} cores, {memory} GiB",
    }


def image(name: str, *aliases: str) -> dict[str, Any]:
    """A row of the images, usable as `amlt-sing/NAME`."""
    return {"id": f"/providers/Microsoft.Singularity/images/{name.replace(':', '-')}", "names": [*aliases, name]}


A100 = "Accelerator: NVIDIA A100 80GB GPU"
H100 = "Accelerator: NVIDIA H100 80GB GPU x 8, NVLink, IB"
MI300X = "Accelerator: AMD MI300X 192GB GPU x 8, xGMI, IB"
TYPES = [
    instance_type("ND96_A100_v4", "NDAMv4", gpus=8, cores=96, memory=1900, description=f"{A100} x 8, NVLink, IB"),
    instance_type("ND12_A100_v4", "NDAMv4", gpus=1, cores=12, memory=237, description=f"{A100} x 1"),
    instance_type("ND96_H100_v5", "NDH100v5", gpus=8, cores=96, memory=1900, description=H100),
    instance_type("ND96_MI300X_v5", "NDMI300Xv5", gpus=8, cores=96, memory=1850, description=MI300X),
    instance_type("E4_v3", "Ev3", gpus=0, cores=4, memory=32),
    instance_type("E8_v3", "Ev3", gpus=0, cores=8, memory=64),
]
IMAGES = [
    image("acpt-torch2.7.1-py3.10-cuda12.6-ubuntu22.04", "latest"),
    image("base/job/pytorch:acpt-2.7.1", "pytorch"),
]
CLUSTERS = [
    virtual_cluster(
        "vc-one", [quota("NDAMv4", 64), quota("NDAMv4", 128, 16, "Premium"), quota("NDAMv4", 256, 0, "Standard")]
    ),
    virtual_cluster("vc-two", [quota("NDH100v5", 16, 8), quota("NDH100v5", 32, 0, "Standard")], region="eastus"),
    virtual_cluster("vc-cpu", [quota("Ev3", 64), quota("Ev3", 64, 0, "Basic")]),
]


def seed(
    azure: Azure,
    clusters: Iterable[dict[str, Any]] = CLUSTERS,
    types: Sequence[dict[str, Any]] = TYPES,
    regions: Sequence[str] = ("westus2", "eastus"),
) -> list[str]:
    """Give an Azure its virtual clusters, the types of its regions and the images; the ARM ids of the clusters."""
    rows = list(clusters)
    azure.control("rows", kind="virtual_clusters", rows=rows)
    azure.control("rows", kind="images", rows=IMAGES)
    for region in regions:
        azure.control("rows", kind="series", location=region, rows=list(types))
    return [row["id"] for row in rows]
