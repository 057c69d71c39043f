"""The archive's bytes: equal for equal trees, whatever the machine, and in the very layout that is promised."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from aj.build.archive import BLOCK, FORMAT, pack
from aj.build.select import Generated, Selection, select
from aj.build.statcache import StatCache
from aj.build.tar import header
from aj.shared.model import Event, nowhere
from aj.shared.paths import Home

GOLDEN_TAR = "0e7c5b55e66fde4dc4b07909617b4482f3e3fa1ba3bcd9d72e5193dd649329d1"
GOLDEN_ARCHIVE = "b63b4ba16af14e687c017c24615349f0206cf6eb169b6e2197b4c7381a380501"


def selected(root: Path, generated: dict[bytes, Generated] | None = None, ignore: tuple[str, ...] = ()) -> Selection:
    return select(root, Home(root / ".azure_jobs"), ignore, generated or {}, StatCache(), nowhere)


def packed(root: Path, *, threads: int | None = None, ignore: tuple[str, ...] = ()) -> bytes:
    out = io.BytesIO()
    record = pack(selected(root, ignore=ignore), out, nowhere, threads=threads)
    assert (record.sha256, record.size) == (hashlib.sha256(out.getvalue()).hexdigest(), len(out.getvalue()))
    return out.getvalue()


def members(archive: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return tar.getmembers()


def small_tree(root: Path) -> Path:
    """One of each: text, bytes, an executable, a link, an empty folder, long names, names that are not UTF-8."""
    (root / "src" / "deep").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "train.py").write_text("print('one')\n" * 200)
    (root / "src" / "noise.bin").write_bytes(hashlib.shake_256(b"aj").digest(2_500_000))
    (root / "src" / "deep" / ("n" * 120)).write_text("long")
    (root / "src" / ("d" * 100)).mkdir()
    (root / "src" / ("d" * 100) / "split.txt").write_text("fits by its prefix")
    (root / "run.sh").write_text("#!/bin/bash\n")
    (root / "run.sh").chmod(0o755)
    (root / "lib").symlink_to("src/deep")
    Path(os.fsdecode(os.fsencode(root) + b"/raw\xff.txt")).write_text("raw")
    (root / ".ssh").mkdir()
    (root / ".ssh" / "config").write_text("Host *\n")
    return root


def test_golden_archive_of_a_fixed_tree(tmp_path: Path) -> None:
    """Another digest here means another format: raise FORMAT when a library or a change of ours moved it."""
    archive = packed(small_tree(tmp_path / "tree"))
    assert FORMAT == 1
    assert hashlib.sha256(gzip.decompress(archive)).hexdigest() == GOLDEN_TAR
    assert hashlib.sha256(archive).hexdigest() == GOLDEN_ARCHIVE


def test_bytes_do_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "tree")
    (tree / "big.txt").write_bytes(b"0123456789abcdef" * (5 * BLOCK // 16))
    assert packed(tree, threads=1) == packed(tree, threads=2) == packed(tree, threads=7) == packed(tree)


def test_every_gzip_member_holds_one_block(tmp_path: Path) -> None:
    (tmp_path / "zeros").write_bytes(bytes(3 * BLOCK + 5))
    archive = packed(tmp_path)
    assert archive.count(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff") == 4
    assert len(gzip.decompress(archive)) == 512 + 3 * BLOCK + 512 + 1024


@pytest.mark.parametrize("name", ["a.tar.gz", "b.tar.gz"])
def test_A02_gzip_header_has_neither_name_nor_time(tmp_path: Path, name: str) -> None:
    small_tree(tmp_path / "tree")
    with (tmp_path / name).open("wb") as out:
        pack(selected(tmp_path / "tree"), out, nowhere)
    assert (tmp_path / name).read_bytes()[:10].hex() == "1f8b08000000000000ff"
    assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == GOLDEN_ARCHIVE


def test_A03_umask_owner_and_special_bits_leave_no_trace(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        private = small_tree(tmp_path / "private")
    finally:
        os.umask(before)
    special = small_tree(tmp_path / "special")
    (special / "run.sh").chmod(0o4755)
    (special / "empty").chmod(0o1777)
    (special / "train.py").chmod(0o666)
    if os.geteuid() == 0:
        for path in [private, *private.rglob("*")]:
            os.chown(path, 1000, 1000, follow_symlinks=False)
    archive = packed(private)
    assert archive == packed(special) == packed(small_tree(tmp_path / "plain"))
    for member in members(archive):
        private_file = member.isfile() and member.name.startswith(".ssh/")
        assert member.mode in ((0o600,) if private_file else (0o755,) if member.isdir() else (0o644, 0o755))
        assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
        assert (member.mtime, member.pax_headers.get("mtime")) == (0, None)


def test_A04_the_executable_bit_is_content(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "tree")
    before = packed(tree)
    (tree / "train.py").chmod(0o755)
    after = packed(tree)
    assert after != before
    assert [member.mode for member in members(after) if member.name == "train.py"] == [0o755]


def test_A05_hard_links_are_two_files(tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "plain").mkdir()
    (tmp_path / "linked" / "a").write_text("same")
    (tmp_path / "linked" / "b").hardlink_to(tmp_path / "linked" / "a")
    (tmp_path / "plain" / "a").write_text("same")
    (tmp_path / "plain" / "b").write_text("same")
    assert packed(tmp_path / "linked") == packed(tmp_path / "plain")
    assert [(member.name, member.type, member.size) for member in members(packed(tmp_path / "linked"))] == [
        ("a", tarfile.REGTYPE, 4),
        ("b", tarfile.REGTYPE, 4),
    ]
    assert [(m.name, m.size) for m in members(packed(tmp_path / "linked", ignore=("/a",)))] == [("b", 4)]


def test_A06_special_files_are_neither_opened_nor_packed(tmp_path: Path) -> None:
    small_tree(tmp_path / "tree")
    os.mkfifo(tmp_path / "tree" / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(tmp_path / "tree")
    try:
        listener.bind("socket")
    finally:
        os.chdir(here)
        listener.close()
    assert hashlib.sha256(packed(tmp_path / "tree")).hexdigest() == GOLDEN_ARCHIVE


@pytest.mark.parametrize(
    ("path", "length"),
    [
        (b"n" * 100, 512),
        (b"n" * 101, 1536),
        (b"n" * 255, 1536),
        (b"d" * 60 + b"/" + b"n" * 60, 512),
        (b"d" * 155 + b"/" + b"n" * 100, 512),
        (b"d" * 156 + b"/" + b"n" * 99, 1536),
        (b"/".join([b"level%02d" % level + b"x" * 20 for level in range(40)]), 2560),
    ],
)
def test_A09_pax_only_where_ustar_does_not_do(path: bytes, length: int) -> None:
    blocks = header(path, "file", 0o644, size=0)
    assert len(blocks) == length
    with tarfile.open(fileobj=io.BytesIO(blocks + bytes(1024))) as tar:
        assert os.fsencode(tar.getmembers()[0].name) == path


def test_A09_a_long_link_target_takes_a_pax_header() -> None:
    blocks = header(b"link", "link", 0o755, target=b"t" * 150)
    assert len(blocks) == 1536
    with tarfile.open(fileobj=io.BytesIO(blocks + bytes(1024))) as tar:
        assert tar.getmembers()[0].linkname == "t" * 150


@pytest.mark.parametrize(("size", "length"), [((8 << 30) - 1, 512), (8 << 30, 1536), (1 << 43, 1536)])
def test_sizes_of_8_gib_and_more(tmp_path: Path, size: int, length: int) -> None:
    blocks = header(b"weights.bin", "file", 0o644, size=size)
    assert len(blocks) == length
    with tarfile.open(fileobj=io.BytesIO(blocks + bytes(1024))) as tar:
        member = tar.next()
    assert member is not None
    assert member.size == size
    (tmp_path / "cut.tar").write_bytes(blocks)
    listed = subprocess.run(["tar", "tvf", tmp_path / "cut.tar"], capture_output=True, text=True, check=False)
    assert str(size) in listed.stdout


def test_A14_order_and_times_of_the_tree_leave_no_trace(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "one")
    shutil.copytree(tree, tmp_path / "elsewhere" / "two", symlinks=True)
    copy = tmp_path / "elsewhere" / "two"
    for path in sorted(copy.rglob("*"), reverse=True):
        if path.is_file() and not path.is_symlink():
            content, mode = path.read_bytes(), path.stat().st_mode
            path.unlink()
            path.write_bytes(content)
            path.chmod(mode)
            os.utime(path, (time.time() - 0.5, 1.5))
    archive = packed(tree)
    assert packed(copy) == archive
    names = [os.fsencode(member.name) for member in members(archive)]
    assert names == sorted(names)
    assert not any("atime" in member.pax_headers or "ctime" in member.pax_headers for member in members(archive))


def test_I16_awkward_names_are_packed_unchanged(tmp_path: Path) -> None:
    code = tmp_path / "my code"
    (code / "src" / "d").mkdir(parents=True)
    for name in ("a b'c.py", "-rf.py", "src/d/c.py", "src/b.txt", "new\nline.py"):
        (code / name).write_text(name)
    names = [member.name for member in members(packed(code, ignore=("*", "!*/", "!*.py")))]
    assert names == ["-rf.py", "a b'c.py", "new\nline.py", "src", "src/d", "src/d/c.py"]


def test_generated_files_are_packed_from_memory(tmp_path: Path) -> None:
    (tmp_path / "aj_runner.sh").write_text("the project's own")
    generated = {b"aj_runner.sh": Generated(b"aj's", 0o4777), b"new/.ssh/id": Generated(b"key", 0o600)}
    out = io.BytesIO()
    record = pack(selected(tmp_path, generated), out, nowhere)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as tar:
        runner = tar.extractfile("aj_runner.sh")
        assert runner is not None
        assert runner.read() == b"aj's"
        assert [(m.name, m.mode) for m in tar] == [
            ("aj_runner.sh", 0o755),
            ("new", 0o755),
            ("new/.ssh", 0o755),
            ("new/.ssh/id", 0o600),
        ]
    assert record.files == 2


def test_an_empty_tree_is_an_archive_too(tmp_path: Path) -> None:
    archive = packed(tmp_path)
    assert members(archive) == []
    assert gzip.decompress(archive) == bytes(1024)


def test_I11_another_process_locale_and_folder_give_the_same_bytes(tmp_path: Path) -> None:
    small_tree(tmp_path / "tree")
    script = (
        "import hashlib, io, os, sys; from pathlib import Path\n"
        "from aj.build.archive import pack; from aj.build.select import select\n"
        "from aj.build.statcache import StatCache\n"
        "from aj.shared.model import nowhere; from aj.shared.paths import Home\n"
        "root = Path(sys.argv[1]); out = io.BytesIO()\n"
        "pack(select(root, Home(root / '.azure_jobs'), (), {}, StatCache(), nowhere), out, nowhere)\n"
        "print(hashlib.sha256(out.getvalue()).hexdigest())\n"
    )
    for locale, seed in (("C", "1"), ("C.UTF-8", "2"), ("POSIX", "3")):
        env = {
            **os.environ,
            "LC_ALL": locale,
            "PYTHONHASHSEED": seed,
            "TZ": "Asia/Tokyo",
            "PYTHONPATH": os.fspath(Path.cwd()),
        }
        ran = subprocess.run(
            [sys.executable, "-c", script, tmp_path / "tree"],
            cwd="/",
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.strip() == GOLDEN_ARCHIVE


def test_progress_counts_the_bytes_that_were_read(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "tree")
    (tree / "big.bin").write_bytes(bytes(9 << 20))
    events: list[Event] = []
    total = sum(entry.size for entry in selected(tree).entries if entry.kind == "file")
    pack(selected(tree), io.BytesIO(), events.append)
    completed = [event.completed or 0 for event in events]
    assert {(event.kind, event.total) for event in events} == {("pack", total)}
    assert completed == sorted(completed)
    assert (completed[0], completed[-1]) == (0, total)
    assert 3 <= len(events) <= 110
