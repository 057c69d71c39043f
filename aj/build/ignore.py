"""Git's pattern language: what one line of an ignore file means, byte for byte, and which line of many decides."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from aj.shared.paths import shown

_BOM = b"\xef\xbb\xbf"
_ANY = b"[^/]"
_STAR = b"[^/]*?"
_DEEP_SLASH = rb"(?:.*?/)??"
"""`**/`: nothing, or everything up to a slash."""
_DEEP = b".*?"
"""A `**` that ends the pattern, or stands before an escaped slash."""
_NEVER = b"(?!)"
_WILD = re.compile(rb"[*?\[\\]")
_NAMED = re.compile(rb"\[:([^\]]*):\]")
_RANGE = re.compile(rb"-(\\.|[^\\\]])", re.DOTALL)
_SINGLE = re.compile(rb"(\\.|[^\\])", re.DOTALL)
_CLASSES = {
    b"alnum": string.ascii_letters + string.digits,
    b"alpha": string.ascii_letters,
    b"blank": " \t",
    b"cntrl": "".join(map(chr, (*range(32), 127))),
    b"digit": string.digits,
    b"graph": "".join(map(chr, range(33, 127))),
    b"lower": string.ascii_lowercase,
    b"print": "".join(map(chr, range(32, 127))),
    b"punct": string.punctuation,
    b"space": " \t\n\r",  # without \v and \f: git's own table, not the C library's
    b"upper": string.ascii_uppercase,
    b"xdigit": string.hexdigits,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One pattern of an ignore file; as text `file:line: pattern`, a line of 0 stands for no line."""

    source: str
    line: int
    text: bytes
    """As written, without trailing blanks."""
    negated: bool
    """`!`: re-includes what an earlier rule excluded."""
    folder_only: bool
    """A final `/`: folders, never links to folders."""
    by_name: bool
    """No inner `/`: matches the last component at any depth."""
    body: bytes
    """The glob that is left."""

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        return f"{place}: {shown(self.text)}"

    def matches(self, path: bytes, name: bytes) -> bool:
        """Whether `path` (relative, `/` between components, `name` its last) fits the pattern, whatever it is."""
        return _compiled(self.body).fullmatch(name if self.by_name else path) is not None


def parse(content: bytes, source: str) -> tuple[Rule, ...]:
    """The rules of an ignore file in source order; comments and lines that can match nothing are dropped."""
    rules = []
    for number, line in enumerate(content.removeprefix(_BOM).split(b"\n"), 1):
        if not line.startswith(b"#") and (rule := _rule(source, number, line)):
            rules.append(rule)
    return tuple(rules)


def _rule(source: str, number: int, line: bytes) -> Rule | None:
    whole = line.removesuffix(b"\r").partition(b"\0")[0]
    kept = whole.rstrip(b" ")
    # an odd number of backslashes escapes the first blank
    text = whole[: len(kept) + (len(kept) - len(kept.rstrip(b"\\"))) % 2]
    marked = text.removeprefix(b"!")
    path = marked.removesuffix(b"/")
    body = path.removeprefix(b"/")
    if not body or _regex(body) is None:
        return None
    return Rule(source, number, text, marked != text, path != marked, b"/" not in path, body)


