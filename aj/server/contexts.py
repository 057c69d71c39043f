"""The projects that are open, one for each AJ_HOME, and which folder a request may name as one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from urllib.parse import unquote_to_bytes

from aj.server.context import Context
from aj.server.workshop import Workshop
from aj.shared.clock import monotonic
from aj.shared.errors import DaemonNotRunningError, RequestError
from aj.shared.fingerprint import ROOT_HEADER
from aj.shared.jsonio import Json
from aj.shared.paths import Home

IDLE_SECONDS = 60.0
"""A project that nobody used for so long, and that has no work, is closed."""


class Contexts:
    """Opens projects on demand and closes idle ones; different projects run side by side."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._guard = RLock()
        self._open: dict[Path, Context] = {}
        self._stopping = False

    @contextmanager
    def use(self, header: str | None, lent: Mapping[str, str]) -> Iterator[Context]:
        """The project that the header names, held open meanwhile."""
        context = self.enter(header, lent)
        try:
            yield context
        finally:
            self.leave(context)

    def enter(self, header: str | None, lent: Mapping[str, str]) -> Context:
        """The same in two halves: `leave` must follow. `RequestError` when the header names no project of ours."""
        root = project_root(header)
        with self._guard:
            context = self._open.get(root)
            if context is not None and context.vanished() and not (context.users or context.worker.active()):
                self._open.pop(root).close()
                context = None
            if context is None:
                context = self._open[root] = Context(Home(root), self._workshop, lent)
                if self._stopping:
                    context.worker.stop()
            context.users += 1
        try:
            context.restore()  # it may wait for another daemon: not with all projects
        except BaseException:
            self.leave(context)
            raise
        return context

    def leave(self, context: Context) -> None:
        """The request has its answer."""
        with self._guard:
            context.users -= 1
            context.used_at = monotonic()

    def refuse_when_stopping(self) -> None:
        """`DaemonNotRunningError` once the daemon takes on nothing new."""
        if self._stopping:
            raise DaemonNotRunningError("the daemon is stopping and took nothing on", hint="try again")

    @property
    def stopping(self) -> bool:
        """Whether the daemon takes on nothing new."""
        return self._stopping

    def stop(self) -> None:
        """Let every project finish what it is doing, and begin nothing."""
        with self._guard:
            self._stopping = True
            for context in self._open.values():
                context.worker.stop()

    def close_idle(self) -> None:
        """Close what nobody uses."""
        with self._guard:
            for root, context in list(self._open.items()):
                idle = monotonic() - context.used_at > IDLE_SECONDS
                if idle and not context.users and not context.worker.active() and not context.queue.pending():
                    self._open.pop(root).close()

    def close(self) -> None:
        """Close all; only when nothing is active."""
        with self._guard:
            while self._open:
                self._open.popitem()[1].close()

    def active(self) -> list[dict[str, Json]]:
        """What is being prepared or sent: root, ticket, id, name, phase."""
        with self._guard:
            return [
                {"root": str(root), "ticket": work.ticket, "phase": work.phase}
                | {key: work.record[key] for key in ("id", "name")}
                for root, context in self._open.items()
                for work in context.worker.active()
            ]

    def summary(self) -> list[dict[str, Json]]:
        """Each open project: root, pending, active."""
        with self._guard:
            return [
                {"root": str(root), "pending": len(context.queue.pending()), "active": len(context.worker.active())}
                for root, context in sorted(self._open.items())
            ]


def project_root(header: str | None) -> Path:
    """AJ_HOME from its header: absolute, real, of this user; `RequestError` says what is wrong with it."""
    if not header:
        raise RequestError(f"the header `{ROOT_HEADER}` is missing", hint="it carries the absolute path of AJ_HOME")
    raw = unquote_to_bytes(header.encode("latin-1"))
    named = Path(os.fsdecode(raw))
    if b"\0" in raw or not named.is_absolute():
        raise RequestError("AJ_HOME is not an absolute path", where=f"{ROOT_HEADER}: {header}")
    try:
        root = named.resolve()
        nearest = next(folder for folder in (root, *root.parents) if folder.exists())
        owner = nearest.stat().st_uid
    except (OSError, RuntimeError) as error:
        raise RequestError(f"AJ_HOME cannot be used: {error}", where=str(named)) from error
    if not nearest.is_dir():
        raise RequestError("AJ_HOME is not a folder", where=str(nearest))
    if nearest == root and owner != os.getuid():
        raise RequestError(
            f"AJ_HOME belongs to user {owner}", where=str(root), hint="set AJ_HOME to a folder of your own"
        )
    if nearest != root and not os.access(nearest, os.W_OK | os.X_OK):
        raise RequestError("AJ_HOME cannot be created", where=str(root), hint=f"`{nearest}` cannot be written")
    return root
