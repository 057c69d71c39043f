"""The store under bad luck: full disks, kills, and many processes at once."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from aj.build.store import Store
from aj.shared.errors import StoreError
from aj.shared.model import ArchiveRecord

CONTENT = b"x" * 300_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()

PRELUDE = """
import hashlib, os, resource, sys, time
from pathlib import Path
from aj.build.store import Store
from aj.shared.errors import StoreError
from aj.shared.model import ArchiveRecord

CONTENT = b"x" * 300_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
store = Store(Path(sys.argv[1]))

def fill(out):
    out.write(CONTENT)
    return ArchiveRecord(SHA256, len(CONTENT), 1, "0" * 64, 1)

def say(word):
    print(word, flush=True)
"""
HALF = (
    PRELUDE
    + """
def half(out):
    out.write(CONTENT[:1000])
    say("half")
    sys.stdin.read()
    out.write(CONTENT[1000:])
    return ArchiveRecord(SHA256, len(CONTENT), 1, "0" * 64, 1)

store.add(half)
"""
)


def fill(out: BinaryIO) -> ArchiveRecord:
    out.write(CONTENT)
    return ArchiveRecord(SHA256, len(CONTENT), 1, "0" * 64, 1)


def start(script: str, folder: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(
        [sys.executable, "-c", script, folder], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@contextmanager
def running(script: str, folder: Path, first_word: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has said its first word; killed at the end if it still runs."""
    with start(script, folder) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == first_word
            yield process
        finally:
            process.kill()


def files_of(store: Path) -> set[str]:
    return {path.name for path in (store / "archives").iterdir()} - {"lock"}


def test_a_full_disk_is_a_store_error_and_leaves_nothing(tmp_path: Path) -> None:
    script = (
        PRELUDE
        + """
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    store.add(fill)
except StoreError as error:
    say(f"{error} | {error.hint}")
"""
    )
    with start(script, tmp_path) as process:
        said, _ = process.communicate()
    assert process.returncode == 0
    assert said.startswith("cannot write the cache")
    assert "AJ_CACHE_HOME" in said
    assert files_of(tmp_path) == set()


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(out: BinaryIO) -> ArchiveRecord:
        out.write(CONTENT)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path).add(interrupted)
    assert files_of(tmp_path) == set()


@pytest.mark.parametrize("next_use", [lambda store: store.add(fill), lambda store: store.gc()])
def test_G13_a_kill_leaves_a_temporary_file_that_the_next_use_removes(
    tmp_path: Path, next_use: Callable[[Store], object]
) -> None:
    with running(HALF, tmp_path, "half") as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        (left,) = files_of(tmp_path)
        assert f".tmp-{process.pid}" in left
    store = Store(tmp_path)
    assert not store.has(SHA256)
    assert store.entries() == ()
    next_use(store)
    assert left not in files_of(tmp_path)


def test_the_temporary_file_of_a_living_process_stays(tmp_path: Path) -> None:
    with running(HALF, tmp_path, "half") as process:
        Store(tmp_path).gc(0)
        Store(tmp_path).add(fill)
        assert any(f".tmp-{process.pid}" in name for name in files_of(tmp_path))
        process.communicate("")
    assert process.returncode == 0
    assert files_of(tmp_path) == {f"{SHA256}.tar.gz", f"{SHA256}.seen"}


def test_G06_eight_processes_add_the_same_archive_at_once(tmp_path: Path) -> None:
    script = (
        PRELUDE
        + """
say("ready")
sys.stdin.readline()
record = store.add(fill)
with store.lease(record.sha256) as path:
    say(hashlib.sha256(path.read_bytes()).hexdigest())
"""
    )
    processes = [start(script, tmp_path) for _ in range(8)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    said = [process.communicate("go\n")[0].strip() for process in processes]
    assert said == [SHA256] * 8
    assert files_of(tmp_path) == {f"{SHA256}.tar.gz", f"{SHA256}.seen"}


def test_gc_leaves_what_another_process_has_leased_until_that_dies(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(fill)
    script = (
        PRELUDE
        + """
with store.lease(SHA256):
    say("leased")
    sys.stdin.read()
"""
    )
    with running(script, tmp_path, "leased") as process:
        assert store.gc(0).freed == 0
        assert store.has(SHA256)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert store.gc(0).freed == len(CONTENT)


def test_a_lease_holds_against_gc_and_rebuilding_in_other_processes(tmp_path: Path) -> None:
    """Whoever got a lease sees the right file until the end of it; nothing else may happen."""
    cleaner = (
        PRELUDE
        + """
say("ready")
while True:
    store.gc(0)
    store.add(fill)
"""
    )
    store = Store(tmp_path)
    leases = 0
    with running(cleaner, tmp_path, "ready"), running(cleaner, tmp_path, "ready"):
        while leases < 40:
            try:
                with store.lease(SHA256) as path:
                    for _ in range(5):
                        assert path.stat().st_size == len(CONTENT)
                    assert path.read_bytes() == CONTENT
                    leases += 1
            except StoreError as error:
                assert "is not in the cache" in str(error)
