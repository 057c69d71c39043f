"""Trees that mean harm or had an accident: nothing hangs, leaks, leaves the tree or goes missing unseen."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aj.build.select import Selection, explain, select
from aj.build.statcache import StatCache
from aj.shared.errors import CodeError, NotFoundError
from aj.shared.model import nowhere
from aj.shared.paths import Home, shown

opened: list[str] | None = None


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if opened is not None and event in ("open", "os.scandir", "os.listdir"):
        opened.append(os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes) else "")


sys.addaudithook(_note)


@contextmanager
def watched() -> Iterator[list[str]]:
    """Every path that is opened or listed meanwhile."""
    global opened
    opened = []
    try:
        yield opened
    finally:
        opened = None


def scan(root: Path, *ignore: str, cache: StatCache | None = None) -> Selection:
    return select(root, Home(root / ".azure_jobs"), ignore, {}, cache or StatCache(), nowhere)


def paths(selection: Selection) -> list[bytes]:
    return [entry.path for entry in selection.entries]


def test_I10_an_excluded_folder_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    bad = tmp_path / "big"
    bad.mkdir()
    (bad / "python").symlink_to("/nowhere")
    os.mkfifo(bad / "fifo")
    (bad / "closed").mkdir(mode=0)
    with (bad / "sparse").open("wb") as out:
        out.truncate(5 << 30)
    with watched() as seen:
        found = scan(tmp_path, "big/")
    assert paths(found) == [b"a.py"]
    assert any(name.endswith("a.py") for name in seen)
    assert not [name for name in seen if "big" in name]


def test_the_rest_of_aj_home_is_never_listed(tmp_path: Path) -> None:
    (tmp_path / ".azure_jobs" / "build" / "deep").mkdir(parents=True)
    (tmp_path / ".azure_jobs" / "scripts").mkdir()
    with watched() as seen:
        scan(tmp_path)
    assert not [name for name in seen if "build" in name]


def test_A06_special_files_are_not_opened_and_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    before = scan(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as listening:
        os.chdir(tmp_path)  # the whole path would be too long for a socket
        try:
            listening.bind("sock")
        finally:
            os.chdir(here)
        with watched() as seen:
            found = scan(tmp_path)
    assert found.tree == before.tree
    assert [(skip.path, skip.reason) for skip in found.skipped] == [(b"pipe", "a FIFO"), (b"sock", "a socket")]
    assert "`pipe`, `sock`" in found.notices[0].message
    assert not [name for name in seen if "pipe" in name or "sock" in name]
    assert not scan(tmp_path, "pipe", "sock").notices


@pytest.mark.parametrize(
    "name", [b"\xff\xfe.py", b"new\nline", b" ", b"-rf", b"a b'c.py", b"\x1b[31m", b"x" * 255, b"\\"]
)
def test_names_keep_their_bytes(tmp_path: Path, name: bytes) -> None:
    place = os.path.join(os.fsencode(tmp_path), b"my code")
    os.mkdir(place)
    with open(os.path.join(place, name), "wb") as out:
        out.write(b"x")
    assert paths(scan(tmp_path)) == [b"my code/" + name]


def test_what_is_shown_of_a_strange_name_is_harmless(tmp_path: Path) -> None:
    (tmp_path / "\x1b[31m\n.pem").touch()
    (notice,) = scan(tmp_path).notices
    assert notice.message.isprintable() and "\\x1b" in notice.message


def test_a_tree_deeper_than_any_path_may_be_long(tmp_path: Path) -> None:
    """1,200 levels of 50 bytes: 15 times PATH_MAX."""
    name = "d" * 50
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir(name, dir_fd=fd)
        deeper = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    with os.fdopen(os.open("leaf.py", os.O_WRONLY | os.O_CREAT, dir_fd=fd), "wb") as out:
        out.write(b"print(1)")
    os.symlink("leaf.py", "link", dir_fd=fd)
    os.close(fd)
    try:
        found = scan(tmp_path)
        assert paths(found) == [b"/".join([name.encode()] * 1200 + [leaf]) for leaf in (b"leaf.py", b"link")]
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path / name)], check=True)


def test_A11_links_are_never_walked(tmp_path: Path) -> None:
    root = tmp_path / "code"
    (root / "a" / "sibling").mkdir(parents=True)
    (root / "a" / "sibling" / "f").touch()
    (root / "a" / "loop").symlink_to("..")
    (root / "a" / "self").symlink_to("self")
    (root / "a" / "x").symlink_to("sibling/")
    found = scan(root)
    links = {entry.path: entry.content for entry in found.entries if entry.kind == "link"}
    assert links == {b"a/loop": b"..", b"a/self": b"self", b"a/x": b"sibling/"}
    assert paths(found) == [b"a/loop", b"a/self", b"a/sibling/f", b"a/x"]
    assert not found.notices


def test_A12_all_links_that_leave_the_folder_are_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "code"
    (root / "d").mkdir(parents=True)
    (root / "f.txt").touch()
    (root / "d" / "l").symlink_to("../f.txt")
    trees = set()
    for cwd in (root, tmp_path, Path("/")):
        monkeypatch.chdir(cwd)
        trees.add(scan(root).tree)
    assert len(trees) == 1
    (root / "k").symlink_to("/etc/passwd")
    (root / "d" / "m").symlink_to("../../secret")
    (root / "n").symlink_to(f"../{root.name}/f.txt")
    with pytest.raises(CodeError) as error:
        scan(root)
    assert error.value.message == (
        "3 links leave the code folder: `d/m` -> `../../secret`, `k` -> `/etc/passwd`, `n` -> `../code/f.txt`"
    )
    assert error.value.exit_code == 2 and "/d/m" in str(error.value.hint)
    assert b"d/l" in paths(scan(root, "/d/m", "/k", "n"))


def test_a_link_is_judged_by_where_other_links_lead_it(tmp_path: Path) -> None:
    """`esc -> in/..` looks inside, but `in` leads to the root, whose parent is outside."""
    root = tmp_path / "code"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "in").symlink_to("../..")
    (root / "esc").symlink_to("a/b/in/../x")
    with pytest.raises(CodeError, match="a link leaves the code folder: `esc`"):
        scan(root)
    assert paths(scan(root, "esc")) == [b"a/b/in"]


def test_an_absolute_link_into_the_folder_becomes_relative(tmp_path: Path) -> None:
    trees = set()
    for name in ("one", "two"):
        root = tmp_path / name
        (root / "d" / "e").mkdir(parents=True)
        (root / "f").touch()
        (root / "d" / "e" / "l").symlink_to(root / "f")
        (root / "top").symlink_to(root)
        found = scan(root)
        assert {e.path: e.content for e in found.entries if e.kind == "link"} == {b"d/e/l": b"../../f", b"top": b"."}
        assert len(found.notices) == 2
        trees.add(found.tree)
    assert len(trees) == 1


def test_a_link_to_something_excluded_is_kept_and_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").touch()
    (tmp_path / "l").symlink_to("data/x")
    (tmp_path / "dangling").symlink_to("nowhere")
    found = scan(tmp_path, "data/")
    assert paths(found) == [b"dangling", b"l"]
    (notice,) = found.notices
    assert "`l` leads to `data/x`, which is excluded by code.ignore:1: data/" in notice.message


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_everything_unreadable_is_named_at_once(tmp_path: Path) -> None:
    for name in ("ok.py", "secret.py", "closed/x", "listed/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    tmp_path.chmod(0o755)
    (tmp_path / "secret.py").chmod(0)
    (tmp_path / "closed").chmod(0)
    (tmp_path / "listed").chmod(0o744)
    for parent in tmp_path.parents[:-2]:
        parent.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(CodeError) as error:
            scan(tmp_path)
        assert paths(scan(tmp_path, "secret.py", "closed", "listed/")) == [b"ok.py"]
    finally:
        os.seteuid(0)
    assert error.value.message == "cannot read `closed`, `listed`, `secret.py`: Permission denied"
    assert "ignore" in str(error.value.hint)


def test_a_missing_code_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CodeError, match="cannot be read"):
        scan(tmp_path / "nowhere")


def test_a_code_folder_that_is_a_link_is_walked(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.py").touch()
    (tmp_path / "link").symlink_to("real")
    assert scan(tmp_path / "link").tree == scan(tmp_path / "real").tree


def test_an_ignore_file_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".codeignore")
    (tmp_path / ".amltignore").write_text("*.log")
    (tmp_path / "a.log").touch()
    assert paths(scan(tmp_path)) == [b".amltignore"]


def test_a_tree_that_changes_all_the_time_is_still_scanned(tmp_path: Path) -> None:
    """Files that vanish, turn into other things and grow: no error, and what stands still is there."""
    (tmp_path / "still.py").write_text("x")
    stop = threading.Event()

    def churn() -> None:
        turn = 0
        while not stop.is_set():
            place = tmp_path / f"t{turn % 5}"
            place.write_bytes(b"x" * (turn % 999))
            place.unlink()
            place.mkdir()
            (place / "in").touch()
            (place / "in").unlink()
            place.rmdir()
            place.symlink_to("still.py")
            place.unlink()
            turn += 1

    writer = threading.Thread(target=churn)
    writer.start()
    try:
        cache = StatCache()
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            assert b"still.py" in paths(scan(tmp_path, cache=cache))
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize(
    "path, packed, rule, through",
    [
        ("a.py", True, None, None),
        ("d/keep.log", True, ".codeignore:2: !keep.log", None),
        ("d/x.log", False, ".codeignore:1: *.log", None),
        ("d/data/deep/f", False, "code.ignore:1: data/", b"d/data"),
        (".git/config", False, "built-in: .git", b".git"),
        (".azure_jobs/build/x", False, "built-in: AJ_HOME", b".azure_jobs/build"),
        (".azure_jobs", False, "built-in: AJ_HOME", None),
        (".azure_jobs/scripts/s.sh", True, None, None),
        ("link/x", False, None, b"link"),
        ("pipe", False, None, None),
        ("missing/data/", False, "code.ignore:1: data/", None),
        ("d/../a.py", True, None, None),
    ],
)
def test_explain_names_the_rule_that_decided(
    tmp_path: Path, path: str, packed: bool, rule: str | None, through: bytes | None
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to("d")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / ".codeignore").write_text("*.log\n!keep.log\n")
    for given in (path, str(tmp_path / path) + ("/" if path.endswith("/") else "")):
        found = explain(tmp_path, Home(tmp_path / ".azure_jobs"), ["data/"], given)
        assert (found.packed, found.rule) == (packed, rule)
        assert (f"`{shown(through)}`" if through else "") in found.reason


def test_explain_knows_only_the_code_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        explain(tmp_path, Home(tmp_path / "h"), [], "../x")
