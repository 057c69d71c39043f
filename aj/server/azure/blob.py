"""Files in a container of Blob storage: one request each, from disk, at their digest; what a refusal means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from functools import partial
from time import sleep
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aj.build.effects import Receipt, Upload
from aj.server.azure.arm import Arm
from aj.server.azure.wire import ATTEMPTS, TRANSIENT, pause, read, send
from aj.shared.clock import monotonic, now_utc
from aj.shared.errors import (
    AccessError,
    AzureError,
    ConfigError,
    ConflictError,
    LostAnswerError,
    UnreachableError,
)
from aj.shared.jsonio import Json
from aj.shared.model import Emit, Event

if TYPE_CHECKING:
    import httpx

API = "2023-11-03"
BLOCK = 256 * 1024
"""Bytes in memory at a time."""
REPORT_SECONDS = 0.1
SKEW_SECONDS = 240
"""A clock that is off by more is worth a word."""
ROLE = "Storage Blob Data Contributor"
Body = Iterator[bytes] | bytes | None
_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(slots=True)
class BlobStore:
    """One container of a storage account, and the folder in it that is ours."""

    arm: Arm
    url: str
    """Of the account, without a final slash."""
    account: str
    container: str
    scope: str
    """Where a data role would be given."""
    folder: str = "LocalUpload"
    credentials: str = "None"
    """What a workspace keeps for it: `None`, `AccountKey` or `Sas`."""
    secrets: Callable[[], Mapping[str, Json]] | None = None
    """Asks the workspace for them; None where only the caller's own identity will do."""
    _sas: str = field(default="", repr=False)

    def check(self) -> None:
        """`AzureError` unless the container is there and the caller may look into it."""
        where = f"{self.url}/{self.container}"
        answer = read(lambda: self.request("HEAD", f"{where}?restype=container"))
        if answer.status_code != 200:
            raise self.refused(answer, where)

    def present(self, upload: Upload) -> Receipt | None:
        """The receipt of equal bytes at their address; None when nothing is there; `ConflictError` when others are."""
        answer = read(lambda: self.request("HEAD", self.address(upload)))
        code = _code(answer)
        if answer.status_code == 404 and code in ("BlobNotFound", "ResourceNotFound", ""):
            return None
        if answer.status_code != 200:
            raise self.refused(answer, self.address(upload))
        size, sha256 = answer.headers.get("Content-Length"), answer.headers.get("x-ms-meta-sha256")
        if size != str(upload.size) or sha256 != upload.sha256:
            raise ConflictError(
                f"the blob of `{upload.name}` exists with other content: {size} bytes, not {upload.size}"
                + ("" if sha256 else ", without a digest"),
                where=self.address(upload),
                hint="it is never overwritten: remove it, then try again",
                azure_code="BlobAlreadyExists",
            )
        return self._receipt(upload, answer)

    def put(self, upload: Upload, emit: Emit) -> Receipt:
        """Send the file, `If-None-Match: *`; whatever is unclear after an attempt is looked up before the next."""
        headers = {
            "x-ms-blob-type": "BlockBlob",
            "x-ms-meta-sha256": upload.sha256,
            "x-ms-meta-length": str(upload.size),
            "If-None-Match": "*",
            "Content-Type": "application/octet-stream",
            "Content-Length": str(upload.size),
        }
        where = self.address(upload)
        for number in range(1, ATTEMPTS + 1):
            answer: httpx.Response | None = None
            try:
                answer = self.request("PUT", where, headers, lambda: _blocks(upload, emit))
                if answer.status_code == 201:
                    return self._receipt(upload, answer)
                conflict = answer.status_code == 412 or _code(answer) == "BlobAlreadyExists"
                if not conflict and answer.status_code not in TRANSIENT:
                    raise self.refused(answer, where)
            except UnreachableError:
                if number == ATTEMPTS:
                    raise
            except LostAnswerError as error:
                emit(Event("note", f"{error.message}; looking for what has arrived"))
                if number == ATTEMPTS and (found := self.present(upload)) is None:
                    raise AzureError(f"`{upload.file}` could not be sent: {error.message}") from error
            if answer is None or answer.status_code in TRANSIENT:
                sleep(pause(answer, number))
            if found := self.present(upload):
                return found
        assert answer is not None
        raise self.refused(answer, where)

    def address(self, upload: Upload) -> str:
        """Where a file lies, without any signature."""
        return f"{self.url}/{self.container}/{self.folder}/{upload.place}"

    def request(
        self, method: str, url: str, headers: Mapping[str, str] = _NONE, content: Callable[[], Body] = lambda: None
    ) -> httpx.Response:
        """One attempt by the caller's own identity; by the workspace's key or SAS where there is no other way."""
        if not self._sas and urlsplit(self.url).scheme != "https":
            self._sas = self._signature()  # a token must not travel in clear
        signed_before = bool(self._sas)  # the other upload may learn the way meanwhile
        attempt = partial(self._attempt, method, url, headers, content)
        answer = attempt()
        scope = self.arm.cloud["storage_scope"]
        if answer.status_code == 401 and not signed_before:
            self.arm.login.forget(scope)
            answer = attempt()
        if _code(answer) == "AuthorizationPermissionMismatch" and not signed_before and self.credentials != "None":
            try:
                self._sas = self._sas or self._signature()
            except (AccessError, AzureError):
                return answer
            signed = attempt()
            if signed.status_code != 403:
                return signed
            self._sas = ""
        return answer

    def _attempt(
        self, method: str, url: str, headers: Mapping[str, str], content: Callable[[], Body]
    ) -> httpx.Response:
        headers = {"x-ms-version": API, "x-ms-date": format_datetime(utc_now(), usegmt=True), **headers}
        if self._sas:
            url = f"{url}{'&' if '?' in url else '?'}{self._sas}"
        else:
            headers["Authorization"] = f"Bearer {self.arm.login.token(self.arm.cloud['storage_scope']).text}"
        return send(self.arm.http, method, url, headers=headers, content=content())

    def _signature(self) -> str:
        """A SAS for this container from the workspace's secrets, good for the longest upload."""
        if self.secrets is None:
            hint = "`cloud.blob` in `aj_config.json` must begin with `https://`"
            raise ConfigError(f"a login must not travel in clear to `{self.url}`", hint=hint)
        secrets = self.secrets()
        if secrets.get("sasToken"):
            return str(secrets["sasToken"]).lstrip("?")
        from azure.storage.blob import ContainerSasPermissions, generate_container_sas

        allowed = ContainerSasPermissions(read=True, create=True, write=True)
        key, end = str(secrets["key"]), utc_now() + timedelta(hours=12)
        return generate_container_sas(self.account, self.container, key, permission=allowed, expiry=end)

    def _receipt(self, upload: Upload, answer: httpx.Response) -> Receipt:
        return Receipt(self.address(upload), answer.headers.get("ETag"), upload.sha256, upload.size)

    def refused(self, answer: httpx.Response, where: str, special: Mapping[str, tuple[str, str]] = _NONE) -> AzureError:
        """What an answer says, and the way out; `special`: code → message and hint of this one kind of request."""
        code = _code(answer)
        words = special.get(code) or _WORDS.get(code)
        if words is None:
            words = _WORDS["ContainerNotFound"] if answer.status_code == 404 else _unnamed(answer, code)
        kind = AccessError if answer.status_code in (401, 403) else AzureError
        names = {"account": self.account, "container": self.container, "scope": self.scope, "role": ROLE}
        message, hint = (text.format(**names, version=API) for text in words)
        if code == "AuthenticationFailed" and (skew := _skew(answer)):
            message += f": this machine's clock is {abs(skew) // 60} min {'ahead of' if skew > 0 else 'behind'} Azure's"
            hint = "set the clock; `timedatectl` shows whether it is synchronized"
        return kind(
            message,
            where=where,
            hint=hint,
            status_code=answer.status_code,
            azure_code=code or None,
        )


