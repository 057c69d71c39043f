"""The daemon's own life: what it says of itself, when it counts as idle, and how it comes to its end."""

from __future__ import annotations

import asyncio  # noqa: TID253
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from aj import __version__
from aj.server.boundary import attempt
from aj.server.contexts import Contexts
from aj.shared.clock import monotonic
from aj.shared.errors import ConflictError
from aj.shared.fingerprint import OLDEST_PROTOCOL, PROTOCOL, fingerprint, package
from aj.shared.jsonio import Json
from aj.shared.runtime import LOG_LIMIT, Runtime, holds, open_log

T = TypeVar("T")


class Life:
    """One daemon. Its methods belong to the event loop; blocking work goes to one of its lanes."""

    def __init__(self, place: Runtime, contexts: Contexts, idle_seconds: float) -> None:
        self.contexts = contexts
        self.quick = ThreadPoolExecutor(16, "quick")
        """For what reads the disk."""
        self.build = ThreadPoolExecutor(8, "build")
        """For scanning and packing."""
        self.remote = ThreadPoolExecutor(32, "remote")
        """For what asks a backend."""
        self.leave: Callable[[], None] = lambda: None
        """Ends the server, set by who runs it."""
        self.intact: Callable[[], bool] = lambda: True
        """Whether socket and lock are still ours, set by who owns them."""
        self.requests: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """How many are being answered, and how many were; set by who serves them."""
        self.draining = False
        self.forced = False
        self._place = place
        self._idle_seconds = idle_seconds
        self._fingerprint = fingerprint()
        self._started = self._used = monotonic()
        self._served = 0
        self._tasks: set[asyncio.Future[None]] = set()

    def info(self) -> dict[str, Json]:
        """The handshake (blocks: call it from a lane)."""
        contexts = self.contexts.summary()
        return {
            "version": __version__,
            "protocol": PROTOCOL,
            "oldest_protocol": OLDEST_PROTOCOL,
            "fingerprint": self._fingerprint,
            "package": str(package()),
            "pid": os.getpid(),
            "uptime_s": round(monotonic() - self._started, 1),
            "socket": str(self._place.socket),
            "log": str(self._place.log),
            "draining": self.draining,
            "contexts": contexts,
            "outstanding": sum(context["pending"] + context["active"] for context in contexts),
        }

    async def within(self, lane: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        """What blocking work returns."""
        return await asyncio.get_running_loop().run_in_executor(lane, work)

    def apart(self, lane: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        """Blocking work that goes on when its request is gone."""
        task = asyncio.get_running_loop().run_in_executor(lane, work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def shut_down(self, document: Json) -> dict[str, Json]:
        """Drain, or with `force` leave at once: what is waited for or abandoned, and how much stays in the queue.

        Blocks: call it from a lane. `ConflictError` when `pid` names another daemon.
        """
        pid = document.get("pid")
        if pid is not None and pid != os.getpid():
            raise ConflictError(f"this is the daemon {os.getpid()}, not {pid}")
        active = self.contexts.active()
        kept = sum(context["pending"] for context in self.contexts.summary())
        self.forced = self.forced or document.get("force") is True
        self.drain()
        waiting, abandoned = ([], active) if self.forced else (active, [])
        return {"pid": os.getpid(), "waiting_for": waiting, "abandoned": abandoned, "kept": kept}

    def signaled(self) -> None:
        """A first signal drains, a second one leaves at once."""
        self.forced = self.draining
        self.drain()

    def drain(self) -> None:
        """Take on nothing new and leave as soon as nothing is active; pending entries stay in the queue."""
        self.draining = True
        self.contexts.stop()
        if self.forced or not (self._tasks or self.contexts.active()):
            self.leave()

    async def tick(self) -> None:
        """Now and then: bounded log, idle projects closed, and whether it is time to leave."""
        if holds(2, self._place.log) and os.fstat(2).st_size > LOG_LIMIT:
            attempt(self._turn_log)
        busy = await self.within(self.quick, lambda: attempt(self._tidy))
        open_requests, served = self.requests()
        if open_requests or served != self._served:
            self._used, self._served = monotonic(), served
        idle = busy is False and not open_requests and not self._tasks
        if self.draining or not self.intact() or (idle and monotonic() - self._used > self._idle_seconds):
            self.drain()

    def _tidy(self) -> bool:
        """Close idle projects; whether there is work left."""
        self.contexts.close_idle()
        return any(context["pending"] or context["active"] for context in self.contexts.summary())

    def _turn_log(self) -> None:
        fd = open_log(self._place.log)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
