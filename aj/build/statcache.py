"""The digests of files whose size, times and inode are still those of their last reading: a memo, never the truth."""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path

from aj.build.beneath import Content, look
from aj.shared.jsonio import write_file

CLOCK_STEP_NS = 2_000_000_000
"""The coarsest clock step of a file system in use (FAT; ext4, XFS and APFS have a tick or less). A file could change
twice within one step and look the same, so what is read that soon after a change is not remembered: it costs a second
reading once."""
NUMBERS = 5
"""Of each listed item, see `beneath.look`."""
KNOWN, SELECTED = 64, 128
"""Flags of an item, beside its remarks: the digest is known; the rules selected it."""
_MAGIC = b"aj stat cache 2\n"
"""Another number whenever remarks, packed modes or totals come to mean something else."""
_DIGEST = 32
_LOOK = NUMBERS * 8
_RULES = struct.Struct("<Q")
_SIZES = struct.Struct("<6Q")
_ENCODING = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
_SLACK = 100


class Listing:
    """What is in a folder, in the order in which it tells: its folders, and what `lstat` says about all else."""

    __slots__ = ("folder", "folders", "names", "numbers", "seen")

    def __init__(self, folder: bytes, folders: list[str], names: list[str], numbers: list[int]) -> None:
        self.folder = folder
        """Its path below the root."""
        self.folders = folders
        self.names = "\0".join(names).encode(*_ENCODING)
        """Raw, joined by NUL."""
        self.numbers = numbers
        """`NUMBERS` for each name, flat."""
        self.seen = _packed(numbers)

    def paths(self) -> list[bytes]:
        """The paths of all but the folders, below the root."""
        if not self.numbers:
            return []
        prefix = self.folder + b"/" if self.folder else b""
        return (prefix + self.names.replace(b"\0", b"\0" + prefix)).split(b"\0")


@dataclass(slots=True)
class Memo:
    """What is known about the files of one folder as long as they look as they did: an item for each name."""

    names: bytes = b""
    seen: bytes = b""
    digests: bytearray = field(default_factory=bytearray)
    flags: bytearray = field(default_factory=bytearray)
    total: bytes = b""
    """The digest of all items as they are in the tree; empty while nobody noted it."""

    def is_plain(self) -> bool:
        """Whether every item is a selected file of known digest, without remarks."""
        return self.flags == bytes((KNOWN | SELECTED,)) * len(self.flags)

    def hexes(self) -> list[str]:
        """All digests."""
        return self.digests.hex("-", _DIGEST).split("-")

    def digest(self, index: int) -> bytes:
        """The digest of an item that is known."""
        return bytes(self.digests[index * _DIGEST : (index + 1) * _DIGEST])

    def looks(self, index: int) -> bytes:
        """How the item looked."""
        return self.seen[index * _LOOK : (index + 1) * _LOOK]

    def put(self, index: int, digest: bytes, flags: int) -> None:
        """Note an item's digest."""
        self.digests[index * _DIGEST : (index + 1) * _DIGEST] = digest
        self.flags[index] = flags
        self.total = b""

    def after(self, listing: Listing) -> Memo:
        """The memo of a new listing, with the knowledge about the items that look the same."""
        old = {name: index for index, name in enumerate(self.names.split(b"\0")) if index < len(self.flags)}
        size = len(listing.seen) // _LOOK
        new = Memo(listing.names, listing.seen, bytearray(size * _DIGEST), bytearray(size))
        for index, name in enumerate(listing.names.split(b"\0")[:size]):
            at = old.get(name)
            if at is not None and self.looks(at) == new.looks(index):
                new.put(index, self.digest(at), self.flags[at])
        return new


class StatCache:
    """Memos by folder of one code tree, kept in the file `path`, or in memory alone when that is None.

    What it cannot see, as nothing but reading can: a write through a memory mapping that is not yet synced.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._rules, self._folders = _load(path) if path else (0, {})
        self._changed = False

    def obey(self, rules: int) -> None:
        """From now on SELECTED stands for the rules of this digest."""
        if rules != self._rules:
            self._rules, self._changed = rules, True
            for memo in self._folders.values():
                memo.flags = bytearray(flag & ~SELECTED for flag in memo.flags)
                memo.total = b""

    def memo(self, listing: Listing) -> Memo:
        """The memo of a folder that now looks like `listing`."""
        memo = self._folders.get(listing.folder) or Memo()
        if memo.names != listing.names or memo.seen != listing.seen:
            memo = self._folders[listing.folder] = memo.after(listing)
            self._changed = True
        return memo

    def select(self, memo: Memo, index: int) -> None:
        """Note that the rules select the item."""
        memo.flags[index] |= SELECTED
        self._changed = True

    def learn(self, memo: Memo, index: int, content: Content, remarks: int) -> None:
        """Note what was read of a selected file, unless it is not the listed one or changed too recently."""
        status, settled = content.status, content.began_ns - CLOCK_STEP_NS
        # A time in the future was set by hand: it does not come again by itself, and the ctime tells the next change.
        fresh = status.st_ctime_ns >= settled or settled <= status.st_mtime_ns <= content.began_ns + CLOCK_STEP_NS
        if content.still and not fresh and memo.looks(index) == _packed(look(status)):
            memo.put(index, content.digest, KNOWN | SELECTED | remarks)
            self._changed = True

    def total(self, memo: Memo, total: bytes) -> bytes:
        """Note and give back the digest of all items as they are in the tree."""
        memo.total, self._changed = total, True
        return total

    def keep(self, folders: set[bytes]) -> None:
        """Forget folders that are gone, as soon as they outnumber these."""
        if len(self._folders) > 2 * len(folders) + _SLACK:
            self._folders = {folder: memo for folder, memo in self._folders.items() if folder in folders}
            self._changed = True

    def save(self) -> None:
        """Replace the file when something was learnt; where that fails, the next scan takes longer and no more."""
        if self._path and self._changed:
            try:
                write_file(self._path, _dump(self._rules, self._folders))
            except OSError:
                return
            self._changed = False


def _packed(numbers: Sequence[int]) -> bytes:
    try:
        return array("q", numbers).tobytes()
    except OverflowError:
        return array("Q", [number & 0xFFFF_FFFF_FFFF_FFFF for number in numbers]).tobytes()


def _load(path: Path) -> tuple[int, dict[bytes, Memo]]:
    """Rules and memos of a whole file of this version; anything else is as good as none."""
    try:
        content = path.read_bytes()
    except OSError:
        return 0, {}
    start = len(_MAGIC) + _DIGEST
    if content[:start] != _MAGIC + hashlib.sha256(memoryview(content)[start:]).digest():
        return 0, {}
    (rules,) = _RULES.unpack_from(content, start)
    start += _RULES.size
    found = {}
    while start < len(content):
        ends = list(accumulate(_SIZES.unpack_from(content, start), initial=start + _SIZES.size))
        folder, names, seen, digests, flags, total = (content[a:b] for a, b in pairwise(ends))
        found[folder] = Memo(names, seen, bytearray(digests), bytearray(flags), total)
        start = ends[-1]
    return rules, found


def _dump(rules: int, folders: dict[bytes, Memo]) -> bytes:
    body: list[bytes | bytearray] = [_RULES.pack(rules)]
    for folder, memo in folders.items():
        parts = (folder, memo.names, memo.seen, memo.digests, memo.flags, memo.total)
        body += [_SIZES.pack(*map(len, parts)), *parts]
    whole = b"".join(body)
    return _MAGIC + hashlib.sha256(whole).digest() + whole
