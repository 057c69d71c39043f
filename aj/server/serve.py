"""The daemon's process: it detaches, takes the lock, and says on its log why it could not start."""

from __future__ import annotations

import argparse
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from aj.shared.errors import AjError, ConfigError, DaemonError
from aj.shared.paths import environment, positive_seconds
from aj.shared.runtime import Runtime, acquire, make_private

if TYPE_CHECKING:
    from aj.server.workshop import Workshop

IDLE_SECONDS = 900.0
"""Without work and requests; AJ_IDLE_SECONDS changes it."""


def main(workshop: Workshop | None = None) -> None:
    """`python -m aj.server.serve --runtime DIR [--lock FD]`: with a held lock handed over, it goes to the background.

    `workshop` makes the submissions, by default the real one.
    """
    parser = argparse.ArgumentParser(prog="aj.server.serve", description="The daemon of aj; `aj` starts it by itself.")
    parser.add_argument("--runtime", type=Path, required=True, help="its private folder, absolute")
    parser.add_argument("--lock", type=int, help="a file descriptor that holds the daemon's lock: detach")
    asked = parser.parse_args()
    if asked.lock is not None:
        os.set_inheritable(asked.lock, False)
        if os.fork():
            os._exit(0)
    if workshop is None:
        from aj.server.workshop import live

        workshop = live()
    sys.exit(run(Runtime(asked.runtime), asked.lock, workshop, environment()))


def run(place: Runtime, lock: int | None, workshop: Workshop, env: Mapping[str, str]) -> int:
    """Serve until told to leave or idle; the exit status. What prevents the start is said on stderr, the log."""
    os.umask(0o077)
    os.chdir("/")
    try:
        _start_logging(env)
        make_private(place)
        held = lock if lock is not None else acquire(place.lock)
        if held is None:
            raise DaemonError("a daemon of this runtime folder is running already", where=str(place.folder))
        _raise_file_limit()
        from aj.server.listening import serve

        serve(place, held, workshop, positive_seconds(env, "AJ_IDLE_SECONDS", IDLE_SECONDS))
        return 0
    except AjError as error:
        logging.getLogger("aj").error("%s (%s): %s", error.message, error.where or "-", error.hint or "")
        return 1


def _start_logging(env: Mapping[str, str]) -> None:
    level = "DEBUG" if env.get("AJ_DEBUG") == "1" else env.get("AJ_LOG_LEVEL", "INFO").upper()
    if level not in logging.getLevelNamesMapping():
        raise ConfigError(f"AJ_LOG_LEVEL `{level}` is no level", hint="DEBUG, INFO, WARNING or ERROR")
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", level="WARNING")
    logging.getLogger("aj").setLevel(level)
    if env.get("AJ_DEBUG") == "1" and (point := env.get("AJ_DEBUG_STOP_AT")):
        logging.getLogger("aj.points").addHandler(StopAt(point))


class StopAt(logging.Handler):
    """Stops the daemon (as SIGSTOP does) once, where a submission first passes a point: for tests of its death."""

    def __init__(self, point: str) -> None:
        super().__init__()
        self._point: str | None = point

    def emit(self, record: logging.LogRecord) -> None:
        """`record` is of `aj.points`: id, point."""
        if self._point and record.getMessage().partition(": ")[2].startswith(self._point):
            self._point = None
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    main()
