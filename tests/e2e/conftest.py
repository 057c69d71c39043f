"""The backend of `double/` as an installed third party, and a project that uses it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aj.build.store import Store
from aj.server import submit
from aj.server.submission import Submissions
from aj.shared import spec as registry
from aj.shared.job.build import Invocation, build_spec
from aj.shared.model import Caller, Identity, JobSpec
from aj.shared.paths import Home
from aj.shared.template.template import load_template

DOUBLE = Path(__file__).parent / "double"


@pytest.fixture
def double_backend() -> Iterator[None]:
    """`service: double` is registered by its entry points, as a third party's package would be."""
    sys.path.insert(0, str(DOUBLE))
    _forget_registrations()
    yield
    sys.path.remove(str(DOUBLE))
    _forget_registrations()


def _forget_registrations() -> None:
    registry._DESCRIPTIONS.forget()
    submit._EXECUTIONS.forget()


class Project:
    """A code folder with one template `gpu` for the double, whose remote lies beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.code = folder / "project"
        self.remote = folder / "remote"
        self.home = Home(self.code / ".azure_jobs")
        self.home.templates.mkdir(parents=True)
        (self.home.templates / "gpu.yaml").write_text(
            "base:\nconfig:\n  target: {service: double}\n  jobs: [{instance_count: 1}]\n"
        )
        (self.code / "train.py").write_text("print(1)\n")

    @property
    def submissions(self) -> Submissions:
        return Submissions(self.home, Store(self.folder / "cache"))

    @property
    def caller(self) -> Caller:
        return Caller(str(self.code), {})

    def spec(self, *argv: str, id: str = "0a1b2c3d", **how: object) -> JobSpec:
        call = Invocation(argv=argv or ("echo", "hi"), cwd=self.code, processes=1, **how)  # type: ignore[arg-type]
        return build_spec(load_template(self.home, "gpu"), call, Identity(id, "job", "2026-01-01T00:00:00+00:00")).spec

    def log(self) -> list[str]:
        path = self.remote / "log"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def project_of_double(tmp_path: Path, double_backend: None) -> Project:
    """A fresh project."""
    return Project(tmp_path)
