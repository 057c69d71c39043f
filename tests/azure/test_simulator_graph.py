"""Resource Graph and the Singularity lists of the simulator."""

from __future__ import annotations

from typing import Any

import pytest

from tests.azure import singularity
from tests.azure.cloud import OTHER_SUBSCRIPTION, SUBSCRIPTION, Azure

GRAPH = "/providers/Microsoft.ResourceGraph/resources?api-version=2021-03-01"
WORKSPACES = "Resources | where type =~ 'Microsoft.MachineLearningServices/workspaces'"


def ask(azure: Azure, query: str, **given: Any) -> dict[str, Any]:
    """One page."""
    found: dict[str, Any] = azure.request("POST", GRAPH, {"query": query, **given}).raise_for_status().json()
    return found


@pytest.fixture
def filled(azure: Azure) -> Azure:
    """Three workspaces in two subscriptions, three virtual clusters."""
    azure.workspace("ws1")
    azure.workspace("ws2", group="other", account="ajstoretwo")
    azure.workspace("ws1", subscription=OTHER_SUBSCRIPTION, group="third", location="eastus")
    singularity.seed(azure)
    return azure


def names(page: dict[str, Any]) -> list[str]:
    return [row["name"] for row in page["data"]]


def test_workspaces_are_found_by_conditions(filled: Azure) -> None:
    assert names(ask(filled, WORKSPACES)) == ["ws1", "ws2", "ws1"]
    assert names(ask(filled, f"{WORKSPACES} | order by name asc, location asc | limit 2")) == ["ws1", "ws1"]
    assert names(ask(filled, f"{WORKSPACES} and name =~ 'WS2'")) == ["ws2"]
    assert names(ask(filled, f"{WORKSPACES} | where (name == 'ws2' or location in ('eastus', 'x'))")) == ["ws2", "ws1"]
    assert names(ask(filled, WORKSPACES, subscriptions=[OTHER_SUBSCRIPTION])) == ["ws1"]
    filled.control("deny", path="/resourceGroups/other")
    assert names(ask(filled, WORKSPACES)) == ["ws1", "ws1"]


def test_columns_are_projected_from_inside(filled: Azure) -> None:
    query = f"{WORKSPACES} | project id, name, sub = subscriptionId, store = tostring(properties.storageAccount)"
    row = ask(filled, query)["data"][1]
    assert sorted(row) == ["id", "name", "store", "sub"]
    assert (row["sub"], row["store"].rsplit("/", 1)[-1]) == (SUBSCRIPTION, "ajstoretwo")


def test_pages_follow_by_skip_token(filled: Azure) -> None:
    filled.settings(page_size=2)
    first = ask(filled, WORKSPACES)
    assert (first["count"], first["totalRecords"], first["resultTruncated"]) == (2, 3, "true")
    second = ask(filled, WORKSPACES, options={"$skipToken": first["$skipToken"]})
    assert (names(first), names(second)) == (["ws1", "ws2"], ["ws1"])
    assert "$skipToken" not in second
    blind = ask(filled, f"{WORKSPACES} | project name")
    assert blind["resultTruncated"] == "true" and "$skipToken" not in blind


@pytest.mark.parametrize(
    "query", ["", "Resources | join x", "Disks", "Resources | where type ~ 'x'", "Resources | project a+b"]
)
def test_what_it_cannot_read_is_refused(filled: Azure, query: str) -> None:
    answer = filled.request("POST", GRAPH, {"query": query})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "BadRequest")


def test_virtual_clusters_carry_their_quotas(filled: Azure) -> None:
    query = "resources | where type == 'microsoft.machinelearningservices/virtualclusters' | where name == 'vc-one'"
    [row] = ask(filled, query)["data"]
    managed = row["properties"]["managed"]
    assert managed["locations"] == ["westus2"]
    assert managed["defaultGroupPolicyOverallQuotas"]["limits"] == [singularity.quota("NDAMv4", 64)]
    tiers = {one["slaTier"]: one["limit"] for one in managed["quotas"]["westus2"]["limits"]}
    assert tiers == {"Premium": 128, "Standard": 256}


def test_instance_types_and_images_are_listed(filled: Azure) -> None:
    ml = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.MachineLearningServices/locations"
    rows = filled.request("GET", f"{ml}/eastus/instanceTypeSeries?api-version=2021-03-01-preview").json()["value"]
    assert [row["name"] for row in rows][:2] == ["Singularity.ND96_A100_v4", "Singularity.ND12_A100_v4"]
    assert filled.request("GET", f"{ml}/mars/instanceTypeSeries?api-version=2021-03-01-preview").json()["value"] == []
    images = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Singularity/images"
    assert len(filled.request("GET", f"{images}?api-version=2020-12-01-preview").json()["value"]) == 2
    assert filled.request("GET", f"{images}?api-version=2024-04-01").status_code == 400
