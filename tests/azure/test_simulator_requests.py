"""The simulator refuses what breaks the service's contract, and what it answers keeps it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.azure.arm.contract import Contract
from tests.azure.arm.tokens import token
from tests.azure.cloud import OTHER_SUBSCRIPTION, Azure, Place

Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def place(azure: Azure) -> Place:
    """A workspace in which the published example of a job has all that it names."""
    made = azure.workspace("ws1")
    azure.compute(made, "c")
    azure.environment(made)
    azure.settings(hold=True)
    return made


@pytest.fixture
def example(contracts: Path, place: Place) -> dict[str, Any]:
    """The published example with every key there is, made to fit the workspace."""
    found: dict[str, Any] = json.loads((contracts / "aml-commandjob.full-example.json").read_text())
    properties = found["properties"]
    properties["computeId"] = f"{place.id}/computes/c"
    properties["environmentId"] = f"{place.id}/environments/env/versions/1"
    return found


def error(answer: Any) -> tuple[int, str]:
    """Status and code."""
    return answer.status_code, answer.json()["error"]["code"]


def test_the_full_example_is_accepted_and_comes_back(azure: Azure, place: Place, example: dict[str, Any]) -> None:
    answer = azure.request("PUT", f"{place.id}/jobs/j1", example)
    assert answer.status_code == 201, answer.text
    shown = azure.request("GET", f"{place.id}/jobs/j1").json()
    assert shown["name"] == "j1"
    for key in ("command", "inputs", "distribution", "resources", "limits", "environmentVariables", "tags"):
        assert shown["properties"][key] == example["properties"][key]
    assert shown["properties"]["services"]["Studio"]["endpoint"].startswith("https://ml.azure.com/runs/j1?wsid=")
    assert azure.refusals() == []


def everywhere(document: Any, pointer: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of every object in a document."""
    places = [pointer] if isinstance(document, dict) else []
    rows = document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else []
    return places + [place for key, value in rows for place in everywhere(value, (*pointer, key))]


FREE = ("tags", "environmentVariables", "webhooks", "services", "inputs", "outputs")


def test_an_unknown_key_is_refused_wherever_it_stands(contracts: Path) -> None:
    example = json.loads((contracts / "aml-commandjob.full-example.json").read_text())
    contract = Contract(contracts)
    operation = contract.operations["Jobs_CreateOrUpdate"]
    assert contract.problems("aml-commandjob.contract", "JobPut", example) == []
    tried = 0
    for pointer in everywhere(example):
        names = [part for part in pointer if isinstance(part, str)]
        if names[-1:] and (names[-1] in FREE or "properties" in names[1:]):
            continue  # maps of the caller's own names
        spoilt = copy.deepcopy(example)
        inner = spoilt
        for part in pointer:
            inner = inner[part]
        inner["bogus"] = 1
        assert contract.problems("aml-commandjob.contract", "JobPut", spoilt), (
            f"{operation.name} took bogus at {pointer}"
        )
        tried += 1
    assert tried >= 15


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["properties"].pop("command"),
        lambda body: body["properties"].pop("environmentId"),
        lambda body: body["properties"].update(command=""),
        lambda body: body["properties"].update(jobType="Sweep"),
        lambda body: body["properties"].update(status="Running"),
        lambda body: body.update(id="x"),
        lambda body: body["properties"]["inputs"]["data"].update(mode="Mount"),
        lambda body: body["properties"]["inputs"]["data"].pop("jobInputType"),
        lambda body: body["properties"]["limits"].pop("jobLimitsType"),
        lambda body: body["properties"]["limits"].update(timeout="3600"),
        lambda body: body["properties"]["limits"].update(timeout="PT0.5S"),
        lambda body: body["properties"]["resources"].update(instanceCount="2"),
        lambda body: body["properties"]["environmentVariables"].update(A=1),
        lambda body: body["properties"]["tags"].update(a=True),
        lambda body: body["properties"]["identity"].update(identityType="Managed", clientId="me"),
        lambda body: body["properties"]["distribution"].update(distributionType="Ray"),
    ],
)
def test_a_spoilt_body_is_a_validation_error(
    azure: Azure, place: Place, example: dict[str, Any], change: Change
) -> None:
    change(example)
    answer = azure.request("PUT", f"{place.id}/jobs/j1", example)
    assert error(answer) == (400, "ValidationError"), answer.text
    assert azure.control("job_ids") == []
    assert len(azure.refusals()) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["properties"].update(tags={str(n): "" for n in range(51)}),
        lambda body: body["properties"].update(tags={"k" * 101: ""}),
        lambda body: body["properties"].update(properties={"k": "v" * 1001}),
        lambda body: body["properties"].update(displayName="d" * 257),
        lambda body: body["properties"].update(experimentName="a b"),
        lambda body: body["properties"]["resources"].update(shmSize="x64g2"),
        lambda body: body["properties"]["resources"].update(instanceCount=0),
        lambda body: body["properties"].update(command="x ${{inputs.nothing}}"),
        lambda body: body["properties"].update(computeId="/subscriptions/s/computes/none"),
        lambda body: body["properties"].update(environmentId="azureml:env:2"),
    ],
)
def test_what_no_schema_says_is_a_user_error(
    azure: Azure, place: Place, example: dict[str, Any], change: Change
) -> None:
    change(example)
    assert error(azure.request("PUT", f"{place.id}/jobs/j1", example)) == (400, "UserError")
    assert azure.control("job_ids") == []


