"""The queue's database: states, order, lookups, what is forgotten, and what happens to damaged files."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aj.server.queue import KEPT, Entry, Queue
from aj.shared.errors import ConflictError, NotFoundError, StoreError

RECORD = {"id": "x"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "daemon" / "queue.db"


def entry(number: int) -> Entry:
    return Entry(
        f"q-{number:08x}", f"{number:08x}", f"job_{number:08x}", "gpu", "local", "pending", "2026-01-01T00:00:00+00:00"
    )


def ready(queue: Queue, number: int, sealed: Any = "what is sent") -> Entry:
    queue.accept(entry(number), RECORD)
    assert queue.ready(entry(number).ticket, sealed, RECORD)
    return entry(number)


def test_files_and_folder_are_private_from_the_start_under_any_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        queue = Queue(path).open()
        ready(queue, 1)
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"queue.db": 0o600, "queue.db-wal": 0o600, "queue.db-shm": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    queue.close()


def test_turns_follow_readiness_and_survive_a_new_opening(path: Path) -> None:
    queue = Queue(path).open()
    for number in (3, 1, 2):
        queue.accept(entry(number), RECORD)
    for number in (1, 3):
        queue.ready(entry(number).ticket, {"n": number}, RECORD)
    queue.close()
    again = Queue(path).open()
    assert [found.id for found in again.pending()] == [entry(1).id, entry(3).id]
    assert [found.id for found in again.interrupted()] == [entry(2).id]
    first = again.next()
    assert first is not None and first.id == entry(1).id and again.sealed(first.ticket) == {"n": 1}


def test_an_entry_is_begun_and_finished_once(path: Path) -> None:
    queue = Queue(path).open()
    one = ready(queue, 1)
    assert queue.begin(one.ticket) and not queue.begin(one.ticket)
    assert queue.finish(one.ticket, "done", None, {"status": "submitted"})
    assert not queue.finish(one.ticket, "failed", "late", None)
    assert queue.find(one.id).state == "done"
    assert queue.find(one.id).result == {"status": "submitted"}


def test_only_pending_entries_can_be_canceled(path: Path) -> None:
    queue = Queue(path).open()
    one, two = ready(queue, 1), ready(queue, 2)
    assert queue.cancel(one.ticket).state == "canceled"
    assert not queue.begin(one.ticket)
    queue.begin(two.ticket)
    with pytest.raises(ConflictError, match="submitting") as refused:
        queue.cancel(two.ticket)
    assert refused.value.hint and f"aj job cancel {two.id}" in refused.value.hint


def test_an_id_is_accepted_once(path: Path) -> None:
    queue = Queue(path).open()
    ready(queue, 1)
    with pytest.raises(ConflictError, match="accepted before"):
        queue.accept(entry(1), RECORD)


@pytest.mark.parametrize("ending", ["finish", "cancel"])
@pytest.mark.parametrize("size", [20, 100_000], ids=["short", "over many pages"])
def test_what_was_sent_is_gone_from_every_file_at_the_end(path: Path, ending: str, size: int) -> None:
    queue = Queue(path).open()
    one = ready(queue, 1, {"env": {"PASSWORD": "correct-horse-" * (size // 14 + 1)}})
    ready(queue, 2)
    assert any(b"correct-horse" in file.read_bytes() for file in path.parent.iterdir())
    if ending == "finish":
        queue.begin(one.ticket)
        queue.finish(one.ticket, "done", None, {"status": "submitted"})
    else:
        queue.cancel(one.ticket)
    assert not any(b"correct-horse" in file.read_bytes() for file in path.parent.iterdir())
    assert queue.sealed(one.ticket) is None


def test_history_is_bounded_and_never_drops_what_has_not_ended(path: Path) -> None:
    queue = Queue(path).open()
    waiting = ready(queue, 10_000)
    with sqlite3.connect(path) as other:
        columns = "ticket, id, name, template, backend, state, enqueued_at, record"
        rows = [(f"o{n}", f"o{n}", f"o{n}", "gpu", "local", "done", "2026", "{}") for n in range(KEPT + 20)]
        other.executemany(f"INSERT INTO entries ({columns}) VALUES (?,?,?,?,?,?,?,?)", rows)
    last = ready(queue, 1)
    queue.finish(last.ticket, "failed", "x", None)
    found = queue.entries()
    assert len(found) == KEPT + 1
    assert found[0].id == last.id and found[-1].id == waiting.id


def test_find_takes_ticket_id_name_remote_name_and_unique_starts(path: Path) -> None:
    queue = Queue(path).open()
    one, two = ready(queue, 0x1A), ready(queue, 0x1B)
    queue.begin(one.ticket)
    queue.finish(one.ticket, "done", None, {"azure_name": "remote-7"})
    for ref in (one.ticket, one.id, one.name, "remote-7", "q-0000001a"):
        assert queue.find(ref).id == one.id
    assert queue.find("job_0000001b").id == two.id
    with pytest.raises(NotFoundError, match="2 entries") as several:
        queue.find("0000001")
    assert several.value.hint and one.ticket in several.value.hint
    for ref in ("nothing", "", "%", "_", "q-0000001_"):
        with pytest.raises(NotFoundError):
            queue.find(ref)


def test_G06_a_database_of_random_bytes_is_set_aside_with_a_warning(path: Path) -> None:
    queue = Queue(path).open()
    ready(queue, 1)
    queue.close()
    damaged = os.urandom(20_000)
    path.write_bytes(damaged)
    again = Queue(path).open()
    assert again.entries() == []
    (notice,) = again.notices
    assert notice.where and Path(notice.where).read_bytes() == damaged
    ready(again, 2)


def test_G06_a_database_overwritten_while_it_is_open_is_set_aside_too(path: Path) -> None:
    queue = Queue(path).open()
    for number in range(40):
        ready(queue, number, "x" * 100_000)  # more than SQLite keeps in memory
    queue.finish(entry(0).ticket, "done", None, None)
    with path.open("r+b") as file:
        file.write(os.urandom(path.stat().st_size))
    for number in range(40):
        queue.sealed(entry(number).ticket)
    assert len(queue.notices) == 1
    ready(queue, 99)
    assert [found.id for found in queue.entries()] == [entry(99).id]


@settings(max_examples=25)
@given(cut=st.integers(min_value=0, max_value=40_000), noise=st.binary(max_size=64))
@example(cut=60, noise=bytes(4))  # the version of the tables
def test_no_damage_to_the_file_makes_it_unusable(
    tmp_path_factory: pytest.TempPathFactory, cut: int, noise: bytes
) -> None:
    path = tmp_path_factory.mktemp("damage") / "daemon" / "queue.db"
    queue = Queue(path).open()
    ready(queue, 1, "y" * 5000)
    queue.finish(entry(1).ticket, "done", None, None)
    queue.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:cut] + noise + whole[cut + len(noise) :])
    again = Queue(path).open()
    before = again.entries()
    ready(again, 2)
    assert [found.id for found in again.entries()] == [entry(2).id, *(found.id for found in before)]
    again.close()


def test_a_database_of_a_newer_aj_is_left_alone(path: Path) -> None:
    Queue(path).open().close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version=99")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="version 99"):
        Queue(path).open()
    assert path.read_bytes() == before


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "daemon").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="link"):
        Queue(tmp_path / "daemon" / "queue.db").open()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_closed_queue_is_empty_and_takes_nothing(path: Path) -> None:
    never = Queue(path)
    assert never.entries() == never.pending() == [] and not path.exists()
    with pytest.raises(NotFoundError) as missing:
        never.find("x")
    assert missing.value.hint == "nothing was submitted in this project yet"
    queue = Queue(path).open()
    ready(queue, 1)
    queue.close()
    assert queue.entries() == []
    for write in (lambda: queue.accept(entry(2), RECORD), lambda: queue.begin(entry(1).ticket)):
        with pytest.raises(StoreError, match="closed"):
            write()
