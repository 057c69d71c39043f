"""The SDK: light to import, and honest about how far a request got."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aj.sdk.transport import LostError, NotSentError, Transport
from aj.shared.caller import SIZE_LIMIT, TRAVELS, caller, caller_from_json, travels
from aj.shared.errors import ConfigError, DaemonBusyError, DaemonError, NotFoundError, RequestError, WaitTimeoutError
from aj.shared.runtime import runtime


def test_importing_it_loads_nothing_heavy() -> None:
    script = "import sys, aj.sdk; print([m for m in sys.modules if m.split('.')[0] in %r or m.startswith('aj.server')])"
    heavy = ("asyncio", "ssl", "http", "sqlite3", "subprocess", "starlette", "uvicorn", "jsonschema", "click")
    loaded = subprocess.run([sys.executable, "-c", script % (heavy,)], capture_output=True, text=True, check=True)
    assert loaded.stdout == "[]\n"


@contextmanager
def answering(folder: Path, answer: Callable[[socket.socket], None]) -> Iterator[Transport]:
    """A transport to somebody who answers one connection in this way."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "s"))
    listening.listen()

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            answer(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield Transport(folder / "s", folder)
    thread.join(10)
    listening.close()


def reply(body: bytes, status: str = "200 OK", *, length: int | None = None) -> Callable[[socket.socket], None]:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length or len(body)}\r\n\r\n"
    return lambda connection: connection.sendall(head.encode() + body)


def test_an_error_comes_back_with_its_type(tmp_path: Path) -> None:
    body = b'{"error": {"type": "NotFoundError", "message": "no `x`", "where": "w", "hint": "h"}}'
    with answering(tmp_path, reply(body, "404 Not Found")) as way, pytest.raises(NotFoundError) as refused:
        way.request("GET", "/")
    assert (refused.value.message, refused.value.where, refused.value.hint) == ("no `x`", "w", "h")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"<html>", b"\xff"])
def test_nonsense_is_a_clear_error(tmp_path: Path, body: bytes) -> None:
    with answering(tmp_path, reply(body)) as way, pytest.raises(DaemonError, match="answer is"):
        way.request("GET", "/")


def test_nobody_there_is_told_from_somebody_who_left(tmp_path: Path) -> None:
    with pytest.raises(NotSentError):
        Transport(tmp_path / "s").request("GET", "/")
    with answering(tmp_path, lambda connection: None) as way, pytest.raises(LostError):
        way.request("GET", "/")
    (tmp_path / "s").unlink()
    with answering(tmp_path, reply(b'{"a": ', length=100)) as way, pytest.raises(LostError):
        way.request("GET", "/")


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'{"event":{"kind":"note","detail":"x","completed":null,"total":null}}\n'


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@pytest.mark.parametrize(
    "cut", [CHUNKED, CHUNKED + chunk(EVENT), CHUNKED + chunk(EVENT[:20]), CHUNKED + chunk(EVENT) + b"0\r\n\r\n"]
)
def test_a_stream_without_its_last_line_is_lost(tmp_path: Path, cut: bytes) -> None:
    with answering(tmp_path, lambda connection: connection.sendall(cut)) as way, pytest.raises(LostError):
        list(way.stream("GET", "/"))


def test_silence_is_busy_and_a_deadline_is_kept(tmp_path: Path) -> None:
    done = threading.Event()

    def nothing(_: socket.socket) -> None:
        done.wait(20)

    with answering(tmp_path, nothing) as way:
        with pytest.raises(DaemonBusyError, match="alive"):
            way.request("GET", "/", patience=0.1)
        done.set()
    (tmp_path / "s").unlink()
    done.clear()

    def one_event(connection: socket.socket) -> None:
        connection.sendall(CHUNKED + chunk(EVENT))
        done.wait(20)

    from aj.shared.clock import monotonic

    with answering(tmp_path, one_event) as way:
        with pytest.raises(WaitTimeoutError):
            list(way.stream("GET", "/", deadline=monotonic() + 0.2))
        done.set()


def test_the_callers_world_is_what_the_list_names() -> None:
    env = {
        "PATH": "/bin",
        "AJ_NAME": "x",
        "LC_TIME": "C",
        "AZURE_CONFIG_DIR": "/az",
        "UV_CACHE_DIR": "/uv",
        "SSH_AUTH_SOCK": "/s",
        "AJ_DEBUG": "1",
        "MY_TOKEN": "t",
    }
    kept = caller(env, Path("/work"))
    assert set(kept.env) == {"PATH", "AJ_NAME", "LC_TIME", "AZURE_CONFIG_DIR", "UV_CACHE_DIR"}
    assert caller_from_json({"cwd": "/work", "env": env}) == kept
    assert all(reason for reason in TRAVELS.values()) and not travels("LC") and not travels("PATHS")


@pytest.mark.parametrize("env", [{"LANG": "\udcff"}, {"PATH": "/a:/\udc80"}])
def test_what_is_not_utf8_is_refused_before_it_is_sent(env: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="not valid UTF-8"):
        caller(env, Path("/"))


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        {"cwd": "/", "env": {"A": None}},
        {"cwd": "", "env": {}},
        {"cwd": "/\0", "env": {}},
        {"cwd": "/", "env": {"PATH": "x" * SIZE_LIMIT}},
    ],
)
def test_a_malformed_caller_is_refused(document: object) -> None:
    with pytest.raises(RequestError):
        caller_from_json(document)


def test_client_and_daemon_derive_the_same_places(tmp_path: Path) -> None:
    for env in ({"AJ_RUNTIME_DIR": str(tmp_path)}, {"XDG_RUNTIME_DIR": str(tmp_path)}, {}):
        place = runtime(env)
        assert place.lock.parent == place.log.parent == place.folder and place.folder.is_absolute()
        assert len(os.fsencode(place.socket)) <= 107
    with pytest.raises(ConfigError):
        runtime({"AJ_RUNTIME_DIR": "relative"})
