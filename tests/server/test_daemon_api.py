"""The HTTP interface: app, SDK and `openapi.yaml` say the same, every answer fits it, and no request makes a fault."""

from __future__ import annotations

import http.client
import inspect
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aj.build.store import Store
from aj.sdk.client import Client
from aj.server.routes import ROUTES
from aj.shared.jsonio import sha256
from aj.shared.model import ArchiveRecord, to_json
from aj.shared.schema import validator_for
from aj.shared.spec import spec_to_json

World = Any
DOCUMENT = yaml.safe_load((Path(__file__).parents[2] / "schemas" / "openapi.yaml").read_text())
OPERATIONS = {
    (method.upper(), path): operation
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
    if method in ("get", "post")
}


def test_app_and_document_have_the_same_routes() -> None:
    served = {(method, route.path) for route in ROUTES for method in (route.methods or ()) if method != "HEAD"}
    assert served == set(OPERATIONS)


def test_sdk_and_document_have_the_same_operations() -> None:
    methods = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    assert methods == {operation["operationId"] for operation in OPERATIONS.values()}


def test_every_operation_documents_its_errors_and_its_project() -> None:
    for (_, path), operation in OPERATIONS.items():
        assert operation["responses"]["default"] == {"$ref": "#/components/responses/Error"}
        project = {"$ref": "#/components/parameters/Root"} in DOCUMENT["paths"][path].get("parameters", [])
        assert project == (path not in ("/v1/info", "/v1/shutdown"))


def fits(schema: dict[str, Any], value: Any) -> None:
    """The value is valid by a schema of the document."""
    whole = {**_inlined(schema), "components": _inlined(DOCUMENT["components"])}
    errors = [f"{list(error.absolute_path)}: {error.message}" for error in validator_for(whole).iter_errors(value)]
    assert errors == [], value


def test_real_answers_fit_the_document(world: World) -> None:
    client = world.client()
    done, failed = world.spec(), world.spec(FAKE_DO="refuse")
    for spec in (done, failed):
        for line in lines(world, "POST", "/v1/submissions", body(world, spec)):
            fits(answer_schema("POST", "/v1/submissions"), line)
    for line in lines(world, "POST", "/v1/plans", body(world, world.spec())):
        fits(answer_schema("POST", "/v1/plans"), line)
    for line in lines(world, "GET", f"/v1/queue/{done.identity.id}/events"):
        fits(answer_schema("GET", "/v1/queue/{ref}/events"), line)
    client.submit(world.spec(FAKE_GATE=str(world.folder / "gate")), world.caller(), queue=True)
    waiting = client.submit(world.spec(), world.caller(), queue=True)
    for method, path, template in (
        ("GET", "/v1/info", "/v1/info"),
        ("GET", "/v1/records?limit=5", "/v1/records"),
        ("GET", "/v1/queue", "/v1/queue"),
        ("GET", f"/v1/queue/{waiting.ticket}", "/v1/queue/{ref}"),
        ("POST", f"/v1/queue/{waiting.ticket}/cancel", "/v1/queue/{ref}/cancel"),
        ("GET", "/v1/jobs", "/v1/jobs"),
        ("GET", f"/v1/jobs/{done.identity.id}", "/v1/jobs/{ref}"),
        ("GET", f"/v1/jobs/{done.identity.id}/logs", "/v1/jobs/{ref}/logs"),
        ("POST", f"/v1/jobs/{done.identity.id}/cancel", "/v1/jobs/{ref}/cancel"),
        ("POST", "/v1/shutdown", "/v1/shutdown"),
    ):
        status, answer = ask(world, method, path)
        assert status == 200, answer
        fits(answer_schema(method, template), answer)
    (world.folder / "gate").touch()


