"""Patterns mean what git means by them: real `git check-ignore` is the judge."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aj.build.ignore import Rule, Rules, parse

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is the judge of these tests")

NAMES = [
    *(
        b"a",
        b"b",
        b"A",
        b"ab",
        b"a.py",
        b"a b",
        b"a ",
        b" a",
        b"!a",
        b"#a",
        b"a]b",
        b"a-b",
        b"a^b",
        b"[a]",
        b"*",
        b"**",
    ),
    *(
        b"\\",
        b"a\\",
        b"a\tb",
        b"a\nb",
        b"a\r",
        b"\xff",
        "é".encode(),
        "áb".encode(),
        b"-",
        b"]",
        b":",
        b"1",
        b".a",
        b"?",
    ),
]
FOLDERS = [b"", b"a", b"b", b"a/b", b"a/a/b", b"b/ab/a", b"d/x.y/a", b"a b", b"\xff/\xff", b"A"]
ALPHABET = [
    *(
        b"a",
        b"b",
        b"A",
        b"*",
        b"*",
        b"**",
        b"/",
        b"/",
        b"?",
        b"!",
        b"#",
        b" ",
        b"\\",
        b"[",
        b"]",
        b"[a]",
        b"[!a]",
        b"-",
    ),
    *(
        b"**/",
        b"/**",
        b"[^b]",
        b"[a-b]",
        b"[[:alpha:]]",
        b"[[:space:]]",
        b"[]a]",
        b"[[:nope:]]",
        b"\\ ",
        b"\t",
        b"\xff",
    ),
    *("é".encode(), b".", b".py", b"^", b":", b"[[:", b"\r", b"\0", b"\xef\xbb\xbf"),
]
lines = st.lists(st.sampled_from(ALPHABET), max_size=7).map(b"".join)
contents = st.tuples(
    st.sampled_from([b"", b"", b"\xef\xbb\xbf"]), st.lists(lines, max_size=5), st.sampled_from([b"\n", b"\n", b"\r\n"])
).map(lambda parts: parts[0] + parts[2].join(parts[1]))


class Git:
    """A tree of many names, and what git says about each of its paths under some ignore file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        subprocess.run(["git", "init", "-q", str(root)], check=True)
        (root / ".git" / "info" / "exclude").unlink(missing_ok=True)
        self.paths: dict[bytes, bool] = {}
        for folder in FOLDERS:
            (root / os.fsdecode(folder)).mkdir(parents=True, exist_ok=True)
        for folder in FOLDERS:
            for name in NAMES:
                path = folder + b"/" + name if folder else name
                place = root / os.fsdecode(path)
                if not place.exists():
                    place.touch()
        (root / "link").symlink_to("a")
        for folder_, folders, files in os.walk(os.fsencode(root)):
            folders[:] = [name for name in folders if name != b".git"]
            for name in (*folders, *files):
                whole = os.path.join(folder_, name)
                is_folder = os.path.isdir(whole) and not os.path.islink(whole)
                self.paths[os.path.relpath(whole, os.fsencode(root))] = is_folder

    def verdicts(self, content: bytes) -> dict[bytes, int]:
        """The line that decides about each path: negative when it re-includes, 0 for none."""
        (self.root / ".gitignore").write_bytes(content)
        command = ["git", "-c", "core.ignorecase=false", "check-ignore", "--no-index", "-z", "-v", "-n", "--stdin"]
        asked = b"".join(b"./" + path + b"\0" for path in self.paths)
        env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
        run = subprocess.run(command, input=asked, capture_output=True, cwd=self.root, env=env, check=False)
        assert run.returncode in (0, 1), run.stderr
        fields = run.stdout.split(b"\0")[:-1]
        found = {}
        for at in range(0, len(fields), 4):
            _, line, pattern, path = fields[at : at + 4]
            found[path[2:]] = (-1 if pattern.startswith(b"!") else 1) * int(line or 0)
        return found


@pytest.fixture(scope="module")
def git(tmp_path_factory: pytest.TempPathFactory) -> Git:
    return Git(tmp_path_factory.mktemp("git"))


def ours(content: bytes, paths: dict[bytes, bool]) -> dict[bytes, int]:
    """The same by our rules, an excluded parent being final."""
    rules = Rules(parse(content, "x"))
    return {path: decided(rules, path, is_folder) for path, is_folder in paths.items()}


