"""What requests carry: read with a limit, checked, and typed, or refused as a RequestError."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aj.shared.caller import caller_from_json
from aj.shared.errors import PayloadError, RequestError
from aj.shared.jsonio import Json
from aj.shared.model import Caller, JobSpec
from aj.shared.spec import spec_from_json

if TYPE_CHECKING:
    from starlette.requests import Request

LIMIT = 8 * 1024 * 1024
"""Bytes of a body."""
COUNT_LIMIT = 2**53
"""What JSON's numbers hold exactly."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The body of `POST /v1/submissions`, which has `queue` and `expect`, and of `/v1/plans`, which has `offline`."""

    spec: JobSpec
    caller: Caller
    queue: bool = False
    expect: str | None = None
    offline: bool = False


@dataclass(frozen=True, slots=True)
class Cleaning:
    """The body of `POST /v1/cache/gc`; None for the rule that packing keeps to by itself, and for no rule of age."""

    max_bytes: int | None
    unused_days: int | None
    dry_run: bool


async def json_body(request: Request) -> Json:
    """The body as JSON; an empty one is `{}`."""
    body = bytearray()
    async for block in request.stream():
        body += block
        if len(body) > LIMIT:
            raise RequestError(f"the body is larger than {LIMIT} bytes")
    try:
        return json.loads(body, parse_constant=_refuse) if body else {}
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error


def job_request(document: Json, own: Collection[str]) -> JobRequest:
    """`own` are the keys that this route has beside `spec` and `caller`; `RequestError` at the first fault."""
    body = _object(document, {"spec", "caller", *own})
    expect = body.get("expect")
    if expect is not None and not isinstance(expect, str):
        raise RequestError("`expect` is not a text")
    caller = caller_from_json(body.get("caller"))
    return JobRequest(_spec(body), caller, _flag(body, "queue"), expect, _flag(body, "offline"))


def cleaning(document: Json) -> Cleaning:
    """Typed; `RequestError` at the first fault."""
    body = _object(document, {"max_bytes", "unused_days", "dry_run"})
    return Cleaning(_count(body, "max_bytes"), _count(body, "unused_days"), _flag(body, "dry_run"))


def shutdown_request(document: Json) -> Json:
    """The body of `POST /v1/shutdown`, checked; unknown keys pass, as later versions may send them."""
    if not isinstance(document, Mapping):
        raise RequestError("the body is not an object")
    _flag(document, "force")
    return document


def cursor(text: str | None) -> dict[str, int]:
    """The query parameter `cursor`: a JSON object of stream → bytes read; nothing means from the start."""
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise RequestError(f"`cursor` is not JSON: {error}") from error
    if not isinstance(value, dict) or not all(type(read) is int and 0 <= read < 2**63 for read in value.values()):
        raise RequestError("`cursor` does not map streams to numbers of bytes")
    return value


def limit(text: str | None, most: int) -> int:
    """The query parameter `limit`: 1 to `most`, which is also its default."""
    if text is None:
        return most
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= 1):
        raise RequestError("`limit` is not a positive number")
    return min(int(text), most)


def _object(document: Json, known: set[str]) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise RequestError("the body is not an object")
    if unknown := sorted(set(document) - known):
        raise RequestError(f"unknown key `{unknown[0]}`", hint=f"the keys are {', '.join(sorted(known))}")
    return document


def _flag(body: Mapping[str, Any], key: str) -> bool:
    value = body.get(key, False)
    if not isinstance(value, bool):
        raise RequestError(f"`{key}` is neither true nor false")
    return value


def _count(body: Mapping[str, Any], key: str) -> int | None:
    value = body.get(key)
    if value is not None and not (type(value) is int and 0 <= value < COUNT_LIMIT):
        raise RequestError(f"`{key}` is not a whole number from 0 below {COUNT_LIMIT}")
    return value


def _spec(body: Mapping[str, Any]) -> JobSpec:
    from aj.shared.schema import check

    document = body.get("spec")
    if not isinstance(document, Mapping):
        raise RequestError("`spec` is not an object")
    try:
        check(document, "jobspec", "the job")
        return spec_from_json(document)
    except PayloadError as error:
        raise RequestError(error.message, where=error.where, hint=error.hint) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"`spec` is not a job: {type(error).__name__} {error}") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON value")