def test_answers_about_the_cache_fit_the_document_and_need_a_caller(world: World) -> None:
    client = world.client()
    Store(world.folder / "cache").add(lambda out: (out.write(b"x"), ArchiveRecord(sha256(b"x"), 1, 1, "", 1))[1])
    fits(answer_schema("GET", "/v1/cache"), client.cache())
    fits(answer_schema("POST", "/v1/cache/gc"), client.cache_gc(max_bytes=0, unused_days=1, dry_run=True))
    cleaned = client.cache_gc(max_bytes=0)
    fits(answer_schema("POST", "/v1/cache/gc"), cleaned)
    assert (cleaned["freed"], client.cache()["archives"]) == (1, [])
    for method, path in (("GET", "/v1/cache"), ("POST", "/v1/cache/gc")):
        status, answer = ask(world, method, path)
        assert status == 400 and "X-AJ-Caller" in answer["error"]["message"]
    for wrong in ({"max_bytes": -1}, {"max_bytes": True}, {"unused_days": "7"}, {"dry_run": 1}, {"days": 7}):
        assert ask(world, "POST", "/v1/cache/gc", wrong)[0] == 400


def test_every_entry_and_record_is_valid_by_its_schema(world: World) -> None:
    client = world.client()
    for what in ("ok", "refuse", "unknown", "fault"):
        client.submit(world.spec(FAKE_DO=what), world.caller())
    for entry in client.queue():
        fits({"$ref": "queue-entry.schema.json"}, entry)
    for record in client.records():
        fits({"$ref": "record.schema.json"}, record)


BAD_BODIES: list[Any] = [
    b"",
    b"\xff",
    b"{",
    b"[]",
    b"null",
    b"3",
    b"{}",
    b'{"spec": NaN}',
    b"[" * 100_000,
    {"spec": None, "caller": None},
    {"spec": {}, "caller": {}},
    {"spec": [], "caller": 3},
    {"unknown": 1},
]


BAD_ENVIRONMENTS: list[Any] = [[], {"A": 1}, {"A=B": "x"}, {"A": "\0"}, "x"]
WRONG_VALUES: list[Any] = [None, 7, [[]], {"a": {}}]


@pytest.mark.parametrize("path", ["/v1/submissions", "/v1/plans"])
def test_malformed_bodies_are_refused_with_their_type(world: World, path: str) -> None:
    world.client()
    good = body(world, world.spec())
    callers: list[Any] = [None, [], {"cwd": "relative", "env": {}}, {"cwd": "/"}]
    callers += [{"cwd": "/", "env": env} for env in BAD_ENVIRONMENTS]
    spec = good["spec"]
    specs = [{**spec, key: value} for key in spec for value in WRONG_VALUES]
    specs += [{name: value for name, value in spec.items() if name != key} for key in spec]
    twisted = [{**good, "caller": caller} for caller in callers] + [{**good, "spec": each} for each in specs]
    twisted += [{**good, key: "yes"} for key in ("queue", "offline")] + [{**good, "expect": 3}]
    accepted_nulls = 0
    for content in (*BAD_BODIES, *twisted):
        status, answer = ask(world, "POST", path, content)
        if status in (200, 409):  # 409: the same id once more
            accepted_nulls += 1
            continue
        assert status == 400, (content, answer)
        fits({"$ref": "error.schema.json"}, answer["error"])
        assert answer["error"]["type"] in ("RequestError", "UnknownServiceError"), answer
    assert accepted_nulls <= 8  # keys that may be null, or free-form


