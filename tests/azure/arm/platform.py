"""Answers beside the workspace contract: subscriptions, instance types, images, usages, identities."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.azure.arm.contract import check_api_version
from tests.azure.arm.refusals import Refused
from tests.azure.arm.resources import Answer, Call, page
from tests.azure.arm.tokens import TENANT
from tests.azure.arm.world import same

if TYPE_CHECKING:
    from tests.azure.arm.simulator import Simulator

_SUBSCRIPTION = r"/subscriptions/(?P<subscriptionId>[^/]+)"
_ML = rf"{_SUBSCRIPTION}/providers/Microsoft\.MachineLearningServices/locations/(?P<location>[^/]+)"


def find(method: str, path: str) -> tuple[str, dict[str, str]] | None:
    """The name of the answer that a request means, and its path parameters."""
    if method != "GET":
        return None
    for name, (pattern, _, _) in _ROUTES.items():
        found = re.fullmatch(pattern, path, re.IGNORECASE)
        if found:
            return name, found.groupdict()
    return None


def serve(world: Simulator, name: str, call: Call) -> Answer:
    """Answer what `find` named."""
    _, versions, answer = _ROUTES[name]
    check_api_version(call.query, versions)
    if "subscriptionId" in call.path:
        world.state.check_subscription(call.path["subscriptionId"])
    return answer(world, call)


def _subscriptions(world: Simulator, call: Call) -> Answer:
    rows = [
        {
            "id": f"/subscriptions/{one}",
            "subscriptionId": one,
            "displayName": name,
            "state": "Enabled",
            "tenantId": TENANT,
        }
        for one, name in world.state.subscriptions.items()
    ]
    return page(rows, call, world.state.settings.page_size)


def _subscription(world: Simulator, call: Call) -> Answer:
    one = next(known for known in world.state.subscriptions if same(known, call.path["subscriptionId"]))
    name = world.state.subscriptions[one]
    return Answer(200, {"id": f"/subscriptions/{one}", "subscriptionId": one, "displayName": name, "state": "Enabled"})


def _series(world: Simulator, call: Call) -> Answer:
    return Answer(200, {"value": world.state.series.get(call.path["location"].lower(), [])})


def _images(world: Simulator, call: Call) -> Answer:
    return Answer(200, {"value": world.state.images})


def _usages(world: Simulator, call: Call) -> Answer:
    return page(world.state.usages.get(call.path["location"].lower(), []), call, world.state.settings.page_size)


def _identity(world: Simulator, call: Call) -> Answer:
    wanted = call.url.split("/subscriptions/", 1)[1]
    for workspace in world.state.workspaces:
        for arm_id, ids in workspace.identities.items():
            if same(arm_id, f"/subscriptions/{wanted}"):
                properties = {**ids, "tenantId": TENANT}
                return Answer(
                    200,
                    {"id": arm_id, "name": call.path["name"], "location": workspace.location, "properties": properties},
                )
    raise Refused(404, "ResourceNotFound", f"The identity '{call.path['name']}' was not found.")


def _operation(world: Simulator, call: Call) -> Answer:
    """Where a cancel's Location points: 202 until the job has ended."""
    for workspace in world.state.workspaces:
        if workspace.guid == call.path["guid"] and call.path["job"] in workspace.jobs:
            ended = workspace.jobs[call.path["job"]].ended.is_set()
            return (
                Answer(200)
                if ended
                else Answer(202, headers={"Location": f"{call.url}?api-version=2024-04-01", "Retry-After": "1"})
            )
    raise Refused(404, "NotFound", "No such operation.")


_Answering = Callable[["Simulator", Call], Answer]
_ROUTES: dict[str, tuple[str, set[str], _Answering]] = {
    "Subscriptions_List": (
        r"/subscriptions",
        {"2016-06-01", "2018-06-01", "2019-06-01", "2019-11-01", "2020-01-01", "2021-01-01", "2022-12-01"},
        _subscriptions,
    ),
    "Subscriptions_Get": (
        _SUBSCRIPTION,
        {"2016-06-01", "2019-06-01", "2020-01-01", "2021-01-01", "2022-12-01"},
        _subscription,
    ),
    "InstanceTypeSeries_List": (rf"{_ML}/instanceTypeSeries", {"2021-03-01-preview"}, _series),
    "Usages_List": (rf"{_ML}/usages", {"2024-04-01"}, _usages),
    "Operations_Get": (rf"{_ML}/mfeOperationResults/jc:(?P<guid>[^:/]+):(?P<job>[^/]+)", {"2024-04-01"}, _operation),
    "Images_List": (rf"{_SUBSCRIPTION}/providers/Microsoft\.Singularity/images", {"2020-12-01-preview"}, _images),
    "UserAssignedIdentities_Get": (
        rf"{_SUBSCRIPTION}/resourceGroups/(?P<group>[^/]+)/providers/Microsoft\.ManagedIdentity/userAssignedIdentities/(?P<name>[^/]+)",
        {"2018-11-30", "2023-01-31"},
        _identity,
    ),
}
