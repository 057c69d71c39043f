"""The files that aj itself puts into the archive: the runner, and SSH keys where the caller asked for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from aj.build.select import Generated
from aj.shared.errors import CodeError
from aj.shared.model import Caller, Notice
from aj.shared.paths import shipped

RUNNER = b"aj_runner.sh"
SSH_FILES = ("config", "id_ecdsa", "id_ed25519", "id_rsa", "known_hosts")
"""All that is ever taken from the caller's `~/.ssh`."""


def bootstrap() -> Path:
    """The static script that verifies and unpacks the archive in the job."""
    return shipped("backends") / "archive" / "bootstrap.sh"


def generated_files(caller: Caller) -> tuple[Mapping[bytes, Generated], tuple[Notice, ...]]:
    """Archive path → content; independent of command, environment and shape, so that these never change the archive."""
    runner = Generated((shipped("backends") / "archive" / "aj_runner.sh").read_bytes(), 0o755)
    keys = _ssh_files(caller)
    notices = tuple(
        Notice(f"`{name}` of your home's `.ssh` travels with the code", hint="unset AJ_SHIP_SSH to keep it here")
        for name in keys
    )
    return {RUNNER: runner, **{f".ssh/{name}".encode(): Generated(keys[name], 0o600) for name in keys}}, notices


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
