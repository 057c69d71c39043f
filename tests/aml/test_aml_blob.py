"""Uploads to the workspace's store: races, lost answers, foreign blobs, and three kinds of no."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.storage.blob import BlobServiceClient

from aj.build.effects import Upload
from aj.server.azure.arm import Arm
from aj.server.azure.blob import BlobStore
from aj.server.azure.token import Login
from aj.server.azure.wire import http_client
from aj.shared.errors import AccessError, AzureError, ConflictError
from aj.shared.model import Event
from tests.aml.project import Here, Project
from tests.azure.azurite import Azurite
from tests.azure.cloud import Azure, Place


def archives(azure: Azure, place: Place) -> dict[str, bytes]:
    """Every code archive in the store, by its address."""
    container = azure.blobs(place.account).get_container_client(place.container)
    names = [blob.name for blob in container.list_blobs() if blob.name.endswith("code.tar.gz")]
    return {name: container.download_blob(name).readall() for name in names}


def make_large(project: Project, size: int) -> None:
    (project.code / "weights.bin").write_bytes(os.urandom(size))


def test_U01_two_at_once_leave_one_blob(project: Project, azure: Azure, place: Place) -> None:
    azure.fault("barrier", "PUT Blob .*/code.tar.gz", "blob", times=2, parties=2)
    azure.fault("barrier", "PUT Blob .*/bootstrap.sh", "blob", times=2, parties=2)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda n: Here(project).run("echo", str(n)), range(2)))
    assert [result.status for result in results] == ["submitted"] * 2
    assert len(archives(azure, place)) == 1


def test_U02_a_lost_answer_of_an_upload_is_looked_up_and_adopted(here: Here, azure: Azure, place: Place) -> None:
    azure.fault("lose_after", "PUT Blob .*/code.tar.gz", "blob")
    with azure.window() as seen:
        assert here.run().status == "submitted"
    assert sorted(line for line in seen.lines() if line.startswith("PUT Blob")) == ["PUT Blob 201", "PUT Blob None"]
    assert len(archives(azure, place)) == 1


def test_U02_a_blob_with_other_content_is_never_overwritten(here: Here, azure: Azure, place: Place) -> None:
    here.run()
    (address,) = archives(azure, place)
    blob = azure.blobs(place.account).get_blob_client(place.container, address)
    blob.upload_blob(b"other", overwrite=True)
    with pytest.raises(ConflictError) as caught:
        here.run("echo", "again")
    assert "exists with other content" in caught.value.message and address in (caught.value.where or "")
    assert blob.download_blob().readall() == b"other"
    assert len(azure.control("job_ids")) == 1


def test_U05_the_body_of_a_second_attempt_begins_at_its_first_byte(
    here: Here, project: Project, azure: Azure, place: Place
) -> None:
    make_large(project, 4 << 20)
    azure.fault("lose_during", "PUT Blob .*/code.tar.gz", "blob", bytes=1 << 20)
    azure.fault("refuse", "PUT Blob .*/code.tar.gz", "blob", code="busy", skip=1)
    result = here.run()
    ((address, content),) = archives(azure, place).items()
    assert result.archive is not None
    assert address.split("/")[1] == hashlib.sha256(content).hexdigest() == result.archive["sha256"]
    assert azure.wait(place, str(result.azure_name))["status"] == "Completed"


@pytest.mark.parametrize(
    ("code", "words", "way"),
    [
        ("keys", "does not permit keys", "az login"),
        ("role", "no data role on the container", "`Storage Blob Data Contributor` on `/subscriptions/"),
        ("firewall", "network rule", "firewall"),
    ],
)
def test_U07_three_kinds_of_403_are_three_messages(
    project: Project, azure: Azure, code: str, words: str, way: str
) -> None:
    place = azure.workspace("ws-none", credentials="None")
    azure.compute(place, "gpus")
    project.configure(place)
    for _ in range(2):
        azure.fault("refuse", "HEAD Blob", "blob", code=code, times=2)
    with azure.window() as seen, pytest.raises(AccessError) as caught:
        Here(project).run()
    assert words in caught.value.message and way in (caught.value.hint or "")
    assert caught.value.status_code == 403 and caught.value.azure_code
    assert len([line for line in seen.lines() if "Blob" in line]) == 2, "one request for each file"
    assert not [line for line in seen.lines() if line.startswith("PUT")]
    assert azure.control("job_ids") == []


def test_the_workspaces_key_serves_where_identities_have_no_role(here: Here, azure: Azure, place: Place) -> None:
    azure.control("account", name=place.account, data_role=False)
    result = here.run()
    assert azure.wait(place, str(result.azure_name))["status"] == "Completed"
    azure.control("account", name=place.account, data_role=False, shared_keys=False)
    with pytest.raises(AccessError, match="no data role"):
        here.run("echo", "again")


def test_U09_a_blob_that_was_deleted_is_sent_again(here: Here, azure: Azure, place: Place) -> None:
    here.run()
    (address,) = archives(azure, place)
    azure.blobs(place.account).get_blob_client(place.container, address).delete_blob()
    result = here.run("echo", "again")
    assert azure.wait(place, str(result.azure_name))["status"] == "Completed"


def test_U09_an_unknown_version_of_the_service_is_named(here: Here, azure: Azure) -> None:
    azure.fault("refuse", "HEAD Blob", "blob", code="version", times=2)
    with pytest.raises(AzureError, match="2023-11-03") as caught:
        here.run()
    assert "--skipApiVersionCheck" in (caught.value.hint or "")


def test_a_token_that_the_store_refuses_is_renewed(here: Here, azure: Azure) -> None:
    for file in ("code.tar.gz", "bootstrap.sh"):
        azure.fault("refuse", f"PUT Blob .*/{file}", "blob", code="expired")
    assert here.run().status == "submitted"


@pytest.mark.slow
def test_a_hundred_runs_that_differ_in_arguments_send_the_code_once(here: Here, azure: Azure) -> None:
    with azure.window() as seen:
        for number in range(100):
            here.run("echo", str(number))
    lines = seen.lines()
    assert (lines.count("PUT Blob 201"), lines.count("PUT Jobs_CreateOrUpdate 201")) == (2, 100)
    assert lines.count("GET Workspaces_Get 200") == 1


def test_a_clock_that_is_wrong_is_named(here: Here, azure: Azure, monkeypatch: pytest.MonkeyPatch) -> None:
    later = datetime.now(UTC) + timedelta(minutes=20)
    monkeypatch.setattr("aj.server.azure.blob.now_utc", later.isoformat)
    azure.fault("refuse", "HEAD Blob", "blob", status=403, code="AuthenticationFailed", times=2)
    with pytest.raises(AccessError, match=r"this machine's clock is (19|20) min ahead of Azure's"):
        here.run()


def test_over_plain_http_the_workspaces_key_is_used_and_no_token_is_sent(azurite_http: Azurite, tmp_path: Path) -> None:
    account = "ajstoreone"
    key = azurite_http.keys[account]
    service = BlobServiceClient(azurite_http.account_url(account), credential=key)
    container = service.create_container(f"plain-{os.urandom(4).hex()}")
    login = Login({"PATH": str(tmp_path)}, "")  # which has no token to give
    arm = Arm({"storage_scope": "s"}, login, http_client({}))
    names = {"url": azurite_http.account_url(account), "account": account, "container": str(container.container_name)}
    store = BlobStore(arm, **names, credentials="AccountKey", secrets=lambda: {"key": key}, scope="")
    path = tmp_path / "code"
    path.write_bytes(b"content")
    upload = Upload("code", hashlib.sha256(b"content").hexdigest(), 7, path)
    seen: list[Event] = []
    assert store.present(upload) is None
    receipt = store.put(upload, seen.append)
    assert store.present(upload) == receipt and key not in repr(store)
    assert [(event.kind, event.completed, event.total) for event in seen] == [("upload", 7, 7)]
