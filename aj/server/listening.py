"""The daemon's socket: bound by ourselves, private from the first instant, closed to other users, removed if ours."""

from __future__ import annotations

import asyncio  # noqa: TID253
import logging
import os
import signal
import socket
import stat
import time
from contextlib import suppress
from pathlib import Path

import uvicorn  # noqa: TID253
from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: TID253

from aj.server.app import create_app
from aj.server.child import end_all
from aj.server.contexts import Contexts
from aj.server.life import Life
from aj.server.workshop import Workshop
from aj.shared.clock import monotonic
from aj.shared.errors import DaemonError
from aj.shared.runtime import Runtime, holds, is_at, peer

BACKLOG = 1024
LINGER_SECONDS = 3
"""How long open streams may take to end when everything else has."""
TENDS = 20
"""Times a second that a daemon looks whether it may leave, once it is to."""
LOG = logging.getLogger("aj")


def serve(place: Runtime, lock: int, workshop: Workshop, idle_seconds: float) -> None:
    """Serve at `place`, whose lock is held as the open file `lock`, until it is time to leave."""
    contexts = Contexts(workshop)
    life = Life(place, contexts, idle_seconds)
    server = uvicorn.Server(_config(life))
    listening = bind(place.socket)
    own = place.socket.lstat()

    def leave() -> None:
        server.should_exit = True
        server.force_exit = server.force_exit or life.forced

    life.leave = leave
    life.requests = lambda: (len(server.server_state.tasks), server.server_state.total_requests)
    life.intact = lambda: holds(lock, place.lock) and is_at(own, place.socket)
    try:
        asyncio.run(_until_left(server, life, listening))
    finally:
        if is_at(own, place.socket):
            place.socket.unlink(missing_ok=True)
    if end_all():  # what they were for comes to its end now, and is written down
        deadline = monotonic() + LINGER_SECONDS
        while contexts.active() and monotonic() < deadline:
            time.sleep(1 / TENDS)
    if unfinished := contexts.active():
        LOG.warning("left unfinished: %s", unfinished)
    else:
        contexts.close()
    LOG.info("the daemon %d has ended", os.getpid())
    logging.shutdown()
    os._exit(0)  # threads that wait for a remote would keep the process, and with it the lock


def bind(path: Path) -> socket.socket:
    """A listening socket at `path`, mode 0600 from the first instant; a stale one is replaced.

    Only the holder of the daemon's lock may call it. `DaemonError` when something else lies there.
    """
    with suppress(FileNotFoundError):
        found = path.lstat()
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.getuid():
            raise DaemonError("the socket's place is taken", where=str(path), hint="remove it")
        path.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listening.bind(os.fspath(path))
    except OSError as error:
        raise DaemonError(f"cannot bind the socket: {error}", where=str(path)) from error
    finally:
        os.umask(before)
    listening.listen(BACKLOG)
    return listening


class OwnPeers(H11Protocol):
    """Hangs up on every user but ours before a byte is read."""

    refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Ask the kernel who it is."""
        self.refused = peer(transport.get_extra_info("socket"))[1] != os.getuid()
        if self.refused:
            LOG.warning("refused a connection of another user")
            transport.abort()
        else:
            super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to clean up for those who never were in."""
        if not self.refused:
            super().connection_lost(exc)


def _config(life: Life) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(life),
        loop="asyncio",
        http=OwnPeers,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=LINGER_SECONDS,
    )


async def _until_left(server: uvicorn.Server, life: Life, listening: socket.socket) -> None:
    """The first signal drains, a second one leaves at once."""
    loop = asyncio.get_running_loop()
    serving = loop.create_task(server.serve(sockets=[listening]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.001)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, life.signaled)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    LOG.info("the daemon %d serves %s", os.getpid(), listening.getsockname())
    tending = loop.create_task(_tend(life))
    await serving
    tending.cancel()


async def _tend(life: Life) -> None:
    while True:
        await life.tick()
        for _ in range(TENDS):
            await asyncio.sleep(1 / TENDS)
            if life.draining:
                life.drain()
