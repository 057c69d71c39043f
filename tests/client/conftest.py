"""A project in a temporary folder, and `aj` called in it: as a process, or in this one where only arguments matter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCAL = """\
base: null
config:
  target:
    service: local
    gpus_per_node: 1
  jobs:
    - instance_count: 1
"""


@cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads((ROOT / "schemas" / "output.schema.json").read_text()))


@dataclass(frozen=True)
class Ran:
    """What one call left behind."""

    code: int
    out: str
    err: str

    def document(self) -> dict[str, Any]:
        """The one JSON document of stdout, valid by its schema."""
        document = json.loads(self.out)
        problems = [f"{list(e.absolute_path)}: {e.message}" for e in _validator().iter_errors(document)]
        assert not problems, problems
        assert isinstance(document, dict)
        return document


@dataclass
class Project:
    """A folder of code with AJ_HOME in it, and daemon and cache of its own."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / ".azure_jobs"

    def template(self, name: str = "local", text: str = LOCAL) -> Path:
        path = self.home / "template" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def aj(self, *words: str | bytes, env: Mapping[str, str] | None = None, **how: Any) -> Ran:
        """`aj` as a process, without a terminal."""
        how = {"cwd": self.folder, "stdin": subprocess.DEVNULL, "timeout": 90, **how}
        command = [sys.executable, "-m", "aj", *words]
        ran = subprocess.run(command, env={**self.env, **(env or {})}, capture_output=True, check=False, **how)
        return Ran(ran.returncode, ran.stdout.decode("utf-8", "replace"), ran.stderr.decode("utf-8", "replace"))

    def start(self, *words: str, **how: Any) -> subprocess.Popen[bytes]:
        """`aj` as a process that is not waited for."""
        how = {"cwd": self.folder, "stdin": subprocess.DEVNULL, "env": self.env, **how}
        return subprocess.Popen([sys.executable, "-m", "aj", *words], **how)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    folder = tmp_path / "code"
    folder.mkdir()
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "user"),
        "PYTHONPATH": str(ROOT),
        "AJ_CACHE_HOME": str(tmp_path / "cache"),
        "AJ_RUNTIME_DIR": str(tmp_path / "run"),
        "LC_ALL": "C.UTF-8",
    }
    made = Project(folder, env)
    yield made
    if (tmp_path / "run").exists():
        made.aj("daemon", "stop", "--force")


@pytest.fixture
def here(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """`aj` in this process, in the project: quick, for what needs no daemon."""
    from aj.client.main import main

    for name in [name for name in os.environ if name.startswith("AJ_")]:
        monkeypatch.delenv(name)
    for name, value in project.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(project.folder)

    def call(*words: str) -> Ran:
        capsys.readouterr()
        code = main(words)
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return call
