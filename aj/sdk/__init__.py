"""The daemon from Python: `connect` gives a `Client`; nothing here prints, prompts or exits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from aj.shared.model import Emit, JobSpec, nowhere

if TYPE_CHECKING:
    from aj.sdk.client import Client
    from aj.shared.job.build import Invocation

__all__ = ["connect", "new_spec"]


def connect(root: Path, *, env: Mapping[str, str], start: bool = True, emit: Emit = nowhere) -> Client:
    """A client of this user's daemon for the project whose AJ_HOME is `root` (absolute).

    `env` is the caller's environment (`os.environ`): it chooses the runtime folder. A daemon is started when none runs,
    and one of another version is replaced once its work is done, which `emit` is told of. With `start=False` neither
    happens: `DaemonNotRunningError` when none runs. `DaemonBusyError` within 5 seconds when one is alive but silent;
    `DaemonError` with the end of its log when it cannot start. `docs/sdk.md` has examples.
    """
    from aj.sdk.client import Client
    from aj.sdk.spawn import Daemon

    daemon = Daemon.of(env)
    client = Client(root, daemon)
    if start:
        daemon.ensure(emit)
    else:
        daemon.greet()
    return client


def new_spec(root: Path, template: str, call: Invocation, *, env: Mapping[str, str]) -> JobSpec:
    """The job that `aj run -t TEMPLATE` would make: `call` has command, folder, shape and further environment.

    It has a fresh AJ_ID, so it is submitted once; `env` may name it by AJ_NAME. The errors of a template or a command
    are raised here, with file, line and a way out.
    """
    from aj.shared.clock import new_id, now_utc
    from aj.shared.job.build import build_spec
    from aj.shared.job.naming import job_base_name
    from aj.shared.model import Identity
    from aj.shared.paths import Home
    from aj.shared.template.template import load_template

    identity = Identity(new_id(), job_base_name(env.get("AJ_NAME"), call.cwd, call.argv), now_utc())
    return build_spec(load_template(Home(root), template), call, identity).spec
