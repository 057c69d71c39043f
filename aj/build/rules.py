"""Who may exclude what from the code: built-in names, AJ_HOME, `code.ignore`, the root's ignore file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from aj.build.beneath import parents, spellings
from aj.build.ignore import Rule, Rules, parse
from aj.shared.errors import CodeError
from aj.shared.paths import Home

IGNORE_FILES = (".codeignore", ".amltignore")
"""The first that is present at the root counts, even an empty one; it travels with the code like any file."""
BUILT_IN = {
    name: Rule("built-in", 0, name, negated=False, folder_only=False, by_name=True, body=name)
    for name in (b".git", b".hg", b".svn", b".venv", b"node_modules", b"__pycache__")
}
"""Folders, files and links of these names stay here, unless a rule names one after `!`, as in `!.git/`."""
HOME_RULE = Rule("built-in", 0, b"AJ_HOME", negated=False, folder_only=True, by_name=False, body=b"AJ_HOME")
"""aj's own state: nothing re-includes it, only its `scripts/` is code."""
SCRIPTS = b"scripts"


class Exclusions:
    """All rules of one code folder, as one question: what excludes this path? Parents are the caller's business."""

    def __init__(self, rules: Sequence[Rule], homes: frozenset[bytes]) -> None:
        self.homes = homes
        """Where AJ_HOME lies in the tree: relative paths; empty when it lies outside."""
        self.last = Rules(rules).last
        """The user's last rule that matches, a re-including one too."""
        self.digest = int.from_bytes(sha256(repr((rules, sorted(homes))).encode()).digest()[:8], "big") or 1
        """Of all that decides, as 64 bits."""
        self._naming = Rules(rule for rule in rules if rule.body.rpartition(b"/")[2] in BUILT_IN).last

    def excluding(self, path: bytes, name: bytes, *, folder: bool) -> Rule | None:
        """The rule that excludes `path`, whose last component is `name`; `folder` is False for a link to a folder."""
        rule = self.last(path, name, folder=folder)
        if name in BUILT_IN:
            # A wildcard such as `!*/` is meant for the project's own folders: it never opens a `.venv`.
            naming = self._naming(path, name, folder=folder)
            if naming is None or not naming.negated:
                return naming or BUILT_IN[name]
        return rule if rule and not rule.negated else None

    def through(self, path: bytes, *, folder: bool) -> tuple[bytes, Rule] | None:
        """The first excluded component on the way to `path`, `path` itself included, with its rule."""
        for at in (*parents(path), path):
            parent, _, name = at.rpartition(b"/")
            if parent in self.homes and name != SCRIPTS:
                return at, HOME_RULE
            if rule := self.excluding(at, name, folder=folder or at != path):
                return at, rule
        return None


def exclusions(root: Path, home: Home, ignore: Sequence[str]) -> Exclusions:
    """The rules of `root`; `CodeError` when its ignore file cannot be read."""
    items = (os.fsencode(item) for item in ignore)
    listed = [replace(rule, line=line) for line, item in enumerate(items, 1) for rule in parse(item, "code.ignore")]
    return Exclusions([*listed, *_root_rules(root)], _inside(root, home.root))


def _root_rules(root: Path) -> tuple[Rule, ...]:
    for path in (root / name for name in IGNORE_FILES):
        try:
            if path.is_file():
                return parse(path.read_bytes(), path.name)
        except OSError as error:
            text = f"the ignore file cannot be read: {error.strerror}"
            hint = "make it readable or remove it: without it too much would travel"
            raise CodeError(text, where=str(path), hint=hint) from None
    return ()


def _inside(root: Path, home: Path) -> frozenset[bytes]:
    """Both as written and with all links resolved: either may be how the walk meets AJ_HOME."""
    found = set()
    for top in spellings(root):
        for place in spellings(home):
            if place == top:
                text = "AJ_HOME is the code folder itself, so that aj's own state would be code"
                raise CodeError(text, where=str(root), hint="set AJ_HOME to a folder below it, such as `.azure_jobs`")
            if place.startswith(top + b"/"):
                found.add(place[len(top) + 1 :])
    return frozenset(found)
