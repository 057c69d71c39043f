"""A project that submits to the simulated Azure: code, templates, configuration, and `aj` called in it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aj.build.store import Store
from aj.server.submission import Submissions
from aj.server.submit.aml.jobs import AmlJobs
from aj.shared.caller import caller
from aj.shared.clock import new_id, now_utc
from aj.shared.job.build import Invocation, build_spec
from aj.shared.job.naming import job_base_name
from aj.shared.model import Caller, Event, Identity, JobResult, JobSpec, Plan
from aj.shared.paths import Home
from aj.shared.template.template import load_template
from tests.azure.cloud import Azure, Place

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """\
import os, sys
who = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "NODE_RANK")]
print("training", *who, sys.argv[1:], flush=True)
"""
TEMPLATE = """\
base:
config:
  target: {service: aml, name: gpus, gpus_per_node: 1}
  environment: {image: pytorch/pytorch:2.5.1}
  jobs: [{instance_count: 1}]
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """What one call left behind."""

    code: int
    out: str
    err: str

    def document(self) -> dict[str, Any]:
        """The one JSON document of stdout."""
        document = json.loads(self.out)
        assert isinstance(document, dict)
        return document


@dataclass(slots=True)
class Project:
    """A folder of code with AJ_HOME in it; daemon, store and home are its own."""

    folder: Path
    azure: Azure
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.code.mkdir(parents=True)
        (self.code / "train.py").write_text(TRAIN)
        self.template("gpu", TEMPLATE)
        self.configure()
        self.env = {
            **self.azure.env(),
            "HOME": str(self.folder / "user"),
            "AJ_CACHE_HOME": str(self.folder / "cache"),
            "AJ_RUNTIME_DIR": str(self.folder / "run"),
            "LC_ALL": "C.UTF-8",
        }

    @property
    def code(self) -> Path:
        return self.folder / "code"

    @property
    def home(self) -> Path:
        return self.code / ".azure_jobs"

    def template(self, name: str, text: str) -> None:
        path = self.home / "template" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def configure(self, place: Place | None = None, **more: Any) -> None:
        """Write `aj_config.json`: the simulator's addresses, and `place` as the project's workspace."""
        config: dict[str, Any] = {"cloud": {"arm": self.azure.arm, "blob": f"{self.azure.blob}/{{account}}"}, **more}
        if place is not None:
            names = {"subscription_id": place.subscription, "resource_group": place.group, "workspace_name": place.name}
            config["workspace"] = names
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "aj_config.json").write_text(json.dumps(config))

    def aj(self, *words: str, env: Mapping[str, str] | None = None) -> Ran:
        """`aj` as a process, without a terminal."""
        command = [sys.executable, "-m", "aj", *words]
        whole = {**self.env, "PYTHONPATH": str(ROOT), **(env or {})}
        how: dict[str, Any] = {"cwd": self.code, "stdin": subprocess.DEVNULL, "env": whole, "timeout": 100}
        ran = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, **how)
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    def run(self, *words: str, template: str = "gpu", **how: Any) -> dict[str, Any]:
        """`aj --json run` of `python train.py`: the result's document, whatever became of it."""
        given = words or ("python", "train.py")
        return self.aj("--json", "run", "-t", template, *given, **how).document()

    def submitted(self, *words: str, **how: Any) -> dict[str, Any]:
        """The same, which must have worked."""
        result = self.run(*words, **how)
        assert result["status"] == "submitted", result
        return result

    def close(self) -> None:
        """End its daemon."""
        if (self.folder / "run").exists():
            self.aj("daemon", "stop", "--force")


@dataclass(slots=True)
class Here:
    """The same project, submitted to in this process: what the daemon does, without one."""

    project: Project
    said: list[str] = field(default_factory=list)

    def spec(self, *words: str, template: str = "gpu", nodes: int | None = None) -> JobSpec:
        """The job of `aj run`."""
        argv = words or ("python", "train.py")
        identity = Identity(new_id(), job_base_name(None, self.project.code, argv), now_utc())
        call = Invocation(argv, self.project.code, nodes=nodes)
        return build_spec(load_template(self._home, template), call, identity).spec

    def run(self, *words: str, template: str = "gpu", nodes: int | None = None) -> JobResult:
        """Prepare and execute; errors come out as they are raised."""
        submissions = self.submissions()
        frozen = submissions.prepare(self.spec(*words, template=template, nodes=nodes), self.caller, self.emit)
        return submissions.execute(frozen, self.caller, self.emit)

    def plan(self, *words: str, template: str = "gpu") -> Plan:
        """What `run` would do."""
        return self.submissions().plan(self.spec(*words, template=template), self.caller, self.emit)

    def jobs(self) -> AmlJobs:
        """The project's jobs."""
        return AmlJobs(self._home, self.caller)

    @property
    def caller(self) -> Caller:
        return caller(self.project.env, self.project.code)

    def emit(self, event: Event) -> None:
        self.said.append(event.detail)

    def submissions(self) -> Submissions:
        """What makes and sends them."""
        return Submissions(self._home, Store(self.project.folder / "cache"))

    @property
    def _home(self) -> Home:
        return Home(self.project.home)
