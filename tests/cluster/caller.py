"""A person at their machine: a project with a Volcano template, kubectl on PATH, a kubeconfig."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from aj.build.store import Store
from aj.server.submission import Frozen, Submissions
from aj.shared.job.build import Invocation, build_spec
from aj.shared.model import Caller, Event, Identity, JobResult, Plan
from aj.shared.paths import Home
from aj.shared.template.template import load_template
from tests.azure.cloud import Azure
from tests.cluster.prepare import assets

TEMPLATE = """\
base:
config:
  target: {service: volcano, gpus_per_node: 8, cpus_per_node: 96, memory: 512Gi}
  environment: {image: registry.example.com/train:1}
  jobs:
    - submit_args:
        env: {AMLT_PERSISTENT_VOLUME_NAME: team-code, AMLT_PERSISTENT_VOLUME_MOUNT_DIR: /mnt/team}
"""


OLDEST = 30
"""The first minor version whose `exec` speaks websockets, which is what the double understands."""


def kubectls() -> list[Path]:
    """Every kubectl at hand, the pinned one first; a dispatcher counts as those that it dispatches to."""
    pinned = assets(os.environ) / "kubectl"
    found = [pinned] if pinned.exists() else []
    if own := shutil.which("kubectl"):
        others = sorted(Path(own).resolve().parent.glob("kubectl.1.*"), key=lambda path: int(path.suffix[1:]))
        speaking = [path for path in others if int(path.suffix[1:]) >= OLDEST]
        found += speaking[-1:] + speaking[:1] if others else [Path(own)]
    return found


@dataclass
class Person:
    """Submits from `folder`; `events` is what they were told."""

    folder: Path
    kubeconfig: Path
    kubectl: Path
    events: list[Event] = field(default_factory=list)
    azure: Azure | None = None
    """Where they are logged in."""

    def __post_init__(self) -> None:
        self.home = Home(self.folder / "project" / ".azure_jobs")
        self.home.templates.mkdir(parents=True)
        self.write(TEMPLATE)
        (self.home.root.parent / "train.py").write_text("print('trained')\n")
        (self.folder / "bin").mkdir()
        (self.folder / "bin" / "kubectl").symlink_to(self.kubectl)
        self.work = Submissions(self.home, Store(self.folder / "cache"))

    def write(self, template: str) -> None:
        (self.home.templates / "train.yaml").write_text(template)

    @property
    def caller(self) -> Caller:
        env = self.azure.env() if self.azure else {}
        path = [self.folder / "bin", *([self.azure.az.folder] if self.azure else [])]
        own = {"PATH": ":".join(map(str, path)), "HOME": str(self.folder), "KUBECONFIG": str(self.kubeconfig)}
        return Caller(str(self.home.root.parent), {**env, **own})

    def prepare(self, identity: str = "0badcafe", nodes: int = 2, env: Mapping[str, str] | None = None) -> Frozen:
        """Everything before the first write."""
        call = Invocation(("train.py",), self.home.root.parent, nodes, env=env or {})
        who = Identity(identity, "train", "2026-01-31T08:00:00+00:00")
        spec = build_spec(load_template(self.home, "train"), call, who).spec
        return self.work.prepare(spec, self.caller, self.events.append)

    def plan(self, nodes: int = 2) -> Plan:
        """What `aj plan` judges."""
        call = Invocation(("train.py",), self.home.root.parent, nodes)
        spec = build_spec(
            load_template(self.home, "train"), call, Identity("0badcafe", "train", "2026-01-31T08:00:00+00:00")
        ).spec
        return self.work.plan(spec, self.caller, self.events.append)

    def submit(self, frozen: Frozen) -> JobResult:
        """The writes."""
        return self.work.execute(frozen, self.caller, self.events.append)

    def run(self, **words: Any) -> JobResult:
        """Both."""
        return self.submit(self.prepare(**words))

    def told(self, kind: str) -> list[str]:
        """What was said in events of a kind."""
        return [event.detail for event in self.events if event.kind == kind]


def a_kubectl() -> Path:
    """The first kubectl; skips where there is none."""
    found = kubectls()
    if not found:
        pytest.skip("no kubectl here: `python tests/cluster/prepare.py` brings one")
    return found[0]


CODE = """\
  _extra: {code_upload: {strategy: blob, blob: {storage_account: ajstoreone, container: CODE, sas_expiry_days: 2}}}
"""
MOUNT = "  storage: {out: {storage_account_name: ajstoretwo, container_name: OUT}}\n"


@dataclass(frozen=True)
class Storage:
    """Two new containers in Azure: `code` of ajstoreone, `out` of ajstoretwo."""

    azure: Azure
    code: str
    out: str

    def template(self, text: str = TEMPLATE + MOUNT + CODE) -> str:
        """A template whose CODE and OUT are these."""
        return text.replace("CODE", self.code).replace("OUT", self.out)

    def blobs(self) -> dict[str, bytes]:
        """What lies where the code belongs."""
        container = self.azure.blobs("ajstoreone").get_container_client(self.code)
        return {blob.name: container.download_blob(blob.name).readall() for blob in container.list_blobs()}


def storage_of(person: Person, azure: Azure) -> Storage:
    """What a person gets who is logged in to Azure; their template needs it from now on."""
    made = Storage(azure, f"code-{uuid4().hex}", f"out-{uuid4().hex}")
    azure.blobs("ajstoreone").create_container(made.code)
    azure.blobs("ajstoretwo").create_container(made.out)
    config = {"cloud": {"arm": azure.arm, "blob": f"{azure.blob}/{{account}}"}}
    (person.home.root / "aj_config.json").write_text(json.dumps(config))
    person.azure = azure
    person.write(made.template())
    return made
