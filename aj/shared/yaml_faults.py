"""What is wrong or doubtful in a YAML text, in words that name the way out; places count from 0."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import yaml

Place = tuple[int, int]
"""Line and column from 0."""


class Fault(Exception):
    """A text that cannot be read; `place` is what to look at, `hint` what to do."""

    def __init__(self, message: str, place: Place, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.hint = hint


class Lint(NamedTuple):
    """A text that is read, but perhaps not as it was meant."""

    message: str
    place: Place
    hint: str


def decode(content: bytes) -> str:
    """The text of a file in UTF-8; `Fault` at the first byte or character that cannot be in one."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Fault("the file is UTF-16", (0, 0), "save it as UTF-8")
    content = content.removeprefix(b"\xef\xbb\xbf")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        place = _end_of(content[: error.start].decode())
        raise Fault(f"the file is not UTF-8: byte 0x{content[error.start]:02x}", place, "save it as UTF-8") from None
    if found := _UNREADABLE.search(text):
        code = ord(found[0])
        escape = f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
        hint = f'take it out, or write it as `"{escape}"` in double quotes'
        raise Fault(f"the invisible character U+{code:04X}", _end_of(text[: found.start()]), hint)
    return text


# YAML 1.1, which the parser follows, breaks lines at U+0085, U+2028 and U+2029, and YAML 1.2 does not.
_UNREADABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def _end_of(text: str) -> Place:
    lines = re.split("\r\n|\r|\n", text)
    return len(lines) - 1, len(lines[-1])


_TAB = "a tab in the indentation"
_BLANKS = "indent with blanks, not with tabs"
_ESCAPE = "write `\\\\` for a backslash, or use single quotes"
_NEXT_LINE = "begin the text on the next line, or quote the value"
_KEY_VALUE = "write `key: value`, or quote or indent the text"
_UNEXPECTED = "check the indentation, and the quotes and brackets above"

_KINDS: Sequence[tuple[str, str, str]] = (
    # A part of the parser's words (libyaml's, then PyYAML's own where they differ), ours, and the way out.
    ("maximum nesting", "nested too deeply", "flatten it"),
    ("tab character", _TAB, _BLANKS),
    ("escape", "an impossible escape in double quotes", _ESCAPE),
    ("hexadecimal", "an incomplete escape in double quotes", _ESCAPE),
    ("entries are not allowed", "`- ` cannot begin a value here", "begin the list on a line of its own, or quote it"),
    ("values are not allowed", "`:` is not expected here", "quote the value if `: ` belongs to it, or line up the key"),
    ("unexpected ':'", "`:` is not expected here", "write a blank after `:`, or quote the value"),
    ("could not find expected ':'", "a key without `:`", _KEY_VALUE),
    ("simple key", "a key without `:`", _KEY_VALUE),
    ("incompatible YAML document", "a `%YAML` version other than 1.2", "take the line out"),
    ("chomping", "unexpected text after `|` or `>`", _NEXT_LINE),
    ("comment or line break", "unexpected text after `|` or `>`", _NEXT_LINE),
    ("node content", "a value is missing here", "quote the value if this is text"),
    ("document separator", "`---` or `...` inside quotes", "close the quotes, or indent the line"),
)


def explain(error: yaml.YAMLError, text: str) -> Fault:
    """The parser's error as one sentence and a hint."""
    if not isinstance(error, yaml.MarkedYAMLError) or (mark := error.problem_mark or error.context_mark) is None:
        return Fault(" ".join(str(error).split()), (0, 0), _UNEXPECTED)
    place, problem, lines = (mark.line, mark.column), error.problem or "", text.splitlines()
    opened = (error.context_mark.line, error.context_mark.column) if error.context_mark else place
    if "quoted scalar" in (error.context or "") and "end of stream" in problem:
        return Fault("the quotes are never closed", opened, "close them at the end of the value")
    if "',' or" in problem:
        bracket = "{" if "mapping" in (error.context or "") else "["
        message = f"`,` or the end of the `{bracket}` of line {opened[0] + 1}, column {opened[1] + 1} is missing"
        return Fault(message, place, "close it, or quote the value if it is text")
    if "start any token" in problem or "alphabetic or numeric" in problem:
        line, column = opened if "alphabetic" in problem else place
        character = lines[line][column : column + 1] if line < len(lines) else ""
        if character == "\t":
            return Fault(_TAB, (line, column), _BLANKS)
        return Fault(f"`{character}` cannot begin a value", (line, column), "quote the value")
    if hint := _line_up(lines, place, "values are not allowed" in problem):
        return Fault("a key in a column of its own", place, hint)
    message, hint = next((rest for words, *rest in _KINDS if words in problem), ("unexpected text", _UNEXPECTED))
    return Fault(message, place, hint)


_KEY = re.compile(r"[ ]*(?:-[ ]+)*(?P<key>[^\s#\"'\[{:-][^:#]{0,80}?)[ ]?:(?:\s|\Z)")


def _line_up(lines: Sequence[str], place: Place, is_at_colon: bool) -> str | None:
    """What to do when the faulty line begins with a key that stands in another column than the key above it."""
    line = lines[place[0]] if place[0] < len(lines) else ""
    here = _KEY.match(line)
    if here is None or (is_at_colon and here.end("key") != place[1]):
        return None
    above = next((found for each in reversed(lines[: place[0]]) if (found := _KEY.match(each))), None)
    if above is None or here.start("key") == above.start("key"):
        return None
    return f"line up `{here['key']}` with `{above['key']}`"


_COMMENT = re.compile(r"[ \t]+(?=#[^\s#!])")


def lint(event: Any, lines: Sequence[str]) -> Iterator[Lint]:
    """What a scalar may hold otherwise than meant: text behind ` #`, and breaks that `>` keeps."""
    if event.style == ">":
        if re.search(r"\n[ \t]+\S", event.value):
            place = (event.start_mark.line, event.start_mark.column)
            message = "`>` keeps the line breaks of lines that are indented further"
            yield Lint(message, place, "use `|` for lines, or give all of them the same indentation")
        return
    line, column = event.end_mark.line, event.end_mark.column
    if line < len(lines) and (found := _COMMENT.match(lines[line], column)):
        yield Lint("text after ` #` is a comment", (line, found.end()), "quote the value if `#` belongs to it")
