"""What a test sees of the simulated Azure: addresses, what it can add, order, and ask."""

from __future__ import annotations

import contextlib
import os
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.azure.arm.tokens import token
from tests.azure.azurite import Azurite
from tests.azure.fake_az import FakeAz

if TYPE_CHECKING:
    import httpx
    from azure.storage.blob import BlobServiceClient

SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"
OTHER_SUBSCRIPTION = "00000000-0000-0000-0000-000000000002"
ENDED = ("Completed", "Failed", "Canceled")
API = "api-version=2024-04-01"


@dataclass(frozen=True, slots=True)
class Place:
    """A workspace of the simulator. `id` is its ARM id, `container` that of its default datastore."""

    id: str
    subscription: str
    group: str
    name: str
    location: str
    account: str
    container: str


@dataclass(slots=True)
class Window:
    """What went over the wire while a `with azure.window()` block ran."""

    requests: list[dict[str, Any]]
    sequential: int = 0
    """Round trips that had to wait for another."""
    seconds: float = 0.0

    def lines(self) -> list[str]:
        """`METHOD Operation status` of each request."""
        return [f"{one['method']} {one['operation']} {one['status']}" for one in self.requests]


class Azure:
    """One simulated Azure. Fresh for each test: nothing of another test is in it."""

    def __init__(self, addresses: Mapping[str, str], azurite: Azurite, az: FakeAz) -> None:
        assert azurite.ca_file is not None
        self.arm = addresses["arm"]
        self.arm_http = addresses["arm_http"]
        self.blob = addresses["blob"]
        """The Blob proxy: counted, slow, broken as ordered. Account and container are parts of the path."""
        self.azurite = azurite
        """The service itself, for arranging, looking and measuring."""
        self.ca_file: Path = azurite.ca_file
        self.az = az
        import httpx

        trust = ssl.create_default_context(cafile=str(self.ca_file))
        self._http = httpx.Client(verify=trust, timeout=60)

        self._stores: dict[str, BlobServiceClient] = {}

    def close(self) -> None:
        """Close the connections of the tests."""
        for store in self._stores.values():
            store.close()
        self._http.close()

    # --- for the client under test ---

    def env(self) -> dict[str, str]:
        """Variables that lead a client here: the fake `az` first on PATH, the certificate for httpx and requests."""
        return {
            "PATH": f"{self.az.folder}:{os.environ['PATH']}",
            "SSL_CERT_FILE": str(self.ca_file),
            "REQUESTS_CA_BUNDLE": str(self.ca_file),
            "AJ_AZURE_ARM_ENDPOINT": self.arm,
            "AJ_AZURE_BLOB_ENDPOINT": f"{self.blob}/{{account}}",
        }

    def blobs(self, account: str = "ajstoreone") -> BlobServiceClient:
        """The real client, with the account's key, straight to Azurite."""
        from azure.storage.blob import BlobServiceClient

        if account not in self._stores:
            url, key = self.azurite.account_url(account), self.azurite.keys[account]
            self._stores[account] = BlobServiceClient(url, credential=key, connection_verify=str(self.ca_file))
        return self._stores[account]

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """A request to ARM with a good token. `path` may be a whole address; the api-version is added to a bare one."""
        url = path if path.startswith("http") else self.arm + path
        url = url if "?" in url else f"{url}?{API}"
        sent = {"Authorization": f"Bearer {token('https://management.azure.com')}", **headers}
        return self._http.request(method, url, json=body, headers=sent)

    # --- arranging ---

    def control(self, verb: str, **given: Any) -> Any:
        """One order to the simulator; see `tests/azure/arm/control.py`."""
        answer = self._http.post(f"{self.arm}/_control/{verb}", json=given)
        if answer.status_code != 200:
            raise ValueError(answer.text)
        return answer.json()

    def workspace(
        self,
        name: str,
        *,
        subscription: str = SUBSCRIPTION,
        group: str = "research",
        location: str = "westus2",
        account: str = "ajstoreone",
        credentials: str = "AccountKey",
    ) -> Place:
        """Add a workspace with `workspaceblobstore` in a new container of `account`."""
        place = {"subscription": subscription, "group": group, "name": name, "location": location, "account": account}
        made = self.control("workspace", **place, credentials=credentials)
        self.blobs(account).create_container(made["container"])
        return Place(id=made["id"], container=made["container"], **place)

    def compute(self, place: Place, name: str, size: str = "STANDARD_ND96AMSR_A100_V4", nodes: int = 4) -> str:
        """Add a cluster; its ARM id."""
        return str(self.control("compute", workspace=place.id, name=name, size=size, nodes=nodes))

    def environment(self, place: Place, name: str = "env", version: str = "1", image: str = "ubuntu:24.04") -> str:
        """Add an environment version; its ARM id."""
        path = f"{place.id}/environments/{name}/versions/{version}"
        answer = self.request("PUT", path, {"properties": {"image": image, "osType": "Linux"}})
        return str(answer.raise_for_status().json()["id"])

    def usages(self, location: str, **families: tuple[int, int]) -> None:
        """The quota of a region: cores of a machine family as (limit, used)."""
        kind = "Microsoft.MachineLearningServices/vmFamily/usages"
        rows = [
            {
                "id": f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.MachineLearningServices/locations/{location}",
                "amlWorkspaceLocation": location,
                "type": kind,
                "unit": "Count",
                "limit": limit,
                "currentValue": used,
                "name": {"value": family, "localizedValue": family},
            }
            for family, (limit, used) in families.items()
        ]
        self.control("rows", kind="usages", location=location, rows=rows)

    def settings(self, **given: Any) -> None:
        """See `Settings` in `tests/azure/arm/world.py`: latency_ms, page_size, hold, unpullable, …"""
        self.control("settings", **given)

    def fault(self, kind: str, match: str, surface: str = "arm", **given: Any) -> None:
        """Order a fault; see `Fault` in `tests/azure/arm/faults.py`."""
        self.control("fault", kind=kind, match=match, surface=surface, **given)

    # --- asking ---

    def wait(self, place: Place, job: str, *states: str, seconds: float = 30) -> dict[str, Any]:
        """The job's state (see `control.job`) once it is one of `states`, else once it has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            shown: dict[str, Any] = self.control("job", workspace=place.id, id=job)
            if shown["status"] in (states or ENDED):
                return shown
            time.sleep(0.03)
        raise AssertionError(f"job {job} is {shown['status']} after {seconds} s: {shown}")

    def logs(self, place: Place, job: str) -> dict[str, str]:
        """Every log of a job, read as a client would: run history, then the signed URLs without a token."""
        files = self.request("GET", f"/history/v1.0{place.id}/runs/{job}").raise_for_status().json()["logFiles"]
        return {name: self._http.get(url).raise_for_status().text for name, url in files.items()}

    @contextlib.contextmanager
    def window(self) -> Iterator[Window]:
        """Count what goes over the wire in a block; the result is filled in at its end."""
        seen, since = Window([]), time.monotonic()
        yield seen
        until = time.monotonic()
        traffic = self.control("traffic", since=since, until=until)
        seen.requests, seen.sequential, seen.seconds = traffic["requests"], traffic["sequential"], until - since

    def refusals(self) -> list[str]:
        """Requests that were refused without an order to do so: the mistakes of a client."""
        said: list[str] = self.control("complaints")["refusals"]
        return said
