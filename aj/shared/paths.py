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


def positive_seconds(env: Mapping[str, str], name: str, default: float) -> float:
    """A setting of the daemon; `ConfigError` when it is no positive number."""
    text = env.get(name) or str(default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 < seconds < float("inf"):
        hint = "set it before `aj daemon restart`, or unset it"
        raise ConfigError(f"{name} `{text}` is not a positive number of seconds", hint=hint)
    return seconds


def shown(path: bytes) -> str:
    """A raw path or pattern for people: what is not UTF-8 or not printable is escaped."""
    text = path.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class _Below:
    """A name in AJ_HOME; on a `Home` it is a path."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, home: Home, owner: type[Home]) -> Path:
        return home.root / self._name


@dataclass(frozen=True, slots=True)
class Home:
    """AJ_HOME: one project's templates, configuration, build folder and history. `root` is absolute."""

    root: Path

    templates = _Below("template")
    """Leaves: `template/<name>.yaml`."""
    scripts = _Below("scripts")
    """The only part of AJ_HOME that travels with the code."""
    config = _Below("aj_config.json")
    """Workspace, experiment, default template."""
    snapshots = _Below("snapshots")
    """Payload snapshots of the project's templates, made for review."""
    record = _Below("record.jsonl")
    """The journal of attempts, one JSON line each."""
    build = _Below("build")
    """The doit memo and the targets of the pure steps."""
    daemon = _Below("daemon")
    """The queue database."""
    submission = _Below("submission")
    """Documents handed to external tools, `<id>.yaml`."""
    dryrun = _Below("dryrun")
    """What `aj run -d` wrote, `<id>.yaml`."""
    logs = _Below("logs")
    """One folder a local job."""


def home(env: Mapping[str, str], cwd: Path) -> Home:
    """AJ_HOME, default `./.azure_jobs`; relative values are taken from `cwd`."""
    return Home(_absolute(env.get("AJ_HOME") or ".azure_jobs", cwd))


def cache_home(env: Mapping[str, str]) -> Path:
    """AJ_CACHE_HOME, default the user's cache folder + `aj`."""
    if chosen := env.get("AJ_CACHE_HOME"):
        return _absolute(chosen, None)
    xdg = Path(env.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path(env.get("HOME") or Path.home()) / ".cache") / "aj"


def runtime_folder(env: Mapping[str, str]) -> Path:
    """The daemon's private folder: AJ_RUNTIME_DIR, else XDG_RUNTIME_DIR/aj, else a per-user temporary one."""
    if chosen := env.get("AJ_RUNTIME_DIR"):
        return _absolute(chosen, None)
    if (xdg := env.get("XDG_RUNTIME_DIR")) and Path(xdg).is_absolute():
        return Path(xdg) / "aj"
    return Path(tempfile.gettempdir()) / f"aj-{os.getuid()}"


def socket_path(runtime: Path) -> Path:
    """The daemon's socket in `runtime`; a path too long for the kernel moves to a hashed, per-user short home."""
    direct = runtime / "aj.sock"
    if len(os.fsencode(direct)) <= SOCKET_PATH_LIMIT:
        return direct
    tag = hashlib.sha256(os.fsencode(runtime)).hexdigest()[:16]
    # not TMPDIR: it may be long, or differ between two clients
    return Path("/tmp") / f"aj-{os.getuid()}" / f"{tag}.sock"


def _absolute(value: str, cwd: Path | None) -> Path:
    path = Path(value).expanduser()
    if not path.is_absolute():
        if cwd is None:
            raise ConfigError(
                f"`{value}` is not an absolute path", hint="AJ_CACHE_HOME and AJ_RUNTIME_DIR must be absolute"
            )
        path = cwd / path
    return Path(os.path.normpath(path))
