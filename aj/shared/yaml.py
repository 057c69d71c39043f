"""YAML by the 1.2 core rules, with the place and the exact spelling of every value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from aj.shared.errors import TemplateError
from aj.shared.jsonio import Json, pointer
from aj.shared.model import Notice
from aj.shared.yaml_faults import Fault, Lint, Place, decode, explain, lint
from aj.shared.yaml_text import dump

__all__ = ["DEPTH_LIMIT", "EXPANSION_LIMIT", "Document", "Mark", "dump", "load"]

DEPTH_LIMIT = 100
"""Levels of nesting, aliases expanded: far below what recursion in any reader of the value can bear."""

EXPANSION_LIMIT = 100_000
"""Nodes that aliases may add to a document (a long text counts as several)."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file; line and column count characters from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Document:
    """A file's one document. No part of `value` is shared with another part, whatever the aliases."""

    value: Json
    """An empty file is an empty mapping."""
    marks: Mapping[str, Mark]
    """JSON pointer of each value to the place of its key, or of the item; inside an alias, where it was written."""
    spelling: Mapping[str, str]
    """JSON pointer of each number, boolean and null to its text in the file; other scalars are text."""
    notices: tuple[Notice, ...]


def load(content: bytes, file: str) -> Document:
    """Read one document; `file` names it in marks.

    `TemplateError` with `file:line:col` for whatever is not plain JSON once aliases are expanded: bytes that are not
    UTF-8, tags, keys that are not text, duplicate keys, self-references, alias bombs, deep nesting, a second document.
    """
    marks: dict[str, Mark] = {}
    spelling: dict[str, str] = {}

    def mark(place: Place) -> Mark:
        return Mark(file, place[0] + 1, place[1] + 1)

    def expand(node: _Node, place: Place, where: str) -> Json:
        # its own copy of its value; `DEPTH_LIMIT` bounds the recursion
        marks[where] = mark(place)
        if isinstance(node.content, dict):
            return {key: expand(item, at, where + pointer(key)) for key, (at, item) in node.content.items()}
        if isinstance(node.content, list):
            return [expand(item, item.place, f"{where}/{index}") for index, item in enumerate(node.content)]
        if not isinstance(node.content, str):
            spelling[where] = node.spelling
        return node.content

    try:
        text = decode(content)
        composer = _Composer(text)
        composer.read(_events(text))
    except Fault as fault:
        raise TemplateError(fault.message, where=str(mark(fault.place)), hint=fault.hint) from None
    value = expand(composer.root, composer.root.place, "") if composer.root else {}
    notices = tuple(Notice(found.message, str(mark(found.place)), found.hint) for found in composer.lints)
    return Document(value, marks, spelling, notices)


def _events(text: str) -> Iterator[Any]:
    """The parser's events; libyaml's where PyYAML was built with it, which is ten times faster."""
    try:
        yield from yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise explain(error, text) from None


@dataclass(slots=True, eq=False)
class _Node:
    """A value while it is read: a scalar, a list of nodes, or a dict of key to (place of the key, node)."""

    content: Any
    place: Place
    spelling: str = ""
    weight: int = 1
    """Nodes from here down, aliases expanded."""
    height: int = 0
    """Levels below this one, aliases expanded."""
    is_open: bool = False
    key: str | None = None
    """The key whose value comes next; `key_place` is where it stands, `merges` whether it is the merge key."""
    key_place: Place = (0, 0)
    merges: bool = False
    merge_place: Place | None = None
    merged: tuple[_Node, ...] = ()
    """The mappings named by `<<`, earlier ones first."""


