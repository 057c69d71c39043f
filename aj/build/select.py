"""Which files of a folder are code: one walk that feeds size, digest, archive, report and plan alike."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

from aj.build.beneath import opened_root, parents, spellings
from aj.build.links import Link, resolve
from aj.build.remarks import CREDENTIAL, named, remark_notices
from aj.build.rules import HOME_RULE, Exclusions, exclusions
from aj.build.scan import Entry as Entry
from aj.build.scan import Plain, Scan, Skip
from aj.build.statcache import StatCache
from aj.shared.config import checked_config
from aj.shared.errors import CodeError, NotFoundError
from aj.shared.job.command import travelling_script
from aj.shared.model import Emit, Notice
from aj.shared.paths import Home, shown

_TREE_FORMAT = b"aj tree 1\0"


@dataclass(frozen=True, slots=True)
class Generated:
    """A file that is no file of the project."""

    content: bytes
    mode: int


@dataclass(frozen=True, slots=True)
class Selection:
    """The code of `root`."""

    root: Path
    entries: Sequence[Entry]
    """Sorted by raw path."""
    skipped: tuple[Skip, ...]
    """Sorted by raw path."""
    notices: tuple[Notice, ...]
    tree: str
    """Digest of all entries: equal trees of any place, time, owner and file system have equal ones."""
    credentials: tuple[bytes, ...] = ()
    """The files that look like credentials."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a path is packed or not."""

    path: bytes
    packed: bool
    reason: str
    rule: str | None
    """`file:line: pattern` or `built-in: name` that decided, the last re-including rule included."""


def select(
    root: Path, home: Home, ignore: Sequence[str], generated: Mapping[bytes, Generated], cache: StatCache, emit: Emit
) -> Selection:
    """Scan `root`. Files that are known to `cache` are not opened; the caller saves it.

    AJ_HOME's `scripts/` is selected where it lies inside `root`; from elsewhere it travels only as `generated`.
    `CodeError` names all files that cannot be read and all links that leave `root`.
    """
    rules = exclusions(root, home, ignore)
    with opened_root(root) as top:
        scan = Scan(top, rules, cache, emit)
        scan.run()
    links, notices = _links(root, rules, scan)
    cache.keep(scan.folders)
    loose = {entry.path: entry for entry in (*scan.entries, *links)}
    notices += _add_generated(loose, generated, scan)
    notices += remark_notices(sorted(scan.remarked))
    tree = _tree(scan.plain, loose.values(), cache)
    skipped = tuple(sorted(scan.skipped, key=attrgetter("path")))
    credentials = tuple(sorted(path for path, bits in scan.remarked if bits & CREDENTIAL))
    return Selection(root, _Entries(scan.plain, loose.values()), skipped, tuple(notices), tree, credentials)


def check_credentials(selection: Selection, home: Home) -> None:
    """`CodeError` when the project is configured so that what looks like credentials must not travel."""
    found = selection.credentials
    if found and checked_config(home).get("credential_files") == "error":
        text = f"what looks like credentials would travel with the code: {named(found)}"
        hint = "list it in `.amltignore`, or allow it by `aj config credential-files warn`"
        raise CodeError(text, where=shown(found[0]), hint=hint)


def check_script(root: Path, home: Home, ignore: Sequence[str], argv: Sequence[str]) -> None:
    """`CodeError` when the command runs a file of the code that does not travel, with the rule that keeps it here."""
    script = travelling_script(argv[0], root) if argv else None
    if script and not (found := explain(root, home, ignore, script)).packed:
        why = found.rule or found.reason
        hint = f"take the rule out, or end the ignore file with `!/{shown(found.path)}`"
        raise CodeError(f"`{script}` would not travel with the job: {why}", where=found.rule or "COMMAND", hint=hint)


def tree_digest(entries: Iterable[Entry]) -> str:
    """The digest of a whole tree, in any order: SHA-256 over each folder's path and the digest of what is in it."""
    return _tree({}, entries, StatCache())


