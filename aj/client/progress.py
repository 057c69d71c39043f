"""How long work looks while it lasts: bars on a terminal, now and then a line elsewhere, nothing for quick steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aj.client.console import Console
from aj.client.show import size
from aj.shared.clock import monotonic
from aj.shared.model import Emit, Event, Notice

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_SECONDS = 0.3
"""What is quicker draws nothing: no flicker, and rich is not even imported."""
LINE_EVERY_SECONDS = 5.0
"""Where no cursor can be moved."""
_BYTES = ("pack", "upload")


@contextmanager
def progress(console: Console) -> Iterator[Emit]:
    """An `Emit` for one piece of work; leaves the terminal clean, whatever happens."""
    shown: _Lines | _Bars = _Bars(console) if console.interactive() else _Lines(console)

    def emit(event: Event) -> None:
        if event.kind == "warning":
            shown.pause()
            console.warn(Notice(event.detail))
        elif event.kind in ("note", "wait"):
            shown.pause()
            console.say(event.detail, "dim")
        elif event.kind != "step":  # a step that takes long tells of itself
            shown.update(event)

    try:
        yield emit
    finally:
        shown.pause()


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = monotonic() + LINE_EVERY_SECONDS

    def update(self, event: Event) -> None:
        if monotonic() >= self._next:
            self._next = monotonic() + LINE_EVERY_SECONDS
            self._console.say(f"{event.kind}: {_counted(event)}")
            self._console.flush()

    def pause(self) -> None:
        self._console.flush()


class _Bars:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._began: dict[str, tuple[float, int]] = {}
        self._from = monotonic() + PATIENCE_SECONDS

    def update(self, event: Event) -> None:
        since, before = self._began.setdefault(event.kind, (monotonic(), event.completed or 0))
        if self._live is None:
            if monotonic() < self._from:
                return
            self._live = self._start()
        task = self._tasks.get(event.kind)
        if task is None:
            task = self._tasks[event.kind] = self._live.add_task(event.kind, total=event.total, said="")
        amount, seconds = (event.completed or 0) - before, monotonic() - since
        rate = f", {size(int(amount / seconds))}/s" if event.kind in _BYTES and amount > 0 and seconds > 0 else ""
        self._live.update(task, completed=event.completed, total=event.total, said=_counted(event) + rate)

    def pause(self) -> None:
        if self._live is not None:
            self._live.stop()
        self._live = None
        self._tasks = {}

    def _start(self) -> Progress:
        from rich.console import Console as Terminal
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        live = Progress(
            TextColumn("{task.description:<8}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[said]}", markup=False),
            TimeRemainingColumn(compact=True),
            console=Terminal(file=self._console.err),
            transient=True,
        )
        live.start()
        return live


def _counted(event: Event) -> str:
    if event.completed is None:
        return event.detail
    spell = size if event.kind in _BYTES else str
    return f"{spell(event.completed)} of {spell(event.total)}" if event.total else spell(event.completed)
