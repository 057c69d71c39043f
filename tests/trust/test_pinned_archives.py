"""The archive of what is still to be sent stays, whatever dies and whoever clears the cache."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from aj.build.store import Store
from aj.shared.errors import StoreError
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
    kept, other = packed(store, b"kept"), packed(store, b"other")
    witness.touch()
    for _ in range(2):
        store.pin(kept, witness)
    assert Store(tmp_path).gc(limit=0) == len(b"other")
    assert store.path(kept).exists() and not store.path(other).exists()
    witness.unlink()
    assert Store(tmp_path).gc(limit=0) == len(b"kept")
    assert not list(tmp_path.rglob("*.pin-*")) and store.entries() == ()


def test_each_witness_counts(tmp_path: Path) -> None:
    store, witnesses = Store(tmp_path), [tmp_path / name for name in "ab"]
    kept = packed(store, b"kept")
    for witness in witnesses:
        witness.touch()
        store.pin(kept, witness)
    witnesses[0].unlink()
    assert store.gc(limit=0) == 0
    witnesses[1].unlink()
    assert store.gc(limit=0) == 4


def test_what_is_not_there_cannot_be_pinned(tmp_path: Path) -> None:
    for store in (Store(tmp_path / "never used"), Store(tmp_path)):
        with pytest.raises(StoreError, match="is not in the cache"):
            store.pin("0" * 64, tmp_path)
        packed(Store(tmp_path), b"x")


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
    assert store.gc(limit=0) == 0 or world.jobs("queued")
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
    client = world.client(AJ_DEBUG="1", AJ_DEBUG_STOP_AT="pinned")
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
