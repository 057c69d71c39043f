"""The archive of what is still to be sent stays, whatever dies and whoever clears the cache."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from aj.build.store import Store
from aj.shared.jsonio import sha256
from aj.shared.model import ArchiveRecord
from tests.trust.world import TrustWorld, check_truth, runs, state_of, until

Make = Callable[..., TrustWorld]


def packed(store: Store, content: bytes) -> str:
    digest = sha256(content)
    store.add(lambda out: (out.write(content), ArchiveRecord(digest, len(content), 1, "", 1))[1])
    return digest


def test_a_pin_keeps_an_archive_exactly_as_long_as_its_witness_exists(tmp_path: Path) -> None:
    store, witness = Store(tmp_path), tmp_path / "witness"
    witness.touch()
    other = packed(store, b"other")
    for _ in range(2):
        kept = packed(store.kept_by(witness), b"kept")
    assert Store(tmp_path).gc(limit=0).freed == len(b"other")
    assert store.path(kept).exists() and not store.path(other).exists()
    witness.unlink()
    assert Store(tmp_path).gc(limit=0).freed == len(b"kept")
    assert not list(tmp_path.rglob("*.pin-*")) and store.entries() == ()


def test_each_witness_counts(tmp_path: Path) -> None:
    store, witnesses = Store(tmp_path), [tmp_path / name for name in "ab"]
    kept = packed(store, b"kept")
    for witness in witnesses:
        witness.touch()
        assert store.kept_by(witness).has(kept)
    witnesses[0].unlink()
    assert store.gc(limit=0).freed == 0
    witnesses[1].unlink()
    assert store.gc(limit=0).freed == 4


def test_looking_for_what_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    for store in (Store(tmp_path / "never used", tmp_path), Store(tmp_path, tmp_path)):
        assert not store.has("0" * 64)
        packed(Store(tmp_path), b"x")
    assert not list(tmp_path.rglob("*.pin-*"))


def test_an_archive_is_kept_from_the_moment_that_it_is_found_or_added(tmp_path: Path) -> None:
    """Two cleaners never stop; whoever says what keeps an archive finds it again all the same."""
    stop = threading.Event()

    def clean() -> None:
        while not stop.is_set():
            Store(tmp_path).gc(limit=0)

    cleaners = [threading.Thread(target=clean) for _ in range(2)]
    for thread in cleaners:
        thread.start()
    try:
        for number in range(100):
            witness = tmp_path / f"witness{number}"
            witness.touch()
            store = Store(tmp_path, witness)
            kept = packed(store, b"content")
            assert store.has(kept) and store.path(kept).read_bytes() == b"content"
            witness.unlink()
    finally:
        stop.set()
        for thread in cleaners:
            thread.join()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_D08_the_cache_is_cleared_while_the_daemon_is_dead_and_the_queue_goes_on(trust: Make, number: int) -> None:
    world = trust()
    world.client(AJ_DEBUG="1", AJ_DEBUG_STOP_AT="ready")
    daemon, aj = world.pid(), world.run("queued", "double", "--queue")
    until(lambda: state_of(daemon) == "T")
    os.kill(daemon, number)
    with suppress(ProcessLookupError):
        os.kill(daemon, signal.SIGCONT)
    until(lambda: not runs(daemon))
    aj.wait()
    store = Store(world.folder / "cache")
    assert store.gc(limit=0).freed == 0 or world.jobs("queued")
    client = world.client()
    check_truth(world, client, "queued")
    assert world.jobs("queued"), "its archive was gone"
    store.gc(limit=0)
    assert store.entries() == ()


def test_canceled_and_failed_entries_let_go_of_their_archives(trust: Make) -> None:
    world = trust()
    world.client(AJ_DEBUG="1", AJ_DEBUG_STOP_AT="note sending")
    daemon, running = world.pid(), world.run("running", "double", "--queue")
    until(lambda: state_of(daemon) == "T")
    os.kill(daemon, signal.SIGKILL)
    running.wait()
    client = world.client(AJ_DEBUG="1", AJ_DEBUG_STOP_AT="frozen")
    daemon, canceled = world.pid(), world.run("canceled")
    until(lambda: state_of(daemon) == "T")
    os.kill(daemon, signal.SIGCONT)
    assert canceled.wait()[0] == 0
    assert world.run("refused", "double", "--env", "FAULT=lost before").wait()[0] == 1
    for base in ("running", "canceled", "refused"):
        check_truth(world, client, base)
    store = Store(world.folder / "cache")
    store.gc(limit=0)
    assert store.entries() == ()


@pytest.mark.parametrize("point", ["step archive", "step payload", "frozen", "ready", "note sending"])
def test_the_cache_may_be_cleared_at_any_moment_of_a_submission(trust: Make, point: str) -> None:
    world = trust()
    world.client(AJ_DEBUG="1", AJ_DEBUG_STOP_AT=point)
    daemon, aj = world.pid(), world.run("under way")
    until(lambda: state_of(daemon) == "T" or aj.ended())
    assert state_of(daemon) == "T", aj.said()
    cleaned = Store(world.folder / "cache").gc(limit=0)
    assert cleaned.removed == ()
    os.kill(daemon, signal.SIGCONT)
    code, document = aj.wait()
    assert (code, document.get("status")) == (0, "submitted"), document
    check_truth(world, world.client(), "under")
    assert [entry.size for entry in Store(world.folder / "cache").gc(limit=0).removed] == [document["archive"]["size"]]


def test_a_found_archive_is_kept_while_the_rest_of_the_submission_is_made(trust: Make) -> None:
    world = trust()
    world.client()
    assert world.run("first").wait()[0] == 0
    world.kill_daemon()
    world.client(AJ_DEBUG="1", AJ_DEBUG_STOP_AT="step facts")
    daemon, aj = world.pid(), world.run("second")
    until(lambda: state_of(daemon) == "T" or aj.ended())
    assert state_of(daemon) == "T", aj.said()
    assert Store(world.folder / "cache").gc(limit=0).removed == ()
    os.kill(daemon, signal.SIGCONT)
    code, document = aj.wait()
    assert (code, document["archive"]["reused"]) == (0, True), document


def test_what_waits_in_another_projects_queue_stays(trust: Make) -> None:
    """The daemon that would send it is stopped; another one, of another project, cleans the cache that both use."""
    world = trust()
    world.client(AJ_DEBUG="1", AJ_DEBUG_STOP_AT="ready")
    daemon, aj = world.pid(), world.run("waiting", "double", "--queue")
    until(lambda: state_of(daemon) == "T")
    elsewhere = partial(world.aj, cwd=world.new_project("other"), AJ_RUNTIME_DIR=str(world.folder / "other run"))
    try:
        _, shown = elsewhere("cache", "show").wait()
        assert [row["in_use"] for row in shown["archives"]] == [True]
        for how in ((), ("--dry-run",)):
            code, cleaned = elsewhere("cache", "gc", "--max-size", "0", "--unused", "1", *how).wait()
            assert (code, cleaned["removed"], cleaned["left_archives"]) == (0, [], 1)
    finally:
        elsewhere("daemon", "stop", "--force").wait()
        os.kill(daemon, signal.SIGCONT)
    assert aj.wait()[0] == 0
    check_truth(world, world.client(), "waiting")
