"""HTTP over the daemon's Unix socket: one connection a request, and errors that say how far a request got."""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aj.shared.caller import CALLER_HEADER
from aj.shared.clock import monotonic
from aj.shared.errors import DaemonBusyError, DaemonError, WaitTimeoutError, from_wire
from aj.shared.fingerprint import ROOT_HEADER
from aj.shared.jsonio import Json, compact

ANSWER_SECONDS = 4.0
"""A daemon that is alive answers sooner, whatever it does."""
REMOTE_SECONDS = 120.0
"""For answers that need a remote's answer first."""
SILENCE_SECONDS = 10.0
"""Between two lines of a stream; the daemon sends a beat every second."""


class NotSentError(DaemonError):
    """Nobody listens: the request surely was not received."""


class LostError(DaemonError):
    """The daemon went away after the request was sent: whether it was carried out is not known."""


@dataclass(frozen=True, slots=True)
class Transport:
    """The way to one daemon, for one project or, without `root`, for none."""

    path: Path
    root: Path | None = None
    caller: str | None = None
    """Who looks at a remote: a header of `aj.shared.caller`."""

    def request(self, method: str, path: str, body: Json = None, *, patience: float = ANSWER_SECONDS) -> dict[str, Any]:
        """One JSON answer; the daemon's own errors are raised with their type."""
        connection = self._send(method, path, body, patience)
        try:
            status, answer = _answer(connection)
            return _document(status, _read(answer))
        finally:
            connection.close()

    def stream(
        self, method: str, path: str, body: Json = None, *, deadline: float | None = None
    ) -> Iterator[dict[str, Any]]:
        """The lines of a growing answer, beats included, until the last; `WaitTimeoutError` at `deadline`."""
        connection = self._send(method, path, body, ANSWER_SECONDS)
        try:
            status, answer = _answer(connection)
            if status != 200:
                _document(status, _read(answer))
            while True:
                assert connection.sock is not None
                connection.sock.settimeout(_patience(deadline))
                line = _line(answer, deadline)
                yield line
                if "event" not in line:
                    return
        finally:
            connection.close()

    def _send(self, method: str, path: str, body: Json, patience: float) -> http.client.HTTPConnection:
        connection = _UnixConnection(self.path, patience)
        try:
            connection.connect()
        except TimeoutError as error:
            raise _silent(patience) from error
        except OSError as error:
            raise NotSentError(f"no daemon answers: {error.strerror}", where=str(self.path)) from error
        headers = {"Content-Type": "application/json"}
        if self.root is not None:
            headers[ROOT_HEADER] = quote(os.fsencode(self.root))
        if self.caller is not None:
            headers[CALLER_HEADER] = self.caller
        try:
            connection.request(method, path, None if body is None else compact(body), headers)
        except TimeoutError as error:
            raise _silent(patience) from error
        except OSError as error:
            raise LostError("the daemon ended in the middle of a request", where=str(self.path)) from error
        return connection


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, patience: float) -> None:
        super().__init__("daemon", timeout=patience)
        self._path = path

    def connect(self) -> None:
        """To the socket, and only if the daemon behind it is ours."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(os.fspath(self._path))
        except BaseException:
            self.sock.close()
            raise
        if (owner := server_of(self.sock)) is not None and owner[1] != os.getuid():
            self.sock.close()
            raise DaemonError(f"the socket is served by user {owner[1]}", where=str(self._path))


def server_of(connection: socket.socket) -> tuple[int, int] | None:
    """Process id and user of the process that listens, as the kernel knows them; None where it does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def _answer(connection: http.client.HTTPConnection) -> tuple[int, http.client.HTTPResponse]:
    try:
        answer = connection.getresponse()
    except TimeoutError as error:
        raise _silent(connection.timeout or 0) from error
    except (OSError, http.client.HTTPException) as error:
        raise LostError("the daemon ended before it answered") from error
    return answer.status, answer


def _read(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.read()
    except TimeoutError as error:
        raise _silent(ANSWER_SECONDS) from error
    except (OSError, http.client.HTTPException) as error:
        raise LostError("the daemon ended in the middle of its answer") from error


def _line(answer: http.client.HTTPResponse, deadline: float | None) -> dict[str, Any]:
    try:
        text = answer.readline()
    except TimeoutError as error:
        if deadline is not None and monotonic() >= deadline:
            raise WaitTimeoutError("the time to wait is over") from error
        raise _silent(SILENCE_SECONDS) from error
    except (OSError, http.client.HTTPException) as error:
        raise LostError("the daemon ended in the middle of its answer") from error
    if not text.endswith(b"\n"):
        raise LostError("the daemon ended in the middle of its answer")
    return _parsed(text)


def _document(status: int, body: bytes) -> dict[str, Any]:
    document = _parsed(body)
    if "error" in document and status != 200:
        raise from_wire(document["error"])
    if status != 200:
        raise DaemonError(f"the daemon answered with status {status}", hint="`aj daemon restart`")
    return document


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError as error:
        raise DaemonError("the daemon's answer is not JSON", hint="`aj daemon restart`") from error
    if not isinstance(document, Mapping):
        raise DaemonError("the daemon's answer is no JSON object", hint="`aj daemon restart`")
    return dict(document)


def _patience(deadline: float | None) -> float:
    return SILENCE_SECONDS if deadline is None else max(0.01, min(SILENCE_SECONDS, deadline - monotonic()))


def _silent(seconds: float) -> DaemonBusyError:
    return DaemonBusyError(
        f"the daemon is alive but has not answered for {seconds:g} s",
        hint="try again; `aj daemon stop --force` ends a daemon that hangs",
    )
