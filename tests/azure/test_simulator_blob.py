"""The Blob proxy carries the real client's requests to Azurite, and refuses or breaks them as the service would."""

from __future__ import annotations

import hashlib
import io
import os
from typing import Any

import httpx
import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ServiceRequestError, ServiceResponseError
from azure.identity import AzureCliCredential, CredentialUnavailableError
from azure.storage.blob import BlobServiceClient, LinearRetry

from tests.azure.arm.tokens import token
from tests.azure.azurite import Azurite
from tests.azure.cloud import Azure, Place
from tests.azure.fake_az import NOT_LOGGED_IN

ONCE = {"retry_total": 0}


@pytest.fixture
def place(azure: Azure) -> Place:
    """A workspace with its container."""
    return azure.workspace("ws1")


@pytest.fixture
def cli(azure: Azure, monkeypatch: pytest.MonkeyPatch) -> AzureCliCredential:
    """The real credential on the fake `az`."""
    monkeypatch.setenv("PATH", azure.env()["PATH"])
    return AzureCliCredential()


def client(azure: Azure, credential: Any, **options: Any) -> BlobServiceClient:
    """The real client through the proxy."""
    url = azure.env()["AJ_AZURE_BLOB_ENDPOINT"].format(account="ajstoreone")
    return BlobServiceClient(url, credential=credential, connection_verify=str(azure.ca_file), **options)


def code_of(error: HttpResponseError) -> str:
    """The Blob service's own code, which the client adds to its errors."""
    code: str = vars(error)["error_code"]
    return code


