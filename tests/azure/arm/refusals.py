"""How Azure words a refusal: ARM's JSON errors and the Blob service's XML errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Refused(Exception):
    """A request that the simulator answers with an error body."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] = {}) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers)

    def body(self) -> dict[str, Any]:
        """The JSON that ARM sends."""
        return arm_error(self.code, self.message)


def arm_error(code: str, message: str) -> dict[str, Any]:
    """An ARM error body."""
    return {"error": {"code": code, "message": message, "details": []}}


def not_found(kind: str, name: str, group: str) -> Refused:
    """ARM's answer for a resource that is not there. `kind` is a type under Microsoft.MachineLearningServices."""
    full = f"Microsoft.MachineLearningServices/{kind}"
    return Refused(
        404, "ResourceNotFound", f"The Resource '{full}/{name}' under resource group '{group}' was not found."
    )


def user_error(message: str) -> Refused:
    """The service's own validation, after ARM let the request through."""
    return Refused(400, "UserError", message)


BLOB_REFUSALS = {
    "keys": (
        403,
        "KeyBasedAuthenticationNotPermitted",
        "Key based authentication is not permitted on this storage account.",
    ),
    "role": (
        403,
        "AuthorizationPermissionMismatch",
        "This request is not authorized to perform this operation using this permission.",
    ),
    "firewall": (403, "AuthorizationFailure", "This request is not authorized to perform this operation."),
    "busy": (503, "ServerBusy", "The server is busy."),
    "exists": (409, "BlobAlreadyExists", "The specified blob already exists."),
    "version": (400, "InvalidHeaderValue", "The value for one of the HTTP headers is not in the correct format."),
    "expired": (401, "InvalidAuthenticationInfo", "Lifetime validation failed. The token is expired."),
}
"""Names for what the Blob service says most often: status, code, message."""


def blob_error(code: str, message: str) -> str:
    """A Blob service error body."""
    return f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
