"""Progress on its way out: written by any thread, followed by any number of answers that grow, in bounded memory."""

from __future__ import annotations

import asyncio  # noqa: TID253
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from threading import Lock

from aj.shared.errors import AjError, to_wire
from aj.shared.jsonio import Json, compact
from aj.shared.model import Event, to_json

LIMIT = 500
"""Events kept for those who follow later or slowly; older ones are dropped."""
BEAT_SECONDS = 1.0
"""A silent daemon and a long step must not look alike."""
BEAT = b'{"event":{"completed":null,"detail":"","kind":"beat","total":null}}\n'


class Feed:
    """The events of one piece of work.

    A reader keeps its own cursor, so a slow or dead one costs nothing.
    Of consecutive counts of one kind only the newest is kept.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: deque[tuple[int, Event]] = deque(maxlen=LIMIT)
        self._number = 0
        self._ended = False
        self._bells: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def emit(self, event: Event) -> None:
        """Add an event; never blocks, whoever reads."""
        with self._lock:
            self._number += 1
            if self._kept and event.completed is not None:
                last = self._kept[-1][1]
                if last.kind == event.kind and last.completed is not None:
                    self._kept.pop()
            self._kept.append((self._number, event))
            self._ring()

    def end(self) -> None:
        """Nothing will follow: readers no longer wait."""
        with self._lock:
            self._ended = True
            self._ring()

    def wake(self) -> None:
        """Let readers look again, for example because their entry is ready, those too that are about to wait."""
        with self._lock:
            self._number += 1
            self._ring()

    async def read(self, cursor: int, patience: float) -> tuple[list[Event], int]:
        """The events after `cursor` (0: all that are kept) and the new cursor; waits `patience` seconds at most."""
        bell = asyncio.Event()
        with self._lock:
            if self._number > cursor or self._ended or patience <= 0:
                return self._after(cursor), self._number
            self._bells.append((asyncio.get_running_loop(), bell))
        with suppress(TimeoutError):
            await asyncio.wait_for(bell.wait(), patience)
        with self._lock:
            self._bells = [pair for pair in self._bells if pair[1] is not bell]
            return self._after(cursor), self._number

    def _ring(self) -> None:
        bells, self._bells = self._bells, []
        for loop, bell in bells:
            with suppress(RuntimeError):  # the loop was closed: its readers are gone
                loop.call_soon_threadsafe(bell.set)

    def _after(self, cursor: int) -> list[Event]:
        fresh: list[Event] = []
        for number, event in reversed(self._kept):
            if number <= cursor:
                break
            fresh.append(event)
        return fresh[::-1]


async def follow(feed: Feed, outcome: Callable[[], Awaitable[Json | AjError | None]]) -> AsyncIterator[bytes]:
    """One JSON object a line: the events of `feed`, a beat whenever nothing happens, and at last the outcome."""
    cursor = 0
    yield BEAT
    while True:
        found = await outcome()
        events, cursor = await feed.read(cursor, BEAT_SECONDS if found is None else 0)
        for event in events:
            yield compact({"event": to_json(event)}) + b"\n"
        if found is not None:
            last = {"error": to_wire(found)} if isinstance(found, AjError) else {"result": found}
            yield compact(last) + b"\n"
            return
        if not events:
            yield BEAT
