"""YAML text that readers of YAML 1.1 and of YAML 1.2 take for the same value."""

from __future__ import annotations

import json
import re

from aj.shared.jsonio import Json

_DEPTH_LIMIT = 120


def dump(value: Json) -> str:
    """The one block-style text of a JSON value, keys in their order, with a final newline.

    `ValueError` for what JSON cannot say: NaN, infinity, other types, nesting beyond 120 levels.
    """
    return "\n".join(_lines(value, 0)) + "\n"


def _lines(value: Json, depth: int) -> list[str]:
    if depth > _DEPTH_LIMIT:
        raise ValueError(f"nested deeper than {_DEPTH_LIMIT} levels")
    if isinstance(value, dict) and value:
        return [line for key, item in value.items() for line in _entry(key, item, depth)]
    if isinstance(value, list | tuple) and value:
        blocks = (_block(item) or _lines(item, depth + 1) for item in value)
        return [line for first, *rest in blocks for line in ("- " + first, *_indent(rest))]
    return [_scalar(value)]


def _entry(key: Json, item: Json, depth: int) -> list[str]:
    name = _text(key)
    # A reader looks only so far for the `:` of a key.
    head = [f"{name}:"] if len(name) < 500 else [f"? {name}", ":"]
    if block := _block(item):
        return [*head[:-1], f"{head[-1]} {block[0]}", *_indent(block[1:])]
    if isinstance(item, dict | list | tuple) and item:
        return [*head, *_indent(_lines(item, depth + 1))]
    return [*head[:-1], f"{head[-1]} {_scalar(item)}"]


def _indent(lines: list[str]) -> list[str]:
    return ["  " + line if line else line for line in lines]


def _scalar(value: Json) -> str:
    if isinstance(value, str):
        return _text(value)
    try:
        text = json.dumps(value, allow_nan=False)
    except TypeError as error:
        raise ValueError(str(error)) from None
    if not isinstance(value, float):
        return text
    mantissa, e, exponent = text.partition("e")
    # YAML 1.1 takes a number without a dot for text.
    return mantissa + ("" if "." in mantissa else ".0") + e + exponent


# What begins with a letter, `_`, `/` or `$` is a number, a date or a mark in no dialect; some words are.
_PLAIN = re.compile(r"[A-Za-z_/$](?:[!-9;-~]|:(?=[!-~])| (?=[!-\"$-~]))*")
_WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
# Control and direction marks, line breaks of one dialect, and what no text may hold.
_SPECIAL = "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufffe\uffff]"
_ESCAPED = re.compile(f'["\\\\]|{_SPECIAL}')
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0"}


def _text(value: Json) -> str:
    """A text on one line: plain where no reader can take it for anything else, else in double quotes."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} cannot be a key")
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return '"' + _ESCAPED.sub(_escape, value) + '"'


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


_NOT_IN_BLOCK = re.compile(f"(?!\t){_SPECIAL}|\\s\\Z")


def _block(value: Json) -> list[str] | None:
    """The mark and the lines of a literal block, for a text where that is exact and no editor would strip a blank."""
    lines = value.split("\n") if isinstance(value, str) else []
    if len(lines) < 2 or lines[0][:1] in ("", " ", "\t") or any(_NOT_IN_BLOCK.search(line) for line in lines):
        return None
    final_breaks = len(value) - len(value.rstrip("\n"))
    return [{0: "|-", 1: "|"}.get(final_breaks, "|+"), *(lines[:-1] if final_breaks else lines)]
