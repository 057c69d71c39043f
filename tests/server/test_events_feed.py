"""Progress feeds: all readers see it, none can hold the writer up, memory is bounded."""

from __future__ import annotations

import asyncio
import threading

from aj.server.events import LIMIT, Feed
from aj.shared.model import Event


async def everything(feed: Feed) -> list[Event]:
    seen: list[Event] = []
    cursor = 0
    while True:
        events, cursor = await feed.read(cursor, 5)
        if not events:
            return seen
        seen.extend(events)


def test_early_and_late_readers_see_the_same() -> None:
    feed = Feed()

    async def scene() -> tuple[list[Event], list[Event]]:
        early = asyncio.create_task(everything(feed))
        await asyncio.sleep(0)

        def write() -> None:
            for number in range(100):
                feed.emit(Event("note", str(number)))
            feed.end()

        await asyncio.get_running_loop().run_in_executor(None, write)
        return await early, await everything(feed)

    early, late = asyncio.run(scene())
    assert early == late == [Event("note", str(number)) for number in range(100)]


def test_counts_of_one_kind_merge_and_memory_is_bounded() -> None:
    feed = Feed()
    for number in range(100_000):
        feed.emit(Event("pack", "", number, 100_000))
    feed.emit(Event("note", "packed"))
    for number in range(3 * LIMIT):
        feed.emit(Event("note", str(number)))
    feed.end()
    seen = asyncio.run(everything(feed))
    assert len(seen) == LIMIT and seen[-1].detail == str(3 * LIMIT - 1)


def test_a_reader_that_stays_behind_gets_each_event_at_most_once() -> None:
    feed = Feed()

    async def scene() -> list[Event]:
        feed.emit(Event("pack", "", 1, 3))
        first, cursor = await feed.read(0, 0)
        feed.emit(Event("pack", "", 2, 3))
        feed.emit(Event("pack", "", 3, 3))
        second, _ = await feed.read(cursor, 0)
        return first + second

    assert [event.completed for event in asyncio.run(scene())] == [1, 3]


def test_writing_goes_on_when_the_readers_loop_is_gone() -> None:
    feed = Feed()

    async def leave() -> None:
        asyncio.create_task(feed.read(0, 60))  # noqa: RUF006
        await asyncio.sleep(0)

    thread = threading.Thread(target=lambda: asyncio.run(leave()))
    thread.start()
    thread.join()
    feed.emit(Event("note", "nobody hears this"))
    assert asyncio.run(feed.read(0, 0))[0] == [Event("note", "nobody hears this")]