def test_a_body_without_end_is_refused(world: World) -> None:
    world.client()
    status, answer = ask(world, "POST", "/v1/plans", b" " * (9 * 1024 * 1024))
    assert status == 400 and "larger" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("root", "says"),
    [
        (None, "missing"),
        ("", "missing"),
        ("relative/path", "not an absolute path"),
        ("/%00", "not an absolute path"),
        ("/dev/null", "not a folder"),
        ("/dev/null/below", "not a folder"),
        ("~/x", "not an absolute path"),
        ("/" + "x" * 300, "cannot be used"),
    ],
)
def test_only_a_folder_of_ours_is_a_project(world: World, root: str | None, says: str) -> None:
    world.client()
    status, answer = ask(world, "GET", "/v1/queue", root=root)
    assert status == 400, answer
    assert answer["error"]["type"] == "RequestError" and says in answer["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/", 404, "NotFoundError"),
        ("GET", "/v1/nothing", 404, "NotFoundError"),
        ("DELETE", "/v1/queue", 405, "RequestError"),
        ("GET", "/v1/queue/no-such", 404, "NotFoundError"),
        ("GET", "/v1/queue/no-such/events", 404, "NotFoundError"),
        ("POST", "/v1/queue/no-such/cancel", 404, "NotFoundError"),
        ("GET", "/v1/queue/%00%ff", 404, "NotFoundError"),
        ("GET", "/v1/jobs/no-such", 404, "NotFoundError"),
        ("GET", "/v1/jobs/no-such/logs?cursor=%7B", 400, "RequestError"),
        ("GET", "/v1/jobs/x/logs?cursor=%5B1%5D", 400, "RequestError"),
        ("GET", "/v1/jobs/x/logs?cursor=%7B%22a%22%3A-1%7D", 400, "RequestError"),
        ("GET", "/v1/records?limit=x", 400, "RequestError"),
        ("GET", "/v1/records?limit=0", 400, "RequestError"),
        ("GET", "/v1/records?limit=99999999999999999999", 400, "RequestError"),
        ("POST", "/v1/shutdown", 409, "ConflictError"),
        ("POST", "/v1/shutdown", 400, "RequestError"),
    ],
)
def test_errors_are_json_with_their_type(world: World, method: str, path: str, status: int, kind: str) -> None:
    world.client()
    content = {409: {"pid": 1}, 400: {"force": "yes"}}.get(status) if path == "/v1/shutdown" else None
    got, answer = ask(world, method, path, content)
    assert (got, answer["error"]["type"]) == (status, kind)
    fits({"$ref": "error.schema.json"}, answer["error"])


def test_noise_on_the_socket_hurts_nobody(world: World) -> None:
    client = world.client()
    half = b"POST /v1/plans HTTP/1.1\r\nContent-Length: 5\r\n\r\n{"
    for noise in (b"\0\xff" * 50, b"GET / HTTP/9.9\r\n\r\n", half, b"G" * 100_000):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(world.runtime.socket))
            connection.sendall(noise)
    assert client.queue() == []


def answer_schema(method: str, path: str) -> dict[str, Any]:
    answer = OPERATIONS[method, path]["responses"]["200"]
    answer = DOCUMENT["components"]["responses"][answer["$ref"].rpartition("/")[2]] if "$ref" in answer else answer
    (content,) = answer["content"].values()
    schema: dict[str, Any] = content["schema"]
    return schema


def body(world: World, spec: Any) -> dict[str, Any]:
    return {"spec": spec_to_json(spec), "caller": to_json(world.caller())}


def ask(world: World, method: str, path: str, content: Any = None, root: str | None = "given") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("daemon", timeout=20)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(world.runtime.socket))
    headers = {"X-AJ-Root": str(world.root) if root == "given" else root} if root is not None else {}
    raw = content if content is None or isinstance(content, bytes) else json.dumps(content).encode()
    connection.request(method, path, raw, headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if answer.getheader("content-type") == "application/json" else text


def lines(world: World, method: str, path: str, content: Any = None) -> Iterator[Any]:
    status, text = ask(world, method, path, content)
    assert status == 200, text
    yield from (json.loads(line) for line in text.splitlines())


def _inlined(value: Any) -> Any:
    """References to our files become absolute, so that the validator finds them from anywhere."""
    if isinstance(value, dict):
        return {key: _inlined(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_inlined(item) for item in value]
    if isinstance(value, str) and re.fullmatch(r"[a-z-]+\.schema\.json", value):
        return f"file:///{value}"
    return value
