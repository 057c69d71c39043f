"""HTTP over the daemon's Unix socket: one connection a request, and errors that say how far a request got."""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aj.shared.caller import CALLER_HEADER
from aj.shared.clock import monotonic
from aj.shared.errors import DaemonBusyError, DaemonError, WaitTimeoutError, from_wire
from aj.shared.fingerprint import ROOT_HEADER
from aj.shared.jsonio import Json, compact
from aj.shared.model import Event, to_json
from aj.shared.runtime import peer

ANSWER_SECONDS = 4.0
"""A daemon that is alive answers sooner, whatever it does."""
REMOTE_SECONDS = 120.0
"""For answers that need a remote's answer first."""
SILENCE_SECONDS = 4.0
"""Between two lines of a stream, after which we say so; the daemon sends a beat every second."""
GIVE_UP_SECONDS = 300.0
"""Of silence of a daemon that is alive, stopped perhaps."""


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
        with self._asked(method, path, body, patience) as (_, answer):
            return _document(answer, patience)

    def stream(
        self, method: str, path: str, body: Json = None, *, deadline: float | None = None
    ) -> Iterator[dict[str, Any]]:
        """The lines of a growing answer, beats included, until the last; `WaitTimeoutError` at `deadline`.

        A daemon that stays silent is waited for: an event of ours says so, once.
        """
        with self._asked(method, path, body, ANSWER_SECONDS) as (link, answer):
            if answer.status != 200:
                _document(answer, ANSWER_SECONDS)
            while True:
                if not _arrives(link, answer, SILENCE_SECONDS, deadline):
                    yield {"event": to_json(Event("wait", f"{_silent(SILENCE_SECONDS).message}; waiting for it"))}
                    if not _arrives(link, answer, GIVE_UP_SECONDS, deadline):
                        raise _silent(GIVE_UP_SECONDS)
                with _told(SILENCE_SECONDS):
                    text = answer.readline()
                    if not text.endswith(b"\n"):
                        raise ConnectionError
                yield (line := _parsed(text))
                if "event" not in line:
                    return

    @contextmanager
    def _asked(
        self, method: str, path: str, body: Json, patience: float
    ) -> Iterator[tuple[socket.socket, http.client.HTTPResponse]]:
        connection = http.client.HTTPConnection("daemon", timeout=patience)
        connection.sock = link = self._connected(patience)
        headers = {"Content-Type": "application/json"}
        if self.root is not None:
            headers[ROOT_HEADER] = quote(os.fsencode(self.root))
        if self.caller is not None:
            headers[CALLER_HEADER] = self.caller
        try:
            with _told(patience):
                connection.request(method, path, None if body is None else compact(body), headers)
                answer = connection.getresponse()
            yield link, answer
        finally:
            connection.close()

    def _connected(self, patience: float) -> socket.socket:
        """To the socket, and only if the daemon behind it is ours."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(patience)
        try:
            link.connect(os.fspath(self.path))
            owner = peer(link)
        except OSError as error:
            link.close()
            if isinstance(error, TimeoutError):
                raise _silent(patience) from error
            raise NotSentError(f"no daemon answers: {error.strerror}", where=str(self.path)) from error
        if owner[1] != os.getuid():
            link.close()
            raise DaemonError(f"the socket is served by user {owner[1]}", where=str(self.path))
        return link


@contextmanager
def _told(patience: float) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise _silent(patience) from error
    except (OSError, http.client.HTTPException) as error:
        raise LostError("the daemon ended in the middle of a request") from error


def _arrives(link: socket.socket, answer: http.client.HTTPResponse, seconds: float, deadline: float | None) -> bool:
    """Whether there is something to read, the end included, within so many seconds."""
    link.setblocking(False)
    try:
        with _told(0):
            if answer.fp.peek(1).strip():  # the line end after a chunk is nothing yet
                return True
    finally:
        link.settimeout(SILENCE_SECONDS)
    left = seconds if deadline is None else max(0, min(seconds, deadline - monotonic()))
    ready = select.poll()
    ready.register(link, select.POLLIN)
    if ready.poll(left * 1000):
        return True
    if deadline is not None and monotonic() >= deadline:
        raise WaitTimeoutError("the time to wait is over")
    return False


def _document(answer: http.client.HTTPResponse, patience: float) -> dict[str, Any]:
    with _told(patience):
        document = _parsed(answer.read())
    if answer.status != 200:
        if "error" in document:
            raise from_wire(document["error"])
        raise DaemonError(f"the daemon answered with status {answer.status}", hint="`aj daemon restart`")
    return document


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError as error:
        raise DaemonError("the daemon's answer is not JSON", hint="`aj daemon restart`") from error
    if not isinstance(document, dict):
        raise DaemonError("the daemon's answer is no JSON object", hint="`aj daemon restart`")
    return document


def _silent(seconds: float) -> DaemonBusyError:
    return DaemonBusyError(
        f"the daemon is alive but has not answered for {seconds:g} s",
        hint="try again; `aj daemon stop --force` ends a daemon that hangs",
    )
