"""Unsigned Entra tokens, as Azurite and the simulator take them, and the check of the ones that come in."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

from tests.azure.arm.refusals import Refused

TENANT = "11111111-2222-3333-4444-555555555555"
OBJECT = "99999999-8888-7777-6666-555555555555"
ARM_AUDIENCES = {
    "https://management.azure.com",
    "https://management.core.windows.net",
    "https://management.chinacloudapi.cn",
    "https://management.core.chinacloudapi.cn",
    "https://management.usgovcloudapi.net",
    "https://management.core.usgovcloudapi.net",
    "https://ml.azure.com",
}
"""Resources whose tokens ARM and the workspace's own services take (without a final slash)."""


def token(resource: str, *, lifetime: float = 3600, tenant: str = TENANT) -> str:
    """A token for `resource`, good for `lifetime` seconds (negative: expired)."""
    now = int(time.time())
    claims = {
        "aud": resource.rstrip("/"),
        "iss": f"https://sts.windows.net/{tenant}/",
        "tid": tenant,
        "oid": OBJECT,
        "upn": "somebody@example.org",
        "iat": now - 60,
        "nbf": now - 60,
        "exp": now + int(lifetime),
    }
    return f"{_part({'alg': 'none', 'typ': 'JWT'})}.{_part(claims)}.{_encode(b'unsigned')}"


def check_bearer(header: str | None) -> dict[str, Any]:
    """The claims of an Authorization header; Refused in ARM's words when ARM would not take it."""
    if not header:
        raise Refused(401, "AuthenticationFailed", "Authentication failed. The 'Authorization' header is missing.")
    scheme, _, value = header.partition(" ")
    try:
        claims = json.loads(_decode(value.split(".")[1]))
    except (IndexError, ValueError):
        raise Refused(401, "InvalidAuthenticationToken", "The access token is invalid.") from None
    if scheme.lower() != "bearer" or not isinstance(claims, dict):
        raise Refused(401, "InvalidAuthenticationToken", "The access token is invalid.")
    if str(claims.get("aud", "")).rstrip("/") not in ARM_AUDIENCES:
        raise Refused(401, "InvalidAuthenticationTokenAudience", f"The audience '{claims.get('aud')}' is wrong.")
    if claims.get("exp", 0) < time.time():
        raise Refused(
            401, "ExpiredAuthenticationToken", "The access token expiry UTC time is earlier than the current one."
        )
    return claims


def _part(claims: dict[str, Any]) -> str:
    return _encode(json.dumps(claims).encode())


def _encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
