"""Fixtures of a simulated Azure that runs jobs: ARM over https, a real Blob service, an `az` that gives tokens.

Every test may ask for them (`tests/conftest.py` names this module as a plugin):

    def test_something(azure: Azure) -> None:
        ws = azure.workspace("ws1")                    # with `workspaceblobstore` in a new container
        azure.compute(ws, "gpu-cluster")
        env = {**os.environ, **azure.env()}            # PATH with the fake az, SSL_CERT_FILE, REQUESTS_CA_BUNDLE,
                                                       # AJ_AZURE_ARM_ENDPOINT, AJ_AZURE_BLOB_ENDPOINT
        azure.settings(latency_ms=100, page_size=2)    # or hold=True: jobs stay Queued until hold=False
        azure.fault("lose_after", "PUT Jobs_CreateOrUpdate")                     # accepted, but the answer is lost
        azure.fault("throttle", "GET Compute_List", times=2, retry_after=1)
        azure.fault("refuse", "PUT Blob /ajstoreone/", "blob", code="role")      # or keys, firewall, busy, exists …
        azure.fault("lose_during", "PUT Blob", "blob", bytes=1 << 20)
        azure.control("account", name=ws.account, shared_keys=False)             # data_role, firewall_open
        azure.control("deny", path="/workspaces/ws1/jobs")                       # 403 AuthorizationFailed
        with azure.window() as seen:
            ...                                        # the client works
        print(seen.seconds / 0.1, seen.sequential, seen.lines())
        azure.wait(ws, job_id)                         # {"status": "Completed", "history": [...], "error": ...}
        azure.logs(ws, job_id)                         # {"user_logs/std_log_process_0.txt": "..."}
        assert azure.refusals() == []                  # the client never broke the contract
        azure.az.behave(error=NOT_LOGGED_IN)           # azure.az.calls(): every call so far

`azure` fails a test in which the simulator itself answered against the contract. One Azurite and one simulator run for
each test process, and each test starts with an empty Azure; the Blob accounts are `azurite.ACCOUNTS`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.azure import azurite as azurites
from tests.azure.azurite import Azurite
from tests.azure.certificate import Certificate, self_signed
from tests.azure.child import Server
from tests.azure.cloud import OTHER_SUBSCRIPTION, SUBSCRIPTION, Azure
from tests.azure.fake_az import PROJECT, FakeAz


@dataclass(frozen=True, slots=True)
class Services:
    """What runs for the whole of a test process."""

    addresses: dict[str, str]
    azurite: Azurite


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """The certificate of all https services here."""
    return self_signed(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[Azurite]:
    """Azurite over https, which takes tokens and keys."""
    running, server = azurites.start(tmp_path_factory.mktemp("azurite"), certificate)
    yield running
    server.stop()


@pytest.fixture(scope="session")
def azurite_http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """Azurite over http, which takes keys only."""
    running, server = azurites.start(tmp_path_factory.mktemp("azurite-http"), None)
    yield running
    server.stop()


@pytest.fixture(scope="session")
def azure_session(
    tmp_path_factory: pytest.TempPathFactory, azurite: Azurite, certificate: Certificate, contracts: Path
) -> Iterator[Services]:
    """The simulator's process."""
    folder = tmp_path_factory.mktemp("arm")
    addresses, server = start_simulator(folder, azurite, certificate, contracts)
    yield Services(addresses, azurite)
    server.stop()


@pytest.fixture
def azure(azure_session: Services, tmp_path: Path) -> Iterator[Azure]:
    """An empty Azure with two subscriptions, and the fake `az`."""
    cloud = Azure(azure_session.addresses, azure_session.azurite, FakeAz(tmp_path / "az-bin"))
    cloud.control("reset")
    cloud.control("subscription", id=SUBSCRIPTION, name="Research")
    cloud.control("subscription", id=OTHER_SUBSCRIPTION, name="Production")
    yield cloud
    broken = cloud.control("complaints")["violations"]
    cloud.control("reset")
    cloud.close()
    assert broken == [], broken


def start_simulator(
    folder: Path, azurite: Azurite, certificate: Certificate, contracts: Path
) -> tuple[dict[str, str], Server]:
    """Start `python -m tests.azure.arm`; its addresses are `arm`, `arm_http` and `blob`."""
    (folder / "jobs").mkdir()
    config = {
        "certificate": str(certificate.certificate),
        "key": str(certificate.key),
        "keys": json.dumps(dict(azurite.keys)),
        "azurite": azurite.endpoint,
        "contracts": str(contracts),
        "folder": str(folder / "jobs"),
    }
    command = [sys.executable, "-m", "tests.azure.arm", json.dumps(config)]
    server = Server(command, folder / "simulator.log", dict(os.environ), cwd=PROJECT)
    return server.wait_for(_addresses), server


def _addresses(log: str) -> dict[str, str] | None:
    first, newline, _ = log.partition("\n")
    if not newline:
        return None
    try:
        found: dict[str, str] = json.loads(first)
    except ValueError:
        return None
    return found
