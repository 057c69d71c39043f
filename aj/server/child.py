"""Child processes: an argument list in, bounded output out, and nothing of theirs left running."""

from __future__ import annotations

import logging
import os
import selectors
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from time import sleep
from typing import IO

from aj.shared.clock import monotonic
from aj.shared.errors import ChildEndedError, ChildError
from aj.shared.redact import redact_text

KEPT = 64 * 1024
"""What a child keeps of its output unless it says otherwise."""
SHOWN = 2000
"""Characters of each stream in an error; the log has what was kept."""
GRACE_SECONDS = 5.0
"""Between TERM and KILL, and for output that is still on its way when the child has ended."""
TICK_SECONDS = 0.1
LOG = logging.getLogger("aj")


@dataclass(frozen=True, slots=True)
class Child:
    """What to run. `env` is the whole environment; `secrets` are values hidden in every text that comes out."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    timeout_seconds: float
    secrets: frozenset[str] = frozenset()
    stdin: bytes | Iterable[bytes] = b""
    """Blocks are taken one by one as the child reads; an error that they raise ends it."""
    kept: int = KEPT
    """Bytes of each stream's head, and of its tail, that are kept; the middle of longer output is dropped."""
    cancel: Event = field(default_factory=Event)
    """Set it from another thread to end the child and its children."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a child that exited with 0 wrote, secrets hidden."""

    stdout: str
    stderr: str


