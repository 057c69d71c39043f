"""HTTP servers that can break a connection, several in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

Ends = tuple[tuple[str, int], tuple[str, int]]
_CONNECTIONS: dict[Ends, asyncio.Transport] = {}
"""By client and server address: one client port may have connections to several of our servers."""


class Breakable(H11Protocol):
    """uvicorn's protocol, which tells us the connection of each client."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _CONNECTIONS[self._ends(transport)] = transport

    def connection_lost(self, exc: Exception | None) -> None:
        _CONNECTIONS.pop(self._ends(self.transport), None)
        super().connection_lost(exc)

    @staticmethod
    def _ends(transport: asyncio.Transport) -> Ends:
        return transport.get_extra_info("peername"), transport.get_extra_info("sockname")


def break_connection(scope: Mapping[str, Any]) -> None:
    """Reset the connection that this request came by; nothing more is sent."""
    transport = _CONNECTIONS.get((tuple(scope["client"]), tuple(scope["server"])))
    if transport is not None:
        transport.abort()


class Quiet(uvicorn.Server):
    """A server that leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listening:
    """A bound socket and, later, the server on it."""

    def __init__(self, scheme: str) -> None:
        # asyncio turns Nagle's algorithm off (40 ms a request) only for sockets that name their protocol.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"{scheme}://127.0.0.1:{self._socket.getsockname()[1]}"
        self.server: Quiet | None = None

    async def serve(self, app: Any, certificate: Path, key: Path) -> None:
        """Serve `app` until `server.should_exit`."""
        encrypted = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)} if self.url.startswith("https") else {}
        config = uvicorn.Config(
            app,
            http=Breakable,
            lifespan="off",
            log_level="warning",
            access_log=False,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=1,
            **encrypted,  # type: ignore[arg-type]
        )
        self.server = Quiet(config)
        await self.server.serve(sockets=[self._socket])
