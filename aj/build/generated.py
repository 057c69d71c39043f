"""The files that aj itself puts into the archive: the runner, and SSH keys where the caller asked for them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from aj.build.select import Generated
from aj.shared.errors import CodeError
from aj.shared.model import Caller, Notice
from aj.shared.paths import Home, shipped

RUNNER = b"aj_runner.sh"
SSH_FILES = ("config", "id_ecdsa", "id_ed25519", "id_rsa", "known_hosts")
"""All that is ever taken from the caller's `~/.ssh`."""


def bootstrap() -> Path:
    """The static script that verifies and unpacks the archive in the job."""
    return shipped("backends") / "archive" / "bootstrap.sh"


def generated_files(home: Home, caller: Caller) -> tuple[Mapping[bytes, Generated], tuple[Notice, ...]]:
    """Archive path → content; independent of command, environment and shape, so that these never change the archive.

    `AJ_HOME/scripts` travels with the code: as part of the tree when it lies there, else as `.azure_jobs/scripts`.
    """
    runner = Generated((shipped("backends") / "archive" / "aj_runner.sh").read_bytes(), 0o755)
    keys = _ssh_files(caller)
    notices = tuple(
        Notice(f"`{name}` of your home's `.ssh` travels with the code", hint="unset AJ_SHIP_SSH to keep it here")
        for name in keys
    )
    ssh = {f".ssh/{name}".encode(): Generated(content, 0o600) for name, content in keys.items()}
    return {RUNNER: runner, **ssh, **_scripts(home, caller)}, notices


def _scripts(home: Home, caller: Caller) -> Mapping[bytes, Generated]:
    if home.root.is_relative_to(caller.cwd):
        return {}
    return {
        b".azure_jobs/scripts/" + os.fsencode(path.relative_to(home.scripts)): Generated(
            path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644
        )
        for path in sorted(home.scripts.rglob("*"))
        if path.is_file()
    }


def _ssh_files(caller: Caller) -> Mapping[str, bytes]:
    asked = caller.env.get("AJ_SHIP_SSH", "")
    if asked in ("", "0"):
        return {}
    if asked != "1":
        raise CodeError(f"`AJ_SHIP_SSH={asked}` is neither 0 nor 1", hint="set AJ_SHIP_SSH=1 to ship your SSH keys")
    folder = Path(caller.env.get("HOME", "")) / ".ssh"
    found = {name: (folder / name).read_bytes() for name in SSH_FILES if (folder / name).is_file()}
    if not found:
        raise CodeError(
            "AJ_SHIP_SSH=1 asks for SSH keys, but there are none", where=str(folder), hint="unset AJ_SHIP_SSH"
        )
    return found
