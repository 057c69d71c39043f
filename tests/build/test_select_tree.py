"""What a folder's code is: which files, with which modes, under which digest."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from aj.build.select import Entry, Generated, Selection, select, tree_digest
from aj.build.statcache import StatCache
from aj.shared.errors import CodeError
from aj.shared.model import Event, nowhere
from aj.shared.paths import Home


def grow(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files; a name that ends in `/` is an empty folder."""
    for name, content in files.items():
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def scan(
    root: Path,
    *ignore: str,
    home: Path | None = None,
    generated: Mapping[bytes, Generated] | None = None,
    cache: StatCache | None = None,
) -> Selection:
    place = Home(home or root / ".azure_jobs")
    return select(root, place, ignore, generated or {}, cache or StatCache(), nowhere)


def paths(selection: Selection) -> list[str]:
    return [os.fsdecode(entry.path) for entry in selection.entries]


def entry(selection: Selection, path: str) -> Entry:
    return next(entry for entry in selection.entries if entry.path == os.fsencode(path))


def test_built_in_exclusions_stay_at_any_depth_and_as_file_folder_or_link(tmp_path: Path) -> None:
    """I13: `.git` as folder and as file, `.hg`; and what tools make again."""
    grow(
        tmp_path,
        {
            "train.py": "",
            ".git/HEAD": "",
            "sub/.git": "gitdir: ../.git/modules/sub",
            "hg/.hg/x": "",
            ".venv/bin/python": "",
            "web/node_modules/x/y.js": "",
            "pkg/__pycache__/m.pyc": "",
            "pkg/m.py": "",
        },
    )
    (tmp_path / "sub" / ".venv").symlink_to("/usr")
    found = scan(tmp_path)
    assert paths(found) == ["hg", "pkg/m.py", "sub", "train.py", "web"]
    assert {(skip.path, skip.rule) for skip in found.skipped} >= {
        (b".git", "built-in: .git"),
        (b"sub/.git", "built-in: .git"),
        (b"sub/.venv", "built-in: .venv"),
    }


def test_only_a_rule_that_names_a_built_in_exclusion_lets_it_in(tmp_path: Path) -> None:
    """I13, I16: `!.git/` is explicit; the `!*/` of a ladder is not."""
    grow(tmp_path, {"a.py": "", "b.txt": "", "d/c.py": "", ".venv/v.py": "", ".git/x.py": "", "d/.git/y.py": ""})
    assert paths(scan(tmp_path, "*", "!*/", "!*.py")) == ["a.py", "d/c.py"]
    assert paths(scan(tmp_path, "!/.git/")) == [".git/x.py", "a.py", "b.txt", "d/c.py"]
    assert paths(scan(tmp_path, "!.git")) == [".git/x.py", "a.py", "b.txt", "d/.git/y.py", "d/c.py"]
    assert paths(scan(tmp_path, "!.git", "d/.git")) == [".git/x.py", "a.py", "b.txt", "d/c.py"]
    assert paths(scan(tmp_path, "!.git", ".g*")) == ["a.py", "b.txt", "d/c.py"]


def test_the_ignore_file_speaks_after_the_template_and_only_the_first_one_counts(tmp_path: Path) -> None:
    grow(tmp_path, {"a.log": "", "b.log": "", "c.txt": "", ".amltignore": "!b.log\n"})
    assert paths(scan(tmp_path, "*.log")) == [".amltignore", "b.log", "c.txt"]
    grow(tmp_path, {".codeignore": ""})
    found = scan(tmp_path, "# not a pattern", "*.log")
    assert paths(found) == [".amltignore", ".codeignore", "c.txt"]
    assert [skip.rule for skip in found.skipped] == ["code.ignore:2: *.log"] * 2


def test_an_ignore_file_in_a_subfolder_is_only_a_file(tmp_path: Path) -> None:
    grow(tmp_path, {"d/.codeignore": "*", "d/a.py": "", ".gitignore": "*"})
    assert paths(scan(tmp_path)) == [".gitignore", "d/.codeignore", "d/a.py"]


@pytest.mark.parametrize("place", [".azure_jobs", "a/b/c/jobs"])
def test_of_aj_home_only_scripts_travel(tmp_path: Path, place: str) -> None:
    state = {f"{place}/{name}": "" for name in ("aj_config.json", "template/gpu.yaml", "build/memo.db", "scripts/s.sh")}
    grow(tmp_path, {"a.py": "", "a/b/x.py": "", **state})
    found = scan(tmp_path, "!aj_config.json", f"!{place}/**", home=tmp_path / place)
    assert paths(found) == sorted(["a.py", "a/b/x.py", f"{place}/scripts/s.sh"])
    assert any(skip.path == place.encode() and skip.rule == "built-in: AJ_HOME" for skip in found.skipped)


def test_scripts_of_aj_home_obey_the_ignore_rules(tmp_path: Path) -> None:
    grow(tmp_path, {"a.py": "", ".azure_jobs/scripts/s.sh": "", ".azure_jobs/scripts/s.log": ""})
    assert paths(scan(tmp_path, "*.log")) == [".azure_jobs/scripts/s.sh", "a.py"]
    assert paths(scan(tmp_path, ".azure_jobs/")) == ["a.py"]


