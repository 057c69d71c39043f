"""A job's output while it runs: pages by cursor, whole lines, the rank in front when there are several."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

QUICK_SECONDS = 0.05
SLOW_SECONDS = 1.0
"""Polling begins quick and slows down while nothing comes."""
TAIL_LINES = 20


Logs = Callable[[str, Mapping[str, int]], Mapping[str, Any]]
"""A page of a job's output from a cursor on: chunks [{stream, text}], the cursor after it, finished; perhaps a note."""


@dataclass(slots=True)
class Follower:
    """Reads one job's output and gives whole lines to `write`; `prefixed` puts the rank in front of each.

    `say` is told once why there is nothing yet.
    """

    logs: Logs
    name: str
    write: Callable[[str], None]
    prefixed: bool
    say: Callable[[str], object] | None = None
    tails: dict[str, str] = field(default_factory=dict)
    """The last lines of each stream so far."""
    _cursor: Mapping[str, int] = field(default_factory=dict)
    _begun: dict[str, str] = field(default_factory=dict)

    def to_the_end(self) -> None:
        """Everything until the job has ended."""
        pause = QUICK_SECONDS
        while not (page := self._take())["finished"]:
            if page["chunks"]:
                pause = QUICK_SECONDS
            else:
                time.sleep(pause)
                pause = min(pause * 1.5, SLOW_SECONDS)

    def so_far(self) -> bool:
        """Everything that is there now; True when nothing will follow."""
        while (page := self._take())["chunks"] and not page["finished"]:
            pass
        self._end_lines()
        return bool(page["finished"])

    def _take(self) -> Mapping[str, Any]:
        page: Mapping[str, Any] = self.logs(self.name, self._cursor)
        self._cursor = page["cursor"]
        if self.say and (note := page.get("note")):
            self.say(note)
            self.say = None
        for chunk in page["chunks"]:
            whole, newline, rest = (self._begun.pop(chunk["stream"], "") + chunk["text"]).rpartition("\n")
            if newline:
                self._write(chunk["stream"], whole)
            if rest:
                self._begun[chunk["stream"]] = rest
        if page["finished"]:
            self._end_lines()
        return page

    def _end_lines(self) -> None:
        for stream, text in sorted(self._begun.items()):
            self._write(stream, text)
        self._begun.clear()

    def _write(self, stream: str, lines: str) -> None:
        new = lines.split("\n")
        before = self.tails[stream].split("\n") if stream in self.tails else []
        self.tails[stream] = "\n".join([*before, *new][-TAIL_LINES:])
        self.write("".join(f"{stream} | {line}\n" if self.prefixed else f"{line}\n" for line in new))
