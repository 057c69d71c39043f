"""A stand-in for the `amlt` program: reads the document as amlt does, talks like it, and fails as it is told.

`AMLT_DOUBLE` says how (`ok` `ask` `fail` `late-fail` `hang` `stubborn` `flood`); `AMLT_DOUBLE_LOG` is the folder where
it leaves the document as it understood it, and its process ids.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

LINK = "https://ml.azure.com/experiments/{experiment}/runs/{run}?wsid=/subscriptions/s/workspaces/w"
VARIABLE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})")


def main() -> None:
    """`amlt --version`, or `amlt run FILE EXPERIMENT -y`."""
    if sys.argv[1:] == ["--version"]:
        print("amlt, version 11.4.3")
        return
    command, file, experiment, sure = sys.argv[1:]
    assert (command, sure) == ("run", "-y"), sys.argv
    path, log, how = Path(file), Path(os.environ["AMLT_DOUBLE_LOG"]), os.environ.get("AMLT_DOUBLE", "ok")
    document = substituted(yaml.safe_load(path.read_text()), path.parent)
    seen = {
        "document": document,
        "experiment": experiment,
        "cwd": os.getcwd(),
        "mode": stat.S_IMODE(path.stat().st_mode),
        "file": file,
        "group": os.getpgid(0) == os.getpid(),
        "code": sorted(each.name for each in Path(document["code"]["local_dir"]).iterdir()),
    }
    (log / "seen.json").write_text(json.dumps(seen))
    print(f"\x1b[1mUploading code\x1b[0m for {document['jobs'][0]['name']}", flush=True)
    print("warning: image is old", file=sys.stderr, flush=True)
    BEHAVIOUR[how](document, log, LINK.format(experiment=experiment, run="calm_river_1"))


def substituted(value: Any, folder: Path) -> Any:
    """Every `$NAME` replaced; an unset one is an error, as amlt has it."""
    if isinstance(value, str):
        return VARIABLE.sub(lambda found: replacement(found, folder), value)
    if isinstance(value, dict):
        return {substituted(key, folder): substituted(item, folder) for key, item in value.items()}
    return [substituted(item, folder) for item in value] if isinstance(value, list) else value


def replacement(found: re.Match[str], folder: Path) -> str:
    name = found[1] or found[2]
    if name is None:
        return "$"
    if name == "CONFIG_DIR":
        return str(folder)
    if name not in os.environ:
        sys.exit(f"error: environment variable {name} is not set")
    return os.environ[name]


def ok(document: Any, log: Path, link: str) -> None:
    """What it says when all is well: with an OSC 8 link, as terminals show it."""
    print(f"Job \x1b]8;;{link}\x1b\\:{document['jobs'][0]['name']}\x1b]8;;\x1b\\ submitted: {link}.")


def ask(document: Any, log: Path, link: str) -> None:
    """Nobody can answer."""
    print("Proceed? [y/N] ", end="", flush=True)
    sys.exit(3 if sys.stdin.read() == "" else 0)


def fail(document: Any, log: Path, link: str) -> None:
    """With a value of the job's environment in the message."""
    print(f"bad token {document['jobs'][0]['submit_args']['env'].get('HF_TOKEN')}", file=sys.stderr)
    sys.exit(7)


def late_fail(document: Any, log: Path, link: str) -> None:
    """After the job was there."""
    print(f"Portal: {link}", flush=True)
    sys.exit(1)


def hang(document: Any, log: Path, link: str) -> None:
    """With a child of its own."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (log / "pids").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)


def stubborn(document: Any, log: Path, link: str) -> None:
    """The same, deaf to TERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang(document, log, link)


def flood(document: Any, log: Path, link: str) -> None:
    """Ten megabytes, then the link."""
    for number in range(20_000):
        print(f"{number} " + "x" * 500)
    ok(document, log, link)


BEHAVIOUR = {
    "ok": ok,
    "ask": ask,
    "fail": fail,
    "late-fail": late_fail,
    "hang": hang,
    "stubborn": stubborn,
    "flood": flood,
}

if __name__ == "__main__":
    main()