def test_an_aj_home_outside_or_behind_a_link_leaves_nothing_in_the_tree(tmp_path: Path) -> None:
    elsewhere = grow(tmp_path / "elsewhere", {"scripts/s.sh": "", "aj_config.json": ""})
    root = grow(tmp_path / "code", {"a.py": ""})
    assert paths(scan(root, home=elsewhere)) == ["a.py"]
    (root / ".azure_jobs").symlink_to(elsewhere)
    assert paths(scan(root)) == ["a.py"]


def test_an_aj_home_behind_a_link_inside_the_tree_is_found(tmp_path: Path) -> None:
    grow(tmp_path, {"a.py": "", "conf/aj/scripts/s.sh": "", "conf/aj/aj_config.json": ""})
    (tmp_path / ".azure_jobs").symlink_to("conf/aj")
    assert paths(scan(tmp_path)) == [".azure_jobs", "a.py", "conf/aj/scripts/s.sh"]


def test_a_code_folder_that_is_aj_home_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CodeError, match="AJ_HOME is the code folder itself"):
        scan(tmp_path, home=tmp_path)


def test_a_folder_of_which_nothing_travels_is_an_empty_folder(tmp_path: Path) -> None:
    grow(tmp_path, {"logs/": "", "out/x.ckpt": "", "deep/er/": "", "a.py": ""})
    found = scan(tmp_path, "*.ckpt")
    assert paths(found) == ["a.py", "deep/er", "logs", "out"]
    assert entry(found, "logs") == Entry(b"logs", "folder", 0o755, 0, "")
    (tmp_path / "out" / "x.ckpt").unlink()
    assert scan(tmp_path, "*.ckpt").tree == found.tree


def test_modes_are_the_owner_s_x_bit_alone(tmp_path: Path) -> None:
    grow(tmp_path, {"a": "", "b": "", "c": "", ".ssh/id": "", "d/.ssh/deep/k": ""})
    modes = {"a": 0o4755, "b": 0o611, "c": 0o100, ".ssh/id": 0o777, "d/.ssh/deep/k": 0o644}
    for name, mode in modes.items():
        (tmp_path / name).chmod(mode)
    found = scan(tmp_path)
    assert {os.fsdecode(item.path): oct(item.mode) for item in found.entries} == {
        "a": "0o755",
        "b": "0o644",
        "c": "0o755",
        ".ssh/id": "0o600",
        "d/.ssh/deep/k": "0o600",
    }


def test_A05_hard_links_are_two_files(tmp_path: Path) -> None:
    one, two = grow(tmp_path / "1", {"a": "text"}), grow(tmp_path / "2", {"a": "text", "b": "text"})
    os.link(one / "a", one / "b")
    assert scan(one).tree == scan(two).tree
    assert [item.kind for item in scan(one, "a").entries] == ["file"]


def test_G05_A14_equal_trees_have_equal_digests_wherever_and_whenever(tmp_path: Path) -> None:
    files = {"b.py": "1", "a.py": "2", "d/x": "3", "d/y/z": "", "empty/": "", "a/b": "4", "a-b": "5"}
    one = grow(tmp_path / "one", files)
    (one / "l").symlink_to("d/x")
    two = tmp_path / "deep" / "er" / "two"
    old = os.umask(0o077)
    try:
        grow(two, dict(reversed(files.items())))
    finally:
        os.umask(old)
    (two / "l").symlink_to("d/x")
    os.utime(two / "b.py", (1, 1))
    assert scan(one).tree == scan(two).tree
    three = shutil.copytree(one, tmp_path / "three", symlinks=True)
    assert scan(three).tree == scan(one).tree


def test_the_digest_is_the_same_on_every_machine(tmp_path: Path) -> None:
    """A new value costs every user one upload of each tree: change it only with intent."""
    grow(tmp_path, {"a.py": "print(1)\n", "d/b.sh": "#!/bin/sh\n", "e/": ""})
    (tmp_path / "d" / "b.sh").chmod(0o755)
    (tmp_path / "l").symlink_to("d/b.sh")
    assert scan(tmp_path).tree == "41717d8ab4e16a1ea65921c6be20dd792479dd213d4e1d422d28611b452cc8d9"


@pytest.mark.parametrize(
    "change",
    [
        "printf 2 > a.py",
        "mv a.py b.py",
        "rm a.py",  # G11
        "chmod +x a.py",
        "touch new",
        "mkdir new",
        "rmdir e",
        "ln -sfn a.py l",
        "rm l && cp d/b.sh l",
        "rm -r e && touch e",
        "mv d/b.sh d/b.sh2 && mv d dd && mkdir d && mv dd/b.sh2 d/b && rmdir dd",
    ],
)
def test_the_digest_follows_every_change_of_the_code(tmp_path: Path, change: str) -> None:
    grow(tmp_path, {"a.py": "1", "d/b.sh": "x", "e/": ""})
    (tmp_path / "l").symlink_to("d/b.sh")
    cache = StatCache()
    before = scan(tmp_path, cache=cache)
    subprocess.run(["sh", "-ec", change], cwd=tmp_path, check=True)
    after = scan(tmp_path, cache=cache)
    assert after.tree != before.tree
    assert after.tree == scan(tmp_path).tree == tree_digest(after.entries)


