"""A job's output while it runs: pages by cursor, whole lines, the rank in front when there are several."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aj.sdk import Client

QUICK_SECONDS = 0.05
SLOW_SECONDS = 1.0
"""Polling begins quick and slows down while nothing comes."""
TAIL_LINES = 20


@dataclass(slots=True)
class Follower:
    """Reads one job's output. `write` gets whole lines; `prefixed` puts `RANK | ` in front of each."""

    client: Client
    name: str
    write: Callable[[str], None]
    prefixed: bool
    _cursor: Mapping[str, int] = field(default_factory=dict)
    _partial: dict[str, str] = field(default_factory=dict)

    def to_the_end(self) -> None:
        """Everything until the job has ended."""
        pause = QUICK_SECONDS
        while not self.page():
            time.sleep(pause)
            pause = QUICK_SECONDS if self._partial_grew else min(pause * 1.5, SLOW_SECONDS)

    _partial_grew: bool = False

    def page(self) -> bool:
        """What is new; True when nothing will follow."""
        page = self.client.job_logs(self.name, self._cursor)
        self._cursor = page["cursor"]
        self._partial_grew = bool(page["chunks"])
        for chunk in page["chunks"]:
            self._take(chunk["stream"], chunk["text"])
        if page["finished"]:
            self._flush()
        return bool(page["finished"])

    def _take(self, stream: str, text: str) -> None:
        whole, newline, rest = (self._partial.pop(stream, "") + text).rpartition("\n")
        if newline:
            self._write(stream, whole + newline)
        if rest:
            self._partial[stream] = rest

    def _flush(self) -> None:
        for stream, text in sorted(self._partial.items()):
            self._write(stream, text + "\n")
        self._partial.clear()

    def _write(self, stream: str, text: str) -> None:
        if self.prefixed:
            text = "".join(f"{stream} | {line}\n" for line in text.removesuffix("\n").split("\n"))
        self.write(text)


def whole_log(client: Client, name: str) -> tuple[dict[str, str], bool]:
    """All output so far by stream, and whether it is complete."""
    texts: dict[str, str] = {}
    cursor: Mapping[str, int] = {}
    while True:
        page: Mapping[str, Any] = client.job_logs(name, cursor)
        for chunk in page["chunks"]:
            texts[chunk["stream"]] = texts.get(chunk["stream"], "") + chunk["text"]
        if page["finished"] or not page["chunks"]:
            return texts, bool(page["finished"])
        cursor = page["cursor"]


def joined(texts: Mapping[str, str]) -> str:
    """The streams one after the other, each line with its rank where there are several."""
    lines: list[str] = []
    Follower(None, "", lines.append, len(texts) > 1)  # type: ignore[arg-type]
    for stream, text in sorted(texts.items(), key=lambda item: (len(item[0]), item[0])):
        if len(texts) > 1:
            text = "".join(f"{stream} | {line}\n" for line in text.removesuffix("\n").split("\n"))
        lines.append(text)
    return "".join(lines)


def tail(text: str) -> str:
    """The last lines of a log."""
    return "\n".join(text.rstrip("\n").split("\n")[-TAIL_LINES:])
