"""`aj doctor`: is everything here that a run needs?"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from aj.client.call import Call
from aj.client.commands import Command
from aj.client.console import Answer, Console, Style
from aj.shared.config import read_config
from aj.shared.errors import AjError
from aj.shared.model import to_json
from aj.shared.paths import cache_home, runtime_folder

State = Literal["ok", "warn", "fail"]
VERSION_SECONDS = 5
_TOOLS: dict[str, tuple[State, str]] = {
    "bash": ("fail", "jobs on this machine start in bash: install it"),
    **dict.fromkeys(("tar", "gzip"), ("fail", "jobs unpack the code with it: install it")),
    "sha256sum": ("fail", "jobs verify the code with sha256sum: install coreutils"),
    "uv": ("warn", "`aj run train.py` runs `uv run train.py`: install uv, or write `aj run python train.py`"),
    "git": ("warn", "records name the commit that a job was made from: install git"),
}
_STYLES: dict[State, Style] = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    name: str
    state: State
    detail: str
    hint: str | None = None


@click.command(cls=Command)
@click.pass_obj
def doctor(call: Call) -> Answer:
    """Check this machine and this project; change nothing, start nothing."""
    checks = [check for probe in (_machine, _folders, _daemon, _project) for check in _guarded(probe, call)]
    failed = any(check.state == "fail" for check in checks)
    document = {"kind": "doctor", "ok": not failed, "checks": [to_json(check) for check in checks]}

    def show(out: Console) -> None:
        width = max(len(check.name) for check in checks)
        for check in checks:
            out.painted(f"{check.state:<4}  {check.name:<{width}}  {check.detail}", _STYLES[check.state])
            if check.hint and check.state != "ok":
                out.line(f"{'':{width + 8}}{check.hint}")

    return Answer(document, show, int(failed))


def _guarded(probe: Callable[[Call], Iterator[Check]], call: Call) -> Iterator[Check]:
    try:
        yield from probe(call)
    except AjError as error:
        detail = f"{error.message}{f' ({error.where})' if error.where else ''}"
        yield Check(probe.__name__.strip("_"), "fail", detail, error.hint)


def _machine(call: Call) -> Iterator[Check]:
    yield Check("python", "ok", f"{platform.python_version()} at {sys.executable}")
    for tool, (state, hint) in _TOOLS.items():
        path = shutil.which(tool, path=call.env.get("PATH"))
        yield Check(tool, "ok", _version(path)) if path else Check(tool, state, "not found on PATH", hint)


def _version(path: str) -> str:
    try:
        ran = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=VERSION_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} ({error})"
    lines = ran.stdout.decode("utf-8", "replace").splitlines()
    return f"{lines[0].strip()} at {path}" if lines else path


def _folders(call: Call) -> Iterator[Check]:
    if call.home.root.exists():
        yield _folder("home", call.home.root)
    else:
        hint = "`aj init` writes a first project, AJ_HOME names another folder"
        yield Check("home", "warn", f"{call.home.root} is not there", hint)
    yield _folder("cache", cache_home(call.env))
    yield _folder("runtime", runtime_folder(call.env))


def _folder(name: str, path: Path) -> Check:
    if not path.exists():
        return Check(name, "ok", f"{path}, made when needed")
    if path.is_dir() and os.access(path, os.W_OK | os.X_OK):
        return Check(name, "ok", str(path))
    hint = "correct its owner and mode, or choose another"
    return Check(name, "fail", f"{path} is no folder of yours to write in", hint)


def _daemon(call: Call) -> Iterator[Check]:
    from aj.client.daemon import daemon_state

    found = daemon_state(call)
    said = "version {version}, process {pid}" if found["running"] else "not running, starts when needed"
    yield Check("daemon", "ok", said.format(**found))


def _project(call: Call) -> Iterator[Check]:
    from aj.client.project import EDITOR_SCHEMA, editor_schema
    from aj.shared.template.template import check_template, template_names

    if not call.home.root.is_dir():
        return
    config = read_config(call.home)
    names = template_names(call.home)
    if not names:
        yield Check("templates", "warn", f"none in {call.home.templates}", "`aj init` writes a first one")
    invalid = [name for name in names if check_template(call.home, name)]
    for name in invalid:
        yield Check("templates", "fail", f"`{name}` is invalid", f"`aj template validate {name}` says why")
    if names and not invalid:
        yield Check("templates", "ok", f"{len(names)} valid")
    if (chosen := config.get("template")) and chosen not in names:
        hint = "`aj config template NAME` sets another"
        yield Check("config", "fail", f"the configured template `{chosen}` does not exist", hint)
    copy = call.home.root / EDITOR_SCHEMA
    if copy.is_file() and copy.read_bytes() != editor_schema():
        yield Check("editor", "warn", f"{copy} is of another version", f"`aj schema template > {copy}` renews it")
