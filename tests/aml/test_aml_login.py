"""Whose token is used: the caller's own environment decides, and nothing of it is kept but in memory."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from aj.server.azure import token as module
from aj.server.azure.token import Login, claims
from aj.server.azure.wire import http_client
from aj.shared.clock import now_ns
from aj.shared.errors import ConfigError, LoginError
from tests.azure.fake_az import NOT_LOGGED_IN, FakeAz

SCOPE = "https://management.azure.com/.default"
AUTHORITY = "https://login.microsoftonline.com"


@pytest.fixture(autouse=True)
def nowhere_near_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IMDS", ("127.0.0.1", 1))


def env_of(az: FakeAz, folder: Path, **more: str) -> dict[str, str]:
    return {"PATH": f"{az.folder}:{os.environ['PATH']}", "HOME": str(folder), **more}


def test_az_of_the_callers_path_is_asked_once_while_its_token_lasts(tmp_path: Path) -> None:
    az = FakeAz(tmp_path / "bin")
    login = Login(env_of(az, tmp_path), AUTHORITY)
    first = login.token(SCOPE)
    assert (first.source, login.token(SCOPE)) == ("az", first) and len(az.calls()) == 1
    assert abs(first.expires_on - now_ns() / 1e9 - 3600) < 60
    assert az.calls()[0] == [
        "account",
        "get-access-token",
        "--output",
        "json",
        "--resource",
        "https://management.azure.com",
    ]
    login.forget(SCOPE)
    login.token(SCOPE)
    assert len(az.calls()) == 2


def test_another_login_of_the_same_user_is_another_token(tmp_path: Path) -> None:
    az = FakeAz(tmp_path / "bin")
    profile = tmp_path / ".azure" / "azureProfile.json"
    login = Login(env_of(az, tmp_path), AUTHORITY)
    login.token(SCOPE)
    profile.parent.mkdir()
    profile.write_text("{}")
    login.token(SCOPE)
    Login(env_of(az, tmp_path, AZURE_CONFIG_DIR=str(tmp_path / "other")), AUTHORITY).token(SCOPE)
    assert len(az.calls()) == 3


def test_a_token_that_is_about_to_expire_is_renewed(tmp_path: Path) -> None:
    az = FakeAz(tmp_path / "bin")
    az.behave(lifetime=200)
    login = Login(env_of(az, tmp_path), AUTHORITY)
    login.token(SCOPE)
    az.behave(lifetime=3600)
    assert login.token(SCOPE) == login.token(SCOPE) and len(az.calls()) == 2


def test_whoever_has_no_login_at_all_hears_of_every_way(tmp_path: Path) -> None:
    az = FakeAz(tmp_path / "bin")
    az.behave(error=NOT_LOGGED_IN)
    with pytest.raises(LoginError) as caught:
        Login(env_of(az, tmp_path), AUTHORITY).token(SCOPE)
    assert "Please run 'az login'" in caught.value.message and "`az login`" in (caught.value.hint or "")
    with pytest.raises(LoginError, match="`az` is not on PATH"):
        Login({"PATH": str(tmp_path), "HOME": str(tmp_path)}, AUTHORITY).token(SCOPE)


def test_an_az_that_prints_nonsense_is_no_login_and_is_not_echoed(tmp_path: Path) -> None:
    az = FakeAz(tmp_path / "bin")
    (az.folder / "az").write_text("#!/bin/sh\necho half-a-secret-token\n")
    with pytest.raises(LoginError) as caught:
        Login(env_of(az, tmp_path), AUTHORITY).token(SCOPE)
    assert "half-a-secret" not in caught.value.message


@pytest.mark.parametrize(
    ("variables", "source", "made"),
    [
        ({"AZURE_CLIENT_SECRET": "s"}, "environment", "ClientSecretCredential"),
        ({"AZURE_CLIENT_CERTIFICATE_PATH": "/c.pem"}, "environment", "CertificateCredential"),
        ({"AZURE_FEDERATED_TOKEN_FILE": "/t"}, "workload identity", "WorkloadIdentityCredential"),
    ],
)
def test_credentials_of_the_environment_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], source: str, made: str
) -> None:
    import azure.identity

    class Principal:
        def __init__(self, *given: Any, **named: Any) -> None:
            assert named.pop("authority") == AUTHORITY
            self.given = [*given, *named.values()]

        def get_token(self, scope: str) -> Any:
            return type("T", (), {"token": "-".join(map(str, self.given)), "expires_on": now_ns() // 10**9 + 3600})

    monkeypatch.setattr(azure.identity, made, Principal)
    az = FakeAz(tmp_path / "bin")
    env = env_of(az, tmp_path, AZURE_TENANT_ID="tenant", AZURE_CLIENT_ID="client", **variables)
    token = Login(env, AUTHORITY).token(SCOPE)
    assert token.source == source and token.text.startswith("tenant-client-") and az.calls() == []


def test_the_claims_of_an_opaque_token_are_empty() -> None:
    body = base64.urlsafe_b64encode(json.dumps({"oid": "x"}).encode()).decode().rstrip("=")
    assert claims(f"h.{body}.s") == {"oid": "x"}
    assert [claims(text) for text in ("", "opaque", "a.%%%.b", "a.W10.b")] == [{}] * 4


@pytest.mark.parametrize("env", [{"REQUESTS_CA_BUNDLE": "/no/such.pem"}, {"HTTPS_PROXY": "what is this"}])
def test_a_bad_proxy_or_certificate_is_an_error_of_the_environment(env: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="proxies or certificates"):
        http_client(env)


def test_proxies_of_the_caller_are_used_and_exceptions_kept() -> None:
    env = {"https_proxy": "http://127.0.0.1:9", "NO_PROXY": ".internal,10.0.0.1,localhost"}
    client = http_client(env)
    assert client is http_client(dict(env))
    mounted = {pattern.pattern: transport for pattern, transport in client._mounts.items()}
    assert mounted["https://"] is not None
    assert {name for name, transport in mounted.items() if transport is None} == {
        "all://*internal",
        "all://10.0.0.1",
        "all://localhost",
    }