@pytest.mark.parametrize(
    "change", ["touch a.py", "chmod 600 a.py", "chmod g+x a.py", "ln a.py .git/a", "echo > .git/x"]
)
def test_the_digest_ignores_what_is_not_code(tmp_path: Path, change: str) -> None:
    grow(tmp_path, {"a.py": "1", ".git/": ""})
    before = scan(tmp_path).tree
    subprocess.run(["sh", "-ec", change], cwd=tmp_path, check=True)
    assert scan(tmp_path).tree == before


def test_paths_and_contents_cannot_be_mistaken_for_each_other(tmp_path: Path) -> None:
    trees = [{"ab": "c"}, {"a": "bc"}, {"a/b": "c"}, {"a\nb": "c"}, {"a": "", "b": "c"}, {"a/": "", "b": "c"}]
    digests = {scan(grow(tmp_path / str(number), files)).tree for number, files in enumerate(trees)}
    assert len(digests) == len(trees)


def test_generated_files_are_part_of_the_code_and_win(tmp_path: Path) -> None:
    grow(tmp_path, {"aj_runner.sh": "mine", "a.py": "", "new/": ""})
    generated = {b"aj_runner.sh": Generated(b"ours", 0o755), b"new/deep/x": Generated(b"", 0o600)}
    found = scan(tmp_path, generated=generated)
    assert paths(found) == ["a.py", "aj_runner.sh", "new/deep/x"]
    assert (entry(found, "aj_runner.sh").content, entry(found, "aj_runner.sh").mode) == (b"ours", 0o755)
    assert [notice.where for notice in found.notices] == ["aj_runner.sh"]
    other = {**generated, b"aj_runner.sh": Generated(b"OURS", 0o755)}
    assert scan(tmp_path, generated=other).tree != found.tree
    assert found.tree == tree_digest(found.entries)


@pytest.mark.parametrize("taken, path", [(".ssh", b".ssh/config"), ("aj_runner.sh/x", b"aj_runner.sh"), ("f/", b"f")])
def test_a_generated_file_without_a_place_is_an_error(tmp_path: Path, taken: str, path: bytes) -> None:
    grow(tmp_path, {taken: ""})
    with pytest.raises(CodeError, match="has no place") as error:
        scan(tmp_path, generated={path: Generated(b"", 0o600)})
    assert error.value.hint


def test_progress_comes_now_and_then(tmp_path: Path) -> None:
    grow(tmp_path, {f"d{number % 7}/{number}": "" for number in range(2500)})
    events: list[Event] = []
    select(tmp_path, Home(tmp_path / "h"), (), {}, StatCache(), events.append)
    assert {event.kind for event in events} == {"scan"}
    counts = [event.completed or 0 for event in events]
    assert counts == sorted(counts) and counts[-1] == 2500 and 3 <= len(counts) <= 100


def test_E12_a_script_that_linux_cannot_start_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    grow(tmp_path, {"run.sh": "#!/bin/sh\r\nid\r\n", "ok.sh": "#!/bin/sh\nid\r\n", "plain.txt": "a\r\n"})
    (notice,) = scan(tmp_path).notices
    assert "`run.sh`" in notice.message and "ok.sh" not in notice.message and notice.where == "run.sh"


@pytest.mark.parametrize(
    "name, content, secret",
    [
        (".env", "", True),
        ("d/.env.local", "", True),
        (".env.example", "", False),
        ("key.pem", "", True),
        ("tls.KEY", "", True),
        (".ssh/id_rsa", "", True),
        (".ssh/id_rsa.pub", "", False),
        ("id_mapping.py", "", False),
        (".aws/credentials", "", True),
        (".azure/msal_token_cache.json", "", True),
        (".netrc", "", True),
        (".kube/config", "", True),
        ("sa.json", '{"type": "service_account", "private_key": "x"}', True),
        ("data.json", '{"a": 1}', False),
        ("notes.txt", "-----BEGIN OPENSSH PRIVATE KEY-----\n", True),
        ("environment.py", "", False),
    ],
)
def test_what_looks_like_a_credential_is_named(tmp_path: Path, name: str, content: str, secret: bool) -> None:
    grow(tmp_path, {name: content, "a.py": ""})
    assert [notice.where for notice in scan(tmp_path).notices] == ([name] if secret else [])


def test_many_remarks_are_one_notice(tmp_path: Path) -> None:
    grow(tmp_path, {f"{number:02}.pem": "" for number in range(25)})
    (notice,) = scan(tmp_path).notices
    assert "`09.pem` and 15 more" in notice.message


def test_entries_are_a_sequence(tmp_path: Path) -> None:
    grow(tmp_path, {"b": "", "a": ""})
    found = scan(tmp_path)
    assert isinstance(found.entries, Sequence)
    assert len(found.entries) == 2 and found.entries[0].path == b"a"
    assert found == scan(tmp_path)