_WORDS: Mapping[str, tuple[str, str]] = {
    "KeyBasedAuthenticationNotPermitted": (
        "the storage account `{account}` does not permit keys",
        "use your identity: `az login`, with the role `{role}` on `{scope}`",
    ),
    "AuthorizationPermissionMismatch": (
        "you have no data role on the container `{container}` of `{account}`",
        "ask for the role `{role}` on `{scope}`; it takes effect after some minutes",
    ),
    "AuthorizationFailure": (
        "a network rule of the storage account `{account}` refuses this machine",
        "ask for its address in the account's firewall, or go by its private endpoint or VPN",
    ),
    "AuthenticationFailed": ("`{account}` does not accept the login", "run `az login` again"),
    "ContainerNotFound": (
        "the container `{container}` of `{account}` does not exist",
        "`az storage container create --account-name {account} --name {container} --auth-mode login` makes one",
    ),
    "RequestBodyTooLarge": ("the file is too large for one request", "leave files out by `.codeignore`"),
}


def account_url(cloud: Mapping[str, str], account: str) -> str:
    """The address of an account's Blob service in a cloud."""
    return cloud.get("blob", f"https://{{account}}.blob.{cloud['storage_suffix']}").replace("{account}", account)


def _unnamed(answer: httpx.Response, code: str) -> tuple[str, str]:
    said = answer.text if answer.request.method != "HEAD" else ""
    if answer.status_code == 400 and (code == "InvalidHeaderValue" or "version" in said.lower()):
        return "`{account}` does not know version {version} of the Blob service", (
            "an emulator must be newer, or started with `--skipApiVersionCheck`"
        )
    return f"the Blob service says {answer.status_code} {code}".rstrip(), "try again; the portal shows the account"


def _code(answer: httpx.Response) -> str:
    return str(answer.headers.get("x-ms-error-code", ""))


def _skew(answer: httpx.Response) -> int:
    """Seconds that our clock is ahead of the service's; 0 when that is not worth a word."""
    try:
        theirs = parsedate_to_datetime(answer.headers["Date"])
    except (KeyError, ValueError):
        return 0
    skew = int((utc_now() - theirs).total_seconds())
    return skew if abs(skew) > SKEW_SECONDS else 0


def utc_now() -> datetime:
    """The time, as Azure's libraries want it."""
    return datetime.fromisoformat(now_utc()).astimezone(UTC)


def _blocks(upload: Upload, emit: Emit | None) -> Iterator[bytes]:
    """The file from its first byte: every attempt opens it anew."""
    sent, said = 0, monotonic()
    with upload.path.open("rb") as file:
        while block := file.read(BLOCK):
            yield block
            sent += len(block)
            if emit and (sent == upload.size or monotonic() > said + REPORT_SECONDS):
                said = monotonic()
                emit(Event("upload", upload.file, sent, upload.size))
