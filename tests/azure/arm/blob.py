"""A proxy in front of Azurite: it counts, waits, breaks and refuses as ordered, and lets everything else through."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from tests.azure.arm.refusals import BLOB_REFUSALS, Refused, blob_error
from tests.azure.arm.runner import PreparationError
from tests.azure.arm.wire import break_connection

if TYPE_CHECKING:
    from tests.azure.arm.simulator import Simulator

_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "te", "upgrade", "expect"}


@dataclass(slots=True)
class Account:
    """What an account's owner allows; each is refused by another 403."""

    shared_keys: bool = True
    data_role: bool = True
    firewall_open: bool = True


class BlobProxy:
    """Forwards to one Azurite. `accounts` holds the policies by account name."""

    def __init__(self, world: Simulator, endpoint: str, ca_file: Path) -> None:
        self._world = world
        self._endpoint = endpoint
        self._client = httpx.AsyncClient(verify=ssl.create_default_context(cafile=str(ca_file)), timeout=120)
        self.accounts: dict[str, Account] = {}

    async def serve(self, request: Request) -> Response:
        """Answer one request to the Blob service."""
        line = f"{request.method} Blob {request.url.path}?{request.url.query}"
        exchange = self._world.note("blob", request, "Blob")
        fault = await self._world.disturb(request, "blob", line)
        if fault is not None and fault.kind in ("lose_before", "lose_during"):
            await _read(request, fault.bytes)
            exchange.ended = time.monotonic()
            return broken(request)
        try:
            if fault is not None and fault.kind in ("refuse", "throttle"):
                raise self._world.refusal(fault)
            self._check_policy(request)
            answer = await self._forward(request, exchange_status := [0])
            exchange.status = exchange_status[0]
        except Refused as refused:
            exchange.status = refused.status
            answer = _refusal(request, refused)
        except ClientDisconnect:
            return broken(request)
        if fault is not None and fault.kind == "lose_after":
            if isinstance(answer, StreamingResponse):
                async for _ in answer.body_iterator:
                    pass
            exchange.status = None
            exchange.ended = time.monotonic()
            return broken(request)
        exchange.ended = time.monotonic()
        return answer

    def _check_policy(self, request: Request) -> None:
        account = self.accounts.get(request.url.path.split("/")[1])
        if account is None:
            return
        scheme = request.headers.get("authorization", "").split(" ")[0]
        if not account.firewall_open:
            raise Refused(*BLOB_REFUSALS["firewall"])
        signed_by_key = "sig" in request.query_params and "skoid" not in request.query_params
        if not account.shared_keys and (scheme == "SharedKey" or signed_by_key):
            raise Refused(*BLOB_REFUSALS["keys"])
        if not account.data_role and scheme == "Bearer":
            raise Refused(*BLOB_REFUSALS["role"])

    async def _forward(self, request: Request, status: list[int]) -> Response:
        headers = [(name, value) for name, value in request.headers.items() if name not in _HOP]
        body = "content-length" in request.headers or "transfer-encoding" in request.headers
        url = httpx.URL(self._endpoint).copy_with(raw_path=_raw_path(request))
        sent = self._client.build_request(
            request.method, url, headers=headers, content=request.stream() if body else None
        )
        answer = await self._client.send(sent, stream=True)
        status[0] = answer.status_code
        kept = {name: value for name, value in answer.headers.items() if name not in _HOP}
        if request.method == "HEAD" or answer.headers.get("content-length") == "0":
            await answer.aclose()
            return Response(None, answer.status_code, kept)
        return StreamingResponse(_content(answer), answer.status_code, kept)

    async def fetch(self, account: str, container: str, blob: str, target: Path, token: str) -> None:
        """Download for a job, straight from Azurite; PreparationError when the blob is not there."""
        url = f"{self._endpoint}/{account}/{container}/{blob}"
        headers = {"Authorization": f"Bearer {token}", "x-ms-version": "2021-08-06"}
        async with self._client.stream("GET", url, headers=headers) as answer:
            if answer.status_code != 200:
                raise PreparationError(f"input `{container}/{blob}` of account `{account}`: {answer.status_code}")
            with target.open("wb") as out:
                async for part in answer.aiter_raw():
                    out.write(part)

    async def close(self) -> None:
        await self._client.aclose()


def broken(request: Request) -> Response:
    """Reset the connection; the response that is returned reaches nobody."""
    break_connection(request.scope)
    return Response(status_code=500)


async def _read(request: Request, most: int) -> None:
    got, parts = 0, request.stream()
    while got < most:
        part = await anext(parts, None)
        if part is None:
            return
        got += len(part)


async def _content(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for part in answer.aiter_raw():
            yield part
    finally:
        await answer.aclose()


def _raw_path(request: Request) -> bytes:
    query: bytes = request.scope["query_string"]
    path: bytes = request.scope["raw_path"]
    return path + (b"?" + query if query else b"")


def _refusal(request: Request, refused: Refused) -> Response:
    headers = {"x-ms-error-code": refused.code, "x-ms-version": "2021-08-06", **refused.headers}
    body = None if request.method == "HEAD" else blob_error(refused.code, refused.message)
    return Response(body, refused.status, headers, media_type="application/xml")
