"""What was packed comes out again: by GNU tar, bsdtar, busybox and Python, for any tree."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aj.build.archive import BLOCK, pack
from aj.build.rules import BUILT_IN, IGNORE_FILES
from aj.build.select import select
from aj.build.statcache import StatCache
from aj.shared.model import nowhere
from aj.shared.paths import Home

NOT_PACKED = {b".", b"..", b".ssh", *BUILT_IN, *(name.encode() for name in IGNORE_FILES)}
"""Names that the selection treats in their own way."""
Tree = dict[bytes, tuple[str, bytes, int]]
"""Path -> kind, content or target, permissions of files."""


def archive_of(root: Path, place: Path) -> Path:
    with place.open("wb") as out:
        pack(select(root, Home(root / "no-home"), (), {}, StatCache(), nowhere), out, nowhere)
    return place


def tree_of(root: Path) -> Tree:
    found: Tree = {}
    top = os.open(root, os.O_RDONLY)
    try:
        for folder, folders, files, at in os.fwalk(b".", dir_fd=top):
            for name in folders + files:
                path = os.path.join(folder, name)[2:]
                mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
                if stat.S_ISLNK(mode):
                    found[path] = ("link", os.readlink(name, dir_fd=at), 0)
                elif stat.S_ISDIR(mode):
                    found[path] = ("folder", b"", 0)
                else:
                    with open(os.open(name, os.O_RDONLY, dir_fd=at), "rb") as file:
                        found[path] = ("file", file.read(), stat.S_IMODE(mode))
    finally:
        os.close(top)
    return found


def put(root: Path, path: bytes, content: bytes = b"", mode: int = 0o644) -> None:
    file = os.path.join(os.fsencode(root), path)
    os.makedirs(os.path.dirname(file), exist_ok=True)
    with open(file, "wb") as out:
        out.write(content)
    os.chmod(file, mode)


def link(root: Path, path: bytes, target: bytes) -> None:
    os.symlink(target, os.path.join(os.fsencode(root), path))


def hard_tree(root: Path) -> Path:
    """Long and short names of every kind, more than two blocks of data, links to both."""
    for name in (
        b"plain.txt",
        b"caf\xc3\xa9.txt",
        b"raw\xff\xfe.bin",
        b"new\nline",
        b"tab\t",
        b"a b'c.py",
        b"-rf",
        b"b\\s",
    ):
        put(root, name, name)
    for name in (b"n" * 100, b"m" * 101, b"l" * 255, b"\xc3\xa9" * 80, b"q" * 100 + b"\xff" + b"z" * 20):
        put(root, name, name)
        put(root, b"d" * 60 + b"/" + name, name)
    put(root, b"/".join([b"level%02d" % level + b"x" * 20 for level in range(40)]) + b"/leaf", b"deep")
    put(root, b"p" * 155 + b"/" + b"n" * 100, b"split")
    put(root, b"big.bin", os.urandom(BLOCK) * 2 + b"end")
    put(root, b"zeros.bin", bytes(3 * BLOCK))
    put(root, b"run.sh", b"#!/bin/sh\n", 0o755)
    put(root, b"none", b"")
    os.makedirs(os.path.join(os.fsencode(root), b"empty/" + b"e" * 150))
    link(root, b"lib", b"plain.txt")
    link(root, b"dangling", b"nowhere")
    link(root, b"to-long", b"./" * 70 + b"plain.txt")
    link(root, b"to-raw", b"q" * 100 + b"\xff" + b"z" * 20)
    link(root, b"k" * 120, b"l" * 255)
    return root


def unpack_by(*command: str) -> Callable[[Path, Path, str], None]:
    def unpack(archive: Path, into: Path, locale: str) -> None:
        if shutil.which(command[0]) is None:
            pytest.skip(f"no {command[0]} on this machine")
        line = [word.replace("ARCHIVE", str(archive)) for word in command]
        ran = subprocess.run(line, cwd=into, env={**os.environ, "LC_ALL": locale}, capture_output=True, check=False)
        assert ran.returncode == 0, ran.stderr

    return unpack


def unpack_by_python(archive: Path, into: Path, locale: str) -> None:
    del locale
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")


READERS = {
    "gnu": unpack_by("tar", "xzf", "ARCHIVE"),
    "gnu-umask-077": unpack_by("bash", "-c", "umask 077; tar xpzf ARCHIVE"),
    "gnu-pipe": unpack_by("bash", "-o", "pipefail", "-c", "gzip -dc ARCHIVE | tar x"),
    "bsd": unpack_by("bsdtar", "xzf", "ARCHIVE"),
    "busybox": unpack_by("busybox", "tar", "xzf", "ARCHIVE"),
    "python": unpack_by_python,
}


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
@pytest.mark.parametrize("reader", READERS)
def test_A09_every_reader_restores_a_hard_tree(tmp_path: Path, reader: str, locale: str) -> None:
    if (reader, locale) == ("bsd", "C"):
        pytest.skip("bsdtar unpacks long names beyond ASCII in the C locale too, but then ends with status 1")
    (tmp_path / "tree").mkdir()
    (tmp_path / "out").mkdir()
    tree = hard_tree(tmp_path / "tree")
    READERS[reader](archive_of(tree, tmp_path / "code.tar.gz"), tmp_path / "out", locale)
    assert tree_of(tmp_path / "out") == tree_of(tree)


def test_folders_are_open_to_others_after_unpacking_under_umask_077(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "out").mkdir()
    put(tmp_path / "tree", b"a/b/c.txt", b"c")
    READERS["gnu-umask-077"](archive_of(tmp_path / "tree", tmp_path / "code.tar.gz"), tmp_path / "out", "C")
    assert {stat.S_IMODE((tmp_path / "out" / name).stat().st_mode) for name in ("a", "a/b")} == {0o755}


def test_gzip_itself_accepts_the_blocks(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    archive = archive_of(hard_tree(tmp_path / "tree"), tmp_path / "code.tar.gz")
    subprocess.run(["gzip", "-t", archive], check=True)
    plain = subprocess.run(["gzip", "-dc", archive], check=True, capture_output=True).stdout
    assert plain == gzip.decompress(archive.read_bytes())


_component = st.one_of(
    st.binary(min_size=1, max_size=20),
    st.sampled_from([b"n" * 100, b"m" * 101, b"l" * 255, b"\n", b" ", b"-rf", "é".encode() * 60, b"\xff" * 120]),
).filter(lambda name: not {*name} & {0, ord("/")} and name not in NOT_PACKED)
_path = st.lists(_component, min_size=1, max_size=7).map(tuple)
_leaf = st.one_of(
    st.tuples(st.just("file"), st.binary(max_size=2000), st.sampled_from([0o644, 0o755])),
    st.tuples(st.just("folder"), st.just(b""), st.just(0)),
    st.tuples(st.just("link"), _component, st.just(0)),
)


def build(root: Path, leaves: list[tuple[tuple[bytes, ...], tuple[str, bytes, int]]]) -> None:
    for parts, (kind, content, mode) in leaves:
        path = os.path.join(os.fsencode(root), *parts)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if os.path.lexists(path):
                continue
            if kind == "file":
                put(root, b"/".join(parts), content, mode)
            elif kind == "folder":
                os.mkdir(path)
            else:
                os.symlink(content, path)
        except OSError:
            # A drawn path that leads through a drawn file or a dangling link cannot be made.
            continue


@settings(max_examples=40)
@given(st.dictionaries(_path, _leaf, max_size=12))
def test_unpacking_what_was_packed_gives_the_tree(leaves: dict[tuple[bytes, ...], tuple[str, bytes, int]]) -> None:
    # The order of the two builds is opposite: nothing of it may reach the bytes.
    with tempfile.TemporaryDirectory() as folder:
        one, two, out = Path(folder, "one"), Path(folder, "a longer name", "two"), Path(folder, "out")
        for root in (one, two, out):
            root.mkdir(parents=True)
        build(one, list(leaves.items()))
        tree = tree_of(one)
        build(two, [(tuple(path.split(b"/")), leaf) for path, leaf in reversed(tree.items())])
        archive = archive_of(one, Path(folder, "one.tar.gz"))
        assert archive.read_bytes() == archive_of(two, Path(folder, "two.tar.gz")).read_bytes()
        with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as tar:
            tar.extractall(out, filter="fully_trusted")
        assert tree_of(out) == tree