def run(child: Child, line: Callable[[str], None] | None = None) -> Output:
    """Run it to its end; `line` gets each line of both streams as it comes.

    `ChildError` with command, status, stdout and stderr when it cannot be started or fails; `ChildEndedError` when it
    takes too long, is canceled, or `end_all` was called: then its whole process group has ended.
    """
    try:
        process = subprocess.Popen(
            child.argv,
            env=child.env,
            cwd=child.cwd,
            stdin=subprocess.PIPE if child.stdin != b"" else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
    except (OSError, ValueError) as error:
        hint = f"is `{child.argv[0]}` installed and on PATH?" if isinstance(error, FileNotFoundError) else None
        raise ChildError(f"cannot start {_command(child)}: {error}", hint=hint) from error
    _RUNNING.add(process.pid)
    try:
        return _followed(process, child, line)
    finally:
        _RUNNING.discard(process.pid)


def end_all() -> bool:
    """Before this process ends: no child outlives it, nor its group, and none is started; whether there was one."""
    _CLOSING.set()
    had, deadline = bool(_RUNNING), monotonic() + 2 * GRACE_SECONDS
    while _RUNNING and monotonic() < deadline:
        sleep(TICK_SECONDS / 5)
    return had


_RUNNING: set[int] = set()
_CLOSING = Event()


def _followed(process: subprocess.Popen[bytes], child: Child, line: Callable[[str], None] | None) -> Output:
    pipes = _Pipes(process, child, line)
    try:
        ending = pipes.pump()
    except BaseException:
        _end(process)
        raise
    finally:
        pipes.close()
    if ending:
        _end(process)
    output = Output(pipes.text(process.stdout), pipes.text(process.stderr))
    if ending:
        raise ChildEndedError(_failure(child, ending, output))
    if process.returncode:
        raise ChildError(_failure(child, f"failed with status {process.returncode}", output))
    return output


class _Pipes:
    def __init__(self, process: subprocess.Popen[bytes], child: Child, line: Callable[[str], None] | None) -> None:
        self._process = process
        self._child = child
        self._line = line
        self._blocks = iter((child.stdin,) if isinstance(child.stdin, bytes) else child.stdin)
        self._unsent = memoryview(b"")
        self._kept: dict[IO[bytes] | None, _Kept] = {
            process.stdout: _Kept(child.kept),
            process.stderr: _Kept(child.kept),
        }
        self._selector = selectors.DefaultSelector()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            self._selector.register(stream, selectors.EVENT_READ)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            self._selector.register(process.stdin, selectors.EVENT_WRITE)

    def pump(self) -> str | None:
        """Moves bytes until the child has ended; why it had to be ended early, else None."""
        deadline = monotonic() + self._child.timeout_seconds
        exited: float | None = None
        while self._selector.get_map():
            if ending := self._must_end(deadline):
                return ending
            if self._process.poll() is not None:
                exited = exited or monotonic()
                if monotonic() > exited + GRACE_SECONDS:  # a grandchild holds the pipes
                    break
            for key, _ in self._selector.select(TICK_SECONDS):
                self._move(key.fileobj)  # type: ignore[arg-type]
        return self._wait(deadline)

    def text(self, stream: IO[bytes] | None) -> str:
        return redact_text(self._kept[stream].whole().decode(errors="replace"), self._child.secrets)

    def close(self) -> None:
        self._selector.close()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def _wait(self, deadline: float) -> str | None:
        while True:
            try:
                self._process.wait(TICK_SECONDS)
                return None
            except subprocess.TimeoutExpired:
                if ending := self._must_end(deadline):
                    return ending

    def _must_end(self, deadline: float) -> str | None:
        if self._child.cancel.is_set():
            return "was canceled"
        if _CLOSING.is_set():
            return "was ended with the daemon"
        return f"was ended after {self._child.timeout_seconds:g} s" if monotonic() > deadline else None

    def _move(self, stream: IO[bytes]) -> None:
        if stream is self._process.stdin:
            self._feed(stream)
            return
        block = os.read(stream.fileno(), KEPT)
        kept = self._kept[stream]
        for line in kept.take(block):
            if self._line is not None:
                self._line(redact_text(line.decode(errors="replace"), self._child.secrets))
        if not block:
            self._selector.unregister(stream)

    def _feed(self, stream: IO[bytes]) -> None:
        self._unsent = self._unsent or memoryview(next(self._blocks, b""))
        try:
            self._unsent = self._unsent[os.write(stream.fileno(), self._unsent[:KEPT]) :]
            ended = not self._unsent.obj
        except BrokenPipeError:
            ended = True
        if ended:
            self._selector.unregister(stream)
            with suppress(OSError):
                stream.close()


class _Kept:
    """Head and tail of one stream, and its unfinished line."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._head = b""
        self._tail = b""
        self._dropped = 0
        self._begun = b""

    def take(self, block: bytes) -> list[bytes]:
        room = self._limit - len(self._head)
        self._head += block[:room]
        self._tail += block[room:]
        self._dropped += max(0, len(self._tail) - self._limit)
        self._tail = self._tail[-self._limit :]
        *lines, self._begun = (self._begun + block).split(b"\n")
        if self._begun and (not block or len(self._begun) > KEPT):
            lines.append(self._begun)
            self._begun = b""
        return lines

    def whole(self) -> bytes:
        gap = f"\n… {self._dropped} bytes left out …\n".encode() if self._dropped else b""
        return self._head + gap + self._tail


def _end(process: subprocess.Popen[bytes]) -> None:
    """TERM, then KILL, to the group. Its leader is reaped last: until then its number cannot become another's."""
    deadline = monotonic() + GRACE_SECONDS
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        while monotonic() < deadline and not _has_exited(process.pid):
            sleep(TICK_SECONDS / 5)
    process.wait()


def _has_exited(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _failure(child: Child, ending: str, output: Output) -> str:
    streams = (("stdout", output.stdout.strip()), ("stderr", output.stderr.strip()))
    if any(len(text) > SHOWN for _, text in streams):
        LOG.error("%s %s\nstdout: %s\nstderr: %s", _command(child), ending, output.stdout, output.stderr)
    shown = [f"{name}: {_cut(text)}" for name, text in streams if text]
    return "\n".join([f"{_command(child)} {ending}", *shown])


def _command(child: Child) -> str:
    return f"`{redact_text(shlex.join(child.argv), child.secrets)}`"


def _cut(text: str) -> str:
    if len(text) <= SHOWN:
        return text
    half = SHOWN // 2
    return f"{text[:half]}\n… {len(text) - SHOWN} characters left out, the daemon's log has them …\n{text[-half:]}"