def decided(rules: Rules, path: bytes, is_folder: bool) -> int:
    at = b""
    rule: Rule | None = None
    for name in path.split(b"/"):
        at = at + b"/" + name if at else name
        rule = rules.last(at, name, folder=is_folder or at != path)
        if rule and not rule.negated:
            return rule.line
    return -rule.line if rule else 0


@settings(max_examples=400)
@given(contents)
@example(b"a**/b\nb/a**\n")
@example(b"a\\ \n\\!a\n\\#a\na\\\\\n")
@example(b"a \nb  \n a\n")
@example(b"*\n!*/\n!*.py\n")
@example(b"[a\\]]b\na[]]b\na[]-a]b\n[a\n*.py")
@example(b"a\0b\n!\n/\n//\n!/\n*\r\n")
@example(b"**\\/b\na/**\\/b\n**/**/b\na/**/**\n")
@example(b"[--0]\n[a-\n[!-a]\n[[:]]\n[[::]]\n[[:a]\n")
def test_every_path_is_decided_by_the_line_that_git_names(git: Git, content: bytes) -> None:
    expected = git.verdicts(content)
    found = ours(content, git.paths)
    assert {path: found[path] for path in expected} == expected


@pytest.mark.parametrize(
    "content, excluded, kept",
    [
        pytest.param(b"build\n!keep.log", ["build/keep.log"], ["keep.log"], id="I01"),
        pytest.param(b"build/\n!build/keep.log", ["build/keep.log"], ["keep.log"], id="I01 with a slash"),
        pytest.param(b"build/*\n!build/keep.log", ["build/x"], ["build/keep.log"], id="I01 control"),
        pytest.param(b"dist/\n!dist/\ndist/*\n!dist/keep.txt", ["dist/drop.txt"], ["dist/keep.txt"], id="I02"),
        pytest.param(b"data/*", ["data/x"], ["src/p/data/__init__.py"], id="I03 anchored"),
        pytest.param(b"data/", ["data/x", "src/p/data/__init__.py"], [], id="I03 at any depth"),
        pytest.param(b"[[:digit:]].txt", ["1.txt"], ["a.txt", ":.txt"], id="I04 class"),
        pytest.param(b"a[\\]]b", ["a]b"], ["a\\b"], id="I04 escaped"),
        pytest.param(b"a[]]b", ["a]b"], ["ab"], id="I04 bracket first"),
        pytest.param(b"a[!b]c", ["azc"], ["abc"], id="I04 negated"),
        pytest.param(b"a[b\n*.log", ["x.log"], ["a[b", "ab"], id="I04 unclosed"),
        pytest.param(b"\xef\xbb\xbfsecret.txt\n*.log\n", ["secret.txt", "a.log"], [], id="I07"),
        pytest.param(b"\xef\xbb\xbfsecret.txt\r\n*.log\r\n", ["secret.txt", "a.log"], [], id="I07 CRLF"),
        pytest.param(b"*\n!*/\n!*.py", ["src/b.txt"], ["src/d/c.py"], id="I16"),
    ],
)
def test_the_field_cases(content: bytes, excluded: list[str], kept: list[str]) -> None:
    paths = {path.encode(): False for path in (*excluded, *kept)}
    found = ours(content, paths)
    assert sorted(path.decode() for path, line in found.items() if line > 0) == sorted(excluded)


@pytest.mark.parametrize("pattern", [b"*a" * 30 + b"b", b"**/a/" * 12 + b"b", b"/x/" + b"*a*/" * 9 + b"*ab"])
def test_no_pattern_is_slow(pattern: bytes) -> None:
    """Backtracking into every star would take longer than the universe has."""
    rules = Rules(parse(pattern, "x"))
    name = b"a" * 250
    began = time.process_time()
    assert rules.last(b"/".join([b"x", *[b"a"] * 100, name]), name, folder=False) is None
    assert time.process_time() - began < 60


def test_a_rule_names_its_place() -> None:
    (rule,) = parse(b"# comment\n\n!*.p\xff \n", ".codeignore")
    assert str(rule) == ".codeignore:3: !*.p\\xff"
