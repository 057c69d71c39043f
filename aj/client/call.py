"""What one call of `aj` runs in: the environment, the folder, AJ_HOME, the console and the way to the daemon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aj.client.console import Console
from aj.shared.errors import ConfigError
from aj.shared.paths import Home, home

if TYPE_CHECKING:
    from aj.sdk.client import Client
    from aj.shared.model import Caller


@dataclass(frozen=True, slots=True)
class Call:
    """Made once in `main`, handed to every command by click."""

    env: Mapping[str, str]
    console: Console

    @property
    def cwd(self) -> Path:
        """The current folder, absolute; `ConfigError` when it was removed."""
        try:
            return Path.cwd()
        except OSError as error:
            raise ConfigError(
                f"the current folder cannot be read: {error.strerror}", hint="change to a folder that exists"
            ) from error

    @property
    def home(self) -> Home:
        """AJ_HOME of this call."""
        return home(self.env, self.cwd)

    def connect(self) -> Client:
        """The daemon of this user for this project, started when none runs."""
        from aj.client.progress import progress
        from aj.sdk import connect

        with progress(self.console) as emit:
            return connect(self.home.root, env=self.env, emit=emit)

    def running(self) -> Client:
        """The daemon that runs; `DaemonNotRunningError` when none does."""
        from aj.sdk import connect

        return connect(self.home.root, env=self.env, start=False)

    def caller(self) -> Caller:
        """The caller's world for the daemon."""
        from aj.shared.caller import caller

        return caller(self.env, self.cwd)
