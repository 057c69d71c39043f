"""The daemon from Python: `connect` gives a `Client`; nothing here prints, prompts or exits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from aj.sdk.client import Client
from aj.shared.model import Emit, nowhere

__all__ = ["Client", "connect"]


def connect(root: Path, *, env: Mapping[str, str], start: bool = True, emit: Emit = nowhere) -> Client:
    """A client of this user's daemon for the project whose AJ_HOME is `root` (absolute).

    `env` is the caller's environment (`os.environ`): it chooses the runtime folder. A daemon is started when none runs,
    and one of another version is replaced once its work is done, which `emit` is told of. With `start=False` neither
    happens: `DaemonNotRunningError` when none runs. `DaemonBusyError` within 5 seconds when one is alive but silent;
    `DaemonError` with the end of its log when it cannot start.

        from aj.sdk import connect
        client = connect(Path(".azure_jobs").absolute(), env=os.environ)
        for entry in client.queue():
            print(entry["ticket"], entry["state"])
    """
    from aj.sdk.spawn import Daemon

    daemon = Daemon.of(env)
    client = Client(root, daemon)
    if start:
        daemon.ensure(emit)
    else:
        daemon.greet()
    return client
