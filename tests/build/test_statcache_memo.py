"""The stat cache spares reading, and never makes a digest wrong."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aj.build import statcache
from aj.build.select import Selection, select, tree_digest
from aj.build.statcache import StatCache
from aj.shared.model import nowhere
from aj.shared.paths import Home

STEP_NS = 20_000_000
"""More than a tick of any kernel, so that tests need not wait for two seconds."""
opened: list[bytes] | None = None


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if opened is not None and event == "open" and isinstance(arguments[0], str | bytes):
        opened.append(os.fsencode(arguments[0]))


sys.addaudithook(_note)


@pytest.fixture(autouse=True)
def quick_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statcache, "CLOCK_STEP_NS", STEP_NS)


def settle() -> None:
    time.sleep(2 * STEP_NS / 1e9)


def scan(root: Path, cache: StatCache, *ignore: str) -> Selection:
    return select(root, Home(root / ".azure_jobs"), ignore, {}, cache, nowhere)


def reads(call: Callable[[], object]) -> list[bytes]:
    """The names of the files that are opened meanwhile."""
    global opened
    seen: list[bytes] = []
    opened = seen
    try:
        call()
    finally:
        opened = None
    return [os.path.basename(name) for name in seen if name.endswith((b".py", b".pem"))]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    for name in ("a.py", "b.py", "d/c.py", "d/e/k.pem"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    settle()
    return root


def test_an_unchanged_tree_is_not_read_again(root: Path, tmp_path: Path) -> None:
    place = tmp_path / "build" / "stat.cache"
    cache = StatCache(place)
    first = scan(root, cache)
    cache.save()
    again = StatCache(place)
    seen: list[Selection] = []
    assert reads(lambda: seen.append(scan(root, again))) == []
    assert (seen[0].tree, seen[0].entries, seen[0].notices) == (first.tree, first.entries, first.notices)
    assert first.notices, "the remarks are remembered too"
    assert seen[0].tree == tree_digest(first.entries)
    assert place.stat().st_mode & 0o777 == 0o600


def test_only_what_changed_is_read(root: Path) -> None:
    cache = StatCache()
    scan(root, cache)
    (root / "d" / "c.py").write_text("new")
    (root / "d" / "n.py").write_text("new")
    (root / "b.py").unlink()
    assert sorted(reads(lambda: scan(root, cache))) == [b"c.py", b"n.py"]
    assert scan(root, cache).tree == scan(root, StatCache()).tree


def test_other_rules_need_no_reading(root: Path) -> None:
    cache = StatCache()
    whole = scan(root, cache)
    part: list[Selection] = []
    assert reads(lambda: part.append(scan(root, cache, "d/c.py", "k.*"))) == []
    assert [entry.path for entry in part[0].entries] == [b"a.py", b"b.py", b"d/e"]
    assert part[0].tree == scan(root, StatCache(), "d/c.py", "k.*").tree
    assert reads(lambda: part.append(scan(root, cache))) == []
    assert part[1].tree == whole.tree


def test_an_earlier_selection_stays_what_it_was(root: Path) -> None:
    cache = StatCache()
    scan(root, cache)
    early = scan(root, cache)
    (root / "a.py").write_text("other")
    scan(root, cache, "b.py")
    assert tree_digest(early.entries) == early.tree


def test_G04_equal_size_and_mtime_do_not_hide_a_change(root: Path) -> None:
    path = root / "a.py"
    old = path.stat()
    cache = StatCache()
    before = scan(root, cache)
    path.write_text("AAAA")
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
    now = path.stat()
    assert (now.st_size, now.st_mtime_ns) == (old.st_size, old.st_mtime_ns)
    assert scan(root, cache).tree != before.tree


def test_what_was_just_written_is_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within one clock step a second change may look like the first."""
    cache = StatCache()
    scan(root, cache)
    os.utime(root / "a.py")
    with monkeypatch.context() as coarse:
        coarse.setattr(statcache, "CLOCK_STEP_NS", 3600 * 10**9)
        assert [reads(lambda: scan(root, cache)) for _ in range(2)] == [[b"a.py"], [b"a.py"]]
    settle()
    assert reads(lambda: scan(root, cache)) == [b"a.py"]
    assert reads(lambda: scan(root, cache)) == []


def test_a_file_from_the_future_is_remembered(root: Path) -> None:
    later = time.time() + 10**6
    os.utime(root / "a.py", (later, later))
    settle()
    cache = StatCache()
    scan(root, cache)
    assert reads(lambda: scan(root, cache)) == []


@pytest.mark.parametrize("seconds", [-(10**9), 2**33])
def test_times_before_1970_and_after_2106(root: Path, seconds: int) -> None:
    os.utime(root / "a.py", (seconds, seconds))
    settle()
    cache = StatCache()
    before = scan(root, cache)
    assert scan(root, cache).tree == before.tree == scan(root, StatCache()).tree


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "random", "version", "folder"])
def test_a_cache_that_is_not_ours_is_dropped_without_a_word(root: Path, tmp_path: Path, damage: str) -> None:
    place = tmp_path / "stat.cache"
    cache = StatCache(place)
    right = scan(root, cache)
    cache.save()
    content = bytearray(place.read_bytes())
    place.unlink()
    if damage == "folder":
        place.mkdir()
    else:
        middle = len(content) // 2
        content[middle] ^= damage == "flipped"
        content[14] ^= damage == "version"
        chance = random.Random(7)
        written = {"empty": b"", "cut": bytes(content[:middle]), "random": chance.randbytes(5000)}
        place.write_bytes(written.get(damage, bytes(content)))
    again = StatCache(place)
    assert reads(lambda: scan(root, again))
    assert scan(root, again).tree == right.tree
    again.save()


