"""The store: what is added comes back, what is damaged goes, what is used stays, what is old makes room."""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from aj.build.archive import pack
from aj.build.select import select
from aj.build.statcache import StatCache
from aj.build.store import LIMIT, Store, Stored
from aj.shared.errors import CodeError, StoreError
from aj.shared.model import ArchiveRecord, Event, nowhere
from aj.shared.paths import Home

Fill = Callable[[BinaryIO], ArchiveRecord]


def filling(content: bytes) -> Fill:
    def fill(out: BinaryIO) -> ArchiveRecord:
        out.write(content)
        return ArchiveRecord(hashlib.sha256(content).hexdigest(), len(content), 1, "0" * 64, 1)

    return fill


def files_of(store: Path) -> set[str]:
    """What lies in the store, its lock aside."""
    return {path.name for path in (store / "archives").iterdir()} - {"lock"}


def flip_a_bit(path: Path) -> None:
    """Size and mtime stay."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    with path.open("r+b") as out:
        out.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def settled(store: Store, sha256: str) -> None:
    """Verify once the archive is older than a step of the clock, so that the store remembers its looks."""
    time.sleep(0.05)
    assert store.has(sha256)


def test_an_archive_of_real_code_comes_back(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    selection = select(tmp_path / "code", Home(tmp_path / "home"), (), {}, StatCache(), nowhere)
    store = Store(tmp_path / "cache")
    record = store.add(lambda out: pack(selection, out, nowhere))
    assert store.has(record.sha256)
    assert store.path(record.sha256) == tmp_path / "cache" / "archives" / f"{record.sha256}.tar.gz"
    with store.lease(record.sha256) as path:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == record.sha256
        assert b"print(1)" in gzip.decompress(path.read_bytes())
    assert (record.files, record.tree, record.size) == (1, selection.tree, path.stat().st_size)


def test_everything_in_the_store_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = Store(tmp_path / "new" / "cache")
        settled(store, store.add(filling(b"content")).sha256)
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new" / "cache").rglob("*")}
    assert modes.pop(tmp_path / "new" / "cache" / "archives") == 0o700
    assert set(modes.values()) == {0o600}


def test_an_open_store_folder_is_closed(tmp_path: Path) -> None:
    (tmp_path / "archives").mkdir(mode=0o755)
    Store(tmp_path).add(filling(b"content"))
    assert stat.S_IMODE((tmp_path / "archives").stat().st_mode) == 0o700


def test_a_store_that_was_never_used_is_empty(tmp_path: Path) -> None:
    store = Store(tmp_path / "none")
    assert (store.has("0" * 64), store.entries(), store.gc().freed) == (False, (), 0)
    assert not (tmp_path / "none").exists()


def test_an_equal_archive_is_kept_as_it_is(tmp_path: Path) -> None:
    store = Store(tmp_path)
    sha256 = store.add(filling(b"same")).sha256
    before = store.path(sha256).stat()
    assert store.add(filling(b"same")).sha256 == sha256
    after = store.path(sha256).stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


@pytest.mark.parametrize("name", ["", "..", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 65, "0" * 64 + "\n"])
def test_only_digests_name_archives(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="is not the SHA-256"):
        Store(tmp_path).has(name)


def test_a_record_that_does_not_fit_its_bytes_publishes_nothing(tmp_path: Path) -> None:
    def fill(out: BinaryIO) -> ArchiveRecord:
        out.write(b"other bytes")
        return ArchiveRecord("0" * 64, 11, 1, "0" * 64, 1)

    with pytest.raises(StoreError, match="does not fit"):
        Store(tmp_path).add(fill)
    assert files_of(tmp_path) == set()


def test_a_failure_of_the_packing_leaves_nothing(tmp_path: Path) -> None:
    def fill(out: BinaryIO) -> ArchiveRecord:
        out.write(b"half")
        raise CodeError("no")

    with pytest.raises(CodeError, match="no"):
        Store(tmp_path).add(fill)
    assert files_of(tmp_path) == set()


def test_G13_a_bit_flip_is_found_removed_and_packed_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    sha256 = store.add(filling(b"x" * 10_000)).sha256
    settled(store, sha256)
    flip_a_bit(store.path(sha256))
    events: list[Event] = []
    assert not store.has(sha256, events.append)
    assert [event.kind for event in events] == ["warning"]
    assert sha256 in events[0].detail
    assert not store.path(sha256).exists()
    assert store.add(filling(b"x" * 10_000)).sha256 == sha256
    assert store.has(sha256)


def test_G13_a_bit_flip_right_after_the_writing_is_found_too(tmp_path: Path) -> None:
    store = Store(tmp_path)
    sha256 = store.add(filling(b"x" * 10_000)).sha256
    assert store.has(sha256)
    flip_a_bit(store.path(sha256))
    assert not store.has(sha256)


def test_G13_adding_over_a_damaged_archive_repairs_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    sha256 = store.add(filling(b"x" * 10_000)).sha256
    flip_a_bit(store.path(sha256))
    store.add(filling(b"x" * 10_000))
    assert store.has(sha256)


def test_a_verified_archive_is_not_read_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    sha256 = store.add(filling(b"x" * 10_000)).sha256
    settled(store, sha256)
    opened = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from aj.build.store import Store\n"
            "sys.addaudithook(lambda event, args: event == 'open' and print(args[0]))\n"
            "assert Store(Path(sys.argv[1])).has(sys.argv[2])",
            tmp_path,
            sha256,
        ],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"{sha256}.seen" in opened
    assert ".tar.gz" not in opened


@pytest.mark.parametrize("memo", [b"", b"\xff\x00random", b"[1, 2, 3, 4]", b"null", b'{"a": 1}'])
def test_G06_a_broken_memo_costs_a_hashing_and_nothing_else(tmp_path: Path, memo: bytes) -> None:
    store = Store(tmp_path)
    sha256 = store.add(filling(b"x" * 10_000)).sha256
    settled(store, sha256)
    (tmp_path / "archives" / f"{sha256}.seen").write_bytes(memo)
    assert store.has(sha256)
    flip_a_bit(store.path(sha256))
    (tmp_path / "archives" / f"{sha256}.seen").write_bytes(memo)
    assert not store.has(sha256)


def test_G08_a_deleted_archive_is_rebuilt_with_the_same_digest(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    selection = select(tmp_path / "code", Home(tmp_path / "home"), (), {}, StatCache(), nowhere)
    store = Store(tmp_path / "cache")
    first = store.add(lambda out: pack(selection, out, nowhere))
    store.path(first.sha256).unlink()
    assert not store.has(first.sha256)
    assert store.add(lambda out: pack(selection, out, nowhere)) == first
    assert store.has(first.sha256)


def test_a_lease_of_what_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not in the cache") as caught, Store(tmp_path).lease("0" * 64):
        pass
    assert caught.value.hint


def used(store: Store, sha256: str, second: int) -> None:
    """Let the last use of an archive be so many seconds after 1970."""
    os.utime(store.path(sha256).with_name(f"{sha256}.seen"), (second, second))


def three(store: Store) -> list[str]:
    """Three archives of 1,000 bytes, the first used last."""
    added = [store.add(filling(bytes([number]) * 1000)).sha256 for number in range(3)]
    for second, sha256 in enumerate(reversed(added)):
        used(store, sha256, second)
    return added


def test_entries_come_with_size_and_last_use(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second, third = three(store)
    assert store.entries() == (
        Stored(third, 1000, 0),
        Stored(second, 1000, 10**9),
        Stored(first, 1000, 2 * 10**9),
    )


def test_gc_removes_the_least_recently_used_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second, third = three(store)
    assert store.gc(3000).freed == 0
    assert store.gc(2500).freed == 1000
    assert [store.has(sha256) for sha256 in (first, second, third)] == [True, True, False]
    used(store, first, 0)
    used(store, second, 1)
    assert store.gc(1000).freed == 1000
    assert [entry.sha256 for entry in store.entries()] == [second]
    assert store.gc(0).freed == 1000
    assert files_of(tmp_path) == set()


@pytest.mark.parametrize("touch", ["has", "lease", "add"])
def test_every_use_counts(tmp_path: Path, touch: str) -> None:
    store = Store(tmp_path)
    _, second, third = three(store)
    if touch == "has":
        assert store.has(third)
    elif touch == "lease":
        with store.lease(third):
            pass
    else:
        store.add(filling(bytes([2]) * 1000))
    store.gc(2000)
    assert store.has(third)
    assert not store.has(second)


def test_using_an_archive_leaves_its_own_times_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    sha256 = store.add(filling(b"content")).sha256
    before = store.path(sha256).stat()
    with store.lease(sha256):
        store.has(sha256)
    after = store.path(sha256).stat()
    assert (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)


def test_gc_never_removes_what_is_leased_here(tmp_path: Path) -> None:
    store = Store(tmp_path)
    sha256 = store.add(filling(b"content")).sha256
    with store.lease(sha256) as path, Store(tmp_path).lease(sha256):
        assert store.gc(0).freed == 0
        assert path.exists()
    assert store.gc(0).freed == 7


def test_add_makes_room_but_keeps_what_it_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    monkeypatch.setattr(Store.gc, "__defaults__", (1500,))
    old = store.add(filling(b"a" * 1000)).sha256
    new = store.add(filling(b"b" * 1000)).sha256
    assert not store.has(old)
    assert store.has(new)
    huge = store.add(filling(b"c" * 5000)).sha256
    assert store.has(huge)
    assert LIMIT == 20 * 2**30


def test_a_store_of_somebody_else_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    store = Store(tmp_path / "cache")
    sha256 = store.add(filling(b"content")).sha256
    os.chown(tmp_path / "cache" / "archives", 65534, 65534)
    for use in (lambda: store.has(sha256), lambda: store.add(filling(b"b")), lambda: store.gc(0)):
        with pytest.raises(StoreError, match="belongs to another user") as caught:
            use()
        assert "AJ_CACHE_HOME" in str(caught.value.hint)


def test_a_cache_below_a_file_is_a_store_error_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write the cache") as caught:
        Store(tmp_path / "file" / "cache").add(filling(b"a"))
    assert "AJ_CACHE_HOME" in str(caught.value.hint)


def test_a_read_only_cache_serves_what_it_has_and_refuses_more() -> None:
    """In a process of its own: root, whom no permission stops, becomes nobody there."""
    script = """
import hashlib, os, tempfile
from pathlib import Path
from aj.build.store import Store
from aj.shared.errors import StoreError
from aj.shared.model import ArchiveRecord

def fill(out):
    out.write(b"content")
    return ArchiveRecord(hashlib.sha256(b"content").hexdigest(), 7, 1, "0" * 64, 1)

if os.geteuid() == 0:
    os.setuid(65534)
with tempfile.TemporaryDirectory() as folder:
    store = Store(Path(folder))
    sha256 = store.add(fill).sha256
    (Path(folder) / "archives").chmod(0o500)
    os.chmod(folder, 0o500)
    print(store.has(sha256))
    with store.lease(sha256) as path:
        print(path.read_bytes().decode())
    try:
        Store(Path(folder) / "sub").add(fill)
    except StoreError as error:
        print(error, "|", error.hint)
    os.chmod(folder, 0o700)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ran = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert ran.stderr == ""
    present, content, error = ran.stdout.splitlines()
    assert (present, content) == ("True", "content")
    assert error.startswith("cannot write the cache")
    assert "AJ_CACHE_HOME" in error