class _Composer:
    """Builds the node tree on a stack of its own, so nesting costs no recursion and aliases no copies."""

    def __init__(self, text: str) -> None:
        self.root: _Node | None = None
        self.lints: list[Lint] = []
        self._lines = text.splitlines()
        self._has_comments = "#" in text
        self._stack: list[_Node] = []
        self._anchors: dict[str, _Node] = {}
        self._expanded = 0

    def read(self, events: Iterable[Any]) -> None:
        for event in events:
            if isinstance(event, yaml.ScalarEvent):
                self._scalar(event)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._open(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._close()
            elif isinstance(event, yaml.AliasEvent):
                self._alias(event)
            elif isinstance(event, yaml.DocumentStartEvent):
                if self.root is not None:
                    raise Fault("a second document starts here", _place(event), "keep one document a file")
                if event.version not in (None, (1, 2)):
                    raise Fault("a `%YAML` version other than 1.2", _place(event), "take the line out")

    def _scalar(self, event: Any) -> None:
        place, text = _place(event), event.value
        is_plain = event.tag is None and event.implicit[0]
        if self._wants_key():
            _check_tag(event, "str")
            self._key(text, place, is_plain and text == "<<")
            return
        value = _resolve(text) if is_plain else text if event.tag is None else _tagged(event)
        if event.style == ">" or (is_plain and self._has_comments and isinstance(value, str)):
            self.lints.extend(lint(event, self._lines))
        self._add(self._anchored(event, _Node(value, place, text, weight=1 + len(text) // 32)))

    def _open(self, event: Any) -> None:
        place, is_map = _place(event), isinstance(event, yaml.MappingStartEvent)
        if self._wants_key():
            raise Fault("a key must be text", place, "quote the value; `{` and `[` begin a mapping or a list")
        _check_tag(event, "map" if is_map else "seq")
        self._check_depth(0, place)
        self._stack.append(self._anchored(event, _Node({} if is_map else [], place, is_open=True)))

    def _close(self) -> None:
        node = self._stack.pop()
        node.is_open = False
        if node.merged:
            inherited: dict[str, Any] = {}
            for source in node.merged:
                inherited = {**source.content, **inherited}
            node.content = {**inherited, **node.content}
        self._add(node)

    def _alias(self, event: Any) -> None:
        place, name = _place(event), event.anchor
        target = self._anchors.get(name)
        if self._wants_key():
            raise Fault("a key must be text, not an alias", place, "write the key out")
        if target is None:
            raise Fault(f"unknown anchor `{name}`", place, f"quote the value, or define `&{name}` above it")
        if target.is_open:
            raise Fault(f"self-referencing anchor `{name}`", place, "an alias cannot stand inside what it names")
        self._expanded += target.weight
        if self._expanded > EXPANSION_LIMIT:
            raise Fault("too many expanded nodes", place, f"aliases may add {EXPANSION_LIMIT:,} nodes to a file")
        self._check_depth(target.height, place)
        self._add(replace(target, place=place))

    def _check_depth(self, height: int, place: Place) -> None:
        if len(self._stack) + height >= DEPTH_LIMIT:
            raise Fault("nested too deeply", place, f"flatten it: there may be {DEPTH_LIMIT} levels")

    def _anchored(self, event: Any, node: _Node) -> _Node:
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _wants_key(self) -> bool:
        return bool(self._stack) and isinstance(self._stack[-1].content, dict) and self._stack[-1].key is None

    def _key(self, key: str, place: Place, merges: bool) -> None:
        parent = self._stack[-1]
        first = parent.merge_place if merges else parent.content[key][0] if key in parent.content else None
        if first is not None:
            hint = "write `<<: [*a, *b]`: earlier ones win" if merges else "keep one of them"
            raise Fault(f"duplicate key `{key}` on line {place[0] + 1}, first on line {first[0] + 1}", place, hint)
        parent.key, parent.key_place, parent.merges = key, place, merges
        if merges:
            parent.merge_place = place

    def _add(self, node: _Node) -> None:
        if not self._stack:
            self.root = node
            return
        parent = self._stack[-1]
        parent.weight += node.weight
        if isinstance(parent.content, list):
            parent.content.append(node)
        elif parent.merges:
            parent.merged = tuple(node.content) if isinstance(node.content, list) else (node,)
            if not all(isinstance(each.content, dict) for each in parent.merged):
                hint = "write `<<: *name` or `<<: [*a, *b]`"
                raise Fault("`<<` merges mappings only", parent.key_place, hint)
        else:
            parent.content[parent.key] = (parent.key_place, node)
        parent.height = max(parent.height, node.height + (not parent.merges))
        parent.key = None


def _place(event: Any) -> Place:
    return event.start_mark.line, event.start_mark.column


_WORDS: Mapping[str, Json] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_DIGITS_LIMIT = 1000
"""A longer number stays text: Python itself refuses to print one of 4,300 digits."""


def _resolve(text: str) -> Json:
    """The value of a plain scalar; leading zeros and what JSON has no number for (`.inf`, `1e999`) make it text."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "-+.0123456789" or len(text) > _DIGITS_LIMIT:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if abs(number) != float("inf") else text
    return text


_TAG = "tag:yaml.org,2002:"
_KINDS: Mapping[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "null": type(None)}


def _tagged(event: Any) -> Json:
    """A scalar under one of the core tags; a text that its tag does not fit is an error."""
    _check_tag(event, *_KINDS)
    name = event.tag.removeprefix(_TAG)
    value = event.value if name in ("!", "str") else _resolve(event.value)
    if name == "float" and type(value) is int:
        return float(value)
    if type(value) is not _KINDS.get(name, str):
        raise Fault(f"`{event.value}` is not what its tag `!!{name}` says", _place(event), "take the tag out")
    return value


def _check_tag(event: Any, *allowed: str) -> None:
    if event.tag in (None, "!", *(_TAG + name for name in allowed)):
        return
    shown = "!!" + event.tag.removeprefix(_TAG) if event.tag.startswith(_TAG) else event.tag
    raise Fault(f"the tag `{shown}` is not read here", _place(event), "take it out, or quote the value if it is text")
