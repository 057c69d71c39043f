"""What must not be packed is refused, what moves is noticed, and a failure in any part ends the whole."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from aj.build.archive import BLOCK, pack
from aj.build.select import Entry, Selection, select
from aj.build.statcache import StatCache
from aj.shared.errors import ArchiveError, CodeChanged, CodeError
from aj.shared.model import Event, nowhere
from aj.shared.paths import Home


def selected(root: Path) -> Selection:
    return select(root, Home(root / ".azure_jobs"), (), {}, StatCache(), nowhere)


def made(root: Path, *entries: Entry) -> Selection:
    return Selection(root=root, entries=entries, skipped=(), notices=(), tree="0" * 64)


def file(path: bytes, content: bytes = b"") -> Entry:
    return Entry(path, "file", 0o644, len(content), hashlib.sha256(content).hexdigest(), content)


def link(path: bytes, target: bytes) -> Entry:
    return Entry(path, "link", 0o777, len(target), hashlib.sha256(target).hexdigest(), target)


def names(selection: Selection) -> list[bytes]:
    out = io.BytesIO()
    pack(selection, out, nowhere)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as tar:
        return [os.fsencode(name) for name in tar.getnames()]


@pytest.mark.parametrize("path", [b"", b"/etc/passwd", b"../up", b"a/../b", b"a//b", b"a/", b"./a", b".", b"a\0b"])
def test_unsafe_paths_are_refused(tmp_path: Path, path: bytes) -> None:
    with pytest.raises(CodeError, match="not a safe path"):
        pack(made(tmp_path, file(path)), io.BytesIO(), nowhere)


@pytest.mark.parametrize("kind", ["link", "file"])
def test_no_member_goes_through_a_link_or_a_file(tmp_path: Path, kind: str) -> None:
    way = link(b"a", b"b") if kind == "link" else file(b"a")
    with pytest.raises(CodeError, match=f"`a/x/y` lies below `a`, which is a {kind}"):
        pack(made(tmp_path, way, file(b"a/x/y")), io.BytesIO(), nowhere)


def test_a_path_is_packed_once(tmp_path: Path) -> None:
    with pytest.raises(CodeError, match="twice"):
        pack(made(tmp_path, file(b"a"), link(b"a", b"b")), io.BytesIO(), nowhere)


@pytest.mark.parametrize(
    "links",
    [
        {b"k": b"/etc/passwd"},
        {b"m": b"../secret"},
        {b"m": b"../../secret"},
        {b"d/m": b"../../secret"},
        {b"m": b""},
        {b"m": b"a\0b"},
        {b"a/b/top": b"../..", b"out": b"a/b/top/.."},
    ],
)
def test_A12_links_that_leave_are_refused_here_too(tmp_path: Path, links: dict[bytes, bytes]) -> None:
    with pytest.raises(CodeError, match="leaves the code folder"):
        pack(made(tmp_path, *(link(path, target) for path, target in links.items())), io.BytesIO(), nowhere)


def test_A11_loops_and_dangling_links_stay_links(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "sibling").mkdir()
    (tmp_path / "a" / "loop").symlink_to("..")
    (tmp_path / "a" / "self").symlink_to("self")
    (tmp_path / "x").symlink_to("sibling/")
    assert names(selected(tmp_path)) == [b"a", b"a/loop", b"a/self", b"sibling", b"x"]


def test_A12_a_link_upwards_is_packed_alike_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code" / "d").mkdir(parents=True)
    (tmp_path / "code" / "f.txt").write_text("f")
    (tmp_path / "code" / "d" / "l").symlink_to("../f.txt")
    archives = set()
    for cwd in (tmp_path, tmp_path / "code", Path("/")):
        monkeypatch.chdir(cwd)
        out = io.BytesIO()
        archives.add(pack(selected(tmp_path / "code"), out, nowhere).sha256)
    assert len(archives) == 1


def appended(path: Path) -> None:
    with path.open("ab") as out:
        out.write(b"more")


def truncated(path: Path) -> None:
    os.truncate(path, 10)


def rewritten(path: Path) -> None:
    """Same size, same mtime."""
    before = path.stat()
    path.write_bytes(b"B" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def removed(path: Path) -> None:
    path.unlink()


def a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_link(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("change", [appended, truncated, rewritten, removed, a_fifo, a_link, a_folder])
def test_A07_a_file_that_is_no_longer_the_selected_one_is_named(tmp_path: Path, change: Callable[[Path], None]) -> None:
    (tmp_path / "log.txt").write_bytes(b"A" * 100)
    selection = selected(tmp_path)
    change(tmp_path / "log.txt")
    with pytest.raises(CodeChanged, match=r"^`log\.txt` changed while it was packed$") as caught:
        pack(selection, io.BytesIO(), nowhere)
    assert isinstance(caught.value, ArchiveError)
    assert caught.value.hint


@pytest.mark.parametrize("change", [appended, truncated])
def test_A07_a_writer_at_work_while_the_file_is_read(tmp_path: Path, change: Callable[[Path], None]) -> None:
    (tmp_path / "log.txt").write_bytes(os.urandom(12 * BLOCK))
    selection = selected(tmp_path)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            change(tmp_path / "log.txt")

    writer = threading.Thread(target=write)

    def start_when_reading(event: Event) -> None:
        if event.completed and not writer.ident:
            writer.start()

    try:
        with pytest.raises(CodeChanged, match=r"`log\.txt`"):
            pack(selection, io.BytesIO(), start_when_reading)
    finally:
        stop.set()
        writer.join()


def test_a_name_from_outside_is_shown_without_its_control_characters(tmp_path: Path) -> None:
    entry = Entry(b"evil\x1b[2J\n\xff", "file", 0o644, 1, "0" * 64)
    with pytest.raises(CodeChanged, match=r"^`evil\\x1b\[2J\\n\\xff` changed"):
        pack(made(tmp_path, entry), io.BytesIO(), nowhere)


class Full(io.BytesIO):
    """A disk that takes `room` bytes."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def write(self, content: object) -> int:
        assert isinstance(content, bytearray)
        self.room -= len(content)
        if self.room < 0:
            raise OSError(28, "No space left on device")
        return len(content)


@pytest.mark.parametrize("room", [0, 2 * BLOCK, 9 * BLOCK])
def test_a_full_disk_ends_the_packing_and_its_threads(tmp_path: Path, room: int) -> None:
    (tmp_path / "noise.bin").write_bytes(os.urandom(10 * BLOCK))
    with pytest.raises(OSError, match="No space left"):
        pack(selected(tmp_path), Full(room), nowhere)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("deflate")]


def test_an_interrupt_ends_the_packing_and_its_threads(tmp_path: Path) -> None:
    (tmp_path / "noise.bin").write_bytes(os.urandom(10 * BLOCK))
    calls = itertools.count()

    def interrupt(event: Event) -> None:
        if next(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(selected(tmp_path), io.BytesIO(), interrupt)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("deflate")]


def test_no_descriptor_is_left_open_by_a_failure(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"A" * 100)
    selection = selected(tmp_path)
    before = set(os.listdir("/dev/fd"))
    appended(tmp_path / "log.txt")
    for _ in range(5):
        with pytest.raises(CodeChanged):
            pack(selection, io.BytesIO(), nowhere)
    assert set(os.listdir("/dev/fd")) == before


def test_a_code_folder_that_is_gone_is_an_archive_error(tmp_path: Path) -> None:
    with pytest.raises(CodeError, match="the code folder cannot be read"):
        pack(made(tmp_path / "gone", file(b"a")), io.BytesIO(), nowhere)