def test_paths_parameters_versions_and_methods_are_checked(azure: Azure, place: Place) -> None:
    def get(path: str) -> tuple[int, str]:
        return error(azure.request("GET", path))

    assert get(f"{place.id}?api-version=2099-01-01") == (400, "NoRegisteredProviderFound")
    assert get(f"{place.id}?x=1") == (400, "MissingApiVersionParameter")
    assert get(f"{place.id}/jobs?api-version=2024-04-01&status=Running") == (400, "InvalidParameter")
    assert get(f"{place.id}/jobs?api-version=2024-04-01&listViewType=Old") == (400, "InvalidParameter")
    assert get(f"{place.id}/models") == (400, "InvalidResourceType")
    assert error(azure.request("PUT", f"{place.id}/jobs/.bad", {})) == (400, "InvalidParameter")
    assert error(azure.request("DELETE", place.id)) == (405, "MethodNotAllowed")
    assert error(azure.request("GET", f"{place.id}/jobs", {"a": 1})) == (400, "InvalidRequestContent")
    assert len(azure.refusals()) == 8


def test_what_is_not_there_is_named(azure: Azure, place: Place) -> None:
    def get(path: str) -> tuple[int, str]:
        return error(azure.request("GET", path))

    assert get(place.id.replace(place.subscription, "x")) == (404, "SubscriptionNotFound")
    assert get(place.id.replace("/research/", "/other/")) == (404, "ResourceGroupNotFound")
    assert get(place.id.replace("ws1", "ws9")) == (404, "ResourceNotFound")
    for rest in ("computes/x", "datastores/x", "environments/env/versions/9", "environments/x/versions", "jobs/x"):
        assert get(f"{place.id}/{rest}") == (404, "ResourceNotFound"), rest
    assert azure.request("GET", place.id.replace("ws1", "WS1")).status_code == 200


def test_a_token_is_needed_and_must_be_for_arm_and_alive(azure: Azure, place: Place) -> None:
    def code(header: str) -> tuple[int, str]:
        return error(azure.request("GET", place.id, Authorization=header))

    assert code("") == (401, "AuthenticationFailed")
    assert code("Bearer abc") == (401, "InvalidAuthenticationToken")
    assert code(f"Bearer {token('https://storage.azure.com')}") == (401, "InvalidAuthenticationTokenAudience")
    assert code(f"Bearer {token('https://management.azure.com', lifetime=-1)}") == (401, "ExpiredAuthenticationToken")
    assert azure.request("GET", place.id, Authorization=f"Bearer {token('https://management.azure.com/')}").is_success


def test_a_missing_role_is_a_403_that_names_the_scope(azure: Azure, place: Place) -> None:
    azure.control("deny", path="/workspaces/ws1/jobs")
    answer = azure.request("GET", f"{place.id}/jobs")
    assert error(answer) == (403, "AuthorizationFailed")
    assert f"{place.id}/jobs" in answer.json()["error"]["message"]
    assert azure.request("GET", place.id).status_code == 200


def test_a_job_that_exists_changes_only_where_it_may(azure: Azure, place: Place, example: dict[str, Any]) -> None:
    path = f"{place.id}/jobs/j1"
    azure.request("PUT", path, example)
    assert azure.request("PUT", path, example).status_code == 200
    example["properties"]["tags"] = {"new": "tag"}
    assert azure.request("PUT", path, example).json()["properties"]["tags"] == {"new": "tag"}
    example["properties"]["command"] = "other"
    assert error(azure.request("PUT", path, example)) == (400, "ImmutablePropertyModified")


def test_environments_and_datastores_are_made_once_and_compared(azure: Azure, place: Place) -> None:
    path = f"{place.id}/environments/img/versions/abc"
    body = {"properties": {"image": "a/b:c", "osType": "Linux"}}
    assert azure.request("PUT", path, body).status_code == 201
    assert azure.request("PUT", path, body).status_code == 200
    assert azure.request("GET", path).json()["properties"]["image"] == "a/b:c"
    body["properties"]["image"] = "other"
    assert error(azure.request("PUT", path, body)) == (400, "UserError")
    store = {
        "datastoreType": "AzureBlob",
        "accountName": "ajstoretwo",
        "containerName": "things",
        "credentials": {"credentialsType": "None"},
    }
    path = f"{place.id}/datastores/things"
    assert azure.request("PUT", path, {"properties": store}).status_code == 201
    shown = azure.request("GET", path).json()["properties"]
    assert (shown["accountName"], shown["containerName"], shown["isDefault"]) == ("ajstoretwo", "things", False)
    assert error(azure.request("POST", f"{path}/listSecrets")) == (400, "UserError")
    store["datastoreType"] = "AzureFile"
    assert error(azure.request("PUT", path, {"properties": store})) == (400, "ValidationError")


