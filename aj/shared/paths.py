"""Where things lie: aj's own files, AJ_HOME, the cache, the runtime folder; the only reader of the environment."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from aj.shared.errors import ConfigError

SOCKET_PATH_LIMIT = 107
"""Bytes of a Unix socket's path on Linux, without the final NUL."""


@cache
def shipped(folder: Literal["backends", "schemas"]) -> Path:
    """aj's own `backends/` or `schemas/`: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / folder, package.parent / folder):
        if candidate.is_dir():
            return candidate
    raise ConfigError(f"aj's own folder `{folder}` is missing", where=str(package), hint="install aj again")


def environment() -> dict[str, str]:
    """A copy of this process's environment: the caller's world on the client, the daemon's own on the server."""
    return dict(os.environ)


@dataclass(frozen=True, slots=True)
class Home:
    """AJ_HOME: one project's templates, configuration, build folder and history. `root` is absolute."""

    root: Path

    @property
    def templates(self) -> Path:
        """Leaves: `template/<name>.yaml`."""
        return self.root / "template"

    @property
    def scripts(self) -> Path:
        """The only part of AJ_HOME that travels with the code."""
        return self.root / "scripts"

    @property
    def config(self) -> Path:
        """Workspace, experiment, default template."""
        return self.root / "aj_config.json"

    @property
    def snapshots(self) -> Path:
        """Payload snapshots of the project's templates, made for review."""
        return self.root / "snapshots"

    @property
    def record(self) -> Path:
        """The journal of attempts, one JSON line each."""
        return self.root / "record.jsonl"

    @property
    def build(self) -> Path:
        """The doit memo and the targets of the pure steps."""
        return self.root / "build"

    @property
    def daemon(self) -> Path:
        """The queue database."""
        return self.root / "daemon"

    @property
    def submission(self) -> Path:
        """Documents handed to external tools, `<id>.yaml`."""
        return self.root / "submission"

    @property
    def dryrun(self) -> Path:
        """What `aj run -d` wrote, `<id>.yaml`."""
        return self.root / "dryrun"

    @property
    def logs(self) -> Path:
        """One folder a local job."""
        return self.root / "logs"


def home(env: Mapping[str, str], cwd: Path) -> Home:
    """AJ_HOME, default `./.azure_jobs`; relative values are taken from `cwd`."""
    return Home(_absolute(env.get("AJ_HOME") or ".azure_jobs", cwd))


def cache_home(env: Mapping[str, str]) -> Path:
    """AJ_CACHE_HOME, default the user's cache folder + `aj`."""
    if chosen := env.get("AJ_CACHE_HOME"):
        return _absolute(chosen, None)
    base = env.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else _user_home(env) / ".cache") / "aj"


def runtime_folder(env: Mapping[str, str]) -> Path:
    """The daemon's private folder: AJ_RUNTIME_DIR, else XDG_RUNTIME_DIR/aj, else a per-user temporary one."""
    if chosen := env.get("AJ_RUNTIME_DIR"):
        return _absolute(chosen, None)
    if (xdg := env.get("XDG_RUNTIME_DIR")) and Path(xdg).is_absolute():
        return Path(xdg) / "aj"
    return _private_temporary()


def socket_path(runtime: Path) -> Path:
    """The daemon's socket in `runtime`; a path too long for the kernel moves to a hashed, per-user short home."""
    direct = runtime / "aj.sock"
    if len(os.fsencode(direct)) <= SOCKET_PATH_LIMIT:
        return direct
    tag = hashlib.sha256(os.fsencode(runtime)).hexdigest()[:16]
    # not TMPDIR: it may be long, or differ between two clients
    return Path("/tmp") / f"aj-{os.getuid()}" / f"{tag}.sock"


def _private_temporary() -> Path:
    return Path(tempfile.gettempdir()) / f"aj-{os.getuid()}"


def _user_home(env: Mapping[str, str]) -> Path:
    return Path(env["HOME"]) if env.get("HOME") else Path.home()


def _absolute(value: str, cwd: Path | None) -> Path:
    path = Path(value).expanduser()
    if not path.is_absolute():
        if cwd is None:
            raise ConfigError(
                f"`{value}` is not an absolute path", hint="AJ_CACHE_HOME and AJ_RUNTIME_DIR must be absolute"
            )
        path = cwd / path
    return Path(os.path.normpath(path))
