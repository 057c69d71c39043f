"""What leaves the process: data on stdout, talk on stderr, or one JSON document and nothing else."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TextIO

from aj.shared.errors import AjError, to_wire
from aj.shared.jsonio import Json

if TYPE_CHECKING:
    from aj.shared.model import Notice

Style = Literal["bold", "dim", "red", "green", "yellow", "cyan"]
_CODES: Mapping[Style, str] = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class OutputError(AjError):
    """Stdout or stderr cannot be written."""


class HungUp(Exception):
    """Whoever read our output has gone: no error, but nobody is left to talk to."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command has to say, once for machines and once for people."""

    document: Mapping[str, Json]
    """The `--json` document; it has a `kind`."""
    show: Callable[[Console], None]
    """Prints the same for people."""
    exit_code: int = 0


class Console:
    """The only writer to stdout and stderr. `machine` says that stdout is for one JSON document."""

    def __init__(self, env: Mapping[str, str], out: TextIO, err: TextIO, *, machine: bool) -> None:
        self.out = out
        self.err = err
        self.machine = machine
        self._plain = bool(env.get("NO_COLOR")) or env.get("TERM") == "dumb"
        for stream in (out, err):
            if reconfigure := getattr(stream, "reconfigure", None):
                reconfigure(errors="backslashreplace")

    def answer(self, answer: Answer) -> int:
        """Give the answer in the form that was asked for; the exit code."""
        if self.machine:
            # JSON is UTF-8 whatever the locale; a lone surrogate (a byte of a foreign name) becomes its JSON escape
            text = json.dumps(answer.document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
            self._guard(self.out.flush)
            self._guard(lambda: self.out.buffer.write(text.encode("utf-8", "backslashreplace")))
        else:
            answer.show(self)
        self.flush()
        return answer.exit_code

    def line(self, text: str = "") -> None:
        """A line that a script would read; control characters made visible."""
        self._write(self.out, text.translate(_VISIBLE) + "\n")

    def painted(self, text: str, *styles: Style) -> None:
        """A line of data, coloured where stdout can show it."""
        self._write(self.out, self._paint(self.out, text, styles) + "\n")

    def stream(self, text: str) -> None:
        """A job's own output, untouched and at once: on stdout, or on stderr when that is kept for the document."""
        stream = self.err if self.machine else self.out
        self._write(stream, text)
        self._guard(stream.flush)

    def say(self, text: str, *styles: Style) -> None:
        """A line for the person: progress, hints."""
        self._write(self.err, self._paint(self.err, text, styles) + "\n")

    def warn(self, notice: Notice) -> None:
        """A warning with its place and way out."""
        self._labelled("warning", "yellow", notice.message, notice.where, notice.hint)

    def error(self, error: AjError) -> None:
        """An error with its place and way out."""
        self._labelled("error", "red", error.message, error.where, error.hint)

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Aligned columns under a header; one line a row."""
        lines = [tuple(cell.translate(_VISIBLE).replace("\n", " ") for cell in row) for row in (header, *rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for number, line in enumerate(lines):
            text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            self.painted(text, *(("bold",) if number == 0 else ()))

    def interactive(self) -> bool:
        """Whether stderr is a terminal that can move its cursor."""
        return not self._plain and self.err.isatty()

    def flush(self) -> None:
        """Hand everything to the system; the place where a closed pipe or a full disk shows at the latest."""
        self._guard(self.out.flush)
        self._guard(self.err.flush)

    def _labelled(self, label: str, colour: Style, message: str, where: str | None, hint: str | None) -> None:
        def paint(text: str, *styles: Style) -> str:
            return self._paint(self.err, text, styles)

        lines = [f"{paint(label + ':', 'bold', colour)} {paint(message)}"]
        if where:
            lines.append(f"  {paint('-->', 'bold', 'cyan')} {paint(where)}")
        if hint:
            lines.append(f"  {paint('help:', 'bold', 'cyan')} {paint(hint).replace(chr(10), chr(10) + ' ' * 8)}")
        self._write(self.err, "\n".join(lines) + "\n")

    def _paint(self, stream: TextIO, text: str, styles: Sequence[Style]) -> str:
        visible = text.translate(_VISIBLE)
        if not styles or self._plain or not stream.isatty():
            return visible
        return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{visible}\x1b[0m"

    def _write(self, stream: TextIO, text: str) -> None:
        self._guard(lambda: stream.write(text))

    def _guard(self, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            for each in (self.out, self.err):
                try:
                    each.flush()
                except OSError:  # it would fail again when the interpreter closes the stream
                    os.dup2(os.open(os.devnull, os.O_WRONLY), each.fileno())
            if error.errno in (errno.EPIPE, errno.EIO):
                raise HungUp from error
            raise OutputError(f"the output cannot be written: {error.strerror}") from error


def failure(error: AjError, exit_code: int | None = None) -> Answer:
    """The `error` document, and the same in words on stderr; `exit_code` where it is not the error's own."""
    code = error.exit_code if exit_code is None else exit_code
    return Answer({"kind": "error", "error": to_wire(error)}, lambda out: out.error(error), code)


def standard(env: Mapping[str, str], *, machine: bool) -> Console:
    """The console of this process."""
    # a stream that was closed before we began is None
    out, err = (stream or io.TextIOWrapper(io.BytesIO()) for stream in (sys.stdout, sys.stderr))
    return Console(env, out, err, machine=machine)
