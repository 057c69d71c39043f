"""The pages about Python, the queue and reliability say what is so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parents[2]
LEAF = "base:\nconfig:\n  target: {service: local}\n  jobs:\n    - instance_count: 1\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with a template `local`, as the page supposes."""
    project = tmp_path / "project"
    (project / ".azure_jobs" / "template").mkdir(parents=True)
    (project / ".azure_jobs" / "template" / "local.yaml").write_text(LEAF)
    for name in ("AJ_HOME", "AJ_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AJ_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("AJ_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(project)
    yield project
    from aj.sdk.spawn import Daemon
    from aj.shared.errors import DaemonNotRunningError

    try:
        Daemon.of({"AJ_RUNTIME_DIR": str(tmp_path / "run")}).stop(force=True)
    except DaemonNotRunningError:
        pass


def test_the_examples_of_the_page_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (PROJECT / "docs" / "sdk.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 8
    world: dict[str, Any] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"docs/sdk.md, example {number + 1}", "exec"), world)
    said = capsys.readouterr().out
    assert world["result"].status == "submitted" and world["entry"]["state"] == "done"
    assert "hello from $AJ_NAME\n" in said and "Completed 2 2\n" in said


def test_every_test_that_the_page_of_promises_names_exists() -> None:
    named = re.findall(r"`(test_\w+)`", (PROJECT / "docs" / "reliability.md").read_text())
    written = "\n".join(path.read_text() for path in (PROJECT / "tests").rglob("test_*.py"))
    missing = [name for name in named if not re.search(rf"^def {name}\(", written, re.MULTILINE)]
    assert len(named) > 40 and missing == []


def test_the_walk_through_the_queue_is_as_it_is_shown(here: Path) -> None:
    (here / "train.py").write_text("print('trained')\n")
    shown = re.findall(r"^\$ aj (.*)", (PROJECT / "docs" / "queue.md").read_text(), re.MULTILINE)
    codes, ticket = [], ""
    for line in shown:
        argv = [sys.executable, "-m", "aj", *re.sub(r"q-\w{8}", ticket, line).split()]
        done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(PROJECT)})
        codes.append(done.returncode)
        ticket = ticket or done.stdout.split()[-1]
    assert len(ticket) == 10 and codes == [0, 0, 0, 0, 1], done.stderr
    assert f"`{ticket}` is done, only pending entries can be canceled" in done.stderr


def test_every_command_and_state_of_the_queues_page_exists() -> None:
    from aj.client.queue import queue
    from aj.server.queue import FINISHED

    page = (PROJECT / "docs" / "queue.md").read_text()
    assert set(re.findall(r"aj queue (\w+)", page)) == set(queue.commands)
    assert re.findall(r"^\| `(\w+)`", page, re.MULTILINE) == ["pending", "submitting", *FINISHED]