def test_a_token_of_the_cli_uploads_and_reads_back(azure: Azure, place: Place, cli: AzureCliCredential) -> None:
    content = os.urandom(9 << 20)
    blob = client(azure, cli, max_single_put_size=1 << 20).get_blob_client(place.container, "a/b c.bin")
    blob.upload_blob(io.BytesIO(content), length=len(content), metadata={"sha256": hashlib.sha256(content).hexdigest()})
    shown = blob.get_blob_properties()
    assert (shown.size, shown.metadata["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    assert blob.download_blob().readall() == content
    assert azure.az.calls() == [
        ["account", "get-access-token", "--output", "json", "--resource", "https://storage.azure.com"]
    ]
    assert blob.exists()
    assert not client(azure, cli).get_blob_client(place.container, "gone").exists()


def test_the_variables_alone_make_requests_and_httpx_trust_the_certificate(
    azure: Azure, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in azure.env().items():
        monkeypatch.setenv(name, value)
    url = os.environ["AJ_AZURE_BLOB_ENDPOINT"].format(account="ajstoreone")
    BlobServiceClient(url, credential=AzureCliCredential()).get_blob_client(place.container, "x").upload_blob(b"1")
    bearer = {"Authorization": f"Bearer {token('https://management.azure.com')}"}
    answer = httpx.get(f"{os.environ['AJ_AZURE_ARM_ENDPOINT']}{place.id}?api-version=2024-04-01", headers=bearer)
    assert answer.json()["name"] == "ws1"


def test_a_key_works_through_the_proxy_and_overwriting_is_refused(azure: Azure, place: Place) -> None:
    blob = client(azure, azure.azurite.keys["ajstoreone"]).get_blob_client(place.container, "x")
    blob.upload_blob(b"one")
    with pytest.raises(ResourceExistsError) as refused:
        blob.upload_blob(b"two", overwrite=False)
    assert code_of(refused.value) == "BlobAlreadyExists"
    with azure.window() as seen:
        assert blob.download_blob().readall() == b"one"
    assert seen.lines() == ["GET Blob 206"]


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ({"shared_keys": False}, "KeyBasedAuthenticationNotPermitted"),
        ({"firewall_open": False}, "AuthorizationFailure"),
    ],
)
def test_a_policy_of_the_account_refuses_keys(azure: Azure, place: Place, policy: dict[str, bool], code: str) -> None:
    azure.control("account", name="ajstoreone", **policy)
    blob = client(azure, azure.azurite.keys["ajstoreone"]).get_blob_client(place.container, "x")
    with pytest.raises(HttpResponseError) as refused:
        blob.upload_blob(b"one")
    assert (refused.value.status_code, code_of(refused.value)) == (403, code)


def test_a_missing_data_role_refuses_tokens_only(azure: Azure, place: Place, cli: AzureCliCredential) -> None:
    azure.control("account", name="ajstoreone", data_role=False)
    with pytest.raises(HttpResponseError) as refused:
        client(azure, cli).get_blob_client(place.container, "x").upload_blob(b"one")
    assert (refused.value.status_code, code_of(refused.value)) == (403, "AuthorizationPermissionMismatch")
    client(azure, azure.azurite.keys["ajstoreone"]).get_blob_client(place.container, "x").upload_blob(b"one")


def test_an_answer_lost_after_the_write_leaves_the_blob(azure: Azure, place: Place) -> None:
    blob = client(azure, azure.azurite.keys["ajstoreone"], **ONCE).get_blob_client(place.container, "x")
    azure.fault("lose_after", "PUT Blob", "blob")
    with pytest.raises((ServiceRequestError, ServiceResponseError)):
        blob.upload_blob(b"one")
    assert azure.blobs().get_blob_client(place.container, "x").download_blob().readall() == b"one"


@pytest.mark.parametrize("fault", [{"kind": "lose_before"}, {"kind": "lose_during", "bytes": 1 << 20}])
def test_a_connection_that_breaks_leaves_no_blob_and_the_client_sends_the_whole_again(
    azure: Azure, place: Place, fault: dict[str, Any]
) -> None:
    content = os.urandom(4 << 20)
    azure.control("fault", match="PUT Blob", surface="blob", **fault)
    key = azure.azurite.keys["ajstoreone"]
    blob = client(azure, key, **ONCE).get_blob_client(place.container, "x")
    with pytest.raises((ServiceRequestError, ServiceResponseError)):
        blob.upload_blob(content)
    assert not azure.blobs().get_blob_client(place.container, "x").exists()
    azure.control("fault", match="PUT Blob", surface="blob", **fault)
    client(azure, key, retry_policy=LinearRetry(backoff=0, random_jitter_range=0)).get_blob_client(
        place.container, "x"
    ).upload_blob(content)
    assert azure.blobs().get_blob_client(place.container, "x").download_blob().readall() == content


def test_named_refusals_are_what_the_service_says(azure: Azure, place: Place) -> None:
    blob = client(azure, azure.azurite.keys["ajstoreone"], **ONCE).get_blob_client(place.container, "x")
    for name, status, code in (
        ("busy", 503, "ServerBusy"),
        ("exists", 409, "BlobAlreadyExists"),
        ("version", 400, "InvalidHeaderValue"),
    ):
        azure.fault("refuse", "PUT Blob", "blob", code=name)
        with pytest.raises(HttpResponseError) as refused:
            blob.upload_blob(b"one")
        assert (refused.value.status_code, code_of(refused.value)) == (status, code)


def test_nobody_logged_in_is_what_the_credential_says(azure: Azure, cli: AzureCliCredential) -> None:
    azure.az.behave(error=NOT_LOGGED_IN)
    with pytest.raises(CredentialUnavailableError, match="az login"):
        cli.get_token("https://management.azure.com/.default")
    azure.az.behave(lifetime=-5)
    expired = cli.get_token("https://management.azure.com/.default", tenant_id="22222222-2222-2222-2222-222222222222")
    assert azure.az.calls()[-1][-2:] == ["--tenant", "22222222-2222-2222-2222-222222222222"]
    answer = azure.request("GET", "/subscriptions?api-version=2022-12-01", Authorization=f"Bearer {expired.token}")
    assert answer.json()["error"]["code"] == "ExpiredAuthenticationToken"
    azure.az.behave()
    good = cli.get_token("https://management.azure.com/.default")
    assert azure.request(
        "GET", "/subscriptions?api-version=2022-12-01", Authorization=f"Bearer {good.token}"
    ).is_success


def test_azurite_over_http_takes_keys(azurite_http: Azurite) -> None:
    service = BlobServiceClient(azurite_http.account_url("ajstoretwo"), credential=azurite_http.keys["ajstoretwo"])
    service.create_container("plain").upload_blob("x", b"1")
    assert service.get_blob_client("plain", "x").download_blob().readall() == b"1"
