"""The real daemon under requests that are made up from its own document: answers fit it, nothing is a fault of ours."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from aj.shared.caller import to_header
from aj.shared.spec import spec_to_json

WHOLE = schemathesis.openapi.from_path(Path(__file__).parents[2] / "schemas" / "openapi.yaml")
DOCUMENT = WHOLE.exclude(path="/v1/shutdown").exclude(path="/v1/azure/{topic}")
"""Without what would end the daemon, and what would ask the real Azure."""
FREE = ("setup", "command", "argv", "ignore", "description", "extra", "timeout_seconds", "image", "sku", "storage")
"""Parts of a job that may be anything of their type."""
World = Any


class Bridge:
    """A TCP port of this machine that leads to a Unix socket, because clients of the web know no other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as far, selectors.DefaultSelector() as ready:
            far.connect(str(self._path))
            ready.register(near, selectors.EVENT_READ, far)
            ready.register(far, selectors.EVENT_READ, near)
            while True:
                for key, _ in ready.select():
                    assert isinstance(key.fileobj, socket.socket)
                    if not (block := key.fileobj.recv(65536)):
                        return
                    key.data.sendall(block)


@pytest.fixture
def bridge(world: World) -> Iterator[tuple[World, str]]:
    world.client()
    made = Bridge(world.runtime.socket)
    yield world, made.url
    made.close()


@DOCUMENT.parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_to_made_up_requests_fits_the_document(case: Case[Any], bridge: tuple[World, str]) -> None:
    world, url = bridge
    plausible(case, world)
    response = case.call(base_url=url, timeout=30)
    case.validate_response(
        response,
        checks=[not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance],
    )


def plausible(case: Case[Any], world: World) -> None:
    """Only our own project is ever meant; some of the references and jobs exist, so that more than refusals is seen."""
    if case.headers and case.headers.get("X-AJ-Root"):
        case.headers["X-AJ-Root"] = str(world.root)
    if case.headers and case.headers.get("X-AJ-Caller"):  # no other cache may be meant either
        case.headers["X-AJ-Caller"] = to_header(world.env, world.project)
    for name, value in dict(case.path_parameters or {}).items():
        if len(str(value)) % 2:
            client = world.client()
            known = client.queue() or [{"ticket": client.submit(world.spec(), world.caller()).ticket}]
            case.path_parameters[name] = known[0]["ticket"]
    body: Any = case.body
    if isinstance(body, dict) and isinstance(body.get("spec"), dict) and isinstance(body.get("caller"), dict):
        made_up = {key: value for key, value in body["spec"].items() if key in FREE}
        body["spec"] = {**spec_to_json(world.spec()), **made_up}
        body["caller"]["cwd"] = str(world.project)
