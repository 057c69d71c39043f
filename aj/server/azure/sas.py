"""Access to a container that can be given away for a while: user delegation SAS, signed in the caller's own name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from aj.build.effects import Upload
from aj.server.azure.blob import BlobStore, utc_now
from aj.server.azure.wire import read
from aj.shared.errors import AzureError

if TYPE_CHECKING:
    from azure.storage.blob import UserDelegationKey

SKEW = timedelta(minutes=15)
"""A signature is good from so long ago: clocks differ."""
LONGEST = timedelta(days=7)
"""Of a key. A signature that asks for more would end with its key, and nobody would be told."""
_REFUSED: Mapping[str, tuple[str, str]] = {
    "AuthorizationPermissionMismatch": (
        "you may not give others access to the storage account `{account}`",
        "ask for the role `Storage Blob Delegator` on the account itself; it takes effect after some minutes",
    ),
}


@dataclass(frozen=True, slots=True)
class Delegation:
    """What a caller may give away of one container, from `start` to `end`."""

    store: BlobStore
    key: UserDelegationKey
    start: datetime
    end: datetime

    def readable(self, upload: Upload) -> str:
        """The address of one file, by which its holder can read it and nothing else."""
        from azure.storage.blob import BlobSasPermissions, generate_blob_sas

        name, allowed = f"{self.store.folder}/{upload.place}", BlobSasPermissions(read=True)
        place = (self.store.account, self.store.container, name)
        signature = generate_blob_sas(
            *place, user_delegation_key=self.key, permission=allowed, start=self.start, expiry=self.end
        )
        return f"{self.store.address(upload)}?{signature}"

    def whole(self) -> str:
        """A signature for reading, writing, removing and listing whatever is in the container."""
        from azure.storage.blob import ContainerSasPermissions, generate_container_sas

        allowed = ContainerSasPermissions(read=True, add=True, create=True, write=True, delete=True, list=True)
        return generate_container_sas(
            self.store.account,
            self.store.container,
            user_delegation_key=self.key,
            permission=allowed,
            start=self.start,
            expiry=self.end,
        )


def delegate(store: BlobStore, days: int) -> Delegation:
    """Ask for a key, which changes nothing; `AccessError` when the caller may not give access away."""
    start = utc_now().replace(microsecond=0) - SKEW
    end = min(start + SKEW + timedelta(days=days), start + LONGEST)
    times = "".join(f"<{name}>{at:%Y-%m-%dT%H:%M:%SZ}</{name}>" for name, at in (("Start", start), ("Expiry", end)))
    body = f'<?xml version="1.0" encoding="utf-8"?><KeyInfo>{times}</KeyInfo>'.encode()
    url, headers = f"{store.url}/?restype=service&comp=userdelegationkey", {"Content-Type": "application/xml"}
    answer = read(lambda: store.request("POST", url, headers, lambda: body))
    if answer.status_code != 200:
        raise store.refused(answer, store.url, _REFUSED)
    return Delegation(store, _key(answer.content), start, end)


def _key(answer: bytes) -> UserDelegationKey:
    """The SDK's signers take a key as the SDK itself reads it."""
    from azure.storage.blob import UserDelegationKey

    key = UserDelegationKey()  # type: ignore[no-untyped-call]
    try:
        said = {element.tag: element.text for element in ElementTree.fromstring(answer)}
        key.signed_oid, key.signed_tid = said["SignedOid"], said["SignedTid"]
        key.signed_start, key.signed_expiry = said["SignedStart"], said["SignedExpiry"]
        key.signed_service, key.signed_version = said["SignedService"], said["SignedVersion"]
        key.value = said["Value"]
    except (ElementTree.ParseError, KeyError) as error:
        raise AzureError("the Blob service's answer holds no user delegation key", hint="try again") from error
    return key
