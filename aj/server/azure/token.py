"""Who the caller is to Azure: their own login, asked for in their own environment, its tokens kept in memory only."""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from aj.server.child import Child, run
from aj.shared.clock import now_ns
from aj.shared.errors import ChildEndedError, ChildError, LoginError
from aj.shared.jsonio import Json, digest

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

AZ_SECONDS = 60.0
EARLY_SECONDS = 300
"""A token is renewed so long before it expires."""
_SAID = (
    ("not found on path", "`az` is not on PATH"),
    ("Unexpected output", "`az account get-access-token` printed no token"),
)
"""Words of azure-identity → ours."""
_CHECK = {
    "environment": "check AZURE_CLIENT_ID, AZURE_TENANT_ID and the secret",
    "workload identity": "check the federated credential of the identity",
    "managed identity": "give this machine an identity",
}
"""What to do where a credential gives no token."""
IMDS = ("169.254.169.254", 80)
"""Where an Azure machine tells its identity."""


class Token(NamedTuple):
    """A token, when it expires (Unix seconds), and which credential gave it."""

    text: str
    expires_on: int
    source: str


@dataclass(frozen=True, slots=True)
class Login:
    """One caller's credentials: their environment, workload identity, `az`, then the machine's managed identity."""

    env: Mapping[str, str]
    authority: str
    """Where service principals get tokens, such as `https://login.microsoftonline.com`."""

    def token(self, scope: str) -> Token:
        """A token for `scope`, from memory while it lasts; `LoginError` says what to do."""
        key = self._key(scope)
        with _GUARD:
            lock = _LOCKS.setdefault(key, Lock())
        with lock:
            known = _TOKENS.get(key)
            if known is None or known.expires_on - EARLY_SECONDS < now_ns() / 1e9:
                known = _TOKENS[key] = self._fresh(scope)
            return known

    def forget(self, scope: str) -> None:
        """Drop a token that was refused."""
        _TOKENS.pop(self._key(scope), None)

    def _key(self, scope: str) -> str:
        """Another login of the same user, or another folder of `az`, is another key."""
        folder = Path(self.env.get("AZURE_CONFIG_DIR") or Path(self.env.get("HOME", "/"), ".azure"))
        stamps = [_stamp(folder / name) for name in ("azureProfile.json", "clouds.config", "config")]
        mine = {name: self.env[name] for name in sorted(self.env) if name.startswith(("AZURE_", "IDENTITY_", "MSI_"))}
        return digest([mine, self.env.get("HOME"), self.env.get("PATH"), self.authority, stamps, scope])

    def _fresh(self, scope: str) -> Token:
        said = []
        for source in self._sources():
            try:
                return self._az(scope) if source == "az" else self._asked(source, scope)
            except LoginError as error:
                if source not in ("az", "managed identity"):
                    raise
                said.append(error.message)
        hint = "run `az login`; or set AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET of a service principal"
        raise LoginError("not logged in to Azure: " + "; ".join(said), where=scope, hint=hint)

    def _sources(self) -> Iterator[str]:
        if self._azure("TENANT_ID") and self._azure("CLIENT_ID"):
            if self._azure("CLIENT_SECRET") or self._azure("CLIENT_CERTIFICATE_PATH"):
                yield "environment"
            elif self._azure("FEDERATED_TOKEN_FILE"):
                yield "workload identity"
        yield "az"
        if self.env.get("IDENTITY_ENDPOINT") or self.env.get("MSI_ENDPOINT") or _on_azure():
            yield "managed identity"

    def _asked(self, source: str, scope: str) -> Token:
        from azure.core.exceptions import AzureError

        try:
            token = self._credential(source).get_token(scope)
        except AzureError as error:
            raise LoginError(f"{source}: {str(error.message)[:600]}", where=scope, hint=_CHECK[source]) from error
        return Token(token.token, token.expires_on, source)

    def _credential(self, source: str) -> TokenCredential:
        from azure import identity

        tenant, client, at = self._azure("TENANT_ID"), self._azure("CLIENT_ID"), self.authority
        if source == "managed identity":
            return identity.ManagedIdentityCredential(client_id=client or None)
        if source == "workload identity":
            names = {"tenant_id": tenant, "client_id": client, "token_file_path": self._azure("FEDERATED_TOKEN_FILE")}
            return identity.WorkloadIdentityCredential(**names, authority=at)
        if secret := self._azure("CLIENT_SECRET"):
            return identity.ClientSecretCredential(tenant, client, secret, authority=at)
        return identity.CertificateCredential(tenant, client, self._azure("CLIENT_CERTIFICATE_PATH"), authority=at)

    def _azure(self, name: str) -> str:
        return self.env.get(f"AZURE_{name}", "")

    def _az(self, scope: str) -> Token:
        words = (sys.executable, "-P", "-m", "aj.server.azure.login", scope)
        env = {**self.env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            answer = json.loads(run(Child(words, env, Path("/"), AZ_SECONDS)).stdout)
        except ChildEndedError:
            raise LoginError(f"`az` gave no token within {AZ_SECONDS:g} s") from None
        except (ChildError, ValueError) as error:
            raise LoginError(f"`az` cannot be asked for a token: {str(error).strip()[-600:]}") from error
        if "failed" in answer:
            # What is no token may be half of one.
            raise LoginError(next((said for text, said in _SAID if text in answer["failed"]), answer["failed"][:600]))
        return Token(answer["token"], answer["expires_on"], "az")


def claims(token: str) -> dict[str, Json]:
    """What a token says of itself, unverified; `{}` when it is opaque."""
    try:
        part = token.split(".")[1]
        document = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, IndexError):
        return {}
    return document if isinstance(document, dict) else {}


_TOKENS: dict[str, Token] = {}
_LOCKS: dict[str, Lock] = {}
_GUARD = Lock()


def _on_azure() -> bool:
    try:
        socket.create_connection(IMDS, timeout=0.5).close()
    except OSError:
        return False
    return True


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
