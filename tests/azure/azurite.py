"""Azurite, a real Blob service: installed once from npm outside the checkout, started on a free port."""

from __future__ import annotations

import base64
import fcntl
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.azure.certificate import Certificate
from tests.azure.child import Server

VERSION = "3.37.0"
"""The first that knows user delegation as current clients sign it; on node 20 npm warns, and it runs."""

ACCOUNTS = ("ajstoreone", "ajstoretwo", "ajstorethree")
"""Storage accounts that every Azurite of the tests has, each with a key of its own."""


@dataclass(frozen=True, slots=True)
class Azurite:
    """A running one. `endpoint` has no final slash; accounts are the first part of the path."""

    endpoint: str
    keys: Mapping[str, str]
    ca_file: Path | None

    def account_url(self, account: str) -> str:
        """What a `BlobServiceClient` takes."""
        return f"{self.endpoint}/{account}"


def cache_folder() -> Path:
    """Where downloads of the tests stay between runs: AJ_TEST_CACHE, else the user's cache folder."""
    named = os.environ.get("AJ_TEST_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "aj-tests"


def installed() -> Path:
    """The `azurite-blob` script; installed when absent, one process at a time; skips where npm is missing."""
    folder = cache_folder() / f"azurite-{VERSION}"
    script = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if shutil.which("node") is None:
        pytest.skip("Azurite needs node and npm on the PATH")
    if script.is_file():
        return script
    if shutil.which("npm") is None:
        pytest.skip("npm, which installs Azurite, is not on the PATH")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not script.is_file():
            _install(folder)
    return script


def _install(folder: Path) -> None:
    fresh = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    command = ["npm", "install", "--no-fund", "--no-audit", "--loglevel=error", "--prefix", str(fresh)]
    done = subprocess.run([*command, f"azurite@{VERSION}"], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        pytest.skip(f"npm could not install azurite@{VERSION}: {done.stderr.strip()[-500:]}")
    fresh.rename(folder)


def start(folder: Path, certificate: Certificate | None) -> tuple[Azurite, Server]:
    """Start one that keeps all in memory. With a certificate: https, tokens and keys; without: http, keys."""
    script = installed()
    keys = {account: base64.b64encode(secrets.token_bytes(64)).decode() for account in ACCOUNTS}
    env = {**os.environ, "AZURITE_ACCOUNTS": ";".join(f"{name}:{key}" for name, key in keys.items())}
    command = ["node", str(script), "--blobHost", "127.0.0.1", "--blobPort", "0"]
    command += ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    if certificate is not None:
        command += ["--oauth", "basic", "--cert", str(certificate.certificate), "--key", str(certificate.key)]
    server = Server(command, folder / "azurite.log", env, cwd=folder)
    endpoint = server.wait_for(_listening)
    return Azurite(endpoint, keys, certificate.certificate if certificate else None), server


def _listening(log: str) -> str | None:
    found = re.search(r"successfully listens on (https?://[\d.]+:\d+)", log)
    return found[1] if found else None
