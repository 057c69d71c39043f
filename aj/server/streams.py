"""Answers that grow: one JSON object a line, events first, the outcome last."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from aj.server.events import Feed
from aj.shared.errors import AjError, to_wire
from aj.shared.jsonio import Json, compact
from aj.shared.model import to_json

BEAT_SECONDS = 1.0
"""A silent daemon and a long step must not look alike."""
BEAT = b'{"event":{"completed":null,"detail":"","kind":"beat","total":null}}\n'


async def follow(feed: Feed, outcome: Callable[[], Awaitable[Json | AjError | None]]) -> AsyncIterator[bytes]:
    """The events of `feed` until `outcome` is something; a beat whenever nothing happens."""
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