def test_another_cloud_has_another_storage_suffix(azure: Azure) -> None:
    azure.control("cloud", suffix="core.chinacloudapi.cn")
    place = azure.workspace("ws3")
    china = {"Authorization": f"Bearer {token('https://management.chinacloudapi.cn')}"}
    store = azure.request("GET", f"{place.id}/datastores/workspaceblobstore", **china).json()["properties"]
    assert store["endpoint"] == "core.chinacloudapi.cn"


@pytest.mark.parametrize("kind", ["AccountKey", "Sas"])
def test_the_secrets_of_a_datastore_open_its_container(azure: Azure, kind: str) -> None:
    from azure.storage.blob import ContainerClient

    place = azure.workspace("ws2", credentials=kind)
    store = azure.request("GET", f"{place.id}/datastores/workspaceblobstore").json()["properties"]
    assert store["credentials"] == {"credentialsType": kind}
    assert (store["containerName"], store["protocol"], store["endpoint"]) == (
        place.container,
        "https",
        "core.windows.net",
    )
    secrets = azure.request("POST", f"{place.id}/datastores/workspaceblobstore/listSecrets").json()
    opened = ContainerClient(
        f"{azure.blob}/{place.account}",
        store["containerName"],
        credential=secrets.get("key") or secrets["sasToken"],
        connection_verify=str(azure.ca_file),
    )
    opened.upload_blob("x", b"1")
    assert azure.blobs().get_blob_client(place.container, "x").download_blob().readall() == b"1"


def test_every_list_pages(azure: Azure, place: Place, example: dict[str, Any]) -> None:
    azure.settings(page_size=2)
    for number in range(5):
        azure.compute(place, f"cluster{number}")
        example["properties"]["isArchived"] = number == 4
        example["properties"]["tags"] = {f"tag{number}": "x"}
        azure.request("PUT", f"{place.id}/jobs/j{number}", example).raise_for_status()

    def names(path: str) -> list[str]:
        found, url = [], path
        while url:
            page = azure.request("GET", url).raise_for_status().json()
            assert len(page["value"]) <= 2
            found += [row["name"] for row in page["value"]]
            url = page.get("nextLink", "")
        return found

    assert names(f"{place.id}/computes") == ["c", *(f"cluster{number}" for number in range(5))]
    jobs = f"{place.id}/jobs?api-version=2024-04-01"
    assert names(jobs) == ["j3", "j2", "j1", "j0"]
    assert names(f"{jobs}&listViewType=All") == ["j4", "j3", "j2", "j1", "j0"]
    assert names(f"{jobs}&listViewType=ArchivedOnly") == ["j4"]
    assert names(f"{jobs}&tag=tag2&jobType=Command") == ["j2"]
    assert names(f"{jobs}&properties=p=q") == ["j3", "j2", "j1", "j0"]
    assert names(f"{jobs}&properties=p=z") == []


def test_subscriptions_and_identities_are_listed(azure: Azure, place: Place) -> None:
    rows = azure.request("GET", "/subscriptions?api-version=2022-12-01").json()["value"]
    assert [row["subscriptionId"] for row in rows] == [place.subscription, OTHER_SUBSCRIPTION]
    group = f"/subscriptions/{place.subscription}/resourceGroups/g"
    arm_id = f"{group}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/me"
    ids = azure.control("identity", workspace=place.id, arm_id=arm_id)
    attached = azure.request("GET", place.id).json()["identity"]["userAssignedIdentities"]
    assert attached == {arm_id: ids}
    shown = azure.request("GET", f"{arm_id}?api-version=2023-01-31").json()
    assert shown["properties"]["clientId"] == ids["clientId"]


def test_the_quota_of_a_region_is_listed(azure: Azure) -> None:
    azure.usages("westus2", standardNCADSA100v4Family=(96, 24))
    path = f"/subscriptions/{OTHER_SUBSCRIPTION}/providers/Microsoft.MachineLearningServices/locations/westus2/usages"
    [row] = azure.request("GET", path).json()["value"]
    assert (row["name"]["value"], row["limit"], row["currentValue"]) == ("standardNCADSA100v4Family", 96, 24)


def test_an_answer_of_ours_that_breaks_the_contract_is_seen(contracts: Path) -> None:
    contract = Contract(contracts)
    get = contract.operations["Jobs_Get"]
    good = {"properties": {"jobType": "Command", "command": "x", "environmentId": "e", "status": "Running"}}
    assert contract.answer_problems(get, 200, good) == []
    assert contract.answer_problems(get, 200, {**good, "extra": 1})
    assert contract.answer_problems(get, 201, good)
    assert contract.answer_problems(get, 404, {"error": "text"})
