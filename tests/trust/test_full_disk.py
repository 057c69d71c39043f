"""A full disk: a clear error where it strikes, nothing lost, nothing half, and all is well once there is room."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.trust.world import PATIENCE_SECONDS, TrustWorld, check_files, check_truth, state_of, until

Make = Callable[..., TrustWorld]


def files_up_to(pid: int, size: int) -> None:
    """No file of the process may grow beyond `size` bytes from now on: each such write fails as on a full disk."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


ROOM = resource.RLIM_INFINITY


def test_full_at_the_archive(trust: Make) -> None:
    world = trust()
    (world.project / "data.bin").write_bytes(os.urandom(400_000))
    client = world.client()
    files_up_to(world.pid(), 200_000)
    code, document = world.run("full").wait()
    assert (code, document["status"]) == (1, "failed") and document["error"]["type"] == "StoreError"
    assert "cannot write the cache" in document["error"]["message"] and "make room" in document["error"]["hint"]
    assert not list((world.folder / "cache").rglob("*.tar.gz")) and not list((world.folder / "cache").rglob("*.tmp-*"))
    files_up_to(world.pid(), ROOM)
    assert world.run("room").wait()[0] == 0
    for base in ("full", "room"):
        check_truth(world, client, base)
    client.shutdown()
    check_files(world)


def test_full_at_the_journal(trust: Make) -> None:
    world = trust()
    client = world.client()
    assert world.run("first").wait()[0] == 0
    journal = world.root / "record.jsonl"
    with journal.open("a") as file:
        file.write(" " * 300_000 + "\n")
    files_up_to(world.pid(), journal.stat().st_size)
    aj = world.run("full")
    code, document = aj.wait()
    assert (code, document["status"]) == (0, "submitted")
    assert "cannot write the journal" in aj.said()
    assert len(client.records()) == 1
    files_up_to(world.pid(), ROOM)
    world.kill_daemon(signal.SIGTERM)
    client.queue()
    check_truth(world, client, "full")
    assert [record["id"] for record in client.records()][:1] == [document["id"]] and len(client.records()) == 2


def test_full_at_the_queue_before_anything_is_sent(trust: Make) -> None:
    world = trust()
    client = world.client()
    assert world.run("first").wait()[0] == 0
    files_up_to(world.pid(), 1)
    code, document = world.run("full").wait()
    assert (code, document["status"]) == (1, "failed"), document
    assert document["error"]["type"] == "StoreError" and "queue's database" in document["error"]["message"]
    assert "disk" in document["error"]["hint"]
    files_up_to(world.pid(), ROOM)
    assert world.run("room").wait()[0] == 0
    for base in ("first", "full", "room"):
        check_truth(world, client, base)
    assert len(client.queue()) == 2
    client.shutdown()
    check_files(world)


@pytest.mark.parametrize("point", ["ready", "note sending", "note sent", "executed", "finished"])
def test_full_from_any_point_of_a_submission_on(trust: Make, point: str) -> None:
    """Receipts, the queue and the journal cannot be written any more; the daemon may even be killed then."""
    world = trust()
    world.client(AJ_DEBUG="1", AJ_DEBUG_STOP_AT=point)
    daemon, aj = world.pid(), world.run("full")
    until(lambda: state_of(daemon) == "T")
    files_up_to(daemon, 1)
    os.kill(daemon, signal.SIGCONT)
    if point == "ready":  # it cannot begin, and does not give up
        until(lambda: "trying again" in world.runtime.log.read_text() or not aj.ended())
    else:
        code, document = aj.wait()
        sent = len(world.jobs("full"))
        assert (code, document["status"]) in {(0, "submitted"), (1, "failed"), (4, "unknown")}
        if code in (0, 1):
            assert sent == (code == 0), document
    os.kill(daemon, signal.SIGKILL)
    client = world.client()
    aj.wait()
    check_truth(world, client, "full")
    assert world.run("room").wait()[0] == 0
    world.kill_daemon(signal.SIGTERM)
    check_files(world)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "none", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_really_full_disk_under_project_and_cache(trust: Make, small_disk: Path) -> None:
    world = trust()
    world.project = world.new_project(str(small_disk / "project"))
    world.root, world.remote = world.project / ".azure_jobs", small_disk / "remote"
    world.env["AJ_CACHE_HOME"] = str(small_disk / "cache")
    (world.project / "data.bin").write_bytes(os.urandom(300_000))
    client = world.client()
    assert world.run("first").wait()[0] == 0
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    code, document = world.run("full").wait()
    assert code == 1 and document["status"] == "failed", document
    assert document["error"]["type"] == "StoreError", document
    ballast.unlink()
    world.kill_daemon()
    client = world.client()
    assert world.run("room").wait()[0] == 0
    for base in ("first", "full", "room"):
        check_truth(world, client, base)
    client.wait(client.queue()[0]["id"], PATIENCE_SECONDS)
    client.shutdown()
    check_files(world)