class Rules:
    """Many rules in order: the last one that matches decides. Most names match none, which costs about 0.5 µs."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._reversed = tuple(reversed(tuple(rules)))
        self._name = _any_of(rule.body for rule in self._reversed if rule.by_name)
        self._path = _any_of(rule.body for rule in self._reversed if not rule.by_name)

    def last(self, path: bytes, name: bytes, *, folder: bool) -> Rule | None:
        """The rule that decides about `path`, parents not considered; `folder` is False for a link to one."""
        if self._name(name) or self._path(path):
            for rule in self._reversed:
                if (folder or not rule.folder_only) and rule.matches(path, name):
                    return rule
        return None


def _any_of(bodies: Iterable[bytes]) -> Callable[[bytes], object]:
    return re.compile(b"|".join(_regex(body) or _NEVER for body in bodies) or _NEVER, re.DOTALL).fullmatch


@lru_cache(4096)
def _compiled(body: bytes) -> re.Pattern[bytes]:
    return re.compile(_regex(body) or _NEVER, re.DOTALL)


def _regex(body: bytes) -> bytes | None:
    """The regular expression of a glob, for `fullmatch`; None for a malformed glob, which matches nothing in git."""
    wild = _WILD.search(body)
    literal = body[: wild.start()] if wild else body
    tokens = _tokens(body[len(literal) :])
    if tokens is None:
        return None
    return re.escape(literal) + _first_fits(
        tokens, {_DEEP, _DEEP_SLASH}, lambda part: _first_fits(part, {_STAR}, b"".join)
    )


def _first_fits(tokens: list[bytes], wild: set[bytes], spell: Callable[[list[bytes]], bytes]) -> bytes:
    """The tokens, each wildcard but the last taking its first fit for good: what it might give up, the next one takes.

    So no pattern is slow. A `*` is sure of its first fit as it crosses no `/`, a `**` only with all up to the next.
    """
    parts: list[list[bytes]] = [[]]
    for token in tokens:
        if token in wild:
            parts.append([])
        parts[-1].append(token)
    first, *others = parts
    texts = [part[0] + spell(part[1:]) for part in others]
    return spell(first) + b"".join([*(b"(?>%b)" % text for text in texts[:-1]), *texts[-1:]])


def _tokens(glob: bytes) -> list[bytes] | None:
    """One regular expression for each thing that `glob` asks for; it starts where its literal prefix ends.

    git takes the prefix off before it looks at `**`, so that a `**` behind it counts as the start of a component.
    """
    tokens: list[bytes] = []
    at = 0
    while at < len(glob):
        char = glob[at : at + 1]
        if char == b"*":
            token, at = _star(glob, at)
        elif char == b"[":
            found = _bracket(glob, at + 1)
            if found is None:
                return None
            token, at = found
        elif char == b"?":
            token, at = _ANY, at + 1
        else:
            at += char == b"\\"
            if at == len(glob):
                return None
            token, at = re.escape(glob[at : at + 1]), at + 1
        tokens.append(token)
    return tokens


def _star(glob: bytes, at: int) -> tuple[bytes, int]:
    end = len(glob) - len(glob[at:].lstrip(b"*"))
    at_start = at == 0 or glob[at - 1 : at] == b"/"
    if end - at < 2 or not at_start:
        return _STAR, end
    if glob.startswith(b"/", end):
        return _DEEP_SLASH, end + 1
    return (_DEEP if end == len(glob) or glob.startswith(b"\\/", end) else _STAR), end


def _bracket(glob: bytes, at: int) -> tuple[bytes, int] | None:
    """The class whose `[` is before `at`, and where it ends; None when it is unclosed or names no known class."""
    negated = glob[at : at + 1] in (b"!", b"^")
    at += negated
    members: set[int] = set()
    start = at
    previous = 0
    while at == start or not glob.startswith(b"]", at):
        if named := _NAMED.match(glob, at):
            if named[1] not in _CLASSES:
                return None
            members.update(_CLASSES[named[1]].encode())
            previous, at = 0, named.end()
        elif previous and (ranged := _RANGE.match(glob, at)):
            members.update(range(previous, ranged[1][-1] + 1))
            previous, at = 0, ranged.end()
        elif single := _SINGLE.match(glob, at):
            previous, at = single[1][-1], single.end()
            members.add(previous)
        else:
            return None
    listed = b"".join(b"\\x%02x" % byte for byte in range(1, 256) if (byte in members) != negated and byte != 47)
    return (b"[" + listed + b"]" if listed else _NEVER), at + 1
