"""How tests keep a server of their own: it says where it listens, and ends when the test process does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# The pipe to our end of it closes when we die, even by SIGKILL: `read` returns, and the server goes.
_UNTIL_EOF = '"$@" </dev/null & child=$!; read -r _; kill "$child" 2>/dev/null; wait "$child"'


class Server:
    """A child process in its own process group whose output goes to `log`."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path | None = None) -> None:
        self.log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                ["bash", "-c", _UNTIL_EOF, "server", *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )

    def wait_for(self, look: Callable[[str], T | None], seconds: float = 60.0) -> T:
        """What `look` finds in the log, as soon as it is there; RuntimeError with the log when it ends or is late."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            text = self.log.read_text(errors="replace")
            found = look(text)
            if found is not None:
                return found
            if self._process.poll() is not None:
                break
            time.sleep(0.02)
        self.stop()
        raise RuntimeError(f"the server did not start:\n{self.log.read_text(errors='replace')[-4000:]}")

    def stop(self) -> None:
        """End it: politely for five seconds, then with everything in its group."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