def test_two_processes_at_once_leave_one_whole_cache(root: Path, tmp_path: Path) -> None:
    place = tmp_path / "stat.cache"
    program = f"""
import time
from pathlib import Path
from aj.build import statcache
from aj.build.select import select
from aj.build.statcache import StatCache
from aj.shared.model import nowhere
from aj.shared.paths import Home
statcache.CLOCK_STEP_NS = {STEP_NS}
for turn in range(20):
    Path({str(root)!r}, f"new{{turn}}.py").touch()
    time.sleep({2 * STEP_NS / 1e9})
    cache = StatCache(Path({str(place)!r}))
    select(Path({str(root)!r}), Home(Path("/nowhere")), (), {{}}, cache, nowhere)
    cache.save()
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    children = [subprocess.Popen([sys.executable, "-c", program], env=env) for _ in range(2)]
    assert [child.wait() for child in children] == [0, 0]
    assert scan(root, StatCache(place)).tree == scan(root, StatCache()).tree
    assert [path.name for path in tmp_path.iterdir() if "tmp" in path.name] == []


def test_folders_that_are_gone_are_forgotten_in_time(tmp_path: Path) -> None:
    root, place = tmp_path / "code", tmp_path / "stat.cache"
    for number in range(400):
        (root / f"d{number}").mkdir(parents=True)
        (root / f"d{number}" / "x").touch()
    settle()
    cache = StatCache(place)
    scan(root, cache)
    cache.save()
    large = place.stat().st_size
    for number in range(1, 400):
        (root / f"d{number}" / "x").unlink()
        (root / f"d{number}").rmdir()
    cache = StatCache(place)
    scan(root, cache)
    cache.save()
    assert place.stat().st_size < large / 10


def test_a_cache_that_cannot_be_written_is_no_error(root: Path) -> None:
    cache = StatCache(Path("/proc/nowhere/stat.cache"))
    scan(root, cache)
    cache.save()


NAMES = st.sampled_from(["a.py", "b.py", "d/c.py", "d/e/k.pem", "d/new", "x/y"])
EDITS = st.one_of(
    st.tuples(st.just("write"), NAMES, st.binary(max_size=2)),
    st.tuples(st.just("touch"), NAMES, st.integers(0, 3)),
    st.tuples(st.just("chmod"), NAMES, st.sampled_from([0o644, 0o755, 0o600])),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("unlink"), NAMES, st.none()),
    st.tuples(st.just("link"), NAMES, NAMES),
    st.tuples(st.just("replace"), NAMES, st.binary(max_size=2)),
    st.tuples(st.just("wait"), st.none(), st.none()),
    st.tuples(st.just("scan"), st.sampled_from([(), ("d/",), ("*.py", "!a.py"), ("k*",)]), st.none()),
    st.tuples(st.just("reload"), st.none(), st.none()),
)


def edit(root: Path, kind: str, name: str, value: object) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "write" and isinstance(value, bytes):
        path.write_bytes(value)
    elif kind == "replace" and isinstance(value, bytes):
        (root / "draft").write_bytes(value)
        (root / "draft").replace(path)
    elif kind == "touch" and path.exists():
        os.utime(path, (1_000_000_000 + int(str(value)),) * 2)
    elif kind == "chmod" and path.exists() and isinstance(value, int):
        path.chmod(value)
    elif kind == "unlink":
        path.unlink(missing_ok=True)
    elif kind in ("rename", "link") and path.exists() and isinstance(value, str) and value != name:
        (root / value).parent.mkdir(parents=True, exist_ok=True)
        (root / value).unlink(missing_ok=True)
        path.rename(root / value) if kind == "rename" else os.link(path, root / value)


@settings(max_examples=60)
@given(st.lists(EDITS, min_size=3, max_size=25))
def test_with_any_history_the_cached_digest_is_the_uncached_one(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[str, object, object]]
) -> None:
    root, place = tmp_path_factory.mktemp("code"), tmp_path_factory.mktemp("cache") / "stat.cache"
    cache = StatCache(place)
    for kind, first, second in [*edits, ("scan", (), None)]:
        if kind == "wait":
            settle()
        elif kind == "reload":
            cache.save()
            cache = StatCache(place)
        elif kind == "scan" and isinstance(first, tuple):
            cached, uncached = scan(root, cache, *first), scan(root, StatCache(), *first)
            assert cached.tree == uncached.tree == tree_digest(cached.entries)
            assert cached.entries == uncached.entries
            assert cached.notices == uncached.notices
            assert cached.skipped == uncached.skipped
        else:
            edit(root, kind, str(first), second)