def explain(root: Path, home: Home, ignore: Sequence[str], path: str) -> Explanation:
    """Why `path`, relative to `root` or absolute, is packed or not; of a missing one, what would be if it were a file.

    `NotFoundError` when it lies outside `root`.
    """
    rules = exclusions(root, home, ignore)
    raw = _relative(root, path)
    mode = _mode_of(root, raw)
    folder = stat.S_ISDIR(mode) or (not mode and path.endswith("/"))
    name = raw.rpartition(b"/")[2]
    if found := rules.through(raw, folder=folder):
        at, rule = found
        return Explanation(raw, False, "excluded" if at == raw else f"excluded with `{shown(at)}`", str(rule))
    if raw in rules.homes:
        return Explanation(raw, False, "aj's own state; only its `scripts/` travels", str(HOME_RULE))
    if link := next((parent for parent in parents(raw) if stat.S_ISLNK(_mode_of(root, parent))), None):
        return Explanation(raw, False, f"`{shown(link)}` is a link, which is packed as a link", None)
    if mode and not (folder or stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        return Explanation(raw, False, "neither file, folder nor link", None)
    kept = rules.last(raw, name, folder=folder)
    return Explanation(raw, True, "re-included" if kept else "no rule matches", str(kept) if kept else None)


class _Entries(Sequence[Entry]):
    """Sorted by path, made when somebody looks: for an unchanged tree the digest is enough."""

    def __init__(self, plain: Mapping[bytes, Plain], loose: Iterable[Entry]) -> None:
        self._parts = (plain.values(), loose)

    @cached_property
    def _all(self) -> tuple[Entry, ...]:
        plain, loose = self._parts
        return tuple(sorted([*chain.from_iterable(part.entries() for part in plain), *loose]))

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all == tuple(other)

    __hash__ = None  # type: ignore[assignment]


def _tree(plain: Mapping[bytes, Plain], loose: Iterable[Entry], cache: StatCache) -> str:
    groups: dict[bytes, list[Entry]] = {}
    for entry in loose:
        groups.setdefault(entry.path.rpartition(b"/")[0], []).append(entry)
    totals = {}
    for folder, part in plain.items():
        if folder in groups:
            groups[folder] += part.entries()
        else:
            totals[folder] = part.memo.total or cache.total(part.memo, _total(part.entries()))
    totals.update((folder, _total(group)) for folder, group in groups.items())
    return sha256(_TREE_FORMAT + b"".join(folder + b"\0" + totals[folder] for folder in sorted(totals))).hexdigest()


def _total(entries: Iterable[Entry]) -> bytes:
    records = (
        f"{entry.kind} {entry.mode:o} {entry.size} {entry.digest} ".encode() + entry.path + b"\0"
        for entry in sorted(entries)
    )
    return sha256(b"".join(records)).digest()


def _links(root: Path, rules: Exclusions, scan: Scan) -> tuple[list[Entry], list[Notice]]:
    """The links as entries; `CodeError` names those that leave the tree."""
    links = resolve(root, scan.links)
    for link in [link for link in links if link.leads_to is None and link.path in rules.homes]:
        links.remove(link)
        scan.skipped.append(Skip(link.path, "aj's own state lies elsewhere", str(HOME_RULE)))
    if leaving := [link.path for link in links if link.leads_to is None]:
        what = "a link leaves" if len(leaving) == 1 else f"{len(leaving)} links leave"
        raise CodeError(
            f"{what} the code folder: {named([path + b'` -> `' + scan.links[path] for path in leaving])}",
            where=shown(leaving[0]),
            hint=f"list it in `.amltignore` as `/{shown(leaving[0])}`, or copy what it points to into the folder",
        )
    notices = [notice for link in links for notice in _link_notices(root, rules, link, scan.links[link.path])]
    return [
        Entry(link.path, "link", 0o777, len(link.target), sha256(link.target).hexdigest(), link.target)
        for link in links
    ], notices


def _link_notices(root: Path, rules: Exclusions, link: Link, written: bytes) -> list[Notice]:
    notices = []
    if written != link.target:
        text = f"the link `{shown(link.path)}` to `{shown(written)}` is packed as `{shown(link.target)}`"
        notices.append(Notice(text, where=shown(link.path), hint="a relative link needs no change"))
    mode = _mode_of(root, link.leads_to) if link.leads_to else 0
    if mode and link.leads_to and (found := rules.through(link.leads_to, folder=stat.S_ISDIR(mode))):
        notices.append(
            Notice(
                f"the link `{shown(link.path)}` leads to `{shown(link.leads_to)}`, which is excluded by {found[1]}",
                where=shown(link.path),
                hint="in the job it leads nowhere",
            )
        )
    return notices


def _add_generated(own: dict[bytes, Entry], generated: Mapping[bytes, Generated], scan: Scan) -> list[Notice]:
    """Put the generated files over the project's; `CodeError` where a file meets a folder."""
    notices = []
    for path, file in sorted(generated.items()):
        for part in [scan.plain.pop(parent) for parent in (b"", *parents(path)) if parent in scan.plain]:
            own.update((entry.path, entry) for entry in part.entries())
        if path in own and path not in scan.folders:
            notices.append(Notice(f"aj's own `{shown(path)}` takes the place of the project's", where=shown(path)))
        for parent in parents(path):
            if parent in own and own[parent].kind != "folder":
                raise _conflict(path, parent, own[parent].kind)
            own.pop(parent, None)
        if path in scan.folders:
            raise _conflict(path, path, "folder")
        own[path] = Entry(path, "file", file.mode, len(file.content), sha256(file.content).hexdigest(), file.content)
    return notices


def _conflict(path: bytes, taken: bytes, kind: str) -> CodeError:
    return CodeError(
        f"aj's own file `{shown(path)}` has no place: `{shown(taken)}` is a {kind} of the project",
        where=shown(taken),
        hint="rename it, or list it in `.amltignore`",
    )


def _relative(root: Path, path: str) -> bytes:
    whole = spellings(root / path)[0]
    for top in spellings(root):
        if whole.startswith(top + b"/"):
            return whole[len(top) + 1 :]
    raise NotFoundError(f"`{path}` is not below the code folder", where=str(root))


def _mode_of(root: Path, path: bytes) -> int:
    """The type bits of what lies at `path`, 0 for nothing."""
    try:
        return os.lstat(os.fsencode(root) + b"/" + path).st_mode
    except OSError:
        return 0
